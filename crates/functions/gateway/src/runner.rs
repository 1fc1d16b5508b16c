//! The process between the service and a function.
//!
//! ```text
//!   service ──▶ outer (root: limits, cgroup, a new process-id namespace) ──▶ inner (the instance's user) = the program
//!                 └ ends with the service                                      └ ends with the outer; number 1 of its
//!                                                                                namespace: all that it started ends with it
//! ```
//!
//! Both are this binary. The kernel sends the signal at the parent's death, so that no function outlives a service that was
//! killed.

use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the service tells the outer process over its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) name: String,
    pub(crate) program: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) folder: PathBuf,
    pub(crate) user: Option<(u32, u32)>,
    pub(crate) memory_bytes: u64,
}

/// What the outer process tells the inner one: the program and its arguments.
#[derive(Clone, Debug)]
pub struct InnerOrder {
    /// What to become.
    pub program: Vec<std::ffi::OsString>,
}

/// Why a program does not start.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The order cannot be read.
    #[error("the runner's order cannot be read")]
    Order,
    /// A limit cannot be set, or the program cannot be started.
    #[error("cannot {doing}")]
    System {
        /// What.
        doing: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

fn system<E: Into<std::io::Error>>(doing: &'static str) -> impl FnOnce(E) -> RunnerError {
    move |source| RunnerError::System { doing, source: source.into() }
}

/// Processes and threads of one instance.
const TASKS_MAX: u64 = 512;
/// Open files of one process.
const FILES_MAX: u64 = 1024;
/// One file that a function writes.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// The address space that Python and its libraries take beside what they use.
const SLACK_BYTES: u64 = 64 << 20;

/// The outer process: sets limits, starts the inner one, ends as it does. Returns the exit code.
pub fn run_outer() -> Result<u8, RunnerError> {
    end_with_parent()?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(system("read the order"))?;
    let order: Order = serde_json::from_str(&text).map_err(|_| RunnerError::Order)?;
    let group = Cgroup::enter(&order);
    limit(&order, group.is_some())?;
    if order.user.is_some() {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWPID | nix::sched::CloneFlags::CLONE_NEWIPC)
            .map_err(system("make a namespace"))?;
    }
    let mut inner = machine::this_program();
    inner.arg("function-runner").arg("--inner").arg("--").args(&order.program);
    inner.env_clear().envs(&order.environment).current_dir(&order.folder);
    inner.stdin(std::process::Stdio::null());
    if let Some((user, group)) = order.user {
        inner.gid(group).uid(user);
    }
    let mut child = inner.spawn().map_err(system("start the program"))?;
    let status = child.wait().map_err(system("wait for the program"))?;
    if group.is_some_and(|group| group.was_too_much()) {
        eprintln!(
            "dxpu: the function used more memory than its MemorySize of {} MB",
            order.memory_bytes >> 20
        );
    }
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code & 0xff).ok()).unwrap_or(1))
}

/// The inner process becomes the program. Returns only if it cannot.
pub fn run_inner(order: InnerOrder) -> Result<u8, RunnerError> {
    end_with_parent()?;
    let _ = rustix::thread::set_no_new_privs(true);
    let Some((program, arguments)) = order.program.split_first() else { return Err(RunnerError::Order) };
    let error = Command::new(program).args(arguments).exec();
    Err(RunnerError::System { doing: "start the program", source: error })
}

fn end_with_parent() -> Result<(), RunnerError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(system("follow the service"))
}

fn limit(order: &Order, has_group: bool) -> Result<(), RunnerError> {
    let set = |resource, most: u64| {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
            .map_err(system("set a limit"))
    };
    set(Resource::Core, 0)?;
    set(Resource::Nofile, FILES_MAX)?;
    set(Resource::Fsize, FILE_BYTES_MAX)?;
    // Where there is no control group, each process is bounded by itself. Only private writable memory counts: the ranges that
    // the CUDA library reserves do not.
    if !has_group {
        set(Resource::Data, order.memory_bytes + SLACK_BYTES)?;
    }
    if order.user.is_some() {
        set(Resource::Nproc, TASKS_MAX)?;
    }
    Ok(())
}

/// A control group for one instance: its memory and its processes are counted together.
struct Cgroup {
    memory: PathBuf,
    is_v2: bool,
}

const V2: &str = "/sys/fs/cgroup";
const ALL: &str = "dxpu-functions";

impl Cgroup {
    /// Makes the group and moves this process there; none where this machine does not let us.
    fn enter(order: &Order) -> Option<Self> {
        order.user?;
        if Path::new(V2).join("cgroup.controllers").exists() {
            Self::enter_v2(order)
        } else {
            Self::enter_v1(order)
        }
    }

    fn enter_v2(order: &Order) -> Option<Self> {
        let all = Path::new(V2).join(ALL);
        fs::create_dir_all(&all).ok()?;
        let _ = fs::write(Path::new(V2).join("cgroup.subtree_control"), "+memory +pids");
        fs::write(all.join("cgroup.subtree_control"), "+memory +pids").ok()?;
        let own = all.join(&order.name);
        fs::create_dir_all(&own).ok()?;
        fs::write(own.join("memory.max"), order.memory_bytes.to_string()).ok()?;
        let _ = fs::write(own.join("memory.swap.max"), "0");
        fs::write(own.join("pids.max"), TASKS_MAX.to_string()).ok()?;
        fs::write(own.join("cgroup.procs"), "0").ok()?;
        Some(Self { memory: own, is_v2: true })
    }

    fn enter_v1(order: &Order) -> Option<Self> {
        let group = |controller: &str| Path::new(V2).join(controller).join(ALL).join(&order.name);
        let (memory, pids) = (group("memory"), group("pids"));
        fs::create_dir_all(&memory).ok()?;
        fs::create_dir_all(&pids).ok()?;
        fs::write(memory.join("memory.limit_in_bytes"), order.memory_bytes.to_string()).ok()?;
        fs::write(pids.join("pids.max"), TASKS_MAX.to_string()).ok()?;
        fs::write(memory.join("cgroup.procs"), "0").ok()?;
        fs::write(pids.join("cgroup.procs"), "0").ok()?;
        Some(Self { memory, is_v2: false })
    }

    /// Whether the kernel killed something here for its memory.
    fn was_too_much(&self) -> bool {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.memory.join(file)).unwrap_or_default();
        let killed = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        killed.and_then(|count| count.trim().parse::<u64>().ok()).is_some_and(|count| count > 0)
    }
}

/// Removes the groups of services that were killed: their names begin with the number of a process that is gone.
pub(crate) fn forget_old_cgroups() {
    for hierarchy in ["", "memory", "pids"] {
        let all = Path::new(V2).join(hierarchy).join(ALL);
        for entry in fs::read_dir(all).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.split('-').next().and_then(|pid| pid.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
                // Fails for files of the group itself, and where a process is still there.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

/// Removes the groups of an instance that is gone.
pub(crate) fn forget_cgroup(name: &str) {
    for hierarchy in ["", "memory", "pids"] {
        let _ = fs::remove_dir(Path::new(V2).join(hierarchy).join(ALL).join(name));
    }
}
