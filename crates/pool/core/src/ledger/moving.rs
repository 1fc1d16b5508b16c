//! Moves in two phases: a lease gets the second place before it gives the first one back.
//!
//! ```text
//!   granted at A ──move, drain, drill──▶ granted at A, second place B
//!                                          │ moved, or A is lost        │ stays, drilled, late, or B is lost
//!                                          ▼                            ▼
//!                                       granted at B, A is cleaned    granted at A, B is cleaned
//! ```
//!
//! The program uses one place at a time: it goes on at B from its image, and then its keeper says `moved`. The ledger binds
//! B like any GPU, under a new epoch, so both boxes keep others out. A lease that is drained and whose program does not go
//! on at B in time is moved without asking, as leases are whose programs outlive nothing.

use super::command::{Answer, Refusal};
use super::moves::Why;
use super::queue::Wish;
use super::serve::remember_move;
use super::stock::{Need, Place, Standing};
use super::{Ledger, Note};
use pool_api::{Class, EventKind, GpuId, Grant, LeaseId, LeaseState, Move, Moving, Name, Purpose};

impl Ledger {
    pub(super) fn ask_move(
        &mut self,
        id: LeaseId,
        gpu: Option<&GpuId>,
        to_box: Option<&Name>,
        by: &str,
    ) -> Result<Answer, Refusal> {
        if let Some(name) = to_box.filter(|name| !self.boxes.contains_key(*name)) {
            return Err(Refusal::NoBox { box_name: name.clone() });
        }
        let grant = self.leaving(id, gpu)?;
        if let Some(moving) = &self.leases[&id].lease.moving {
            let is_same = moving.purpose != Purpose::Drill
                && (moving.from == grant.gpu || gpu.is_none())
                && to_box.is_none_or(|name| moving.to.gpu.box_name == *name);
            let gpu = moving.to.gpu.clone();
            return if is_same { Ok(self.show(id)) } else { Err(Refusal::AlreadyMoving { lease: id, gpu }) };
        }
        let place = self.second_place(id, &grant, to_box, false)?;
        self.begin(id, &grant, place, Purpose::Asked, format!("{by} asked for it"));
        Ok(self.show(id))
    }

    pub(super) fn drill(&mut self, id: LeaseId) -> Result<Answer, Refusal> {
        let grant = self.leaving(id, None)?;
        if let Some(moving) = &self.leases[&id].lease.moving {
            let gpu = moving.to.gpu.clone();
            let is_same = moving.purpose == Purpose::Drill;
            return if is_same { Ok(self.show(id)) } else { Err(Refusal::AlreadyMoving { lease: id, gpu }) };
        }
        let place = self.second_place(id, &grant, None, true)?;
        self.begin(id, &grant, place, Purpose::Drill, "a drill".to_owned());
        Ok(self.show(id))
    }

    /// The grant that a lease is to leave.
    fn leaving(&self, id: LeaseId, gpu: Option<&GpuId>) -> Result<Grant, Refusal> {
        let lease = self.surviving(id)?;
        if lease.state != LeaseState::Granted {
            return Err(Refusal::NotGranted { lease: id, state: state_in_words(lease.state) });
        }
        let grant = lease.grants.iter().find(|grant| gpu.is_none_or(|gpu| grant.gpu == *gpu));
        let not_its = || {
            let gpu = gpu.expect("a granted lease has a GPU").clone();
            Refusal::NotItsGpu { lease: id, gpu, epoch: None }
        };
        grant.cloned().ok_or_else(not_its)
    }

    /// Where a lease could go from one of its GPUs.
    fn second_place(
        &mut self,
        id: LeaseId,
        grant: &Grant,
        to_box: Option<&Name>,
        spares: bool,
    ) -> Result<Place, Refusal> {
        let lease = &self.leases[&id].lease;
        if lease.request.class == Class::Offline {
            let where_to = to_box.map_or_else(String::new, |name| format!(" in box {name}"));
            let where_to = format!("that is a seat for guests of the same size{where_to}");
            let found = self.second_seat(id, to_box, !spares);
            return found.ok_or(Refusal::NoTarget { lease: id, where_to });
        }
        let is_tied = lease.grants.len() > 1 && lease.request.topology != pool_api::Topology::Any;
        let wish = Wish { lost: spares, ..Wish::of(lease) };
        // A drill reads the image and keeps none, and may have spares. What moves needs guard memory where it goes.
        let hidden = match spares {
            true => Vec::new(),
            false => {
                let guard = Wish::asked(&lease.request).guard;
                let need = Need { guard, ..wish.need(self.classes_for(&wish)) };
                self.unguarded(&need, Some(id))
            }
        };
        let before: Vec<Standing> = hidden.iter().map(|place| self.stock.standing(*place)).collect();
        hidden.iter().for_each(|place| self.stock.set(*place, Standing::Busy));
        let found = match to_box {
            Some(name) if !is_tied => {
                let need = wish.need(self.classes_for(&wish));
                self.stock.inside(name, &need)
            }
            _ => {
                let found = self.find_replacements(id, std::slice::from_ref(grant), spares);
                let found = found.and_then(|mut places| places.pop());
                found.filter(|place| to_box.is_none_or(|name| self.stock.locate(*place).0 == name))
            }
        };
        hidden.iter().zip(before).for_each(|(place, before)| self.stock.set(*place, before));
        let guarded = if hidden.is_empty() { "" } else { ", with guard memory for its images" };
        let where_to = || {
            let place = to_box.map_or_else(|| "of its model".to_owned(), |name| format!("in box {name}"));
            format!("{place}{guarded}")
        };
        found.ok_or_else(|| Refusal::NoTarget { lease: id, where_to: where_to() })
    }

