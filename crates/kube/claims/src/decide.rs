//! What to do next for one claim: a function of the claim, the leases that bear its label, and the pool's GPUs.
//!
//! ```text
//!   allocated ──▶ finalizer ──▶ lease ──granted, exactly the allocated GPUs──▶ condition granted
//!                                 │ refused, or others have the GPUs
//!                                 ▼
//!                               condition refused: the scheduler takes the allocation back
//!   allocation gone, or deleted and unused ──▶ lease returned ──▶ finalizer removed
//! ```
//!
//! The function remembers nothing, so a controller that starts anew goes on where the last one was, and an event that came
//! twice or never changes nothing. Actions are done in order; when one fails, the rest is left and the function is asked
//! again.

use crate::claim::{Allocation, ClaimView, Said};
use crate::{OnLoss, device_name, lease_note};
use pool_api::{Gpu, GpuId, Lease, LeaseId, LeaseRequest, LeaseState, Survive, Topology};
use std::collections::BTreeMap;

/// How the controller asks for leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a lease lives without renewal: as long as a controller may be away without harm to running pods.
    pub ttl_ms: u64,
    /// Its priority in the pool.
    pub priority: u32,
    /// How long a pod waits for GPUs that others have, before the scheduler is asked to choose others.
    pub patience_ms: u64,
}

impl Default for Terms {
    fn default() -> Self {
        // An hour: longer than any upgrade of a control plane. Twenty seconds: longer than a box takes to clean a GPU.
        Self { ttl_ms: 3_600_000, priority: pool_api::PRIORITY_DEFAULT, patience_ms: 20_000 }
    }
}

/// Something to do for a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Put the driver's finalizer on the claim.
    AddFinalizer,
    /// Ask for a lease. The answer is one of the leases of the next question.
    CreateLease {
        /// The idempotency key.
        key: String,
        /// What is asked for.
        request: Box<LeaseRequest>,
    },
    /// Say this of the claim's devices.
    Say(Word),
    /// Return a lease.
    ReturnLease {
        /// The lease.
        lease: LeaseId,
    },
    /// Take the driver's finalizer off the claim.
    RemoveFinalizer,
}

/// What the driver says of a claim's devices, as conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The devices.
    pub devices: Vec<String>,
    /// Granted, refused or neither.
    pub verdict: Verdict,
    /// One word, in CamelCase.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// Granted, refused or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The lease has exactly the allocated GPUs.
    Granted,
    /// It cannot have them: the scheduler is to choose others.
    Refused,
    /// Not yet, or not any more.
    Waiting,
}

/// Finds the pool's GPU for a device's name.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    by_name: BTreeMap<String, GpuId>,
}

impl Devices {
    /// All GPUs of the pool. Of two whose names collide, the first in order has the name.
    pub fn of(gpus: &[Gpu]) -> Self {
        let mut ids: Vec<&GpuId> = gpus.iter().map(|gpu| &gpu.id).collect();
        ids.sort();
        let mut by_name = BTreeMap::new();
        for id in ids {
            by_name.entry(device_name(id)).or_insert_with(|| id.clone());
        }
        Self { by_name }
    }

    /// The GPU with this device name.
    pub fn gpu(&self, device: &str) -> Option<&GpuId> {
        self.by_name.get(device)
    }
}

/// What the controller knows of its own attempts for a claim; nothing after it has started anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// For how long the controller has seen the claim's lease wait for its first grant.
    pub waited_ms: u64,
    /// The manager refused the request for this allocation, in these words.
    pub refusal: Option<String>,
}

