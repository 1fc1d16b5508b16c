//! Guests whose programs outlive losses: how they leave their seats, and where they go on.
//!
//! ```text
//!   in its seat ──its GPU is needed, is drained, or its box wants it to leave──▶ noticed, suspend_wanted
//!        ▲                                                                         │ parked       │ late, or its program refuses
//!        │                                                                         ▼              ▼
//!        └──served, at the head of its level──────────────────── pending, as an image      evicted: pending, as after a loss
//! ```
//!
//! Nothing is lost while there is time: the ledger asks the keeper for a suspension, as a person would, and takes the seat when
//! the program is parked. The lease then asks for a seat by itself, and its program's next CUDA call waits for it. After
//! [`super::Settings::seat_grace_ms`] the guest is evicted, like one whose program outlives nothing: its program goes on from its
//! last image. A host that is bad, a box that is dead and a seat that is gone leave no time.
//!
//! Notices are in memory alone. A new leader finds again which guests leave: a lease still waits for the whole GPU, a GPU is still
//! drained, a box says again that its guest must leave.

use super::boxes::BoxEntry;
use super::explain::counted;
use super::lease_life::LeaseEvent;
use super::moves::Why;
use super::queue::Wish;
use super::serve::remember_move;
use super::stock::{Mask, Place, Standing};
use super::{GpuEntry, Ledger, Note};
use pool_api::{
    Class, EventKind, Explanation, Gpu, GpuId, GpuState, Grant, Lease, LeaseId, LeaseState, Move, Name,
};

/// A guest is asked to leave its seat.
#[derive(Clone, Debug)]
pub(super) struct Notice {
    /// The seat, and the epoch of its grant.
    seat: (GpuId, u64),
    why: String,
    /// It is evicted then.
    due_ms: u64,
    /// It waits for another seat by itself when it is parked; one that a person has suspended does not.
    comes_back: bool,
}

impl Ledger {
    /// Has the next guest leave that has to: asks it, or evicts it. Tells whether there was anything to do.
    pub(super) fn evict(&mut self) -> bool {
        if let Some((id, why)) = self.overdue_guest() {
            self.throw_out(id, why);
            return true;
        }
        let Some((id, why)) = self.evicted.pop_first() else { return false };
        if !self.give_notice(id, &why) {
            self.throw_out(id, why);
        }
        true
    }

    /// Asks a guest to leave, if its program can be kept as an image.
    fn give_notice(&mut self, id: LeaseId, why: &str) -> bool {
        if self.is_noticed(id) {
            return true;
        }
        let is_asked = |lease: &Lease| is_seated_guest(lease) && !lease.request.survive.is_none();
        if !self.leases.get(&id).is_some_and(|entry| is_asked(&entry.lease)) {
            return false;
        }
        // Its program does one thing at a time.
        self.leave_second_place(id, why);
        let lease = &self.leases[&id].lease;
        let Grant { gpu, epoch, .. } = lease.grants[0].clone();
        let (tenant, comes_back) = (lease.tenant.clone(), !lease.suspend_wanted);
        let (grace_ms, seat) = (self.settings.seat_grace_ms, (gpu.clone(), epoch));
        let notice = Notice { seat, why: why.to_owned(), due_ms: self.now_ms + grace_ms, comes_back };
        self.notices.insert(id, notice);
        self.set_suspend_wanted(id, true);
        let message = format!(
            "{id} is asked to leave {gpu}: {why}; its program is suspended, or loses the seat in {} s",
            grace_ms / 1000
        );
        self.note(Note::new(EventKind::LeaseMoving, message).gpu(&gpu).lease(id, &tenant));
        #[cfg(test)]
        if self.mutated(crate::simulation::Mutation::GrantBesideLeavingGuest) {
            self.restand(&gpu);
        }
        true
    }

    /// A guest that has had its time, and why it leaves.
    fn overdue_guest(&mut self) -> Option<(LeaseId, String)> {
        let is_due = |notice: &Notice| notice.due_ms <= self.now_ms;
        let id = *self.notices.iter().find(|(_, notice)| is_due(notice))?.0;
        let is_there = self.is_noticed(id);
        let notice = self.notices.remove(&id)?;
        is_there.then_some((id, notice.why))
    }

    /// When the next guest has had its time.
    pub(super) fn guest_due_ms(&self) -> Option<u64> {
        self.notices.values().map(|notice| notice.due_ms).min()
    }

    fn throw_out(&mut self, id: LeaseId, why: String) {
        let Some(entry) = self.leases.get(&id).filter(|entry| is_seated_guest(&entry.lease)) else { return };
        let grants = entry.lease.grants.clone();
        for grant in &grants {
            self.unbind(grant, id, false);
        }
        let reasons = vec![Why::known(why); grants.len()];
        self.exchange_or_requeue(id, &grants, None, &reasons);
    }

