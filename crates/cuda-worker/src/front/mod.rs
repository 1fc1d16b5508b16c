//! The front: accepts connections and hands each to the process of its session.
//!
//! It reads 64 bytes of each connection and nothing else: no secret passes through it, and no driver lives in it.

mod child;
mod sessions;
mod watchers;

use crate::config::FrontConfig;
pub use child::SessionEvent;
use sessions::Sessions;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;
use transport::{Address, ConnectionKind, Listener, RawConnection, Stopper};
use watchers::Watchers;

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
}

/// A worker that is listening.
pub struct FrontHandle {
    addresses: Vec<Address>,
    stoppers: Vec<Stopper>,
    threads: Vec<JoinHandle<()>>,
    sessions: Arc<Sessions>,
    watchers: Arc<Watchers>,
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
    let addresses = listeners.iter().map(|listener| listener.address().clone()).collect();
    let stoppers = listeners.iter().map(Listener::stopper).collect();
    let config = Arc::new(config);
    let on_event: Arc<dyn Fn(SessionEvent) + Send + Sync> = Arc::new(on_event);
    let to_sessions = on_event.clone();
    let sessions = Sessions::start(config.clone(), Box::new(move |event| to_sessions(event)))
        .map_err(FrontError::Thread)?;
    let (watchers, keeper) = Watchers::start(config.clone(), on_event).map_err(FrontError::Thread)?;
    let reading = Arc::new(AtomicUsize::new(0));
    let mut threads = vec![keeper];
    for listener in listeners {
        let (config, desks, reading) =
            (config.clone(), (sessions.clone(), watchers.clone()), reading.clone());
        let thread = std::thread::Builder::new().name("dxpu-accept".to_owned());
        let run = move || accept(&listener, &config, &desks, &reading);
        threads.push(thread.spawn(run).map_err(FrontError::Thread)?);
    }
    Ok(FrontHandle { addresses, stoppers, threads, sessions, watchers })
}

impl FrontHandle {
    /// Where it listens; a port of 0 has become a real one.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Process numbers of the sessions that have a client.
    pub fn session_pids(&self) -> Vec<u32> {
        self.sessions.pids()
    }

    /// Stops accepting, ends every session and spare, and returns when their processes are gone.
    pub fn stop(self) {
        self.stoppers.iter().for_each(Stopper::stop);
        self.watchers.stop();
        for thread in self.threads {
            let _ = thread.join();
        }
        self.sessions.stop();
    }
}

/// Where a connection may go.
type Desks = (Arc<Sessions>, Arc<Watchers>);

fn accept(listener: &Listener, config: &Arc<FrontConfig>, desks: &Desks, reading: &Arc<AtomicUsize>) {
    loop {
        let raw = match listener.accept() {
            Ok(Some(raw)) => raw,
            Ok(None) => return,
            Err(error) => return tracing::error!(address = %listener.address(), %error, "stopped listening"),
        };
        if reading.load(Ordering::SeqCst) >= config.unauthenticated_max {
            raw.refuse("too many connections at once, try again");
            continue;
        }
        reading.fetch_add(1, Ordering::SeqCst);
        let (config, desks, counted) = (config.clone(), desks.clone(), Reading(reading.clone()));
        let thread = std::thread::Builder::new().name("dxpu-preamble".to_owned()).stack_size(128 << 10);
        // Without a thread the connection closes, which is all that can be done for it.
        let _ = thread.spawn(move || {
            let _counted = counted;
            route(raw, &config, &desks);
        });
    }
}

struct Reading(Arc<AtomicUsize>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn route(mut raw: RawConnection, config: &FrontConfig, (sessions, watchers): &Desks) {
    let preamble = match raw.read_preamble(Instant::now() + config.preamble_timeout) {
        Ok(preamble) => preamble,
        Err(error) => {
            let why = std::error::Error::source(&error).map(ToString::to_string);
            return tracing::debug!(peer = raw.peer(), %error, why, "a stranger was turned away");
        }
    };
    match preamble.kind {
        ConnectionKind::Command => sessions.begin(preamble.session, raw),
        ConnectionKind::Events | ConnectionKind::Lane => sessions.join(preamble.session, raw),
        ConnectionKind::Status => watchers.begin(raw),
    }
}
