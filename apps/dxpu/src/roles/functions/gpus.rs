//! GPUs for functions: a lease for each, held as long as instances use it.
//!
//! A lease is of a whole GPU. Each instance on it has a token for a part of the lease, which the manager signs: the worker lets
//! its session have the memory that the function declared and no more, and lets one session at a time in for each part.

use crate::borrower::borrow::attach;
use crate::support::library;
use crate::support::pool_access::PoolAccess;
use functions::SlotId;
use functions_gateway::{GpuNews, GpuPart, Gpus, NotHeld};
use machine::files;
use pool_api::{Lease, LeaseId, LeaseRequest, LeaseState, LeaseTokens, Name};
use pool_client::{Client, Patience};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
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
/// Before a manager that does not answer is asked again for a token.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Tokens last for a day.
const NEW_TOKENS_EVERY: Duration = Duration::from_secs(3600);
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
    /// Dropping one has its thread give the lease back.
    holders: Mutex<HashMap<SlotId, Holding>>,
}

/// What the service knows of a GPU that a thread holds.
struct Holding {
    place: Arc<Place>,
    _stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// A GPU, for those that would use it.
#[derive(Default)]
struct Place {
    /// By which lease it is held, and where it is.
    granted: Mutex<Option<(LeaseId, attach::Way)>>,
    parts: Mutex<Vec<GpuPart>>,
    is_over: AtomicBool,
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
    fn ask(&self, slot: SlotId, tenant: &str, declared_mb: u32) {
        let (stop, stopped) = channel();
        let place = Arc::new(Place::default());
        let holder = Holder {
            access: self.access.clone(),
            news: self.news.clone(),
            slot,
            tenant: tenant.to_owned(),
            declared_mb,
            place: place.clone(),
        };
        let thread = std::thread::spawn(move || {
            let held = holder.hold(&stopped);
            if let Err(error) = held {
                (holder.news)(GpuNews::Lost { slot: holder.slot, why: format!("{error:#}") });
            }
            // After the news: an instance that is being started is ended by it, and not for a failure of its own.
            holder.place.is_over.store(true, Ordering::SeqCst);
        });
        locks::lock(&self.holders).insert(slot, Holding { place, _stop: stop, thread });
    }

    fn open(&self, part: &GpuPart) -> Result<Vec<(String, String)>, NotHeld> {
        let place =
            locks::lock(&self.holders).get(&part.slot).map(|held| held.place.clone()).ok_or(NotHeld)?;
        loop {
            if place.is_over.load(Ordering::SeqCst) {
                return Err(NotHeld);
            }
            match self.try_open(&place, part) {
                Ok(Some(environment)) => return Ok(environment),
                Ok(None) => return Err(NotHeld),
                Err(error) => tracing::debug!(%error, "no token for an instance yet"),
            }
            std::thread::sleep(AGAIN_AFTER);
        }
    }

    fn give_back(&self, slot: SlotId) {
        if let Some(held) = locks::lock(&self.holders).remove(&slot) {
            held.place.is_over.store(true, Ordering::SeqCst);
        }
    }
}

impl Held {
    fn try_open(&self, place: &Place, part: &GpuPart) -> anyhow::Result<Option<Vec<(String, String)>>> {
        let Some((lease, way)) = locks::lock(&place.granted).clone() else { return Ok(None) };
        let client = self.access.patient(PATIENCE)?;
        let tokens = part_tokens(&client, lease, part)?;
        files::replace(&part.folder.join("ca.pem"), 0o640, tokens.ca_certificate.as_bytes())?;
        write(part, &tokens)?;
        locks::lock(&place.parts).push(part.clone());
        Ok(Some(self.environment(&way, &part.folder)))
    }

