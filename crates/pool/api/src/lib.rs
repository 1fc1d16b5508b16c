//! The pool's formats: what the manager, boxes, borrowers and operators say to each other over HTTP, as JSON.
//!
//! The manager stores the same records that it shows, so there is one set of types. Nothing here does anything: no
//! I/O, no clock, no policy. What a client sends refuses unknown fields, and `check` functions say what is out of
//! bounds; what the manager answers may grow fields, which older clients ignore.
//!
//! Times are milliseconds since 1970 by the manager's clock and end in `_ms`; durations do too. Clients never
//! compare them with a clock of their own: answers that matter carry `now_ms`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod name;

mod gpu;
mod gpu_box;
mod host;
mod lease;
mod spare;
mod survival;
mod tenant;
mod times;

mod access;
mod join;
mod link_secret;
mod refusal;
mod report;
mod revocation;
mod token;

mod audit;
mod capacity;
mod error;
mod event;
mod explain;
mod page;
mod part;
mod protocol;

pub use access::{
    AccessKind, Borrower, LeaseKeys, NewToken, RenewRequest, ReturnRequest, TOKEN_TTL_MAX_MS, TokenInfo,
    TokenRequest, WhoAmI,
};
pub use audit::{AuditBook, AuditBooks, AuditEntry, AuditOutcome};
pub use capacity::{Capacity, TenantUsage};
pub use error::{ErrorAnswer, ErrorCode, ErrorDetail};
pub use event::{Event, EventKind};
pub use explain::{Explanation, Filter, FilterCount, SEAT_IS_CLOSED};
pub use gpu::{Counters, FIRST_GUEST_SLOT, Gpu, GpuState, Guest, Health, Holder, Kept, Taint, TaintRequest};
pub use gpu_box::{BoxDetail, BoxKind, BoxRecord, BoxState};
pub use host::{
    Attachment, HostDetail, HostOrders, HostRecord, HostReport, HostRequest, HostSlot, HostSlotOrder,
    HostSlotReport, HostState, HostWant, Leaving, PCIE_EPOCH_MAX, PCIE_PATH_PREFIX, PciePairing, Phase,
    SLOTS_PER_HOST_MAX, TENANTS_PER_HOST_MAX, is_pcie_path, link_name,
};
pub use join::{JoinAnswer, JoinRequest};
pub use lease::{
    Ended, GPUS_PER_LEASE_MAX, Grant, LABEL_BYTES_MAX, LEASE_TTL_DEFAULT_MS, LEASE_TTL_MAX_MS,
    LEASE_TTL_MIN_MS, Lease, LeaseRequest, LeaseState, Move, NOTE_CHARS_MAX, PRIORITY_DEFAULT, PRIORITY_MAX,
    Plane, SLACK_PERCENT_MAX, Share, TIME_LIMIT_MAX_MS, Topology, check_label,
};
pub use link_secret::{LinkSecret, SlotPass};
pub use name::{GpuId, Invalid, LeaseId, Model, Name, SLOTS_PER_BOX_MAX};
pub use page::Page;
pub use part::{PARTS_PER_GPU_MAX, Part, counted};
pub use protocol::{PROTOCOL, PROTOCOL_HEADER, PROTOCOL_OLDEST, check_protocol};
pub use refusal::{RefusalReport, RefusalsHeard, SlotRefusal};
pub use report::{
    BoxOrders, BoxReport, BurnIn, GPU_MEMORY_BYTES_MAX, GpuReport, GuardReport, GuardedLease, SeatLoad,
    SlotOrder, Want,
};
pub use revocation::{DeniedLease, RevocationDone, RevocationInfo, RevocationRequest};
pub use spare::{SparePlan, SparePlanRequest, SpareRecord, SpareRequest, SpareStatus};
pub use survival::{
    Drill, DrilledRequest, LinkProtection, LossAnswer, LostRequest, MoveRequest, MovedRequest, Moving,
    ParkedRequest, Parking, Protection, ProtectionReport, ProtectionState, Purpose, Survive, Verdict,
    as_note,
};
pub use tenant::{
    Quota, TENANT_PRIORITY_MAX_DEFAULT, TENANT_TTL_MAX_DEFAULT_MS, TenantRecord, TenantRequest, TenantStatus,
    TenantUse, WEIGHT_DEFAULT, WEIGHT_MAX,
};
pub use times::{IDLE_LIMIT_MIN_MS, IdleLease, TenantTimes, time_in_words};
pub use token::{LeaseClaims, LeaseTokens, SignedGrant};
pub use work_class::Class;
