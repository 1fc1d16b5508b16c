//! libcuda.so.1: what a CUDA program believes to be its driver.
//!
//! A call passes three layers: a generated thunk (`generated`) with the types of C, the border (`border`) that turns
//! them into safe types and panics into error codes, and a body (`api`) that does the work.

// Modules that need unsafe code say so at their top; everything else is held to safe code.
#![deny(unsafe_code)]

mod api;
mod border;
mod compute_cache;
mod error_log;
mod export_tables;
#[allow(unsafe_code, reason = "C calls the thunks")]
mod generated;
mod host;
mod image;
mod link;
mod paging;
mod process;
mod reserve;
mod state;
mod threads;
mod timeline;

use worker_link::log;
