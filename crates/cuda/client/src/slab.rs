//! Handles that the program holds, and what they stand for.
//!
//! A program hands us whatever it likes as a handle: one that was destroyed, one of another kind, a wild number. So
//! a handle is not an address but a name that is looked up, and every wrong one is simply not found.
//!
//! ```text
//! bit 63      48 47     40 39          24 23            0
//!    |    0     |  kind   |  generation  |     index     |
//! ```
//!
//! `kind` differs from slab to slab and is not 0, so no handle collides with the small numbers that CUDA gives a
//! meaning (null, and 1 and 2 for the default streams). `generation` grows each time an index is used again.
//!
//! A look-up happens in nearly every call, from any thread, so it takes no lock that another look-up could hold
//! exclusively: slots live in chunks that never move, and each slot has a lock of its own that readers share.

use cuda_abi::{CuResult, CudaError};
use locks::lock;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

const INDEX_BITS: u32 = 24;
const KIND_SHIFT: u32 = 40;
/// Slots of the first chunk; each further chunk has twice as many as the one before.
const FIRST_CHUNK: usize = 64;
/// Chunks that together hold every index: 64 · (2^19 - 1) > 2^24.
const CHUNKS: usize = 19;
/// An index rests until this many others were freed after it. With 2^16 generations, a stale handle can be mistaken
/// for a live one only after 2^24 removals.
const RESTING_MIN: usize = 256;

/// A table of shared objects of one kind, by handle.
#[derive(Debug)]
pub struct Slab<T> {
    kind: u8,
    chunks: [OnceLock<Box<[RwLock<Slot<T>>]>>; CHUNKS],
    indices: Mutex<Indices>,
}

#[derive(Debug)]
struct Slot<T> {
    /// The only handle that leads here now; the next one if there is no value.
    handle: u64,
    value: Option<Arc<T>>,
}

/// Which indices may be given out.
#[derive(Debug)]
struct Indices {
    /// Indices from here on were never used.
    fresh: u32,
    /// Freed indices, oldest first.
    resting: VecDeque<u32>,
}

impl<T> Slab<T> {
    /// An empty table whose handles carry `kind`.
    ///
    /// # Panics
    ///
    /// If `kind` is 0: handles could then be 0, 1 or 2.
    pub const fn new(kind: u8) -> Self {
        assert!(kind != 0, "kind 0 would allow the handles 0, 1 and 2");
        Self {
            kind,
            chunks: [const { OnceLock::new() }; CHUNKS],
            indices: Mutex::new(Indices { fresh: 0, resting: VecDeque::new() }),
        }
    }

    /// Puts `value` into the table and returns its handle, or `OUT_OF_MEMORY` if 2^24 objects live already.
    pub fn insert(&self, value: Arc<T>) -> CuResult<u64> {
        self.insert_with(|_handle| value)
    }

    /// As [`insert`](Self::insert), for an object that must know its own handle.
    ///
    /// The handle is not found before `make` has returned.
    pub fn insert_with(&self, make: impl FnOnce(u64) -> Arc<T>) -> CuResult<u64> {
        let index = self.take_index()?;
        let slot = self.slot_or_grow(index);
        // No other thread changes this slot meanwhile: its index was taken by us, and no live handle leads to it.
        let handle = reading(slot).handle;
        let value = make(handle);
        writing(slot).value = Some(value);
        Ok(handle)
    }

    /// The object of a handle; `None` for one that is stale, of another kind, or was never given out.
    #[inline]
    pub fn get(&self, handle: u64) -> Option<Arc<T>> {
        let slot = reading(self.slot(index(handle))?);
        if slot.handle != handle {
            return None;
        }
        slot.value.clone()
    }

    /// What `read` makes of the object of a handle, without sharing the ownership.
    ///
    /// The slot is locked for reading meanwhile, so `read` must be short and must not remove the same handle: that
    /// would wait for itself.
    #[inline]
    pub fn with<R>(&self, handle: u64, read: impl FnOnce(&T) -> R) -> Option<R> {
        let slot = reading(self.slot(index(handle))?);
        if slot.handle != handle {
            return None;
        }
        slot.value.as_deref().map(read)
    }