    fn environment(&self, way: &attach::Way, folder: &Path) -> Vec<(String, String)> {
        let file = |name: &str| folder.join(name).display().to_string();
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

/// The token of one instance. Instances of one tenant trust each other with what their box keeps for them; the tenant's name
/// may have letters that no name of the pool has.
fn part_tokens(client: &Client, lease: LeaseId, part: &GpuPart) -> anyhow::Result<LeaseTokens> {
    let group = functions::sha256_hex(part.tenant.as_bytes());
    let name: Name = format!("{}.{}", &group[..16], part.instance.0).parse()?;
    Ok(client.part_tokens(lease, &name, u64::from(part.declared_mb) << 20)?)
}

fn write(part: &GpuPart, tokens: &LeaseTokens) -> anyhow::Result<()> {
    let text: String = tokens.grants.iter().map(|grant| format!("{}\n", grant.token)).collect();
    Ok(files::replace(&part.folder.join("tokens"), 0o640, text.as_bytes())?)
}

impl Drop for Held {
    /// The service ends: its GPUs are back in the pool when it is gone.
    fn drop(&mut self) {
        let held = std::mem::take(&mut *locks::lock(&self.holders));
        let threads: Vec<JoinHandle<()>> = held.into_values().map(|held| held.thread).collect();
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Holds one lease, in a thread of its own.
struct Holder {
    access: PoolAccess,
    news: News,
    slot: SlotId,
    tenant: String,
    declared_mb: u32,
    place: Arc<Place>,
}

impl Holder {
    /// Returns when the GPU was given back; fails when it is lost.
    fn hold(&self, stopped: &Receiver<()>) -> anyhow::Result<()> {
        let client = self.access.patient(PATIENCE)?;
        let request = LeaseRequest {
            memory_bytes: Some(u64::from(self.declared_mb) << 20),
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

    fn use_lease(&self, client: &Client, mut lease: Lease, stopped: &Receiver<()>) -> anyhow::Result<()> {
        let until = Instant::now() + GRANT_WITHIN;
        while lease.state == LeaseState::Pending {
            if stopped.try_recv() != Err(TryRecvError::Empty) {
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
        let way = attach(client, &lease)?;
        let gpu = lease.grants.first().map(|grant| grant.gpu.clone());
        let total = client.gpus()?.into_iter().find(|found| Some(&found.id) == gpu.as_ref());
        let total_mb = total.map_or(u64::from(self.declared_mb), |gpu| gpu.memory_bytes >> 20);
        *locks::lock(&self.place.granted) = Some((lease.id, way));
        (self.news)(GpuNews::Granted { slot: self.slot, total_mb });
        self.renew(client, &lease, stopped)
    }

    fn renew(&self, client: &Client, lease: &Lease, stopped: &Receiver<()>) -> anyhow::Result<()> {
        let every = Duration::from_millis(lease.request.ttl_ms / 6);
        let mut heard = Instant::now();
        let mut signed = Instant::now();
        while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            match client.renew_lease(lease.id) {
                Ok(now) => {
                    let is_same = now.state == LeaseState::Granted && now.grants == lease.grants;
                    anyhow::ensure!(is_same, "its GPU was lost, and the lease with it");
                    heard = Instant::now();
                }
                // Sessions go on without a manager until the token is over.
                Err(error) if heard.elapsed() >= Duration::from_millis(lease.request.ttl_ms) => {
                    return Err(error.into());
                }
                Err(_) => {}
            }
            if signed.elapsed() >= NEW_TOKENS_EVERY {
                signed = Instant::now();
                self.sign_again(client, lease.id);
            }
        }
        Ok(())
    }

    /// New tokens for the instances that are still there. One that fails is asked for again in an hour: the old one lasts.
    fn sign_again(&self, client: &Client, lease: LeaseId) {
        let mut parts = locks::lock(&self.place.parts);
        parts.retain(|part| part.folder.is_dir());
        for part in parts.iter() {
            if let Ok(tokens) = part_tokens(client, lease, part) {
                let _ = write(part, &tokens);
            }
        }
    }
}

/// Waits until the GPU's worker is there.
fn attach(client: &Client, lease: &Lease) -> anyhow::Result<attach::Way> {
    let until = Instant::now() + ATTACH_WITHIN;
    loop {
        let tokens = client.lease_tokens(lease.id)?;
        let grant = tokens.grants.first();
        match grant.map(|grant| attach::way_by_network(grant, &tokens.ca_certificate)) {
            Some(Ok(way)) => return Ok(way),
            Some(Err(error)) if Instant::now() >= until => return Err(error.into()),
            Some(Err(_)) => std::thread::sleep(Duration::from_millis(200)),
            None => anyhow::bail!("the lease has no GPU"),
        }
    }
}
