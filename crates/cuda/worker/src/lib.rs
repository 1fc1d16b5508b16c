//! The worker: executes one client's command stream on a driver.
//!
//! ```text
//!                    ┌ front (one process) ┐        ┌ session process (one per client) ──────────────────┐
//!   knock ──────────▶│ TLS, token ─▶ ticket│        │                                                    │
//!   connection ─────▶│ preamble: session?  │─ fd ──▶│ TLS, token ─▶ command loop ─▶ gate ─▶ driver        │
//!                    │ no driver           │        │ events, lanes ◀───────────── host link ◀─ streams   │
//!                    └──────────┬──────────┘        └────────────────────────────────────────────────────┘
//!                               └─ fd ─▶ status process (one for all clients that only look, no driver)
//! ```
//!
//! A fault in one client's kernel or frames ends that client's process and nothing else. The front never sees a
//! driver: the session process makes it with a function that the application gives.

#![forbid(unsafe_code)]

mod admission;
mod config;
mod content;
mod end;
mod front;
mod images;
mod session;
mod status;

pub use admission::Admission;
pub use config::{FrontConfig, Grant, GrantMaker, SessionConfig, SessionSpawn};
pub use end::{EndKind, NoDevices, SessionEnd};
pub use front::{FrontError, FrontHandle, Reason, SessionEvent, serve_listener};
pub use images::ImageCache;
pub use session::{DriverFactory, OpenStore, run_session_process, run_session_process_with_store};
pub use status::StatusFactory;
