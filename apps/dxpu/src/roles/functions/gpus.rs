//! GPUs for functions: a lease for each, held as long as instances use it.
//!
//! A lease is of a whole GPU. Each instance on it has a token for a part of the lease, which the manager signs: the worker lets
//! its session have the memory that the function declared and no more, and lets one session at a time in for each part.

mod holder;
mod sweep;

use crate::borrower::borrow::attach;
use crate::support::library;
use crate::support::pool_access::PoolAccess;
use functions::{InstanceId, SlotId};
use functions_gateway::{GpuNews, GpuPart, GpuWay, Gpus, NoWay, NotHeld};
use holder::Holder;
use machine::files;
use pool_api::{LeaseId, LeaseTokens, Name};
use pool_client::{Client, Patience};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use sweep::Swept;

/// By this the leases of a service that was killed are found.
const LABEL: &str = "dxpu-functions";
/// How long a worker may take to be there.
const ATTACH_WITHIN: Duration = Duration::from_secs(30);
/// Before a manager or a worker that does not answer is asked again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How often a thread looks whether another has done its part.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A service that ends waits so long for a manager; leases that it leaves end by themselves.
const RETURN_WITHIN: Duration = Duration::from_secs(25);
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
        let swept = Swept::start(&self.access);
        Arc::new(Held {
            access: self.access,
            library: self.library,
            news,
            swept,
            holders: Mutex::default(),
            returning: Mutex::default(),
        })
    }
}

struct Held {
    access: PoolAccess,
    library: PathBuf,
    news: News,
    swept: Swept,
    /// Dropping one has its thread give the lease back.
    holders: Mutex<HashMap<SlotId, Holding>>,
    returning: Mutex<Vec<Arc<Place>>>,
}

/// What the service knows of a GPU that a thread holds.
struct Holding {
    place: Arc<Place>,
    _stop: Sender<()>,
}

/// A GPU, for those that would use it.
#[derive(Default)]
struct Place {
    /// By which lease it is held.
    granted: Mutex<Option<LeaseId>>,
    parts: Mutex<Vec<GpuPart>>,
    /// Its worker does not let an instance in, though the manager says that it should.
    is_deaf: AtomicBool,
    /// It is not to be used any more.
    is_over: AtomicBool,
    /// Its lease is over.
    is_returned: AtomicBool,
}

/// Why an instance has no way to its GPU yet.
#[derive(Debug, thiserror::Error)]
enum NotYet {
    #[error("{0:#}")]
    Token(anyhow::Error),
    #[error("{0:#}")]
    Worker(anyhow::Error),
}

impl Gpus for Held {
    fn ask(&self, slot: SlotId, tenant: &str, declared_mb: u32, is_spare: bool) {
        let (stop, stopped) = channel();
        let place = Arc::new(Place::default());
        let holder = Holder {
            access: self.access.clone(),
            news: self.news.clone(),
            slot,
            tenant: tenant.to_owned(),
            declared_mb,
            is_spare,
            place: place.clone(),
            swept: self.swept.clone(),
            returning: self.still_returning(),
        };
        std::thread::spawn(move || {
            let held = holder.hold(&stopped);
            if let Err(error) = held {
                (holder.news)(GpuNews::Lost { slot: holder.slot, why: format!("{error:#}") });
            }
            // After the news: an instance that is being started is ended by it, and not for a failure of its own.
            holder.place.is_over.store(true, Ordering::SeqCst);
            holder.place.is_returned.store(true, Ordering::SeqCst);
        });
        let mut holders = locks::lock(&self.holders);
        // Those that were lost: nobody gives them back.
        holders.retain(|_, held| !held.place.is_returned.load(Ordering::SeqCst));
        holders.insert(slot, Holding { place, _stop: stop });
    }

    fn open(&self, part: &GpuPart) -> Result<GpuWay, NotHeld> {
        let place =
            locks::lock(&self.holders).get(&part.slot).map(|held| held.place.clone()).ok_or(NotHeld)?;
        let mut deaf_since: Option<Instant> = None;
        while !place.is_over.load(Ordering::SeqCst) {
            let lease = locks::lock(&place.granted).ok_or(NotHeld)?;
            match self.way_to(lease, part) {
                Ok(environment) => {
                    locks::lock(&place.parts).push(part.clone());
                    return Ok(environment);
                }
                Err(error) => {
                    tracing::debug!(%error, "an instance has no way to its GPU yet");
                    // Without a manager the GPU is kept: other instances have their sessions.
                    deaf_since = match error {
                        NotYet::Token(_) => None,
                        NotYet::Worker(_) => deaf_since.or_else(|| Some(Instant::now())),
                    };
                }
            }
            if deaf_since.is_some_and(|since| since.elapsed() >= ATTACH_WITHIN) {
                // Its thread gives it up and says so.
                place.is_deaf.store(true, Ordering::SeqCst);
            }
            std::thread::sleep(AGAIN_AFTER);
        }
        Err(NotHeld)
    }

