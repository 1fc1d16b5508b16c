//! Addresses of the memory that cuts need for themselves.
//!
//! When the driver chooses a place, or rounds a range up, what is left of it is where it puts variables of modules later. The session
//! that resumes a program loads modules before its first cut, so it would have them elsewhere. (Seen on an H200, driver 580: behind
//! a buffer of a few megabytes at an address of our own, the driver kept 128 MiB and put variables there.) Therefore one whole
//! range is reserved for all buffers of a session and never given back, and places in it are found here.

#![allow(unsafe_code)]

use crate::sys::Api;
use cuda_abi::{CuResult, CudaError};
use locks::lock;
use std::{collections::BTreeMap, sync::Mutex};

/// Above what this process and the driver map, below what programs have.
const BASE: u64 = 0x4800_0000_0000;
/// As much as is kept for the program. More than any GPU has: buffers hold what changed of its memory, at most once.
const BYTES: u64 = 1 << 40;

/// The addresses, and which of them are taken.
pub(crate) struct Room {
    api: Api,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Where the range begins, once it is reserved.
    base: Option<u64>,
    /// Offset and bytes of every buffer.
    taken: BTreeMap<u64, u64>,
}

impl Room {
    pub(crate) fn new(api: Api) -> Self {
        Self { api, state: Mutex::default() }
    }

    /// Reserves the range. Protection does so before the program's first module.
    pub(super) fn open(&self) -> CuResult<()> {
        self.base(&mut lock(&self.state)).map(drop)
    }

    fn base(&self, state: &mut State) -> CuResult<u64> {
        if let Some(base) = state.base {
            return Ok(base);
        }
        let mut base = 0;
        // Where the program has these addresses, the driver finds others.
        // SAFETY: `base` is valid for the call.
        unsafe { self.api.address_reserve(&mut base, BYTES as usize, 0, BASE, 0)? };
        state.base = Some(base);
        Ok(base)
    }

    /// Takes the first place with room for `bytes`.
    pub(super) fn take(&self, bytes: u64) -> CuResult<u64> {
        let mut state = lock(&self.state);
        let base = self.base(&mut state)?;
        let offset = state.first_gap(bytes).ok_or(CudaError::OUT_OF_MEMORY)?;
        state.taken.insert(offset, bytes);
        Ok(base + offset)
    }

    /// Gives a place back, in which nothing is mapped any more.
    pub(super) fn give(&self, address: u64) {
        let mut state = lock(&self.state);
        if let Some(base) = state.base {
            state.taken.remove(&(address - base));
        }
    }
}

impl State {
    fn first_gap(&self, bytes: u64) -> Option<u64> {
        let mut from = 0;
        for (&offset, &count) in &self.taken {
            if offset - from >= bytes {
                return Some(from);
            }
            from = offset + count;
        }
        (BYTES - from >= bytes).then_some(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_from_the_start_and_never_overlap() {
        let mut state = State::default();
        for (bytes, place) in [(4, 0), (2, 4), (8, 6)] {
            assert_eq!(state.first_gap(bytes), Some(place));
            state.taken.insert(place, bytes);
        }
        state.taken.remove(&4);
        assert_eq!(state.first_gap(3), Some(14), "a gap of two is too small");
        assert_eq!(state.first_gap(2), Some(4));
        assert_eq!(state.first_gap(BYTES - 14), Some(14));
        assert_eq!(state.first_gap(BYTES - 13), None);
    }
}
