//! GPUs for functions: a lease for each, held as long as instances use it.
//!
//! A lease is asked for as a share with the memory that the function declared. The worker lets no session of the lease have
//! more, so several instances can use it at once, each with a session of its own.

use crate::borrower::borrow::attach;
use crate::support::library;
use crate::support::pool_access::PoolAccess;
use functions::SlotId;
use functions_gateway::{GpuNews, Gpus};
use machine::files;
use pool_api::{Lease, LeaseRequest, LeaseState, Share};
use pool_client::{Client, Patience};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// By this the leases of a service that was killed are found.
const LABEL: &str = "dxpu-functions";
/// How long the pool is asked for one GPU; then the invocation that waits is told why there is none.
const GRANT_WITHIN: Duration = Duration::from_secs(60);
/// How long a worker may take to be there.
const ATTACH_WITHIN: Duration = Duration::from_secs(30);
const ASK_FOR: Duration = Duration::from_millis(500);
/// A share that is not the whole: only then does the worker bound memory.
const MILLI: u32 = 999;
/// A manager that changes is waited for.
const PATIENCE: Patience = Patience { per_try: Duration::from_secs(5), in_all: Duration::from_secs(20) };

type News = Arc<dyn Fn(GpuNews) + Send + Sync>;

/// The way to the pool.
pub(super) struct Leases {
    access: PoolAccess,
    library: PathBuf,
}

impl Leases {
    /// Checks the credential, and puts the libraries where every user can read them.
    pub(super) fn new(access: &PoolAccess, libraries: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(libraries)?;
        let library = library::extract_for_containers(libraries)?;
        for folder in [libraries, libraries.parent().unwrap_or(libraries)] {
            std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
        }
        access.patient(PATIENCE)?;
        Ok(Self { access: access.clone(), library })
    }

    pub(super) fn telling(self, news: News) -> Arc<dyn Gpus> {
        let held = Held { access: self.access, library: self.library, news, holders: Mutex::default() };
        held.return_those_of_a_former_service();
        Arc::new(held)
    }
}

struct Held {
    access: PoolAccess,
    library: PathBuf,
    news: News,
    /// Dropping a sender has its thread give the lease back.
    holders: Mutex<HashMap<SlotId, (Sender<()>, JoinHandle<()>)>>,
}

impl Held {
    fn return_those_of_a_former_service(&self) {
        let access = self.access.clone();
        std::thread::spawn(move || {
            let Ok(client) = access.patient(PATIENCE) else { return };
            for lease in client.leases_labelled(LABEL).unwrap_or_default() {
                if lease.state.is_live() {
                    let _ = client.release_lease(lease.id);
                }
            }
        });
    }
}

impl Gpus for Held {
    fn ask(&self, slot: SlotId, tenant: &str, declared_mb: u32, folder: PathBuf) {
        let (stop, stopped) = channel();
        let holder = Holder {
            access: self.access.clone(),
            library: self.library.clone(),
            news: self.news.clone(),
            slot,
            tenant: tenant.to_owned(),
            declared_mb,
            folder,
        };
        let thread = std::thread::spawn(move || {
            let why = match holder.hold(&stopped) {
                Ok(()) => return,
                Err(error) => format!("{error:#}"),
            };
            (holder.news)(GpuNews::Lost { slot: holder.slot, why });
        });
        locks::lock(&self.holders).insert(slot, (stop, thread));
    }

    fn give_back(&self, slot: SlotId) {
        locks::lock(&self.holders).remove(&slot);
    }
}

