//! What a worker is told when it starts.

use crate::admission::Admission;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use transport::{Address, IdentityError, ServerIdentity, ServerSecurity};

/// What the front needs.
#[derive(Clone)]
pub struct FrontConfig {
    /// Where to listen.
    pub addresses: Vec<Address>,
    /// How session processes are started.
    pub spawn: SessionSpawn,
    /// What each session process is told.
    pub session: SessionConfig,
    /// What each session process gets for its driver.
    pub grant: GrantMaker,
    /// The most sessions at a time.
    pub sessions_max: usize,
    /// The most connections of each address that have not shown a token yet. When one more comes, the oldest goes, of the
    /// place that has sent the most.
    pub unauthenticated_max: usize,
    /// How long a new connection may take for its first bytes.
    pub preamble_timeout: Duration,
    /// How long a client that may come in is kept waiting for a session before it is told to come again.
    pub hold: Duration,
    /// Session processes kept ready, their driver made, so that attaching costs no start of a process.
    pub spares: usize,
    /// The GPUs execute PTX and no machine code, as GPUs in software do. Clients are told with their ticket.
    pub executes_ptx_only: bool,
}

/// The command line of a session process. It is told everything else through its standard input.
#[derive(Clone, Debug)]
pub struct SessionSpawn {
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// Prepares what one more session process gets for its driver.
pub type GrantMaker = Arc<dyn Fn() -> io::Result<Grant> + Send + Sync>;

/// What one session process gets for its driver, and what to do when that process is gone.
pub struct Grant {
    /// For the function that makes the driver; the front does not look inside.
    pub driver: serde_json::Value,
    /// Descriptors for it, such as memory that the sessions share. At most 7.
    pub fds: Vec<OwnedFd>,
    /// Variables of its environment. The status process does not get them.
    pub environment: Vec<(String, OsString)>,
    /// Called when the process is gone, however it went.
    pub release: Box<dyn FnOnce() + Send>,
}

impl Grant {
    /// A grant of nothing but a configuration.
    pub fn plain(driver: serde_json::Value) -> Self {
        Self { driver, fds: Vec::new(), environment: Vec::new(), release: Box::new(|| {}) }
    }
}

/// What a process of a worker is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Executes the commands of one client.
    Session,
    /// Answers clients that only look.
    Status,
}

/// The first message to a session process.
#[derive(Serialize, Deserialize)]
pub(crate) struct Startup {
    pub(crate) role: Role,
    pub(crate) session: SessionConfig,
    pub(crate) driver: serde_json::Value,
    /// How many descriptors follow.
    pub(crate) fds: usize,
    /// The last of them is the memory for what clients send.
    pub(crate) content: bool,
}

/// What a session process is told, secrets included: it travels over a socket pair, never by arguments or
/// environment.
#[derive(Clone, Serialize, Deserialize)]
pub struct SessionConfig {
    /// What a client must show.
    pub admission: Admission,
    /// Certificate chain and key (PEM) for `tls:` connections.
    pub tls: Option<(String, String)>,
    /// Where certificate and key are replaced when they are renewed; a session may outlive a certificate.
    #[serde(default)]
    pub tls_files: Option<(PathBuf, PathBuf)>,
    /// Directory of module images; each tenant has its own part of it.
    pub image_cache: Option<PathBuf>,
    /// The most bytes of one tenant in that directory.
    pub image_cache_bytes_max: u64,
    /// Pushed bytes kept before a stream consumes them.
    pub push_window_bytes: u64,
    /// The most of this machine's memory that what one client makes (graphs, modules, streams, events) may take.
    pub host_bytes_max: u64,
    /// The most memory of one client's program that its session maps too. It is the client's own, but a hostile client can have
    /// it charged to this worker.
    #[serde(default = "shared_host_bytes_max")]
    pub shared_host_bytes_max: u64,
    /// How long a client may take from its first byte to the last of its connections.
    pub handshake_timeout: Duration,
    /// A client that says nothing for this long is gone.
    pub stall_timeout: Duration,
    /// How long the command loop polls, for commands and for what a client waits for, before it sleeps or has another
    /// thread wait. `None`: as fits this machine.
    pub wait_spin: Option<Duration>,
    /// The Unix socket of the box's guardian, which keeps the images of protected sessions. `None`: no session is protected.
    #[serde(default)]
    pub guardian: Option<PathBuf>,
    /// Names the worker in handles that its sessions share. The front chooses it anew at every start.
    #[serde(default)]
    pub worker: u64,
    /// Memory of this machine for what clients send that wish for it, so that the next program of a tenant need not send it
    /// again: of all sessions of the worker together. 0: nothing is kept.
    #[serde(default)]
    pub content_bytes_max: u64,
    /// Whether the kernel makes that memory when the worker starts, in place of when blocks come.
    #[serde(default)]
    pub content_is_made_ready: bool,
    /// Whether modules are loaded before a program asks for them, if it wishes that what it sends is kept: those that the last
    /// program like it has loaded.
    #[serde(default)]
    pub modules_ahead: bool,
    /// What offline programs may cost an online one, in percent of the time that its requests take.
    #[serde(default = "slack_percent")]
    pub slack_percent: u32,
    /// How long an offline session may have the device at a stretch while an online one waits, in microseconds. `None`: as long as the
    /// driver gives by itself.
    #[serde(default)]
    pub offline_slice_us: Option<u64>,
    /// The page of the GPU belongs to its box: sessions of other leases may be on it. Those of leases with a share take turns then.
    #[serde(default)]
    pub takes_turns: bool,
    /// Contexts of these GPUs are merged (MPS): a session that leaves waits for its kernels first, because one that ends in the middle of a
    /// kernel ends the contexts of all others.
    #[serde(default)]
    pub is_merged: bool,
    /// Where contexts are merged: how long offline programs wait at most after faults that ended the contexts of all, before they begin to
    /// work beside an online one.
    #[serde(default = "fault_wait_max")]
    pub fault_wait_max: Duration,
    /// Where other boxes reach that guardian; empty if they cannot, or if it says so itself.
    #[serde(default)]
    pub guardian_address: String,
}

