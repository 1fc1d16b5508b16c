//! Memory pools: what cuMemAllocAsync gives out, and what cuMemPoolGetAttribute answers.
//!
//! A program can ask how much of a pool it uses, how much the pool keeps and the highest of both, and it can set how
//! much the pool keeps. These numbers move as they do on driver 580. There a pool takes memory from the device in steps
//! of 32 MiB, counts bytes as used from the call on, not from their turn in the stream, and gives back what is beyond
//! the release threshold when the program synchronises.
//!
//! The memory is in [`Heap`]s, one for each context: a worker's memory ends with the context it was mapped in.

use crate::{
    stream_order::{Reuse, StreamOrder},
    suballocator::{Block, Effort, Growth, Heap, Piece, STEP_BYTES, Step},
};
use cuda_abi::{CuResult, CudaError};
use locks::lock;
use std::sync::{Mutex, MutexGuard};

/// `CUmemPool_attribute`.
mod attribute {
    pub(super) const REUSE_FOLLOW_EVENT_DEPENDENCIES: u32 = 1;
    pub(super) const REUSE_ALLOW_INTERNAL_DEPENDENCIES: u32 = 3;
    pub(super) const RELEASE_THRESHOLD: u32 = 4;
    pub(super) const RESERVED_CURRENT: u32 = 5;
    pub(super) const RESERVED_HIGH: u32 = 6;
    pub(super) const USED_CURRENT: u32 = 7;
    pub(super) const USED_HIGH: u32 = 8;
}
use attribute::*;

/// A pool. Shared by threads.
#[derive(Debug)]
pub struct Pool {
    device: u32,
    is_default: bool,
    /// The most it may use; 0 for no bound.
    max_bytes: u64,
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    /// Follow event dependencies, allow opportunistic reuse, allow internal dependencies.
    reuse: [bool; 3],
    release_threshold: u64,
    reserved: Level,
    used: Level,
    heaps: Vec<Heap>,
}

/// A number of bytes, the highest and the lowest it was since the last reset of each.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    current: u64,
    high: u64,
    low: u64,
}

impl Level {
    fn set(&mut self, current: u64) {
        self.current = current;
        self.high = self.high.max(current);
        self.low = self.low.min(current);
    }
}

/// A pool that stands still: nothing is placed or freed in it while this is held.
#[derive(Debug)]
pub struct Still<'p> {
    books: MutexGuard<'p, Books>,
}

impl Still<'_> {
    /// Appends its mapped memory in which nothing lives, as first addresses and bytes, in multiples of `align`.
    pub fn free_ranges(&self, align: u64, out: &mut Vec<(u64, u64)>) {
        self.books.heaps.iter().for_each(|heap| heap.free_ranges(align, out));
    }
}

/// Pieces that the worker is to unmap: each with the context it was mapped in.
pub type Released = Vec<(u64, Piece)>;

impl Pool {
    /// The pool that every device has from the start and that cannot be destroyed.
    pub fn default_of(device: u32) -> Self {
        Self::with(device, true, 0)
    }

    /// A pool of cuMemPoolCreate. `max_bytes` 0 is no bound.
    pub fn created(device: u32, max_bytes: u64) -> Self {
        Self::with(device, false, max_bytes)
    }

    fn with(device: u32, is_default: bool, max_bytes: u64) -> Self {
        let books = Books {
            reuse: [true; 3],
            release_threshold: 0,
            reserved: Level::default(),
            used: Level::default(),
            heaps: Vec::new(),
        };
        Self { device, is_default, max_bytes, books: Mutex::new(books) }
    }

    /// The device whose memory it hands out.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Whether it is a device's own pool, which cuMemPoolDestroy refuses.
    pub fn is_default(&self) -> bool {
        self.is_default
    }

