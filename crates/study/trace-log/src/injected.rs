//! What `dxpu inject` added to a program.

use crate::entry::Kind;
use crate::log::Log;

/// What was delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Kernels and graphs.
    Launches = 0,
    /// Fills.
    Memsets = 1,
    /// Copies to the device.
    Uploads = 2,
    /// Copies to the host.
    Downloads = 3,
}

impl Class {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Launches, Self::Memsets, Self::Uploads, Self::Downloads];

    /// As people say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Launches => "kernels and graphs",
            Self::Memsets => "memsets",
            Self::Uploads => "copies to the device",
            Self::Downloads => "copies to the host",
        }
    }
}

/// What one class of operations was given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// Operations that were delayed.
    pub operations: u64,
    /// What they were to be delayed by, together.
    pub asked_us: f64,
    /// What the filler kernels took, together, as they measured it themselves, with what a kernel costs a busy queue besides.
    pub spent_us: f64,
}

/// Everything that was added.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Injected {
    /// By [`Class`].
    pub shares: [Share; 4],
    /// What a filler costs a busy queue besides its length.
    pub filler_gpu_us: f64,
    /// What it costs the calling thread.
    pub filler_host_us: f64,
}

/// Reads it from a log; a process with several contexts has several parts, which are added up.
pub fn injected(log: &Log) -> Injected {
    let mut injected = Injected::default();
    for line in &log.lines {
        let entry = &line.entry;
        match line.kind {
            Kind::Injected => {
                if let Some(share) = injected.shares.get_mut(entry.count as usize) {
                    share.operations += entry.object;
                    share.asked_us += entry.bytes as f64 / 1e3;
                    share.spent_us += entry.extra as f64 / 1e3;
                }
            }
            Kind::Filler => {
                injected.filler_gpu_us = entry.bytes as f64 / 1e3;
                injected.filler_host_us = entry.extra as f64 / 1e3;
            }
            _ => {}
        }
    }
    injected
}