/// What to do next for this claim. `leases` are all that the manager knows under its label, those that are over included.
pub fn decide(
    claim: &ClaimView,
    leases: &[Lease],
    devices: &Devices,
    memory: &Memory,
    terms: &Terms,
) -> Vec<Action> {
    let live = || leases.iter().filter(|lease| lease.state.is_live());
    let Some(allocation) = claim.wanted() else {
        let mut actions: Vec<Action> = live().map(|lease| Action::ReturnLease { lease: lease.id }).collect();
        if claim.has_finalizer {
            actions.push(Action::RemoveFinalizer);
        }
        return actions;
    };
    let wanted = match request_of(claim, allocation, devices, terms) {
        Ok(request) => request,
        Err(message) => {
            let mut actions: Vec<Action> =
                live().map(|lease| Action::ReturnLease { lease: lease.id }).collect();
            say(claim, allocation, Verdict::Refused, "CannotBeAsked", message, &mut actions);
            return actions;
        }
    };
    // Of several leases the oldest that fits is kept. Every controller chooses the same one.
    let fits = |lease: &&Lease| is_for(lease, &wanted);
    let kept = live().filter(fits).min_by_key(|lease| (lease.created_ms, lease.id));
    let others = live().filter(|lease| kept.is_none_or(|kept| kept.id != lease.id));
    let mut actions: Vec<Action> = others.map(|lease| Action::ReturnLease { lease: lease.id }).collect();
    match kept {
        None => ask(claim, allocation, leases, wanted, memory, &mut actions),
        Some(lease) => judge(claim, allocation, lease, memory, terms, &mut actions),
    }
    actions
}

/// There is no lease for the allocation.
fn ask(
    claim: &ClaimView,
    allocation: &Allocation,
    leases: &[Lease],
    wanted: LeaseRequest,
    memory: &Memory,
    actions: &mut Vec<Action>,
) {
    // The scheduler waits for the conditions and takes a refused allocation back. Another lease would hold GPUs for it.
    if allocation.binds && claim.said == Said::Refused {
        return;
    }
    if let Some(refusal) = &memory.refusal {
        return say(claim, allocation, Verdict::Refused, "Refused", refusal.clone(), actions);
    }
    if claim.said == Said::Granted {
        let message = "the lease of this claim is over; the controller asks for it again".to_owned();
        say(claim, allocation, Verdict::Waiting, "LeaseOver", message, actions);
    }
    keep(claim, actions);
    let is_over =
        |lease: &&Lease| !lease.state.is_live() && is_same_set(&lease.request.gpu_ids, &wanted.gpu_ids);
    let over = leases.iter().filter(is_over).count();
    actions.push(Action::CreateLease { key: create_key(claim, allocation, over), request: Box::new(wanted) });
}

/// The idempotency key of one attempt for one allocation. Two controllers that ask at the same time, one of which does not
/// know yet that it was replaced, get the same lease. `attempt` is the number of leases of the claim for these GPUs that are
/// over.
pub fn create_key(claim: &ClaimView, allocation: &Allocation, attempt: usize) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in allocation.devices.iter().chain([&allocation.stamp]) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let hash = hasher.finalize().to_hex();
    format!("{}-{}-{attempt}", claim.label(), &hash[..16])
}

/// There is a lease for the allocation.
fn judge(
    claim: &ClaimView,
    allocation: &Allocation,
    lease: &Lease,
    memory: &Memory,
    terms: &Terms,
    actions: &mut Vec<Action>,
) {
    keep(claim, actions);
    match lease.state {
        LeaseState::Granted => {
            let message = format!("lease {} is granted", lease.id);
            say(claim, allocation, Verdict::Granted, "Granted", message, actions);
        }
        LeaseState::Pending if lease.granted_ms.is_none() => {
            if allocation.binds && memory.waited_ms >= terms.patience_ms {
                // Before the word: a controller that stops between the two finds the claim without a lease, and waits anew.
                actions.push(Action::ReturnLease { lease: lease.id });
                let message = "another borrower of the pool has a GPU of this allocation".to_owned();
                say(claim, allocation, Verdict::Refused, "Taken", message, actions);
            } else {
                let message = format!("lease {} waits for its GPUs", lease.id);
                say(claim, allocation, Verdict::Waiting, "Waiting", message, actions);
            }
        }
        LeaseState::Pending => {
            let message = format!("lease {} has lost a GPU and waits for it", lease.id);
            say(claim, allocation, Verdict::Waiting, "Lost", message, actions);
        }
        // A parked program has no GPU for a while and is granted all the same: its pod goes on.
        LeaseState::Parked => {}
        LeaseState::Releasing | LeaseState::Ended => {}
    }
}