    /// A drained GPU: its lease gets a second place, if one is free.
    pub(super) fn begin_leaving(&mut self, id: LeaseId, grant: &Grant) {
        // On its way already, or a drill: when that is over, `empty_drained` looks again.
        if self.leases[&id].lease.moving.is_some() {
            return;
        }
        // Without spares: those are for GPUs that break.
        if let Ok(place) = self.second_place(id, grant, None, false) {
            self.begin(id, grant, place, Purpose::Drain, "it is being drained".to_owned());
        }
    }

    pub(super) fn begin(
        &mut self,
        id: LeaseId,
        grant: &Grant,
        place: Place,
        purpose: Purpose,
        reason: String,
    ) {
        let to = self.bind(&self.gpu_at(place), id, None);
        let tenant = self.leases[&id].lease.tenant.clone();
        let (from, from_epoch, since_ms) = (grant.gpu.clone(), grant.epoch, self.now_ms);
        let (kind, message) = match purpose {
            Purpose::Drill => (EventKind::LeaseDrill, format!("{id} tries a recovery on {}", to.gpu)),
            Purpose::Asked | Purpose::Drain => {
                (EventKind::LeaseMoving, format!("{id} is to move from {from} to {}: {reason}", to.gpu))
            }
        };
        self.note(Note::new(kind, message).gpu(&to.gpu).lease(id, &tenant));
        let lease = &mut self.leases.get_mut(&id).expect("it is there").lease;
        *lease.edit().moving = Some(Moving { from, from_epoch, to, purpose, since_ms, reason });
        *lease.edit().version += 1;
        self.draft.leases.insert(id);
        self.moves_due.insert((self.now_ms + self.settings.move_grace_ms, id));
    }

    pub(super) fn moved(&mut self, id: LeaseId, gpu: &GpuId, epoch: u64) -> Result<Answer, Refusal> {
        let lease = self.surviving(id)?;
        let is_meant = |grant: &Grant| grant.gpu == *gpu && grant.epoch == epoch;
        match &lease.moving {
            Some(moving) if is_meant(&moving.to) && moving.purpose != Purpose::Drill => {
                let reason = moving.reason.clone();
                self.arrive(id, &Why::planned(reason));
            }
            // It was said before.
            _ if lease.grants.iter().any(is_meant) => {}
            _ => return Err(Refusal::NotItsGpu { lease: id, gpu: gpu.clone(), epoch: Some(epoch) }),
        }
        Ok(self.heard_of(id))
    }

    pub(super) fn stay(
        &mut self,
        id: LeaseId,
        gpu: &GpuId,
        epoch: u64,
        why: &str,
    ) -> Result<Answer, Refusal> {
        let lease = self.surviving(id)?;
        // What is given back already may be given back again.
        if lease.moving.as_ref().is_some_and(|moving| moving.to.gpu == *gpu && moving.to.epoch == epoch) {
            self.leave_second_place(id, why);
        }
        Ok(self.heard_of(id))
    }

    /// The lease has the second place alone from now on.
    pub(super) fn arrive(&mut self, id: LeaseId, why: &Why) {
        let Some(moving) = self.take_moving(id) else { return };
        let Moving { from, from_epoch, to, .. } = moving;
        let lease = &self.leases[&id].lease;
        let is_source = |grant: &Grant| grant.gpu == from && grant.epoch == from_epoch;
        let source = lease.grants.iter().find(|grant| is_source(grant)).cloned();
        let tenant = lease.tenant.clone();
        #[cfg(test)]
        let forgets = self.mutated(crate::simulation::Mutation::KeepSource);
        #[cfg(not(test))]
        let forgets = false;
        if let Some(source) = source.filter(|_| !forgets) {
            self.unbind(&source, id, false);
        }
        let message = format!("{id} moved from {from} to {}: {}", to.gpu, why.reason);
        self.note(Note::new(EventKind::LeaseMoved, message).gpu(&to.gpu).lease(id, &tenant));
        let at_ms = self.now_ms;
        let lease = &mut self.leases.get_mut(&id).expect("it is there").lease;
        let Why { reason, said_by_borrower, is_planned: planned } = why.clone();
        let moved =
            Move { from: from.clone(), to: Some(to.gpu.clone()), at_ms, reason, said_by_borrower, planned };
        remember_move(lease.edit().moves, moved);
        // In its place, so that the borrower's devices keep their numbers.
        if let Some(grant) = lease.edit().grants.iter_mut().find(|grant| is_source(grant)) {
            *grant = to;
        }
        *lease.edit().version += 1;
        self.draft.leases.insert(id);
        self.end_notice(id);
    }

