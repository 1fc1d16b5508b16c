//! Entries of submission and completion queues.

/// Bytes of a submission queue entry.
pub(super) const COMMAND_BYTES: usize = 64;
/// Bytes of a completion queue entry.
pub(super) const COMPLETION_BYTES: usize = 16;

/// A command as the driver wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The queue it came from.
    pub queue: u16,
    /// What to do.
    pub opcode: u8,
    /// Fused operation and PRP or SGL.
    pub flags: u8,
    /// The driver's name for it.
    pub id: u16,
    /// Which namespace.
    pub namespace: u32,
    /// First page of data.
    pub prp1: u64,
    /// Second page, or a list of further ones.
    pub prp2: u64,
    /// Command double words 10 to 15.
    pub dw: [u32; 6],
}

impl Command {
    /// Reads an entry.
    pub fn decode(queue: u16, entry: &[u8; COMMAND_BYTES]) -> Self {
        let u32_at = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
        Self {
            queue,
            opcode: entry[0],
            flags: entry[1],
            id: u16::from_le_bytes([entry[2], entry[3]]),
            namespace: u32_at(4),
            prp1: u64_at(24),
            prp2: u64_at(32),
            dw: std::array::from_fn(|n| u32_at(40 + 4 * n)),
        }
    }

    /// Double words 10 to 15 by their own numbers.
    pub fn cdw(&self, number: usize) -> u32 {
        self.dw[number - 10]
    }
}

/// How a command ended: status code type and status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub enum Status {
    Success = 0x000,
    InvalidOpcode = 0x001,
    InvalidField = 0x002,
    DataTransferError = 0x004,
    InternalError = 0x006,
    InvalidNamespace = 0x00b,
    PrpOffsetInvalid = 0x013,
    LbaOutOfRange = 0x080,
    CompletionQueueInvalid = 0x100,
    InvalidQueueId = 0x101,
    InvalidQueueSize = 0x102,
    EventRequestLimit = 0x105,
    InvalidInterruptVector = 0x108,
    InvalidLogPage = 0x109,
    InvalidQueueDeletion = 0x10c,
    WriteFault = 0x280,
    ReadError = 0x281,
}

/// A completion entry.
pub(super) fn completion_entry(
    command: &Command,
    head: u16,
    status: Status,
    result: u32,
    phase: bool,
) -> [u8; COMPLETION_BYTES] {
    let mut entry = [0; COMPLETION_BYTES];
    entry[0..4].copy_from_slice(&result.to_le_bytes());
    entry[8..10].copy_from_slice(&head.to_le_bytes());
    entry[10..12].copy_from_slice(&command.queue.to_le_bytes());
    entry[12..14].copy_from_slice(&command.id.to_le_bytes());
    let status = (status as u16) << 1 | u16::from(phase);
    entry[14..16].copy_from_slice(&status.to_le_bytes());
    entry
}
