//! GPUs of a pool for jobs of Slurm: the decisions, without sockets, processes, clocks or files.
//!
//! ```text
//!   job script ──▶ directive ──▶ lease request      job ──▶ key, note of its lease
//!   a job that ran before ──▶ how long its start waits
//!   slurm.conf ──▶ cluster's name                   queue of jobs + leases ──▶ which to renew, which to return
//!   workers of a lease ──▶ environment of the job's programs
//! ```
//!
//! `dxpu slurm` runs these decisions; Slurm calls it from `burst_buffer.lua`, Prolog, TaskProlog and Epilog.

#![forbid(unsafe_code)]

mod accounting;
mod conf;
mod directive;
mod environment;
mod job;
mod restart;
mod sweep;

pub use accounting::{Thousandths, admin_comment, gpu_seconds, usage_line};
pub use conf::{ConfError, cluster_name, slurm_user};
pub use directive::{DirectiveError, PREFIX, Wanted};
pub use environment::{Environment, EnvironmentError, Shell};
pub use job::{Job, JobError, Note};
pub use restart::{pause_before_start, requeued_at, restart_question};
pub use sweep::{Plan, Queue, QueueError, asks_for_gpus, plan};
