//! A thread that campaigns, keeps the leadership alive, and tells how it stands.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::StoreError;
use crate::leadership::{Campaign, Candidacy, Leader, Leadership};
use crate::store::Store;

/// How an [`Elector`] stands. Told when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// We lead.
    Leading(Leadership),
    /// Another process leads, or, as far as we can see, none.
    Following(Option<Leader>),
}

/// Campaigns until it leads, keeps the leadership alive, and campaigns again when it is lost.
///
/// Dropping it resigns. That a [`Standing::Leading`] is out of date is no danger: the store refuses the writes.
pub struct Elector {
    standings: Receiver<Standing>,
    good_until: Arc<Mutex<Option<Instant>>>,
    ttl: Duration,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Elector {
    /// Starts the thread.
    pub fn start(store: Arc<dyn Store>, candidacy: Candidacy) -> Self {
        let (tell, standings) = channel();
        let (stop, stopped) = channel();
        let good_until = Arc::new(Mutex::new(None));
        let ttl = candidacy.ttl;
        let office = Office { store, candidacy, tell, stopped, good_until: good_until.clone() };
        let thread = std::thread::Builder::new()
            .name("elector".into())
            .spawn(move || office.run())
            .expect("a thread can be started");
        Self { standings, good_until, ttl, stop: Some(stop), thread: Some(thread) }
    }

    /// What to wait on: each change of standing, the first one soon after the start.
    pub fn standings(&self) -> &Receiver<Standing> {
        &self.standings
    }

    /// Whether the last sign of life that the store has seen from us is younger than the time to live.
    ///
    /// Known at once, even while a call to the store hangs.
    pub fn is_leading(&self) -> bool {
        let good_until = *self.good_until.lock().unwrap_or_else(PoisonError::into_inner);
        good_until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether the store has confirmed just now that we lead: within half the time to live, in which it is asked twice.
    ///
    /// Earlier than [`Elector::is_leading`] this tells that the store is gone.
    pub fn is_confirmed(&self) -> bool {
        let good_until = *self.good_until.lock().unwrap_or_else(PoisonError::into_inner);
        good_until.is_some_and(|until| until.saturating_duration_since(Instant::now()) > self.ttl / 2)
    }
}

impl Drop for Elector {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Office {
    store: Arc<dyn Store>,
    candidacy: Candidacy,
    tell: Sender<Standing>,
    stopped: Receiver<()>,
    good_until: Arc<Mutex<Option<Instant>>>,
}

impl Office {
    fn run(self) {
        let mut told: Option<Standing> = None;
        loop {
            let asked_at = Instant::now();
            let standing = match self.store.campaign(&self.candidacy) {
                Ok(Campaign::Won(leadership)) => Standing::Leading(leadership),
                Ok(Campaign::Led(leader)) => Standing::Following(Some(leader)),
                Err(error) => {
                    tracing::debug!(name = self.candidacy.name, error = %with_causes(&error), "the store did not take this process's candidacy; it asks again");
                    Standing::Following(None)
                }
            };
            if let Standing::Leading(leadership) = &standing {
                self.set_good_until(Some(asked_at + leadership.ttl));
            }
            if told.as_ref() != Some(&standing) {
                told = Some(standing.clone());
                let _ = self.tell.send(standing.clone());
            }
            if let Standing::Leading(leadership) = standing {
                tracing::info!(
                    name = leadership.name,
                    tenure = leadership.tenure.0,
                    "this process leads the election"
                );
                if self.lead(&leadership, asked_at) == Ending::Stopped {
                    return;
                }
                tracing::warn!(
                    name = leadership.name,
                    tenure = leadership.tenure.0,
                    "this process lost the election: the store did not see it in time"
                );
                told = Some(Standing::Following(None));
                let _ = self.tell.send(Standing::Following(None));
            }
            if self.is_stopped_within(campaign_interval(self.candidacy.ttl)) {
                return;
            }
        }
    }

    /// Keeps the leadership alive until it is lost or we are told to stop.
    fn lead(&self, leadership: &Leadership, began: Instant) -> Ending {
        let mut good_until = began + leadership.ttl;
        loop {
            if self.is_stopped_within(leadership.ttl / KEEP_ALIVES_PER_TTL) {
                self.set_good_until(None);
                if let Err(error) = self.store.resign(leadership) {
                    tracing::debug!(name = leadership.name, error = %with_causes(&error), "cannot resign; the leadership ends by itself after its time to live");
                }
                return Ending::Stopped;
            }
            let asked_at = Instant::now();
            match self.store.keep_alive(leadership) {
                Ok(()) => {
                    good_until = asked_at + leadership.ttl;
                    self.set_good_until(Some(good_until));
                }
                Err(StoreError::LeadershipLost { .. }) => break,
                Err(error) => {
                    tracing::debug!(name = leadership.name, error = %with_causes(&error), "the store did not take a sign of life; this process sends another");
                    if Instant::now() >= good_until {
                        break;
                    }
                }
            }
        }
        self.set_good_until(None);
        Ending::Lost
    }

    fn is_stopped_within(&self, wait: Duration) -> bool {
        self.stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout)
    }

    fn set_good_until(&self, until: Option<Instant>) {
        *self.good_until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

#[derive(PartialEq, Eq)]
enum Ending {
    Lost,
    Stopped,
}

/// Two may be lost before the leadership is.
const KEEP_ALIVES_PER_TTL: u32 = 4;

/// How often a follower looks: a small part of the time a takeover takes anyway, and no load to speak of.
fn campaign_interval(ttl: Duration) -> Duration {
    (ttl / 20).clamp(Duration::from_millis(20), Duration::from_millis(200))
}

fn with_causes(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
