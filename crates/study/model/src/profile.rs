//! A recorded program: what it asked of the GPU, when, and what the GPU did.
//!
//! A profile holds the calls that cost time at a distance, in the order in which the program made them, on one clock that starts
//! with the recording. Calls that only ask for state are counted, not listed. [`Encoder`] writes the file, [`read()`] checks and
//! reads it; the format is described in [`wire`].

mod encode;
mod read;
mod summary;
pub mod wire;

pub use encode::{Encoder, encode};
pub use read::{ProfileError, read};
use serde::{Deserialize, Serialize};
pub use summary::{CopyClass, KernelUse, SHORT_KERNEL_US, Summary, summarise};

/// A whole recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The GPU it ran on.
    pub device: String,
    /// The program, as it was started.
    pub program: String,
    /// How durations on the GPU were found; `None` where the profile does not say.
    pub measured: Option<Measured>,
    /// Names of kernels, by the number that launches carry.
    pub kernels: Vec<String>,
    /// What happened, in order.
    pub records: Vec<Record>,
    /// How long the recording lasted.
    pub wall_us: f64,
}

/// How a recorder found out what the GPU did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// In words.
    pub method: String,
    /// Operations in the recording.
    pub operations: u64,
    /// Those that were timed themselves; the others have the durations of their like.
    pub sampled: u64,
    /// Of these, those in which nothing else can have been seen.
    #[serde(default)]
    pub clean: u64,
    /// Durations were scaled by this, since a stream would have worked longer than there was time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaled: Option<f64>,
    /// What a filler kernel costs on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filler: Option<Filler>,
}

/// A kernel that does nothing but last, as `dxpu inject` puts it before others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filler {
    /// What one of no length takes of a busy queue.
    pub gpu_us: f64,
    /// What its launch takes of the calling thread.
    pub host_us: f64,
}

/// One call, or one group of calls that only asked for state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// When the program made the call.
    pub at_us: f64,
    /// How long it took to return.
    pub call_us: f64,
    /// What it was.
    pub action: Action,
}

impl Record {
    /// When the program went on.
    pub fn returned_us(&self) -> f64 {
        self.at_us + self.call_us
    }
}

/// What a call asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A kernel, or a graph of several.
    Launch {
        /// The stream it went to.
        stream: u32,
        /// Which kernel, as an index into [`Profile::kernels`].
        kernel: u32,
        /// Kernels that it ran: 1, or those of the graph.
        kernels: u32,
        /// How long the GPU took.
        gpu_us: f64,
    },
    /// A copy.
    Copy {
        /// The stream it went to.
        stream: u32,
        /// Where from and where to.
        direction: Direction,
        /// How much.
        bytes: u64,
        /// Whether the host memory is page-locked.
        pinned: bool,
        /// Whether the call returned only when the copy was done.
        waits: bool,
        /// How long the GPU's copy engine took.
        gpu_us: f64,
    },
    /// Device memory filled with a value.
    Memset {
        /// The stream it went to.
        stream: u32,
        /// How much.
        bytes: u64,
        /// How long the GPU took.
        gpu_us: f64,
    },
    /// An event recorded on a stream.
    RecordEvent {
        /// The stream.
        stream: u32,
        /// The event.
        event: u32,
    },
    /// A stream told to wait for an event.
    StreamWait {
        /// The stream.
        stream: u32,
        /// The event.
        event: u32,
    },
    /// The program waited for the GPU.
    Wait {
        /// What for.
        target: Awaited,
    },
    /// The program asked whether the GPU is done.
    Query {
        /// With what.
        target: Awaited,
        /// What the answer was.
        done: bool,
    },
    /// Calls that only asked for state, taken together; `call_us` is the time of all of them.
    Local {
        /// How many.
        calls: u32,
    },
    /// Any other call that reaches the driver.
    Other {
        /// Whether the program needs its answer.
        awaited: bool,
    },
    /// The program began its next step.
    Step,
}

/// The way of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the program's memory to the GPU's.
    HostToDevice,
    /// From the GPU's memory to the program's.
    DeviceToHost,
    /// Within the GPU.
    DeviceToDevice,
}

impl Direction {
    /// As people say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::HostToDevice => "host to device",
            Self::DeviceToHost => "device to host",
            Self::DeviceToDevice => "device to device",
        }
    }
}

/// What a program waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// All work of a stream.
    Stream(u32),
    /// An event.
    Event(u32),
    /// All work of the GPU.
    Everything,
}
