//! A guardian: a process of a box, without any driver, that keeps images of device memory in host memory.
//!
//! ```text
//!  session ─ GuardianStore ═ Unix socket ═▶ Guardian ▸ Shelf ▸ snapshot::Image      (outlives session, driver and GPU)
//!                                              ├ disk    suspended images, encrypted
//!                                              ├ copy  ═ mutual TLS ═▶ a guardian of another box: second copy
//!                                              └ fetch ◀ mutual TLS ═ a guardian of another box: the session came here
//! ```
//!
//! A session that is cut sends what changed; the guardian computes the digest of each block and takes the cut whole or
//! not at all. When the session is lost, the next one, of this worker or another, opens the image with the name and the
//! secret that the client drew, and reads it back. Nothing else opens an image.
//!
//! *Invariants:* a committed image changes by a whole commit alone, whatever dies at which byte; an image has one writer,
//! and a newer one shuts the older out between two blocks; memory is charged before it is taken; bytes of a program are
//! overwritten before their memory is given back.

#![forbid(unsafe_code)]

mod budget;
mod copy;
mod disk;
mod error;
mod fetch;
mod memory;
mod peer;
mod protocol;
mod server;
mod shelf;
mod store;
mod stream;
mod supervisor;
mod talk;

pub use disk::DiskError;
pub use error::{Broken, Refusal};
pub use memory::{available_bytes, keep_out_of_swap, make_ready, tune_memory};
pub use peer::{PeerAddress, PeerAddressError, PeerError, PeerFiles, PeerSecurity};
pub use protocol::ProtocolError;
pub use server::{
    Guardian, GuardianConfig, KEEP, KEEP_LEASED, KEEP_PARKED, PARK_AFTER, PeerListen, StartError,
};
pub use store::{Census, GuardedImage, GuardianStore, ImageState};
pub use supervisor::{MakeCommand, SuperviseError, Supervisor};
