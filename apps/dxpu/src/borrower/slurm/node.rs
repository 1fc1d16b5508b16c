//! What slurmd calls on a job's nodes.
//!
//! ```text
//! ROOT/JOB/tokens        one line for each GPU; the job's user alone can read it
//! ROOT/JOB/ca.pem        by which boxes are known
//! ROOT/JOB/environment   what tasks are told
//! ```
//!
//! The folders belong to root, so that no user puts a link where root writes.

use super::{leases, programs};
use crate::borrower::{cdi, preflight};
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::library;
use crate::support::pool_access::{PoolAccess, failure};
use anyhow::Context;
use pool_api::{ErrorCode, Lease, LeaseId, LeaseTokens, SignedGrant};
use pool_auth::Identity;
use pool_client::Client;
use pool_slurm::{Environment, Shell};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, fchown};
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
    fn of(&self, job: u32) -> PathBuf {
        self.root.join(job.to_string())
    }
}

/// The user that may read the tokens.
#[derive(Clone, Copy)]
struct Owner {
    uid: u32,
    gid: u32,
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
        let job = self.job.job()?;
        // Most jobs ask for nothing, and must start whether or not a manager answers.
        let shown = programs::asked("scontrol", &["--oneliner", "show", "job", &job.number().to_string()])?;
        if !pool_slurm::asks_for_gpus(&shown) {
            return Ok(Exit::Success);
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
        let owner = Owner { uid: self.uid, gid: self.gid };
        attach(&client, &lease, &self.root.of(job.number()), job.number(), owner)?;
        Ok(Exit::Success)
    }
}

/// Finds a way to each GPU, and writes the job's files when all workers let it in.
fn attach(client: &Client, lease: &Lease, folder: &Path, job: u32, owner: Owner) -> anyhow::Result<()> {
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
            Ok(ways) => return write(folder, &tokens, &ways, job, owner),
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

fn write(folder: &Path, tokens: &LeaseTokens, ways: &[Way], job: u32, owner: Owner) -> anyhow::Result<()> {
    // All may enter, because the files have owners of their own.
    let make = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder);
    make.with_context(|| format!("cannot make {}", folder.display()))?;
    let _alone = alone(folder)?;
    // `refresh` may have removed it before it let go: it takes the folder of a lease that is over.
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let file = |name: &str| folder.join(name);
    let joined = |texts: Vec<String>| texts.join(",");
    let mut environment = Environment::default();
    let mut set = |name, value: String| environment.set(name, value);
    set("DXPU_WORKER", joined(ways.iter().map(|way| way.address.to_string()).collect()))?;
    set("DXPU_WORKER_NAMES", joined(ways.iter().map(|way| way.name.clone()).collect()))?;
    set("DXPU_TOKEN_FILE", file("tokens").display().to_string())?;
    set("DXPU_CA", file("ca.pem").display().to_string())?;
    set("DXPU_LEASE", tokens.lease.to_string())?;
    set("DXPU_LEASE_JOB", job.to_string())?;
    if ways.iter().any(|way| way.is_soft) {
        set("CUPY_COMPILE_WITH_PTX", "1".to_owned())?;
    }
    let secrets: String = tokens.grants.iter().map(|grant| format!("{}\n", grant.token)).collect();
    give(&file("ca.pem"), owner, &tokens.ca_certificate)?;
    give(&file("tokens"), owner, &secrets)?;
    // Last: a task that finds it finds the others too.
    give(&file("environment"), owner, &environment.to_text())
}

/// Writes a file that its new owner alone can read; a reader sees the old one or the new one, whole.
fn give(path: &Path, owner: Owner, content: &str) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::Builder::new().prefix(".unfinished-").tempfile_in(folder)?;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o400))?;
        fchown(file.as_file(), Some(owner.uid), Some(owner.gid))?;
        file.write_all(content.as_bytes())?;
        file.persist(path).map(drop).map_err(|failed| failed.error)
    };
    write().with_context(|| format!("cannot write {} for user {}", path.display(), owner.uid))
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
        let file = self.root.of(self.job).join("environment");
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return self.tell_without(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
        };
        let environment = Environment::parse(&text).with_context(|| format!("{}", file.display()))?;
        let libraries = match self.libraries {
            Some(folder) => folder,
            None if Path::new(cdi::PACKAGED).join("libcuda.so.1").exists() => cdi::PACKAGED.into(),
            None => library::extract()?.directory,
        };
        let search = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        out!("{}", environment.told(&libraries.display().to_string(), &search).to_text());
        Ok(Exit::Success)
    }

    /// The job has no files here: it asked for nothing, or Prolog could not attach it.
    fn tell_without(&self) -> Outcome {
        let Ok(marked) = std::env::var("DXPU_LEASE_JOB") else { return Ok(Exit::Success) };
        if marked == self.job.to_string() {
            let what = format!("job {} asked for GPUs of the pool, and this node did not get them", self.job);
            let hint = "look for `dxpu` in slurmd's log on this node, then requeue the job";
            return Err(Failure::new(Exit::Unreachable, what, hint).into());
        }
        // It was submitted from within another job, whose variables it has inherited.
        out!("{}", Shell::of_no_lease().to_text());
        Ok(Exit::Success)
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
        machine::files::remove_directory(&self.root.of(self.job))?;
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

fn refresh(client: &Client, folder: &Path, job: u32) -> anyhow::Result<()> {
    // Prolog has just made the folder, or Epilog has just removed it.
    let Some(id) = lease_of(folder)? else { return Ok(()) };
    let seen = std::fs::metadata(folder.join("environment"))?;
    let owner = Owner { uid: seen.uid(), gid: seen.gid() };
    match client.renew_lease(id) {
        Ok(lease) => attach(client, &lease, folder, job, owner),
        // The job is over: this node was away, so its Epilog did not run. Or the pool took the lease; then the files open nothing.
        Err(error) if matches!(error.code(), Some(ErrorCode::Gone | ErrorCode::NotFound)) => {
            let _alone = alone(folder)?;
            // A requeued job may have come back to this node meanwhile, with another lease.
            if lease_of(folder)? == Some(id) {
                machine::files::remove_directory(folder)?;
            }
            Ok(())
        }
        Err(error) => Err(failure(error).into()),
    }
}

/// The lease that a job's files are for; `None` while there are none.
fn lease_of(folder: &Path) -> anyhow::Result<Option<LeaseId>> {
    let file = folder.join("environment");
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    Ok(Some(Environment::parse(&text)?.get("DXPU_LEASE").unwrap_or_default().parse()?))
}

/// No other command of this node writes or removes files of jobs while this is open.
fn alone(folder: &Path) -> anyhow::Result<std::fs::File> {
    let path = folder.with_file_name("lock");
    let file = std::fs::File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}