    /// The next step towards a block in a context, or a refusal beyond the pool's bound.
    pub fn step(
        &self,
        context: u64,
        bytes: u64,
        stream: u32,
        order: &StreamOrder,
        effort: Effort,
    ) -> CuResult<Step> {
        let mut books = self.books();
        let used = books.used.current.checked_add(bytes).ok_or(CudaError::OUT_OF_MEMORY)?;
        if self.max_bytes != 0 && used > self.max_bytes {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        let reuse = books.reuse();
        let step = books.heap(context).step(bytes, stream, order, reuse, effort);
        match step {
            Step::Placed(_) => books.used.set(used),
            Step::Map(_) => books.count_reserved(),
            Step::WaitFor(_) | Step::Reserve(_) => {}
        }
        Ok(step)
    }

    /// Addresses that [`Step::Reserve`] asked for.
    pub fn add_arena(&self, context: u64, address: u64, bytes: u64) {
        self.books().heap(context).add_arena(address, bytes);
    }

    /// A piece that [`Step::Map`] asked for. Returns the arena that is empty when the piece was refused.
    pub fn mapped(
        &self,
        context: u64,
        piece: Piece,
        outcome: Growth,
        stream: u32,
        order: &StreamOrder,
    ) -> Option<u64> {
        let mut books = self.books();
        let arena = books.known_heap(context)?.mapped(piece, outcome, stream, order);
        books.count_reserved();
        arena
    }

    /// Frees a block: in the order of a stream, or without one when nothing uses it any more.
    pub fn free(&self, context: u64, block: Block, freed_in: Option<u32>, order: &StreamOrder) {
        let mut books = self.books();
        let freed_in = freed_in.map(|stream| (stream, order.next_free()));
        if let Some(asked) = books.known_heap(context).and_then(|heap| heap.free(block, freed_in, order)) {
            let used = books.used.current.saturating_sub(asked);
            books.used.set(used);
        }
    }

    /// Keeps it as it is until the answer is dropped.
    pub fn stand_still(&self) -> Still<'_> {
        Still { books: self.books() }
    }

    /// Bytes that the program has in it, and the fewest since the last time that this was asked with `forget`.
    pub fn used(&self, forget: bool) -> (u64, u64) {
        let mut books = self.books();
        let (current, low) = (books.used.current, books.used.low);
        if forget {
            books.used.low = current;
        }
        (current, low)
    }

    /// Whether nothing lives in it.
    pub fn is_unused(&self) -> bool {
        self.books().used.current == 0
    }

    /// The program synchronised with the device: what is beyond the threshold goes back.
    pub fn synchronized(&self, order: &StreamOrder) -> Released {
        let mut books = self.books();
        let kept = books.release_threshold / STEP_BYTES * STEP_BYTES;
        books.release(kept, order, false)
    }

    /// cuMemPoolTrimTo: gives back what is not used, but keeps at least `bytes`.
    pub fn trim_to(&self, bytes: u64, order: &StreamOrder) -> Released {
        self.books().release(bytes, order, false)
    }

    /// Gives back all that nothing lives in, whether or not work still uses it: the worker waits for that.
    pub fn squeeze(&self, order: &StreamOrder) -> Released {
        self.books().release(0, order, true)
    }

    /// The worker was told to unmap a piece. Returns the arena that is empty now.
    pub fn unmapped(&self, context: u64, piece: Piece) -> Option<u64> {
        self.books().known_heap(context)?.unmapped(piece)
    }

    /// The latest free in a stream.
    pub fn newest_free_in(&self, context: u64, stream: u32) -> u64 {
        self.books()
            .heaps
            .iter()
            .filter(|heap| heap.context() == context)
            .fold(0, |newest, heap| newest.max(heap.newest_free_in(stream).unwrap_or(0)))
    }

    /// A stream is gone, and all that was freed in it is done.
    pub fn end_lane(&self, context: u64, stream: u32, order: &StreamOrder) {
        let mut books = self.books();
        books.heaps.iter_mut().filter(|heap| heap.context() == context).for_each(|heap| {
            heap.end_lane(stream, order);
        });
    }

