//! Reads everything that was committed, told, admitted and ended, and says what must never be.

use super::rack::Session;
use crate::records;
use pool_api::{BoxRecord, Gpu, GpuId, GpuState, HostDetail, Lease, LeaseId, LeaseState, Name};
use pool_store::{Change, Changes};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Checker {
    pub(super) gpus: BTreeMap<GpuId, Gpu>,
    pub(super) leases: BTreeMap<LeaseId, Lease>,
    /// Leases that have been seen to end.
    over: BTreeSet<LeaseId>,
    /// Every grant there ever was.
    pub(super) grants: BTreeMap<(GpuId, u64), LeaseId>,
    pub(super) sessions: BTreeMap<GpuId, Session>,
    pub(super) hosts: BTreeMap<Name, HostDetail>,
    pub(super) boxes: BTreeMap<Name, BoxRecord>,
    /// With which slot of which host each GPU was ever paired, by either side.
    pub(super) pairs: BTreeMap<(GpuId, u64), (Name, u8)>,
    /// Grants that borrowers have said to be lost.
    spoken: BTreeSet<(LeaseId, GpuId, u64)>,
    /// What is plugged where.
    pub(super) plugged: BTreeMap<(Name, u8), (GpuId, u64)>,
    /// Which leases have left data on which devices of the PCIe plane, and whether those were scrubbed since.
    pub(super) left: BTreeMap<(LeaseId, GpuId), bool>,
    epochs_admitted: BTreeMap<GpuId, u64>,
    /// What each box has said to be gone for ever.
    epochs_cleaned: BTreeMap<GpuId, u64>,
    /// When the manager that leads now began, and how long it keeps leases it knows little of.
    pub(super) led_since_ms: u64,
    pub(super) grace_ms: u64,
    /// When a borrower was last told that its lease lives: the moment at which that was decided.
    alive_at_ms: BTreeMap<LeaseId, u64>,
    pub(super) violations: Vec<String>,
    pub(super) grants_seen: u64,
    pub(super) moves_seen: u64,
    pub(super) admissions: u64,
    pub(super) plugs: u64,
    pub(super) expiries: u64,
    pub(super) reclaims: u64,
    /// Words of borrowers that a GPU is lost.
    pub(super) words: u64,
    /// Words that a program goes on at its second place.
    pub(super) arrivals: u64,
    pub(super) parks: u64,
    /// Guests that were let in, and how many of them beside another lease.
    pub(super) guests: u64,
    pub(super) meetings: u64,
    /// Guests that left because their GPU was needed as a whole.
    pub(super) evictions: u64,
    /// Guests that were suspended because their seat was needed.
    pub(super) suspensions: u64,
    /// Leases that were let in on parts of GPUs, and how many of them beside another one.
    pub(super) parts: u64,
    pub(super) crowds: u64,
}

impl Checker {
    pub(super) fn violation(&mut self, what: String) {
        // The first few tell what happened; what follows from them does not.
        if self.violations.len() < 20 {
            self.violations.push(what);
        }
    }

    /// A transaction took effect.
    pub(super) fn committed(&mut self, now_ms: u64, changes: &Changes) {
        let (mut leases, mut hosts) = (Vec::new(), Vec::new());
        for change in &changes.changes {
            match change {
                Change::Put(record) if record.key.starts_with("gpu/") => {
                    let gpu: Gpu = records::GPU.decode(&record.value).expect("GPUs can be read");
                    self.committed_gpu(gpu);
                }
                Change::Put(record) if record.key.starts_with("lease/") => {
                    leases.push(records::LEASE.decode::<Lease>(&record.value).expect("leases can be read"));
                }
                Change::Put(record) if record.key.starts_with("host/") => {
                    hosts.push(records::HOST.decode::<HostDetail>(&record.value).expect("hosts can be read"));
                }
                Change::Put(record) if record.key.starts_with("box/") => {
                    let record: BoxRecord = records::BOX.decode(&record.value).expect("boxes can be read");
                    self.boxes.insert(record.name.clone(), record);
                }
                Change::Deleted { key } if key.starts_with("lease/") => {
                    let id: LeaseId = key["lease/".len()..].parse().expect("it is a lease");
                    if self.leases.remove(&id).is_some_and(|lease| lease.state != LeaseState::Ended) {
                        self.violation(format!("lease {id} was deleted before it ended"));
                    }
                }
                Change::Deleted { key } if key.starts_with("gpu/") => {
                    self.violation(format!("{key} was deleted"));
                }
                Change::Put(_) | Change::Deleted { .. } => {}
            }
        }
        for host in hosts {
            self.committed_host(host);
        }
        // Leases after GPUs: a grant and its epoch are in one transaction.
        for lease in leases {
            self.committed_lease(now_ms, lease);
        }
        self.check_places();
        self.check_seats();
        self.check_parts();
    }

