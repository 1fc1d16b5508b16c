//! Where device memory lies: the client chooses every address.
//!
//! The worker keeps one range of virtual addresses free for this session, so an allocation needs no answer. The
//! range is cut as a real driver cuts it:
//!
//! ```text
//! | chunk, 2 MiB          | large, 2 MiB aligned | reservation | chunk  |  …  | DRIVER_VA_BYTES |
//! | 512 B aligned smalls  |                      |             | smalls |     | the driver's    |
//! ```
//!
//! Small allocations share chunks, because devices map memory in steps of 2 MiB; a chunk holds allocations of one
//! device only. The top of the range is not touched: the driver puts variables of modules and the like there.
//!
//! Nothing here is locked. Callers on several threads put the whole [`AddressSpace`] behind one lock.

mod extents;

use cuda_abi::{CuResult, CudaError};
use cuda_wire::{DRIVER_VA_BYTES, VaRange};
use extents::{Extents, Quarantine};
use std::collections::{BTreeMap, btree_map::Entry};

/// What devices map memory in.
pub const CHUNK_BYTES: u64 = 2 << 20;
/// Allocations below this share chunks.
const SMALL_BYTES: u64 = 1 << 20;
/// What every allocation is aligned to, as CUDA promises.
const ALIGN_BYTES: u64 = 512;
/// What [`AddressSpace::allocate_pages`] gives.
const PAGES_BYTES: u64 = 64 << 10;
const QUARANTINE_RANGES: usize = 64;
/// Bytes of a device's small allocations that may be in quarantine: two chunks.
const SMALL_QUARANTINE_BYTES: u64 = 2 * CHUNK_BYTES;

/// What a range of addresses is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Memory of cuMemAlloc and its relatives.
    Memory,
    /// Memory of a pool: cuMemAllocAsync and its relatives.
    PoolMemory,
    /// Addresses of cuMemAddressReserve; what is mapped there is not known here.
    Reservation,
}

/// A range of addresses in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// First address.
    pub base: u64,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// What it is.
    pub kind: Kind,
    /// The device whose memory it is; 0 for a reservation, which has none.
    pub device: u32,
    /// Whatever the owner wants to know about it, such as a context or a pool.
    pub tag: u64,
}

impl Allocation {
    fn is_small(&self) -> bool {
        self.kind != Kind::Reservation && self.bytes < SMALL_BYTES
    }

    /// The end of the addresses that no other allocation may have.
    fn end(&self) -> u64 {
        self.base + self.bytes.next_multiple_of(if self.is_small() { ALIGN_BYTES } else { CHUNK_BYTES })
    }
}

/// All addresses of a session.
#[derive(Debug)]
pub struct AddressSpace {
    free: Extents,
    resting: Quarantine,
    /// Small allocations by device.
    smalls: BTreeMap<u32, Smalls>,
    live: BTreeMap<u64, Allocation>,
}

#[derive(Debug)]
struct Smalls {
    free: Extents,
    resting: Quarantine,
}

impl Default for Smalls {
    fn default() -> Self {
        Self {
            free: Extents::new(Some(CHUNK_BYTES)),
            resting: Quarantine::new(QUARANTINE_RANGES, SMALL_QUARANTINE_BYTES),
        }
    }
}

impl AddressSpace {
    /// The space of a session whose worker keeps `range`. Empty if the driver's part leaves nothing.
    pub fn new(range: VaRange) -> Self {
        let mut free = Extents::new(None);
        let start = range.base.next_multiple_of(CHUNK_BYTES);
        let end = (range.base + range.bytes.saturating_sub(DRIVER_VA_BYTES)) / CHUNK_BYTES * CHUNK_BYTES;
        if start < end {
            free.insert(start, end);
        }
        // An eighth of the range may be in quarantine: enough that a program rarely meets its old addresses, and no
        // loss.
        let resting = Quarantine::new(QUARANTINE_RANGES, range.bytes / 8);
        Self { free, resting, smalls: BTreeMap::new(), live: BTreeMap::new() }
    }

    /// Addresses for `bytes` of memory of a device.
    pub fn allocate(&mut self, bytes: u64, kind: Kind, device: u32, tag: u64) -> CuResult<u64> {
        if bytes == 0 || kind == Kind::Reservation {
            return Err(CudaError::INVALID_VALUE);
        }
        let wanted = Allocation { base: 0, bytes, kind, device, tag };
        let place = if wanted.is_small() {
            self.or_flush(|space| space.take_small(device, bytes.next_multiple_of(ALIGN_BYTES), ALIGN_BYTES))
        } else {
            let bytes = bytes.checked_next_multiple_of(CHUNK_BYTES).ok_or(CudaError::OUT_OF_MEMORY)?;
            self.or_flush(|space| space.free.take(bytes, CHUNK_BYTES))
        };
        let base = place.ok_or(CudaError::OUT_OF_MEMORY)?;
        self.live.insert(base, Allocation { base, ..wanted });
        Ok(base)
    }

