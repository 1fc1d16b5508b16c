//! GPU seconds of a job: GPUs, times the time from the first grant to the end, as the pool itself counts for a tenant.

use crate::job::Note;
use pool_api::Lease;

/// GPU seconds of a lease that is over, in thousandths; nothing if it never had a GPU.
pub fn gpu_seconds(lease: &Lease) -> Option<Thousandths> {
    let ended_ms = lease.ended.as_ref()?.at_ms;
    let held_ms = lease.granted_ms.map_or(0, |granted_ms| ended_ms.saturating_sub(granted_ms));
    Some(Thousandths(held_ms.saturating_mul(u64::from(lease.request.gpus))))
}

/// Prints as seconds with three digits behind the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thousandths(u64);

impl std::fmt::Display for Thousandths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// What Slurm keeps of a lease in its job (`AdminComment`): words without spaces in their values.
pub fn admin_comment(lease: &Lease) -> String {
    let mut words =
        vec!["dxpu".to_owned(), format!("lease={}", lease.id), format!("gpus={}", lease.request.gpus)];
    if let Some(model) = &lease.model {
        words.push(format!("model={}", model.as_str().replace(' ', "_")));
    }
    if let Some(seconds) = gpu_seconds(lease) {
        words.push(format!("gpu_seconds={seconds}"));
    }
    words.join(" ")
}

/// A line of the usage file.
pub fn usage_line(note: &Note, lease: &Lease) -> String {
    let ended_ms = lease.ended.as_ref().map_or(0, |ended| ended.at_ms);
    format!(
        "cluster={} job={} uid={} granted_ms={} ended_ms={ended_ms} {}\n",
        note.job.cluster(),
        note.job.number(),
        note.uid,
        lease.granted_ms.unwrap_or(0),
        admin_comment(lease).trim_start_matches("dxpu "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;
    use pool_api::{Ended, LeaseRequest, LeaseState, Model, Name};

    fn lease(granted_ms: Option<u64>, ended_ms: Option<u64>) -> Lease {
        Lease {
            id: "l-00000000000000aa".parse().unwrap(),
            tenant: Name::new("slurm").unwrap(),
            owner: String::new(),
            token: None,
            request: LeaseRequest { gpus: 2, ..LeaseRequest::default() },
            state: LeaseState::Releasing,
            grants: Vec::new(),
            model: Some(Model::new("NVIDIA H200").unwrap()),
            created_ms: 1_000,
            granted_ms,
            expires_ms: 0,
            ended: ended_ms.map(|at_ms| Ended { at_ms, reason: "released".to_owned() }),
            moves: Vec::new(),
            moving: None,
            suspend_wanted: false,
            parking: None,
            version: 0,
        }
    }

    #[test]
    fn seconds_count_from_the_grant_for_every_gpu() {
        let told = |granted, ended| gpu_seconds(&lease(granted, ended)).map(|seconds| seconds.to_string());
        assert_eq!(told(Some(2_000), Some(5_525)).as_deref(), Some("7.050"));
        assert_eq!(told(None, Some(5_525)).as_deref(), Some("0.000"), "it only waited");
        assert_eq!(told(Some(2_000), None), None, "it is not over");
        assert_eq!(
            admin_comment(&lease(Some(2_000), Some(3_000))),
            "dxpu lease=l-00000000000000aa gpus=2 model=NVIDIA_H200 gpu_seconds=2.000"
        );
        assert_eq!(
            admin_comment(&lease(Some(2_000), None)),
            "dxpu lease=l-00000000000000aa gpus=2 model=NVIDIA_H200"
        );
        let note = Note { job: Job::new("c", 7).unwrap(), uid: 5 };
        assert_eq!(
            usage_line(&note, &lease(Some(2_000), Some(3_000))),
            "cluster=c job=7 uid=5 granted_ms=2000 ended_ms=3000 lease=l-00000000000000aa gpus=2 model=NVIDIA_H200 gpu_seconds=2.000\n"
        );
    }
}
