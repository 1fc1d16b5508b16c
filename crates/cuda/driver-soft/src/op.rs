//! Work as the program asked for it, kept beyond the frame it came in.

use crate::{line::Record, module::LoadedKernel};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::SharedPages;
use cuda_wire::{
    EventId, HostData, KernelRef, LaunchAttribute, MemoryOp, Op, Plane, RegionId, Shape, SharedPlane,
    TransferId, condition,
};
use std::sync::Arc;

/// Where the bytes of a copy from the host come from.
#[derive(Clone, Debug)]
pub(crate) enum Incoming {
    /// They are here.
    Inline(Arc<[u8]>),
    /// They come through the link.
    Lane {
        transfer: TransferId,
        /// Whether to ask for them.
        pull: bool,
    },
}

/// A launch with everything but its place in time.
#[derive(Clone, Debug)]
pub(crate) struct KernelLaunch {
    pub(crate) kernel: Arc<LoadedKernel>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) cooperative: bool,
    pub(crate) parameters: Arc<[u8]>,
    /// An event that the launch itself records.
    pub(crate) records: Option<EventId>,
}

/// One piece of work, as in [`cuda_wire::Op`] but owned and with its kernel found.
#[derive(Clone, Debug)]
pub(crate) enum OwnedOp {
    Empty,
    Launch(Box<KernelLaunch>),
    Fill {
        target: Plane,
        shape: Shape,
        element_bytes: u8,
        value: u32,
    },
    CopyDevice {
        target: Plane,
        source: Plane,
        shape: Shape,
    },
    CopyIn {
        target: Plane,
        shape: Shape,
        data: Incoming,
    },
    CopyOut {
        source: Plane,
        shape: Shape,
        transfer: TransferId,
    },
    HostCall {
        token: u64,
    },
    Record {
        event: EventId,
    },
    Wait {
        event: EventId,
    },
    Allocate {
        address: u64,
        bytes: u64,
    },
    Free {
        address: u64,
    },
    MemoryOps {
        ops: Vec<MemoryOp>,
    },
    CopyShared(SharedCopy),
    /// In graphs alone.
    Conditional {
        handle: u64,
        kind: u32,
        first: Option<u32>,
        bodies: Vec<u32>,
    },
}

/// A copy between the device and memory of the program's. It keeps that memory mapped until it is done.
#[derive(Clone, Debug)]
pub(crate) struct SharedCopy {
    pub(crate) device: Plane,
    pub(crate) host: SharedPlane,
    pub(crate) shape: Shape,
    pub(crate) pages: Arc<SharedPages>,
    pub(crate) is_in: bool,
}

impl SharedCopy {
    /// Fails where the copy is empty or leaves the memory.
    fn checked(self) -> CuResult<Self> {
        let end = self.host.end(&self.shape).filter(|end| *end <= self.pages.bytes() as u64);
        self.shape.bytes().zip(end).map(|_| self).ok_or(CudaError::INVALID_VALUE)
    }
}

/// `CUstreamBatchMemOpType`.
pub(crate) mod memory_op {
    pub(crate) const WAIT_32: u32 = 1;
    pub(crate) const WRITE_32: u32 = 2;
    pub(crate) const FLUSH_REMOTE_WRITES: u32 = 3;
    pub(crate) const WAIT_64: u32 = 4;
    pub(crate) const WRITE_64: u32 = 5;
    pub(crate) const BARRIER: u32 = 6;
}

