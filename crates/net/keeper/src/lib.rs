//! What a protected program's client library and its keeper (`dxpu run --survive`, `dxpu functions`) say to each other.
//!
//! ```text
//!   program ── attached, lost, resumed, moved, refused, parked, unpark, protection, drilled ──▶ keeper
//!   program ◀── place, nowhere, wait, move, suspend, drill ── keeper
//! ```
//!
//! The keeper listens on a Unix socket in a private folder, whose path the program finds in [`SOCKET_VARIABLE`]. The
//! library opens one connection for each protected link, and its first line is [`FromProgram::Attached`]. Each line is
//! one JSON object of at most [`LINE_BYTES_MAX`] bytes; its field `kind` says which. The keeper may vanish: the program
//! goes on, and at a loss has its own worker and its standbys only.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod line;
mod words;

pub use line::{LINE_BYTES_MAX, LineError, decode, encode, read_line, write_line};
pub use words::{FromProgram, Place, State, ToProgram, What};

/// The variable that names the keeper's socket to a program.
pub const SOCKET_VARIABLE: &str = "DXPU_KEEPER";
