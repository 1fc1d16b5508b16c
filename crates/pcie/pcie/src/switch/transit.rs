//! Requests of the root complex that a slot's device has not answered yet.

use std::collections::HashMap;

use tlp::{Completion, Header, TransactionId};
use units::Time;

/// More than any requester has tags, for a few requesters.
const OPEN_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct Transit {
    open: HashMap<TransactionId, (Header, Time)>,
}

impl Transit {
    /// Notes a request; false when its transaction is open already.
    pub(super) fn open(&mut self, header: &Header, deadline: Time) -> bool {
        let id = header.id();
        if self.open.len() >= OPEN_MAX || self.open.contains_key(&id) {
            return false;
        }
        self.open.insert(id, (*header, deadline));
        true
    }

    /// Notes an answer; false when no open request waits for it.
    pub(super) fn close(&mut self, completion: &Completion) -> bool {
        if !self.open.contains_key(&completion.id) {
            return false;
        }
        if completion.is_last() {
            self.open.remove(&completion.id);
        }
        true
    }

    /// Takes the requests that have waited too long, in the order of their transactions.
    pub(super) fn take_late(&mut self, now: Time) -> Vec<Header> {
        let late: Vec<TransactionId> =
            self.open.iter().filter(|(_, (_, deadline))| *deadline <= now).map(|(id, _)| *id).collect();
        self.take(late)
    }

    /// Takes all requests.
    pub(super) fn take_all(&mut self) -> Vec<Header> {
        let all = self.open.keys().copied().collect();
        self.take(all)
    }

    fn take(&mut self, mut ids: Vec<TransactionId>) -> Vec<Header> {
        ids.sort_unstable();
        ids.iter().filter_map(|id| self.open.remove(id)).map(|(header, _)| header).collect()
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        self.open.values().map(|(_, deadline)| *deadline).min()
    }
}
