//! A cluster, a pool and a controller that is interrupted everywhere.
//!
//! The world is as real servers are: writes with an old resource version are refused, a claim with a finalizer stays, a
//! key gives the same lease twice. The controller sees claims late, not at all or twice, stops between any two actions, and
//! its requests are lost, refused, or arrive long after it has stopped.

use crate::*;
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult, ResourceClaim,
    ResourceClaimConsumerReference,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use pool_api::{Grant, Lease, LeaseId, LeaseRequest, LeaseState, Model, Name};
use std::collections::{BTreeMap, BTreeSet};

const OWNER: &str = "spiffe://dxpu/tenant/kube/controller";
const SERVERS_FINALIZER: &str = "resource.kubernetes.io/delete-protection";
const GPUS: usize = 6;
const STEPS: usize = 600;

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    fn one_in(&mut self, limit: usize) -> bool {
        self.below(limit) == 0
    }
}

/// Mistakes of a controller, to see that the checks find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// Takes the finalizer off without returning the lease.
    KeepsLease,
    /// Asks with a new key each time.
    ForgetsKey,
    /// Says granted of a lease that waits.
    SaysTooEarly,
    /// Leaves leases without a claim alone.
    NeverSweeps,
}

#[derive(Default)]
struct Counts {
    granted: usize,
    refused: usize,
    swept: usize,
    conflicts: usize,
    restarts: usize,
    late: usize,
}

struct World {
    dice: Dice,
    mistake: Mistake,
    claims: BTreeMap<String, ResourceClaim>,
    revision: u64,
    leases: Vec<Lease>,
    keys: BTreeMap<String, (LeaseId, LeaseRequest)>,
    /// GPUs that others have.
    foreign: BTreeSet<usize>,
    /// What the controller believes.
    seen: BTreeMap<String, ResourceClaim>,
    memory: BTreeMap<String, Memory>,
    /// Requests of controllers that have stopped, which are still on their way.
    late: Vec<(String, LeaseRequest)>,
    /// Claims for which such a request has arrived.
    disturbed: BTreeSet<String>,
    faults: bool,
    now_ms: u64,
    counts: Counts,
}

fn gpu(index: usize) -> pool_api::GpuId {
    format!("box-{}/{}", index / 3, index % 3).parse().unwrap()
}

fn device_of(index: usize) -> String {
    device_name(&gpu(index))
}

fn devices_of_pool() -> Devices {
    Devices::of(&(0..GPUS).map(|index| crate::tests::gpu(&gpu(index).to_string())).collect::<Vec<_>>())
}

impl World {
    fn new(seed: u64, mistake: Mistake) -> Self {
        Self {
            dice: Dice(seed),
            mistake,
            claims: BTreeMap::new(),
            revision: 0,
            leases: Vec::new(),
            keys: BTreeMap::new(),
            foreign: BTreeSet::new(),
            seen: BTreeMap::new(),
            memory: BTreeMap::new(),
            late: Vec::new(),
            disturbed: BTreeSet::new(),
            faults: true,
            now_ms: 1_000,
            counts: Counts::default(),
        }
    }

    // The API server.

    fn write(&mut self, mut claim: ResourceClaim) -> bool {
        let uid = claim.metadata.uid.clone().unwrap();
        let Some(now) = self.claims.get(&uid) else { return false };
        if now.metadata.resource_version != claim.metadata.resource_version {
            self.counts.conflicts += 1;
            return false;
        }
        let finalizers = |claim: &ResourceClaim| claim.metadata.finalizers.iter().flatten().count();
        let is_deleting = now.metadata.deletion_timestamp.is_some();
        assert!(
            !is_deleting || finalizers(&claim) <= finalizers(now),
            "a finalizer on a claim that is being deleted"
        );
        self.revision += 1;
        claim.metadata.resource_version = Some(self.revision.to_string());
        let is_over = claim.metadata.deletion_timestamp.is_some()
            && claim.metadata.finalizers.iter().flatten().next().is_none();
        if is_over {
            self.claims.remove(&uid);
            self.check_gone(&uid);
        } else {
            self.claims.insert(uid, claim);
        }
        true
    }

