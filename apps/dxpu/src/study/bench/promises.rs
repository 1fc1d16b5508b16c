//! The counts that SPECIFICATION.md promises. They do not depend on the machine's speed or load, so a run can judge them.

use super::missing;
use crate::support::exit::{Exit, Failure};
use std::collections::HashMap;

/// A count of instructions on the calling thread, and the most it may be.
struct Promise {
    /// As the benchmark program reports it.
    figure: &'static str,
    words: &'static str,
    most: f64,
}

/// The figure of a launch that a program with `--survive` makes, which the benchmark program calls like any other.
pub(super) const JOURNALED: &str = "journaled_launch_instructions";

/// Launches through threads that poll, as on a machine with many cores.
pub(super) const OVER_TCP: &str = "tcp_launch_instructions";
pub(super) const OVER_SHM: &str = "shm_launch_instructions";

const PROMISES: [Promise; 6] = [
    Promise { figure: "query_instructions", words: "a state query", most: 80.0 },
    Promise { figure: "launch_instructions", words: "a launch with 8 parameters", most: 1500.0 },
    Promise { figure: JOURNALED, words: "the same with --survive", most: 1800.0 },
    Promise { figure: OVER_TCP, words: "a launch over TCP, polling", most: 1500.0 },
    Promise { figure: OVER_SHM, words: "the same over shared memory", most: 1500.0 },
    Promise { figure: "allocation_instructions", words: "a block of a pool and back", most: 2500.0 },
];

/// Prints each count beside its promise; an error when one is missed.
pub(super) fn check(calls: &HashMap<String, f64>) -> anyhow::Result<()> {
    outln!("instructions on the calling thread   counted   promised");
    let mut missed = Vec::new();
    for Promise { figure, words, most } in &PROMISES {
        let counted = *calls.get(*figure).ok_or_else(|| missing(figure))?;
        outln!("  {words:<33} {counted:>9.0}   {most:>8.0}");
        if counted > *most {
            missed.push(*words);
        }
    }
    if missed.is_empty() {
        return Ok(());
    }
    let what = format!("more instructions than promised: {}", missed.join(", "));
    let hint =
        "find the change that added them with `valgrind --tool=callgrind`; SPECIFICATION.md has the promises";
    Err(Failure::new(Exit::Failure, what, hint).into())
}
