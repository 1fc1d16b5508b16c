//! What can be asked of the ledger, and what comes back.

use pool_api::{
    BoxOrders, BoxRecord, BoxReport, ErrorAnswer, ErrorCode, Event, EventKind, Gpu, GpuId, HostOrders,
    HostRecord, HostReport, HostRequest, Invalid, Lease, LeaseId, LeaseRequest, Model, Name, SpareRecord,
    SpareRequest, TenantRecord, TenantRequest,
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
        "leases of tenant {tenant} may live {limit_ms} ms without renewal at most, and {asked_ms} ms were asked for"
    )]
    TtlTooLong {
        /// The tenant.
        tenant: Name,
        /// What was asked for.
        asked_ms: u64,
        /// The bound.
        limit_ms: u64,
    },
    /// There are more kinds of GPU than the pool can tell apart.
    #[error("the pool cannot tell more than 64 kinds of GPU apart (model, memory, kind of box, plane)")]
    TooManyKinds,
}

impl Refusal {
    /// How it is told to a client.
    pub fn to_answer(&self) -> ErrorAnswer {
        let (code, hint) = match self {
            Self::Invalid(_) => (ErrorCode::BadRequest, ""),
            Self::NoLease { .. } => (ErrorCode::NotFound, "leases that are over are forgotten after an hour"),
            Self::NoGpu { .. } => (ErrorCode::NotFound, "a GPU is named BOX/SLOT; `dxpu gpu ls` lists them"),
            Self::NoBox { .. } => (ErrorCode::NotFound, "`dxpu box ls` lists them"),
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
            Self::TtlTooLong { .. } => (
                ErrorCode::Forbidden,
                "ask for less and renew, or have an admin allow more: dxpu tenant set NAME --ttl-max 7d",
            ),
            Self::TooManyKinds => (ErrorCode::TooMany, "take boxes with odd GPUs out of the pool"),
        };
        ErrorAnswer::new(code, self.to_string(), hint)
    }
}
