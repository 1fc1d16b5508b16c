//! Which running instance moves to which GPU.
//!
//! ```text
//!   GPU 1: runs runs        GPU 1: runs
//!   GPU 2:            ──▶   GPU 2: runs
//! ```
//!
//! Only a GPU on which two or more instances run gives one away, and only to a GPU on which none runs. So each move makes the
//! crowd smaller and no other one, and moves come to an end whatever the loads are.

use crate::machine::{InstanceId, SlotId};
use crate::places::{Rules, Slot};

/// A GPU as the decision sees it.
pub(crate) struct Gpu<'a> {
    pub(crate) id: SlotId,
    pub(crate) slot: &'a Slot,
    /// Instances that have an invocation there.
    pub(crate) running: u32,
    /// Since when it has been idle (none runs), alone (one), or crowded (more).
    pub(crate) since_ms: u64,
    /// It takes further instances.
    pub(crate) is_open: bool,
}

/// An instance that has an invocation and whose program can go on elsewhere.
pub(crate) struct Runner<'a> {
    pub(crate) id: InstanceId,
    pub(crate) at: SlotId,
    pub(crate) tenant: &'a str,
    pub(crate) gpu_mb: u32,
    /// When it last moved, or failed to.
    pub(crate) moved_ms: Option<u64>,
}

/// When there is something to balance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// Both GPUs have been as they are for so long.
    pub(crate) after_ms: u64,
    /// An instance does not move again for so long.
    pub(crate) rest_ms: u64,
    pub(crate) rules: Rules,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Nothing,
    Move {
        instance: InstanceId,
        to: SlotId,
    },
    /// One more GPU would help, if the pool has one free.
    Ask {
        tenant: String,
        declared_mb: u32,
    },
}

/// How crowded a GPU is, as far as moves are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowd {
    Idle,
    Alone,
    Crowded,
}

impl Crowd {
    pub(crate) fn of(running: u32) -> Self {
        match running {
            0 => Self::Idle,
            1 => Self::Alone,
            _ => Self::Crowded,
        }
    }
}

/// The next move, if one is due.
pub(crate) fn decide(gpus: &[Gpu<'_>], runners: &[Runner<'_>], policy: Policy, now_ms: u64) -> Decision {
    let is_due = |gpu: &Gpu<'_>| gpu.since_ms.saturating_add(policy.after_ms) <= now_ms;
    let mut sources: Vec<&Gpu<'_>> =
        gpus.iter().filter(|gpu| Crowd::of(gpu.running) == Crowd::Crowded && is_due(gpu)).collect();
    sources.sort_by_key(|gpu| (u32::MAX - gpu.running, gpu.id));
    let mut wish = Decision::Nothing;
    for source in sources {
        let has_rested = |runner: &&Runner<'_>| {
            runner.moved_ms.is_none_or(|at| at.saturating_add(policy.rest_ms) <= now_ms)
        };
        let mut may_go: Vec<&Runner<'_>> =
            runners.iter().filter(|runner| runner.at == source.id).filter(has_rested).collect();
        // The smallest first: its bytes are there soonest.
        may_go.sort_by_key(|runner| (runner.gpu_mb, runner.id));
        for runner in may_go {
            let mut targets: Vec<&Gpu<'_>> =
                gpus.iter().filter(|gpu| takes(gpu, runner, policy.rules)).collect();
            targets.sort_by_key(|gpu| (gpu.slot.total_mb - gpu.slot.used_mb, gpu.id));
            match targets.iter().find(|gpu| is_due(gpu)) {
                Some(target) => return Decision::Move { instance: runner.id, to: target.id },
                // One that has only just become idle may be given work again at once: it is waited for.
                None if !targets.is_empty() => {}
                None if wish == Decision::Nothing => {
                    wish = Decision::Ask { tenant: runner.tenant.to_owned(), declared_mb: runner.gpu_mb };
                }
                None => {}
            }
        }
    }
    let waits = gpus.iter().any(|gpu| {
        gpu.is_open && gpu.running == 0 && runners.iter().any(|runner| takes(gpu, runner, policy.rules))
    });
    if waits { Decision::Nothing } else { wish }
}

/// Whether none runs on this GPU and it has room for the instance: its declared memory and one more of the sharing factor.
fn takes(gpu: &Gpu<'_>, runner: &Runner<'_>, rules: Rules) -> bool {
    gpu.is_open
        && gpu.running == 0
        && gpu.id != runner.at
        && rules.admits(gpu.slot, runner.tenant)
        && rules.fits(gpu.slot, gpu.slot.used, gpu.slot.used_mb, runner.gpu_mb)
}

#[cfg(test)]
mod tests;
