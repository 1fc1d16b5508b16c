//! Free extents of one stream by size: lists of similar sizes, and two levels of bits that say which are not empty.
//!
//! Finding an extent that fits takes a few instructions however many there are. A list holds extents whose sizes differ by
//! at most a 32nd; so an extent of the next list always fits, and one of the list itself may.

use super::nodes::{NONE, Nodes};

/// What sizes are counted in: every block is a multiple of it.
pub(super) const UNIT_BYTES: u64 = 512;
/// Lists of a power of two, as a power of two.
const SPLIT_BITS: u32 = 5;
const SPLIT: usize = 1 << SPLIT_BITS;
/// Powers of two: extents up to 2^(36 + 5) units.
const POWERS: usize = 37;
/// Extents of a list that are looked at: a block of a size that was freed before is among the first.
const LOOKED_AT: usize = 8;

/// The lists of one stream. The links are in the nodes.
#[derive(Debug)]
pub(super) struct Bins {
    powers: u64,
    splits: [u32; POWERS],
    heads: Box<[[u32; SPLIT]; POWERS]>,
}

impl Bins {
    pub(super) fn new() -> Self {
        Self { powers: 0, splits: [0; POWERS], heads: Box::new([[NONE; SPLIT]; POWERS]) }
    }

    pub(super) fn insert(&mut self, nodes: &mut Nodes, node: u32) {
        let (power, split) = list_of(nodes[node].bytes / UNIT_BYTES);
        let head = std::mem::replace(&mut self.heads[power][split], node);
        nodes[node].previous = NONE;
        nodes[node].next = head;
        if head != NONE {
            nodes[head].previous = node;
        }
        self.powers |= 1 << power;
        self.splits[power] |= 1 << split;
    }

    pub(super) fn remove(&mut self, nodes: &mut Nodes, node: u32) {
        let (previous, next) = (nodes[node].previous, nodes[node].next);
        if next != NONE {
            nodes[next].previous = previous;
        }
        if previous != NONE {
            nodes[previous].next = next;
            return;
        }
        let (power, split) = list_of(nodes[node].bytes / UNIT_BYTES);
        self.heads[power][split] = next;
        if next == NONE {
            self.splits[power] &= !(1 << split);
            if self.splits[power] == 0 {
                self.powers &= !(1 << power);
            }
        }
    }

    /// An extent of at least `bytes`: the smallest of those looked at in its own list, else one of the next list.
    pub(super) fn find(&self, nodes: &Nodes, bytes: u64) -> Option<u32> {
        self.find_where(nodes, bytes, |_| true)
    }

    /// The same among extents that `may_take` allows; looks at a few only.
    pub(super) fn find_where(
        &self,
        nodes: &Nodes,
        bytes: u64,
        may_take: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let (power, split) = list_of(bytes / UNIT_BYTES);
        let mut best = None;
        for node in self.list(nodes, power, split).take(LOOKED_AT) {
            let found = nodes[node].bytes;
            if found < bytes || !may_take(node) {
                continue;
            }
            if found == bytes {
                return Some(node);
            }
            if best.is_none_or(|best: u32| found < nodes[best].bytes) {
                best = Some(node);
            }
        }
        best.or_else(|| {
            let mut place = self.first_after(power, split);
            while let Some((power, split)) = place {
                if let Some(node) =
                    self.list(nodes, power, split).take(LOOKED_AT).find(|&node| may_take(node))
                {
                    return Some(node);
                }
                place = self.first_after(power, split);
            }
            None
        })
    }

    /// All extents, in no order.
    pub(super) fn all(&self, nodes: &Nodes) -> Vec<u32> {
        let mut found = Vec::new();
        for (power, lists) in self.heads.iter().enumerate().filter(|(power, _)| self.powers >> power & 1 == 1)
        {
            for split in 0..lists.len() {
                found.extend(self.list(nodes, power, split));
            }
        }
        found
    }

    fn list<'a>(&'a self, nodes: &'a Nodes, power: usize, split: usize) -> impl Iterator<Item = u32> + 'a {
        let head = self.heads[power][split];
        let is_node = |node: &u32| *node != NONE;
        std::iter::successors(Some(head).filter(is_node), move |&node| Some(nodes[node].next).filter(is_node))
    }

    /// The next list that is not empty.
    fn first_after(&self, power: usize, split: usize) -> Option<(usize, usize)> {
        let above = |bits: u32| if split + 1 == SPLIT { 0 } else { bits & (u32::MAX << (split + 1)) };
        let here = above(self.splits[power]);
        if here != 0 {
            return Some((power, here.trailing_zeros() as usize));
        }
        let powers = self.powers & (u64::MAX << (power + 1));
        (powers != 0).then(|| {
            let power = powers.trailing_zeros() as usize;
            (power, self.splits[power].trailing_zeros() as usize)
        })
    }
}

/// The list of a size.
fn list_of(units: u64) -> (usize, usize) {
    if units < SPLIT as u64 {
        return (0, units as usize);
    }
    let power = u64::BITS - 1 - units.leading_zeros() - SPLIT_BITS;
    let split = (units >> power) as usize - SPLIT;
    // Beyond the last list: its sizes are larger than any address space.
    if power as usize + 1 < POWERS { (power as usize + 1, split) } else { (POWERS - 1, SPLIT - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// An extent of a later list is never smaller.
        #[test]
        fn lists_are_in_the_order_of_sizes(a in 1u64..1 << 40, b in 1u64..1 << 40) {
            let (small, large) = (a.min(b), a.max(b));
            prop_assert!(list_of(small) <= list_of(large));
            prop_assert!(list_of(large).1 < SPLIT && list_of(large).0 < POWERS);
            if list_of(small) == list_of(large) {
                prop_assert!(large - small <= small / SPLIT as u64, "{small} and {large} share a list");
            }
        }
    }
}
