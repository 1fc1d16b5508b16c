//! What waits in streams.

use super::State;
use crate::sys::{BatchMemOp, Event, HostFunction};
use cuda_abi::{CuResult, CudaError};
use std::ops::Range;

/// A place in the order of all calls, and what is to be done.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) number: u64,
    pub(super) work: Work,
}

#[derive(Clone, Debug)]
pub(super) enum Work {
    Nothing,
    Copy(Copying),
    Fill { target: u64, pitch: usize, element: Vec<u8>, count: usize, height: usize },
    WriteWord { address: u64, value: u64, bytes: usize },
    WaitWord { address: u64, value: u64, bytes: usize, compare: Compare },
    Launch(Launched),
    Host { function: HostFunction, argument: usize },
    Record { event: Event, ticket: u64 },
    WaitEvent { event: Event, ticket: u64 },
}

/// A kernel that has run or will.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launched {
    pub(crate) name: String,
    pub(crate) grid: [u32; 3],
    pub(crate) parameters: Vec<u8>,
    /// The numbers of its launch attributes.
    pub(crate) attributes: Vec<u32>,
}

/// `CU_STREAM_WAIT_VALUE_*` without its flags.
#[derive(Clone, Copy, Debug)]
pub(super) enum Compare {
    AtLeast,
    Equal,
    And,
}

/// Bytes at one end of a copy.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Device(u64),
    /// Registered memory of this process.
    Pinned(usize),
    /// Bytes of pageable memory, taken at the call.
    Taken(Vec<u8>),
}

#[derive(Clone, Debug)]
pub(super) struct Copying {
    pub(super) source: Place,
    pub(super) source_pitch: usize,
    pub(super) source_slice: usize,
    pub(super) target: Place,
    pub(super) target_pitch: usize,
    pub(super) target_slice: usize,
    /// Bytes of a row, rows, slices.
    pub(super) extent: [usize; 3],
}

impl Copying {
    pub(super) fn line(target: Place, source: Place, bytes: usize) -> Self {
        let extent = [bytes, 1, 1];
        Self {
            source,
            source_pitch: bytes,
            source_slice: 0,
            target,
            target_pitch: bytes,
            target_slice: 0,
            extent,
        }
    }

    /// Offsets of every row in source and target.
    fn rows(&self) -> impl Iterator<Item = (usize, usize)> {
        let [_, height, depth] = self.extent;
        let (from, to) = ((self.source_slice, self.source_pitch), (self.target_slice, self.target_pitch));
        (0..depth).flat_map(move |slice| {
            (0..height).map(move |row| (slice * from.0 + row * from.1, slice * to.0 + row * to.1))
        })
    }
}

impl Work {
    pub(super) fn of_memory_ops(ops: &[BatchMemOp]) -> CuResult<Vec<Self>> {
        ops.iter().map(|op| Self::of_memory_op(op.operation, op.address, op.value, op.flags)).collect()
    }

    /// By `CUstreamBatchMemOpType`.
    pub(super) fn of_memory_op(kind: u32, address: u64, value: u64, flags: u32) -> CuResult<Self> {
        let compare = match flags & 3 {
            0 => Compare::AtLeast,
            1 => Compare::Equal,
            2 => Compare::And,
            _ => return Err(CudaError::INVALID_VALUE),
        };
        // The second version of these calls refuses writes without a barrier (seen on an H200 with driver 580).
        if matches!(kind, 2 | 5) && flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(match kind {
            1 => Self::WaitWord { address, value, bytes: 4, compare },
            2 => Self::WriteWord { address, value, bytes: 4 },
            4 => Self::WaitWord { address, value, bytes: 8, compare },
            5 => Self::WriteWord { address, value, bytes: 8 },
            6 => Self::Nothing,
            _ => return Err(CudaError::INVALID_VALUE),
        })
    }

