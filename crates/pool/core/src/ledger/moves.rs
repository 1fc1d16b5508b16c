//! Leases that have lost a GPU, or shall lose it.
//!
//! A GPU that is lost is replaced in place where that is possible: by itself if its box has only thrown the borrower
//! out, by a spare or a free GPU of the same model beside those that are left otherwise. Where it is not, the lease
//! gives up what it still has and waits at the head of its priority: all or nothing.

use super::lease_life::LeaseEvent;
use super::queue::Wish;
use super::serve::remember_move;
use super::stock::{Mask, Place};
use super::{Ledger, Note};
use pool_api::{Class, EventKind, GpuState, Grant, LeaseId, LeaseState, Move, Name};

/// Why a lease leaves a GPU.
#[derive(Clone, Debug)]
pub(super) struct Why {
    pub(super) reason: String,
    /// The borrower said so, before the box did.
    pub(super) said_by_borrower: bool,
    /// Nothing is lost: the program says that it has arrived elsewhere.
    pub(super) is_planned: bool,
}

impl Why {
    /// By what the pool knows.
    pub(super) fn known(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), said_by_borrower: false, is_planned: false }
    }

    /// As it was asked for.
    pub(super) fn planned(reason: impl Into<String>) -> Self {
        Self { is_planned: true, ..Self::known(reason) }
    }
}

/// More than so many GPUs at once are replaced by way of the queue: old and new ones and the lease are one transaction.
const REPLACED_AT_ONCE_MAX: usize = 32;

impl Ledger {
    /// Replaces the lost GPUs of a granted lease, and drops the cleaned ones of a releasing lease.
    pub(super) fn settle(&mut self, id: LeaseId) {
        match self.leases.get(&id).map(|entry| entry.lease.state) {
            Some(LeaseState::Granted) => {
                self.settle_endpoints(id);
                self.settle_moving(id);
                let lost = |grant: &Grant| !self.is_alive(grant, id);
                let lost: Vec<Grant> =
                    self.leases[&id].lease.grants.iter().filter(|g| lost(g)).cloned().collect();
                if !lost.is_empty() {
                    self.replace(id, &lost);
                }
            }
            Some(LeaseState::Releasing) => self.settle_releasing(id),
            Some(LeaseState::Pending | LeaseState::Parked | LeaseState::Ended) | None => {}
        }
    }

    fn settle_releasing(&mut self, id: LeaseId) {
        let grants = self.leases[&id].lease.grants.clone();
        let lingering: Vec<Grant> =
            grants.iter().filter(|grant| self.is_lingering(grant, id)).cloned().collect();
        if lingering.len() == grants.len() {
            return;
        }
        for grant in grants.iter().filter(|grant| !lingering.contains(grant)) {
            // A GPU of a dead box still names the lease as its last holder.
            if let Some(entry) = self.entry_mut(&grant.gpu)
                && let Some(at) = entry.gpu.holders.iter().position(|holder| holder.lease == id)
            {
                entry.gpu.edit().holders.remove(at);
                self.draft.gpus.insert(grant.gpu.clone());
            }
        }
        *self.leases.get_mut(&id).expect("it is there").lease.edit().grants = lingering;
        self.draft.leases.insert(id);
        self.end_if_clean(id);
    }

    /// Writes the current addresses of its workers into a lease, for its borrower.
    fn settle_endpoints(&mut self, id: LeaseId) {
        let mut grants = self.leases[&id].lease.grants.clone();
        let mut moving = self.leases[&id].lease.moving.clone();
        for grant in grants.iter_mut().chain(moving.as_mut().map(|moving| &mut moving.to)) {
            if let Some(entry) = self.entry(&grant.gpu)
                && entry.gpu.epoch == grant.epoch
            {
                grant.endpoints.clone_from(&entry.gpu.endpoints);
            }
        }
        let lease = &mut self.leases.get_mut(&id).expect("it is there").lease;
        if lease.grants != grants || lease.moving != moving {
            *lease.edit().grants = grants;
            *lease.edit().moving = moving;
            *lease.edit().version += 1;
            self.draft.leases.insert(id);
        }
    }

    fn replace(&mut self, id: LeaseId, lost: &[Grant]) {
        let reasons: Vec<Why> = lost.iter().map(|grant| Why::known(self.why_lost(grant))).collect();
        for grant in lost {
            self.unbind(grant, id, false);
        }
        let found = self.find_replacements(id, lost, true);
        self.exchange_or_requeue(id, lost, found, &reasons);
    }

