//! libnvidia-ml.so.1: what a program believes to be NVML, showing the leased GPUs and only those.
//!
//! ```text
//!   C caller ─▶ thunk (made by `exports!`) ─▶ body (api) ─▶ state: devices of all workers ── status connection ─▶ worker
//! ```
//!
//! Nearly every function reads one value of a [`cuda_wire::DeviceStatus`], which is asked for anew each time: a worker
//! decides what it keeps for how long. Functions that change a device are refused, for the device is lent. Everything
//! else that NVML has and this does not answers that it is not supported; no symbol is missing.

// Modules that need unsafe code say so at their top; everything else is held to safe code.
#![deny(unsafe_code)]

mod abi;
#[macro_use]
mod border;
mod api;
mod state;
