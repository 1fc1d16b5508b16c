//! The guardian as a process runs it: listeners, a thread for each connection, and one that ends what is over.

mod connection;
mod delta;
mod help;
mod relay;

use crate::copy::{CopyTo, copy_on};
use crate::disk::{Disk, DiskError};
use crate::error::{Broken, Refusal};
use crate::peer::{PeerAddress, PeerSecurity};
use crate::protocol::{Mode, Open};
use crate::shelf::{Keep, Kept, Reader, Shelf, Writer};
use crate::stream::{Closer, Stream};
use connection::{Origin, serve};
use locks::{lock, wait_for};
use std::collections::HashMap;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime};
use thiserror::Error;
use transport::{Address, HostPort, Listener, Stopper};

/// How long an image without a writer stays, unless told otherwise: enough for a client to find another worker.
pub const KEEP: Duration = Duration::from_secs(600);

/// How long an image of a lease without a writer stays if the end of the lease is never told.
pub const KEEP_LEASED: Duration = Duration::from_secs(24 * 3600);

/// How long a suspended image stays on disk if it is never asked for.
pub const KEEP_PARKED: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long an image of a lease is without a writer before it goes to disk, unless told otherwise: longer than a client
/// looks for another worker.
pub const PARK_AFTER: Duration = Duration::from_secs(120);

/// When memory is short, images go to disk whose writers are gone for this long: a session that moves has opened its image
/// again by then.
const PARK_WHEN_SHORT: Duration = Duration::from_secs(2);

/// For so long memory counts as short after something did not fit: longer than [`PARK_WHEN_SHORT`], so that an image that was
/// left just then goes to disk, too.
const SHORT_FOR: Duration = Duration::from_secs(10);

/// How long another process may take for the rest of a message, or to take one.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connections of workers at a time. Each image has one or two.
const WORKERS_MAX: usize = 2048;

/// Connections of other guardians at a time. They have places of their own: strangers on the network cannot take those of
/// the workers.
const PEERS_MAX: usize = 512;

/// How often images are looked at whose time may be over.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A thread of a connection needs little: blocks are on the heap.
const STACK_BYTES: usize = 256 << 10;

/// What a guardian is told.
#[derive(Clone, Debug)]
pub struct GuardianConfig {
    /// The socket for the workers of this box.
    pub socket: PathBuf,
    /// The memory that all images together may take.
    pub bytes_max: u64,
    /// The most that one image may take; at most `bytes_max`.
    pub image_bytes_max: u64,
    /// How long an image without a writer stays.
    pub keep: Duration,
    /// The same for an image of a lease, unless the end of the lease is told before.
    pub keep_leased: Duration,
    /// Where guardians of other boxes reach it.
    pub listen: Option<PeerListen>,
    /// How guardians prove to each other what they are.
    pub security: PeerSecurity,
    /// The guardian that keeps a second copy of each image.
    pub copy_to: Option<PeerAddress>,
    /// How long a commit waits for the second copy before it says that there is one copy only. The copy is made in any
    /// case; with zero a commit never waits, and the store learns of the copy by [`crate::GuardedImage::state`].
    pub copy_wait: Duration,
    /// A private directory for images of suspended sessions; `None`: there is none.
    pub disk: Option<PathBuf>,
    /// How long a suspended image stays there if it is never asked for.
    pub keep_parked: Duration,
    /// How long an image of a lease is without a writer before it goes to disk. It goes sooner when memory is short.
    pub park_after: Duration,
}

/// Where guardians of other boxes reach a guardian.
#[derive(Clone, Debug)]
pub struct PeerListen {
    /// Where it listens; a port of 0 becomes a free one.
    pub at: HostPort,
    /// The host by which other boxes reach it.
    pub host: String,
    /// The name that its certificate is for, if that is not the host.
    pub name: Option<String>,
}

impl GuardianConfig {
    /// A guardian that only this box reaches.
    pub fn new(socket: PathBuf, bytes_max: u64) -> Self {
        Self {
            socket,
            bytes_max,
            image_bytes_max: bytes_max,
            keep: KEEP,
            keep_leased: KEEP_LEASED,
            listen: None,
            security: PeerSecurity::Alone,
            copy_to: None,
            copy_wait: Duration::ZERO,
            disk: None,
            keep_parked: KEEP_PARKED,
            park_after: PARK_AFTER,
        }
    }
}

