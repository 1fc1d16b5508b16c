//! Slurm's own programs.

use anyhow::{Context, bail};
use std::process::{Command, Stdio};

/// A controller that is busy answers late; one that is gone never does. In seconds, for `timeout`.
const ANSWER_WITHIN_SECONDS: &str = "20";

/// Runs a program of Slurm and gives what it printed.
pub(super) fn asked(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    // slurmctld may be away, and Slurm's programs try for minutes.
    let output = Command::new("timeout")
        .args([ANSWER_WITHIN_SECONDS, program])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} failed ({}): {}", output.status, said.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{program} printed something that is no text"))
}

/// Writes words about dxpu into the job, for people. The job goes on without them, so a failure is told and no more.
pub(super) fn note_in_job(number: u32, words: &str) {
    let arguments = ["update", &format!("JobId={number}"), &format!("AdminComment={words}")];
    if let Err(error) = asked("scontrol", &arguments) {
        errln!("dxpu: job {number} keeps no note of its lease: {error:#}");
    }
}