impl Drop for Held {
    /// The service ends: its GPUs are back in the pool when it is gone.
    fn drop(&mut self) {
        let held = std::mem::take(&mut *locks::lock(&self.holders));
        let threads: Vec<JoinHandle<()>> = held.into_values().map(|(_, thread)| thread).collect();
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Holds one lease, in a thread of its own.
struct Holder {
    access: PoolAccess,
    library: PathBuf,
    news: News,
    slot: SlotId,
    tenant: String,
    declared_mb: u32,
    folder: PathBuf,
}

impl Holder {
    /// Returns when the GPU was given back; fails when it is lost.
    fn hold(&self, stopped: &std::sync::mpsc::Receiver<()>) -> anyhow::Result<()> {
        let client = self.access.patient(PATIENCE)?;
        let bytes = u64::from(self.declared_mb) << 20;
        let request = LeaseRequest {
            memory_bytes: Some(bytes),
            share: Some(Share { milli: MILLI, memory_bytes: bytes }),
            note: format!("functions of {}", self.tenant),
            label: LABEL.to_owned(),
            ..LeaseRequest::default()
        };
        let lease = client.create_lease(&request, &pool_client::idempotency_key())?;
        let id = lease.id;
        let held = self.use_lease(&client, lease, stopped);
        let _ = client.release_lease(id);
        held
    }

    fn use_lease(
        &self,
        client: &Client,
        mut lease: Lease,
        stopped: &std::sync::mpsc::Receiver<()>,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + GRANT_WITHIN;
        while lease.state == LeaseState::Pending {
            if stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Empty) {
                return Ok(());
            }
            anyhow::ensure!(
                Instant::now() < until,
                "the pool had no GPU free for {} s",
                GRANT_WITHIN.as_secs()
            );
            lease = client.wait_for_lease(lease.id, lease.version, ASK_FOR)?;
        }
        anyhow::ensure!(lease.state == LeaseState::Granted, "the lease ended before it had a GPU");
        let environment = self.attach(client, &lease)?;
        let gpu = lease.grants.first().map(|grant| grant.gpu.clone());
        let total = client.gpus()?.into_iter().find(|found| Some(&found.id) == gpu.as_ref());
        let total_mb = total.map_or(u64::from(self.declared_mb), |gpu| gpu.memory_bytes >> 20);
        (self.news)(GpuNews::Granted { slot: self.slot, total_mb, environment });
        self.renew(client, &lease, stopped)
    }

    fn renew(
        &self,
        client: &Client,
        lease: &Lease,
        stopped: &std::sync::mpsc::Receiver<()>,
    ) -> anyhow::Result<()> {
        let every = Duration::from_millis(lease.request.ttl_ms / 6);
        let mut heard = Instant::now();
        while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            match client.renew_lease(lease.id) {
                Ok(now) => {
                    let is_same = now.state == LeaseState::Granted && now.grants == lease.grants;
                    anyhow::ensure!(is_same, "its GPU was lost, and the lease with it");
                    heard = Instant::now();
                    if let Ok(tokens) = client.lease_tokens(lease.id) {
                        self.write(&tokens)?;
                    }
                }
                // Sessions go on without a manager until the token is over.
                Err(error) if heard.elapsed() >= Duration::from_millis(lease.request.ttl_ms) => {
                    return Err(error.into());
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn attach(&self, client: &Client, lease: &Lease) -> anyhow::Result<Vec<(String, String)>> {
        let until = Instant::now() + ATTACH_WITHIN;
        loop {
            let tokens = client.lease_tokens(lease.id)?;
            let grant = tokens.grants.first();
            let way = grant.map(|grant| attach::way_by_network(grant, &tokens.ca_certificate));
            match way {
                Some(Ok(way)) => {
                    files::replace(&self.folder.join("ca.pem"), 0o640, tokens.ca_certificate.as_bytes())?;
                    self.write(&tokens)?;
                    return Ok(self.environment(&way));
                }
                Some(Err(error)) if Instant::now() >= until => return Err(error.into()),
                Some(Err(_)) => std::thread::sleep(Duration::from_millis(200)),
                None => anyhow::bail!("the lease has no GPU"),
            }
        }
    }

    fn write(&self, tokens: &pool_api::LeaseTokens) -> anyhow::Result<()> {
        let text: String = tokens.grants.iter().map(|grant| format!("{}\n", grant.token)).collect();
        Ok(files::replace(&self.folder.join("tokens"), 0o640, text.as_bytes())?)
    }

    fn environment(&self, way: &attach::Way) -> Vec<(String, String)> {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let library = self.library.display().to_string();
        let mut environment = vec![
            ("LD_LIBRARY_PATH", library.clone()),
            ("NUMBA_CUDA_DRIVER", format!("{library}/libcuda.so.1")),
            ("TRITON_LIBCUDA_PATH", library),
            ("DXPU_WORKER", way.address.to_string()),
            ("DXPU_WORKER_NAMES", way.name.clone()),
            ("DXPU_TOKEN_FILE", file("tokens")),
            ("DXPU_CA", file("ca.pem")),
        ];
        if way.is_soft {
            environment.push(("CUPY_COMPILE_WITH_PTX", "1".to_owned()));
        }
        environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}