    /// Takes an object out of the table; its handle is stale from now on. Holders of its `Arc` keep it.
    ///
    /// Of two threads that remove the same handle at once, one gets the object.
    pub fn remove(&self, handle: u64) -> Option<Arc<T>> {
        let mut slot = writing(self.slot(index(handle))?);
        if slot.handle != handle {
            return None;
        }
        let value = slot.value.take()?;
        slot.handle = next_generation(handle);
        drop(slot);
        self.indices().resting.push_back(index(handle));
        Some(value)
    }

    /// Every object with its handle, as of about now, in no order that means anything.
    pub fn snapshot(&self) -> Vec<(u64, Arc<T>)> {
        let used = self.indices().fresh;
        (0..used)
            .filter_map(|index| {
                let slot = reading(self.slot(index)?);
                Some((slot.handle, slot.value.clone()?))
            })
            .collect()
    }

    /// Takes every object out of the table.
    pub fn drain(&self) -> Vec<Arc<T>> {
        self.snapshot().into_iter().filter_map(|(handle, _)| self.remove(handle)).collect()
    }

    /// How many objects live in the table.
    pub fn len(&self) -> usize {
        let indices = self.indices();
        indices.fresh as usize - indices.resting.len()
    }

    /// Whether no object lives in the table.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a number could be a handle of this table, alive or not.
    #[inline]
    pub fn is_of_this_kind(&self, handle: u64) -> bool {
        handle >> KIND_SHIFT == u64::from(self.kind)
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&RwLock<Slot<T>>> {
        let (chunk, shifted) = place(index);
        let slots = self.chunks.get(chunk)?.get()?;
        slots.get(shifted & slots.len().wrapping_sub(1))
    }

    fn slot_or_grow(&self, index: u32) -> &RwLock<Slot<T>> {
        let (chunk, shifted) = place(index);
        let slots = self.chunks[chunk].get_or_init(|| {
            let length = FIRST_CHUNK << chunk;
            let first = (length - FIRST_CHUNK) as u64 | u64::from(self.kind) << KIND_SHIFT;
            (first..).take(length).map(|handle| RwLock::new(Slot { handle, value: None })).collect()
        });
        &slots[shifted & (slots.len() - 1)]
    }

    fn take_index(&self) -> CuResult<u32> {
        let mut indices = self.indices();
        let exhausted = indices.fresh == 1 << INDEX_BITS;
        if (indices.resting.len() > RESTING_MIN || exhausted)
            && let Some(index) = indices.resting.pop_front()
        {
            return Ok(index);
        }
        if exhausted {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        indices.fresh += 1;
        Ok(indices.fresh - 1)
    }

    fn indices(&self) -> MutexGuard<'_, Indices> {
        // The two fields change by single operations that do not panic half-way.
        lock(&self.indices)
    }
}

/// The chunk of an index, and a number whose low bits are the place in that chunk.
///
/// With the first chunk's length added, an index of chunk n has its highest bit n places further left.
#[inline]
fn place(index: u32) -> (usize, usize) {
    let shifted = index + FIRST_CHUNK as u32;
    ((shifted.ilog2() - FIRST_CHUNK.ilog2()) as usize, shifted as usize)
}

#[inline]
fn index(handle: u64) -> u32 {
    handle as u32 & ((1 << INDEX_BITS) - 1)
}

/// The same kind and index with the next generation, the one after the last being the first.
fn next_generation(handle: u64) -> u64 {
    let generation = 0xffff << INDEX_BITS;
    handle & !generation | handle.wrapping_add(1 << INDEX_BITS) & generation
}

#[inline]
fn reading<T>(slot: &RwLock<Slot<T>>) -> RwLockReadGuard<'_, Slot<T>> {
    locks::read(slot)
}

