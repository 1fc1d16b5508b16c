//! What does not depend on the plane: the GPU's own habits, and the program's.

use super::engine::replay;
use super::plane::Plane;
use crate::profile::{Action, Profile};

/// Constants of a machine with a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// From the issue of an operation to its start on an idle GPU.
    pub start_us: f64,
    /// Between the end of an operation and the start of the next that was already queued.
    pub gap_us: f64,
    /// From the end of work on the GPU to the return of the call that waits for it on the same machine.
    pub wait_return_us: f64,
    /// Operations that a GPU's queue holds; the issuer of the next one waits.
    pub queue_depth: usize,
}

impl Default for Machine {
    /// An H200's driver, roughly; [`calibrate`] sets the gap from the profile itself.
    fn default() -> Self {
        Self { start_us: 3.0, gap_us: 0.0, wait_return_us: 4.0, queue_depth: 1024 }
    }
}

/// A call that took more than this many medians was held up by a full queue, which the replay works out itself.
const BLOCKED_MEDIANS: f64 = 4.0;

/// What asynchronous calls cost this program on its own machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Habits {
    /// Median duration of a launch, memset or event call.
    pub call_us: f64,
    /// Mean duration of a launch on the GPU.
    pub mean_kernel_us: f64,
}

impl Habits {
    /// The part of an asynchronous call that was not a wait for room in the queue.
    pub fn own_part_us(&self, call_us: f64) -> f64 {
        call_us.min(BLOCKED_MEDIANS * self.call_us)
    }
}

/// A program's habits.
pub fn habits(profile: &Profile) -> Habits {
    let mut calls: Vec<f64> = Vec::new();
    let (mut launches, mut kernel_us) = (0u32, 0.0);
    for record in &profile.records {
        match record.action {
            Action::Launch { gpu_us, .. } => {
                launches += 1;
                kernel_us += gpu_us;
                calls.push(record.call_us);
            }
            Action::Memset { .. } | Action::RecordEvent { .. } | Action::StreamWait { .. } => {
                calls.push(record.call_us);
            }
            _ => {}
        }
    }
    calls.sort_by(f64::total_cmp);
    let call_us = calls.get(calls.len() / 2).copied().unwrap_or(0.0);
    Habits { call_us, mean_kernel_us: kernel_us / f64::from(launches.max(1)) }
}

/// No GPU lets more time than this pass between operations that are queued.
const GAP_US_MAX: f64 = 20.0;
/// Halvings of that range: enough for a nanosecond.
const HALVINGS: usize = 15;

/// The machine on which the native replay of `profile` lasts as long as the recording did.
///
/// A recording has durations on the GPU but not the pauses between them, so the pause is what the recording leaves over. Where the
/// GPU mostly waits for the program no pause makes a difference, and the replay's own error stays: compare the two times.
pub fn calibrate(profile: &Profile, machine: Machine) -> Machine {
    let habits = habits(profile);
    let lasts =
        |gap_us: f64| replay(profile, &habits, &Machine { gap_us, ..machine }, &Plane::Native).wall_us;
    if lasts(0.0) >= profile.wall_us {
        return Machine { gap_us: 0.0, ..machine };
    }
    let (mut short, mut long) = (0.0, GAP_US_MAX);
    if lasts(long) < profile.wall_us {
        return Machine { gap_us: 0.0, ..machine };
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(short, long);
        if lasts(middle) < profile.wall_us { short = middle } else { long = middle }
    }
    Machine { gap_us: f64::midpoint(short, long), ..machine }
}
