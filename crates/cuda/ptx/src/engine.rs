//! Runs decoded kernels: warps of 32 lanes in lockstep, blocks that can be set aside, host threads that share them.

mod access;
mod arith;
mod block;
mod call;
mod exchange;
mod fault;
mod mbarrier;
mod printf;
mod run;
mod sample;
mod step;
mod warp;

pub use fault::{Fault, FaultKind, LaunchError};
pub use run::{Launch, Run, Stats};
