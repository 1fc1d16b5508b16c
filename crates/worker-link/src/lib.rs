//! How the libraries inside a program (libcuda, libnvidia-ml) find their workers and say hello.
//!
//! ```text
//!   environment of `dxpu run` ─▶ Config ─▶ Caller ── preamble, TLS ─▶ Connection ── Hello ─▶ Welcome | StatusWelcome
//! ```
//!
//! What comes after the hello is the business of each library.

#![forbid(unsafe_code)]

mod call;
mod config;
pub mod log;
mod tokens;

pub use call::{CONNECT_TIMEOUT, Caller, Failure, greet, patiently};
pub use config::Config;
pub use tokens::Tokens;
