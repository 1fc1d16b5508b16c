//! The seats that can be had, by kind. Kept up to date with every change, so that a plan looks at kinds alone.

use crate::ledger::stock::{Mask, Place};
use pool_api::Name;
use std::collections::{BTreeMap, BTreeSet};

/// What is left to a guest is counted in so many steps.
pub(super) const LEFT_BINS: u8 = 16;

/// Seats that a plan does not tell apart. Ordered: of seats that are worth the same, the first is taken first, so those beside an
/// online lease come before free GPUs, and small ones before large ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::ledger) struct SeatKind {
    /// No lease has its GPU.
    pub(super) is_on_free_gpu: bool,
    pub(super) memory_bytes: u64,
    /// Its class in the stock.
    pub(super) class: u8,
    /// What the online programs leave of the time, in steps of one of [`LEFT_BINS`].
    pub(super) left: u8,
    pub(super) meets: Meets,
}

/// Whose guests may come to a seat.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Meets {
    Anyone,
    Tenant(Name),
    Nobody,
}

impl SeatKind {
    /// Whether a lease that may have these classes can have it.
    pub(super) fn takes(&self, classes: Mask, tenant: Option<&Name>) -> bool {
        let is_met = match &self.meets {
            Meets::Anyone => true,
            Meets::Tenant(own) => tenant == Some(own),
            Meets::Nobody => false,
        };
        is_met && classes >> self.class & 1 == 1
    }
}

/// All seats that can be had.
#[derive(Clone, Debug, Default)]
pub(in crate::ledger) struct Seats {
    places: BTreeMap<SeatKind, BTreeSet<Place>>,
    kinds: BTreeMap<Place, SeatKind>,
    changes: u64,
}

impl Seats {
    pub(super) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Grows when a seat comes, goes, or may be had by others than before; not when another share of its GPU is left to a guest.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Says of what kind a seat is now, or that it cannot be had.
    pub(super) fn set(&mut self, place: Place, kind: Option<SeatKind>) {
        let before = self.kinds.get(&place);
        if before == kind.as_ref() {
            return;
        }
        let alike =
            |before: &SeatKind, kind: &SeatKind| SeatKind { left: kind.left, ..before.clone() } == *kind;
        if !before.zip(kind.as_ref()).is_some_and(|(before, kind)| alike(before, kind)) {
            self.changes += 1;
        }
        if let Some(before) = self.kinds.remove(&place)
            && let Some(places) = self.places.get_mut(&before)
        {
            places.remove(&place);
            if places.is_empty() {
                self.places.remove(&before);
            }
        }
        if let Some(kind) = kind {
            self.places.entry(kind.clone()).or_default().insert(place);
            self.kinds.insert(place, kind);
        }
    }

    pub(super) fn kind_of(&self, place: Place) -> Option<&SeatKind> {
        self.kinds.get(&place)
    }

    /// A seat of this kind.
    pub(super) fn first(&self, kind: &SeatKind) -> Option<Place> {
        self.places.get(kind)?.first().copied()
    }

    pub(super) fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.kinds.keys().copied()
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = &SeatKind> {
        self.places.keys()
    }

    /// How many there are of each kind, in the order of kinds.
    pub(super) fn by_kind(&self) -> Vec<(SeatKind, u64)> {
        self.places.iter().map(|(kind, places)| (kind.clone(), places.len() as u64)).collect()
    }
}
