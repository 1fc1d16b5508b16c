//! When a job that ran before may start again: not before its nodes have forgotten that run.
//!
//! ```text
//!   run 1 ends ──▶ slurmd keeps run 1's credential for cred_expire s ──────▶ forgets it at its next look, at most 2 s later
//!   requeued: SubmitTime ≥ that end              StartTime=now ▼            ▼ cred_expire + 1 s later, when Slurm itself starts it
//!                                               [Prolog may be skipped ………………]  safe
//! ```
//!
//! slurmd runs no Prolog for a job whose credential it keeps. The credential of the new run should replace the old one at once, but
//! slurmd 22.05 looks through its list once in two seconds at most: when another job or step began or ended on the node just before,
//! the old one stays, Prolog is skipped, and the new run finds no tokens. After `cred_expire` and the two seconds it cannot be.

use std::time::Duration;

/// What slurmd takes where slurm.conf says nothing, or less than 5 s.
const CREDENTIAL_EXPIRES_AFTER: u64 = 120;
/// Two seconds between two looks of slurmd, and two because all these times are whole seconds of several clocks.
const FORGOTTEN_AFTER: u64 = 4;

/// How `squeue` is asked for a job, with `SLURM_TIME_FORMAT=%s` in its environment.
pub fn restart_question(job: u32) -> [String; 8] {
    let words = ["--noheader", "--all", "--array", "--states=all", "--jobs"];
    let format = "JobID:12,RestartCnt:12,SubmitTime:24";
    let [a, b, c, d, e] = words.map(str::to_owned);
    [a, b, c, d, e, job.to_string(), "--Format".to_owned(), format.to_owned()]
}

/// When Slurm requeued a job, in seconds since 1970; `None` if it never ran. `answer` is that of `restart_question`. Slurm counts the
/// requeue as a submission.
pub fn requeued_at(job: u32, answer: &str) -> Option<u64> {
    answer.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let mut number = || words.next()?.parse::<u64>().ok();
        let (id, restarts, submitted) = (number()?, number()?, number()?);
        (id == u64::from(job) && restarts > 0).then_some(submitted)
    })
}

/// How long the start of a job that was requeued must wait. `config` is what `scontrol show config` prints, `now` seconds since 1970 by
/// the controller's clock.
pub fn pause_before_start(requeued: u64, config: &str, now: u64) -> Duration {
    let kept = credential_expires_after(config) + FORGOTTEN_AFTER;
    // A clock that was set back must not stop a job for longer than a requeue that has just been.
    Duration::from_secs((requeued + kept).saturating_sub(now).min(kept))
}

/// `cred_expire` of `AuthInfo`.
fn credential_expires_after(config: &str) -> u64 {
    let line = config.lines().find(|line| line.trim_start().starts_with("AuthInfo "));
    let value = line.and_then(|line| line.split_once("cred_expire="));
    let digits = value.map(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default());
    digits
        .and_then(|digits| digits.parse().ok())
        .filter(|seconds| *seconds >= 5)
        .unwrap_or(CREDENTIAL_EXPIRES_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "AuthAltTypes            = (null)\nAuthInfo                = socket=/s,cred_expire=10\nAuthType = munge\n";

    fn seconds(answer: &str, config: &str, now: u64) -> u64 {
        requeued_at(7, answer).map_or(0, |requeued| pause_before_start(requeued, config, now).as_secs())
    }

    #[test]
    fn a_job_that_ran_before_waits_until_its_nodes_have_forgotten_it() {
        let answer = "7           2           1700000000              \n";
        assert_eq!(seconds(answer, CONFIG, 1_700_000_000), 14);
        assert_eq!(seconds(answer, CONFIG, 1_700_000_011), 3, "when Slurm starts it by itself");
        assert_eq!(seconds(answer, CONFIG, 1_700_000_014), 0);
        assert_eq!(seconds(answer, CONFIG, 1_700_009_999), 0);
        assert_eq!(seconds(answer, CONFIG, 1_600_000_000), 14, "the clock was set back");
        assert_eq!(seconds(answer, "AuthInfo                = (null)\n", 1_700_000_000), 124);
        assert_eq!(seconds(answer, "AuthInfo = cred_expire=3\n", 1_700_000_000), 124, "as slurmd takes it");
    }

    #[test]
    fn a_job_that_never_ran_does_not_wait() {
        for answer in [
            "7 0 1700000000\n",
            "",
            "8 3 1700000000\n",
            "slurm_load_jobs error\n",
            "7 1 2026-11-19T04:00:00\n",
        ] {
            assert_eq!(seconds(answer, CONFIG, 1_700_000_000), 0, "{answer:?}");
        }
    }

    #[test]
    fn the_first_task_of_an_array_has_the_number_of_the_array() {
        // squeue answers with all tasks then.
        let answer = "9           0           1700000000\n7           1           1700000005\n8           1           1700000300\n";
        assert_eq!(seconds(answer, CONFIG, 1_700_000_009), 10);
    }
}
