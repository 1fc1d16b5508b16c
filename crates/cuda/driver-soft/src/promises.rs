//! What the program may use, in the order of its calls.
//!
//! A call that copies is judged by the allocations that earlier calls made and did not free, whether or not the device
//! has come that far. So the answer is the one CUDA gives at once.

use crate::session::ALLOCATION_STEP;
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{Plane, Shape};
use std::collections::BTreeMap;

/// What devices map memory in.
const CHUNK_BYTES: u64 = 2 << 20;

/// A promised range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    pub(crate) bytes: u64,
    /// The life of the context it ends with.
    pub(crate) life: u64,
    /// The turn that puts its block there.
    pub(crate) turn: u64,
    /// A mapping of physical memory: a copy may run on into the next one.
    pub(crate) is_mapped: bool,
}

/// All promised ranges, by start. They do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Promises(BTreeMap<u64, Promise>);

impl Promises {
    /// Promises a range, unless a part of it is promised already.
    pub(crate) fn add(&mut self, start: u64, promise: Promise) -> CuResult<()> {
        let end = start.checked_add(promise.bytes).ok_or(CudaError::INVALID_VALUE)?;
        let before = self.0.range(..end).next_back();
        if promise.bytes == 0 || before.is_some_and(|(at, before)| at + before.bytes > start) {
            return Err(CudaError::INVALID_VALUE);
        }
        self.0.insert(start, promise);
        Ok(())
    }

    /// What starts here.
    pub(crate) fn get(&self, start: u64) -> Option<Promise> {
        self.0.get(&start).copied()
    }

    /// Takes a promise back.
    pub(crate) fn remove(&mut self, start: u64) -> Option<Promise> {
        self.0.remove(&start)
    }

    /// Takes back all promises of a context's life.
    pub(crate) fn remove_life(&mut self, life: u64) {
        self.0.retain(|_, promise| promise.life != life);
    }

    /// Takes back all promises that start in a range.
    pub(crate) fn remove_in(&mut self, start: u64, bytes: u64) {
        let starts: Vec<u64> =
            self.0.range(start..start.saturating_add(bytes)).map(|(&start, _)| start).collect();
        for start in starts {
            self.0.remove(&start);
        }
    }

    /// Starts of the promises that begin in a range and end in it, if they fill it without a gap.
    pub(crate) fn filling(&self, start: u64, bytes: u64) -> Option<Vec<u64>> {
        let end = start.checked_add(bytes)?;
        let mut at = start;
        let mut starts = Vec::new();
        while at < end {
            let promise = self.get(at)?;
            starts.push(at);
            at += promise.bytes;
        }
        (at == end).then_some(starts)
    }

    /// All memory below `end`, as far as it can be touched: a block reaches to the end of its last step.
    pub(crate) fn reaches(&self, end: u64) -> Vec<snapshot::Extent> {
        let mut extents: Vec<snapshot::Extent> = Vec::new();
        for (&address, promise) in self.0.range(..end) {
            if let Some(before) = extents.last_mut() {
                before.bytes = before.bytes.min(address - before.address);
            }
            let bytes = promise.bytes.checked_next_multiple_of(ALLOCATION_STEP).unwrap_or(promise.bytes);
            extents.push(snapshot::Extent { address, bytes });
        }
        extents
    }

    /// Whether a range may be used.
    pub(crate) fn holds(&self, start: u64, bytes: u64) -> bool {
        let Some(end) = start.checked_add(bytes) else { return false };
        let Some((&first, &(mut promise))) = self.0.range(..=start).next_back() else { return false };
        let mut promise_end = first + promise.bytes;
        if promise_end <= start {
            return false;
        }
        while promise_end < end {
            let Some(next) = self.get(promise_end) else { return false };
            let runs_on = promise.is_mapped && next.is_mapped
                || is_piece(promise_end - promise.bytes, promise) && is_piece(promise_end, next);
            if !runs_on {
                return false;
            }
            promise = next;
            promise_end += next.bytes;
        }
        true
    }

