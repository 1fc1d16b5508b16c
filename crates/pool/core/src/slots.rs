//! Sets of slots of one box.

use std::fmt;

/// Slots a box may have. A set of slots is one machine word; the largest boxes sold have 20.
pub const SLOTS_PER_BOX_MAX: usize = 64;

/// A set of slots of one box.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Slots(u64);

impl Slots {
    /// No slot.
    pub const NONE: Self = Self(0);

    /// The set with one slot in it.
    pub fn one(slot: usize) -> Self {
        assert!(slot < SLOTS_PER_BOX_MAX, "slot {slot} is beyond the largest box");
        Self(1 << slot)
    }

    /// Whether this slot is in the set.
    pub fn contains(self, slot: usize) -> bool {
        slot < SLOTS_PER_BOX_MAX && self.0 >> slot & 1 == 1
    }

    /// The set with this slot added.
    #[must_use]
    pub fn with(self, slot: usize) -> Self {
        Self(self.0 | Self::one(slot).0)
    }

    /// The set with this slot taken out.
    #[must_use]
    pub fn without(self, slot: usize) -> Self {
        Self(self.0 & !Self::one(slot).0)
    }

    /// How many slots are in the set.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether no slot is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The slots in the set, lowest number first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let slot = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            Some(slot)
        })
    }
}

impl FromIterator<usize> for Slots {
    fn from_iter<I: IntoIterator<Item = usize>>(slots: I) -> Self {
        slots.into_iter().fold(Self::NONE, Self::with)
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_remembers_its_slots() {
        let slots: Slots = [0, 5, 63].into_iter().collect();
        assert_eq!(slots.iter().collect::<Vec<_>>(), [0, 5, 63]);
        assert!(slots.contains(5) && !slots.contains(6) && !slots.contains(64));
        assert_eq!(slots.without(5).count(), 2);
        assert_eq!(format!("{slots:?}"), "{0, 5, 63}");
    }
}
