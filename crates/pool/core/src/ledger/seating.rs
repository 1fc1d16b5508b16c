//! Which seat an offline lease gets.
//!
//! ```text
//!   reports, grants      ─▶ index: the seats that can be had, by kind ──┐
//!   the line (serve.rs)  ─▶ admission: which can be seated at once ────┴▶ plan: how many of each kind where
//!                                                                              │
//!   the lease that is next (serve.rs) ─────────────────────────────────────────┴▶ a seat
//! ```
//!
//! The line decides which lease is next. The plan decides where: it seats as many leases as there are seats, in the order of the
//! line, so that the sum of their predicted speeds is the largest (`matching`). A lease that comes later never has its seat first.
//!
//! The plan is made when a lease is to be seated, and followed as long as nothing but its own seatings happens. What a seat leaves to
//! a guest changes with each report; a plan follows that when it is made anew, after [`PLAN_KEPT_MS`] at the latest.
//!
//! How fast a guest would run is predicted from what the box has measured of the online programs ([`pool_api::SeatLoad`]). How busy the
//! guest itself would keep a GPU is not known: it is taken for a program that is busy all the time.

mod admission;
mod index;
mod plan;

use super::boxes::BoxEntry;
use super::queue::Wish;
use super::stock::{Mask, Place, Standing};
use super::{GpuEntry, Ledger};
use index::{LEFT_BINS, Meets, SeatKind, Seats};
use matching::kinds::WEIGHT_ONE;
use matching::measured::speed_model;
use matching::speed::{Offline, Online, SpeedModel};
use plan::{Answer, GuestKind, Plan};
use pool_api::{Class, Explanation, GpuState, LeaseId, Name, SeatLoad};
use std::collections::BTreeSet;

/// A plan is not followed for longer: the loads that it was made for are those of another time.
const PLAN_KEPT_MS: u64 = 10_000;

/// A seat on a free GPU counts for so much less than what it leaves, so that whole GPUs stay free. A guest gets one where that makes it
/// faster by more than this share of a GPU.
const FREE_GPU_COSTS: f64 = 0.3;

/// What an online lease is taken to do whose box has not measured it yet. A quarter is what published clusters of online programs have
/// on average. With it a seat beside such a lease is better than a free GPU, and one beside a busier program is not.
const UNMEASURED: SeatLoad = SeatLoad { online_busy_milli: 250, online_periods_milli: 100_000 };

/// Of no program is known what share of the time it would keep a GPU busy alone.
const GUEST: Offline = Offline { busy: 1.0 };

/// The seats, and the plan for those that wait for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Seating {
    seats: Seats,
    plan: Option<Plan>,
    /// Grows with each offline lease that comes to wait, and that no longer does.
    line_changes: u64,
    /// How many plans have been made.
    #[cfg(test)]
    plans: u64,
}

/// What a plan was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changes {
    seats: u64,
    line: u64,
}

impl Seating {
    fn changes(&self) -> Changes {
        Changes { seats: self.seats.changes(), line: self.line_changes }
    }

    /// A place has no seat any more.
    pub(super) fn forget(&mut self, place: Place) {
        self.seats.set(place, None);
    }

    /// The line of offline leases is another one.
    pub(super) fn stir(&mut self) {
        self.line_changes += 1;
    }

    fn plan_for(&self, now_ms: u64) -> Option<&Plan> {
        let is_current =
            |plan: &&Plan| plan.changes == self.changes() && plan.made_ms + PLAN_KEPT_MS > now_ms;
        self.plan.as_ref().filter(is_current)
    }
}

impl Ledger {
    /// A seat for the offline lease that is next. Takes nothing.
    pub(super) fn find_seat(&mut self, tenant: &Name, wish: &Wish, open: Mask) -> Option<Place> {
        if open == 0 || self.seating.seats.is_empty() {
            return None;
        }
        let open = self.seat_classes(wish, open);
        if !wish.given.is_empty() {
            let places = wish.given.iter().filter_map(|id| Some(self.entry(id)?.place)).collect();
            return self.best_seat(tenant, open, &places);
        }
        loop {
            let is_new = self.seating.plan_for(self.now_ms).is_none();
            if is_new {
                self.plan_seats();
            }
            let plan = self.seating.plan.as_ref().expect("it was made just now, or before");
            let is_outdated = match plan.answer(&plan.guest(tenant, open)) {
                Answer::Refused => return None,
                Answer::Seat(kind) => match self.seating.seats.first(kind) {
                    Some(place) => return Some(place),
                    // The seats of this kind leave more or less by now: they are of another kind.
                    None => true,
                },
                Answer::Unknown => plan.is_used(),
            };
            if is_new || !is_outdated {
                break;
            }
            self.seating.plan = None;
        }
        // The line decides: what would do for the lease that is next is not kept for others.
        let places = self.seating.seats.places().collect();
        self.best_seat(tenant, open, &places)
    }

