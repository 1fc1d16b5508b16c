//! Cuts before the committed one, which the program may still need.
//!
//! ```text
//!   commit 7 ─▶ 6 stays ─▶ begin 8, relative to 7 ─▶ 6 goes
//! ```
//!
//! A commit is not the end of the cut before: the worker may be lost before it has told its client, and the client may
//! have reasons to hold on to the older cut. Its next cut says that it has let go: the delta is relative to the one that it
//! knows to be safe. A whole image says no such thing, so it takes nothing away.

use snapshot::{EventAge, Image, ImageError, Seal};
use std::collections::BTreeSet;

/// Whole images in a row whose commits never reached the client. Each keeps its blocks in memory.
const OLDER_MAX: usize = 4;

/// The older cuts of an image, each with a pin.
#[derive(Debug, Default)]
pub(super) struct Older(BTreeSet<u64>);

impl Older {
    /// Begins a delta; cuts before its base are let go of.
    pub(super) fn begin(
        &mut self,
        image: &mut Image,
        incarnation: u64,
        (base, number): (u64, u64),
    ) -> Result<(), ImageError> {
        image.begin(incarnation, base, number)?;
        if base != 0 {
            std::mem::take(&mut self.0).into_iter().for_each(|older| image.unpin(older));
        }
        Ok(())
    }

    /// Commits a delta; the cut that was committed before stays readable.
    pub(super) fn commit(
        &mut self,
        image: &mut Image,
        incarnation: u64,
        (number, seal): (u64, Seal),
        events: Vec<EventAge>,
    ) -> Result<(), ImageError> {
        let before = image.committed();
        if before != 0 {
            image.pin(before)?;
        }
        if let Err(refusal) = image.commit(incarnation, number, seal, events) {
            image.unpin(before);
            return Err(refusal);
        }
        if before != 0 {
            self.0.insert(before);
        }
        while self.0.len() > OLDER_MAX {
            self.0.pop_first().into_iter().for_each(|oldest| image.unpin(oldest));
        }
        Ok(())
    }
}
