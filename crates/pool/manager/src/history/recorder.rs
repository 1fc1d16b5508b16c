//! The part of the leader's thread that keeps the history: when to look, and what to store.

use std::sync::{Arc, Mutex};

use locks::lock;
use pool::Ledger;
use pool_store::{Store, Want};

use super::gather::Gathering;
use super::{History, SAMPLE_MS, StoredStep};
use crate::records;

/// Finished steps of the day are below this.
const PREFIX: &str = "history/";

/// Looks every ten seconds, a piece at each tick.
pub(crate) struct Recorder {
    history: Arc<Mutex<History>>,
    gathering: Option<(u64, Gathering)>,
    /// The number of the last look.
    last: Option<u64>,
}

impl Recorder {
    /// Begins with what earlier leaders stored. History is no reason not to lead: what cannot be read is left out.
    pub(crate) fn begin(history: Arc<Mutex<History>>, store: &dyn Store, now_ms: u64) -> Self {
        let listed = store.list(PREFIX, Want::Records).and_then(|pages| pages.records());
        match listed {
            Ok(stored) => {
                let read = |record: pool_store::Record| records::HISTORY.read(&record.value).ok();
                lock(&history).restore(stored.into_iter().filter_map(read), now_ms);
            }
            Err(error) => {
                tracing::warn!(%error, "the leader cannot read the history from the store; its charts begin now");
            }
        }
        Self { history, gathering: None, last: None }
    }

    /// Does what is due. Returns a record to store, at most one in two minutes.
    pub(crate) fn tick(&mut self, ledger: &Ledger, now_ms: u64) -> Option<(String, Vec<u8>)> {
        let number = now_ms / SAMPLE_MS;
        if self.gathering.is_none() && self.last.is_none_or(|last| last < number) {
            self.last = Some(number);
            self.gathering = Some((now_ms, Gathering::default()));
        }
        let (began_ms, gathering) = self.gathering.as_mut()?;
        let (began_ms, sample) = (*began_ms, gathering.go_on(ledger)?);
        self.gathering = None;
        let finished = lock(&self.history).add(began_ms, sample)?;
        Some((key(&finished), records::HISTORY.write(&finished)))
    }
}

fn key(step: &StoredStep) -> String {
    format!("{PREFIX}{:03}", step.slot())
}
