//! Commands that make this process a part of a pool, or start such processes: worker, box, host, manager, `up`, `demo`.

pub(crate) mod demo;
pub(crate) mod function_runner;
pub(crate) mod functions;
pub(crate) mod gpu_box;
pub(crate) mod guardian;
pub(crate) mod host;
mod join_token;
pub(crate) mod manager;
pub(crate) mod mps;
pub(crate) mod time_slices;
pub(crate) mod up;
pub(crate) mod worker;
pub(crate) mod worker_session;
