//! What can be asked of the ledger, and what comes back.

use super::possible::Impossible;
use pool_api::{
    BoxOrders, BoxRecord, BoxReport, ErrorAnswer, ErrorCode, Event, EventKind, Gpu, GpuId, HostOrders,
    HostRecord, HostReport, HostRequest, Invalid, Lease, LeaseId, LeaseRequest, LossAnswer, Model, Name,
    SpareRecord, SpareRequest, TenantRecord, TenantRequest,
};

/// Something to do. The caller has checked the permissions.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// A manager begins to lead. Answer: [`Answer::Work`].
    Lead {
        /// Its name.
        manager: String,
    },
    /// A box says how it is. The first report of a box makes it part of the pool. Answer: [`Answer::Orders`].
    Report {
        /// The box, as its certificate says.
        box_name: Name,
        /// What it says.
        report: BoxReport,
    },
    /// A host says how it is. The first report of a host makes it part of the pool. Answer: [`Answer::HostOrders`].
    ReportHost {
        /// The host, as its certificate says.
        host: Name,
        /// What it says.
        report: HostReport,
    },
    /// Sets the tenants that may plug leases into a host. Answer: [`Answer::Host`].
    SetHost {
        /// The host.
        host: Name,
        /// What is set.
        request: HostRequest,
    },
    /// A borrower asks for GPUs. Answer: [`Answer::Lease`], granted or pending.
    CreateLease {
        /// The user that asks.
        owner: String,
        /// The token they ask with, if it is by token.
        token: Option<String>,
        /// The tenant that the lease is for.
        tenant: Name,
        /// What for. Its own `tenant` is ignored: the caller has decided.
        request: LeaseRequest,
        /// The same key by the same owner gives the same lease.
        idempotency_key: Option<String>,
    },
    /// A borrower lives. Answer: [`Answer::Lease`].
    Renew {
        /// The lease.
        lease: LeaseId,
    },
    /// A borrower asks how its lease stands, which also says that it lives. A lease that is over is shown as it is.
    /// Answer: [`Answer::Lease`].
    Look {
        /// The lease.
        lease: LeaseId,
    },
    /// A borrower gives its lease back, or gives up waiting. Giving back twice is no error. Answer: [`Answer::Lease`].
    Release {
        /// The lease.
        lease: LeaseId,
        /// Why: `released`, or what an operator says.
        reason: String,
    },
    /// A borrower says that it has lost a GPU. Its lease moves at once. Answer: [`Answer::Loss`].
    Lost {
        /// The lease.
        lease: LeaseId,
        /// The GPU.
        gpu: GpuId,
        /// The epoch of the grant; a word about an older one changes nothing.
        epoch: u64,
        /// What happened, in words.
        why: String,
    },
    /// Gives a lease a second place, which its program is to go on at. Answer: [`Answer::Lease`].
    Move {
        /// The lease.
        lease: LeaseId,
        /// Which of its GPUs is left; the first, if none is named.
        gpu: Option<GpuId>,
        /// The box to go to; any, if none is named.
        to_box: Option<Name>,
        /// The identity that asked for it.
        by: String,
    },
    /// The program goes on at the second place: the first is given back. Answer: [`Answer::Lease`].
    Moved {
        /// The lease.
        lease: LeaseId,
        /// The second place.
        gpu: GpuId,
        /// Its epoch.
        epoch: u64,
    },
    /// The program does not go on at the second place, or has drilled there: the second place is given back. Answer:
    /// [`Answer::Lease`].
    Stay {
        /// The lease.
        lease: LeaseId,
        /// The second place.
        gpu: GpuId,
        /// Its epoch.
        epoch: u64,
        /// Why, in words.
        why: String,
    },
    /// Gives a lease a second place for a moment, which its program is to try a recovery on. Answer: [`Answer::Lease`].
    Drill {
        /// The lease.
        lease: LeaseId,
    },
    /// Wants the program of a lease to end its session and be kept as an image. Answer: [`Answer::Lease`].
    Suspend {
        /// The lease.
        lease: LeaseId,
    },
    /// The program of a lease is kept as an image: its GPUs are given back for a while. Answer: [`Answer::Lease`].
    Park {
        /// The lease.
        lease: LeaseId,
        /// A GPU that the lease has.
        gpu: GpuId,
        /// The epoch of that grant; a word about an older one changes nothing.
        epoch: u64,
        /// Bytes of the image.
        image_bytes: u64,
    },
    /// The program of a lease cannot be kept as an image now and goes on. Answer: [`Answer::Lease`].
    KeepRunning {
        /// The lease.
        lease: LeaseId,
        /// Why, in words.
        why: String,
    },
    /// A parked lease asks for GPUs again, like a new one. Answer: [`Answer::Lease`].
    Resume {
        /// The lease.
        lease: LeaseId,
    },
    /// Keeps a GPU from new leases; with `drain` its leases are moved away too. Answer: [`Answer::Gpu`].
    Taint {
        /// The GPU.
        gpu: GpuId,
        /// Why.
        reason: String,
        /// The identity that asked for it.
        by: String,
        /// Whether leases are moved away.
        drain: bool,
    },
    /// Lets leases have the GPU again. Answer: [`Answer::Gpu`].
    Untaint {
        /// The GPU.
        gpu: GpuId,
    },
    /// Empties a box. Answer: [`Answer::Box`].
    DrainBox {
        /// The box.
        box_name: Name,
        /// Why.
        reason: String,
        /// The identity that asked for it.
        by: String,
    },
    /// Keeps new leases from a box; those it has stay. Answer: [`Answer::Box`].
    CordonBox {
        /// The box.
        box_name: Name,
        /// Why.
        reason: String,
        /// The identity that asked for it.
        by: String,
    },
    /// Forgets a box that is dead and has nothing of any lease. Answer: [`Answer::Box`], as it was.
    RemoveBox {
        /// The box.
        box_name: Name,
    },
    /// Lets leases have the box again. Answer: [`Answer::Box`].
    UndrainBox {
        /// The box.
        box_name: Name,
    },
    /// A box is no member any more: it is as dead as can be until it reports again, which it may once it has joined
    /// anew. Answer: [`Answer::Work`].
    RevokeBox {
        /// The box; it need not be known.
        box_name: Name,
        /// Why.
        reason: String,
        /// The identity that asked for it.
        by: String,
    },
    /// The same for a host. Its leases are to be released by the caller. Answer: [`Answer::Work`].
    RevokeHost {
        /// The host; it need not be known.
        host: Name,
        /// Why.
        reason: String,
        /// The identity that asked for it.
        by: String,
    },
    /// Writes down what happened outside of the ledger. Answer: [`Answer::Work`].
    Tell {
        /// What.
        kind: EventKind,
        /// What it is about.
        about: About,
        /// In words.
        message: String,
    },
    /// Declares a GPU bad, whatever its box says. Answer: [`Answer::Gpu`].
    Break {
        /// The GPU.
        gpu: GpuId,
        /// Why.
        reason: String,
    },
    /// Says that a bad GPU is repaired: it comes back after a burn-in. Answer: [`Answer::Gpu`].
    Repair {
        /// The GPU.
        gpu: GpuId,
    },
    /// Sets quotas, weight and ceilings of a tenant. Answer: [`Answer::Tenant`].
    SetTenant {
        /// The tenant.
        name: Name,
        /// What is set.
        request: TenantRequest,
    },
    /// Sets how many spares of a model there shall be. Answer: [`Answer::Spare`].
    SetSpares {
        /// The model.
        model: Model,
        /// How many.
        request: SpareRequest,
    },
}

