//! Registers and status words of the dxpu GPU function: what a guest and the function agree on.
//!
//! The function has channels; each is one connection to a worker, two streams of bytes. A stream is a ring in the guest's
//! memory. BAR 0 has a page that says what the function is, then a page of registers for each channel:
//!
//! ```text
//! page 0     0x00 magic   0x04 version   0x08 channels   0x0c most bytes of a ring
//!            0x10 bytes of the pass   0x100 the pass: what to show the worker, if the guest has nothing of its own
//!
//! page 1+n   0x00 control                            W   see [`control`]
//!            0x04 state                              R   see [`state`]
//!            0x08 address of the status block        RW  64 bits, a multiple of 64
//!            0x10 address of the outbound ring       RW  64 bits, a multiple of 4096
//!            0x18 address of the inbound ring        RW  64 bits, a multiple of 4096
//!            0x20 bytes of the outbound ring         RW  a power of two
//!            0x24 bytes of the inbound ring          RW  a power of two
//!            0x28 MSI vector; all ones for none      RW
//!            0x40 doorbell: bytes ever put outbound  W
//!            0x44 doorbell: bytes ever taken inbound W
//! ```
//!
//! Outbound is what the guest sends. Counts of bytes are free-running 32-bit numbers: their difference is what is in a
//! ring, their remainder the place in it. All numbers are little-endian. The function never has to be asked while bytes
//! travel: what the guest must know is written into its status block ([`status`]), behind the bytes it speaks of.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

/// PCI vendor of the function.
pub const VENDOR: u16 = 0x1b36;
/// PCI device of the function.
pub const DEVICE: u16 = 0xd804;
/// Processing accelerator.
pub const CLASS: u32 = 0x12_00_00;

/// "dxgf" at the beginning of BAR 0.
pub const MAGIC: u32 = u32::from_le_bytes(*b"dxgf");
/// Goes up when registers or status words change their meaning.
pub const VERSION: u32 = 1;
/// Connections at a time: the identity page and they fill a BAR of 256 KiB. A program opens about seven.
pub const CHANNELS: usize = 63;
/// Bytes of registers of a channel.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of BAR 0.
pub const BAR_BYTES: u64 = (CHANNELS as u64 + 1) * PAGE_BYTES;
/// A ring has at least these bytes.
pub const RING_BYTES_MIN: u32 = 4096;
/// A ring has at most these bytes: what several channels may occupy in the function's queues stays bounded.
pub const RING_BYTES_MAX: u32 = 16 << 20;

/// Offset of a channel's registers in BAR 0.
pub const fn channel_at(channel: usize) -> u64 {
    (channel as u64 + 1) * PAGE_BYTES
}

/// Registers of page 0.
pub mod identity {
    /// [`super::MAGIC`].
    pub const MAGIC: u64 = 0x00;
    /// [`super::VERSION`].
    pub const VERSION: u64 = 0x04;
    /// How many channels there are.
    pub const CHANNELS: u64 = 0x08;
    /// [`super::RING_BYTES_MAX`].
    pub const RING_BYTES_MAX: u64 = 0x0c;
    /// Bytes of the pass, none for zero. It may change at any time, as a whole.
    pub const PASS_BYTES: u64 = 0x10;
    /// Where the pass begins. A guest that was given the function may read what opens it.
    pub const PASS: u64 = 0x100;
    /// The longest pass.
    pub const PASS_BYTES_MAX: u64 = 2048;
}

/// Registers of a channel, from the beginning of its page.
pub mod register {
    /// What to do.
    pub const CONTROL: u64 = 0x00;
    /// How the channel is.
    pub const STATE: u64 = 0x04;
    /// Where the status block is.
    pub const STATUS_AT: u64 = 0x08;
    /// Where the outbound ring is.
    pub const OUTBOUND_AT: u64 = 0x10;
    /// Where the inbound ring is.
    pub const INBOUND_AT: u64 = 0x18;
    /// Bytes of the outbound ring.
    pub const OUTBOUND_BYTES: u64 = 0x20;
    /// Bytes of the inbound ring.
    pub const INBOUND_BYTES: u64 = 0x24;
    /// Which interrupt says that the status block has changed.
    pub const VECTOR: u64 = 0x28;
    /// Doorbell: bytes ever put into the outbound ring.
    pub const OUTBOUND_PUT: u64 = 0x40;
    /// Doorbell: bytes ever taken from the inbound ring.
    pub const INBOUND_TAKEN: u64 = 0x44;
}

/// What can be written to [`register::CONTROL`].
pub mod control {
    /// Connects with the rings that the registers name. They do not change until a reset.
    pub const OPEN: u32 = 1;
    /// Nothing more is put into the outbound ring.
    pub const FINISH: u32 = 2;
    /// The guest neither sends nor reads any more. What it has sent is still delivered; then the channel is idle.
    pub const CLOSE: u32 = 3;
    /// Idle at once, whatever is under way. A read of a register after it returns when the function's last write to the
    /// rings has arrived.
    pub const RESET: u32 = 4;
}

/// Bits of [`register::STATE`] and [`status::STATE`]. Zero: idle, or still connecting.
pub mod state {
    /// A worker has taken the connection.
    pub const OPEN: u32 = 1 << 0;
    /// Nothing more comes inbound than what was put.
    pub const FINISHED: u32 = 1 << 1;
    /// Nothing more is taken outbound.
    pub const DESERTED: u32 = 1 << 2;
    /// No worker is behind the function, or it does not take connections.
    pub const REFUSED: u32 = 1 << 3;
    /// The guest named a ring that cannot be, rang an impossible number, or its memory could not be read.
    pub const FAULT: u32 = 1 << 4;
    /// Closed by the guest; the last bytes are on their way to the worker. Only in the register.
    pub const CLOSING: u32 = 1 << 5;
    /// Opened by the guest, and no answer from the worker yet. Only in the register.
    pub const OPENING: u32 = 1 << 6;
}

/// Words of the status block in the guest's memory.
pub mod status {
    /// Bytes ever taken from the outbound ring. Told at every quarter of the ring, not at every byte.
    pub const OUTBOUND_TAKEN: u64 = 0x00;
    /// Bytes ever put into the inbound ring.
    pub const INBOUND_PUT: u64 = 0x04;
    /// See [`super::state`].
    pub const STATE: u64 = 0x08;
    /// Bytes of the block, and what its address must be a multiple of.
    pub const BYTES: u64 = 64;
}
