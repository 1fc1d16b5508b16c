//! What a request asks for.

use crate::{GPU_MILLI, ModelFilter};

/// How many GPUs, or how much of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuNeed {
    /// None: processors and memory alone.
    None,
    /// So many thousandths of one GPU, which others may share; less than a whole one.
    Share(u16),
    /// So many whole GPUs of one box; at least one.
    Whole(u8),
}

impl GpuNeed {
    /// How many slots it takes.
    pub fn slots(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Share(_) => 1,
            Self::Whole(count) => u32::from(count),
        }
    }

    /// Thousandths it takes of each of its slots.
    pub fn slot_milli(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Share(milli) => u32::from(milli),
            Self::Whole(_) => GPU_MILLI,
        }
    }

    /// Thousandths it takes in all.
    pub fn total_milli(self) -> u32 {
        self.slots() * self.slot_milli()
    }
}

/// Everything about a request that scores depend on; requests of one shape are scored alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Thousandths of a processor, of the box itself. Zero where hosts bring their own.
    pub cpu_milli: u32,
    /// GPUs.
    pub gpus: GpuNeed,
    /// Which models will do.
    pub models: ModelFilter,
}

/// What a request asks for: a shape, and memory that a box must have but that no score looks at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What scores look at.
    pub shape: Shape,
    /// Memory of the box itself. Zero where hosts bring their own.
    pub memory_mib: u64,
}

impl Request {
    /// Only GPUs, as hosts ask a pool.
    pub fn gpus(gpus: GpuNeed, models: ModelFilter) -> Self {
        Self { shape: Shape { cpu_milli: 0, gpus, models }, memory_mib: 0 }
    }
}
