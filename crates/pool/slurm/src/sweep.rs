//! Leases against the queue of jobs: which live on, which are given back.
//!
//! The leases are listed before the queue is asked for. A job is in the queue before its lease is made, so a lease on the list
//! whose job is not in the queue has no job.

use crate::directive::PREFIX;
use crate::job::Note;
use pool_api::{Lease, LeaseId};
use std::collections::HashMap;
use thiserror::Error;

/// States in which a job has no process left and gets none again. `squeue` shows such jobs for a while (`MinJobAge`). A state
/// that is not listed here, such as one of a later version of Slurm, is that of a job which needs its GPUs.
const OVER: [&str; 10] = [
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
];

/// What `squeue` printed is not what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("squeue printed `{0}` where a job's number and state belong")]
pub struct QueueError(String);

/// The jobs that Slurm knows, with their states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    states: HashMap<u32, String>,
}

impl Queue {
    /// How `squeue` is asked: all jobs of all partitions in all states, number and state of each. Without `--array` it puts the
    /// waiting tasks of an array on one line with one number, also those that have a number and a lease of their own.
    pub const ARGUMENTS: [&str; 6] = ["--noheader", "--all", "--states=all", "--array", "--format", "%A %T"];

    /// Reads what `squeue` printed. A line that cannot be read makes the whole queue unknown: a job that is overlooked would
    /// lose its GPUs.
    pub fn parse(text: &str) -> Result<Self, QueueError> {
        let mut states = HashMap::new();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let wrong = || QueueError(line.chars().take(80).collect());
            let (number, state) = line.trim().split_once(' ').ok_or_else(wrong)?;
            let is_state = |c: char| c.is_ascii_uppercase() || c == '_';
            let state = state.trim();
            if state.is_empty() || !state.chars().all(is_state) {
                return Err(wrong());
            }
            let number: u32 = number.parse().map_err(|_| wrong())?;
            // Tasks of an array that have no number of their own yet share that of the array: one that lives counts.
            let kept = states.entry(number).or_insert_with(|| state.to_owned());
            if OVER.contains(&kept.as_str()) {
                *kept = state.to_owned();
            }
        }
        Ok(Self { states })
    }

    /// Why a job needs no GPU any more, or `None` while it may.
    fn is_over(&self, number: u32) -> Option<String> {
        match self.states.get(&number) {
            None => Some("Slurm knows no such job".to_owned()),
            Some(state) if OVER.contains(&state.as_str()) => Some(format!("its job is {state}")),
            Some(_) => None,
        }
    }
}

/// What to do with the leases of a cluster's jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Leases that live on.
    pub renew: Vec<LeaseId>,
    /// Leases that are given back, and why.
    pub give_back: Vec<(LeaseId, String)>,
}

/// Decides for every live lease of the cluster. Without a queue nothing is given back, and everything is renewed: jobs run on
/// while slurmctld is away.
pub fn plan(cluster: &str, leases: &[Lease], queue: Option<&Queue>) -> Plan {
    let mut plan = Plan::default();
    for lease in leases.iter().filter(|lease| lease.state.is_live()) {
        let Some(note) = Note::parse(&lease.request.note) else { continue };
        if note.job.cluster() != cluster {
            continue;
        }
        match queue.and_then(|queue| queue.is_over(note.job.number())) {
            Some(why) => plan.give_back.push((lease.id, why)),
            None => plan.renew.push(lease.id),
        }
    }
    plan
}