    pub(super) fn exchange_or_requeue(
        &mut self,
        id: LeaseId,
        lost: &[Grant],
        found: Option<Vec<Place>>,
        reasons: &[Why],
    ) {
        match (found, self.slots_again(lost)) {
            (Some(found), Some(slots)) => self.exchange(id, lost, &found, &slots, reasons),
            _ => self.requeue(id, lost, reasons),
        }
    }

    pub(super) fn why_lost(&self, grant: &Grant) -> String {
        let Some(owner) = self.boxes.get(&grant.gpu.box_name) else { return "its box is gone".into() };
        let Some(gpu) = owner.slots.get(&grant.gpu.slot).map(|entry| &entry.gpu) else {
            return "it is gone".into();
        };
        match gpu.state {
            _ if owner.presence == super::Presence::Dead => format!("box {} is dead", gpu.box_name),
            GpuState::Bad => gpu.health.reason.clone().unwrap_or_else(|| "it is bad".into()),
            GpuState::Absent => "it is no longer there".into(),
            GpuState::Leased if self.is_forsaken(owner, gpu) => self.why_forsaken(owner, gpu),
            GpuState::Leased if grant.attachment.is_some() && gpu.bound_epoch < grant.epoch => {
                "its box has started anew".into()
            }
            GpuState::Leased if !super::boxes::is_clean(gpu) && grant.attachment.is_some() => {
                "its host has given it up".into()
            }
            _ => "its box has ended the session".into(),
        }
    }

    /// One GPU for each that was lost; all or nothing. Nothing is taken yet.
    pub(super) fn find_replacements(
        &mut self,
        id: LeaseId,
        lost: &[Grant],
        spares: bool,
    ) -> Option<Vec<Place>> {
        let lease = &self.leases[&id].lease;
        // A guest waits in the queue, behind those that its seat may be needed for.
        if lost.len() > REPLACED_AT_ONCE_MAX || lease.request.class == Class::Offline {
            return None;
        }
        let kept: Vec<Grant> = lease.grants.iter().filter(|grant| !lost.contains(grant)).cloned().collect();
        let wish = Wish { lost: spares, ..Wish::of(lease) };
        let classes = self.classes_for(&wish);
        if !wish.given.is_empty() {
            return self.given_again(id, lost, classes);
        }
        let (need, own) = (wish.need(classes), self.stock.mask(|class| wish.accepts(class)));
        if kept.is_empty() && lost.len() > 1 && !lost.iter().all(|grant| self.can_come_back(&grant.gpu, id)) {
            return self.stock.choose(&need, &mut self.unused_dice);
        }
        let mut places: Vec<Place> =
            kept.iter().filter_map(|grant| Some(self.entry(&grant.gpu)?.place)).collect();
        let first_new = places.len();
        for grant in lost {
            // What it had will do, also where others would get a part now.
            let found = match self.usable_again(id, grant, own, &places) {
                Some(place) => Some(place),
                None => self.stock.beside(&places, &need, &mut self.unused_dice),
            };
            let Some(place) = found else {
                self.unreserve(&places[first_new..]);
                return None;
            };
            // Marked busy, so that the next search does not find it again.
            self.stock.set(place, super::stock::Standing::Busy);
            places.push(place);
        }
        let found = places.split_off(first_new);
        self.unreserve(&found);
        Some(found)
    }

    fn unreserve(&mut self, places: &[Place]) {
        for place in places {
            let id = self.gpu_at(*place);
            self.restand(&id);
        }
    }

    /// The very GPU that was lost, if only the borrower was thrown out, or its host has lost it: with what it has left there.
    pub(super) fn usable_again(
        &self,
        lease: LeaseId,
        grant: &Grant,
        classes: Mask,
        taken: &[Place],
    ) -> Option<Place> {
        let place = self.entry(&grant.gpu)?.place;
        let can_be_had = self.stock.can_be_had(place) || self.can_come_back(&grant.gpu, lease);
        let fits = can_be_had && self.stock.is_of(place, classes);
        (fits && !taken.contains(&place)).then_some(place)
    }

