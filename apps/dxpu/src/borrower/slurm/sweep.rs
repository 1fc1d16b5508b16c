//! `dxpu slurm sweep`: what lives is renewed, what has no job is given back.

use super::{Cluster, leases, programs};
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::pool_access::{PoolAccess, failure};
use pool_client::Patience;
use pool_slurm::{Queue, plan};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(super) struct Sweep {
    #[command(flatten)]
    cluster: Cluster,
    /// Say what would be given back, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Add a line with the GPU seconds of each lease that is given back to this file
    #[arg(long, value_name = "FILE")]
    usage_file: Option<PathBuf>,
    #[command(flatten)]
    access: PoolAccess,
}

impl Sweep {
    pub(super) fn run(self) -> Outcome {
        let cluster = self.cluster.name()?;
        // It runs again soon, so it does not wait for managers.
        let client = self.access.patient(Patience::default())?;
        // The leases first: a job is in the queue before it has a lease.
        let found = leases::live(&client).map_err(failure)?;
        let queue = match queue() {
            Ok(queue) => Some(queue),
            Err(error) => {
                errln!("dxpu: the queue is not known, so nothing is given back: {error:#}");
                None
            }
        };
        let all: Vec<_> = found.iter().map(|(_, lease)| lease.clone()).collect();
        let notes: HashMap<_, _> = found.iter().map(|(note, lease)| (lease.id, (note, lease))).collect();
        let plan = plan(&cluster, &all, queue.as_ref());
        for (id, why) in &plan.give_back {
            let (note, lease) = notes[id];
            outln!("lease {id} of job {} is given back: {why}", note.job.number());
            if self.dry_run {
                continue;
            }
            if let Some(over) = leases::give_back(&client, lease).map_err(failure)? {
                leases::write_usage(self.usage_file.as_deref(), note, &over);
            }
        }
        if !self.dry_run {
            for id in plan.renew {
                // One that ended meanwhile needs no renewal.
                if let Err(error) = client.renew_lease(id)
                    && error.code().is_none()
                {
                    return Err(failure(error).into());
                }
            }
        }
        Ok(Exit::Success)
    }
}

/// The queue, as a user that sees all jobs.
fn queue() -> anyhow::Result<Queue> {
    let own = std::fs::metadata("/proc/self")?.uid();
    let slurm = pool_slurm::slurm_user(&programs::asked("scontrol", &["show", "config"])?);
    // Others may see only their own jobs (PrivateData), and would take all others for gone.
    if own != 0 && slurm != Some(own) {
        let what = "only root and SlurmUser see all jobs";
        return Err(Failure::new(Exit::Usage, what, "run this as SlurmUser").into());
    }
    Ok(Queue::parse(&programs::asked("squeue", &Queue::ARGUMENTS)?)?)
}
