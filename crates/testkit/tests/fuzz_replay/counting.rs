//! An allocator that knows how much is allocated, and the most that was.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted: also what was asked for and never touched.
pub(crate) struct Counting;

fn add(bytes: usize) {
    PEAK.fetch_max(NOW.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the conditions of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the conditions of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the conditions of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may exist at once while bytes move.
        add(size);
        // SAFETY: the caller keeps the conditions of `realloc`.
        let moved = unsafe { System.realloc(at, layout, size) };
        NOW.fetch_sub(if moved.is_null() { size } else { layout.size() }, Relaxed);
        moved
    }
}

/// Bytes allocated now.
pub(crate) fn now() -> usize {
    NOW.load(Relaxed)
}

/// The most bytes that `work` had allocated beyond those that were there before.
pub(crate) fn peak_of(work: impl FnOnce()) -> usize {
    let before = now();
    PEAK.store(before, Relaxed);
    work();
    PEAK.load(Relaxed).saturating_sub(before)
}
