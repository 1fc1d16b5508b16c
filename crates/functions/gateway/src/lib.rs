//! The service of functions.
//!
//! ```text
//!   boto3, dxpu function ──▶ lambda (HTTP, SigV4) ──▶ desk ──▶ spawner ──▶ runner ──▶ instance (awslambdaric, handler)
//!                                                      │  ▲                                │
//!                                                      │  └───── runtime (Runtime API) ◀───┘ one listener for each
//!                                                      ├──▶ keeper ──▶ pool-store (functions, accepted invocations, reports)
//!                                                      ├──▶ line (the CUDA library of an instance that survives)
//!                                                      └──▶ Gpus (leases of the pool, in the binary)
//! ```
//!
//! The desk owns the machine of the crate `functions` behind one lock. What it does under the lock never waits.

#![forbid(unsafe_code)]

mod answer;
mod cache;
mod clock;
mod desk;
mod gateway;
mod gpus;
mod keeper;
mod keys;
mod lambda;
mod line;
mod logs;
mod metrics;
mod peer;
mod pipes;
mod runner;
mod runtime;
mod server;
mod spawner;
mod tls;
mod users;

pub mod client;

pub use gateway::{Gateway, Settings, StartError};
pub use gpus::{GpuNews, GpuPart, GpuWay, Gpus, GpusOf, NoGpus, NoWay, NotHeld};
pub use keeper::KeepError;
pub use keys::{KeyError, new_key};
pub use runner::{InnerOrder, RunnerError, run_inner, run_outer};
pub use tls::{TlsError, TlsFiles};
