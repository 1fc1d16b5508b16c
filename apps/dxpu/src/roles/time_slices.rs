//! `dxpu time-slices`: measures whether the GPU heeds time slices. Started by a worker; it takes about two seconds.
//!
//! It is a process of its own because the front of a worker never loads the driver, and because a driver that hangs can be left
//! behind.

use crate::support::exit::{Exit, Outcome};
use crate::support::log;
use driver_nvidia::Trial;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

#[derive(clap::Args)]
pub(crate) struct TimeSlices {
    /// Keep the GPU busy until standard input ends
    #[arg(long)]
    bear: bool,
}

/// What was measured, as this role prints it and a worker keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Whether the device heeds slices.
    pub(crate) heeds: bool,
    before_us: f64,
    after_us: f64,
    groups: usize,
    /// How often it was measured until it was this.
    #[serde(default)]
    pub(crate) trials: u32,
}

impl From<Trial> for Measured {
    fn from(trial: Trial) -> Self {
        let Trial { before_us, after_us, groups } = trial;
        Self { heeds: trial.is_heeded(), before_us, after_us, groups, trials: 1 }
    }
}

impl TimeSlices {
    pub(crate) fn run(self) -> Outcome {
        log::start("warn");
        // Nothing of it is worth anything without the process that asked.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        if self.bear {
            driver_nvidia::bear()?;
            return Ok(Exit::Success);
        }
        let trial = driver_nvidia::run_trial(machine::this_program().args(["time-slices", "--bear"]))?;
        outln!("{}", serde_json::to_string(&Measured::from(trial))?);
        Ok(Exit::Success)
    }
}