    /// Whether all rows of a copy may be used.
    pub(crate) fn check(&self, plane: &Plane, shape: &Shape) -> CuResult<()> {
        match extent(plane, shape)? {
            0 => Ok(()),
            bytes if self.holds(plane.address, bytes) => Ok(()),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }
}

/// Whether memory may be a piece of a client's pool, in which blocks lie across pieces: it fills whole steps of what devices
/// map memory in. The client has judged where the block of a copy ends.
fn is_piece(start: u64, promise: Promise) -> bool {
    start.is_multiple_of(CHUNK_BYTES) && promise.bytes.is_multiple_of(CHUNK_BYTES)
}

/// Bytes from the first to the last of a copy; 0 if it copies nothing.
fn extent(plane: &Plane, shape: &Shape) -> CuResult<u64> {
    if shape.width == 0 || shape.height == 0 || shape.depth == 0 {
        return Ok(0);
    }
    let rows_apart = shape.height == 1 || plane.row_pitch >= shape.width;
    let slices_apart = shape.depth == 1 || plane.slice_pitch >= shape.width;
    if !rows_apart || !slices_apart {
        return Err(CudaError::INVALID_VALUE);
    }
    let last_row = (shape.height - 1).checked_mul(plane.row_pitch);
    let last_slice = (shape.depth - 1).checked_mul(plane.slice_pitch);
    let bytes =
        last_row.zip(last_slice).and_then(|(row, slice)| row.checked_add(slice)?.checked_add(shape.width));
    bytes.ok_or(CudaError::INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promise(bytes: u64, is_mapped: bool) -> Promise {
        Promise { bytes, life: 1, turn: 0, is_mapped }
    }

    #[test]
    fn a_range_is_promised_once() {
        let mut promises = Promises::default();
        promises.add(1000, promise(100, false)).unwrap();
        for (start, bytes) in [(1000, 1), (950, 51), (1099, 1), (900, 500)] {
            assert_eq!(promises.add(start, promise(bytes, false)), Err(CudaError::INVALID_VALUE));
        }
        promises.add(1100, promise(1, false)).unwrap();
        promises.add(950, promise(50, false)).unwrap();
    }

    #[test]
    fn copies_stay_in_one_allocation_but_run_on_through_mappings() {
        let mut promises = Promises::default();
        promises.add(0, promise(100, false)).unwrap();
        promises.add(100, promise(100, false)).unwrap();
        promises.add(200, promise(100, true)).unwrap();
        promises.add(300, promise(100, true)).unwrap();
        assert!(promises.holds(50, 50));
        assert!(!promises.holds(50, 51));
        assert!(promises.holds(250, 150));
        assert!(!promises.holds(250, 151));
        assert!(!promises.holds(150, 100));
        assert!(!promises.holds(400, 1));
        assert!(!promises.holds(10, u64::MAX));
    }

    #[test]
    fn copies_run_on_through_pieces_of_a_pool() {
        let mut promises = Promises::default();
        promises.add(0, promise(CHUNK_BYTES, false)).unwrap();
        promises.add(CHUNK_BYTES, promise(2 * CHUNK_BYTES, false)).unwrap();
        promises.add(3 * CHUNK_BYTES, promise(512, false)).unwrap();
        assert!(promises.holds(100, 3 * CHUNK_BYTES - 100));
        assert!(!promises.holds(100, 3 * CHUNK_BYTES), "what follows is smaller than a piece");
    }

    #[test]
    fn rows_are_judged_by_their_last_byte() {
        let mut promises = Promises::default();
        promises.add(0, promise(100, false)).unwrap();
        let plane = Plane { address: 0, row_pitch: 30, slice_pitch: 0 };
        assert!(promises.check(&plane, &Shape { width: 10, height: 4, depth: 1 }).is_ok());
        assert!(promises.check(&plane, &Shape { width: 11, height: 4, depth: 1 }).is_err());
        assert!(promises.check(&plane, &Shape { width: 31, height: 2, depth: 1 }).is_err(), "rows overlap");
        assert!(promises.check(&plane, &Shape { width: 10, height: u64::MAX, depth: 1 }).is_err());
        assert!(promises.check(&plane, &Shape { width: 0, height: 9, depth: 1 }).is_ok());
    }
}
