//! Functions: short programs that use GPUs of a pool, deployed and invoked over AWS Lambda's interface.
//!
//! ```text
//!   deploy ─▶ Function (record, by tenant and name; its code by content hash)
//!   invoke ─▶ Machine ──▶ fair queue by tenants ──▶ an idle instance, or a new one within limits ──▶ verdict
//!                │                                       └ on a share of a leased GPU, if it declared GPU memory
//!                └─ Event in, Actions out: knows no clock, process, socket or file
//! ```
//!
//! The gateway (`functions-gateway`) is the shell: HTTP, processes, the store.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod archive;
mod balance;
mod limits;
mod machine;
mod places;
mod queue;
mod record;
mod signature;
#[cfg(test)]
mod simulation;
mod survive;

pub use archive::{ArchiveError, File, unpack};
pub use limits::{
    ASYNC_PAYLOAD_BYTES_MAX, CODE_BYTES_MAX, ENVIRONMENT_BYTES_MAX, FILES_MAX, HOPS_MAX, MEMORY_MB_MAX,
    MEMORY_MB_MIN, RETRIES_MAX, SYNC_PAYLOAD_BYTES_MAX, TIMEOUT_S_MAX, UNPACKED_BYTES_MAX,
};
pub use machine::{
    Action, Event, GpuLoad, InstanceId, Kind, Link, Machine, Outlook, Refusal, Settings, SlotId, Spec,
    Verdict, Whereabouts,
};
pub use places::Fit;
pub use record::{
    AccessKey, Configuration, Destinations, Function, FunctionKey, Invalid, Queued, Report, RetryRules,
    VERSION, is_name, name_of,
};
pub use signature::{Authorization, Denied, Request, sha256_hex, sign};
pub use survive::Survive;