    fn try_open(&self, part: &GpuPart) -> Result<GpuWay, NoWay> {
        let place = locks::lock(&self.holders).get(&part.slot).map(|held| held.place.clone());
        let place = place.ok_or(NotHeld)?;
        let lease = locks::lock(&place.granted).ok_or(NotHeld)?;
        let way = self.way_to(lease, part).map_err(|error| NoWay::Refused { why: error.to_string() })?;
        let mut parts = locks::lock(&place.parts);
        parts.retain(|other| other.instance != part.instance);
        parts.push(part.clone());
        Ok(way)
    }

    fn left(&self, slot: SlotId, instance: InstanceId) {
        let Some(place) = locks::lock(&self.holders).get(&slot).map(|held| held.place.clone()) else {
            return;
        };
        locks::lock(&place.parts).retain(|part| {
            let is_gone = part.instance == instance;
            if is_gone {
                let _ = std::fs::remove_file(token_file(part));
            }
            !is_gone
        });
    }

    fn give_back(&self, slot: SlotId) {
        let Some(held) = locks::lock(&self.holders).remove(&slot) else { return };
        held.place.is_over.store(true, Ordering::SeqCst);
        locks::lock(&self.returning).push(held.place.clone());
        let Some(lease) = *locks::lock(&held.place.granted) else { return };
        let access = self.access.clone();
        // Its own thread waits for the manager's word that the lease has changed: this is one.
        std::thread::spawn(move || access.patient(PATIENCE).map(|client| client.release_lease(lease)));
    }
}

impl Held {
    fn still_returning(&self) -> Vec<Arc<Place>> {
        let mut returning = locks::lock(&self.returning);
        returning.retain(|place| !place.is_returned.load(Ordering::SeqCst));
        returning.clone()
    }

    /// A token, and a worker that would let its bearer in. The worker may have been started again at another address since the
    /// lease was granted: an instance that was sent to the old one would fail, and its invocation with it.
    fn way_to(&self, lease: LeaseId, part: &GpuPart) -> Result<GpuWay, NotYet> {
        let client = self.access.patient(PATIENCE).map_err(NotYet::Token)?;
        let tokens = part_tokens(&client, lease, part).map_err(NotYet::Token)?;
        let no_grant = || NotYet::Token(anyhow::anyhow!("the lease has no GPU"));
        let grant = tokens.grants.first().ok_or_else(no_grant)?;
        let way = attach::way_by_network(grant, &tokens.ca_certificate);
        let way = way.map_err(|failure| NotYet::Worker(failure.into()))?;
        let ca = files::replace(&part.folder.join("ca.pem"), 0o640, tokens.ca_certificate.as_bytes());
        ca.map_err(|error| NotYet::Token(error.into()))?;
        write(part, &tokens).map_err(NotYet::Token)?;
        let spot = format!("{} {}", grant.gpu, grant.epoch);
        let place = keeper::Place {
            address: way.address.to_string(),
            name: way.name.clone(),
            token_file: token_file(part).display().to_string(),
            ca_file: Some(part.folder.join("ca.pem").display().to_string()),
            ..keeper::Place::default()
        };
        Ok(GpuWay { environment: self.environment(&way, part), place, spot })
    }

    fn environment(&self, way: &attach::Way, part: &GpuPart) -> Vec<(String, String)> {
        let library = self.library.display().to_string();
        let mut environment = vec![
            ("LD_LIBRARY_PATH", library.clone()),
            ("NUMBA_CUDA_DRIVER", format!("{library}/libcuda.so.1")),
            ("TRITON_LIBCUDA_PATH", library),
            ("DXPU_WORKER", way.address.to_string()),
            ("DXPU_WORKER_NAMES", way.name.clone()),
            ("DXPU_TOKEN_FILE", token_file(part).display().to_string()),
            ("DXPU_CA", part.folder.join("ca.pem").display().to_string()),
        ];
        // The next instance of a function loads the same modules and copies the same weights.
        if std::env::var_os("DXPU_CONTENT").is_none_or(|wish| wish != "0") {
            environment.push(("DXPU_CONTENT", "1".to_owned()));
        }
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

/// Each place of an instance has its own: while it moves it needs two.
fn token_file(part: &GpuPart) -> PathBuf {
    part.folder.join(format!("tokens-{}", part.number))
}

fn write(part: &GpuPart, tokens: &LeaseTokens) -> anyhow::Result<()> {
    let text: String = tokens.grants.iter().map(|grant| format!("{}\n", grant.token)).collect();
    Ok(files::replace(&token_file(part), 0o640, text.as_bytes())?)
}

impl Drop for Held {
    /// The service ends: its GPUs are back in the pool when it is gone.
    fn drop(&mut self) {
        let slots: Vec<SlotId> = locks::lock(&self.holders).keys().copied().collect();
        slots.into_iter().for_each(|slot| self.give_back(slot));
        let until = Instant::now() + RETURN_WITHIN;
        while !self.still_returning().is_empty() && Instant::now() < until {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
