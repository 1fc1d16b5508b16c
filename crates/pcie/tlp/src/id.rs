//! Names of requesters: functions, tags and the pair of them that names a transaction.

use std::fmt;

/// Bus, device and function: the address of a function, as requesters and completers sign their packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf(pub u16);

impl Bdf {
    /// Of its three parts; `device` counts modulo 32, `function` modulo 8.
    pub const fn new(bus: u8, device: u8, function: u8) -> Self {
        Self((bus as u16) << 8 | ((device & 0x1f) as u16) << 3 | (function & 0x7) as u16)
    }

    /// The bus number.
    pub const fn bus(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// The device number on the bus, 0 to 31.
    pub const fn device(self) -> u8 {
        (self.0 >> 3) as u8 & 0x1f
    }

    /// The function number in the device, 0 to 7.
    pub const fn function(self) -> u8 {
        self.0 as u8 & 0x7
    }
}

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.bus(), self.device(), self.function())
    }
}

/// What tells the open requests of one requester apart; ten bits, of which the upper two lie apart in the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(u16);

impl Tag {
    /// The largest value a header can hold.
    pub const MAX: u16 = 0x3ff;

    /// None when `value` needs more than ten bits.
    pub const fn new(value: u16) -> Option<Self> {
        if value <= Self::MAX { Some(Self(value)) } else { None }
    }

    /// The lower ten bits of `value`.
    pub const fn truncated(value: u16) -> Self {
        Self(value & Self::MAX)
    }

    /// The number.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// Whether a 10-bit requester may use it: such requesters leave out every value whose upper two bits are zero, so
    /// that a completer that drops those bits cannot answer another request.
    pub const fn is_usable_with_ten_bits(self) -> bool {
        self.0 >= 0x100
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Which tags a requester may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagSpace {
    /// The default after reset: 32 tags.
    FiveBits,
    /// Extended tags: 256.
    EightBits,
    /// 10-bit tags: 768, from 0x100 up.
    TenBits,
}

impl TagSpace {
    /// How many requests may be open at once.
    pub const fn count(self) -> u16 {
        match self {
            Self::FiveBits => 32,
            Self::EightBits => 256,
            Self::TenBits => 768,
        }
    }

    /// The lowest usable tag.
    const fn first(self) -> u16 {
        match self {
            Self::FiveBits | Self::EightBits => 0,
            Self::TenBits => 0x100,
        }
    }

    /// The tag in place `index` of those usable; None past the last.
    pub const fn tag(self, index: u16) -> Option<Tag> {
        if index < self.count() { Some(Tag(self.first() + index)) } else { None }
    }

    /// The place of `tag` among the usable ones; None when it is not one of them.
    pub const fn index(self, tag: Tag) -> Option<u16> {
        match tag.0.checked_sub(self.first()) {
            Some(index) if index < self.count() => Some(index),
            _ => None,
        }
    }
}

/// Names an open request: no two requests of one requester share a tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId {
    /// The function that asked, and to which the completion goes.
    pub requester: Bdf,
    /// Which of its requests.
    pub tag: Tag,
}

impl TransactionId {
    /// Of its two parts.
    pub const fn new(requester: Bdf, tag: Tag) -> Self {
        Self { requester, tag }
    }
}

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tag {}", self.requester, self.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bdf_is_written_as_lspci_writes_it() {
        let bdf = Bdf::new(0x3a, 0x1f, 7);
        assert_eq!(bdf.to_string(), "3a:1f.7");
        assert_eq!((bdf.bus(), bdf.device(), bdf.function()), (0x3a, 0x1f, 7));
    }

    #[test]
    fn every_tag_space_counts_its_tags_and_no_others() {
        for (space, low, high) in
            [(TagSpace::FiveBits, 0, 31), (TagSpace::EightBits, 0, 255), (TagSpace::TenBits, 0x100, 0x3ff)]
        {
            let usable: Vec<u16> =
                (0..=Tag::MAX).filter(|value| space.index(Tag(*value)).is_some()).collect();
            assert_eq!(usable, (low..=high).collect::<Vec<_>>());
            assert_eq!(usable.len(), usize::from(space.count()));
            for index in 0..space.count() {
                assert_eq!(space.tag(index).and_then(|tag| space.index(tag)), Some(index));
            }
            assert_eq!(space.tag(space.count()), None);
        }
        assert_eq!(Tag::new(0x400), None);
    }
}
