//! Which parts of a range are taken.

use std::collections::BTreeMap;

/// Allocation of a range of addresses. Knows nothing of what lies there.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// Start and bytes of each free part; parts never touch.
    free: BTreeMap<u64, u64>,
    /// The end of what [`Ranges::take_next`] took last.
    next: u64,
}

impl Ranges {
    /// All of this range is free.
    pub(crate) fn new(start: u64, bytes: u64) -> Self {
        Self { free: BTreeMap::from([(start, bytes)]), next: start }
    }

    /// The same, but [`Ranges::take_next`] begins at `next`.
    pub(crate) fn with_next(start: u64, bytes: u64, next: u64) -> Self {
        Self { next, ..Self::new(start, bytes) }
    }

    /// Takes the first `bytes` that are free at a multiple of `align`, a power of two.
    pub(crate) fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        self.take_from(0, bytes, align)
    }

    /// Takes the first that are free behind what it took last, and begins anew at the end. So the address depends on what
    /// was taken before, and not on when what was given back: the same commands get the same addresses in every session.
    pub(crate) fn take_next(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let at = self.take_near(self.next, bytes, align)?;
        self.next = at + bytes;
        Some(at)
    }

    /// Takes the first that are free at `from` or behind it, else the first that are free.
    pub(crate) fn take_near(&mut self, from: u64, bytes: u64, align: u64) -> Option<u64> {
        self.take_from(from, bytes, align).or_else(|| self.take(bytes, align))
    }

    fn take_from(&mut self, from: u64, bytes: u64, align: u64) -> Option<u64> {
        let fits = |(&start, &free): (&u64, &u64)| {
            let at = start.max(from).checked_next_multiple_of(align)?;
            (at.checked_add(bytes)? <= start + free).then_some((start, free, at))
        };
        let (start, free, at) = self.free.iter().find_map(fits)?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if at + bytes < start + free {
            self.free.insert(at + bytes, start + free - at - bytes);
        }
        Some(at)
    }

    /// Gives back exactly what [`Ranges::take`] took.
    pub(crate) fn give(&mut self, start: u64, bytes: u64) {
        let (mut start, mut bytes) = (start, bytes);
        if let Some((&before, &free)) = self.free.range(..start).next_back()
            && before + free == start
        {
            self.free.remove(&before);
            start = before;
            bytes += free;
        }
        if let Some(free) = self.free.remove(&(start + bytes)) {
            bytes += free;
        }
        self.free.insert(start, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_next_ones_do_not_depend_on_what_was_given_back() {
        let addresses = |gives: bool| {
            let mut ranges = Ranges::new(4096, 1 << 20);
            let mut next = |bytes| ranges.take_next(bytes, 256).unwrap();
            let (first, second) = (next(256), next(512));
            if gives {
                ranges.give(first, 256);
            }
            (first, second, ranges.take_next(256, 256).unwrap())
        };
        assert_eq!(addresses(true), addresses(false));
        // At the end of the range it begins anew.
        let mut ranges = Ranges::new(4096, 1024);
        let first = ranges.take_next(768, 256).unwrap();
        ranges.give(first, 768);
        assert_eq!(ranges.take_next(512, 256), Some(4096));
    }

    #[test]
    fn what_lies_near_a_place_does_not_depend_on_what_lies_elsewhere() {
        let mut ranges = Ranges::with_next(0, 1 << 20, 1 << 19);
        let alone = ranges.take_near(4096, 512, 512);
        assert_eq!(alone, Some(4096));
        assert_eq!(ranges.take_next(512, 512), Some(1 << 19));
        assert_eq!(ranges.take_near(4096, 512, 512), Some(4608), "taken: the next one");
        assert_eq!(ranges.take_near(1 << 20, 512, 512), Some(0), "behind the end: the first one");
    }

    proptest! {
        #[test]
        fn what_is_taken_never_overlaps_and_all_comes_back(sizes in proptest::collection::vec((1u64..5000, 0..8u32), 1..100)) {
            let mut ranges = Ranges::new(4096, 1 << 20);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (index, &(bytes, align)) in sizes.iter().enumerate() {
                if index % 3 == 2 && !taken.is_empty() {
                    let (start, bytes) = taken.swap_remove(index % taken.len());
                    ranges.give(start, bytes);
                }
                if let Some(start) = ranges.take(bytes, 1 << align) {
                    prop_assert_eq!(start % (1 << align), 0);
                    prop_assert!(taken.iter().all(|&(at, len)| start + bytes <= at || at + len <= start));
                    taken.push((start, bytes));
                }
            }
            taken.drain(..).for_each(|(start, bytes)| ranges.give(start, bytes));
            prop_assert_eq!(ranges.take(1 << 20, 1), Some(4096));
        }
    }
}