/// Why a guardian cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Nobody can reach it.
    #[error("the guardian cannot listen at {address}")]
    Listen {
        /// Where.
        address: Address,
        /// As the system says it.
        #[source]
        source: io::Error,
    },
    /// The system gives it no thread.
    #[error("the guardian gets no thread")]
    Thread(#[source] io::Error),
    /// It cannot keep suspended images.
    #[error("the guardian cannot keep suspended images")]
    Disk(#[from] DiskError),
}

/// A guardian that runs. Dropping it stops it.
pub struct Guardian {
    shared: Arc<Shared>,
    stoppers: Vec<Stopper>,
    threads: Vec<JoinHandle<()>>,
}

/// What all threads of a guardian share.
pub(crate) struct Shared {
    pub(crate) shelf: Arc<Shelf>,
    /// Where other boxes reach it; empty if they cannot.
    pub(crate) address: String,
    connections: Mutex<HashMap<u64, (Origin, Closer)>>,
    /// How guardians prove to each other what they are.
    pub(crate) security: PeerSecurity,
    copy_to: Option<CopyTo>,
    copy_wait: Duration,
    disk: Option<Disk>,
    /// One image is read back from disk at a time.
    restoring: Mutex<()>,
    serials: AtomicU64,
    is_stopping: Mutex<bool>,
    stops: Condvar,
    connection_ended: Condvar,
}

impl Shared {
    fn is_stopping(&self) -> bool {
        *lock(&self.is_stopping)
    }

    /// The guardian that gets second copies; empty: none.
    fn copy_at(&self) -> String {
        self.copy_to.as_ref().map_or_else(String::new, |to| to.address.to_string())
    }

    /// Reads an image back that was suspended to disk, if there is one.
    fn bring_back(&self, open: &Open) -> Result<(), Refusal> {
        let Some(disk) = &self.disk else { return Ok(()) };
        let _one = lock(&self.restoring);
        if self.shelf.has(open) || !disk.has(open) {
            return Ok(());
        }
        let writer = self.shelf.open_to_write(open)?;
        match disk.restore(open, &writer) {
            Ok(()) => {
                writer.leave(Instant::now());
                Ok(())
            }
            Err(refusal) => {
                let _ = writer.end();
                Err(refusal)
            }
        }
    }

    /// Opens an image for a writer, after it was read back if it is on disk. It may go to disk between the two.
    fn open_to_write(&self, open: &Open) -> Result<Writer, Refusal> {
        loop {
            self.bring_back(open)?;
            let writer = self.shelf.open_to_write(open)?;
            let is_elsewhere =
                writer.state()?.committed == 0 && self.disk.as_ref().is_some_and(|disk| disk.has(open));
            if !is_elsewhere {
                return Ok(writer);
            }
            writer.end()?;
        }
    }

    /// The same for a reader.
    fn open_to_read(&self, open: &Open) -> Result<Reader, Refusal> {
        loop {
            self.bring_back(open)?;
            match self.shelf.open_to_read(open, open.mode == Mode::Fetch, Instant::now()) {
                Err(Refusal::NoSuchImage) if self.disk.as_ref().is_some_and(|disk| disk.has(open)) => {}
                opened => return opened,
            }
        }
    }

    /// Has the cuts of an image copied to the other guardian, if there is one.
    fn copy(self: &Arc<Self>, kept: &Arc<Kept>, incarnation: u64) {
        let Some(to) = self.copy_to.clone() else { return };
        if !kept.claim_copier(incarnation) {
            return;
        }
        let (shared, kept) = (self.clone(), kept.clone());
        let copies = move || copy_on(&shared.shelf, &kept, incarnation, &to, &|| shared.is_stopping());
        let thread = Builder::new().name("guardian-copy".to_owned()).stack_size(STACK_BYTES).spawn(copies);
        if let Err(error) = thread {
            tracing::error!(%error, "an image has no second copy: the system gives no thread");
        }
    }
}

impl Guardian {
    /// Listens, and serves with threads of its own.
    pub fn start(config: &GuardianConfig) -> Result<Self, StartError> {
        let local = bind(&Address::Unix(config.socket.clone()))?;
        let remote = config.listen.as_ref().map(|listen| listen.bind(&config.security)).transpose()?;
        let shared = Arc::new(Shared {
            shelf: Shelf::new(config.bytes_max, config.image_bytes_max),
            address: remote.as_ref().map_or_else(String::new, |(_, address)| address.clone()),
            security: config.security.clone(),
            copy_to: config
                .copy_to
                .clone()
                .map(|address| CopyTo { address, security: config.security.clone() }),
            copy_wait: config.copy_wait,
            disk: config.disk.as_deref().map(Disk::open).transpose()?,
            restoring: Mutex::new(()),
            connections: Mutex::default(),
            serials: AtomicU64::new(0),
            is_stopping: Mutex::new(false),
            stops: Condvar::new(),
            connection_ended: Condvar::new(),
        });
        let mut guardian = Self { shared: shared.clone(), stoppers: Vec::new(), threads: Vec::new() };
        let keep = Keep { plain: config.keep, leased: config.keep_leased };
        let reaping = shared.clone();
        let keep_parked = config.keep_parked;
        guardian.spawn("guardian-keep", move || reap(&reaping, keep, keep_parked))?;
        if shared.disk.is_some() {
            let (parking, after) = (shared.clone(), config.park_after);
            guardian.spawn("guardian-park", move || park(&parking, after))?;
        }
        guardian.accept(local, Origin::Worker, |fd| Ok(Stream::unix(UnixStream::from(fd), PATIENCE)?))?;
        if let Some((listener, _)) = remote {
            let security = config.security.clone();
            guardian.accept(listener, Origin::Guardian, move |fd| {
                let accepted = security.accept(TcpStream::from(fd), PATIENCE);
                accepted.map_err(|error| Broken::Refused(error.to_string()))
            })?;
        }
        Ok(guardian)
    }

    /// Where other boxes reach it; empty if they cannot.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// Ends all connections and zeroes all images.
    pub fn stop(mut self) {
        self.halt();
    }

    fn halt(&mut self) {
        *lock(&self.shared.is_stopping) = true;
        self.shared.stops.notify_all();
        self.stoppers.iter().for_each(Stopper::stop);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        // No new connection can come any more.
        lock(&self.shared.connections).values().for_each(|(_, closer)| closer.close());
        let until = Instant::now() + PATIENCE;
        let mut connections = lock(&self.shared.connections);
        while !connections.is_empty() && Instant::now() < until {
            connections = wait_for(&self.shared.connection_ended, connections, LOOK_EVERY);
        }
        drop(connections);
        self.shared.shelf.end_all();
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
        let thread = Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(run);
        self.threads.push(thread.map_err(StartError::Thread)?);
        Ok(())
    }

    /// Accepts connections; `prepare` runs on the connection's own thread.
    fn accept(
        &mut self,
        listener: Listener,
        origin: Origin,
        prepare: impl Fn(OwnedFd) -> Result<Stream, Broken> + Send + Sync + 'static,
    ) -> Result<(), StartError> {
        self.stoppers.push(listener.stopper());
        let (shared, prepare) = (self.shared.clone(), Arc::new(prepare));
        self.spawn("guardian-accept", move || {
            loop {
                match listener.accept() {
                    Ok(Some(raw)) => begin(&shared, raw.into_fd(), origin, prepare.clone()),
                    Ok(None) => break,
                    Err(error) => {
                        tracing::error!(%error, address = %listener.address(), "cannot accept connections any more");
                        break;
                    }
                }
            }
        })
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.halt();
    }
}

impl PeerListen {
    /// The listener, and the address that other guardians are told.
    fn bind(&self, security: &PeerSecurity) -> Result<(Listener, String), StartError> {
        let listener = bind(&Address::Tcp(self.at.clone()))?;
        let port = match listener.address() {
            Address::Tcp(at) | Address::Tls(at) => at.port,
            Address::Unix(_) | Address::Shm(_) | Address::Pcie(_) => self.at.port,
        };
        let at = HostPort { host: self.host.clone(), port };
        let address = match (security, &self.name) {
            (PeerSecurity::Mutual(_), Some(name)) => format!("tls:{at}/{name}"),
            (PeerSecurity::Mutual(_), None) => format!("tls:{at}"),
            (PeerSecurity::Plain | PeerSecurity::Alone, _) => format!("tcp:{at}"),
        };
        Ok((listener, address))
    }
}

fn bind(address: &Address) -> Result<Listener, StartError> {
    Listener::bind(address).map_err(|source| StartError::Listen { address: address.clone(), source })
}

/// Serves a connection on a thread of its own.
fn begin(
    shared: &Arc<Shared>,
    fd: OwnedFd,
    origin: Origin,
    prepare: Arc<impl Fn(OwnedFd) -> Result<Stream, Broken> + Send + Sync + 'static>,
) {
    let Ok(socket) = fd.try_clone() else { return };
    let mut connections = lock(&shared.connections);
    let others = connections.values().filter(|(other, _)| *other == origin).count();
    if others >= if origin == Origin::Worker { WORKERS_MAX } else { PEERS_MAX } {
        tracing::warn!(?origin, others, "a connection is turned away: there are too many");
        return;
    }
    let serial = shared.serials.fetch_add(1, Ordering::Relaxed);
    connections.insert(serial, (origin, Closer(socket)));
    drop(connections);
    let serving = shared.clone();
    let thread = Builder::new().name("guardian-serve".to_owned()).stack_size(STACK_BYTES).spawn(move || {
        let _place = Place { shared: &serving, serial };
        let served = prepare(fd).and_then(|stream| serve(&serving, stream, origin));
        match served {
            Ok(()) | Err(Broken::Closed) => {}
            Err(broken) => tracing::info!(%broken, ?origin, "a connection broke"),
        }
    });
    if thread.is_err() {
        lock(&shared.connections).remove(&serial);
    }
}

/// A connection's place among all, given back however its thread ends.
struct Place<'a> {
    shared: &'a Shared,
    serial: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        lock(&self.shared.connections).remove(&self.serial);
        self.shared.connection_ended.notify_all();
    }
}

