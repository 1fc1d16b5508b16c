//! On which leased GPU an instance goes.
//!
//! A slot is one GPU that the service holds a lease of. An instance on it has a token of its own, with which the worker lets it
//! have the memory that its function declared and no more. So instances of different sizes share a GPU, as many as its memory
//! and the sharing factor allow.

use crate::record::FunctionKey;
use std::collections::{BTreeMap, BTreeSet};

/// Which of the GPUs that have room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fit {
    /// The one with the least memory left: others stay empty and can be given back.
    #[default]
    Best,
    /// The one with the most: instances are in each other's way least.
    Worst,
    /// The one that had this function before, so that nothing must be brought there; else as [`Fit::Best`]. Where none has
    /// room, the one on which the fewest idle instances must end.
    FewestMoves,
}

/// One leased GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Who it was asked for.
    pub(crate) tenant: String,
    pub(crate) total_mb: u64,
    /// What its instances declared, together.
    pub(crate) used_mb: u64,
    /// How many are there.
    pub(crate) used: u32,
    /// Since when none is there.
    pub(crate) empty_since_ms: u64,
    /// The functions that it has had.
    pub(crate) had: BTreeSet<FunctionKey>,
    /// Its lease waits for a GPU, because the one that it had is lost: it takes no instances.
    pub(crate) is_down: bool,
}

/// Who may be beside whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Instances on one GPU.
    pub(crate) sharing: u32,
    /// Instances of different tenants.
    pub(crate) tenants_share: bool,
    pub(crate) fit: Fit,
}

impl Rules {
    /// Whether a tenant may be on this GPU at all.
    pub(crate) fn admits(&self, slot: &Slot, tenant: &str) -> bool {
        self.tenants_share || slot.tenant == tenant
    }

    /// Whether one more fits, if so many instances with so much memory are there.
    pub(crate) fn fits(&self, slot: &Slot, used: u32, used_mb: u64, declared_mb: u32) -> bool {
        used < self.sharing.max(1) && used_mb + u64::from(declared_mb) <= slot.total_mb
    }

    /// The slot for one more instance of this function, of those that are `open` to it.
    pub(crate) fn choose(
        &self,
        slots: &BTreeMap<u64, Slot>,
        key: &FunctionKey,
        declared_mb: u32,
        open: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let has_room = |slot: &Slot| {
            !slot.is_down
                && self.admits(slot, &key.tenant)
                && self.fits(slot, slot.used, slot.used_mb, declared_mb)
        };
        let found = slots.iter().filter(|(id, slot)| open(**id) && has_room(slot));
        let left = |slot: &Slot| slot.total_mb - slot.used_mb;
        match self.fit {
            Fit::Best => found.min_by_key(|(id, slot)| (left(slot), **id)),
            Fit::Worst => found.min_by_key(|(id, slot)| (u64::MAX - left(slot), slot.used, **id)),
            Fit::FewestMoves => found.min_by_key(|(id, slot)| (!slot.had.contains(key), left(slot), **id)),
        }
        .map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(tenant: &str, used: u32, used_mb: u64) -> Slot {
        let had = BTreeSet::new();
        Slot {
            tenant: tenant.to_owned(),
            total_mb: 1000,
            used_mb,
            used,
            empty_since_ms: 0,
            had,
            is_down: false,
        }
    }

    fn rules(fit: Fit) -> Rules {
        Rules { sharing: 3, tenants_share: false, fit }
    }

    fn key(tenant: &str) -> FunctionKey {
        FunctionKey { tenant: tenant.to_owned(), name: "f".to_owned() }
    }

    #[test]
    fn best_fills_up_worst_spreads_and_fewest_moves_goes_where_the_function_was() {
        let mut slots = BTreeMap::from([
            (1, slot("a", 1, 300)),
            (2, slot("a", 2, 700)),
            (3, slot("a", 1, 900)),
            (4, slot("a", 0, 0)),
        ]);
        assert_eq!(rules(Fit::Best).choose(&slots, &key("a"), 200, |_| true), Some(2));
        assert_eq!(rules(Fit::Worst).choose(&slots, &key("a"), 200, |_| true), Some(4));
        assert_eq!(rules(Fit::FewestMoves).choose(&slots, &key("a"), 200, |_| true), Some(2));
        slots.get_mut(&1).unwrap().had.insert(key("a"));
        assert_eq!(rules(Fit::FewestMoves).choose(&slots, &key("a"), 200, |_| true), Some(1));
        assert_eq!(rules(Fit::FewestMoves).choose(&slots, &key("a"), 200, |id| id != 1), Some(2));
    }

    #[test]
    fn memory_and_the_sharing_factor_bound_the_room_and_a_lost_gpu_has_none() {
        let lost = Slot { is_down: true, ..slot("a", 0, 0) };
        let slots = BTreeMap::from([(1, slot("a", 2, 900)), (2, slot("a", 3, 10)), (3, lost)]);
        assert_eq!(rules(Fit::Best).choose(&slots, &key("a"), 100, |_| true), Some(1));
        assert_eq!(rules(Fit::Best).choose(&slots, &key("a"), 101, |_| true), None);
    }

    #[test]
    fn tenants_are_beside_each_other_only_if_that_is_set() {
        let slots = BTreeMap::from([(1, slot("a", 1, 100))]);
        assert_eq!(rules(Fit::Best).choose(&slots, &key("b"), 100, |_| true), None);
        let shared = Rules { tenants_share: true, ..rules(Fit::Best) };
        assert_eq!(shared.choose(&slots, &key("b"), 100, |_| true), Some(1));
    }
}
