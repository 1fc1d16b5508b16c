//! Bytes of the host that a copy reads or writes, possibly after the call returned.
//!
//! They are an address and a length, not a slice: the program may write pinned memory while a copy is under way, and
//! a copy into pinned memory may finish after the call. The bytes are only ever touched by whole copies.

#![allow(unsafe_code)]

use super::Length;
use cuda_abi::{CuResult, CudaError};

/// Host memory to copy from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostSource {
    address: u64,
    len: usize,
}

/// Host memory to copy to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostTarget {
    address: u64,
    len: usize,
}

macro_rules! host_range {
    ($name:ident) => {
        #[allow(dead_code)]
        impl $name {
            /// The bytes at `address`.
            ///
            /// # Safety
            /// They stay valid until the copy that the caller asked for is done, as the CUDA API demands.
            pub(crate) const unsafe fn new(address: u64, len: usize) -> Self {
                Self { address, len }
            }

            /// Where they start.
            pub(crate) const fn address(self) -> u64 {
                self.address
            }

            /// How many they are.
            pub(crate) const fn len(self) -> usize {
                self.len
            }

            /// Whether there are none.
            pub(crate) const fn is_empty(self) -> bool {
                self.len == 0
            }
        }
    };
}

host_range!(HostSource);
host_range!(HostTarget);

#[allow(dead_code)]
impl HostSource {
    /// Copies bytes from `offset` on; panics when they reach past the end.
    pub(crate) fn read_at(self, offset: usize, into: &mut [u8]) {
        assert!(
            offset.checked_add(into.len()).is_some_and(|end| end <= self.len),
            "read past the host memory"
        );
        let source = (self.address as usize + offset) as *const u8;
        // SAFETY: the range lies within memory that `new` was promised, and `into` is ours alone.
        unsafe { core::ptr::copy_nonoverlapping(source, into.as_mut_ptr(), into.len()) }
    }

    /// Appends all bytes to `out`.
    pub(crate) fn append_to(self, out: &mut Vec<u8>) {
        if self.len == 0 {
            return;
        }
        out.reserve(self.len);
        let source = self.address as usize as *const u8;
        // SAFETY: the source is valid for `len` bytes as `new` was promised; the target was reserved just now.
        unsafe { core::ptr::copy_nonoverlapping(source, out.as_mut_ptr().add(out.len()), self.len) }
        // SAFETY: these bytes were written by the copy above.
        unsafe { out.set_len(out.len() + self.len) }
    }
}

#[allow(dead_code)]
impl HostTarget {
    /// Writes bytes from `offset` on; panics when they reach past the end.
    pub(crate) fn write_at(self, offset: usize, bytes: &[u8]) {
        assert!(
            offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len),
            "write past the host memory"
        );
        let target = (self.address as usize + offset) as *mut u8;
        // SAFETY: the range lies within memory that `new` was promised; `copy` allows overlap.
        unsafe { core::ptr::copy(bytes.as_ptr(), target, bytes.len()) }
    }
}

/// The source of an upload.
///
/// # Safety
/// As the CUDA API demands: valid until the copy is done.
#[inline]
pub(crate) unsafe fn upload(pointer: *const u8, len: impl Length) -> CuResult<HostSource> {
    let len = len.length()?;
    if pointer.is_null() && len != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    // SAFETY: handed on from the caller.
    Ok(unsafe { HostSource::new(pointer as usize as u64, len) })
}

/// The target of a download.
///
/// # Safety
/// As the CUDA API demands: valid until the copy is done.
#[inline]
pub(crate) unsafe fn download(pointer: *mut u8, len: impl Length) -> CuResult<HostTarget> {
    let len = len.length()?;
    if pointer.is_null() && len != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    // SAFETY: handed on from the caller.
    Ok(unsafe { HostTarget::new(pointer as usize as u64, len) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_travel_both_ways() {
        let source = *b"abcdef";
        // SAFETY: the array outlives the copies.
        let upload = unsafe { upload(source.as_ptr(), 6usize) }.expect("not null");
        let mut read = [0; 3];
        upload.read_at(2, &mut read);
        assert_eq!(&read, b"cde");
        let mut all = vec![b'>'];
        upload.append_to(&mut all);
        assert_eq!(all, b">abcdef");

        let mut target = [0u8; 4];
        // SAFETY: the array outlives the copies.
        let download = unsafe { download(target.as_mut_ptr(), 4usize) }.expect("not null");
        download.write_at(1, b"xy");
        assert_eq!(&target, b"\0xy\0");
    }

    #[test]
    fn nothing_may_be_nowhere_but_something_may_not() {
        // SAFETY: null is never followed.
        assert!(unsafe { upload(core::ptr::null(), 0usize) }.is_ok());
        // SAFETY: null is never followed.
        assert_eq!(unsafe { upload(core::ptr::null(), 1usize) }, Err(CudaError::INVALID_VALUE));
    }
}