/// What an event is about that the ledger is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// The pool as a whole.
    Pool,
    /// A box.
    Box(Name),
    /// A host.
    Host(Name),
}

/// What a command answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// What a box should do. `lease_keys` is empty and secrets are unset: the caller knows the keys.
    Orders(BoxOrders),
    /// What a host should do. Secrets are unset: the caller knows the keys.
    HostOrders(HostOrders),
    /// A host as it is now.
    Host(HostRecord),
    /// A lease as it is now.
    Lease(Box<Lease>),
    /// What came of a borrower's word.
    Loss(Box<LossAnswer>),
    /// A GPU as it is now.
    Gpu(Box<Gpu>),
    /// A box as it is now.
    Box(BoxRecord),
    /// A tenant as it is now.
    Tenant(TenantRecord),
    /// The spares of a model.
    Spare(SpareRecord),
    /// Work of [`Ledger::tick`](crate::Ledger::tick), or a new leader's: no caller waits for an answer.
    Work,
}

/// A command was done, in memory. It counts when its writes are committed, all of them in one transaction.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Outcome {
    /// To be told once the writes are committed.
    pub answer: Answer,
    /// Key and new value; no value deletes the key. Never more than [`WRITES_MAX`](crate::WRITES_MAX).
    pub writes: Vec<(String, Option<Vec<u8>>)>,
    /// What happened; these are among the writes.
    pub events: Vec<Event>,
}

