//! Images of device memory, as a worker cuts them and a guardian keeps them.
//!
//! ```text
//!  worker (driver)                                              guardian
//!  extents ─▶ blocks ─▶ digests ─▶ Tables::take ─▶ Delta ──▶ Image::begin, put…, bury ─▶ Image::commit
//!                                  Tables::settle ◀──────────────── committed, or thrown away ┘
//! ```
//!
//! Live memory is a set of [`Extents`], cut into [`Block`]s of at most [`BLOCK_BYTES`]. A block is named by its first
//! address. [`Key::digest`] tells whether a block changed since the last committed cut ([`Tables`]); only what changed
//! travels. An [`Image`] takes such a delta whole or not at all, from one writer, and can be read at a committed number.
//!
//! The crate knows no GPU, no socket, no clock and no thread. The digest is specified to the bit in [`digest`], because
//! a GPU computes it too.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![deny(unsafe_code)]

mod buffer;
pub mod digest;
mod extent;
mod image;
mod table;

pub use buffer::Bytes;
pub use digest::{BLOCK_BYTES, Digest, Key};
pub use extent::{Block, Extent, ExtentError, Extents, VARIABLE_BYTES_MAX, variable_extents};
pub use image::{CheckedBlock, EventAge, Gone, Image, ImageError};
pub use table::{BlockDigest, Delta, Seal, TableError, Tables};