fn writing<T>(slot: &RwLock<Slot<T>>) -> RwLockWriteGuard<'_, Slot<T>> {
    locks::write(slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        collections::HashSet,
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    const STREAM: u8 = 3;
    const EVENT: u8 = 4;

    #[test]
    fn what_was_inserted_is_found_until_it_is_removed() {
        let slab = Slab::new(STREAM);
        let handle = slab.insert(Arc::new("a")).unwrap();
        assert_eq!(slab.get(handle).as_deref(), Some(&"a"));
        assert_eq!(slab.with(handle, |text| text.len()), Some(1));
        assert_eq!(slab.remove(handle).as_deref(), Some(&"a"));
        assert_eq!(slab.get(handle), None);
        assert_eq!(slab.with(handle, |text| text.len()), None);
        assert_eq!(slab.remove(handle), None);
        assert!(slab.is_empty());
    }

    #[test]
    fn a_handle_has_the_documented_layout() {
        let slab = Slab::new(STREAM);
        assert_eq!(slab.insert(Arc::new(())).unwrap(), 3 << 40);
        assert_eq!(slab.insert(Arc::new(())).unwrap(), 3 << 40 | 1);
        slab.remove(3 << 40).unwrap();
        for _ in 0..RESTING_MIN {
            let handle = slab.insert(Arc::new(())).unwrap();
            slab.remove(handle).unwrap();
        }
        assert_eq!(
            slab.insert(Arc::new(())).unwrap(),
            3 << 40 | 1 << 24,
            "first index again, next generation"
        );
    }

    #[test]
    fn a_foreign_or_wild_handle_is_not_found() {
        let slab = Slab::new(STREAM);
        let handle = slab.insert(Arc::new(7)).unwrap();
        let wild = [0, 1, 2, u64::MAX, handle | 1 << 63, handle + 1, handle | 0xff_ffff, handle | 1 << 24];
        assert!(wild.iter().all(|&wild| slab.get(wild).is_none() && slab.remove(wild).is_none()));
        let events = Slab::<i32>::new(EVENT);
        assert_eq!(events.get(handle), None);
    }

    #[test]
    fn an_object_can_know_its_handle() {
        let slab = Slab::new(EVENT);
        let handle = slab.insert_with(Arc::new).unwrap();
        assert_eq!(slab.get(handle).as_deref(), Some(&handle));
    }

    #[test]
    fn handles_do_not_repeat_over_many_generations() {
        let slab = Slab::new(EVENT);
        let mut seen = HashSet::new();
        for _ in 0..100_000 {
            let handle = slab.insert(Arc::new(())).unwrap();
            assert!(seen.insert(handle));
            slab.remove(handle).unwrap();
        }
    }

    #[test]
    fn every_index_has_its_own_place_in_an_existing_chunk() {
        let mut seen = HashSet::new();
        for index in 0..10_000 {
            let (chunk, shifted) = place(index);
            assert!(seen.insert((chunk, shifted % (FIRST_CHUNK << chunk))));
        }
        assert_eq!(place((1 << INDEX_BITS) - 1).0, CHUNKS - 1);
    }

    #[test]
    fn generations_start_again_without_touching_kind_or_index() {
        assert_eq!(next_generation(3 << 40 | 0xfffe << 24 | 9), 3 << 40 | 0xffff << 24 | 9);
        assert_eq!(next_generation(3 << 40 | 0xffff << 24 | 9), 3 << 40 | 9);
    }

    #[test]
    fn drain_gives_back_everything_once() {
        let slab = Slab::new(EVENT);
        let handles: Vec<_> = (0..1000).map(|n| slab.insert(Arc::new(n)).unwrap()).collect();
        slab.remove(handles[17]).unwrap();
        let mut drained: Vec<_> = slab.drain().into_iter().map(|value| *value).collect();
        drained.sort_unstable();
        assert_eq!(drained, (0..1000).filter(|&n| n != 17).collect::<Vec<_>>());
        assert!(slab.is_empty());
        assert!(handles.iter().all(|&handle| slab.get(handle).is_none()));
    }

    #[test]
    fn readers_never_see_another_object_while_slots_are_used_again() {
        let slab = Slab::<u64>::new(EVENT);
        let stop = AtomicBool::new(false);
        let shared: Vec<u64> = (0..4).map(|_| slab.insert_with(Arc::new).unwrap()).collect();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut handles = shared.clone();
                    while !stop.load(Ordering::Relaxed) {
                        for &handle in &handles {
                            assert!(slab.get(handle).is_none_or(|value| *value == handle));
                        }
                        handles.push(slab.insert_with(Arc::new).unwrap());
                        if handles.len() > 40 {
                            handles.drain(..20).for_each(|handle| drop(slab.remove(handle)));
                        }
                    }
                });
            }
            for _ in 0..20_000 {
                let handle = slab.insert_with(Arc::new).unwrap();
                assert_eq!(slab.remove(handle).as_deref(), Some(&handle));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