    /// The lease gives its second place back. One that is drained is moved without asking from now on.
    pub(super) fn leave_second_place(&mut self, id: LeaseId, why: &str) {
        let Some(moving) = self.leases.get(&id).and_then(|entry| entry.lease.moving.clone()) else { return };
        self.drop_second_place(id);
        let tenant = self.leases[&id].lease.tenant.clone();
        let gpu = &moving.to.gpu;
        let why = if why.is_empty() { "its program did not say why" } else { why };
        let message = match moving.purpose {
            Purpose::Drill => format!("{id} has given {gpu} back after its drill: {why}"),
            Purpose::Asked | Purpose::Drain => {
                format!("{id} stays on {} and gives {gpu} back: {why}", moving.from)
            }
        };
        self.note(Note::new(EventKind::LeaseStayed, message).gpu(gpu).lease(id, &tenant));
        if moving.purpose == Purpose::Drain {
            self.hurried.insert(id);
        }
    }

    /// The same without a word.
    pub(super) fn drop_second_place(&mut self, id: LeaseId) {
        let Some(moving) = self.take_moving(id) else { return };
        self.unbind(&moving.to, id, false);
        let lease = &mut self.leases.get_mut(&id).expect("it is there").lease;
        *lease.edit().version += 1;
        self.draft.leases.insert(id);
    }

    fn take_moving(&mut self, id: LeaseId) -> Option<Moving> {
        let moving = self.leases.get_mut(&id)?.lease.edit().moving.take()?;
        self.moves_due.retain(|(_, lease)| *lease != id);
        // What is drained can go on with its other GPUs, or without asking.
        self.unwanted_tried = u64::MAX;
        Some(moving)
    }

    /// The program has had its time.
    pub(super) fn move_is_late(&mut self, id: LeaseId) {
        self.moves_due.retain(|(_, lease)| *lease != id);
        let waited_s = self.settings.move_grace_ms / 1000;
        self.leave_second_place(
            id,
            &format!("its program did not say within {waited_s} s that it goes on there"),
        );
    }

    /// One of the two places is lost: the other is the lease's only one.
    pub(super) fn settle_moving(&mut self, id: LeaseId) {
        let Some(moving) = self.leases[&id].lease.moving.clone() else { return };
        if !self.is_alive(&moving.to, id) {
            let why = self.why_lost(&moving.to);
            return self.leave_second_place(id, &why);
        }
        let is_source = |grant: &&Grant| grant.gpu == moving.from && grant.epoch == moving.from_epoch;
        let source = self.leases[&id].lease.grants.iter().find(is_source).cloned();
        if let Some(source) = source.filter(|source| !self.is_alive(source, id)) {
            let why = Why::known(self.why_lost(&source));
            self.arrive(id, &why);
        }
    }

    /// A new leader gives programs all of their time again: it does not know the clock of the one before.
    pub(super) fn load_moving(&mut self, id: LeaseId) {
        let Some(to) = self.leases[&id].lease.moving.as_ref().map(|moving| moving.to.clone()) else { return };
        let tenant = self.leases[&id].lease.tenant.clone();
        let holder = self
            .entry(&to.gpu)
            .and_then(|entry| entry.gpu.holders.iter().find(|holder| holder.lease == id).cloned());
        if let Some(holder) = holder {
            self.charge(&tenant, &to.model, &holder, true);
        }
        self.moves_due.insert((self.now_ms + self.settings.move_grace_ms, id));
    }

    /// A lease is on its way nowhere any more.
    pub(super) fn forget_way(&mut self, id: LeaseId) {
        self.unwanted.remove(&id);
        self.hurried.remove(&id);
        self.notices.remove(&id);
        self.starving.forget(id);
        self.moves_due.retain(|(_, lease)| *lease != id);
    }
}

pub(super) fn state_in_words(state: LeaseState) -> &'static str {
    match state {
        LeaseState::Pending => "pending",
        LeaseState::Granted => "granted",
        LeaseState::Parked => "parked",
        LeaseState::Releasing => "releasing",
        LeaseState::Ended => "ended",
    }
}
