//! Guests that starve: the online programs beside them leave them almost nothing, and another seat would leave them more.
//!
//! ```text
//!   report: less than 5 % is left ──▶ starves ── still so after a minute ──▶ is a seat free that leaves 0.3 of a GPU more?
//!   report: more is left          ──▶ does not                                 │ yes                    │ no
//!                                                                              ▼                        ▼
//!                                                                a move in two phases (moving.rs)    asked again after 10 s
//! ```
//!
//! Only a guest whose program outlives losses moves: any other one would have to start again. A guest that has just moved stays for
//! a while, so two busy GPUs do not hand it to and fro.
//!
//! What is known here is in memory alone: a new leader hears it from the next reports.

use super::leaving_guests::is_seated_guest;
use super::seating::{left_of, share_of};
use super::stock::Place;
use super::{GpuEntry, Ledger};
use matching::kinds::WEIGHT_ONE;
use matching::measured::speed_model;
use pool_api::{GpuId, GpuState, Grant, LeaseId, Purpose};
use std::collections::{BTreeMap, BTreeSet};

/// A guest with a smaller share of its GPU starves. The share is a mean of the last minute.
const STARVED_BELOW: f64 = 0.05;
/// For so long it starves before it moves: a program that makes up for a pause is busy for some time as well.
const STARVED_FOR_MS: u64 = 60_000;
/// A move takes a second or more of the guest's time. It is made for so much more of a GPU, and not for less.
const GAIN: f64 = 0.3;
/// So long after a guest looked for a better seat it looks again.
const LOOK_EVERY_MS: u64 = 10_000;
/// So long after a move it stays where it is, and so long after one that its program did not follow.
const STAYS_FOR_MS: u64 = 300_000;

/// The guests that starve, and when each next looks for a better seat.
#[derive(Clone, Debug, Default)]
pub(super) struct Starving {
    looks: BTreeMap<LeaseId, u64>,
    due: BTreeSet<(u64, LeaseId)>,
}

impl Starving {
    fn look_at(&mut self, id: LeaseId, at_ms: u64) {
        self.forget(id);
        self.looks.insert(id, at_ms);
        self.due.insert((at_ms, id));
    }

    pub(super) fn forget(&mut self, id: LeaseId) {
        if let Some(at_ms) = self.looks.remove(&id) {
            self.due.remove(&(at_ms, id));
        }
    }

    pub(super) fn due_ms(&self) -> Option<u64> {
        self.due.first().map(|&(at_ms, _)| at_ms)
    }
}

impl Ledger {
    /// A box has measured anew what it leaves to a guest.
    pub(super) fn hear_of_hunger(&mut self, seat: &GpuId) {
        let Some(entry) = self.entry(seat) else { return };
        let Some(id) = entry.gpu.holders.first().map(|holder| holder.lease) else { return };
        // A second place says nothing of the first one, and what was granted anew has not been measured yet.
        let is_its = |grant: &Grant| grant.gpu == *seat && grant.epoch == entry.gpu.epoch;
        if !self.leases.get(&id).is_some_and(|entry| entry.lease.grants.iter().any(is_its)) {
            return;
        }
        if self.starved_share(id, entry).is_none() {
            self.starving.forget(id);
        } else if !self.starving.looks.contains_key(&id) {
            self.starving.look_at(id, self.now_ms + STARVED_FOR_MS);
        }
    }

    /// The share of its GPU that a guest has in this seat, if that is too little and its program could move.
    fn starved_share(&self, id: LeaseId, seat: &GpuEntry) -> Option<f64> {
        let share = self.share_beside_online(seat)?;
        let is_guest = seat.gpu.state == GpuState::Leased && seat.gpu.guest.is_some();
        (is_guest && self.survives(id) && share < STARVED_BELOW).then_some(share)
    }

    /// What the online lease on a seat's GPU leaves of it, by what its box has measured.
    pub(super) fn share_beside_online(&self, seat: &GpuEntry) -> Option<f64> {
        let owner = self.boxes.get(&seat.gpu.box_name)?;
        let host = owner.partner(&seat.gpu).filter(|_| seat.gpu.guest.is_some())?;
        let is_measured = host.gpu.state == GpuState::Leased && seat.sharing.is_some();
        is_measured.then(|| share_of(speed_model(seat.gpu.model.as_str()), left_of(seat)))
    }

    /// Has the next guest that starves look for a better seat. Tells whether one did.
    pub(super) fn feed_starving(&mut self) -> bool {
        let Some(&(at_ms, id)) = self.starving.due.first() else { return false };
        if at_ms > self.now_ms {
            return false;
        }
        self.starving.forget(id);
        let Some((seat, share)) = self.hungry(id) else { return true };
        let lease = &self.leases[&id].lease;
        let stays_until_ms = lease.moves.last().map_or(0, |moved| moved.at_ms + STAYS_FOR_MS);
        // Its program does one thing at a time.
        let is_leaving = lease.moving.is_some() || lease.suspend_wanted || self.is_noticed(id);
        if stays_until_ms > self.now_ms || is_leaving {
            self.starving.look_at(id, stays_until_ms.max(self.now_ms + LOOK_EVERY_MS));
        } else if let Some(place) = self.better_seat(id, share) {
            let reason = format!("its seat {seat} left it {:.0} % of the GPU", share * 100.0);
            let grant = lease.grants[0].clone();
            self.starving.look_at(id, self.now_ms + STAYS_FOR_MS);
            self.begin(id, &grant, place, Purpose::Asked, reason);
        } else {
            self.starving.look_at(id, self.now_ms + LOOK_EVERY_MS);
        }
        true
    }

    /// The seat of a guest that starves, and its share there.
    fn hungry(&self, id: LeaseId) -> Option<(GpuId, f64)> {
        let lease = &self.leases.get(&id).filter(|entry| is_seated_guest(&entry.lease))?.lease;
        let entry = self.entry(&lease.grants.first()?.gpu)?;
        Some((entry.gpu.id.clone(), self.starved_share(id, entry)?))
    }

    /// The best seat for this guest, if that is worth a move.
    fn better_seat(&self, id: LeaseId, share: f64) -> Option<Place> {
        let enough = ((share + GAIN) * f64::from(WEIGHT_ONE)).ceil() as u32;
        #[cfg(test)]
        let enough = if self.mutated(crate::simulation::Mutation::MoveForNothing) { 0 } else { enough };
        // Nearly always there is none: that is seen without a look at each seat.
        if self.best_worth().is_none_or(|best| best < enough) {
            return None;
        }
        self.second_seat(id, None, true).filter(|&place| self.worth_of(place) >= Some(enough))
    }

    /// What becomes of a guest that starves, in words; `None` for one that does not.
    pub(super) fn explain_hunger(&self, id: LeaseId, seat: &GpuEntry) -> Option<&'static str> {
        let share = self.share_beside_online(seat).filter(|share| *share < STARVED_BELOW)?;
        Some(match self.starved_share(id, seat) {
            Some(_) if self.better_seat(id, share).is_some() => {
                "it starves there, and moves to a better seat within minutes"
            }
            Some(_) => "it starves there, and moves when a seat is free that leaves it 30 % of a GPU more",
            None => "it starves there, and stays: with `--survive` its program would move to a better seat",
        })
    }
}