    fn committed_gpu(&mut self, gpu: Gpu) {
        if let Some(before) = self.gpus.get(&gpu.id)
            && before.epoch > gpu.epoch
        {
            self.violation(format!("{} went from epoch {} back to {}", gpu.id, before.epoch, gpu.epoch));
        }
        if matches!(gpu.state, GpuState::Bad | GpuState::BurnIn) {
            // What is tested before it is used again keeps nothing.
            self.lost_data(&gpu.id);
        }
        if gpu.holders.len() > 1 {
            self.violation(format!("{} has {} holders", gpu.id, gpu.holders.len()));
        }
        let cleaned = self.epochs_cleaned.entry(gpu.id.clone()).or_default();
        *cleaned = gpu.cleaned_epoch.max(*cleaned);
        self.gpus.insert(gpu.id.clone(), gpu);
    }

    fn committed_lease(&mut self, now_ms: u64, lease: Lease) {
        let id = lease.id;
        let before = self.leases.get(&id).map(|before| (before.state, before.version, before.moves.len()));
        if self.over.contains(&id) && lease.state != LeaseState::Ended {
            self.violation(format!("lease {id} was over and is {:?}", lease.state));
        }
        if let Some(before) = self.leases.get(&id).cloned() {
            self.check_words(&before, &lease);
            self.check_guest_is_told(&before, &lease);
        }
        if let Some((state, version, moves)) = before {
            if lease.version < version {
                self.violation(format!("lease {id} went back to version {}", lease.version));
            }
            if state == LeaseState::Releasing && lease.state.is_live() {
                self.violation(format!("lease {id} was ending and is {:?}", lease.state));
            }
            self.moves_seen += lease.moves.len().saturating_sub(moves) as u64;
        }
        if lease.state == LeaseState::Granted {
            self.moved_on(&lease);
            self.committed_grants(&lease);
        }
        if !lease.state.is_live() && before.is_none_or(|(state, ..)| state.is_live()) {
            self.check_ending(now_ms, &lease);
        }
        if lease.state == LeaseState::Ended {
            self.over.insert(id);
        }
        self.leases.insert(id, lease);
    }

    /// Every GPU that serves a lease is one of its places: one for each that it asked for, and a second one for one of
    /// them only while it is on its way.
    fn check_places(&mut self) {
        let mut wrong = Vec::new();
        for gpu in self.gpus.values().filter(|gpu| gpu.state == GpuState::Leased) {
            for holder in &gpu.holders {
                let lease = self.leases.get(&holder.lease);
                let second = |lease: &Lease| lease.moving.as_ref().is_some_and(|m| m.to.gpu == gpu.id);
                let first = |lease: &Lease| lease.grants.iter().any(|grant| grant.gpu == gpu.id);
                if lease.is_none_or(|lease| first(lease) == second(lease)) {
                    wrong.push(format!("{} serves {}, and is no place of it", gpu.id, holder.lease));
                }
            }
        }
        for lease in self.leases.values() {
            let Some(moving) = &lease.moving else { continue };
            let held = self
                .gpus
                .get(&moving.to.gpu)
                .is_some_and(|gpu| gpu.holders.iter().any(|holder| holder.lease == lease.id));
            let leaves =
                lease.grants.iter().any(|grant| grant.gpu == moving.from && grant.epoch == moving.from_epoch);
            if lease.state != LeaseState::Granted || lease.request.survive.is_none() || !held || !leaves {
                wrong.push(format!("lease {} has a second place that it cannot have: {lease:?}", lease.id));
            }
        }
        wrong.into_iter().for_each(|what| self.violation(what));
    }

