//! A plan: how many leases of each kind go to seats of each kind.

use super::Changes;
use super::admission::Admission;
use super::index::{Meets, SeatKind};
use crate::ledger::stock::Mask;
use matching::transport::best_plan;
use pool_api::Name;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// More kinds of guests are not planned for at once: the work grows with their square. The plan then ends with the lease before the
/// next kind, and another one is made when that lease is next.
const GUEST_KINDS_MAX: usize = 256;

/// Leases that can have the same seats.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GuestKind {
    /// The classes of seats that it may have.
    pub(super) classes: Mask,
    /// Its tenant, if any seats are for guests of that tenant alone.
    pub(super) tenant: Option<Name>,
}

/// What a plan says of a kind of guest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer<'a> {
    /// The next one goes to a seat of this kind.
    Seat(&'a SeatKind),
    /// All seats that it could have go to leases ahead of it.
    Refused,
    /// The plan ends before it.
    Unknown,
}

/// A plan.
#[derive(Clone, Debug)]
pub(in crate::ledger) struct Plan {
    /// What it was made for, and what it has changed itself since.
    pub(super) changes: Changes,
    pub(super) made_ms: u64,
    /// Where guests of each kind go, the best seats first, and how many are still to go there.
    flows: BTreeMap<GuestKind, Vec<(SeatKind, u64)>>,
    refused: BTreeSet<GuestKind>,
    /// Tenants for whose guests alone some seats are.
    tenants: BTreeSet<Name>,
    is_used: bool,
    /// Basic steps of the matching.
    #[cfg(test)]
    steps: u64,
}

impl Plan {
    /// Tenants for whose guests alone some of these seats are.
    pub(super) fn tenants_of(seats: &[(SeatKind, u64)]) -> BTreeSet<Name> {
        let own = seats.iter().filter_map(|(kind, _)| match &kind.meets {
            Meets::Tenant(tenant) => Some(tenant.clone()),
            Meets::Anyone | Meets::Nobody => None,
        });
        own.collect()
    }

    /// The best plan for these seats, each kind worth so much, and the line of those that wait.
    pub(super) fn make<'a>(
        seats: &[(SeatKind, u64)],
        worth: &[u32],
        tenants: BTreeSet<Name>,
        line: impl Iterator<Item = &'a GuestKind>,
        (changes, made_ms): (Changes, u64),
    ) -> Self {
        let (guests, refused) = admit(seats, line);
        let row = |guest: &GuestKind| -> Vec<Option<u32>> {
            let takes = |(kind, _): &(SeatKind, u64)| kind.takes(guest.classes, guest.tenant.as_ref());
            seats.iter().zip(worth).map(|(seat, worth)| takes(seat).then_some(*worth)).collect()
        };
        let weights: Vec<_> = guests.iter().map(|(guest, _)| row(guest)).collect();
        let supply: Vec<u64> = guests.iter().map(|(_, count)| *count).collect();
        let capacity: Vec<u64> = seats.iter().map(|(_, count)| *count).collect();
        let found = best_plan(&supply, &capacity, &weights);
        let mut flows: BTreeMap<GuestKind, Vec<(u32, SeatKind, u64)>> = BTreeMap::new();
        for flow in found.flows {
            let to = (worth[flow.seat], seats[flow.seat].0.clone(), flow.count);
            flows.entry(guests[flow.guest].0.clone()).or_default().push(to);
        }
        let best_first = |mut to: Vec<(u32, SeatKind, u64)>| {
            to.sort_by_key(|(worth, ..)| Reverse(*worth));
            to.into_iter().map(|(_, kind, count)| (kind, count)).collect()
        };
        Self {
            changes,
            made_ms,
            flows: flows.into_iter().map(|(guest, to)| (guest, best_first(to))).collect(),
            refused,
            tenants,
            is_used: false,
            #[cfg(test)]
            steps: found.steps,
        }
    }

    /// Of what kind a lease is for this plan.
    pub(super) fn guest(&self, tenant: &Name, classes: Mask) -> GuestKind {
        GuestKind { classes, tenant: self.tenants.get(tenant).cloned() }
    }

    pub(super) fn answer(&self, guest: &GuestKind) -> Answer<'_> {
        let next = self.flows.get(guest).and_then(|to| to.first());
        match next {
            Some((kind, _)) => Answer::Seat(kind),
            None if self.refused.contains(guest) => Answer::Refused,
            None => Answer::Unknown,
        }
    }

    #[cfg(test)]
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether some of it has been done.
    pub(super) fn is_used(&self) -> bool {
        self.is_used
    }

    /// One guest has gone to a seat. False if the plan does not have it so.
    pub(super) fn take(&mut self, guest: &GuestKind, seat: &SeatKind) -> bool {
        let Some(to) = self.flows.get_mut(guest) else { return false };
        let Some(at) = to.iter().position(|(kind, _)| kind == seat) else { return false };
        to[at].1 -= 1;
        if to[at].1 == 0 {
            to.remove(at);
        }
        self.is_used = true;
        true
    }
}

/// How many of each kind of guest the seats have room for, in the order of the line, and the kinds of which no more do.
fn admit<'a>(
    seats: &[(SeatKind, u64)],
    line: impl Iterator<Item = &'a GuestKind>,
) -> (Vec<(GuestKind, u64)>, BTreeSet<GuestKind>) {
    // What is left by the online programs does not matter here.
    let mut groups: BTreeMap<(u8, &Meets), usize> = BTreeMap::new();
    let (mut room, mut examples): (Vec<u64>, Vec<&SeatKind>) = (Vec::new(), Vec::new());
    for (kind, count) in seats {
        let group = *groups.entry((kind.class, &kind.meets)).or_insert(room.len());
        if group == room.len() {
            room.push(0);
            examples.push(kind);
        }
        room[group] += count;
    }
    let mut left: u64 = room.iter().sum();
    let mut admission = Admission::new(room);
    let mut guests: BTreeMap<&GuestKind, usize> = BTreeMap::new();
    let mut refused = BTreeSet::new();
    for guest in line {
        if left == 0 {
            break;
        }
        if refused.contains(guest) {
            continue;
        }
        let number = match guests.get(guest) {
            Some(number) => *number,
            None => {
                let takes = |at: &usize| examples[*at].takes(guest.classes, guest.tenant.as_ref());
                let own: Vec<usize> = (0..examples.len()).filter(takes).collect();
                if own.is_empty() {
                    refused.insert(guest.clone());
                    continue;
                }
                if guests.len() == GUEST_KINDS_MAX {
                    break;
                }
                let number = admission.add_kind(own);
                guests.insert(guest, number);
                number
            }
        };
        match admission.admit(number) {
            true => left -= 1,
            false => drop(refused.insert(guest.clone())),
        }
    }
    let count = |(guest, number): (&GuestKind, usize)| (guest.clone(), admission.admitted(number));
    (guests.into_iter().map(count).collect(), refused)
}
