//! The kinds of packets, and the first byte that names each.
//!
//! Byte 0 is `Fmt[2:0] Type[4:0]`. Bit 5 says "four DW", bit 6 "with data"; the lower five bits are the type.

use crate::message::MessageRouting;
use std::fmt;

pub(crate) const FOUR_DW: u8 = 0x20;
pub(crate) const WITH_DATA: u8 = 0x40;
/// Bit 7: not a header but a prefix in front of it.
pub(crate) const PREFIX: u8 = 0x80;

/// The three flows that are kept apart by credits and ordered against each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Gets no answer: memory writes and messages.
    Posted,
    /// Needs an answer.
    NonPosted,
    /// The answers.
    Completion,
}

impl Class {
    /// All of them, in the order of [`Class::index`].
    pub const ALL: [Self; 3] = [Self::Posted, Self::NonPosted, Self::Completion];

    /// Its place in an array of three.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// What a packet is. Whether its header has 3 or 4 DW follows from its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// MRd.
    MemoryRead,
    /// MRdLk.
    MemoryReadLocked,
    /// MWr.
    MemoryWrite,
    /// DMWr: a write that is answered, so that it can be refused.
    DeferrableWrite,
    /// IORd.
    IoRead,
    /// IOWr.
    IoWrite,
    /// CfgRd0.
    ConfigRead0,
    /// CfgWr0.
    ConfigWrite0,
    /// CfgRd1.
    ConfigRead1,
    /// CfgWr1.
    ConfigWrite1,
    /// Cpl.
    Completion,
    /// CplD.
    CompletionData,
    /// CplLk.
    CompletionLocked,
    /// CplDLk.
    CompletionDataLocked,
    /// FetchAdd.
    FetchAdd,
    /// Swap.
    Swap,
    /// CAS.
    CompareAndSwap,
    /// Msg.
    Message(MessageRouting),
    /// MsgD.
    MessageData(MessageRouting),
}

impl Kind {
    /// What byte 0 says, and whether the header has 4 DW; None for prefixes and everything unknown.
    pub const fn from_byte(byte: u8) -> Option<(Self, bool)> {
        let is_4dw = byte & FOUR_DW != 0;
        // Kinds with an address come in both sizes; the others in one.
        let kind = match byte & !FOUR_DW {
            0x00 => Self::MemoryRead,
            0x01 => Self::MemoryReadLocked,
            0x40 => Self::MemoryWrite,
            0x5b => Self::DeferrableWrite,
            0x4c => Self::FetchAdd,
            0x4d => Self::Swap,
            0x4e => Self::CompareAndSwap,
            _ => match byte {
                0x02 => Self::IoRead,
                0x42 => Self::IoWrite,
                0x04 => Self::ConfigRead0,
                0x44 => Self::ConfigWrite0,
                0x05 => Self::ConfigRead1,
                0x45 => Self::ConfigWrite1,
                0x0a => Self::Completion,
                0x4a => Self::CompletionData,
                0x0b => Self::CompletionLocked,
                0x4b => Self::CompletionDataLocked,
                0x30..=0x37 => match MessageRouting::from_bits(byte & 0x7) {
                    Some(routing) => Self::Message(routing),
                    None => return None,
                },
                0x70..=0x77 => match MessageRouting::from_bits(byte & 0x7) {
                    Some(routing) => Self::MessageData(routing),
                    None => return None,
                },
                _ => return None,
            },
        };
        Some((kind, is_4dw))
    }

    /// Byte 0 of the 3 DW form, or of the 4 DW form where there is no other.
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::MemoryRead => 0x00,
            Self::MemoryReadLocked => 0x01,
            Self::MemoryWrite => 0x40,
            Self::DeferrableWrite => 0x5b,
            Self::IoRead => 0x02,
            Self::IoWrite => 0x42,
            Self::ConfigRead0 => 0x04,
            Self::ConfigWrite0 => 0x44,
            Self::ConfigRead1 => 0x05,
            Self::ConfigWrite1 => 0x45,
            Self::Completion => 0x0a,
            Self::CompletionData => 0x4a,
            Self::CompletionLocked => 0x0b,
            Self::CompletionDataLocked => 0x4b,
            Self::FetchAdd => 0x4c,
            Self::Swap => 0x4d,
            Self::CompareAndSwap => 0x4e,
            Self::Message(routing) => 0x30 | routing as u8,
            Self::MessageData(routing) => 0x70 | routing as u8,
        }
    }

    /// Which flow it belongs to.
    pub const fn class(self) -> Class {
        match self {
            Self::MemoryWrite | Self::Message(_) | Self::MessageData(_) => Class::Posted,
            Self::Completion | Self::CompletionData | Self::CompletionLocked | Self::CompletionDataLocked => {
                Class::Completion
            }
            _ => Class::NonPosted,
        }
    }

    /// Whether a payload follows the header.
    pub const fn has_data(self) -> bool {
        self.to_byte() & WITH_DATA != 0
    }

    /// The specification's short name.
    pub const fn mnemonic(self) -> &'static str {
        match self {
            Self::MemoryRead => "MRd",
            Self::MemoryReadLocked => "MRdLk",
            Self::MemoryWrite => "MWr",
            Self::DeferrableWrite => "DMWr",
            Self::IoRead => "IORd",
            Self::IoWrite => "IOWr",
            Self::ConfigRead0 => "CfgRd0",
            Self::ConfigWrite0 => "CfgWr0",
            Self::ConfigRead1 => "CfgRd1",
            Self::ConfigWrite1 => "CfgWr1",
            Self::Completion => "Cpl",
            Self::CompletionData => "CplD",
            Self::CompletionLocked => "CplLk",
            Self::CompletionDataLocked => "CplDLk",
            Self::FetchAdd => "FetchAdd",
            Self::Swap => "Swap",
            Self::CompareAndSwap => "CAS",
            Self::Message(_) => "Msg",
            Self::MessageData(_) => "MsgD",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mnemonic())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_first_bytes_are_these() {
        let known: Vec<u8> = (0..=255).filter(|byte| Kind::from_byte(*byte).is_some()).collect();
        let expected = [
            0x00, 0x01, 0x02, 0x04, 0x05, 0x0a, 0x0b, 0x20, 0x21, 0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x40,
            0x42, 0x44, 0x45, 0x4a, 0x4b, 0x4c, 0x4d, 0x4e, 0x5b, 0x60, 0x6c, 0x6d, 0x6e, 0x70, 0x71, 0x72,
            0x73, 0x74, 0x75, 0x7b,
        ];
        assert_eq!(known, expected);
        for byte in known {
            let (kind, is_4dw) = Kind::from_byte(byte).unwrap();
            let size = if is_4dw { FOUR_DW } else { 0 };
            assert_eq!(kind.to_byte() | size, byte, "{kind}");
        }
    }
}
