//! Live memory: extents of addresses, cut into blocks.

use crate::BLOCK_BYTES;
use thiserror::Error;

/// A range of live memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// The first address.
    pub address: u64,
    /// How many.
    pub bytes: u64,
}

/// A part of one extent: what a digest is computed of, and what travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// The first address, which names it.
    pub address: u64,
    /// How many, at most [`BLOCK_BYTES`].
    pub bytes: u32,
}

/// Why ranges are no extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ExtentError {
    /// Two of them share an address.
    #[error("the extents at {first:#x} and {second:#x} overlap")]
    Overlap {
        /// Where the lower one begins.
        first: u64,
        /// Where the other begins.
        second: u64,
    },
    /// One ends beyond the last address.
    #[error("the extent at {address:#x} has {bytes} bytes, more than there are addresses")]
    TooLong {
        /// Where it begins.
        address: u64,
        /// Its length.
        bytes: u64,
    },
}

/// Extents in ascending order that do not overlap; none is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents(Vec<Extent>);

impl Extents {
    /// Sorts ranges and leaves empty ones out.
    pub fn new(extents: impl IntoIterator<Item = Extent>) -> Result<Self, ExtentError> {
        let mut extents: Vec<Extent> = extents.into_iter().filter(|extent| extent.bytes > 0).collect();
        extents.sort_unstable();
        for &Extent { address, bytes } in &extents {
            if address.checked_add(bytes).is_none() {
                return Err(ExtentError::TooLong { address, bytes });
            }
        }
        for pair in extents.windows(2) {
            if pair[0].address + pair[0].bytes > pair[1].address {
                return Err(ExtentError::Overlap { first: pair[0].address, second: pair[1].address });
            }
        }
        Ok(Self(extents))
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.0.iter().copied()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of all together.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|extent| extent.bytes).sum()
    }

    /// The extent that holds an address.
    pub fn holding(&self, address: u64) -> Option<Extent> {
        let after = self.0.partition_point(|extent| extent.address <= address);
        let extent = *self.0.get(after.checked_sub(1)?)?;
        (address - extent.address < extent.bytes).then_some(extent)
    }

    /// The same without the parts that lie in `dead`.
    pub fn without(&self, dead: &Extents) -> Self {
        let mut left = Vec::with_capacity(self.0.len());
        let mut dead = dead.0.as_slice();
        for &Extent { address, bytes } in &self.0 {
            let (mut at, end) = (address, address + bytes);
            while at < end {
                // What ends before here is of no use for the extents that follow either.
                while let Some((first, rest)) = dead.split_first()
                    && first.address + first.bytes <= at
                {
                    dead = rest;
                }
                let next = dead.first().filter(|next| next.address < end);
                let until = next.map_or(end, |next| next.address.max(at));
                if until > at {
                    left.push(Extent { address: at, bytes: until - at });
                }
                at = next.map_or(end, |next| next.address + next.bytes);
            }
        }
        Self(left)
    }

    /// Whether a block lies inside one extent.
    pub fn holds(&self, block: Block) -> bool {
        self.holding(block.address)
            .is_some_and(|extent| u64::from(block.bytes) <= extent.bytes - (block.address - extent.address))
    }

    /// Their blocks, ascending. A block ends at the next multiple of [`BLOCK_BYTES`] or with its extent. So where an
    /// extent grows or shrinks, the blocks away from that end stay the same blocks.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + '_ {
        self.0.iter().flat_map(|extent| {
            let end = extent.address + extent.bytes;
            let mut next = extent.address;
            std::iter::from_fn(move || {
                let address = next;
                let bytes = (BLOCK_BYTES as u64 - address % BLOCK_BYTES as u64).min(end - address);
                next += bytes;
                (bytes > 0).then_some(Block { address, bytes: bytes as u32 })
            })
        })
    }
}

/// The most bytes that the variables of one module may have in an image.
pub const VARIABLE_BYTES_MAX: u64 = 1 << VARIABLE_BITS;

/// Bits of an address that say where in its module a variable lies.
const VARIABLE_BITS: u32 = 31;

/// Set in the addresses of variables, in no address of device memory.
const VARIABLE_FLAG: u64 = 1 << 63;