    /// The seat that leaves most, of these.
    pub(super) fn best_seat(&self, tenant: &Name, open: Mask, places: &BTreeSet<Place>) -> Option<Place> {
        let kind = |place: Place| Some((place, self.seating.seats.kind_of(place)?));
        let can_be_had = places.iter().filter_map(|&place| kind(place));
        let mut fits: Vec<(Place, &SeatKind)> =
            can_be_had.filter(|(_, kind)| kind.takes(open, Some(tenant))).collect();
        fits.sort_by_key(|&(place, kind)| (kind, place));
        let worth = |(_, kind): &(Place, &SeatKind)| std::cmp::Reverse(self.worth(kind));
        fits.into_iter().min_by_key(worth).map(|(place, _)| place)
    }

    /// Of the classes that a lease may have, those of seats that are large enough for it.
    fn seat_classes(&self, wish: &Wish, open: Mask) -> Mask {
        #[cfg(test)]
        if self.mutated(crate::simulation::Mutation::SeatWithoutMemory) {
            let smaller = Wish { memory_bytes: 0, ..wish.clone() };
            return open | self.stock.mask(|class| smaller.accepts(class));
        }
        debug_assert_eq!(open & !self.stock.mask(|class| wish.accepts(class)), 0);
        open
    }

    /// How many plans this leader has made, and how many steps the last one took.
    #[cfg(test)]
    pub(super) fn plans_made(&self) -> (u64, u64) {
        (self.seating.plans, self.seating.plan.as_ref().map_or(0, Plan::steps))
    }

    #[cfg(test)]
    pub(super) fn seat_kinds(&self) -> usize {
        self.seating.seats.by_kind().len()
    }

    /// Makes the plan for the line and the seats as they are now.
    pub(super) fn plan_seats(&mut self) {
        let kinds = self.seating.seats.by_kind();
        let total: u64 = kinds.iter().map(|(_, count)| count).sum();
        let tenants = Plan::tenants_of(&kinds);
        let (mut guests, mut line) = (Vec::new(), Vec::new());
        for (key, members) in self.queue.groups() {
            let open = self.open_classes(&key.tenant, &key.wish);
            let is_planned = key.wish.given.is_empty() && key.wish.guard.is_none();
            if key.wish.class != Class::Offline || !is_planned || open == 0 {
                continue;
            }
            let classes = self.seat_classes(&key.wish, open);
            let own = Some(&key.tenant).filter(|tenant| tenants.contains(*tenant));
            let members = members.keys().take(usize::try_from(total).unwrap_or(usize::MAX));
            line.extend(members.map(|&(queued_ms, id)| (self.turn(key, queued_ms, id), guests.len())));
            guests.push(GuestKind { classes, tenant: own.cloned() });
        }
        line.sort_unstable();
        let worth: Vec<u32> = kinds.iter().map(|(kind, _)| self.worth(kind)).collect();
        let line = line.iter().map(|&(_, guest)| &guests[guest]);
        let at = (self.seating.changes(), self.now_ms);
        self.seating.plan = Some(Plan::make(&kinds, &worth, tenants, line, at));
        #[cfg(test)]
        {
            self.seating.plans += 1;
        }
    }

    /// What a seat is worth to a guest: at least something, because a lease gets any seat that it can have rather than none.
    fn worth(&self, kind: &SeatKind) -> u32 {
        let left = (f64::from(kind.left) + 0.5) / f64::from(LEFT_BINS);
        #[cfg(test)]
        let left = if self.mutated(crate::simulation::Mutation::SeatWithoutLoad) { 0.5 } else { left };
        let class = &self.stock.classes()[usize::from(kind.class)];
        let speed = share_of(speed_model(class.model.as_str()), left);
        let speed = speed - if kind.is_on_free_gpu { FREE_GPU_COSTS } else { 0.0 };
        1 + (speed.max(0.0) * f64::from(WEIGHT_ONE)).round() as u32
    }

    /// What the best of the seats is worth that can be had.
    pub(super) fn best_worth(&self) -> Option<u32> {
        self.seating.seats.kinds().map(|kind| self.worth(kind)).max()
    }

    pub(super) fn worth_of(&self, place: Place) -> Option<u32> {
        self.seating.seats.kind_of(place).map(|kind| self.worth(kind))
    }

    /// Notes how a seat stands, after every change to it, its host or what its box measures there.
    pub(super) fn restand_seat(&mut self, owner: &Name, slot: u8) {
        let Some(owner) = self.boxes.get(owner) else { return };
        let Some(entry) = owner.slots.get(&slot).filter(|entry| entry.gpu.guest.is_some()) else { return };
        let (place, kind) = (entry.place, self.seat_kind(owner, entry));
        self.seating.seats.set(place, kind);
    }