    fn check_gone(&self, uid: &str) {
        let live = self.live(uid);
        assert!(live.is_empty() || self.disturbed.contains(uid), "claim {uid} is gone and has {live:?}");
    }

    fn live(&self, uid: &str) -> Vec<&Lease> {
        let label = lease_key(uid);
        self.leases.iter().filter(|lease| lease.state.is_live() && lease.request.label == label).collect()
    }

    // The manager.

    fn holder(&self, index: usize) -> Option<LeaseId> {
        let id = gpu(index);
        let has = |lease: &&Lease| lease.grants.iter().any(|grant| grant.gpu == id);
        self.leases.iter().filter(|lease| lease.state == LeaseState::Granted).find(has).map(|lease| lease.id)
    }

    fn is_free(&self, index: usize) -> bool {
        !self.foreign.contains(&index) && self.holder(index).is_none()
    }

    fn serve(&mut self) {
        for at in 0..self.leases.len() {
            let lease = &self.leases[at];
            let wanted: Vec<usize> =
                (0..GPUS).filter(|index| lease.request.gpu_ids.contains(&gpu(*index))).collect();
            if lease.state == LeaseState::Pending && wanted.iter().all(|index| self.is_free(*index)) {
                let grant = |index: &usize| Grant {
                    gpu: gpu(*index),
                    epoch: 1,
                    endpoints: Vec::new(),
                    model: Model::new("H200").unwrap(),
                    attachment: None,
                };
                let grants = wanted.iter().map(grant).collect();
                let lease = &mut self.leases[at];
                lease.grants = grants;
                lease.state = LeaseState::Granted;
                lease.granted_ms = Some(self.now_ms);
            }
        }
    }

    fn create_lease(&mut self, key: &str, request: &LeaseRequest) -> Result<LeaseId, String> {
        request.check().unwrap();
        let key = if self.mistake == Mistake::ForgetsKey {
            format!("{key}-{}", self.dice.below(1 << 30))
        } else {
            key.to_owned()
        };
        if let Some((lease, before)) = self.keys.get(&key) {
            assert_eq!(before, request, "one key, two requests");
            return Ok(*lease);
        }
        if self.faults && self.dice.one_in(12) {
            return Err("the tenant has too many leases".to_owned());
        }
        let id = LeaseId(self.leases.len() as u64 + 1);
        self.leases.push(Lease {
            id,
            tenant: Name::new("kube").unwrap(),
            owner: OWNER.to_owned(),
            token: None,
            request: request.clone(),
            state: LeaseState::Pending,
            grants: Vec::new(),
            model: None,
            created_ms: self.now_ms,
            granted_ms: None,
            expires_ms: u64::MAX,
            ended: None,
            moves: Vec::new(),
            moving: None,
            suspend_wanted: false,
            parking: None,
            version: 1,
        });
        self.keys.insert(key, (id, request.clone()));
        self.serve();
        Ok(id)
    }

    fn end(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.iter_mut().find(|lease| lease.id == id) {
            lease.state = LeaseState::Ended;
            lease.grants.clear();
        }
        self.serve();
    }

    // The controller.

    fn watch(&mut self) {
        let Some(uid) = self.some_claim() else { return };
        match self.claims.get(&uid).cloned() {
            Some(claim) => self.seen.insert(uid, claim),
            None => self.seen.remove(&uid),
        };
    }

    fn restart(&mut self) {
        self.seen = self.claims.clone();
        self.memory.clear();
        self.counts.restarts += 1;
    }

