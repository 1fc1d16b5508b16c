//! What slurmctld calls for a job, from `burst_buffer.lua`.

use super::leases;
use super::programs::{asked, note_in_job};
use crate::operate::lease::long_duration;
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::pool_access::{PoolAccess, failure};
use anyhow::Context;
use pool_api::{ErrorCode, Lease};
use pool_client::Client;
use pool_slurm::{Job, Note, Wanted};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// More requeues of one job within a day than this are no accident.
const ATTEMPTS_MAX: u32 = 1000;

fn wanted(script: &Path) -> anyhow::Result<Wanted> {
    let text = std::fs::read(script).with_context(|| format!("cannot read {}", script.display()))?;
    // Directives are ASCII; the rest of a script may be anything.
    Wanted::of_script(&String::from_utf8_lossy(&text)).map_err(|error| {
        let hint = "for example: #DXPU gpus=1 model=H200 memory=80GiB";
        Failure::new(Exit::Usage, format!("#DXPU: {error}"), hint).into()
    })
}

#[derive(clap::Args)]
pub(super) struct Check {
    /// The job script
    script: PathBuf,
}

impl Check {
    pub(super) fn run(self) -> Outcome {
        wanted(&self.script)?;
        Ok(Exit::Success)
    }
}

#[derive(clap::Args)]
pub(super) struct Claim {
    #[command(flatten)]
    job: super::JobName,
    /// The user that submitted the job
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// The job script
    #[arg(long, value_name = "FILE")]
    script: PathBuf,
    /// Wait for the lease that was asked for before, until it has its GPUs
    #[arg(long)]
    wait: bool,
    /// How long the job keeps its GPUs while nothing of Slurm renews its lease; at most what the tenant may (`dxpu tenant set --ttl-max`)
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = long_duration)]
    ttl: Duration,
    #[command(flatten)]
    access: PoolAccess,
}

impl Claim {
    pub(super) fn run(self) -> Outcome {
        let (job, wanted) = (self.job.job()?, wanted(&self.script)?);
        let client = leases::client(&self.access)?;
        let asked = if self.wait { leases::of_job_at_last } else { leases::of_job };
        let mut there = asked(&client, &job).map_err(failure)?;
        if self.wait
            && let Some((_, lease)) = there.pop()
        {
            let lease = leases::until_granted(&client, lease)?;
            outln!("{}", lease.id);
            return Ok(Exit::Success);
        }
        // What an earlier run of the job had was to be returned before; its node may still use it.
        for (_, lease) in there {
            leases::give_back(&client, &lease).map_err(failure)?;
        }
        let Some(uid) = self.uid else {
            let what = format!("job {} has no lease", job.number());
            return Err(Failure::new(Exit::Refused, what, "requeue the job: scontrol requeue JOB").into());
        };
        let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        let request = wanted.request(ttl_ms, Note { job: job.clone(), uid }.to_string());
        let lease = create(&client, &job, &request)?;
        outln!("{}", lease.id);
        Ok(Exit::Success)
    }
}

/// Makes the lease of the first attempt that is not over. A command that is run again for the same attempt finds the same one.
fn create(client: &Client, job: &Job, request: &pool_api::LeaseRequest) -> anyhow::Result<Lease> {
    for attempt in 0..ATTEMPTS_MAX {
        match client.create_lease(request, &job.key(attempt)) {
            Ok(lease) if lease.state.is_live() => return Ok(lease),
            Ok(_) => {}
            // The job was changed since, or its number is used again.
            Err(error) if matches!(error.code(), Some(ErrorCode::Gone | ErrorCode::IdempotencyConflict)) => {}
            Err(error) => return Err(failure(error).into()),
        }
    }
    let what = format!("job {} had {ATTEMPTS_MAX} leases within a day", job.number());
    Err(Failure::new(Exit::Refused, what, "look why it is requeued so often").into())
}

#[derive(clap::Args)]
pub(super) struct Start {
    #[command(flatten)]
    job: super::JobName,
    #[command(flatten)]
    access: PoolAccess,
}

impl Start {
    pub(super) fn run(self) -> Outcome {
        let job = self.job.job()?;
        let client = leases::client(&self.access)?;
        let Some((_, lease)) = leases::of_job(&client, &job).map_err(failure)?.pop() else {
            let what = format!("job {} has no lease any more", job.number());
            return Err(Failure::new(Exit::Refused, what, "requeue the job: scontrol requeue JOB").into());
        };
        // A GPU may have been lost since the job was staged.
        let lease = leases::until_granted(&client, lease)?;
        note_in_job(job.number(), &pool_slurm::admin_comment(&lease));
        pause(job.number());
        Ok(Exit::Success)
    }
}

/// Waits until slurmd runs Prolog for a job that ran before: some seconds, unless an operator had it start at once.
fn pause(job: u32) {
    let asked = || -> anyhow::Result<Duration> {
        let question = pool_slurm::restart_question(job);
        let answer = asked("squeue", &question.each_ref().map(String::as_str))?;
        let Some(requeued) = pool_slurm::requeued_at(job, &answer) else { return Ok(Duration::ZERO) };
        let config = asked("scontrol", &["show", "config"])?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        Ok(pool_slurm::pause_before_start(requeued, &config, now))
    };
    match asked() {
        Ok(pause) => std::thread::sleep(pause),
        // Most jobs never ran before, and the others start too early at worst: then TaskProlog says so.
        Err(error) => {
            errln!("dxpu: whether job {job} ran before is not known, so it starts at once: {error:#}")
        }
    }
}

#[derive(clap::Args)]
pub(super) struct Release {
    #[command(flatten)]
    job: super::JobName,
    /// Add a line with the job's GPU seconds to this file
    #[arg(long, value_name = "FILE")]
    usage_file: Option<PathBuf>,
    #[command(flatten)]
    access: PoolAccess,
}

impl Release {
    pub(super) fn run(self) -> Outcome {
        let job = self.job.job()?;
        let client = leases::client(&self.access)?;
        for (note, lease) in leases::of_job(&client, &job).map_err(failure)? {
            if let Some(over) = leases::give_back(&client, &lease).map_err(failure)? {
                leases::write_usage(self.usage_file.as_deref(), &note, &over);
            }
        }
        Ok(Exit::Success)
    }
}
