//! The front: hears every client's first words, and hands a client that may come in to the process of its session.
//!
//! Clients show their token here, before a process is taken for them. No driver lives in it.

mod bell;
mod child;
mod door;
mod sessions;
mod spares;
mod strangers;
mod turned_away;
mod watchers;

use crate::config::FrontConfig;
use bell::Bell;
pub use child::SessionEvent;
use door::{Door, Hall};
use locks::lock;
use sessions::Sessions;
pub(crate) use sessions::random_name;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use transport::{Address, IdentityError, Listener, Stopper};
pub use turned_away::Reason;
use watchers::Watchers;

type OnEvent = Arc<dyn Fn(SessionEvent) + Send + Sync>;

/// Why a worker could not start.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// An address cannot be listened at.
    #[error("cannot listen at {address}")]
    Listen {
        /// Which.
        address: Address,
        /// What the system says.
        source: io::Error,
    },
    /// No thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// A certificate or key that cannot be used.
    #[error("cannot use the TLS identity")]
    Identity(#[source] IdentityError),
}

/// A worker that is listening.
pub struct FrontHandle {
    addresses: Vec<Address>,
    stoppers: Vec<Stopper>,
    threads: Vec<JoinHandle<()>>,
    hall: Arc<Hall>,
}

/// Listens at all addresses. `on_event` hears of sessions that begin and end.
pub fn serve_listener(
    config: FrontConfig,
    on_event: impl Fn(SessionEvent) + Send + Sync + 'static,
) -> Result<FrontHandle, FrontError> {
    let mut listeners = Vec::new();
    for address in &config.addresses {
        let bound = Listener::bind(address);
        listeners.push(bound.map_err(|source| FrontError::Listen { address: address.clone(), source })?);
    }
    let mut config = config;
    // Names this worker in handles that its sessions share. Not a secret.
    config.session.worker =
        random_name().map_or(0, |name| u64::from_le_bytes(name[..8].try_into().unwrap_or_default()));
    let security = config.session.security().map_err(FrontError::Identity)?;
    let addresses = listeners.iter().map(|listener| listener.address().clone()).collect();
    let stoppers = listeners.iter().map(Listener::stopper).collect();
    let config = Arc::new(config);
    let on_event: OnEvent = Arc::new(on_event);
    let bells: io::Result<Vec<Arc<Bell>>> = listeners.iter().map(|_| Bell::new().map(Arc::new)).collect();
    let bells = bells.map_err(FrontError::Thread)?;
    let sessions =
        Sessions::start(config.clone(), bells.clone(), on_event.clone()).map_err(FrontError::Thread)?;
    let (watchers, keeper) = Watchers::start(config.clone(), on_event.clone()).map_err(FrontError::Thread)?;
    let turned_away = Default::default();
    let hall = Arc::new(Hall { config, security, sessions, watchers, turned_away, on_event });
    let mut threads = vec![keeper];
    for (listener, bell) in listeners.into_iter().zip(bells) {
        let door = Door::new(hall.clone(), listener, bell);
        let thread = std::thread::Builder::new().name("dxpu-door".to_owned());
        threads.push(thread.spawn(move || door.attend()).map_err(FrontError::Thread)?);
    }
    Ok(FrontHandle { addresses, stoppers, threads, hall })
}

impl FrontHandle {
    /// Where it listens; a port of 0 has become a real one.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Process numbers of the sessions that have a client.
    pub fn session_pids(&self) -> Vec<u32> {
        self.hall.sessions.pids()
    }

    /// How many clients were turned away at the door so far, by reason.
    pub fn turned_away(&self) -> Vec<(Reason, u64)> {
        lock(&self.hall.turned_away).totals()
    }

    /// Stops accepting, ends every session and spare, and returns when their processes are gone.
    pub fn stop(self) {
        self.stoppers.iter().for_each(Stopper::stop);
        self.hall.watchers.stop();
        for thread in self.threads {
            let _ = thread.join();
        }
        self.hall.sessions.stop();
    }
}
