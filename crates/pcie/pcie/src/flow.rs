//! Flow: how many requests may be open, what becomes of unanswered ones, and which packet may pass which.

mod order;
mod requester;

pub use order::{OrderedQueue, QueueFull, may_pass};
pub use requester::{
    Failure, Finished, JobId, REQUESTS_PER_JOB_MAX, Request, Requester, RequesterOptions, Unexpected,
};
pub(crate) use requester::{as_completion, memory_reads};
