//! Images of modules by their hash: the first bytes seen are kept, whatever becomes of the frame they came in.

use std::{collections::HashMap, sync::Arc};

/// The blake3 hash that names an image.
pub type ImageHash = [u8; 32];

#[derive(Clone, Debug, Default)]
pub(crate) struct Images {
    known: HashMap<ImageHash, Arc<[u8]>>,
    /// Bytes that this crate copied out of frames. What the client registered is the client's own.
    copied_bytes: u64,
}

impl Images {
    pub(crate) fn get(&self, hash: &ImageHash) -> Option<&Arc<[u8]>> {
        self.known.get(hash)
    }

    /// Keeps an image that the client holds anyway.
    pub(crate) fn share(&mut self, hash: ImageHash, bytes: Arc<[u8]>) {
        self.known.entry(hash).or_insert(bytes);
    }

    /// Keeps an image that lies in a frame which is about to go.
    pub(crate) fn copy(&mut self, hash: ImageHash, bytes: &[u8]) {
        if let std::collections::hash_map::Entry::Vacant(place) = self.known.entry(hash) {
            self.copied_bytes += bytes.len() as u64;
            place.insert(Arc::from(bytes));
        }
    }

    /// Takes over what a fold has copied. Only folds copy, one at a time, so their count is the present one.
    pub(crate) fn take_over(&mut self, folded: Self) {
        for (hash, bytes) in folded.known {
            self.known.entry(hash).or_insert(bytes);
        }
        self.copied_bytes = folded.copied_bytes;
    }

    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}