impl OwnedOp {
    /// Keeps `op`, with its kernel found by `find` and its launch checked, or with its shared memory found by `shared`.
    pub(crate) fn new(
        op: Op<'_>,
        find: impl FnOnce(KernelRef) -> CuResult<Arc<LoadedKernel>>,
        shared: impl Fn(RegionId) -> CuResult<Arc<SharedPages>>,
    ) -> CuResult<Self> {
        Ok(match op {
            Op::Empty {} => Self::Empty,
            Op::Launch { kernel, grid, block, shared_bytes, cooperative, attributes, parameters } => {
                let mut launch = KernelLaunch {
                    kernel: find(kernel)?,
                    grid,
                    block,
                    shared_bytes,
                    cooperative,
                    parameters: parameters.0.into(),
                    records: None,
                };
                launch.apply(&attributes)?;
                launch.check()?;
                Self::Launch(Box::new(launch))
            }
            Op::Fill { target, shape, element_bytes, value } => {
                let aligned = [target.address, target.row_pitch, target.slice_pitch, shape.width]
                    .iter()
                    .all(|value| value.is_multiple_of(element_bytes.max(1).into()));
                if !matches!(element_bytes, 1 | 2 | 4) || !aligned {
                    return Err(CudaError::INVALID_VALUE);
                }
                Self::Fill { target, shape, element_bytes, value }
            }
            Op::CopyDevice { target, source, shape } => Self::CopyDevice { target, source, shape },
            Op::CopyIn { target, shape, data } => {
                let bytes = shape.bytes().ok_or(CudaError::INVALID_VALUE)?;
                let data = match data {
                    HostData::Inline { bytes: inline } if inline.0.len() as u64 == bytes => {
                        Incoming::Inline(inline.0.into())
                    }
                    HostData::Inline { .. } => return Err(CudaError::INVALID_VALUE),
                    HostData::Pushed { transfer } => Incoming::Lane { transfer, pull: false },
                    HostData::Pulled { transfer } => Incoming::Lane { transfer, pull: true },
                };
                Self::CopyIn { target, shape, data }
            }
            Op::CopyOut { source, shape, transfer } => {
                shape.bytes().ok_or(CudaError::INVALID_VALUE)?;
                Self::CopyOut { source, shape, transfer }
            }
            Op::HostCall { token } => Self::HostCall { token },
            Op::Record { event, .. } => Self::Record { event },
            Op::Wait { event, .. } => Self::Wait { event },
            Op::Allocate { address, bytes } => Self::Allocate { address, bytes },
            Op::Free { address } => Self::Free { address },
            Op::Conditional { handle, kind, first, bodies } => {
                check_bodies(kind, bodies.len())?;
                Self::Conditional { handle, kind, first, bodies }
            }
            Op::MemoryOps { ops } => {
                ops.iter().try_for_each(check_memory_op)?;
                Self::MemoryOps { ops }
            }
            Op::CopyInShared { target: device, source: host, shape } => {
                let pages = shared(host.region)?;
                Self::CopyShared(SharedCopy { device, host, shape, pages, is_in: true }.checked()?)
            }
            Op::CopyOutShared { source: device, target: host, shape } => {
                let pages = shared(host.region)?;
                Self::CopyShared(SharedCopy { device, host, shape, pages, is_in: false }.checked()?)
            }
        })
    }

    /// The same work in launch number `run` of a graph: what travels to the host has a name of its own.
    pub(crate) fn in_run(&self, run: u32) -> Self {
        match self {
            &Self::CopyOut { source, shape, transfer } => {
                Self::CopyOut { source, shape, transfer: cuda_wire::transfer_of_run(transfer, run) }
            }
            other => other.clone(),
        }
    }

    /// Whether a graph's node may be replaced by this one: the same kind of work.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Conditional { handle, bodies, .. },
                Self::Conditional { handle: other, bodies: others, .. },
            ) => handle == other && bodies == others,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

