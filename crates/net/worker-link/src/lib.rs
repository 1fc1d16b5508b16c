//! How the libraries inside a program (libcuda, libnvidia-ml) find their workers and say hello.
//!
//! ```text
//!   environment of `dxpu run` ─▶ Config ─▶ Caller ── TLS, Knock ─▶ Ticket ── TLS, Hello ─▶ Welcome | StatusWelcome
//! ```
//!
//! Each library defines for itself what comes after the hello.

#![forbid(unsafe_code)]

mod call;
mod config;
mod failure;
pub mod log;
mod patience;
mod survive;
mod tokens;
mod users;

pub use call::{CONNECT_TIMEOUT, Caller, random};
pub use config::Config;
pub use failure::Failure;
pub use patience::{BackOff, PATIENCE_DEFAULT, patiently};
pub use survive::{Survive, UnknownSurvive};
pub use tokens::Tokens;
pub use users::trusted_users;