/// How long a session with a merged context waits for its kernels before it leaves.
pub(crate) const DRAINED_WITHIN: Duration = Duration::from_secs(5);

/// A default that holds the pinned memory of most programs.
fn shared_host_bytes_max() -> u64 {
    64 << 30
}

/// What a program that finds the GPU in use by another one waits for it: a switch and the rest of a group, 0.2 to 0.3 ms, are less
/// than this of requests that take milliseconds.
fn slack_percent() -> u32 {
    25
}

/// A program that faults every minute costs an online one, with replays of 0.4 s, less than 1 % of its time.
fn fault_wait_max() -> Duration {
    Duration::from_secs(60)
}

impl SessionConfig {
    /// Sensible values for everything but the secrets.
    pub fn new(token: String) -> Self {
        Self::admitting(Admission::Secret(token))
    }

    /// The same for another way to let clients in.
    pub fn admitting(admission: Admission) -> Self {
        Self {
            admission,
            tls: None,
            tls_files: None,
            image_cache: None,
            image_cache_bytes_max: 4 << 30,
            push_window_bytes: 64 << 20,
            host_bytes_max: 2 << 30,
            shared_host_bytes_max: shared_host_bytes_max(),
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            wait_spin: None,
            guardian: None,
            worker: 0,
            guardian_address: String::new(),
            content_bytes_max: 0,
            content_is_made_ready: false,
            modules_ahead: true,
            slack_percent: slack_percent(),
            offline_slice_us: None,
            takes_turns: false,
            is_merged: false,
            fault_wait_max: fault_wait_max(),
        }
    }

    /// What `tls:` connections are served with.
    pub(crate) fn security(&self) -> Result<ServerSecurity, IdentityError> {
        let Some((certificate, key)) = &self.tls else { return Ok(ServerSecurity::Plain) };
        let files = self.tls_files.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        ServerIdentity::renewed_at(certificate, key, files).map(ServerSecurity::Tls)
    }

    /// How long an ended session may take to leave before it is made to.
    pub(crate) fn leave_within(&self) -> Duration {
        const STOPS: Duration = Duration::from_secs(8);
        if self.is_merged { STOPS + DRAINED_WITHIN } else { STOPS }
    }

    /// How long the command loop polls before it sleeps. `None`: as seems best to each transport.
    pub(crate) fn spin(&self) -> Option<Duration> {
        /// Longer than a program's pauses between two calls, and than most of what it waits for; short against what a
        /// person would call idle.
        const SPIN: Duration = Duration::from_micros(500);
        // Polling pays off only where it does not take the core that the awaited work needs.
        self.wait_spin.or_else(|| transport::has_cores_to_spare().then_some(SPIN))
    }
}

/// Never the secrets.
impl std::fmt::Debug for SessionConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionConfig").finish_non_exhaustive()
    }
}
