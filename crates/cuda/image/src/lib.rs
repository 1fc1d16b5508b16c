//! Module images: fatbins, cubins and PTX, found by pointer and cut down to what a GPU can use.
//!
//! A program that loads a module hands over a pointer without a length. [`image_length`] finds the length from the
//! image itself; [`select_usable`] drops what a GPU of a given compute capability has no use for, so that it need not
//! travel; [`Fatbin`] looks inside. The bytes come from an untrusted program: nothing here panics on them, and no
//! allocation exceeds a named bound.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod bytes;
mod elf;
mod error;
mod fatbin;
mod length;
mod select;
mod symbols;
mod unpack;

pub use error::ImageError;
pub use fatbin::{Compression, Entry, EntryKind, Fatbin, Reach};
pub use length::{FATBIN_MAGIC, FATBIN_WRAPPER_MAGIC, IMAGE_BYTES_MAX, PTX_BYTES_MAX, image_length};
pub use select::{Capability, ImageKind, Wants, kind_of, select_usable};
pub use symbols::Symbols;
pub use unpack::ENTRY_BYTES_MAX;

/// The name under which an image travels and is kept: the same bytes have the same name everywhere.
pub fn content_hash(image: &[u8]) -> [u8; 32] {
    *blake3::hash(image).as_bytes()
}
