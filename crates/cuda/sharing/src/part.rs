//! What a session is to the others on its page.
//!
//! A class is what users write and tokens carry; a part is narrower. Online and offline sessions have the parts of their class. A
//! dedicated session has no slot, unless its lease has a share of the GPU: then it is one of equals, and takes turns.

use std::fmt;
use work_class::Class;

/// A whole GPU.
pub const WHOLE_MILLI: u16 = 1000;

/// What a session is to the others on its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Offline sessions start nothing while it has work.
    Online,
    /// It works in the pauses of online sessions.
    Offline,
    /// It takes turns with its equals, in proportion to their shares.
    Equal(Share),
}

/// How much of a GPU's time a lease has. The sessions of one lease have its share together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    milli: u16,
    lease: u64,
}

impl Share {
    /// So many thousandths, at least one, of the lease with this number. Leases that meet on a page have different ones.
    pub fn new(milli: u16, lease: u64) -> Self {
        Self { milli: milli.clamp(1, WHOLE_MILLI), lease: lease & (u64::MAX >> LEASE_SHIFT) }
    }

    /// In thousandths.
    pub fn milli(self) -> u16 {
        self.milli
    }

    /// Whether both are of one lease.
    pub fn is_of_lease(self, other: Self) -> bool {
        self.lease == other.lease
    }
}

/// The number of [`Part::Equal`] in a page. Lower ones are codes of classes; numbers are never reused.
const EQUAL: u8 = 3;
const MILLI_SHIFT: u32 = 8;
const LEASE_SHIFT: u32 = 24;

impl Part {
    /// The part of a class. `None` for dedicated sessions.
    pub fn of_class(class: Class) -> Option<Self> {
        match class {
            Class::Dedicated => None,
            Class::Online => Some(Self::Online),
            Class::Offline => Some(Self::Offline),
        }
    }

    /// The class of a session with this part.
    pub fn class(self) -> Class {
        match self {
            Self::Online => Class::Online,
            Self::Offline => Class::Offline,
            Self::Equal(_) => Class::Dedicated,
        }
    }

    /// Its share, if it takes turns.
    pub fn share(self) -> Option<Share> {
        match self {
            Self::Equal(share) => Some(share),
            Self::Online | Self::Offline => None,
        }
    }

    pub(crate) fn word(self) -> u64 {
        match self {
            Self::Online | Self::Offline => self.class().code().into(),
            Self::Equal(Share { milli, lease }) => {
                u64::from(EQUAL) | u64::from(milli) << MILLI_SHIFT | lease << LEASE_SHIFT
            }
        }
    }

    /// What a slot's word says. `None` for a word that no version of dxpu writes.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let [code, ..] = word.to_le_bytes();
        if code != EQUAL {
            return u8::try_from(word).ok().and_then(Class::from_code).and_then(Self::of_class);
        }
        let milli = (word >> MILLI_SHIFT) as u16;
        (1..=WHOLE_MILLI).contains(&milli).then_some(Self::Equal(Share { milli, lease: word >> LEASE_SHIFT }))
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Online | Self::Offline => self.class().fmt(f),
            Self::Equal(share) => write!(f, "share of {}/{WHOLE_MILLI}", share.milli),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_written_and_read_without_loss() {
        let shares = [Share::new(1, 0), Share::new(1000, u64::MAX), Share::new(250, 77)];
        let parts = [Part::Online, Part::Offline].into_iter().chain(shares.map(Part::Equal));
        for part in parts {
            assert_eq!(Part::from_word(part.word()), Some(part));
        }
        assert_eq!((Share::new(0, 1).milli(), Share::new(2000, 1).milli()), (1, 1000));
    }

    #[test]
    fn a_word_that_is_damaged_is_no_part() {
        for word in [0, 4, 0x101, u64::from(EQUAL), u64::from(EQUAL) | 1001 << MILLI_SHIFT, u64::MAX] {
            assert_eq!(Part::from_word(word), None, "{word:#x}");
        }
    }
}