    fn reconcile(&mut self, uid: &str) {
        let Some(claim) = self.seen.get(uid).cloned() else { return };
        let view = ClaimView::of(&claim).unwrap();
        let label = view.label();
        let leases: Vec<Lease> =
            self.leases.iter().filter(|lease| lease.request.label == label).cloned().collect();
        let memory = self.memory.entry(uid.to_owned()).or_default();
        memory.waited_ms += 4_000;
        let memory = memory.clone();
        let mut actions = decide(&view, &leases, &devices_of_pool(), &memory, &Terms::default());
        if self.mistake == Mistake::KeepsLease && actions.contains(&Action::RemoveFinalizer) {
            actions.retain(|action| !matches!(action, Action::ReturnLease { .. }));
        }
        if !actions.iter().any(|action| matches!(action, Action::Say(_))) && view.said != Said::Waiting {
            self.memory.insert(uid.to_owned(), Memory::default());
        }
        for action in actions {
            if self.faults && self.dice.one_in(15) {
                // It is stopped here; its request may be on its way.
                if let Action::CreateLease { key, request } = action {
                    self.late.push((key, *request));
                }
                return self.restart();
            }
            if !self.act(uid, action) {
                return;
            }
        }
    }

    /// Does it, and tells whether the controller saw that it was done.
    fn act(&mut self, uid: &str, action: Action) -> bool {
        let is_lost = self.faults && self.dice.one_in(15);
        match action {
            Action::AddFinalizer | Action::RemoveFinalizer | Action::Say(_) => {
                let Some(mut claim) = self.seen.get(uid).cloned() else { return false };
                match &action {
                    Action::AddFinalizer => add_finalizer(&mut claim),
                    Action::RemoveFinalizer => remove_finalizer(&mut claim),
                    Action::Say(word) => {
                        let mut word = word.clone();
                        if self.mistake == Mistake::SaysTooEarly && word.verdict == Verdict::Waiting {
                            word.verdict = Verdict::Granted;
                        }
                        write_word(&mut claim, &word, &Time(Timestamp::UNIX_EPOCH));
                    }
                    _ => {}
                }
                if !self.write(claim) {
                    // It reads the claim again.
                    match self.claims.get(uid).cloned() {
                        Some(claim) => self.seen.insert(uid.to_owned(), claim),
                        None => self.seen.remove(uid),
                    };
                    return false;
                }
                if let Action::Say(word) = &action {
                    self.check_word(uid, word);
                }
                if let Some(claim) = self.claims.get(uid).cloned().filter(|_| !is_lost) {
                    self.seen.insert(uid.to_owned(), claim);
                }
            }
            Action::CreateLease { key, request } => {
                let finalizers = self.claims.get(uid).and_then(|claim| claim.metadata.finalizers.as_ref());
                let is_kept = finalizers.is_some_and(|all| all.iter().any(|one| one == FINALIZER));
                // A stale view may ask for a claim that is gone; the sweep finds the lease.
                if !is_kept {
                    self.disturbed.insert(uid.to_owned());
                }
                match self.create_lease(&key, &request) {
                    Err(refusal) => self.memory.entry(uid.to_owned()).or_default().refusal = Some(refusal),
                    Ok(_) => {
                        self.check_single(uid);
                        self.check_same(&request);
                    }
                }
            }
            Action::ReturnLease { lease } => self.end(lease),
        }
        !is_lost
    }

    fn check_single(&self, uid: &str) {
        let live = self.live(uid);
        assert!(live.len() <= 1 || self.disturbed.contains(uid), "claim {uid} has {live:?}");
    }

    /// Even a request that arrives late makes no second lease for the same GPUs of a claim.
    fn check_same(&self, request: &LeaseRequest) {
        let is_same = |lease: &&Lease| {
            lease.state.is_live()
                && lease.request.label == request.label
                && lease.request.gpu_ids == request.gpu_ids
        };
        assert!(self.leases.iter().filter(is_same).count() <= 1, "two leases for {request:?}");
    }

