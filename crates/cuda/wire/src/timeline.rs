//! A timeline on the wire: when the work of a session ran on the device, and when its calls were answered.
//!
//! All times are nanoseconds of one clock of the worker's, which begins with the session. [`crate::Notice::TimelineTold`] says
//! what it shows, so that the client can tell how far it is from its own.

use crate::ids::{KernelRef, StreamId};

wire_struct! {
    /// From when to when.
    #[derive(Copy, Eq)]
    pub struct Span {
        /// Begin.
        pub start_ns: u64,
        /// End, not before the begin.
        pub end_ns: u64,
    }
}

wire_struct! {
    /// A stream that work of a timeline ran in.
    #[derive(Copy, Eq)]
    pub struct TimedStream {
        /// Which.
        pub stream: StreamId,
        /// The worker's number of its device.
        pub device: u32,
        /// As `StreamCreate` has it: 2 is the legacy stream of a context.
        pub kind: u32,
    }
}

wire_struct! {
    /// A kernel that ran.
    #[derive(Copy, Eq)]
    pub struct TimedKernel {
        /// In which stream.
        pub stream: StreamId,
        /// Which; the client knows its name.
        pub kernel: KernelRef,
        /// Blocks.
        pub grid: [u32; 3],
        /// Threads of a block.
        pub block: [u32; 3],
        /// Dynamic shared memory. With [`timed::ESTIMATED`]: the kernel had no events of its own, and the span is what such a
        /// kernel usually takes, between two moments that were measured.
        pub shared_bytes: u32,
        /// When.
        pub span: Span,
    }
}

/// What work of a stream is that is no kernel, as [`TimedWork::kind`] says it.
pub mod timed {
    /// A copy from the host. It ends when the bytes have come over the network and are on the device.
    pub const COPY_IN: u8 = 1;
    /// A copy to the host. It ends when the bytes are out of the device and their memory is free again.
    pub const COPY_OUT: u8 = 2;
    /// A copy within or between devices.
    pub const COPY_DEVICE: u8 = 3;
    /// Device memory was filled.
    pub const FILL: u8 = 4;
    /// A graph ran, whatever is in it. `bytes` is the number of its executable.
    pub const GRAPH: u8 = 5;
    /// The stream waited for a host function of the program.
    pub const HOST_FUNCTION: u8 = 6;
    /// A bit of [`super::TimedKernel::shared_bytes`]; no GPU has that much.
    pub const ESTIMATED: u32 = 1 << 31;
    /// The same of [`super::TimedWork::kind`].
    pub const ESTIMATED_KIND: u8 = 1 << 7;
}

wire_struct! {
    /// Other work that was done.
    #[derive(Copy, Eq)]
    pub struct TimedWork {
        /// In which stream.
        pub stream: StreamId,
        /// One of [`timed`], perhaps with [`timed::ESTIMATED_KIND`].
        pub kind: u8,
        /// How much was moved or filled.
        pub bytes: u64,
        /// When.
        pub span: Span,
    }
}

wire_struct! {
    /// A call that was answered.
    #[derive(Copy, Eq)]
    pub struct TimedAnswer {
        /// As its command and its reply name it.
        pub call: u32,
        /// From when the worker took the command up to when it sent the reply.
        pub span: Span,
    }
}
