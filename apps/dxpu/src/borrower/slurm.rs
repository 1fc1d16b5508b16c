//! `dxpu slurm`: GPUs of the pool for jobs of Slurm. Slurm calls these commands; people call `check` and `sweep` at most.
//!
//! ```text
//!   slurmctld ▸ burst_buffer.lua:  check ─▶ claim ─▶ claim --wait ─▶ start ─▶ … the job runs … ─▶ release      sweep, every 30 s
//!               a job that waits for longer is held, and a process of its own waits by `claim --wait` and releases it
//!   slurmd    ▸ Prolog: attach     TaskProlog: environment     Epilog: detach     HealthCheckProgram: refresh
//! ```
//!
//! A job's lease is found by its note, so no command keeps state of its own and each may be run again. The lease lives for long
//! without a renewal: a job outlives a controller that is away. `sweep` renews the leases of jobs that live and gives back
//! those of jobs that do not. Tokens are on the job's nodes alone; they never travel through Slurm, which does not encrypt.

mod controller;
mod folder;
mod leases;
mod node;
mod programs;
mod sweep;

use crate::support::exit::{Exit, Failure, Outcome};
use anyhow::Context;
use pool_slurm::Job;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  dxpu slurm check job.sh                       says what is wrong with the lines #DXPU of a job script
  dxpu slurm sweep --credential /etc/dxpu/slurm.json    gives back leases of jobs that are gone; slurmctld runs it every 30 s

A job script asks with lines such as
  #DXPU gpus=2 model=H200 memory=80GiB
Words: gpus, model, memory, kind (nvlink, pcie), topology (any, same-box, nvlink), priority. docs/slurm.md shows how Slurm is
told to call these commands; deploy/slurm has the files.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Slurm {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Check the lines #DXPU of a job script (slurm_bb_job_process)
    Check(controller::Check),
    /// Ask the pool for a job's GPUs; with --wait, until they are there (slurm_bb_setup, slurm_bb_data_in)
    Claim(controller::Claim),
    /// Check that a job that starts has its GPUs, and note its lease in the job (slurm_bb_pre_run)
    Start(controller::Start),
    /// Give a job's GPUs back, and write its GPU seconds to a file (slurm_bb_job_teardown)
    Release(controller::Release),
    /// Renew the leases of jobs that live, give back those of jobs that are gone (slurm_bb_pools)
    Sweep(sweep::Sweep),
    /// Put a job's tokens on this node, for its user alone (Prolog)
    Attach(node::Attach),
    /// Print what a job's tasks are told (TaskProlog)
    Environment(node::Tell),
    /// Remove a job's tokens from this node (Epilog)
    Detach(node::Detach),
    /// Renew the leases and the tokens of the jobs on this node (HealthCheckProgram)
    Refresh(node::Refresh),
}

impl Slurm {
    pub(crate) fn run(self) -> Outcome {
        match self.verb {
            Verb::Check(check) => check.run(),
            Verb::Claim(claim) => claim.run(),
            Verb::Start(start) => start.run(),
            Verb::Release(release) => release.run(),
            Verb::Sweep(sweep) => sweep.run(),
            Verb::Attach(attach) => attach.run(),
            Verb::Environment(tell) => tell.run(),
            Verb::Detach(detach) => detach.run(),
            Verb::Refresh(refresh) => refresh.run(),
        }
    }
}

/// Which cluster.
#[derive(clap::Args, Clone, Debug)]
struct Cluster {
    /// The cluster's name [default: ClusterName of slurm.conf]
    #[arg(long, value_name = "NAME", env = "SLURM_CLUSTER_NAME")]
    cluster: Option<String>,
    /// Where slurm.conf is
    #[arg(long, value_name = "FILE", env = "SLURM_CONF", default_value = "/etc/slurm/slurm.conf")]
    slurm_conf: PathBuf,
}

impl Cluster {
    fn name(&self) -> anyhow::Result<String> {
        if let Some(name) = &self.cluster {
            return Ok(name.clone());
        }
        let path = self.slurm_conf.display();
        let text =
            std::fs::read_to_string(&self.slurm_conf).with_context(|| format!("cannot read {path}"))?;
        pool_slurm::cluster_name(&text).map_err(|error| {
            Failure::new(Exit::Usage, format!("{path}: {error}"), "give --cluster NAME").into()
        })
    }
}

/// Which job.
#[derive(clap::Args, Clone, Debug)]
struct JobName {
    /// The job's number; a task of an array has one of its own
    #[arg(long, value_name = "N", env = "SLURM_JOB_ID")]
    job: u32,
    #[command(flatten)]
    cluster: Cluster,
}

impl JobName {
    fn number(&self) -> u32 {
        self.job
    }

    fn job(&self) -> anyhow::Result<Job> {
        Job::new(&self.cluster.name()?, self.job).map_err(|error| {
            Failure::new(Exit::Usage, error.to_string(), "give --job and --cluster as Slurm has them").into()
        })
    }
}