    fn check_word(&mut self, uid: &str, word: &Word) {
        match word.verdict {
            Verdict::Granted => self.counts.granted += 1,
            Verdict::Refused => self.counts.refused += 1,
            Verdict::Waiting if self.mistake != Mistake::SaysTooEarly => return,
            Verdict::Waiting => {}
        }
        let Some(claim) = self.claims.get(uid) else { return };
        let view = ClaimView::of(claim).unwrap();
        if view.said != Said::Granted {
            return;
        }
        let allocated = view.allocation.unwrap().devices;
        let has = |lease: &&Lease| {
            let mut gpus: Vec<String> = lease.grants.iter().map(|grant| device_name(&grant.gpu)).collect();
            gpus.sort();
            lease.state == LeaseState::Granted && gpus == allocated
        };
        assert!(
            self.live(uid).iter().any(has),
            "claim {uid} is said to have {allocated:?}: {:?}",
            self.live(uid)
        );
    }

    fn sweep(&mut self) {
        let leases = self.leases.clone();
        if self.mistake != Mistake::NeverSweeps {
            for lease in orphans(&leases, OWNER, |uid| self.claims.contains_key(uid)) {
                self.counts.swept += 1;
                self.end(lease);
            }
        }
        self.seen = self.claims.clone();
        for memory in self.memory.values_mut() {
            memory.refusal = None;
        }
        for uid in self.claims.keys().cloned().collect::<Vec<_>>() {
            self.reconcile(&uid);
        }
    }

    // Everybody else.

    fn some_claim(&mut self) -> Option<String> {
        let mut all: Vec<&String> = self.claims.keys().chain(self.seen.keys()).collect();
        all.dedup();
        if all.is_empty() { None } else { Some(all[self.dice.below(all.len())].clone()) }
    }

    fn new_claim(&mut self) {
        self.revision += 1;
        let uid = format!("u{}", self.revision);
        let mut claim = ResourceClaim::default();
        claim.metadata.uid = Some(uid.clone());
        claim.metadata.name = Some(format!("c{}", self.revision));
        claim.metadata.namespace = Some("default".to_owned());
        claim.metadata.resource_version = Some(self.revision.to_string());
        self.claims.insert(uid, claim);
    }

    /// The scheduler allocates, takes refused allocations back, and ends pods; people delete claims.
    fn cluster(&mut self) {
        let Some(uid) = self.some_claim() else { return };
        let Some(mut claim) = self.claims.get(&uid).cloned() else { return };
        let view = ClaimView::of(&claim).unwrap();
        let refused = view.said == Said::Refused && view.allocation.as_ref().is_some_and(|found| found.binds);
        let choice = self.dice.below(4);
        let status = claim.status.get_or_insert_default();
        if view.allocation.is_none() && !view.is_deleting && choice < 2 {
            let taken: BTreeSet<String> = self
                .claims
                .values()
                .filter_map(|claim| ClaimView::of(claim)?.allocation)
                .flat_map(|allocation| allocation.devices)
                .collect();
            let mut free: Vec<usize> =
                (0..GPUS).filter(|index| !taken.contains(&device_of(*index))).collect();
            let count = 1 + self.dice.below(2);
            if free.len() < count {
                return;
            }
            let binds = !self.dice.one_in(4);
            let mut results = Vec::new();
            for _ in 0..count {
                let index = free.remove(self.dice.below(free.len()));
                results.push(DeviceRequestAllocationResult {
                    driver: DRIVER.to_owned(),
                    pool: POOL.to_owned(),
                    device: device_of(index),
                    request: "gpu".to_owned(),
                    binding_conditions: binds.then(|| vec![CONDITION_GRANTED.to_owned()]),
                    ..DeviceRequestAllocationResult::default()
                });
            }
            let devices = DeviceAllocationResult { results: Some(results), config: None };
            status.allocation =
                Some(AllocationResult { devices: Some(devices), ..AllocationResult::default() });
            status.reserved_for = Some(vec![ResourceClaimConsumerReference::default()]);
            let finalizers = claim.metadata.finalizers.get_or_insert_default();
            finalizers.push(SERVERS_FINALIZER.to_owned());
        } else if refused || (view.allocation.is_some() && choice == 0) {
            status.allocation = None;
            status.devices = None;
            status.reserved_for = None;
            claim.metadata.finalizers.get_or_insert_default().retain(|one| one != SERVERS_FINALIZER);
        } else if choice == 1 && view.is_reserved {
            status.reserved_for = None;
        } else if choice == 2 && !view.is_deleting {
            claim.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        } else {
            return;
        }
        self.write(claim);
    }