    /// Of what kind a seat is; `None` if it cannot be had.
    fn seat_kind(&self, owner: &BoxEntry, seat: &GpuEntry) -> Option<SeatKind> {
        if self.stock.standing(seat.place) != Standing::Usable || seat.gpu.guest.is_none() {
            return None;
        }
        let host = owner.partner(&seat.gpu)?;
        let is_on_free_gpu = host.gpu.state == GpuState::Free;
        let left = if is_on_free_gpu { 1.0 } else { left_of(seat) };
        Some(SeatKind {
            is_on_free_gpu,
            memory_bytes: seat.gpu.memory_bytes,
            class: self.stock.class_number(seat.place),
            left: ((left * f64::from(LEFT_BINS)).floor() as u8).min(LEFT_BINS - 1),
            meets: self.meets(&seat.gpu, &host.gpu),
        })
    }

    /// Whose guests may come to a seat.
    fn meets(&self, seat: &pool_api::Gpu, host: &pool_api::Gpu) -> Meets {
        let tenant = |lease: LeaseId| self.leases.get(&lease).map(|entry| entry.lease.tenant.clone());
        let mut tenants = host.holders.iter().map(|holder| tenant(holder.lease));
        match tenants.next() {
            // One tenant stands for all: `may_meet` asks whether it is that of every holder.
            Some(Some(first)) if self.may_meet(&first, seat, host) => match seat.guest {
                Some(guest) if guest.any_tenant => Meets::Anyone,
                #[cfg(test)]
                _ if self.mutated(crate::simulation::Mutation::MeetStrangers) => Meets::Anyone,
                _ => Meets::Tenant(first),
            },
            Some(_) => Meets::Nobody,
            None => Meets::Anyone,
        }
    }

    /// What serving a lease is about to change, if the plan has it so.
    pub(super) fn planned(&self, id: LeaseId, places: &[Place]) -> Option<Planned> {
        let lease = &self.leases[&id].lease;
        if lease.request.class != Class::Offline || self.survives(id) {
            return None;
        }
        let wish = Wish::of(lease);
        let open = self.seat_classes(&wish, self.open_classes(&lease.tenant, &wish));
        let seat = self.seating.seats.kind_of(*places.first()?)?.clone();
        let plan = self.seating.plan_for(self.now_ms)?;
        let guest = plan.guest(&lease.tenant, open);
        Some(Planned { guest, seat, before: self.seating.changes() }).filter(|_| wish.given.is_empty())
    }

    /// A lease has its seat. The plan goes on if that is all that has happened.
    pub(super) fn is_seated(&mut self, planned: Planned) {
        let Planned { guest, seat, before } = planned;
        let now = self.seating.changes();
        let is_all = now == Changes { seats: before.seats + 1, line: before.line + 1 };
        if let Some(plan) = self.seating.plan.as_mut().filter(|_| is_all)
            && plan.take(&guest, &seat)
        {
            plan.changes = now;
        }
    }

    /// How much of its GPU the guest in a seat has, by what its box has measured.
    pub(super) fn explain_share(&self, seat: &GpuEntry, answer: &mut Explanation) {
        if let Some((load, share)) = seat.sharing.zip(self.share_beside_online(seat)) {
            answer.reasons.push(format!(
                "its seat leaves it about {:.0} % of the GPU: online programs have worked {} % of the last minute",
                share * 100.0,
                load.online_busy_milli / 10
            ));
        }
    }

    /// What must not be: seats that can be had and are not known as what they are, or others that are.
    pub(crate) fn seat_inconsistencies(&self) -> Vec<String> {
        let all = self.boxes.values().flat_map(|owner| owner.slots.values().map(move |entry| (owner, entry)));
        let wrong = all.filter(|(owner, entry)| {
            self.seat_kind(owner, entry).as_ref() != self.seating.seats.kind_of(entry.place)
        });
        let mut found: Vec<String> =
            wrong.map(|(_, entry)| format!("{} is not among the seats as it stands", entry.gpu.id)).collect();
        let places: BTreeSet<Place> =
            self.boxes.values().flat_map(|owner| owner.slots.values()).map(|entry| entry.place).collect();
        let strange = self.seating.seats.places().filter(|place| !places.contains(place));
        found.extend(strange.map(|place| format!("{place:?} is a seat of no box")));
        found
    }
}

/// A lease is about to get this kind of seat.
pub(super) struct Planned {
    guest: GuestKind,
    seat: SeatKind,
    before: Changes,
}

/// The share of the time that the online programs on a seat's GPU leave, less what their pauses lose to the change between programs.
pub(super) fn left_of(seat: &GpuEntry) -> f64 {
    let load = seat.sharing.unwrap_or(UNMEASURED);
    let periods = f64::from(load.online_periods_milli) / 1000.0;
    let kappa = speed_model(seat.gpu.model.as_str()).kappa;
    (1.0 - f64::from(load.online_busy_milli) / 1000.0 - kappa * periods).clamp(0.0, 1.0)
}

/// How fast a guest is to which so much is left, as a share of its speed alone.
pub(super) fn share_of(model: SpeedModel, left: f64) -> f64 {
    model.speed(Online { load: 1.0 - left, busy_periods: 0.0 }, GUEST)
}
