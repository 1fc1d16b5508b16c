//! A block whose bytes are what its entry says.

use super::{ImageError, history::Stored};
use crate::{BLOCK_BYTES, BlockDigest, Bytes, Key};
use std::sync::Arc;

/// A block with the digest of its entry, under one key.
#[derive(Debug)]
pub struct CheckedBlock {
    pub(super) key: Arc<Key>,
    pub(super) stored: Stored,
}

impl CheckedBlock {
    /// Computes the digest of the bytes and compares it.
    pub fn new(key: &Arc<Key>, entry: BlockDigest, bytes: Bytes) -> Result<Self, ImageError> {
        let address = entry.block.address;
        if bytes.len() != entry.block.bytes as usize
            || bytes.is_empty()
            || bytes.len() > BLOCK_BYTES
            || address.checked_add(bytes.len() as u64 - 1).is_none()
        {
            return Err(ImageError::BadBlock { address });
        }
        if key.digest(&bytes) != entry.digest {
            return Err(ImageError::Corrupted { address });
        }
        Ok(Self { key: Arc::clone(key), stored: Stored { entry, bytes } })
    }
}
