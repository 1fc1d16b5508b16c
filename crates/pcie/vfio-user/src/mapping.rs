//! A file in our address space that another process changes while we read it.
//!
//! All of the crate's unsafe code is here. The guest may write memory that it shares at any time, so it is only touched
//! with atomic loads and stores of the widest naturally aligned width: no reference to it ever exists.

#![allow(unsafe_code)]

use std::fs::File;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// `len` bytes of a file from its beginning.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the pointer is to a mapping that this value owns, and all access is atomic: any thread may have it.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` offers nothing but atomic access.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`.
    ///
    /// The caller has made sure that the file can never be shorter than `len`: access beyond the end of a file is a
    /// signal, not an error.
    pub(crate) fn new(file: &File, len: usize) -> rustix::io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose a free place, so nothing of ours is replaced.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }?;
        let base = NonNull::new(base.cast()).expect("the kernel never maps at null unless asked to");
        Ok(Self { base, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "callers check ranges");
        // SAFETY: the assertion keeps the result inside the mapping, which is one allocation.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Copies out of the mapping, in ascending order.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let base = self.at(offset, into.len());
        let mut done = 0;
        while done < into.len() {
            // SAFETY: `done < into.len()`, and `at` checked that `into.len()` bytes from `base` are ours.
            let from = unsafe { base.add(done) };
            let left = &mut into[done..];
            let width = width_at(from, left.len());
            // SAFETY: `width_at` gave a width that `from` is aligned to and that is left; the mapping outlives the call.
            unsafe {
                match width {
                    8 => left[..8].copy_from_slice(
                        &AtomicU64::from_ptr(from.cast()).load(Ordering::Relaxed).to_ne_bytes(),
                    ),
                    4 => left[..4].copy_from_slice(
                        &AtomicU32::from_ptr(from.cast()).load(Ordering::Relaxed).to_ne_bytes(),
                    ),
                    2 => left[..2].copy_from_slice(
                        &AtomicU16::from_ptr(from.cast()).load(Ordering::Relaxed).to_ne_bytes(),
                    ),
                    _ => left[0] = AtomicU8::from_ptr(from).load(Ordering::Relaxed),
                }
            }
            done += width;
        }
        std::sync::atomic::fence(Ordering::Acquire);
    }

    /// Copies into the mapping, in ascending order. Every store is a release: a guest that polls on the last word
    /// of a record sees the words before it.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        let base = self.at(offset, from.len());
        let mut done = 0;
        while done < from.len() {
            // SAFETY: `done < from.len()`, and `at` checked that `from.len()` bytes from `base` are ours.
            let into = unsafe { base.add(done) };
            let left = &from[done..];
            let width = width_at(into, left.len());
            // SAFETY: `width_at` gave a width that `into` is aligned to and that is left; the mapping outlives the call.
            unsafe {
                match width {
                    8 => AtomicU64::from_ptr(into.cast()).store(
                        u64::from_ne_bytes(left[..8].try_into().expect("eight bytes")),
                        Ordering::Release,
                    ),
                    4 => AtomicU32::from_ptr(into.cast()).store(
                        u32::from_ne_bytes(left[..4].try_into().expect("four bytes")),
                        Ordering::Release,
                    ),
                    2 => AtomicU16::from_ptr(into.cast())
                        .store(u16::from_ne_bytes([left[0], left[1]]), Ordering::Release),
                    _ => AtomicU8::from_ptr(into).store(left[0], Ordering::Release),
                }
            }
            done += width;
        }
    }
}

/// The widest of 8, 4, 2 and 1 that `at` is aligned to and that fits into `left`.
fn width_at(at: *const u8, left: usize) -> usize {
    let aligned = 1usize << (at.addr() | 8).trailing_zeros();
    let fitting = 1usize << (left.min(8)).ilog2();
    aligned.min(fitting)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are of our own mapping, and no access can follow the drop.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_alignment_and_length_copies_the_same_bytes() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let mapping = Mapping::new(&file, 4096).unwrap();
        let pattern: Vec<u8> = (0..64).map(|n| n as u8 ^ 0xa5).collect();
        for offset in 0..17 {
            for len in 0..40 {
                mapping.write(offset, &pattern[..len]);
                let mut back = vec![0; len];
                mapping.read(offset, &mut back);
                assert_eq!(back, pattern[..len], "offset {offset} length {len}");
            }
        }
    }

    #[test]
    fn an_aligned_word_is_one_store() {
        for (address, left, width) in [(16, 100, 8), (20, 100, 4), (18, 100, 2), (17, 100, 1), (16, 7, 4)] {
            assert_eq!(width_at(std::ptr::without_provenance(address), left), width);
        }
    }
}