    /// A borrower says that it lost a grant.
    pub(super) fn spoken(&mut self, lease: LeaseId, gpu: &GpuId, epoch: u64) {
        self.spoken.insert((lease, gpu.clone(), epoch));
    }

    /// What a lease leaves because of its borrower's word is a grant that the borrower has spoken of.
    fn check_words(&mut self, before: &Lease, lease: &Lease) {
        let words = lease.moves.iter().skip(before.moves.len()).filter(|moved| moved.said_by_borrower);
        for from in words.map(|moved| moved.from.clone()).collect::<Vec<_>>() {
            let grant = before.grants.iter().find(|grant| grant.gpu == from).map(|grant| grant.epoch);
            let Some(epoch) = grant else { continue };
            if !self.spoken.contains(&(lease.id, from.clone(), epoch)) {
                let id = lease.id;
                self.violation(format!("lease {id} left {from} epoch {epoch}, of which no word was said"));
            }
        }
    }

    fn committed_grants(&mut self, lease: &Lease) {
        if lease.grants.len() != lease.request.gpus as usize {
            self.violation(format!(
                "lease {} has {} of {} GPUs",
                lease.id,
                lease.grants.len(),
                lease.request.gpus
            ));
        }
        let second = lease.moving.as_ref().map(|moving| &moving.to);
        for grant in lease.grants.iter().chain(second) {
            let key = (grant.gpu.clone(), grant.epoch);
            match self.grants.get(&key) {
                Some(owner) if *owner == lease.id => continue,
                Some(owner) => {
                    let owner = *owner;
                    self.violation(format!(
                        "{} epoch {} is {owner}'s and {}'s",
                        grant.gpu, grant.epoch, lease.id
                    ));
                }
                None => self.grants_seen += 1,
            }
            self.grants.insert(key, lease.id);
            // From here on the lease is a holder, whether or not it has knocked yet.
            if let Some(session) = self.sessions.get(&grant.gpu).copied() {
                self.violation(format!(
                    "{} was granted to {} while {} was in with epoch {}",
                    grant.gpu, lease.id, session.lease, session.epoch
                ));
            }
            if self.gpus.get(&grant.gpu).is_none_or(|gpu| gpu.epoch != grant.epoch) {
                self.violation(format!(
                    "{} was granted under epoch {}, which it has not got",
                    grant.gpu, grant.epoch
                ));
            }
        }
    }

    /// A lease ends because its borrower releases it, the ledger reclaims it, or no renewal came for all of its time.
    fn check_ending(&mut self, now_ms: u64, lease: &Lease) {
        let reason = lease.ended.as_ref().map_or("", |ended| ended.reason.as_str());
        match reason {
            "released" => {}
            // Only for the guarantee of another tenant, and only if there are guarantees.
            reclaimed if reclaimed.starts_with("reclaimed: tenant ") => self.reclaims += 1,
            "expired" => {
                self.expiries += 1;
                let alive_ms = self.alive_at_ms.get(&lease.id).copied().unwrap_or(0);
                let ttl_ms = lease.request.ttl_ms;
                // A new leader cannot know the clock of the one before: longer leases get its grace, no more.
                let graced = ttl_ms > self.grace_ms && self.led_since_ms + self.grace_ms <= now_ms;
                if alive_ms + ttl_ms > now_ms && !graced {
                    let early_ms = alive_ms + ttl_ms - now_ms;
                    self.violation(format!("lease {} expired {early_ms} ms early", lease.id));
                }
            }
            other => self.violation(format!("lease {} ended: {other:?}", lease.id)),
        }
    }

