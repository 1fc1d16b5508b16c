//! The profile file, version 1: lines of JSON.
//!
//! ```text
//! {"dxpu_profile":1,"device":"NVIDIA H200","program":"python train.py"}
//! {"op":"kernel","id":0,"name":"gemm"}
//! {"op":"step","at":0}
//! {"op":"local","at":0.5,"call":1.25,"calls":17}
//! {"op":"launch","at":2.0,"call":3.1,"stream":0,"kernel":0,"gpu":102.3}
//! {"op":"copy","at":5.1,"call":130.0,"stream":0,"to":"host","bytes":4,"waits":true,"gpu":1.4}
//! {"op":"end","at":140.5,"records":4,"blake3":"…"}
//! ```
//!
//! - Times are microseconds from the start of the recording, rounded to nanoseconds. `at` never goes back; `call` is how long the
//!   call took, `gpu` how long the GPU took.
//! - The first line may say how durations on the GPU were found (`measured`).
//! - A kernel has a name before it is launched; names are numbered from 0 without holes. A graph launch says how many
//!   `kernels` it runs.
//! - `stream` is any number; the default stream is 0. What is left out is 0, 1 (`kernels`) or false.
//! - A stream is not joined with the default stream by itself: a recorder writes `event` and `stream_wait` where the program's
//!   streams depend on each other.
//! - The last line counts the records (kernel names are none) and carries the BLAKE3 hash of every byte that stands before the
//!   hash, so that a file that was cut off or changed is never taken for a whole one. The hash is the line's last field.
//!
//! A reader refuses fields and operations it does not know. A change that old readers would misread raises the version.

use super::{Action, Awaited, Direction, Measured, Record};
use serde::{Deserialize, Serialize};

/// The version this crate writes and reads.
pub const VERSION: u32 = 1;

/// What follows the checksum on the last line.
pub(super) const END_OF_LINE: &str = "\"}";

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub(super) dxpu_profile: u32,
    pub(super) device: String,
    pub(super) program: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) measured: Option<Measured>,
}

/// Every other line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Line {
    Kernel {
        id: u32,
        name: String,
    },
    Launch {
        at: f64,
        call: f64,
        stream: u32,
        kernel: u32,
        #[serde(default = "one", skip_serializing_if = "is_one")]
        kernels: u32,
        gpu: f64,
    },
    Copy {
        at: f64,
        call: f64,
        stream: u32,
        to: Side,
        bytes: u64,
        #[serde(default, skip_serializing_if = "is_false")]
        pinned: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        waits: bool,
        gpu: f64,
    },
    Memset {
        at: f64,
        call: f64,
        stream: u32,
        bytes: u64,
        gpu: f64,
    },
    Event {
        at: f64,
        call: f64,
        stream: u32,
        event: u32,
    },
    StreamWait {
        at: f64,
        call: f64,
        stream: u32,
        event: u32,
    },
    Wait {
        at: f64,
        call: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stream: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        event: Option<u32>,
    },
    Query {
        at: f64,
        call: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stream: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        event: Option<u32>,
        #[serde(default, skip_serializing_if = "is_false")]
        done: bool,
    },
    Local {
        at: f64,
        call: f64,
        calls: u32,
    },
    Other {
        at: f64,
        call: f64,
        #[serde(default, skip_serializing_if = "is_false")]
        awaited: bool,
    },
    Step {
        at: f64,
    },
    End {
        at: f64,
        records: u64,
        blake3: String,
    },
}

/// Where a copy goes. Copies to the device come from the host, unless they say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Side {
    Device,
    Host,
    WithinDevice,
}

fn one() -> u32 {
    1
}