/// Addresses that stand for the variables of a module in an image, each as `(index in variables, extent)`; `None` if
/// there are too many bytes of them.
///
/// A driver places variables where it likes, and another session's driver may place them elsewhere. So an image names
/// them by module and name: the variables of a module lie one behind the other in the order of their names, from
/// `2^63 + module · 2^31` on. A module has the same variables wherever it is loaded, so they get the same addresses.
pub fn variable_extents(module: u32, variables: &[(&str, u64)]) -> Option<Vec<(usize, Extent)>> {
    /// As the loads of a GPU like it.
    const ALIGN: u64 = 16;
    let mut order: Vec<usize> = (0..variables.len()).collect();
    order.sort_by_key(|&index| variables[index].0);
    let base = VARIABLE_FLAG | u64::from(module) << VARIABLE_BITS;
    let mut offset = 0u64;
    let mut extents = Vec::new();
    for index in order {
        let bytes = variables[index].1;
        extents.push((index, Extent { address: base + offset, bytes }));
        offset = offset.checked_add(bytes)?.checked_next_multiple_of(ALIGN)?;
        if offset > VARIABLE_BYTES_MAX {
            return None;
        }
    }
    Some(extents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extents(ranges: &[(u64, u64)]) -> Result<Extents, ExtentError> {
        Extents::new(ranges.iter().map(|&(address, bytes)| Extent { address, bytes }))
    }

    #[test]
    fn what_overlaps_or_wraps_is_refused() {
        assert_eq!(extents(&[(10, 5), (0, 10)]).unwrap().bytes(), 15);
        assert_eq!(extents(&[(10, 5), (0, 11)]), Err(ExtentError::Overlap { first: 0, second: 10 }));
        let beyond = ExtentError::TooLong { address: u64::MAX, bytes: 2 };
        assert_eq!(extents(&[(u64::MAX, 2)]), Err(beyond));
        assert_eq!(extents(&[(7, 0)]).unwrap(), Extents::default());
    }

    #[test]
    fn neighbours_have_blocks_of_their_own() {
        let touching = extents(&[(100, 50), (150, 70_000)]).unwrap();
        let blocks: Vec<(u64, u32)> = touching.blocks().map(|block| (block.address, block.bytes)).collect();
        assert_eq!(blocks, [(100, 50), (150, 65_386), (65_536, 4_614)]);
        assert!(touching.holds(Block { address: 140, bytes: 10 }));
        assert!(!touching.holds(Block { address: 140, bytes: 11 }));
        assert!(!touching.holds(Block { address: 99, bytes: 1 }));
    }

    #[test]
    fn variables_are_named_by_module_and_name_not_by_place() {
        let one = variable_extents(3, &[("b", 5), ("a", 20)]).unwrap();
        let other = variable_extents(3, &[("a", 20), ("b", 5)]).unwrap();
        assert_eq!(one[0], (1, Extent { address: VARIABLE_FLAG | 3 << 31, bytes: 20 }));
        assert_eq!(one[1], (0, Extent { address: (VARIABLE_FLAG | 3 << 31) + 32, bytes: 5 }));
        assert_eq!(one[0].1, other[0].1);
        assert_eq!(one[1].1, other[1].1);
        let last = variable_extents(u32::MAX, &[("a", VARIABLE_BYTES_MAX)]).unwrap();
        assert_eq!(last[0].1.address + (last[0].1.bytes - 1), u64::MAX);
        assert_eq!(variable_extents(1, &[("a", VARIABLE_BYTES_MAX), ("b", 1)]), None);
        assert_eq!(variable_extents(1, &[("a", u64::MAX), ("b", 1)]), None);
    }

    proptest! {
        #[test]
        fn what_is_left_is_what_is_in_the_first_and_not_in_the_second(
            first in proptest::collection::vec((0u64..20, 0u64..20), 0..8),
            second in proptest::collection::vec((0u64..20, 0u64..20), 0..8),
        ) {
            let place = |gaps: &[(u64, u64)]| {
                let mut at = 0;
                let ranges = gaps.iter().map(|(gap, bytes)| {
                    at += gap + bytes;
                    Extent { address: at - bytes, bytes: *bytes }
                });
                Extents::new(ranges.collect::<Vec<_>>()).unwrap()
            };
            let (first, second) = (place(&first), place(&second));
            let left = first.without(&second);
            prop_assert_eq!(&Extents::new(left.iter()).unwrap(), &left, "ascending, apart, none empty");
            for address in 0..400 {
                let is_left = first.holding(address).is_some() && second.holding(address).is_none();
                prop_assert_eq!(left.holding(address).is_some(), is_left, "{}", address);
            }
        }

        #[test]
        fn blocks_cover_extents_exactly(gaps in proptest::collection::vec((0u64..100_000, 0u64..300_000), 0..20)) {
            let mut at = 1000;
            let mut ranges = Vec::new();
            for (gap, bytes) in gaps {
                ranges.push((at + gap, bytes));
                at += gap + bytes;
            }
            let extents = extents(&ranges).unwrap();
            let blocks: Vec<Block> = extents.blocks().collect();
            prop_assert_eq!(blocks.iter().map(|block| u64::from(block.bytes)).sum::<u64>(), extents.bytes());
            for block in &blocks {
                prop_assert!(block.bytes > 0 && block.bytes as usize <= BLOCK_BYTES);
                prop_assert!(extents.holds(*block));
                let last = block.address + u64::from(block.bytes) - 1;
                prop_assert_eq!(block.address / BLOCK_BYTES as u64, last / BLOCK_BYTES as u64);
            }
            for pair in blocks.windows(2) {
                prop_assert!(pair[0].address + u64::from(pair[0].bytes) <= pair[1].address);
            }
        }
    }
}