    /// Whether a guest is asked to leave the seat that it has.
    pub(super) fn is_noticed(&self, id: LeaseId) -> bool {
        let has = |notice: &Notice| {
            let (gpu, epoch) = &notice.seat;
            self.leases.get(&id).is_some_and(|entry| {
                let mut grants = entry.lease.grants.iter();
                grants.any(|grant| grant.gpu == *gpu && grant.epoch == *epoch)
            })
        };
        self.notices.get(&id).is_some_and(has)
    }

    /// A person wants the program suspended, too: it then comes back as that person says.
    pub(super) fn suspend_for_good(&mut self, id: LeaseId) {
        if let Some(notice) = self.notices.get_mut(&id) {
            notice.comes_back = false;
        }
    }

    /// The program cannot be kept as an image: waiting for it would bring nothing.
    pub(super) fn guest_refuses(&mut self, id: LeaseId, why: &str) {
        let now_ms = self.now_ms;
        if let Some(notice) = self.notices.get_mut(&id) {
            notice.due_ms = now_ms;
            let why = if why.is_empty() { "its program did not say why" } else { why };
            notice.why = format!("{}, and it cannot be suspended: {why}", notice.why);
        }
    }

    /// The lease has left the seat by another way.
    pub(super) fn end_notice(&mut self, id: LeaseId) {
        if self.notices.remove(&id).is_some_and(|notice| notice.comes_back) {
            self.set_suspend_wanted(id, false);
        }
    }

    /// What a guest that is parked now was asked for, if it was asked and is to come back by itself.
    pub(super) fn take_notice(&mut self, id: LeaseId) -> Option<Notice> {
        let is_asked = self.is_noticed(id);
        self.notices.remove(&id).filter(|notice| is_asked && notice.comes_back)
    }

    /// A guest that was asked to leave is parked: it waits for another seat, at the head of its level.
    pub(super) fn wait_for_a_seat(&mut self, id: LeaseId, notice: Notice) {
        let now_ms = self.now_ms;
        let lease = &mut self.leases.get_mut(&id).expect("it was parked just now").lease;
        lease.on(LeaseEvent::Unparked);
        if let Some(parking) = lease.edit().parking {
            parking.queued_ms = Some(now_ms);
        }
        let ((from, _), reason) = (notice.seat, notice.why);
        let message =
            format!("{id} was suspended and has left {from}: {reason}; its program waits for another seat");
        let moved = Move {
            from: from.clone(),
            to: None,
            at_ms: now_ms,
            reason,
            said_by_borrower: false,
            planned: true,
        };
        remember_move(lease.edit().moves, moved);
        *lease.edit().version += 1;
        let tenant = lease.tenant.clone();
        self.draft.leases.insert(id);
        self.enqueue(id);
        self.note(Note::new(EventKind::LeaseUnparked, message).gpu(&from).lease(id, &tenant));
    }

    /// Whether the guest of a seat has time to leave it.
    pub(super) fn has_time(&self, seat: &Gpu) -> bool {
        seat.holders.first().is_some_and(|holder| self.survives(holder.lease))
    }

    /// Whether the box of a seat has guard memory for its guest.
    pub(super) fn guards_guest(&self, owner: &BoxEntry, seat: &Gpu, wish: &Wish) -> bool {
        wish.guard.is_none_or(|guard| self.is_guarded(owner, seat, (guard, 1), None))
    }

    /// A seat for an offline lease that waits: as the plan for all has it, unless its program outlives losses. That one goes where its
    /// image is, if it can, and else to the best seat whose box has guard memory for it; and a program that has seen how much memory it
    /// has goes on in a seat of the same size alone. The plan knows neither, so these leases are no part of it.
    pub(super) fn seat_for(&mut self, id: LeaseId, tenant: &Name, wish: &Wish, open: Mask) -> Option<Place> {
        if !self.survives(id) {
            return self.find_seat(tenant, wish, open);
        }
        let classes = open & self.seats_of_its_size(id);
        self.seat_at_its_image(id, wish, classes).or_else(|| self.guarded_seat(tenant, wish, classes))
    }

    fn guarded_seat(&self, tenant: &Name, wish: &Wish, classes: Mask) -> Option<Place> {
        let all = self.boxes.values().flat_map(|owner| owner.slots.values().map(move |entry| (owner, entry)));
        let will_do = all.filter(|(owner, entry)| {
            let seat = &entry.gpu;
            seat.guest.is_some() && wish.accepts_gpu(&seat.id) && self.guards_guest(owner, seat, wish)
        });
        self.best_seat(tenant, classes, &will_do.map(|(_, entry)| entry.place).collect())
    }

