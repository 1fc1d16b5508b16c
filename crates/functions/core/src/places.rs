//! On which leased GPU an instance goes.
//!
//! A slot is one GPU that the service holds a lease of, for one tenant and one declared memory: its worker lets no session of
//! the lease have more. So instances of one slot all declared the same, and as many fit as the GPU's memory and the sharing
//! factor allow.

use std::collections::BTreeMap;

/// Which of the GPUs that have room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fit {
    /// The one with the least room left: others stay empty and can be given back.
    #[default]
    Best,
    /// The one with the most: instances are in each other's way least.
    Worst,
}

/// One leased GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) tenant: String,
    /// What each instance may use, in MiB.
    pub(crate) declared_mb: u32,
    /// How many instances fit.
    pub(crate) room: u32,
    /// How many are there.
    pub(crate) used: u32,
    /// Since when none is there.
    pub(crate) empty_since_ms: u64,
}

/// How many instances a GPU takes.
pub(crate) fn room(total_mb: u64, declared_mb: u32, sharing: u32) -> u32 {
    let fit = total_mb / u64::from(declared_mb.max(1));
    sharing.max(1).min(u32::try_from(fit).unwrap_or(u32::MAX))
}

/// The slot for another instance of this tenant with this declaration.
pub(crate) fn choose(slots: &BTreeMap<u64, Slot>, tenant: &str, declared_mb: u32, fit: Fit) -> Option<u64> {
    let has_room =
        |slot: &Slot| slot.tenant == tenant && slot.declared_mb == declared_mb && slot.used < slot.room;
    let found = slots.iter().filter(|(_, slot)| has_room(slot));
    let left = |slot: &Slot| slot.room - slot.used;
    match fit {
        Fit::Best => found.min_by_key(|(id, slot)| (left(slot), **id)),
        Fit::Worst => found.min_by_key(|(id, slot)| (u32::MAX - left(slot), **id)),
    }
    .map(|(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(tenant: &str, declared_mb: u32, room: u32, used: u32) -> Slot {
        Slot { tenant: tenant.to_owned(), declared_mb, room, used, empty_since_ms: 0 }
    }

    #[test]
    fn best_fills_up_and_worst_spreads() {
        let slots =
            BTreeMap::from([(1, slot("a", 10, 4, 1)), (2, slot("a", 10, 4, 3)), (3, slot("a", 10, 4, 4))]);
        assert_eq!(choose(&slots, "a", 10, Fit::Best), Some(2));
        assert_eq!(choose(&slots, "a", 10, Fit::Worst), Some(1));
    }

    #[test]
    fn no_instance_goes_to_another_tenant_or_gets_more_than_it_declared() {
        let slots = BTreeMap::from([(1, slot("a", 20, 4, 0))]);
        assert_eq!(choose(&slots, "b", 20, Fit::Best), None);
        assert_eq!(choose(&slots, "a", 10, Fit::Best), None);
    }

    #[test]
    fn memory_and_the_sharing_factor_bound_the_room() {
        assert_eq!(room(1000, 300, 8), 3);
        assert_eq!(room(1000, 300, 2), 2);
        assert_eq!(room(100, 300, 2), 0);
    }
}