fn is_one(value: &u32) -> bool {
    *value == 1
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Nanoseconds are all the clock there is; more digits would only fill the file.
fn rounded(us: f64) -> f64 {
    (us * 1e3).round() / 1e3
}

fn sides(target: Awaited) -> (Option<u32>, Option<u32>) {
    match target {
        Awaited::Stream(stream) => (Some(stream), None),
        Awaited::Event(event) => (None, Some(event)),
        Awaited::Everything => (None, None),
    }
}

fn awaited(stream: Option<u32>, event: Option<u32>) -> Result<Awaited, String> {
    match (stream, event) {
        (Some(stream), None) => Ok(Awaited::Stream(stream)),
        (None, Some(event)) => Ok(Awaited::Event(event)),
        (None, None) => Ok(Awaited::Everything),
        (Some(_), Some(_)) => Err("it waits for a stream and for an event at once".to_owned()),
    }
}

impl From<&Record> for Line {
    fn from(record: &Record) -> Self {
        let (at, call) = (rounded(record.at_us), rounded(record.call_us));
        match record.action {
            Action::Launch { stream, kernel, kernels, gpu_us } => {
                Self::Launch { at, call, stream, kernel, kernels, gpu: rounded(gpu_us) }
            }
            Action::Copy { stream, direction, bytes, pinned, waits, gpu_us } => {
                let to = match direction {
                    Direction::HostToDevice => Side::Device,
                    Direction::DeviceToHost => Side::Host,
                    Direction::DeviceToDevice => Side::WithinDevice,
                };
                Self::Copy { at, call, stream, to, bytes, pinned, waits, gpu: rounded(gpu_us) }
            }
            Action::Memset { stream, bytes, gpu_us } => {
                Self::Memset { at, call, stream, bytes, gpu: rounded(gpu_us) }
            }
            Action::RecordEvent { stream, event } => Self::Event { at, call, stream, event },
            Action::StreamWait { stream, event } => Self::StreamWait { at, call, stream, event },
            Action::Wait { target } => {
                let (stream, event) = sides(target);
                Self::Wait { at, call, stream, event }
            }
            Action::Query { target, done } => {
                let (stream, event) = sides(target);
                Self::Query { at, call, stream, event, done }
            }
            Action::Local { calls } => Self::Local { at, call, calls },
            Action::Other { awaited } => Self::Other { at, call, awaited },
            Action::Step => Self::Step { at },
        }
    }
}

/// What a line means to a reader.
pub(super) enum Meaning {
    Name { id: u32, name: String },
    Record(Record),
    End { at: f64, records: u64, blake3: String },
}

impl TryFrom<Line> for Meaning {
    type Error = String;

    fn try_from(line: Line) -> Result<Self, String> {
        let record = |at_us, call_us, action| Ok(Self::Record(Record { at_us, call_us, action }));
        match line {
            Line::Kernel { id, name } => Ok(Self::Name { id, name }),
            Line::End { at, records, blake3 } => Ok(Self::End { at, records, blake3 }),
            Line::Launch { at, call, stream, kernel, kernels, gpu } => {
                record(at, call, Action::Launch { stream, kernel, kernels, gpu_us: gpu })
            }
            Line::Copy { at, call, stream, to, bytes, pinned, waits, gpu } => {
                let direction = match to {
                    Side::Device => Direction::HostToDevice,
                    Side::Host => Direction::DeviceToHost,
                    Side::WithinDevice => Direction::DeviceToDevice,
                };
                record(at, call, Action::Copy { stream, direction, bytes, pinned, waits, gpu_us: gpu })
            }
            Line::Memset { at, call, stream, bytes, gpu } => {
                record(at, call, Action::Memset { stream, bytes, gpu_us: gpu })
            }
            Line::Event { at, call, stream, event } => {
                record(at, call, Action::RecordEvent { stream, event })
            }
            Line::StreamWait { at, call, stream, event } => {
                record(at, call, Action::StreamWait { stream, event })
            }
            Line::Wait { at, call, stream, event } => {
                record(at, call, Action::Wait { target: awaited(stream, event)? })
            }
            Line::Query { at, call, stream, event, done } => {
                record(at, call, Action::Query { target: awaited(stream, event)?, done })
            }
            Line::Local { at, call, calls } => record(at, call, Action::Local { calls }),
            Line::Other { at, call, awaited } => record(at, call, Action::Other { awaited }),
            Line::Step { at } => record(at, 0.0, Action::Step),
        }
    }
}
