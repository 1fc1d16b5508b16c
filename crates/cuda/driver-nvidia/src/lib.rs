//! The driver trait over the NVIDIA driver of this machine.
//!
//! ```text
//!   commands ─▶ tables (names → handles) ─▶ sys (libcuda.so.1)
//!                  │
//!                  ├ memory    device memory at the client's addresses (VMM), credit kept as a reserve
//!                  ├ copy_in   network → pinned slots → GPU      one thread of ours watches words in pinned memory
//!                  ├ copy_out  GPU → pinned slots → network      that streams write, and writes those they wait for
//!                  ├ graph     flattened graphs as CUDA graphs
//!                  ├ seat      online and offline programs on one GPU: streams that wait for a gate
//!                  ├ slices    how long the device is this session's at a stretch
//!                  └ cut       all memory at one place in the order of commands, saved while the program goes on
//! ```
//!
//! Nothing of the client's semantics is decided here: commands become calls of the driver in the order they come, and
//! the driver's answers go back. No call here waits for the GPU, except those that say so.
//!
//! `unsafe` is the border to the driver: `sys` declares it, the other modules call it with memory they own.

// Modules that need unsafe code say so at their top; everything else is held to safe code.
#![deny(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

mod array;
mod commands;
mod context;
mod copy_in;
mod copy_out;
mod current;
mod cut;
mod cut_kernels;
mod device_info;
mod driver;
mod exports;
#[cfg(test)]
mod fake;
mod first_variable;
mod graph;
mod green;
mod known;
mod launch;
mod leaving;
mod linker;
mod memory;
mod module;
mod op;
mod pinned;
mod printed;
mod progress;
mod pulse;
mod quota;
mod read_back;
mod reference;
mod rows;
mod sampler;
mod seat;
mod shared;
mod slices;
mod status;
mod stream;
mod sys;
mod tables;
mod tensor_map;
#[cfg(test)]
mod tests;

pub use driver::{NvidiaConfig, NvidiaDriver, StartError};
pub use quota::Quota;
pub use slices::{Trial, TrialError, bear, run_trial};
pub use status::{NvidiaStatus, StatusError};
pub use sys::LoadError;
