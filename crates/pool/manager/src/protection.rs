//! How well the programs of leases are protected, as their keepers say.
//!
//! It is kept in memory alone: it changes every second, and a keeper tells it to the next leader by itself.

use std::collections::HashMap;

use pool::Ledger;
use pool_api::{Drill, LeaseId, LinkProtection, Protection};

/// What is known, by lease.
#[derive(Debug, Default)]
pub(crate) struct Protections {
    known: HashMap<LeaseId, Known>,
    heard: usize,
}

#[derive(Debug, Default)]
struct Known {
    reported_ms: Option<u64>,
    links: Vec<LinkProtection>,
    last_drill: Option<Drill>,
}

/// How many reports are heard before those of leases that are over are forgotten.
const SWEEP_EVERY: usize = 4096;

impl Protections {
    /// A keeper says how its program stands.
    pub(crate) fn report(
        &mut self,
        lease: LeaseId,
        links: Vec<LinkProtection>,
        now_ms: u64,
        ledger: &Ledger,
    ) {
        self.sweep(ledger);
        let known = self.known.entry(lease).or_default();
        known.reported_ms = Some(now_ms);
        known.links = links;
    }

    /// A keeper says how a drill ended.
    pub(crate) fn drilled(&mut self, lease: LeaseId, drill: Drill, ledger: &Ledger) {
        self.sweep(ledger);
        self.known.entry(lease).or_default().last_drill = Some(drill);
    }

    /// What is known of one lease.
    pub(crate) fn of(&self, lease: LeaseId, now_ms: u64) -> Protection {
        let known = self.known.get(&lease);
        Protection {
            lease,
            reported_ms: known.and_then(|known| known.reported_ms),
            now_ms,
            links: known.map(|known| known.links.clone()).unwrap_or_default(),
            last_drill: known.and_then(|known| known.last_drill.clone()),
        }
    }

    fn sweep(&mut self, ledger: &Ledger) {
        self.heard += 1;
        if self.heard.is_multiple_of(SWEEP_EVERY) {
            self.known.retain(|id, _| ledger.lease(*id).is_some_and(|lease| lease.state.is_live()));
        }
    }
}