    /// A context is gone with all its memory. Returns its arenas.
    pub fn end_context(&self, context: u64) -> Vec<u64> {
        let mut books = self.books();
        let Some(index) = books.heaps.iter().position(|heap| heap.context() == context) else {
            return Vec::new();
        };
        let heap = books.heaps.swap_remove(index);
        let used = books.used.current.saturating_sub(heap.used_bytes());
        books.used.set(used);
        books.count_reserved();
        heap.arenas().collect()
    }

    /// The value of a `CUmemPool_attribute`.
    pub fn attribute(&self, attribute: u32) -> CuResult<u64> {
        let books = self.books();
        Ok(match attribute {
            REUSE_FOLLOW_EVENT_DEPENDENCIES..=REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                books.reuse[(attribute - REUSE_FOLLOW_EVENT_DEPENDENCIES) as usize].into()
            }
            RELEASE_THRESHOLD => books.release_threshold,
            RESERVED_CURRENT => books.reserved.current,
            RESERVED_HIGH => books.reserved.high,
            USED_CURRENT => books.used.current,
            USED_HIGH => books.used.high,
            _ => return Err(CudaError::INVALID_VALUE),
        })
    }

    /// Sets a `CUmemPool_attribute`. The highs can be set to 0 only, which makes them the current values.
    pub fn set_attribute(&self, attribute: u32, value: u64) -> CuResult<()> {
        let mut books = self.books();
        match attribute {
            REUSE_FOLLOW_EVENT_DEPENDENCIES..=REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                books.reuse[(attribute - REUSE_FOLLOW_EVENT_DEPENDENCIES) as usize] = value != 0;
            }
            RELEASE_THRESHOLD => books.release_threshold = value,
            RESERVED_HIGH if value == 0 => books.reserved.high = books.reserved.current,
            USED_HIGH if value == 0 => books.used.high = books.used.current,
            _ => return Err(CudaError::INVALID_VALUE),
        }
        Ok(())
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }
}

impl Books {
    fn reuse(&self) -> Reuse {
        let [follow_events, opportunistic, internal_dependencies] = self.reuse;
        // A wait that is made for a reuse is an order like any other.
        Reuse { follow_events: follow_events || internal_dependencies, opportunistic, internal_dependencies }
    }

    #[inline]
    fn heap(&mut self, context: u64) -> &mut Heap {
        let index = self.heaps.iter().position(|heap| heap.context() == context).unwrap_or_else(|| {
            self.heaps.push(Heap::new(context));
            self.heaps.len() - 1
        });
        &mut self.heaps[index]
    }

    #[inline]
    fn known_heap(&mut self, context: u64) -> Option<&mut Heap> {
        self.heaps.iter_mut().find(|heap| heap.context() == context)
    }

    fn count_reserved(&mut self) {
        self.reserved.set(self.heaps.iter().map(Heap::reserved_bytes).sum());
    }

    fn release(&mut self, keep_bytes: u64, order: &StreamOrder, pressed: bool) -> Released {
        let mut released = Released::new();
        for index in 0..self.heaps.len() {
            let others = self.reserved.current - self.heaps[index].reserved_bytes();
            let heap = &mut self.heaps[index];
            let pieces = heap.release(keep_bytes.saturating_sub(others), order, pressed);
            released.extend(pieces.into_iter().map(|piece| (heap.context(), piece)));
            self.count_reserved();
        }
        released
    }
}