fn reap(shared: &Shared, keep: Keep, keep_parked: Duration) {
    let mut is_stopping = lock(&shared.is_stopping);
    while !*is_stopping {
        is_stopping = wait_for(&shared.stops, is_stopping, LOOK_EVERY);
        drop(is_stopping);
        let ended = shared.shelf.reap(Instant::now(), keep);
        if ended > 0 {
            tracing::info!(ended, "images were zeroed: no session came back for them");
        }
        let removed = shared.disk.as_ref().map_or(0, |disk| disk.reap(SystemTime::now(), keep_parked));
        if removed > 0 {
            tracing::info!(removed, "suspended images were removed: no session came back for them");
        }
        is_stopping = lock(&shared.is_stopping);
    }
}

/// Writes suspended images to disk: after a while, or soon when memory is short.
fn park(shared: &Shared, after: Duration) {
    let Some(disk) = &shared.disk else { return };
    let mut short_until = None;
    let mut is_stopping = lock(&shared.is_stopping);
    while !*is_stopping {
        is_stopping = wait_for(&shared.stops, is_stopping, LOOK_EVERY);
        drop(is_stopping);
        if shared.shelf.budget().takes_shortage() {
            short_until = Some(Instant::now() + SHORT_FOR);
        }
        let is_short = short_until.is_some_and(|until| Instant::now() < until);
        let time = if is_short { after.min(PARK_WHEN_SHORT) } else { after };
        for kept in shared.shelf.suspended(Instant::now(), time) {
            if shared.is_stopping() {
                break;
            }
            match shared.shelf.park(disk, &kept) {
                Ok(is_parked) => {
                    shared.shelf.budget().set_obstacle(String::new());
                    tracing::info!(is_parked, lease = kept.lease(), "a suspended image went to disk");
                }
                Err(refusal) => {
                    let obstacle = format!("A suspended image cannot make room: {refusal}");
                    tracing::warn!(%refusal, lease = kept.lease(), "a suspended image stays in memory");
                    shared.shelf.budget().set_obstacle(obstacle);
                    break;
                }
            }
        }
        is_stopping = lock(&shared.is_stopping);
    }
}
