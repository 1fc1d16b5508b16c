//! Messages: how they find their way, and the codes that say what they mean.

/// How a message is routed; the lower three bits of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageRouting {
    /// Up, to the root complex.
    RootComplex = 0,
    /// By the address in bytes 8 to 15.
    Address = 1,
    /// By the ID in bytes 8 and 9.
    Id = 2,
    /// Down, to all functions.
    Broadcast = 3,
    /// Ends at the receiver.
    Local = 4,
    /// Up, one for all that came from below.
    Gather = 5,
}

impl MessageRouting {
    /// Of the lower three bits of the type; None for the two reserved values.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::RootComplex,
            1 => Self::Address,
            2 => Self::Id,
            3 => Self::Broadcast,
            4 => Self::Local,
            5 => Self::Gather,
            _ => return None,
        })
    }
}

/// Message codes (byte 7 of the header).
pub mod code {
    /// Ends a locked sequence.
    pub const UNLOCK: u8 = 0x00;
    /// Power management event.
    pub const PM_PME: u8 = 0x18;
    /// The root complex is about to turn the power off.
    pub const PME_TURN_OFF: u8 = 0x19;
    /// The answer to it.
    pub const PME_TO_ACK: u8 = 0x1b;
    /// INTA goes up; B, C and D follow.
    pub const ASSERT_INTA: u8 = 0x20;
    /// INTA goes down; B, C and D follow.
    pub const DEASSERT_INTA: u8 = 0x24;
    /// A correctable error was seen.
    pub const ERR_COR: u8 = 0x30;
    /// An uncorrectable error that leaves the link sound.
    pub const ERR_NONFATAL: u8 = 0x31;
    /// An uncorrectable error after which the link needs a reset.
    pub const ERR_FATAL: u8 = 0x33;
    /// How much power a slot may draw.
    pub const SET_SLOT_POWER_LIMIT: u8 = 0x50;
    /// A vendor's own; a receiver that does not know it reports an error.
    pub const VENDOR_TYPE_0: u8 = 0x7e;
    /// A vendor's own; a receiver that does not know it drops it.
    pub const VENDOR_TYPE_1: u8 = 0x7f;
}