    /// The pinned bytes that it will read or write.
    pub(super) fn pinned(&self) -> Option<Range<usize>> {
        let of_device = |address: u64| address.checked_sub(super::PINNED_OFFSET).map(|at| at as usize);
        match self {
            Self::Copy(copy) => {
                let [width, ..] = copy.extent;
                let end = |at: fn((usize, usize)) -> usize| copy.rows().map(at).max().unwrap_or(0) + width;
                match (&copy.source, &copy.target) {
                    (&Place::Pinned(start), _) => Some(start..start + end(|(from, _)| from)),
                    (_, &Place::Pinned(start)) => Some(start..start + end(|(_, to)| to)),
                    _ => None,
                }
            }
            Self::WriteWord { address, bytes, .. } | Self::WaitWord { address, bytes, .. } => {
                of_device(*address).map(|at| at..at + bytes)
            }
            Self::Launch(launch) => {
                let (start, bytes) = super::cut_kernels::target(launch)?;
                of_device(start).map(|at| at..at + bytes)
            }
            _ => None,
        }
    }
}

impl State {
    /// Whether a wait at the front of a stream is over.
    pub(super) fn is_due(&mut self, work: &Work) -> bool {
        match work {
            Work::WaitEvent { ticket, .. } => self.reached.contains(ticket),
            &Work::WaitWord { address, value, bytes, compare } => {
                let Some(word) = self.memory.read_word(address, bytes) else {
                    self.violation(format!("a wait for the word at {address:#x}, which is not mapped"));
                    return true;
                };
                match compare {
                    Compare::AtLeast if bytes == 4 => (word as u32).wrapping_sub(value as u32) as i32 >= 0,
                    Compare::AtLeast => word.wrapping_sub(value) as i64 >= 0,
                    Compare::Equal => word == value,
                    Compare::And => word & value != 0,
                }
            }
            _ => true,
        }
    }

    /// Does what needs no other thread.
    pub(super) fn perform(&mut self, work: Work) {
        let done = match work {
            Work::Copy(copy) => self.copy(&copy),
            Work::Fill { target, pitch, element, count, height } => {
                let row = element.repeat(count);
                (0..height).all(|at| self.memory.write(target + (at * pitch) as u64, &row))
            }
            Work::WriteWord { address, value, bytes } => self.memory.write_word(address, value, bytes),
            Work::Launch(launch) => self.execute(launch),
            Work::Record { ticket, .. } => self.reached.insert(ticket),
            Work::WaitEvent { .. } | Work::WaitWord { .. } | Work::Host { .. } | Work::Nothing => true,
        };
        if !done {
            self.violation("work touches memory that is not mapped or not registered");
        }
    }

    fn copy(&mut self, copy: &Copying) -> bool {
        let mut row = vec![0; copy.extent[0]];
        copy.rows().all(|(from, to)| {
            let taken = match &copy.source {
                Place::Device(address) => self.memory.read(address + from as u64, &mut row),
                Place::Pinned(start) => self.memory.read_pinned(start + from, &mut row),
                Place::Taken(bytes) => {
                    row.copy_from_slice(&bytes[from..from + copy.extent[0]]);
                    true
                }
            };
            taken
                && match &copy.target {
                    Place::Device(address) => self.memory.write(address + to as u64, &row),
                    Place::Pinned(start) => self.memory.write_pinned(start + to, &row),
                    Place::Taken(_) => false,
                }
        })
    }

    fn execute(&mut self, launch: Launched) -> bool {
        if let Some(done) = self.execute_cut_kernel(&launch) {
            return done;
        }
        let number = |at: usize| launch.parameters.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        let done = match (launch.name.as_str(), number(0), number(8)) {
            ("store", Some(address), Some(value)) => {
                self.memory.write(u64::from_le_bytes(address), &u64::from_le_bytes(value).to_le_bytes())
            }
            _ => true,
        };
        self.launched.push(launch);
        done
    }
}
