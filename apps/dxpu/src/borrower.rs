//! Commands of those who use GPUs of other machines: `run`, with a worker or with GPUs of a pool, and `vm`.

mod borrow;
mod preflight;
pub(crate) mod run;
pub(crate) mod vm;
