//! Kernel attributes without a lock: libraries ask for them thousands of times in a training step.
//!
//! A direct-mapped table of atomics. A reader takes a value only if the entry belongs to its handle before and after
//! the read; handles are never used twice, so an entry that was replaced meanwhile cannot pass. A writer owns an entry
//! while its handle reads [`BUSY`].

use super::{KERNEL_ATTRIBUTES, KernelSheet};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering, fence};

/// A power of two; more kernels than this rarely alternate in one step, and a miss costs only a look-up.
const ENTRIES: usize = 1024;
/// No handle is 1.
const BUSY: u64 = 1;

struct Entry {
    handle: AtomicU64,
    values: [AtomicI32; KERNEL_ATTRIBUTES],
}

static CACHE: [Entry; ENTRIES] = [const {
    Entry { handle: AtomicU64::new(0), values: [const { AtomicI32::new(i32::MIN) }; KERNEL_ATTRIBUTES] }
}; ENTRIES];

#[inline]
fn entry(handle: u64) -> &'static Entry {
    // The kind is mixed in: a kernel and its function have the same index.
    &CACHE[(handle ^ (handle >> 35)) as usize % ENTRIES]
}

/// The value, if it is known here.
#[inline]
pub(crate) fn cached_attribute(handle: u64, number: u32) -> Option<i32> {
    let entry = entry(handle);
    if entry.handle.load(Ordering::Acquire) != handle {
        return None;
    }
    let value = entry.values.get(number as usize)?.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    (entry.handle.load(Ordering::Relaxed) == handle && value != i32::MIN).then_some(value)
}

/// Puts a kernel's attributes here.
pub(crate) fn cache_attributes(handle: u64, sheet: &KernelSheet) {
    let entry = entry(handle);
    let before = entry.handle.load(Ordering::Relaxed);
    if before == BUSY
        || entry.handle.compare_exchange(before, BUSY, Ordering::Acquire, Ordering::Relaxed).is_err()
    {
        return;
    }
    fence(Ordering::Release);
    for (number, value) in entry.values.iter().enumerate() {
        value.store(sheet.attribute(number as u32).unwrap_or(i32::MIN), Ordering::Relaxed);
    }
    entry.handle.store(handle, Ordering::Release);
}

/// Forgets a kernel: it was unloaded, or an attribute was set (which the sheet has already).
pub(crate) fn forget_attributes(handle: u64) {
    let entry = entry(handle);
    loop {
        match entry.handle.compare_exchange(handle, 0, Ordering::SeqCst, Ordering::SeqCst) {
            // The thread that is filling the entry may be storing the old value: wait until it is done.
            Err(BUSY) => std::hint::spin_loop(),
            _ => return,
        }
    }
}
