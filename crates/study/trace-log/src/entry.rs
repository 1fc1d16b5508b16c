//! One entry: 64 bytes, all numbers little-endian.

use std::array::TryFromSliceError;

/// Bytes of an entry. A text that follows its entry is filled up to a multiple of this.
pub const ENTRY_BYTES: usize = 64;

/// The first bytes of a log; the digit changes when entries do.
pub const MAGIC: [u8; 8] = *b"DXPULOG1";

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The beginning: `at` is the clock's first reading.
    Begin = 1,
    /// The end: `object` counts the entries before it, `extra` is the number of ticks in a millisecond.
    End = 2,
    /// The device's name follows, `bytes` long.
    Device = 3,
    /// The name of kernel `object` follows, `bytes` long.
    Name = 4,
    /// A kernel or a graph: `object` is the kernel's number, `count` its kernels.
    Launch = 5,
    /// A copy of `bytes`; `object` is the number of its class.
    Copy = 6,
    /// A fill of `bytes`; `object` is the number of its class.
    Memset = 7,
    /// Event `object` was recorded on a stream.
    EventRecord = 8,
    /// A stream was told to wait for event `object`.
    StreamWait = 9,
    /// The program waited for a stream.
    WaitStream = 10,
    /// The program waited for event `object`.
    WaitEvent = 11,
    /// The program waited for the whole context.
    WaitAll = 12,
    /// The program asked whether a stream is done.
    QueryStream = 13,
    /// The program asked whether event `object` is done.
    QueryEvent = 14,
    /// `count` calls that asked for state.
    Local = 15,
    /// Another call.
    Other = 16,
    /// The operation with number `object` took `extra` nanoseconds on the GPU. `bytes` is the number of its kernel or class,
    /// so that operations outside the range teach something too. `count` is 1 if nothing but the operation was seen.
    Sample = 17,
    /// A stream was made; [`flag::NON_BLOCKING`] says of which kind.
    StreamMade = 18,
    /// The range that is recorded began.
    RangeBegin = 19,
    /// It ended.
    RangeEnd = 20,
    /// The filler kernel was measured, later entries with more knowledge: `bytes` nanoseconds in a busy queue, `extra` on the calling thread, `object` of an event
    /// pair around it.
    Filler = 21,
    /// What was injected: `count` is the class, `object` the operations, `bytes` the nanoseconds asked for, `extra` those spent.
    Injected = 22,
}

impl Kind {
    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        const ALL: [Kind; 22] = [
            Kind::Begin,
            Kind::End,
            Kind::Device,
            Kind::Name,
            Kind::Launch,
            Kind::Copy,
            Kind::Memset,
            Kind::EventRecord,
            Kind::StreamWait,
            Kind::WaitStream,
            Kind::WaitEvent,
            Kind::WaitAll,
            Kind::QueryStream,
            Kind::QueryEvent,
            Kind::Local,
            Kind::Other,
            Kind::Sample,
            Kind::StreamMade,
            Kind::RangeBegin,
            Kind::RangeEnd,
            Kind::Filler,
            Kind::Injected,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Whether a text of `bytes` bytes follows the entry.
    pub fn has_text(self) -> bool {
        matches!(self, Self::Device | Self::Name)
    }

    /// Whether the GPU works for it, so that it has a number that samples refer to.
    pub fn is_operation(self) -> bool {
        matches!(self, Self::Launch | Self::Copy | Self::Memset)
    }
}

/// Bits of [`Entry::flags`].
pub mod flag {
    /// A copy to the device.
    pub const TO_DEVICE: u8 = 1;
    /// A copy to the host. Neither: within the device.
    pub const TO_HOST: u8 = 2;
    /// The host memory of a copy is page-locked.
    pub const PINNED: u8 = 4;
    /// The call returned only when the copy was done.
    pub const WAITS: u8 = 8;
    /// The answer to a query was that the work is done.
    pub const DONE: u8 = 16;
    /// The program needs the call's answer.
    pub const AWAITED: u8 = 32;
    /// The stream does not wait for the default stream.
    pub const NON_BLOCKING: u8 = 64;
}

/// One entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// A [`Kind`].
    pub kind: u8,
    /// Bits of [`flag`].
    pub flags: u8,
    /// How many.
    pub count: u32,
    /// When the program called, in ticks of the clock.
    pub at: u64,
    /// How long the driver took.
    pub ticks: u64,
    /// How long the recording itself took.
    pub own_ticks: u64,
    /// A stream's handle, 0 for the legacy default stream.
    pub stream: u64,
    /// What it is about.
    pub object: u64,
    /// How much.
    pub bytes: u64,
    /// What else.
    pub extra: u64,
}

impl Entry {
    /// An entry of a kind, with everything else 0.
    pub fn new(kind: Kind) -> Self {
        Self { kind: kind as u8, ..Self::default() }
    }

    /// As bytes.
    pub fn to_bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[0] = self.kind;
        bytes[1] = self.flags;
        bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
        let words = [self.at, self.ticks, self.own_ticks, self.stream, self.object, self.bytes, self.extra];
        for (place, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// From bytes.
    pub fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let word = |at: usize| -> Result<u64, TryFromSliceError> {
            Ok(u64::from_le_bytes(bytes[8 + 8 * at..16 + 8 * at].try_into()?))
        };
        let word = |at| word(at).unwrap_or_default();
        Self {
            kind: bytes[0],
            flags: bytes[1],
            count: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            at: word(0),
            ticks: word(1),
            own_ticks: word(2),
            stream: word(3),
            object: word(4),
            bytes: word(5),
            extra: word(6),
        }
    }
}

/// A text as it stands in the log: its bytes, filled up.
pub fn text_bytes(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len().next_multiple_of(ENTRY_BYTES), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_survives_its_bytes() {
        let entry = Entry {
            kind: Kind::Copy as u8,
            flags: flag::PINNED | flag::TO_HOST,
            count: 3,
            at: 1,
            ticks: u64::MAX,
            own_ticks: 5,
            stream: 7,
            object: 9,
            bytes: 11,
            extra: 13,
        };
        assert_eq!(Entry::from_bytes(&entry.to_bytes()), entry);
        assert_eq!(Kind::from_number(entry.kind), Some(Kind::Copy));
        assert_eq!(Kind::from_number(0), None);
    }
}
