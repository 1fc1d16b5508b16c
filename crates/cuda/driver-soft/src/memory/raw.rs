//! Racy reads and writes: relaxed atomics at plain addresses, and the processor's own copy for many bytes.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

macro_rules! word {
    ($load:ident, $store:ident, $ty:ty, $atomic:ty) => {
        /// # Safety
        ///
        /// `address` is aligned to the type and mapped for reading and writing during the call.
        #[inline]
        pub(super) unsafe fn $load(address: u64) -> $ty {
            // SAFETY: as the caller promises; all accesses to device memory are atomic, so races are defined.
            unsafe { <$atomic>::from_ptr(address as *mut $ty) }.load(Relaxed)
        }

        /// # Safety
        ///
        /// `address` is aligned to the type and mapped for reading and writing during the call.
        #[inline]
        pub(super) unsafe fn $store(address: u64, value: $ty) {
            // SAFETY: as the caller promises; all accesses to device memory are atomic, so races are defined.
            unsafe { <$atomic>::from_ptr(address as *mut $ty) }.store(value, Relaxed);
        }
    };
}

word!(load8, store8, u8, AtomicU8);
word!(load16, store16, u16, AtomicU16);
word!(load32, store32, u32, AtomicU32);
word!(load64, store64, u64, AtomicU64);

/// # Safety
///
/// `address` is aligned to 4 and mapped for reading and writing during the call.
#[inline]
pub(super) unsafe fn compare_exchange32(address: u64, old: u32, new: u32) -> Result<u32, u32> {
    // SAFETY: as the caller promises.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }.compare_exchange(old, new, SeqCst, SeqCst)
}

/// # Safety
///
/// `address` is aligned to 8 and mapped for reading and writing during the call.
#[inline]
pub(super) unsafe fn compare_exchange64(address: u64, old: u64, new: u64) -> Result<u64, u64> {
    // SAFETY: as the caller promises.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }.compare_exchange(old, new, SeqCst, SeqCst)
}

/// # Safety
///
/// `address` is aligned to 4 and mapped for reading and writing during the call.
#[inline]
pub(super) unsafe fn fetch_add32(address: u64, value: u32) -> u32 {
    // SAFETY: as the caller promises.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }.fetch_add(value, SeqCst)
}

/// From here on the processor's own copy is faster than a loop over words.
const FAST_BYTES: usize = 256;

/// Copies as the processor does: other threads may read and write the same memory meanwhile, and see or leave bytes of
/// either. To the compiler it is a black box, not an access of a Rust program, so a race in it is no undefined behaviour.
///
/// # Safety
///
/// `bytes` bytes at both places are mapped during the call, for reading and writing respectively, and do not overlap.
unsafe fn move_bytes(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller promises the memory; the direction flag is clear in Rust code; nothing else is touched.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") target => _,
            inout("rsi") source => _,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
///
/// `target.len()` bytes at `address` are mapped for reading and writing during the call.
pub(super) unsafe fn read(mut address: u64, target: &mut [u8]) {
    if target.len() >= FAST_BYTES {
        // SAFETY: the caller promises the source; the target is a slice of ours, which device memory never is.
        return unsafe { move_bytes(target.as_mut_ptr(), address as *const u8, target.len()) };
    }
    let head = (address.wrapping_neg() % 8).min(target.len() as u64) as usize;
    let (head, rest) = target.split_at_mut(head);
    for byte in head {
        // SAFETY: within the caller's range.
        *byte = unsafe { load8(address) };
        address += 1;
    }
    let mut words = rest.chunks_exact_mut(8);
    for word in &mut words {
        // SAFETY: within the caller's range, and aligned since the head ended on a multiple of 8.
        word.copy_from_slice(&unsafe { load64(address) }.to_ne_bytes());
        address += 8;
    }
    for byte in words.into_remainder() {
        // SAFETY: within the caller's range.
        *byte = unsafe { load8(address) };
        address += 1;
    }
}

/// # Safety
///
/// `source.len()` bytes at `address` are mapped for reading and writing during the call.
pub(super) unsafe fn write(mut address: u64, source: &[u8]) {
    if source.len() >= FAST_BYTES {
        // SAFETY: the caller promises the target; the source is a slice of ours, which device memory never is.
        return unsafe { move_bytes(address as *mut u8, source.as_ptr(), source.len()) };
    }
    let head = (address.wrapping_neg() % 8).min(source.len() as u64) as usize;
    let (head, rest) = source.split_at(head);
    for &byte in head {
        // SAFETY: within the caller's range.
        unsafe { store8(address, byte) };
        address += 1;
    }
    let words = rest.chunks_exact(8);
    let tail = words.remainder();
    for word in words {
        let value = u64::from_ne_bytes(word.try_into().expect("chunks have 8 bytes"));
        // SAFETY: within the caller's range, and aligned since the head ended on a multiple of 8.
        unsafe { store64(address, value) };
        address += 8;
    }
    for &byte in tail {
        // SAFETY: within the caller's range.
        unsafe { store8(address, byte) };
        address += 1;
    }
}
