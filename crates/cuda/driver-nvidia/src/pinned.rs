//! Memory of this process that the GPU reads and writes: pages of it, and words in it that both sides watch.
//!
//! A **word** is how streams and our threads wait for each other without a system call or a callback: a stream writes
//! it when it gets there (`cuStreamWriteValue64`) and a thread looks; or a stream waits for it (`cuStreamWaitValue64`)
//! and a thread writes. What a stream waits for is always written by a thread, never by another stream: two streams may
//! share a queue of the hardware, and a wait in front of what ends it would wait for ever.

#![allow(unsafe_code)]

use crate::sys::{Api, DeviceAddress};
use cuda_abi::{CuResult, CudaError};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Huge pages: registering them with the driver takes a tenth of the time of small ones.
const HUGE_PAGE: usize = 2 << 20;

/// Pages that the GPU can reach. Never unmapped, except by `OwnedPages`.
#[derive(Clone, Copy, Debug)]
struct Pages {
    start: *mut u8,
    bytes: usize,
    /// Where the GPU finds them.
    device: DeviceAddress,
}

// SAFETY: the pages stay mapped. `Words`, `Slots` and `OwnedPages` hand them out and say which thread may touch which
// bytes when.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `bytes` (rounded up to huge pages) and registers them with all contexts.
    fn new(api: &Api, bytes: usize) -> CuResult<Self> {
        const PORTABLE_MAPPED: u32 = 1 | 2;
        let bytes = bytes.next_multiple_of(HUGE_PAGE);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // One more page, so that the start can be moved to a huge page's.
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let got = unsafe { libc::mmap(std::ptr::null_mut(), bytes + HUGE_PAGE, protection, flags, -1, 0) };
        if got == libc::MAP_FAILED {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        let start = got.cast::<u8>().map_addr(|address| address.next_multiple_of(HUGE_PAGE));
        let (before, behind) = (start.addr() - got.addr(), HUGE_PAGE - (start.addr() - got.addr()));
        // SAFETY: what lies before the start and behind the end belongs to the mapping above and is never used.
        unsafe {
            if before > 0 {
                libc::munmap(got, before);
            }
            if behind > 0 {
                libc::munmap(start.add(bytes).cast(), behind);
            }
        }
        // SAFETY: the range lies in the mapping above. Without huge pages everything works too, a little slower.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE) };
        // Touched here, by the processor, rather than page by page by the driver.
        // SAFETY: the range is mapped for writing and no other code has its address yet.
        unsafe { std::ptr::write_bytes(start, 0, bytes) };
        let mut pages = Self { start, bytes, device: 0 };
        // SAFETY: the range stays mapped for the life of the process, or until it is given back here.
        unsafe {
            if let Err(error) = api.host_register(start.cast(), bytes, PORTABLE_MAPPED) {
                libc::munmap(start.cast(), bytes);
                return Err(error);
            }
            if let Err(error) = api.host_device_pointer(&mut pages.device, start.cast(), 0) {
                pages.give_back(api);
                return Err(error);
            }
        }
        Ok(pages)
    }
}

impl Pages {
    /// Unmaps the pages, unless the driver keeps them.
    ///
    /// # Safety
    ///
    /// No thread and no work of the GPU uses them any more.
    unsafe fn give_back(self, api: &Api) {
        // SAFETY: the pages were registered and mapped by `Pages::new`; our caller promises that they are unused.
        unsafe {
            if api.host_unregister(self.start.cast()).is_ok() {
                libc::munmap(self.start.cast(), self.bytes);
            }
        }
    }
}

/// Pages that go back when dropped, for the few that are too large to keep.
pub(crate) struct OwnedPages {
    api: Api,
    pages: Pages,
}

impl OwnedPages {
    pub(crate) fn new(api: &Api, bytes: usize) -> CuResult<Self> {
        Ok(Self { api: *api, pages: Pages::new(api, bytes)? })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.pages.start
    }

    /// Where the GPU finds them.
    pub(crate) fn device(&self) -> DeviceAddress {
        self.pages.device
    }

    /// Some of their bytes, for reading.
    ///
    /// # Safety
    ///
    /// No thread and no work of the GPU writes these bytes while the slice lives.
    pub(crate) unsafe fn bytes(&self, at: usize, count: usize) -> &[u8] {
        assert!(at.checked_add(count).is_some_and(|end| end <= self.pages.bytes), "beyond the pages");
        // SAFETY: in bounds of the pages, which live as long as `self`; exclusion is our caller's promise.
        unsafe { std::slice::from_raw_parts(self.pages.start.add(at), count) }
    }
}

impl Drop for OwnedPages {
    fn drop(&mut self) {
        // SAFETY: only the owner has their address, and it drops them when no work uses them.
        unsafe { self.pages.give_back(&self.api) };
    }
}

/// One word.
#[derive(Debug)]
pub(crate) struct Word {
    place: &'static AtomicU64,
    device: DeviceAddress,
    words: Arc<Words>,
}

impl Word {
    pub(crate) fn device(&self) -> DeviceAddress {
        self.device
    }

    /// Where this process finds it, for a copy that a stream makes of it.
    pub(crate) fn host(&self) -> *const c_void {
        std::ptr::from_ref(self.place).cast()
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.place.load(Ordering::Acquire)
    }

    /// Everything written to pinned memory before is seen by a stream that waited for this.
    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.place.store(value, Ordering::Release);
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        self.words.free.lock().unwrap_or_else(PoisonError::into_inner).push((self.place, self.device));
    }
}