/// Whether a job asks for GPUs of the pool, by what `scontrol --oneliner show job` says of it.
pub fn asks_for_gpus(shown: &str) -> bool {
    shown.split("BurstBuffer=").skip(1).any(|text| text.trim_start_matches('"').starts_with(PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool_api::{LeaseRequest, LeaseState, Name};

    fn lease(number: u64, note: &str, state: LeaseState) -> Lease {
        Lease {
            id: format!("l-{number:016x}").parse().unwrap(),
            tenant: Name::new("slurm").unwrap(),
            owner: String::new(),
            token: None,
            request: LeaseRequest { note: note.to_owned(), ..LeaseRequest::default() },
            state,
            grants: Vec::new(),
            model: None,
            created_ms: 0,
            granted_ms: None,
            expires_ms: 0,
            ended: None,
            moves: Vec::new(),
            moving: None,
            suspend_wanted: false,
            parking: None,
            version: 0,
        }
    }

    #[test]
    fn leases_of_dead_and_unknown_jobs_are_given_back_and_no_others() {
        use LeaseState::{Ended, Granted, Pending};
        let leases = [
            lease(1, "slurm/c/1 uid 5", Granted),
            lease(2, "slurm/c/2 uid 5", Granted),
            lease(3, "slurm/c/3 uid 5", Pending),
            lease(4, "slurm/c/4 uid 5", Granted),
            lease(5, "slurm/other/5 uid 5", Granted),
            lease(6, "python train.py", Granted),
            lease(7, "slurm/c/7 uid 5", Ended),
        ];
        let queue =
            Queue::parse("1 RUNNING\n2 COMPLETED\n3 PENDING\n8 SOME_LATER_STATE\n 4  CANCELLED\n").unwrap();
        let done = plan("c", &leases, Some(&queue));
        let numbers = |ids: Vec<LeaseId>| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(numbers(done.renew), ["l-0000000000000001", "l-0000000000000003"]);
        let (ids, why): (Vec<_>, Vec<_>) = done.give_back.into_iter().unzip();
        assert_eq!(numbers(ids), ["l-0000000000000002", "l-0000000000000004"]);
        assert_eq!(why, ["its job is COMPLETED", "its job is CANCELLED"]);
        let unknown = plan("c", &leases, Some(&Queue::default()));
        assert_eq!((unknown.renew.len(), unknown.give_back.len()), (0, 4));
        let blind = plan("c", &leases, None);
        assert_eq!((blind.renew.len(), blind.give_back.len()), (4, 0), "no queue, nothing given back");
    }

    #[test]
    fn every_state_in_which_a_job_may_have_processes_keeps_its_lease() {
        for state in [
            "PENDING",
            "CONFIGURING",
            "RUNNING",
            "SUSPENDED",
            "COMPLETING",
            "STAGE_OUT",
            "REQUEUED",
            "STOPPED",
        ] {
            let queue = Queue::parse(&format!("9 {state}\n")).unwrap();
            let done = plan("c", &[lease(9, "slurm/c/9 uid 1", LeaseState::Granted)], Some(&queue));
            assert_eq!((done.renew.len(), done.give_back.len()), (1, 0), "{state}");
        }
    }

    #[test]
    fn every_task_of_an_array_is_asked_for() {
        assert!(Queue::ARGUMENTS.contains(&"--array"), "a task that waits for GPUs would be taken for gone");
    }

    #[test]
    fn one_task_that_lives_keeps_the_number_of_its_array() {
        for text in ["3 CANCELLED\n3 PENDING\n", "3 PENDING\n3 CANCELLED\n"] {
            assert_eq!(Queue::parse(text).unwrap().is_over(3), None, "{text:?}");
        }
    }

    #[test]
    fn a_queue_that_cannot_be_read_is_no_queue() {
        for text in ["slurm_load_jobs error: down\n", "1\n", "1 RUNNING\nx\n", "1_2 RUNNING\n", "1 running\n"]
        {
            assert!(Queue::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(Queue::parse("\n"), Ok(Queue::default()));
    }

    #[test]
    fn a_job_asks_if_its_burst_buffer_says_so() {
        assert!(asks_for_gpus("JobId=7 StdOut=/x BurstBuffer=#DXPU gpus=1 BurstBufferState=staged-in"));
        assert!(!asks_for_gpus("JobId=7 StdOut=/x Power="));
        assert!(!asks_for_gpus("JobId=7 BurstBuffer=#BB_LUA pool=a"));
    }
}