    /// Addresses for memory of a device in pages of 64 KiB that nothing else lies in.
    pub fn allocate_pages(&mut self, bytes: u64, device: u32, tag: u64) -> CuResult<u64> {
        let bytes = bytes.checked_next_multiple_of(PAGES_BYTES).ok_or(CudaError::OUT_OF_MEMORY)?;
        let wanted = Allocation { base: 0, bytes, kind: Kind::Memory, device, tag };
        if bytes == 0 || !wanted.is_small() {
            return self.allocate(bytes, Kind::Memory, device, tag);
        }
        let place = self.or_flush(|space| space.take_small(device, bytes, PAGES_BYTES));
        let base = place.ok_or(CudaError::OUT_OF_MEMORY)?;
        self.live.insert(base, Allocation { base, ..wanted });
        Ok(base)
    }

    /// Addresses for a later mapping (cuMemAddressReserve): at `hint` if that is free, else anywhere.
    ///
    /// As driver 580: `bytes` and a hint must be multiples of 2 MiB, `align` a power of two or 0.
    pub fn reserve(&mut self, bytes: u64, align: u64, hint: u64, tag: u64) -> CuResult<u64> {
        let chunked = |value: u64| value.is_multiple_of(CHUNK_BYTES);
        if bytes == 0 || !chunked(bytes) || !chunked(hint) || !(align == 0 || align.is_power_of_two()) {
            return Err(CudaError::INVALID_VALUE);
        }
        let align = align.max(CHUNK_BYTES);
        let at_hint = hint != 0 && hint.is_multiple_of(align) && self.free.take_at(hint, bytes);
        let place = if at_hint { Some(hint) } else { self.or_flush(|space| space.free.take(bytes, align)) };
        let base = place.ok_or(CudaError::OUT_OF_MEMORY)?;
        self.live.insert(base, Allocation { base, bytes, kind: Kind::Reservation, device: 0, tag });
        Ok(base)
    }

    /// What `address` lies in.
    pub fn find(&self, address: u64) -> Option<&Allocation> {
        let (_, allocation) = self.live.range(..=address).next_back()?;
        (address - allocation.base < allocation.bytes).then_some(allocation)
    }

    /// Everything in use, ascending by address.
    pub fn allocations(&self) -> impl Iterator<Item = &Allocation> {
        self.live.values()
    }

    /// Ends the memory that starts at `base` and frees its addresses. `None` if no memory starts there.
    pub fn free(&mut self, base: u64) -> Option<Allocation> {
        let allocation = self.take(base)?;
        self.give_back(allocation);
        Some(allocation)
    }

    /// Ends a reservation (cuMemAddressFree), which must be named whole.
    pub fn free_reservation(&mut self, base: u64, bytes: u64) -> CuResult<()> {
        let Entry::Occupied(entry) = self.live.entry(base) else { return Err(CudaError::INVALID_VALUE) };
        if entry.get().kind != Kind::Reservation || entry.get().bytes != bytes {
            return Err(CudaError::INVALID_VALUE);
        }
        let reservation = entry.remove();
        self.give_back(reservation);
        Ok(())
    }

    /// Ends the memory that starts at `base` but keeps its addresses out of use until [`Self::give_back`].
    ///
    /// For a free that takes effect later, in the order of a stream: until then an allocation on another stream
    /// must not be placed there.
    pub fn take(&mut self, base: u64) -> Option<Allocation> {
        match self.live.entry(base) {
            Entry::Occupied(entry) if entry.get().kind != Kind::Reservation => Some(entry.remove()),
            _ => None,
        }
    }

    /// Frees the addresses of an allocation that [`Self::take`] returned.
    pub fn give_back(&mut self, allocation: Allocation) {
        if allocation.is_small() {
            self.smalls.entry(allocation.device).or_default().resting.push(allocation.base, allocation.end());
            while let Some((start, end)) =
                self.smalls.get_mut(&allocation.device).and_then(|s| s.resting.pop_excess())
            {
                self.free_small(allocation.device, start, end);
            }
        } else {
            self.resting.push(allocation.base, allocation.end());
            while let Some((start, end)) = self.resting.pop_excess() {
                self.free.insert(start, end);
            }
        }
    }

    fn take_small(&mut self, device: u32, bytes: u64, align: u64) -> Option<u64> {
        let smalls = self.smalls.entry(device).or_default();
        if let Some(place) = smalls.free.take(bytes, align) {
            return Some(place);
        }
        let chunk = self.free.take(CHUNK_BYTES, CHUNK_BYTES)?;
        smalls.free.insert(chunk, chunk + CHUNK_BYTES);
        smalls.free.take(bytes, align)
    }

    /// Puts a small range back into its chunk, and the chunk back into the space when nothing else is in it.
    fn free_small(&mut self, device: u32, start: u64, end: u64) {
        let smalls = self.smalls.entry(device).or_default();
        let (start, end) = smalls.free.insert(start, end);
        if end - start == CHUNK_BYTES {
            smalls.free.remove(start);
            self.free.insert(start, end);
        }
    }

    /// What `take` finds; if it finds nothing, the quarantine is emptied and `take` is called again.
    fn or_flush(&mut self, mut take: impl FnMut(&mut Self) -> Option<u64>) -> Option<u64> {
        if let Some(place) = take(self) {
            return Some(place);
        }
        let devices: Vec<u32> = self.smalls.keys().copied().collect();
        for device in devices {
            while let Some((start, end)) =
                self.smalls.get_mut(&device).and_then(|smalls| smalls.resting.pop())
            {
                self.free_small(device, start, end);
            }
        }
        while let Some((start, end)) = self.resting.pop() {
            self.free.insert(start, end);
        }
        take(self)
    }
}

#[cfg(test)]
mod tests;
