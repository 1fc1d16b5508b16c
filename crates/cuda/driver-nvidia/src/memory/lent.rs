//! Memory that a cut borrows from what the program has left, and what a cut sees of the program's memory.

use super::{GRANULE, Memory, Physical, State};
use cuda_abi::{CuResult, CudaError};
use snapshot::Extent;
use std::sync::{Arc, MutexGuard, PoisonError};

/// What a cut leaves free on a device: for the driver's own needs, such as the code of a module.
const HEADROOM_BYTES: u64 = 256 << 20;

/// Device memory of a cut. It goes back when this is dropped.
pub(crate) struct Lent {
    /// `None` only while it is dropped.
    physical: Option<Physical>,
    memory: Arc<Memory>,
}

impl Lent {
    pub(crate) fn bytes(&self) -> u64 {
        self.physical.as_ref().map_or(0, |physical| physical.bytes)
    }

    pub(crate) fn handle(&self) -> u64 {
        self.physical.as_ref().map_or(0, |physical| physical.handle)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(physical) = self.physical.take() else { return };
        let (device, bytes) = (physical.device, physical.bytes);
        drop(physical);
        let mut state = self.memory.lock();
        if let Some(lent) = state.lent_bytes.get_mut(&device) {
            *lent = lent.saturating_sub(bytes);
        }
        self.memory.release_quota(device, bytes);
        self.memory.changed.notify_all();
    }
}

/// A mapped range and the device whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) device: u32,
    /// Whether that device may read and write it.
    pub(crate) has_access: bool,
}

/// Memory at one place in the order of commands.
pub(crate) struct FrozenMemory {
    /// What the program has.
    pub(crate) extents: Vec<Extent>,
    /// What is mapped, ascending.
    pub(crate) owners: Vec<Owner>,
    /// Physical memory of the program's and how much of it, from its start on, is mapped.
    mapped: Vec<(Arc<Physical>, u64)>,
}

impl FrozenMemory {
    pub(crate) fn is_mapped_whole(&self, physical: &Arc<Physical>) -> bool {
        self.mapped.iter().any(|(of, bytes)| Arc::ptr_eq(of, physical) && *bytes >= physical.bytes)
    }
}

impl Memory {
    /// What the program has now. Memory that it has freed is not there any more, although it may still be mapped.
    pub(crate) fn freeze(&self) -> FrozenMemory {
        let state = self.lock();
        let allocated = state.allocations.iter();
        let mut extents: Vec<Extent> =
            allocated.map(|(&address, allocation)| Extent { address, bytes: allocation.bytes }).collect();
        let (mut owners, mut mapped) = (Vec::new(), Vec::new());
        for (&from, mapping) in &state.mappings {
            let to = from + mapping.bytes;
            if !mapping.is_ours {
                if state.leaving.iter().any(|&(start, end)| start < to && from < end) {
                    continue;
                }
                extents.push(Extent { address: from, bytes: mapping.bytes });
                mapped.push((Arc::clone(&mapping.physical), mapping.bytes));
            }
            let device = mapping.physical.device;
            owners.push(Owner { from, to, device, has_access: mapping.has_access });
        }
        FrozenMemory { extents, owners, mapped }
    }

    /// Memory for a cut: at most `bytes`, of the `free` bytes of the device and within the session's limit. `None` if
    /// the program needs all there is.
    pub(crate) fn lend(self: &Arc<Self>, device: u32, bytes: u64, free: u64) -> CuResult<Option<Lent>> {
        let mut state = self.lock();
        let used = state.used_bytes.get(&device).copied().unwrap_or(0) + state.lent(device);
        let left = self.limit_bytes().saturating_sub(used).min(free.saturating_sub(HEADROOM_BYTES));
        let left = left.min(self.quota_free(device));
        let bytes = bytes.next_multiple_of(GRANULE).min(left / GRANULE * GRANULE);
        if bytes == 0 || state.lent_wanted > 0 {
            return Ok(None);
        }
        let physical = match self.make(device, bytes) {
            Ok(physical) => physical,
            Err(CudaError::OUT_OF_MEMORY) => return Ok(None),
            Err(error) => return Err(error),
        };
        *state.lent_bytes.entry(device).or_default() += bytes;
        Ok(Some(Lent { physical: Some(physical), memory: Arc::clone(self) }))
    }

    /// Whether an allocation waits for what was lent.
    pub(crate) fn is_lent_wanted(&self) -> bool {
        self.lock().lent_wanted > 0
    }

    /// Whether memory that an allocation lacks will be there soon: what was freed, or what a cut has.
    pub(super) fn comes_back(&self, state: &State, device: u32, bytes: u64) -> bool {
        let used = state.used_bytes.get(&device).copied().unwrap_or(0);
        let is_allowed = used.checked_add(bytes).is_some_and(|sum| sum <= self.limit_bytes());
        !state.leaving.is_empty() || is_allowed && state.lent(device) > 0
    }

    /// Waits for that memory. A cut that is being sent reads its shadow out first when it sees that memory is wanted.
    pub(super) fn regain<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.lent_wanted += 1;
        while (!state.leaving.is_empty() || state.lent_bytes.values().any(|&bytes| bytes > 0))
            && !state.closed
        {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.lent_wanted -= 1;
        state
    }
}
