//! A job of a cluster, and how its leases are named.
//!
//! ```text
//! slurm-CLUSTER-JOB-ATTEMPT     the idempotency key: the same attempt of the same job makes one lease
//! slurm/CLUSTER/JOB uid UID     the lease's note, by which it is found again
//! ```

use std::fmt;
use thiserror::Error;

/// A key has at most 128 characters; this leaves room for the rest of it. Slurm itself allows 40.
const CLUSTER_CHARS_MAX: usize = 64;

/// A name that cannot be a job's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    /// The cluster's name.
    #[error(
        "`{0}` is no name of a cluster: write 1 to {CLUSTER_CHARS_MAX} letters, digits, dots, dashes or underscores"
    )]
    Cluster(String),
    /// Slurm counts jobs from 1.
    #[error("0 is no number of a job; Slurm counts them from 1")]
    Zero,
}

/// A job of a cluster. A task of an array has a number of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job {
    cluster: String,
    number: u32,
}

impl Job {
    /// This job of this cluster.
    pub fn new(cluster: &str, number: u32) -> Result<Self, JobError> {
        let is_good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if cluster.is_empty() || cluster.len() > CLUSTER_CHARS_MAX || !cluster.chars().all(is_good) {
            return Err(JobError::Cluster(cluster.to_owned()));
        }
        if number == 0 {
            return Err(JobError::Zero);
        }
        Ok(Self { cluster: cluster.to_owned(), number })
    }

    /// Its number (`SLURM_JOB_ID`).
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The idempotency key of an attempt to get a lease. A job that is requeued needs another lease, so it counts on.
    pub fn key(&self, attempt: u32) -> String {
        format!("slurm-{}-{}-{attempt}", self.cluster, self.number)
    }
}

/// The note of a job's lease: whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The job.
    pub job: Job,
    /// The user that submitted it.
    pub uid: u32,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slurm/{}/{} uid {}", self.job.cluster, self.job.number, self.uid)
    }
}

impl Note {
    /// Reads a note; `None` if it is not that of a job's lease.
    pub fn parse(text: &str) -> Option<Self> {
        let (job, uid) = text.strip_prefix("slurm/")?.split_once(" uid ")?;
        let (cluster, number) = job.split_once('/')?;
        let note = Self { job: Job::new(cluster, number.parse().ok()?).ok()?, uid: uid.parse().ok()? };
        // One spelling alone: `+1` and `01` are numbers, but not as a note writes them.
        (note.to_string() == text).then_some(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_jobs_and_attempts_apart() {
        let job = |cluster: &str, number| Job::new(cluster, number).unwrap();
        let keys = [job("a", 1).key(0), job("a", 1).key(1), job("a", 11).key(0), job("a-1", 1).key(0)];
        assert_eq!(keys[0], "slurm-a-1-0");
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{key} is used twice");
        }
        let longest = Job::new(&"c".repeat(CLUSTER_CHARS_MAX), u32::MAX).unwrap().key(u32::MAX);
        assert!(longest.len() <= 128, "the manager takes no key of {} characters", longest.len());
    }

    #[test]
    fn a_note_is_read_as_it_was_written_and_no_other() {
        let note = Note { job: Job::new("c1", 17).unwrap(), uid: 1000 };
        assert_eq!(note.to_string(), "slurm/c1/17 uid 1000");
        assert_eq!(Note::parse("slurm/c1/17 uid 1000"), Some(note));
        for other in [
            "",
            "train.py",
            "slurm/c1/17",
            "slurm/c1/0 uid 1",
            "slurm/c1/017 uid 1",
            "slurm/c1/17 uid +1",
            "slurm/c/1/17 uid 1",
            "slurm/c1/17 uid 1 ",
        ] {
            assert_eq!(Note::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn names_that_no_cluster_has_are_refused() {
        for name in ["", "a b", "a/b", "ä", &"c".repeat(65)] {
            assert!(Job::new(name, 1).is_err(), "{name:?}");
        }
        assert_eq!(Job::new("a", 0), Err(JobError::Zero));
    }
}