/// Bytes of an attribute's value in C: an `int` or a `cuuint64_t`.
pub fn attribute_bytes(attribute: u32) -> CuResult<usize> {
    match attribute {
        REUSE_FOLLOW_EVENT_DEPENDENCIES..=REUSE_ALLOW_INTERNAL_DEPENDENCIES => Ok(4),
        RELEASE_THRESHOLD..=USED_HIGH => Ok(8),
        _ => Err(CudaError::INVALID_VALUE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    const CONTEXT: u64 = 1;
    const STREAM: u32 = 0x100;

    /// A pool and the order of one stream, on a device with unlimited memory.
    struct Bed {
        pool: Pool,
        order: StreamOrder,
    }

    impl Bed {
        fn new(pool: Pool) -> Self {
            let order = StreamOrder::default();
            order.add_stream(STREAM, CONTEXT, crate::stream_order::StreamKind::NonBlocking);
            Self { pool, order }
        }

        fn allocate(&self, bytes: u64) -> CuResult<Block> {
            loop {
                match self.pool.step(CONTEXT, bytes, STREAM, &self.order, Effort::Ordinary)? {
                    Step::Placed(block) => return Ok(block),
                    Step::WaitFor(stream) => panic!("nothing was freed in {stream}"),
                    Step::Reserve(bytes) => self.pool.add_arena(CONTEXT, 1 << 40, bytes),
                    Step::Map(pieces) => {
                        for piece in pieces {
                            let _ = self.pool.mapped(CONTEXT, piece, Growth::Mapped, STREAM, &self.order);
                        }
                    }
                }
            }
        }

        fn free(&self, block: Block) {
            self.pool.free(CONTEXT, block, Some(STREAM), &self.order);
        }

        fn unmap(&self, released: Released) {
            for (context, piece) in released {
                let _ = self.pool.unmapped(context, piece);
            }
        }

        fn synchronize(&self) {
            self.order.done(&self.order.mark(STREAM));
            self.unmap(self.pool.synchronized(&self.order));
        }

        /// Attributes 4 to 8.
        fn levels(&self) -> [u64; 5] {
            [4, 5, 6, 7, 8].map(|attribute| self.pool.attribute(attribute).unwrap())
        }
    }

    /// What driver 580 answers for the same steps.
    #[test]
    fn levels_move_as_on_the_driver() {
        let bed = Bed::new(Pool::default_of(0));
        assert_eq!(bed.levels(), [0; 5]);
        let small = bed.allocate(1000).unwrap();
        assert_eq!(bed.levels(), [0, 32 * MIB, 32 * MIB, 1000, 1000]);
        let large = bed.allocate(100 * MIB).unwrap();
        assert_eq!(bed.levels(), [0, 128 * MIB, 128 * MIB, 104_858_600, 104_858_600]);
        bed.free(small);
        bed.synchronize();
        assert_eq!(bed.levels(), [0, 128 * MIB, 128 * MIB, 100 * MIB, 104_858_600]);
        bed.free(large);
        assert_eq!(bed.levels(), [0, 128 * MIB, 128 * MIB, 0, 104_858_600]);
        bed.synchronize();
        assert_eq!(bed.levels(), [0, 0, 128 * MIB, 0, 104_858_600]);
    }

    /// What driver 580 answers for the same steps.
    #[test]
    fn a_threshold_keeps_memory_until_it_is_trimmed() {
        let bed = Bed::new(Pool::default_of(0));
        bed.pool.set_attribute(4, u64::MAX).unwrap();
        let block = bed.allocate(100 * MIB).unwrap();
        bed.free(block);
        bed.synchronize();
        assert_eq!(bed.levels(), [u64::MAX, 128 * MIB, 128 * MIB, 0, 100 * MIB]);
        bed.unmap(bed.pool.trim_to(40 * MIB, &bed.order));
        assert_eq!(bed.levels()[1], 64 * MIB);
        bed.unmap(bed.pool.trim_to(0, &bed.order));
        assert_eq!(bed.levels(), [u64::MAX, 0, 128 * MIB, 0, 100 * MIB]);
    }

    #[test]
    fn what_is_not_done_stays_unless_the_device_is_full() {
        let bed = Bed::new(Pool::default_of(0));
        let block = bed.allocate(MIB).unwrap();
        bed.free(block);
        bed.unmap(bed.pool.trim_to(0, &bed.order));
        assert_eq!(bed.levels()[1], 32 * MIB, "the stream has not come to the free");
        bed.unmap(bed.pool.squeeze(&bed.order));
        assert_eq!(bed.levels()[1], 0);
    }

    #[test]
    fn memory_ends_with_its_context() {
        let bed = Bed::new(Pool::default_of(0));
        bed.allocate(MIB).unwrap();
        assert_eq!(bed.pool.end_context(CONTEXT), [1 << 40]);
        assert_eq!(bed.levels(), [0, 0, 32 * MIB, 0, MIB]);
        assert!(bed.pool.end_context(CONTEXT).is_empty() && bed.pool.is_unused());
    }

    /// What driver 580 answers for the same attributes.
    #[test]
    fn attributes_are_set_as_on_the_driver() {
        let bed = Bed::new(Pool::default_of(0));
        let block = bed.allocate(1000).unwrap();
        bed.free(block);
        let pool = &bed.pool;
        let set = |attribute, value| pool.set_attribute(attribute, value).is_ok();
        assert!(
            set(4, 1 << 20) && !set(5, 0) && set(6, 0) && !set(6, 5) && !set(7, 0) && set(8, 0) && !set(8, 5)
        );
        assert!(set(1, 2) && set(2, 0) && set(3, 0) && !set(0, 1) && !set(9, 1) && !set(99, 0));
        assert_eq!(
            [1, 2, 3, 4].map(|attribute| pool.attribute(attribute)),
            [Ok(1), Ok(0), Ok(0), Ok(1 << 20)]
        );
        assert_eq!(
            (pool.attribute(0), pool.attribute(9)),
            (Err(CudaError::INVALID_VALUE), Err(CudaError::INVALID_VALUE))
        );
        assert_eq!(pool.attribute(8), Ok(0), "a reset high is what is used now");
        assert_eq!((attribute_bytes(3), attribute_bytes(4)), (Ok(4), Ok(8)));
    }

    #[test]
    fn the_lowest_use_is_known_and_what_is_free_is_told_in_whole_blocks() {
        let bed = Bed::new(Pool::default_of(0));
        let blocks = [100 << 10, 200 << 10, 64 << 10].map(|bytes| bed.allocate(bytes).unwrap());
        assert_eq!(bed.pool.used(true), (364 << 10, 0));
        assert_eq!(bed.pool.used(true), (364 << 10, 364 << 10), "the low begins anew");
        bed.free(blocks[1]);
        let again = bed.allocate(300 << 10).unwrap();
        assert_eq!(bed.pool.used(false), (464 << 10, 164 << 10));
        assert_eq!(bed.pool.used(false), (464 << 10, 164 << 10), "it was not to be forgotten");
        // At 100 KiB 200 KiB are free, of which the blocks from 128 KiB to 256 KiB are whole.
        let mut free = Vec::new();
        bed.pool.stand_still().free_ranges(64 << 10, &mut free);
        assert_eq!(free[0], ((1 << 40) + (128 << 10), 128 << 10));
        let end = again.address + (300 << 10);
        assert_eq!(free[1].0, end.next_multiple_of(64 << 10));
        assert_eq!((free.len(), free[1].0 + free[1].1), (2, (1 << 40) + 32 * MIB));
    }

    #[test]
    fn a_bound_is_kept() {
        let bed = Bed::new(Pool::created(1, 1000));
        assert_eq!(bed.allocate(1001), Err(CudaError::OUT_OF_MEMORY));
        assert!(bed.allocate(1000).is_ok());
        assert_eq!(bed.allocate(u64::MAX), Err(CudaError::OUT_OF_MEMORY));
        assert_eq!(bed.pool.attribute(7), Ok(1000), "a refused allocation is not booked");
        assert!(!bed.pool.is_default() && Pool::default_of(0).is_default());
    }
}