/// Why a command was not done. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Something sent is out of bounds.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// There is no such lease.
    #[error("there is no lease {lease}")]
    NoLease {
        /// The lease.
        lease: LeaseId,
    },
    /// The lease is over.
    #[error("lease {lease} is over: {reason}")]
    LeaseOver {
        /// The lease.
        lease: LeaseId,
        /// How it ended.
        reason: String,
    },
    /// The programs of this lease outlive nothing.
    #[error("lease {lease} was asked for without survive, so its program cannot go on elsewhere")]
    NotSurviving {
        /// The lease.
        lease: LeaseId,
    },
    /// The lease has no GPUs now.
    #[error("lease {lease} has no GPUs now: it is {state}")]
    NotGranted {
        /// The lease.
        lease: LeaseId,
        /// What it is instead.
        state: &'static str,
    },
    /// The lease has a second place already.
    #[error("lease {lease} is on its way to {gpu} already")]
    AlreadyMoving {
        /// The lease.
        lease: LeaseId,
        /// The second place.
        gpu: GpuId,
    },
    /// The lease does not have this GPU under this epoch.
    #[error("lease {lease} does not have {gpu}{}", of_epoch(*epoch))]
    NotItsGpu {
        /// The lease.
        lease: LeaseId,
        /// The GPU.
        gpu: GpuId,
        /// The epoch, if it is about one.
        epoch: Option<u64>,
    },
    /// There is no second place.
    #[error("no GPU {where_to} is free that lease {lease} could go to")]
    NoTarget {
        /// The lease.
        lease: LeaseId,
        /// Where one was looked for.
        where_to: String,
    },
    /// There is no such GPU.
    #[error("there is no GPU {gpu}")]
    NoGpu {
        /// The GPU.
        gpu: GpuId,
    },
    /// There is no such box.
    #[error("there is no box {box_name}")]
    NoBox {
        /// The box.
        box_name: Name,
    },
    /// A box that is there, or whose GPUs leases have, is not forgotten.
    #[error("box {box_name} cannot be removed: {why}")]
    BoxInUse {
        /// The box.
        box_name: Name,
        /// Why not.
        why: String,
    },
    /// There is no such host.
    #[error("there is no host {host}")]
    NoHost {
        /// The host.
        host: Name,
    },
    /// There are more machines than can be told apart on the network.
    #[error("there are 65535 boxes and hosts already")]
    TooManyNodes,
    /// A host speaks of an epoch that this pool cannot have given it.
    #[error("slot {slot} of host {host} speaks of epoch {epoch}, and this pool has given it {given} at most")]
    StrangeEpoch {
        /// The host.
        host: Name,
        /// Its slot.
        slot: u8,
        /// What it says.
        epoch: u64,
        /// What it was given.
        given: u64,
    },
    /// Only a bad GPU can be repaired.
    #[error("GPU {gpu} is not bad, so it cannot be repaired")]
    NotBad {
        /// The GPU.
        gpu: GpuId,
    },
    /// The same idempotency key came with another request.
    #[error("this idempotency key was used for another request")]
    KeyUsed,
    /// The lease this idempotency key made is over and forgotten.
    #[error("the lease {lease} that this idempotency key made is over")]
    KeyOver {
        /// The lease.
        lease: LeaseId,
    },
    /// More leases than the pool keeps at once.
    #[error("there are {limit} leases already")]
    TooManyLeases {
        /// The bound.
        limit: usize,
    },
    /// More waiting leases than one tenant may have.
    #[error("{limit} leases of tenant {tenant} are waiting already")]
    TooManyPending {
        /// The tenant.
        tenant: Name,
        /// The bound.
        limit: usize,
    },
    /// Its operators do not let this tenant have so high a priority.
    #[error("tenant {tenant} may have a priority of {limit} at most, and {asked} was asked for")]
    PriorityTooHigh {
        /// The tenant.
        tenant: Name,
        /// What was asked for.
        asked: u32,
        /// The bound.
        limit: u32,
    },
    /// Its operators do not let this tenant have leases that live so long without being renewed.
    #[error(
        "a lease of tenant {tenant} may live {} s without renewal at most, and {} s were asked for", limit_ms / 1000, asked_ms / 1000
    )]
    TtlTooLong {
        /// The tenant.
        tenant: Name,
        /// What was asked for.
        asked_ms: u64,
        /// The bound.
        limit_ms: u64,
    },
    /// It asks for more time than its tenant may.
    #[error("tenant {tenant} may have GPUs for {} at most, and {} was asked for", pool_api::time_in_words(*limit_ms), pool_api::time_in_words(*asked_ms))]
    TimeLimitTooLong {
        /// The tenant.
        tenant: Name,
        /// What was asked for.
        asked_ms: u64,
        /// The bound.
        limit_ms: u64,
    },
    /// No GPU of this pool can ever serve the request.
    #[error(transparent)]
    Impossible(Impossible),
    /// There are more kinds of GPU than the pool can tell apart.
    #[error("the pool cannot tell more than 64 kinds of GPU apart (model, memory, kind of box, plane)")]
    TooManyKinds,
}