/// Keeps the claim until its lease is returned. A server takes no new finalizer of a claim that is being deleted; while a pod
/// uses the claim, the server's own finalizer keeps it.
fn keep(claim: &ClaimView, actions: &mut Vec<Action>) {
    if !claim.has_finalizer && !claim.is_deleting {
        actions.push(Action::AddFinalizer);
    }
}

/// Says it, unless it was said already.
fn say(
    claim: &ClaimView,
    allocation: &Allocation,
    verdict: Verdict,
    reason: &'static str,
    message: String,
    actions: &mut Vec<Action>,
) {
    let is_said = match verdict {
        Verdict::Granted => claim.said == Said::Granted,
        Verdict::Refused => claim.said == Said::Refused,
        Verdict::Waiting => claim.said == Said::Waiting,
    };
    if !is_said {
        let devices = allocation.devices.clone();
        actions.push(Action::Say(Word { devices, verdict, reason, message }));
    }
}

/// The lease that a claim's allocation becomes, or why there can be none.
fn request_of(
    claim: &ClaimView,
    allocation: &Allocation,
    devices: &Devices,
    terms: &Terms,
) -> Result<LeaseRequest, String> {
    let config = allocation.config.as_ref().map_err(ToString::to_string)?;
    let mut gpu_ids = Vec::with_capacity(allocation.devices.len());
    for device in &allocation.devices {
        let gpu = devices.gpu(device);
        gpu_ids.push(
            gpu.ok_or_else(|| format!("the pool has no GPU for the device {device} any more"))?.clone(),
        );
    }
    gpu_ids.sort();
    let is_one_box = gpu_ids.iter().all(|gpu| gpu.box_name == gpu_ids[0].box_name);
    let request = LeaseRequest {
        gpus: gpu_ids.len() as u32,
        topology: if is_one_box { Topology::SameBox } else { Topology::Any },
        gpu_ids,
        share: config.share,
        survive: config.survive.of_lease(),
        priority: terms.priority,
        ttl_ms: terms.ttl_ms,
        note: lease_note(&claim.namespace, &claim.name),
        label: claim.label(),
        ..LeaseRequest::default()
    };
    request.check().map_err(|invalid| invalid.to_string())?;
    Ok(request)
}

/// Whether a lease is for these GPUs, on these conditions. A lease whose program survived a loss may be elsewhere by now;
/// the GPUs that it asked for count.
fn is_for(lease: &Lease, wanted: &LeaseRequest) -> bool {
    let asked = &lease.request;
    let has_moved = asked.survive != Survive::None && lease.granted_ms.is_some();
    let has: Vec<GpuId> = lease.grants.iter().map(|grant| grant.gpu.clone()).collect();
    is_same_set(&asked.gpu_ids, &wanted.gpu_ids)
        && asked.share == wanted.share
        && asked.survive == wanted.survive
        && (lease.state != LeaseState::Granted || has_moved || is_same_set(&has, &wanted.gpu_ids))
}

/// Whether both lists name the same GPUs; no GPU is named twice.
fn is_same_set(these: &[GpuId], those: &[GpuId]) -> bool {
    these.len() == those.len() && these.iter().all(|gpu| those.contains(gpu))
}

/// Whether a pod of this claim goes on when a GPU is lost.
pub fn survives(claim: &ClaimView) -> bool {
    let config = claim.allocation.as_ref().and_then(|allocation| allocation.config.as_ref().ok());
    config.is_some_and(|config| config.on_loss == OnLoss::Survive)
}

/// Leases of this owner that bear the label of a claim which is not there. `leases` must have been listed before `uids`:
/// a claim is there before its lease, and its finalizer keeps it there until its lease is returned.
pub fn orphans<'a>(
    leases: impl IntoIterator<Item = &'a Lease>,
    owner: &str,
    is_claim: impl Fn(&str) -> bool,
) -> Vec<LeaseId> {
    let is_orphan = |lease: &&Lease| {
        lease.state.is_live()
            && lease.owner == owner
            && crate::uid_of_key(&lease.request.label).is_some_and(|uid| !is_claim(uid))
    };
    leases.into_iter().filter(is_orphan).map(|lease| lease.id).collect()
}
