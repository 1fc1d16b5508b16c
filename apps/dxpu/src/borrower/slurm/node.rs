//! What slurmd calls on a job's nodes.

use super::folder::{Access, Folder, Owner};
use super::{leases, programs};
use crate::borrower::{cdi, preflight};
use crate::support::exit::{Exit, Failure, Outcome, words};
use crate::support::library;
use crate::support::pool_access::{PoolAccess, failure};
use pool_api::{ErrorCode, Lease, LeaseTokens, SignedGrant};
use pool_auth::Identity;
use pool_client::Client;
use pool_slurm::{Environment, Shell};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use transport::{Address, ClientSecurity, Scheme};

/// How long a worker may take to be there: it may just be cleaning up after another lease.
const ATTACH_WITHIN: Duration = Duration::from_secs(30);
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Where jobs have their files.
#[derive(clap::Args, Clone, Debug)]
struct Root {
    /// The folder with a folder for each job of this node
    #[arg(long, value_name = "DIR", env = "DXPU_SLURM_ROOT", default_value = "/run/dxpu-slurm")]
    root: PathBuf,
}

impl Root {
    fn of(&self, job: u32) -> Folder {
        Folder::of(&self.root, job)
    }
}

#[derive(clap::Args)]
pub(super) struct Attach {
    #[command(flatten)]
    job: super::JobName,
    /// The job's user
    #[arg(long, value_name = "UID", env = "SLURM_JOB_UID")]
    uid: u32,
    /// The job's group
    #[arg(long, value_name = "GID", env = "SLURM_JOB_GID")]
    gid: u32,
    #[command(flatten)]
    root: Root,
    #[command(flatten)]
    access: PoolAccess,
}

impl Attach {
    pub(super) fn run(self) -> Outcome {
        let folder = self.root.of(self.job.number());
        let owner = Owner { uid: self.uid, gid: self.gid };
        let Err(error) = self.attach(&folder, owner) else { return Ok(Exit::Success) };
        // Prolog's output goes to the node's journal, which the job's user cannot read.
        if let Err(unwritten) = folder.say_why_not(&words(&error), owner) {
            errln!("dxpu: the job is not told why: {unwritten:#}");
        }
        Err(error)
    }

    fn attach(&self, folder: &Folder, owner: Owner) -> anyhow::Result<()> {
        let job = self.job.job()?;
        // Most jobs ask for nothing, and must start whether or not a manager answers.
        let shown =
            programs::asked_at_last("scontrol", &["--oneliner", "show", "job", &job.number().to_string()])?;
        if !pool_slurm::asks_for_gpus(&shown) {
            // The node may have been away when another job of this number ended, so that its Epilog did not run.
            return folder.remove();
        }
        let client = leases::client(&self.access)?;
        let Some((note, lease)) = leases::of_job(&client, &job).map_err(failure)?.pop() else {
            let what = format!("job {} has no lease", job.number());
            return Err(Failure::new(Exit::Refused, what, "requeue the job: scontrol requeue JOB").into());
        };
        if note.uid != self.uid {
            let what = format!("lease {} is for user {}, and the job is of {}", lease.id, note.uid, self.uid);
            let hint = "no other job may have this number: give each cluster a ClusterName of its own";
            return Err(Failure::new(Exit::Refused, what, hint).into());
        }
        let lease = leases::until_granted(&client, lease)?;
        folder.give(&access_to(&client, &lease, folder, job.number())?, owner)
    }
}

/// Finds a way to each GPU, when all workers let the job in.
fn access_to(client: &Client, lease: &Lease, folder: &Folder, job: u32) -> anyhow::Result<Access> {
    let deadline = Instant::now() + ATTACH_WITHIN;
    loop {
        let tokens = match client.lease_tokens(lease.id) {
            Ok(tokens) => tokens,
            // It has lost a GPU since, and waits for another.
            Err(error) if error.code() == Some(ErrorCode::Conflict) && Instant::now() < deadline => {
                std::thread::sleep(TRY_AGAIN_AFTER);
                continue;
            }
            Err(error) => return Err(failure(error).into()),
        };
        let ways: Result<Vec<Way>, Failure> =
            tokens.grants.iter().map(|grant| way_to(grant, &tokens.ca_certificate)).collect();
        match ways {
            Ok(ways) => return access(folder, tokens, &ways, job),
            Err(error) if Instant::now() >= deadline => return Err(error.into()),
            Err(_) => std::thread::sleep(TRY_AGAIN_AFTER),
        }
    }
}

/// A way to a GPU, tried.
struct Way {
    address: Address,
    /// The worker's name in its certificate.
    name: String,
    is_soft: bool,
}

