//! The connections of a program, and what each has last said. Kept under one lock; nothing here waits for anything.

use crate::decide::{Activity, Spot};
use keeper::{LineError, State as Safety, ToProgram};
use pool_api::{Lease, LinkProtection, Moving, ProtectionState, Purpose, as_note};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::net::UnixStream;

/// More than processes times GPUs of any program.
pub(crate) const LINKS_MAX: usize = 4096;

/// One connection of the program: one link to one worker.
#[derive(Debug)]
pub(crate) struct Link {
    /// Which of the lease's GPUs it uses.
    pub(crate) index: usize,
    /// Where it is.
    pub(crate) at: Spot,
    pub(crate) pid: u32,
    /// Since when it is there.
    pub(crate) since_ms: u64,
    out: UnixStream,
    pub(crate) protection: Option<LinkProtection>,
    pub(crate) activity: Option<Activity>,
    /// The bytes of its image, while it is parked.
    pub(crate) parked: Option<u64>,
    /// It goes on at the second place.
    pub(crate) has_moved: bool,
}

impl Link {
    /// A link that says that it is there.
    pub(crate) fn new(index: usize, at: Spot, pid: u32, since_ms: u64, out: UnixStream) -> Self {
        Self {
            index,
            at,
            pid,
            since_ms,
            out,
            protection: None,
            activity: None,
            parked: None,
            has_moved: false,
        }
    }

    /// Tells it something. A program that does not read is told nothing: the stream has a time limit.
    pub(crate) fn tell(&self, word: &ToProgram) -> Result<(), LineError> {
        keeper::write_line(&mut &self.out, word)
    }
}

/// What the program was asked for, and has not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// To go on at a second place, or to drill there.
    Second { to: Spot, purpose: Purpose },
    /// To end its sessions and be kept as images.
    Suspend,
}

/// All that the keeper knows.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) lease: Lease,
    pub(crate) links: BTreeMap<u64, Link>,
    /// Which of the lease's GPUs an address stands for, also one that the lease has left.
    pub(crate) addresses: HashMap<String, usize>,
    pub(crate) asked: Option<Asked>,
    pub(crate) next_link: u64,
    pub(crate) is_protection_new: bool,
}

impl State {
    pub(crate) fn new(lease: Lease, workers: &[String]) -> Self {
        let addresses = workers.iter().cloned().zip(0..).collect();
        let (links, next_link, is_protection_new) = (BTreeMap::new(), 1, false);
        Self { lease, links, addresses, asked: None, next_link, is_protection_new }
    }

    /// Takes what a manager says of the lease, unless something newer is known.
    pub(crate) fn learn(&mut self, lease: &Lease) -> bool {
        let is_new = lease.version > self.lease.version || lease.state != self.lease.state;
        if lease.version >= self.lease.version {
            self.lease = lease.clone();
        }
        is_new
    }

    /// Where the lease has the GPU of this number.
    pub(crate) fn spot(&self, index: usize) -> Option<Spot> {
        self.lease.grants.get(index).map(|grant| (grant.gpu.clone(), grant.epoch))
    }

    /// The number of the GPU that the lease's second place is for.
    pub(crate) fn moving_index(&self, moving: &Moving) -> Option<usize> {
        let is_source =
            |grant: &pool_api::Grant| grant.gpu == moving.from && grant.epoch == moving.from_epoch;
        self.lease.grants.iter().position(is_source)
    }

    /// The links that use the GPU of this number.
    pub(crate) fn links_of(&self, index: usize) -> Vec<u64> {
        self.links.iter().filter(|(_, link)| link.index == index).map(|(id, _)| *id).collect()
    }

    /// Notes how well a link is protected.
    pub(crate) fn protect(&mut self, id: u64, said: LinkProtection, now_ms: u64) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let said = LinkProtection { gpu: link.at.0.clone(), pid: link.pid, ..said };
        link.activity = Some(match link.activity {
            Some(activity) => activity.heard(said.cut, said.journal_bytes, now_ms),
            None => Activity::new(said.cut, said.journal_bytes, now_ms),
        });
        self.is_protection_new |= link.protection.as_ref() != Some(&said);
        link.protection = Some(said);
    }

    /// What the manager is told.
    pub(crate) fn report(&self) -> Vec<LinkProtection> {
        let unknown = |link: &Link| LinkProtection {
            gpu: link.at.0.clone(),
            pid: link.pid,
            state: ProtectionState::Starting,
            why: "the program has not said how it stands".to_owned(),
            cut: 0,
            level: 0,
            safe_age_ms: 0,
            image_bytes: 0,
            journal_bytes: 0,
            pause_us: 0,
            predicted_ms: 0,
        };
        let each = self.links.values();
        each.map(|link| link.protection.clone().unwrap_or_else(|| unknown(link))).collect()
    }

    /// The program was asked to be suspended and is not: it counts as busy now.
    pub(crate) fn restart_idleness(&mut self, now_ms: u64) {
        for link in self.links.values_mut() {
            link.activity = link.activity.map(|activity| activity.restarted(now_ms));
        }
    }

    /// Whether every link is protected and has sent nothing for so long; nothing if one has not said in that time how it
    /// stands.
    pub(crate) fn is_idle(&self, for_ms: u64, now_ms: u64) -> Option<bool> {
        if self.links.is_empty() || self.links.values().any(|link| link.parked.is_some()) {
            return Some(false);
        }
        let mut all = true;
        for link in self.links.values() {
            let is_safe =
                link.protection.as_ref().is_some_and(|said| said.state == ProtectionState::Protected);
            match link.activity {
                Some(activity) => all &= is_safe && activity.is_idle(for_ms, now_ms),
                None if now_ms.saturating_sub(link.since_ms) >= for_ms => return None,
                None => all = false,
            }
        }
        Some(all)
    }
}

/// A word of the program as the manager takes it. GPU and process are filled in by [`State::protect`].
pub(crate) fn protection_of(word: &keeper::FromProgram, gpu: &pool_api::GpuId) -> Option<LinkProtection> {
    let keeper::FromProgram::Protection {
        state,
        why,
        cut,
        level,
        safe_age_ms,
        live_bytes,
        journal_bytes,
        pause_us,
        predicted_ms,
    } = word
    else {
        return None;
    };
    Some(LinkProtection {
        gpu: gpu.clone(),
        pid: 0,
        state: match state {
            Safety::Protected => ProtectionState::Protected,
            Safety::Unprotected => ProtectionState::Unprotected,
            Safety::Starting => ProtectionState::Starting,
            Safety::Degraded => ProtectionState::Degraded,
        },
        why: as_note(why),
        cut: *cut,
        level: *level,
        safe_age_ms: *safe_age_ms,
        image_bytes: *live_bytes,
        journal_bytes: *journal_bytes,
        pause_us: *pause_us,
        predicted_ms: *predicted_ms,
    })
}