fn of_epoch(epoch: Option<u64>) -> String {
    epoch.map_or_else(String::new, |epoch| format!(" under epoch {epoch}"))
}

impl Refusal {
    /// How it is told to a client.
    pub fn to_answer(&self) -> ErrorAnswer {
        let (code, hint) = match self {
            Self::Invalid(_) => (ErrorCode::BadRequest, ""),
            Self::NoLease { .. } => (ErrorCode::NotFound, "leases that are over are forgotten after an hour"),
            Self::NotSurviving { .. } => (
                ErrorCode::Conflict,
                "ask for it with `dxpu run --survive`, or with survive = gpu in the request",
            ),
            Self::NotGranted { .. } => {
                (ErrorCode::Conflict, "`dxpu lease explain LEASE` says what it waits for")
            }
            Self::AlreadyMoving { .. } => (ErrorCode::Conflict, "wait until it has arrived or stays"),
            Self::NotItsGpu { .. } => (
                ErrorCode::Conflict,
                "look at the lease: it may have moved, or may have given that place back",
            ),
            Self::NoTarget { .. } => {
                (ErrorCode::Conflict, "`dxpu gpu ls` shows what is free; try again when one is")
            }
            Self::NoGpu { .. } => (ErrorCode::NotFound, "a GPU is named BOX/SLOT; `dxpu gpu ls` lists them"),
            Self::NoBox { .. } => (ErrorCode::NotFound, "`dxpu box ls` lists them"),
            Self::BoxInUse { .. } => (
                ErrorCode::Conflict,
                "stop its agent and wait until `dxpu box ls` calls it dead, or expel it: dxpu box revoke NAME",
            ),
            Self::NoHost { .. } => (ErrorCode::NotFound, "`dxpu host ls` lists them"),
            Self::TooManyNodes => (ErrorCode::TooMany, "make a second pool"),
            Self::StrangeEpoch { .. } => {
                (ErrorCode::Conflict, "start the host's proxy anew, with no state kept")
            }
            Self::LeaseOver { .. } => (ErrorCode::Gone, "ask for a new lease"),
            Self::KeyOver { .. } => (ErrorCode::Gone, "use a new key for a new lease"),
            Self::NotBad { .. } => (ErrorCode::Conflict, "only GPUs in state bad are repaired"),
            Self::KeyUsed => (ErrorCode::IdempotencyConflict, "use a new key for each new request"),
            Self::TooManyLeases { .. } | Self::TooManyPending { .. } => {
                (ErrorCode::TooMany, "wait until some are over")
            }
            Self::PriorityTooHigh { .. } => (
                ErrorCode::Forbidden,
                "ask for less, or have an admin allow more: dxpu tenant set NAME --priority-max N",
            ),
            Self::TimeLimitTooLong { .. } => (
                ErrorCode::Forbidden,
                "ask for less, or have an admin allow more: dxpu tenant set NAME --time-limit-max 2d",
            ),
            Self::TtlTooLong { .. } => (
                ErrorCode::Forbidden,
                "ask for less and renew, or have an admin allow more: dxpu tenant set NAME --ttl-max 7d",
            ),
            Self::Impossible(why @ Impossible::Limit { .. }) => (ErrorCode::Forbidden, why.hint()),
            Self::Impossible(why) => (ErrorCode::Conflict, why.hint()),
            Self::TooManyKinds => (ErrorCode::TooMany, "take boxes with odd GPUs out of the pool"),
        };
        ErrorAnswer::new(code, self.to_string(), hint)
    }
}