    /// Another seat for a guest that has one.
    pub(super) fn second_seat(&self, id: LeaseId, to_box: Option<&Name>, is_guarded: bool) -> Option<Place> {
        let wish = Wish::of(&self.leases[&id].lease);
        let guard = Wish::asked(&self.leases[&id].lease.request).guard.filter(|_| is_guarded);
        let wish = Wish { guard, ..wish };
        let classes = self.classes_for(&wish) & self.seats_of_its_size(id);
        self.seat_where(id, &wish, classes, |owner| to_box.is_none_or(|name| owner.record.name == *name))
    }

    fn seat_at_its_image(&self, id: LeaseId, wish: &Wish, classes: Mask) -> Option<Place> {
        let lease = &self.leases[&id].lease;
        if lease.request.survive.is_none() || lease.granted_ms.is_none() {
            return None;
        }
        self.seat_where(id, wish, classes, |owner| {
            let guard = owner.guard.as_ref();
            guard.is_some_and(|guard| guard.leases.iter().any(|kept| kept.lease == id))
        })
    }

    fn seat_where(
        &self,
        id: LeaseId,
        wish: &Wish,
        classes: Mask,
        is_in: impl Fn(&BoxEntry) -> bool,
    ) -> Option<Place> {
        let tenant = &self.leases[&id].lease.tenant;
        let will_do = |owner: &BoxEntry, entry: &GpuEntry| {
            self.stock.standing(entry.place) == Standing::Usable
                && self.stock.is_of(entry.place, classes)
                && wish.accepts_gpu(&entry.gpu.id)
                && self.may_be_beside(owner, &entry.gpu, tenant, wish)
                && wish.guard.is_none_or(|guard| self.is_guarded(owner, &entry.gpu, (guard, 1), Some(id)))
        };
        let boxes = self.boxes.values().filter(|owner| is_in(owner));
        let slots = boxes.flat_map(|owner| owner.slots.values().map(move |entry| (owner, entry)));
        let found = slots.filter(|(owner, entry)| entry.gpu.guest.is_some() && will_do(owner, entry));
        self.best_seat(tenant, classes, &found.map(|(_, entry)| entry.place).collect())
    }

    /// The kinds of seats with as much memory as the one that a program has, or had last.
    fn seats_of_its_size(&self, id: LeaseId) -> Mask {
        let lease = &self.leases[&id].lease;
        let has_begun = !lease.request.survive.is_none() && lease.granted_ms.is_some();
        let left = lease.moves.last().map(|moved| &moved.from);
        let seat = lease.grants.first().map(|grant| &grant.gpu).or(left).filter(|_| has_begun);
        let bytes = seat.and_then(|seat| self.entry(seat)).map(|entry| entry.gpu.memory_bytes);
        self.stock.mask(|class| bytes.is_none_or(|bytes| class.memory_bytes == bytes))
    }

    /// What a guest that has its seat is asked for, in words.
    pub(super) fn explain_notice(&self, id: LeaseId, answer: &mut Explanation) {
        let Some(notice) = self.notices.get(&id).filter(|_| self.is_noticed(id)) else { return };
        let left = self.seconds_left(notice);
        answer.reasons.push(format!(
            "it is asked to leave its seat: {}. Its program is being suspended; in {left} the seat is taken from it",
            notice.why
        ));
    }

    /// Which guests a lease waits for that needs their GPUs, and until when.
    pub(super) fn explain_leaving_guests(&self, places: &[Place], answer: &mut Explanation) {
        /// So many are named.
        const NAMED_MAX: usize = 4;
        let seats = places.iter().filter_map(|place| self.partner_of(&self.gpu_at(*place)));
        let noticed = seats.filter_map(|seat| {
            let seat = &self.entry(&seat)?.gpu;
            let id = seat.holders.first().filter(|_| seat.state == GpuState::Leased)?.lease;
            Some((seat.id.clone(), id, self.notices.get(&id).filter(|_| self.is_noticed(id))?))
        });
        for (seat, id, notice) in noticed.take(NAMED_MAX) {
            let left = self.seconds_left(notice);
            answer.reasons.push(format!(
                "guest {id} is asked to leave {seat}: its program is being suspended, and it is evicted in {left} at the \
                 latest; then the seat is cleaned"
            ));
        }
    }

    fn seconds_left(&self, notice: &Notice) -> String {
        counted(notice.due_ms.saturating_sub(self.now_ms).div_ceil(1000), "second")
    }
}

pub(super) fn is_seated_guest(lease: &Lease) -> bool {
    lease.state == LeaseState::Granted && lease.request.class == Class::Offline
}