    fn exchange(
        &mut self,
        id: LeaseId,
        lost: &[Grant],
        found: &[Place],
        slots: &[Option<(Name, u8)>],
        reasons: &[Why],
    ) {
        let now_ms = self.now_ms;
        let tenant = self.leases[&id].lease.tenant.clone();
        for (((old, place), slot), why) in lost.iter().zip(found).zip(slots).zip(reasons) {
            let new = self.bind(&self.gpu_at(*place), id, slot.clone());
            let reason = &why.reason;
            let message = if new.gpu == old.gpu {
                format!("{id} starts again on {}: {reason}", old.gpu)
            } else {
                format!("{id} moved from {} to {}: {reason}", old.gpu, new.gpu)
            };
            self.note(Note::new(EventKind::LeaseMoved, message).gpu(&new.gpu).lease(id, &tenant));
            let lease = &mut self.leases.get_mut(&id).expect("it is there").lease;
            let moved = Move {
                from: old.gpu.clone(),
                to: Some(new.gpu.clone()),
                at_ms: now_ms,
                reason: reason.clone(),
                said_by_borrower: why.said_by_borrower,
                planned: false,
            };
            remember_move(lease.edit().moves, moved);
            // In its place, so that the borrower's devices keep their numbers.
            let is_old = |grant: &&mut Grant| grant.gpu == old.gpu && grant.epoch == old.epoch;
            if let Some(grant) = lease.edit().grants.iter_mut().find(is_old) {
                *grant = new;
            }
            *lease.edit().version += 1;
        }
        self.draft.leases.insert(id);
        self.let_go_of_others(id);
    }

    fn requeue(&mut self, id: LeaseId, lost: &[Grant], reasons: &[Why]) {
        let now_ms = self.now_ms;
        self.drop_second_place(id);
        let grants = self.leases[&id].lease.grants.clone();
        for grant in grants.iter().filter(|grant| !lost.contains(grant)) {
            self.unbind(grant, id, false);
        }
        let lease = &mut self.leases.get_mut(&id).expect("it is there").lease;
        lease.on(LeaseEvent::Requeued);
        lease.edit().grants.clear();
        *lease.edit().version += 1;
        *lease.edit().suspend_wanted = false;
        for (grant, why) in lost.iter().zip(reasons) {
            let Why { reason, said_by_borrower, .. } = why.clone();
            let moved = Move {
                from: grant.gpu.clone(),
                to: None,
                at_ms: now_ms,
                reason,
                said_by_borrower,
                planned: false,
            };
            remember_move(lease.edit().moves, moved);
        }
        let tenant = lease.tenant.clone();
        let entry = self.tenant(&tenant);
        entry.granted = entry.granted.saturating_sub(1);
        self.forget_way(id);
        self.enqueue(id);
        if self.kept.contains_key(&id) {
            self.returning.insert(id);
        }
        self.draft.leases.insert(id);
        let message = format!("{id} lost {}: {}; it waits for another", lost[0].gpu, reasons[0].reason);
        self.note(Note::new(EventKind::LeaseRequeued, message).gpu(&lost[0].gpu).lease(id, &tenant));
    }

    /// Moves a lease off GPUs that are tainted with `drain` or in a draining box, if others are free.
    pub(super) fn move_away(&mut self, id: LeaseId) {
        let Some(entry) = self.leases.get(&id).filter(|entry| entry.lease.state == LeaseState::Granted)
        else {
            self.forget_way(id);
            return;
        };
        // Guests leave as `leaving_guests.rs` says.
        if entry.lease.request.class == Class::Offline {
            self.unwanted.remove(&id);
            return;
        }
        let leaving: Vec<Grant> =
            entry.lease.grants.iter().filter(|grant| self.is_unwanted(grant)).cloned().collect();
        if leaving.is_empty() {
            self.unwanted.remove(&id);
            self.hurried.remove(&id);
            return;
        }
        if !entry.lease.request.survive.is_none() && !self.hurried.contains(&id) {
            return self.begin_leaving(id, &leaving[0]);
        }
        self.drop_second_place(id);
        // Without spares: those are for GPUs that break.
        let Some(found) = self.find_replacements(id, &leaving, false) else { return };
        for grant in &leaving {
            self.unbind(grant, id, false);
        }
        let reasons = vec![Why::known("it is being drained"); leaving.len()];
        self.exchange_or_requeue(id, &leaving, Some(found), &reasons);
        self.unwanted.remove(&id);
        self.hurried.remove(&id);
    }

    /// Whether a GPU is to be emptied by hand.
    pub(super) fn is_unwanted(&self, grant: &Grant) -> bool {
        let owner = self.boxes.get(&grant.gpu.box_name);
        let drained = owner.is_some_and(|owner| owner.is_emptied());
        let is_tainted = |entry: &super::GpuEntry| entry.gpu.taint.as_ref().is_some_and(|taint| taint.drain);
        drained || self.entry(&grant.gpu).is_some_and(is_tainted)
    }
}
