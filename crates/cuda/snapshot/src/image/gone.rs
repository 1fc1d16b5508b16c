//! Blocks that an image has let go of.

use super::history::Stored;

/// Blocks that nothing needs any more. They take memory until this is dropped, which overwrites them with zeros: for
/// gigabytes that takes a while, so it is not done while others wait for the image.
#[derive(Debug, Default)]
#[must_use]
pub struct Gone {
    blocks: Vec<Stored>,
    cost: u64,
}

impl Gone {
    pub(super) fn take(&mut self, stored: Stored) {
        self.cost += stored.cost();
        self.blocks.push(stored);
    }

    /// Memory that they take.
    pub fn bytes(&self) -> u64 {
        self.cost
    }

    /// How many blocks they are.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}
