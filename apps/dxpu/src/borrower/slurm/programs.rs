//! Slurm's own programs.

use anyhow::{Context, bail};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A controller that is busy answers late; one that is gone never does. In seconds, for `timeout`.
const ANSWER_WITHIN_SECONDS: &str = "20";

/// A controller that is busy or restarts does not answer this often before a job is told so.
const TRIES: usize = 3;
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// As `asked`, again if it fails.
pub(super) fn asked_at_last(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    for _ in 1..TRIES {
        match asked(program, arguments) {
            Ok(answer) => return Ok(answer),
            Err(error) => errln!("dxpu: asking again: {error:#}"),
        }
        std::thread::sleep(TRY_AGAIN_AFTER);
    }
    asked(program, arguments)
}

/// Runs a program of Slurm and gives what it printed. It prints times as seconds since 1970.
pub(super) fn asked(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    // slurmctld may be away, and Slurm's programs try for minutes.
    let output = Command::new("timeout")
        .args([ANSWER_WITHIN_SECONDS, program])
        .args(arguments)
        .env("SLURM_TIME_FORMAT", "%s")
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