fn check_bodies(kind: u32, bodies: usize) -> CuResult<()> {
    let is_good = match kind {
        condition::IF => matches!(bodies, 1 | 2),
        condition::WHILE => bodies == 1,
        condition::SWITCH => bodies != 0,
        _ => false,
    };
    if is_good { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}

fn check_memory_op(op: &MemoryOp) -> CuResult<()> {
    use memory_op::*;
    /// `CU_STREAM_WAIT_VALUE_FLUSH`: flush remote writes afterwards; there are none.
    const WAIT_FLUSH: u32 = 1 << 30;
    /// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`.
    const WRITE_NO_BARRIER: u32 = 1;
    let is_good = match op.kind {
        WAIT_32 => op.address.is_multiple_of(4) && op.flags & !WAIT_FLUSH <= 3,
        WAIT_64 => op.address.is_multiple_of(8) && op.flags & !WAIT_FLUSH <= 3,
        WRITE_32 => op.address.is_multiple_of(4) && op.flags & !WRITE_NO_BARRIER == 0,
        WRITE_64 => op.address.is_multiple_of(8) && op.flags & !WRITE_NO_BARRIER == 0,
        FLUSH_REMOTE_WRITES | BARRIER => true,
        _ => return Err(CudaError::NOT_SUPPORTED),
    };
    if is_good { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}

/// `CUlaunchAttributeID`s that change nothing here, each with the reason.
const HARMLESS: &[u32] = &[
    0,  // ignore
    1,  // access policy window: a hint for the L2 cache
    3,  // synchronization policy: how the host waits
    5,  // cluster scheduling policy: clusters of one block
    6,  // programmatic stream serialization: a later start is allowed, and the only one here
    8,  // priority: streams have one
    9,  // memory synchronization domain map
    10, // memory synchronization domain: everything is one
    11, // preferred cluster dimension: a preference
    14, // preferred shared memory carveout: a hint
    16, // NVLink-centric scheduling: a hint
];
const ATTRIBUTE_COOPERATIVE: u32 = 2;
const ATTRIBUTE_CLUSTER_DIMENSION: u32 = 4;
const ATTRIBUTE_PROGRAMMATIC_EVENT: u32 = 7;
const ATTRIBUTE_LAUNCH_COMPLETION_EVENT: u32 = 12;

impl KernelLaunch {
    fn apply(&mut self, attributes: &[LaunchAttribute]) -> CuResult<()> {
        for attribute in attributes {
            let word = |index: usize| {
                let bytes = attribute.value[index * 4..index * 4 + 4].try_into().expect("four bytes");
                u32::from_le_bytes(bytes)
            };
            match attribute.id {
                ATTRIBUTE_COOPERATIVE => self.cooperative |= word(0) != 0,
                ATTRIBUTE_CLUSTER_DIMENSION if [word(0), word(1), word(2)].iter().all(|&size| size <= 1) => {}
                ATTRIBUTE_CLUSTER_DIMENSION => return Err(CudaError::NOT_SUPPORTED),
                // Both may be recorded as early as the kernel's middle, and as late as its end.
                ATTRIBUTE_PROGRAMMATIC_EVENT | ATTRIBUTE_LAUNCH_COMPLETION_EVENT => {
                    self.records = Some(EventId(word(0)));
                }
                id if HARMLESS.contains(&id) => {}
                id => {
                    tracing::warn!(attribute = id, "launch attribute refused");
                    return Err(CudaError::NOT_SUPPORTED);
                }
            }
        }
        Ok(())
    }
}

/// An event as the session keeps it.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: Arc<crate::context::Context>,
    pub(crate) has_timing: bool,
    /// Its latest record.
    pub(crate) latest: Option<Arc<Record>>,
    /// What other sessions know of it.
    pub(crate) shared: Option<Arc<crate::shared_event::SharedEvent>>,
}

impl Event {
    /// Its latest record, whichever session made it.
    pub(crate) fn current(&self) -> Option<Arc<Record>> {
        let Some(shared) = &self.shared else { return self.latest.clone() };
        match (shared.latest(), &self.latest) {
            (0, _) => None,
            (number, Some(ours)) if ours.is_numbered(number) => Some(ours.clone()),
            (number, _) => Some(Record::of_another(&self.context, shared.clone(), number)),
        }
    }
}
