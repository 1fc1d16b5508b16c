//! Free ranges of addresses, found by size or by place.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Disjoint free ranges. Neighbours are joined, but never across a multiple of `wall`.
#[derive(Debug)]
pub(super) struct Extents {
    ends: BTreeMap<u64, u64>,
    /// `(bytes, start)`, so that the smallest range that fits is found first.
    by_size: BTreeSet<(u64, u64)>,
    wall: Option<u64>,
}

impl Extents {
    pub(super) fn new(wall: Option<u64>) -> Self {
        Self { ends: BTreeMap::new(), by_size: BTreeSet::new(), wall }
    }

    /// Adds a range that overlaps none of those here, and returns the range it became a part of.
    pub(super) fn insert(&mut self, mut start: u64, mut end: u64) -> (u64, u64) {
        let wall = self.wall;
        let joins = |place: u64| wall.is_none_or(|wall| !place.is_multiple_of(wall));
        let before = self.ends.range(..start).next_back().map(|(&start, &end)| (start, end));
        let after = self.ends.get(&end).copied();
        if let Some((before_start, _)) = before.filter(|&(_, before_end)| before_end == start && joins(start))
        {
            self.remove(before_start);
            start = before_start;
        }
        if let Some(after_end) = after.filter(|_| joins(end)) {
            self.remove(end);
            end = after_end;
        }
        self.ends.insert(start, end);
        self.by_size.insert((end - start, start));
        (start, end)
    }

    /// Takes `bytes` at a multiple of `align` from the smallest range that has room for them.
    pub(super) fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let place = |&(size, start): &(u64, u64)| {
            let aligned = start.checked_next_multiple_of(align)?;
            (aligned.checked_add(bytes)? <= start + size).then_some(aligned)
        };
        let start = self.by_size.range((bytes, 0)..).find_map(place)?;
        self.take_at(start, bytes).then_some(start)
    }

    /// Takes exactly this range, if all of it is free.
    pub(super) fn take_at(&mut self, start: u64, bytes: u64) -> bool {
        let Some(end) = start.checked_add(bytes) else { return false };
        let Some((&free_start, &free_end)) = self.ends.range(..=start).next_back() else { return false };
        if end > free_end {
            return false;
        }
        self.remove(free_start);
        for (start, end) in [(free_start, start), (end, free_end)] {
            if start < end {
                self.ends.insert(start, end);
                self.by_size.insert((end - start, start));
            }
        }
        true
    }

    /// Takes out the whole range that starts here.
    pub(super) fn remove(&mut self, start: u64) {
        if let Some(end) = self.ends.remove(&start) {
            self.by_size.remove(&(end - start, start));
        }
    }
}

/// Ranges that were freed not long ago, oldest first.
///
/// A program that uses memory after it freed it should meet a fault, not the data of another allocation; so what was
/// just freed is given out last. Both bounds keep the waste small.
#[derive(Debug)]
pub(super) struct Quarantine {
    ranges: VecDeque<(u64, u64)>,
    bytes: u64,
    ranges_max: usize,
    bytes_max: u64,
}

impl Quarantine {
    pub(super) fn new(ranges_max: usize, bytes_max: u64) -> Self {
        Self { ranges: VecDeque::new(), bytes: 0, ranges_max, bytes_max }
    }

    pub(super) fn push(&mut self, start: u64, end: u64) {
        self.ranges.push_back((start, end));
        self.bytes += end - start;
    }

    /// The oldest range, if there are more than should be.
    pub(super) fn pop_excess(&mut self) -> Option<(u64, u64)> {
        let excess = self.ranges.len() > self.ranges_max || self.bytes > self.bytes_max;
        if excess { self.pop() } else { None }
    }

    /// The oldest range.
    pub(super) fn pop(&mut self) -> Option<(u64, u64)> {
        let (start, end) = self.ranges.pop_front()?;
        self.bytes -= end - start;
        Some((start, end))
    }
}