    /// A borrower hears of its lease.
    pub(super) fn told(&mut self, done_ms: u64, lease: &Lease) {
        let known = self.leases.get(&lease.id).map(|known| known.version);
        if known.is_none_or(|version| version < lease.version) && !self.over.contains(&lease.id) {
            self.violation(format!("{} version {} was told but never committed", lease.id, lease.version));
        }
        if lease.state.is_live() {
            let alive = self.alive_at_ms.entry(lease.id).or_default();
            *alive = done_ms.max(*alive);
        }
        // Several changes of a lease may be one transaction, so an answer may tell of grants that never were in the store
        // because they were over when it was committed. No other lease may have had the same GPU and epoch.
        let outdated = known.is_none_or(|version| version > lease.version);
        let second = lease.moving.as_ref().map(|moving| &moving.to);
        let granted = lease.grants.iter().chain(second).filter(|_| lease.state == LeaseState::Granted);
        for grant in granted {
            let key = (grant.gpu.clone(), grant.epoch);
            match self.grants.get(&key) {
                Some(owner) if *owner == lease.id => {}
                None if outdated => {
                    self.grants.insert(key, lease.id);
                }
                owner => {
                    let (id, version, state) = (lease.id, lease.version, lease.state);
                    let (gpu, epoch) = key;
                    let what = format!(
                        "{id} version {version} {state:?} was told of {gpu} epoch {epoch}, not granted but \
                         {owner:?}'s; version {known:?} is committed"
                    );
                    self.violation(what);
                }
            }
        }
    }

    /// A box lets a borrower in.
    pub(super) fn admitted(&mut self, now_ms: u64, gpu: &GpuId, session: Session) {
        self.admissions += 1;
        if let Some(other) = self.sessions.get(gpu).copied() {
            self.violation(format!(
                "at {now_ms} {gpu} has two holders: {} with epoch {} and {} with epoch {}",
                other.lease, other.epoch, session.lease, session.epoch
            ));
        }
        let highest = self.epochs_admitted.entry(gpu.clone()).or_default();
        let before = std::mem::replace(highest, session.epoch.max(*highest));
        if session.epoch < before {
            self.violation(format!("{gpu} let in epoch {} after {before}", session.epoch));
        }
        let cleaned = self.epochs_cleaned.get(gpu).copied().unwrap_or(0);
        if session.epoch <= cleaned {
            self.violation(format!("{gpu} let in epoch {} after it had cleaned {cleaned}", session.epoch));
        }
        if self.grants.get(&(gpu.clone(), session.epoch)) != Some(&session.lease) {
            self.violation(format!(
                "{gpu} let in {} with epoch {}, never granted",
                session.lease, session.epoch
            ));
        }
        self.sessions.insert(gpu.clone(), session);
        self.check_company(gpu);
        self.count_parts(gpu);
    }

    /// A borrower is out, for whatever reason.
    pub(super) fn left(&mut self, gpu: &GpuId, session: Session) {
        if self.sessions.get(gpu) == Some(&session) {
            self.sessions.remove(gpu);
        }
    }

    /// Everything has been repaired and given back: nothing may be left.
    pub(super) fn at_rest(&mut self) {
        let leaked: Vec<String> = self
            .gpus
            .values()
            .filter(|gpu| {
                gpu.state != GpuState::Free || !gpu.holders.is_empty() || gpu.cleaned_epoch < gpu.epoch
            })
            .map(|gpu| {
                format!(
                    "{} leaked: {:?}, epoch {}, cleaned {}, {:?}",
                    gpu.id, gpu.state, gpu.epoch, gpu.cleaned_epoch, gpu.holders
                )
            })
            .collect();
        let open: Vec<String> = self
            .leases
            .values()
            .filter(|lease| lease.state != LeaseState::Ended)
            .map(|lease| format!("lease {} never ended: {:?}", lease.id, lease.state))
            .collect();
        let inside: Vec<String> = self
            .sessions
            .iter()
            .map(|(gpu, session)| format!("{} never left {gpu}", session.lease))
            .collect();
        let plugged: Vec<String> = self
            .plugged
            .iter()
            .map(|((host, slot), (gpu, epoch))| format!("{gpu} epoch {epoch} is still in {host}/{slot}"))
            .collect();
        let slots =
            self.hosts.values().flat_map(|host| host.slots.iter().map(|slot| (&host.record.name, slot)));
        let taken: Vec<String> = slots
            .filter(|(_, slot)| {
                slot.lease.is_some() || slot.leaving.is_some() || slot.bound_epoch > slot.cleared_epoch
            })
            .map(|(host, slot)| format!("a slot of host {host} leaked: {slot:?}"))
            .collect();
        for what in leaked.into_iter().chain(open).chain(inside).chain(plugged).chain(taken) {
            self.violation(what);
        }
    }
}
