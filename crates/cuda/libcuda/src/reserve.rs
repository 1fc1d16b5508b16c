//! Address ranges of this process kept free for device memory.
//!
//! Device memory lies at the same addresses here and on the worker, but only the worker has bytes there. Keeping the
//! range free here means that no host pointer can be taken for a device pointer.

#![allow(unsafe_code)]

use cuda_wire::VaRange;

/// The size of a session's range: far more than any GPU's memory, so that addresses need not be reused soon.
const BYTES: u64 = 1 << 40;
/// Where ranges may start. Away from where Linux puts programs (0x55…, 0x56…) and their libraries (0x7f…); a GPU's
/// driver can reserve there too.
const FIRST: u64 = 0x6000_0000_0000;
const CANDIDATES: u64 = 16;

/// A range that is ours until dropped.
#[derive(Debug)]
pub(crate) struct Reserved(VaRange);

impl Reserved {
    /// Up to `count` free ranges.
    pub(crate) fn some(count: usize) -> Vec<Self> {
        (0..CANDIDATES).filter_map(|k| Self::exactly(FIRST + k * BYTES, BYTES)).take(count).collect()
    }

    /// The range at `base`, if nothing is there.
    pub(crate) fn exactly(base: u64, bytes: u64) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: MAP_FIXED_NOREPLACE maps nothing over what is there, and no reference points into a range that was
        // free.
        let got = unsafe { libc::mmap(base as *mut _, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
        if got == libc::MAP_FAILED {
            return None;
        }
        let reserved = Self(VaRange { base: got as u64, bytes });
        // A kernel before 4.17 takes the address as a hint only. Then `reserved` is dropped, which unmaps the wrong
        // place.
        (got as u64 == base).then_some(reserved)
    }

    /// Which range.
    pub(crate) fn range(&self) -> VaRange {
        self.0
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `at`, has never been readable, and only this drop unmaps it.
        unsafe { libc::munmap(self.0.base as *mut _, self.0.bytes as usize) };
    }
}