/// Free words. A stream that was given up may still write a word that comes back; so the holder of a word drops it only
/// when its streams are done with it.
#[derive(Debug)]
pub(crate) struct Words {
    api: Api,
    free: Mutex<Vec<(&'static AtomicU64, DeviceAddress)>>,
}

/// Each word in a cache line of its own: one is polled while its neighbour is written over the bus.
const WORD_BYTES: usize = 64;

impl Words {
    pub(crate) fn new(api: Api) -> CuResult<Arc<Self>> {
        let words = Arc::new(Self { api, free: Mutex::default() });
        words.grow()?;
        Ok(words)
    }

    fn grow(&self) -> CuResult<()> {
        let pages = Pages::new(&self.api, HUGE_PAGE)?;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        for at in (0..pages.bytes).step_by(WORD_BYTES).rev() {
            // SAFETY: the pages live as long as the process, the place is aligned, and it is only ever used as this
            // atomic by us; the GPU writes it as a whole.
            let place = unsafe { &*pages.start.add(at).cast::<AtomicU64>() };
            free.push((place, pages.device + at as u64));
        }
        Ok(())
    }

    /// A word that is 0.
    pub(crate) fn take(self: &Arc<Self>) -> CuResult<Word> {
        loop {
            let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
            if let Some((place, device)) = free {
                place.store(0, Ordering::Relaxed);
                return Ok(Word { place, device, words: Arc::clone(self) });
            }
            self.grow()?;
        }
    }
}

#[cfg(test)]
impl Words {
    /// Where the free words lie.
    pub(crate) fn free_ranges(&self) -> Vec<std::ops::Range<usize>> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let start = |place: &'static AtomicU64| std::ptr::from_ref(place).addr();
        free.iter().map(|&(place, _)| start(place)..start(place) + size_of::<u64>()).collect()
    }
}

/// Bytes of a slot: large enough that the fixed cost of a copy does not matter, small enough that copies overlap with
/// the network.
pub(crate) const SLOT_BYTES: usize = 4 << 20;
/// Memory is made for this many slots at a time.
const SLOTS_AT_ONCE: usize = 16;

/// A piece of pinned memory that bytes wait in, on their way between the network and the GPU.
#[derive(Debug)]
pub(crate) struct Slot {
    start: *mut u8,
    device: DeviceAddress,
    slots: Arc<Slots>,
}

// SAFETY: the memory belongs to the holder of the slot.
unsafe impl Send for Slot {}
// SAFETY: methods give out raw pointers only, or demand exclusion from their caller.
unsafe impl Sync for Slot {}

impl Slot {
    pub(crate) fn start(&self) -> *mut c_void {
        self.start.cast()
    }

    /// Where the GPU finds it.
    pub(crate) fn device(&self) -> DeviceAddress {
        self.device
    }

    /// The bytes from `at` on, for writing.
    ///
    /// # Safety
    ///
    /// No other thread and no work of the GPU touches these bytes while the slice lives.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn bytes_mut(&self, at: usize, count: usize) -> &mut [u8] {
        assert!(at.checked_add(count).is_some_and(|end| end <= SLOT_BYTES), "beyond the slot");
        // SAFETY: in bounds of the slot, which lives as long as `self`; exclusion is our caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), count) }
    }

    /// The bytes from `at` on, for reading.
    ///
    /// # Safety
    ///
    /// No thread and no work of the GPU writes these bytes while the slice lives.
    pub(crate) unsafe fn bytes(&self, at: usize, count: usize) -> &[u8] {
        assert!(at.checked_add(count).is_some_and(|end| end <= SLOT_BYTES), "beyond the slot");
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.start.add(at), count) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.free.lock().unwrap_or_else(PoisonError::into_inner).push(Start(self.start, self.device));
    }
}

#[derive(Debug)]
struct Start(*mut u8, DeviceAddress);

// SAFETY: a free slot's memory is unused; the pointer only names it.
unsafe impl Send for Start {}

/// Free slots. As many are made as are in use at once.
#[derive(Debug)]
pub(crate) struct Slots {
    api: Api,
    free: Mutex<Vec<Start>>,
    /// Held by the thread that makes more.
    growing: Mutex<()>,
}

impl Slots {
    pub(crate) fn new(api: Api) -> CuResult<Arc<Self>> {
        let slots = Arc::new(Self { api, free: Mutex::default(), growing: Mutex::default() });
        slots.grow()?;
        Ok(slots)
    }

    fn grow(&self) -> CuResult<()> {
        let pages = Pages::new(&self.api, SLOTS_AT_ONCE * SLOT_BYTES)?;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        for at in (0..SLOTS_AT_ONCE).rev() {
            let at = at * SLOT_BYTES;
            free.push(Start(pages.start.wrapping_add(at), pages.device + at as u64));
        }
        Ok(())
    }

    /// A slot, with new memory if there is no free one.
    pub(crate) fn take(self: &Arc<Self>) -> CuResult<Slot> {
        if let Some(slot) = self.take_free() {
            return Ok(slot);
        }
        // One thread makes memory for all that wait: pinning takes long, and a dozen threads need one batch of slots, not a
        // dozen batches.
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(slot) = self.take_free() {
                return Ok(slot);
            }
            self.grow()?;
        }
    }

    /// A slot, if there is a free one.
    pub(crate) fn take_free(self: &Arc<Self>) -> Option<Slot> {
        let Start(start, device) = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Slot { start, device, slots: Arc::clone(self) })
    }
}

#[cfg(test)]
impl Slots {
    /// Where the free slots lie.
    pub(crate) fn free_ranges(&self) -> Vec<std::ops::Range<usize>> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.iter().map(|Start(start, _)| start.addr()..start.addr() + SLOT_BYTES).collect()
    }
}