    fn foreigners(&mut self) {
        let index = self.dice.below(GPUS);
        if self.foreign.contains(&index) {
            self.foreign.remove(&index);
        } else if self.is_free(index) {
            self.foreign.insert(index);
        }
        self.serve();
    }

    fn step(&mut self) {
        self.now_ms += 100;
        match self.dice.below(16) {
            0 => self.new_claim(),
            1..=4 => self.cluster(),
            5 => self.foreigners(),
            6..=8 => self.watch(),
            9..=12 => {
                if let Some(uid) = self.some_claim() {
                    self.reconcile(&uid);
                }
            }
            13 if self.dice.one_in(4) => self.sweep(),
            14 if self.dice.one_in(6) => self.restart(),
            15 => {
                if let Some((key, request)) = self.late.pop() {
                    self.counts.late += 1;
                    self.disturbed.insert(uid_of_key(&request.label).unwrap().to_owned());
                    let _ = self.create_lease(&key, &request);
                    self.check_same(&request);
                }
            }
            _ => {}
        }
    }

    /// Nothing fails any more, and nothing changes but by the controller.
    fn settle(&mut self) {
        self.faults = false;
        self.late.clear();
        self.foreign.clear();
        self.serve();
        self.restart();
        for _ in 0..20 {
            self.sweep();
        }
        for lease in self.leases.iter().filter(|lease| lease.state.is_live()) {
            let uid = uid_of_key(&lease.request.label).unwrap();
            let claim = self.claims.get(uid).and_then(ClaimView::of);
            let is_wanted = claim.is_some_and(|claim| claim.wanted().is_some());
            assert!(is_wanted, "{lease:?} has no claim that wants it");
        }
        for (uid, claim) in &self.claims {
            let view = ClaimView::of(claim).unwrap();
            let live = self.live(uid).len();
            match view.wanted() {
                None => assert!(!view.has_finalizer && live == 0, "{view:?} {live}"),
                Some(_) if live == 1 => assert_eq!(view.said, Said::Granted, "{view:?}"),
                Some(_) => assert!(live == 0 && view.said == Said::Refused, "{view:?} {live}"),
            }
        }
    }
}

fn run(seed: u64, mistake: Mistake) -> Counts {
    let mut world = World::new(seed, mistake);
    for _ in 0..STEPS {
        world.step();
    }
    world.settle();
    world.counts
}

#[test]
fn whatever_is_lost_doubled_or_late_every_claim_has_its_lease_and_every_lease_its_claim() {
    let mut sum = Counts::default();
    for seed in 0..400 {
        let counts = run(seed, Mistake::None);
        sum.granted += counts.granted;
        sum.refused += counts.refused;
        sum.swept += counts.swept;
        sum.conflicts += counts.conflicts;
        sum.restarts += counts.restarts;
        sum.late += counts.late;
    }
    // A run in which nothing happens proves nothing.
    assert!(
        sum.granted > 1_000 && sum.refused > 100 && sum.conflicts > 400,
        "{} {}",
        sum.granted,
        sum.refused
    );
    assert!(
        sum.swept > 20 && sum.restarts > 400 && sum.late > 50,
        "{} {} {}",
        sum.swept,
        sum.restarts,
        sum.late
    );
}

#[test]
fn the_checks_find_a_controller_that_is_wrong() {
    for mistake in [Mistake::KeepsLease, Mistake::ForgetsKey, Mistake::SaysTooEarly, Mistake::NeverSweeps] {
        let finds = |seed| std::panic::catch_unwind(|| run(seed, mistake)).is_err();
        assert!((0..200).any(finds), "{mistake:?} is not found");
    }
}