/// The way over TLS alone: sockets of a box on the same machine are not for users of jobs.
fn way_to(grant: &SignedGrant, authority: &str) -> Result<Way, Failure> {
    let name = Identity::box_server_name(grant.gpu.box_name.as_str());
    let what = format!("the box of {} does not say where its worker is", grant.gpu);
    let mut last = Failure::new(Exit::Unreachable, what, "start the box with --listen and --advertise");
    let addresses = grant.endpoints.iter().filter_map(|endpoint| endpoint.parse::<Address>().ok());
    for address in addresses.filter(|address| address.scheme() == Scheme::Tls) {
        let tls = ClientSecurity::CaNamed { ca: authority.to_owned(), name: name.clone() };
        let security = preflight::security_of(&address, tls)?;
        match preflight::check(&address, &security, &grant.token, Duration::ZERO) {
            Ok(seen) => return Ok(Way { address, name, is_soft: seen.executes_ptx_only }),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn access(folder: &Folder, tokens: LeaseTokens, ways: &[Way], job: u32) -> anyhow::Result<Access> {
    let joined = |texts: Vec<String>| texts.join(",");
    let mut environment = Environment::default();
    let mut set = |name, value: String| environment.set(name, value);
    set("DXPU_WORKER", joined(ways.iter().map(|way| way.address.to_string()).collect()))?;
    set("DXPU_WORKER_NAMES", joined(ways.iter().map(|way| way.name.clone()).collect()))?;
    set("DXPU_TOKEN_FILE", folder.file("tokens").display().to_string())?;
    set("DXPU_CA", folder.file("ca.pem").display().to_string())?;
    set("DXPU_LEASE", tokens.lease.to_string())?;
    set("DXPU_LEASE_JOB", job.to_string())?;
    if ways.iter().any(|way| way.is_soft) {
        set("CUPY_COMPILE_WITH_PTX", "1".to_owned())?;
    }
    let secrets = tokens.grants.iter().map(|grant| format!("{}\n", grant.token)).collect();
    Ok(Access { lease: tokens.lease, tokens: secrets, authority: tokens.ca_certificate, environment })
}

#[derive(clap::Args)]
pub(super) struct Tell {
    /// The job's number
    #[arg(long, value_name = "N", env = "SLURM_JOB_ID")]
    job: u32,
    #[command(flatten)]
    root: Root,
    /// The folder with libcuda.so.1 and libnvidia-ml.so.1 [default: that of the package dxpu-libraries, else a copy in the
    /// user's cache]
    #[arg(long, value_name = "DIR")]
    libraries: Option<PathBuf>,
}

impl Tell {
    pub(super) fn run(self) -> Outcome {
        self.tell().or_else(|error| {
            // Slurm reads all that TaskProlog says, and shows the job's user what it is told to print.
            out!("{}", Shell::of_failure(&format!("dxpu: {}", words(&error))).to_text());
            Ok(Exit::Failure)
        })
    }

    fn tell(self) -> Outcome {
        let folder = self.root.of(self.job);
        let Some(environment) = folder.environment()? else { return self.tell_without(&folder) };
        let libraries = match self.libraries {
            Some(folder) => folder,
            None if Path::new(cdi::PACKAGED).join("libcuda.so.1").exists() => cdi::PACKAGED.into(),
            None => library::extract()?.directory,
        };
        let search = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        out!("{}", environment.told(&libraries.display().to_string(), &search).to_text());
        Ok(Exit::Success)
    }

    /// The job has no files here: it asked for nothing, or Prolog did not get its GPUs.
    fn tell_without(&self, folder: &Folder) -> Outcome {
        let Ok(marked) = std::env::var("DXPU_LEASE_JOB") else { return Ok(Exit::Success) };
        if marked == self.job.to_string() {
            return Err(self.failure(folder.why_not()?).into());
        }
        // It was submitted from within another job, whose variables it has inherited.
        out!("{}", Shell::of_no_lease().to_text());
        Ok(Exit::Success)
    }

    /// Why this node has no GPUs for the job, in the job's own output.
    fn failure(&self, why_not: Option<String>) -> Failure {
        let node = std::env::var("SLURMD_NODENAME")
            .map_or_else(|_| "its node".to_owned(), |name| format!("node {name}"));
        let asked = format!("job {} asked for GPUs of the pool, and", self.job);
        match why_not {
            Some(words) => {
                let what = format!("{asked} Prolog did not get them on {node}. It said:\n{words}");
                let hint = format!("requeue the job when that is over: scontrol requeue {}", self.job);
                Failure::new(Exit::Unreachable, what, hint)
            }
            None => {
                let what = format!("{asked} slurmd ran no Prolog for it on {node}, or stopped it");
                let hint = format!(
                    "look for the job in slurmd's log there, then requeue it and leave its StartTime: scontrol requeue {}",
                    self.job
                );
                Failure::new(Exit::Unreachable, what, hint)
            }
        }
    }
}

#[derive(clap::Args)]
pub(super) struct Detach {
    /// The job's number
    #[arg(long, value_name = "N", env = "SLURM_JOB_ID")]
    job: u32,
    #[command(flatten)]
    root: Root,
}

impl Detach {
    pub(super) fn run(self) -> Outcome {
        self.root.of(self.job).remove()?;
        Ok(Exit::Success)
    }
}

#[derive(clap::Args)]
pub(super) struct Refresh {
    #[command(flatten)]
    root: Root,
    #[command(flatten)]
    access: PoolAccess,
}

impl Refresh {
    pub(super) fn run(self) -> Outcome {
        let jobs = match std::fs::read_dir(&self.root.root) {
            Ok(entries) => {
                entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
            }
            Err(_) => Vec::<u32>::new(),
        };
        if jobs.is_empty() {
            return Ok(Exit::Success);
        }
        let client = self.access.patient(pool_client::Patience::default())?;
        for job in jobs {
            // The other jobs are refreshed also when this one has lost its lease.
            if let Err(error) = refresh(&client, &self.root.of(job), job) {
                errln!("dxpu: job {job}: {error:#}");
            }
        }
        Ok(Exit::Success)
    }
}

fn refresh(client: &Client, folder: &Folder, job: u32) -> anyhow::Result<()> {
    // Prolog has just made the folder or has failed, or Epilog has just removed it.
    let Some((id, owner)) = folder.lease()? else { return folder.remove_old_words() };
    match client.renew_lease(id) {
        Ok(lease) => folder.renew(&access_to(client, &lease, folder, job)?, owner),
        // The job is over: this node was away, so its Epilog did not run. Or the pool took the lease; then the files open nothing.
        Err(error) if matches!(error.code(), Some(ErrorCode::Gone | ErrorCode::NotFound)) => {
            folder.remove_those_of(id)
        }
        Err(error) => Err(failure(error).into()),
    }
}
