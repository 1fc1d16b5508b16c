//! The 16 bytes in front of every message. All integers are in the byte order of the machine, as the protocol has
//! it: both ends share one.
//!
//! ```text
//! byte 0            2            4                 8                12               16
//!      | message id | command    | message size    | flags          | error          |
//! ```
//!
//! `message size` counts these 16 bytes. The low four bits of `flags` say command or reply, bit 4 asks for no reply,
//! bit 5 says that `error` holds an errno.

/// How long a header is.
pub const HEADER_BYTES: usize = 16;

const TYPE_MASK: u32 = 0xf;
const TYPE_COMMAND: u32 = 0;
const TYPE_REPLY: u32 = 1;
const FLAG_NO_REPLY: u32 = 1 << 4;
const FLAG_ERROR: u32 = 1 << 5;

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Command {
    /// Agree on a version and on limits.
    Version = 1,
    /// Memory the device may reach.
    DmaMap = 2,
    /// Memory it may no longer reach.
    DmaUnmap = 3,
    /// How many regions and interrupts there are.
    DeviceInfo = 4,
    /// Size and rights of a region.
    RegionInfo = 5,
    /// File descriptors that stand for parts of a region; we offer none.
    RegionIoFds = 6,
    /// How many interrupts of a kind there are.
    IrqInfo = 7,
    /// Event file descriptors for interrupts.
    SetIrqs = 8,
    /// Read registers or configuration space.
    RegionRead = 9,
    /// Write them.
    RegionWrite = 10,
    /// The device reads guest memory by message.
    DmaRead = 11,
    /// The device writes guest memory by message.
    DmaWrite = 12,
    /// Function-level reset.
    DeviceReset = 13,
    /// Dirty-page tracking; we offer none.
    DirtyPages = 14,
    /// Many small posted writes in one message.
    RegionWriteMulti = 15,
}

impl Command {
    /// The command with this number.
    pub fn from_number(number: u16) -> Option<Self> {
        use Command::*;
        const ALL: [Command; 15] = [
            Version,
            DmaMap,
            DmaUnmap,
            DeviceInfo,
            RegionInfo,
            RegionIoFds,
            IrqInfo,
            SetIrqs,
            RegionRead,
            RegionWrite,
            DmaRead,
            DmaWrite,
            DeviceReset,
            DirtyPages,
            RegionWriteMulti,
        ];
        ALL.into_iter().find(|command| *command as u16 == number)
    }
}

/// Whether a message asks or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A command.
    Command {
        /// The sender does not want to hear how it went.
        no_reply: bool,
    },
    /// An answer.
    Reply {
        /// An errno, when the command failed.
        error: Option<u32>,
    },
}

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Chosen by the sender of the command, repeated in the reply.
    pub id: u16,
    /// A number of [`Command`], or an unknown one: unknown commands are answered with an error, so they must decode.
    pub command: u16,
    /// Length of what follows the header.
    pub body_bytes: usize,
    /// Command or reply.
    pub direction: Direction,
}

/// Why 16 bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The size does not even cover the header.
    #[error("message size {size} is smaller than a header")]
    TooSmall {
        /// As sent.
        size: u32,
    },
    /// Larger than the limit that was agreed on.
    #[error("message size {size} is above the limit of {limit}")]
    TooLarge {
        /// As sent.
        size: u32,
        /// Ours.
        limit: usize,
    },
    /// Neither command nor reply.
    #[error("message type {kind} is neither command nor reply")]
    UnknownType {
        /// As sent.
        kind: u32,
    },
}

impl Header {
    /// Reads a header; no body above `body_limit` passes.
    pub fn decode(bytes: &[u8; HEADER_BYTES], body_limit: usize) -> Result<Self, HeaderError> {
        let u16_at = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (size, flags, error) = (u32_at(4), u32_at(8), u32_at(12));
        let body_bytes = (size as usize).checked_sub(HEADER_BYTES).ok_or(HeaderError::TooSmall { size })?;
        if body_bytes > body_limit {
            return Err(HeaderError::TooLarge { size, limit: HEADER_BYTES + body_limit });
        }
        let direction = match flags & TYPE_MASK {
            TYPE_COMMAND => Direction::Command { no_reply: flags & FLAG_NO_REPLY != 0 },
            TYPE_REPLY => Direction::Reply { error: (flags & FLAG_ERROR != 0).then_some(error) },
            kind => return Err(HeaderError::UnknownType { kind }),
        };
        Ok(Self { id: u16_at(0), command: u16_at(2), body_bytes, direction })
    }

    /// The 16 bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let (flags, error) = match self.direction {
            Direction::Command { no_reply } => (TYPE_COMMAND | if no_reply { FLAG_NO_REPLY } else { 0 }, 0),
            Direction::Reply { error: None } => (TYPE_REPLY, 0),
            Direction::Reply { error: Some(error) } => (TYPE_REPLY | FLAG_ERROR, error),
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&self.id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.command.to_ne_bytes());
        bytes[4..8].copy_from_slice(&((HEADER_BYTES + self.body_bytes) as u32).to_ne_bytes());
        bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
        bytes[12..16].copy_from_slice(&error.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_number_leads_back_to_itself() {
        let known: Vec<u16> = (0..=u16::MAX).filter(|n| Command::from_number(*n).is_some()).collect();
        assert_eq!(known, (1..=15).collect::<Vec<u16>>());
        assert!(known.iter().all(|n| Command::from_number(*n).map(|c| c as u16) == Some(*n)));
    }

    #[test]
    fn a_size_below_the_header_or_above_the_limit_is_refused() {
        let header =
            Header { id: 7, command: 9, body_bytes: 100, direction: Direction::Command { no_reply: false } };
        let mut bytes = header.encode();
        assert_eq!(Header::decode(&bytes, 100), Ok(header));
        assert_eq!(Header::decode(&bytes, 99), Err(HeaderError::TooLarge { size: 116, limit: 115 }));
        bytes[4..8].copy_from_slice(&15u32.to_ne_bytes());
        assert_eq!(Header::decode(&bytes, 100), Err(HeaderError::TooSmall { size: 15 }));
    }

    #[test]
    fn an_error_is_only_read_where_its_flag_stands() {
        let reply =
            Header { id: 1, command: 2, body_bytes: 0, direction: Direction::Reply { error: Some(22) } };
        let mut bytes = reply.encode();
        assert_eq!(Header::decode(&bytes, 0), Ok(reply));
        bytes[8] = TYPE_REPLY as u8;
        assert_eq!(
            Header::decode(&bytes, 0).unwrap().direction,
            Direction::Reply { error: None },
            "stale error numbers are not errors"
        );
    }
}
