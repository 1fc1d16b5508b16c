//! Device memory at addresses of the client's choice.
//!
//! Memory is mapped in steps of 2 MiB, and a mapping goes as a whole. Small allocations of the client share a step; so
//! a mapping counts its users and ends with the last.
//!
//! Freed memory is unmapped by a thread of its own when the work that was there before is done: the calls cost tens of
//! microseconds and must wait for the GPU.

#![allow(unsafe_code)]

mod guests;
mod lent;
mod physical;

use guests::Place;
pub(crate) use lent::{FrozenMemory, Lent, Owner};
pub(crate) use physical::{Physical, properties};

use crate::{
    context::LiveContext,
    current,
    quota::Quota,
    sys::{Api, MemAccess, MemLocation},
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::LimitOf;
use cuda_wire::VaRange;
use physical::DEVICE;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// What the driver maps memory in.
pub(crate) const GRANULE: u64 = 2 << 20;
const READ_WRITE: u32 = 3;
/// How many ranges a client may have kept free beside its first, and how large each may be.
const FURTHER_MAX: usize = 4096;
const FURTHER_BYTES_MAX: u64 = 1 << 40;

/// What is mapped somewhere.
struct Mapping {
    bytes: u64,
    /// Allocations that lie in it.
    users: u32,
    /// Whether it counts as used memory by itself; the client's own physical memory counts by its handle.
    is_ours: bool,
    /// Whether its own device may read and write it.
    has_access: bool,
    /// Kept alive while it is mapped.
    physical: Arc<Physical>,
}

/// An allocation of the client.
#[derive(Clone, Copy, Debug)]
struct Allocation {
    bytes: u64,
    context: u32,
}

#[derive(Default)]
struct State {
    mappings: BTreeMap<u64, Mapping>,
    allocations: BTreeMap<u64, Allocation>,
    /// Ranges of addresses beside the first.
    further: usize,
    /// Ranges that are being unmapped.
    leaving: Vec<(u64, u64)>,
    /// Frees that wait for the GPU.
    queue: Vec<Free>,
    /// Memory set aside for allocations that the client does not await, by device.
    reserve: BTreeMap<u32, Physical>,
    /// What the client may still allocate without awaiting the answer. Never more than is set aside on each device.
    credit_bytes: u64,
    /// Bytes in use, by device.
    used_bytes: BTreeMap<u32, u64>,
    /// Bytes that cuts have for a while, by device. The program gets them when it needs them.
    lent_bytes: BTreeMap<u32, u64>,
    /// Allocations that wait for them.
    lent_wanted: usize,
    /// The device itself had no memory for the last allocation that failed: the session may have as much.
    is_device_full: bool,
    closed: bool,
}

/// What is kept until work is done.
pub(crate) trait Kept: Send + Sync {}

impl<T: Send + Sync> Kept for T {}

/// A free that waits for the work before it.
struct Free {
    context: Arc<LiveContext>,
    what: Leaving,
}

enum Leaving {
    Allocation {
        address: u64,
        bytes: u64,
    },
    Mapped {
        address: u64,
        bytes: u64,
    },
    /// Something that work may use: memory of the program's, an array. It goes with the last of its contexts.
    Kept(#[expect(dead_code, reason = "kept until the work of the context is done")] Arc<dyn Kept>),
}

/// All device memory of a session.
pub(crate) struct Memory {
    api: Api,
    /// The most that the session may use of each device.
    limit_bytes: AtomicU64,
    /// What the sessions of the worker have together. Counted there is all that the session has of a device: memory in use, what is
    /// set aside, and what cuts have.
    quota: Option<Arc<dyn Quota>>,
    /// Where the session counts what it has, if it shares the GPU with guests or is one.
    place: OnceLock<Place>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Memory {
    pub(crate) fn new(api: Api, limit_bytes: u64, quota: Option<Arc<dyn Quota>>) -> Arc<Self> {
        let limit_bytes = AtomicU64::new(limit_bytes);
        let (place, state, changed) = (OnceLock::new(), Mutex::default(), Condvar::new());
        Arc::new(Self { api, limit_bytes, quota, place, state, changed })
    }

    /// Lowers the limit.
    pub(crate) fn limit(&self, bytes: u64, of: LimitOf) {
        self.limit_bytes.fetch_min(bytes, Ordering::Relaxed);
        if let (LimitOf::Lease, Some(quota)) = (of, &self.quota) {
            quota.limit(bytes);
        }
    }

    /// Takes bytes of what the worker's sessions have together.
    fn charge_quota(&self, device: u32, bytes: u64) -> CuResult<()> {
        let is_there = self.quota.as_ref().is_none_or(|quota| quota.charge(device as usize, bytes));
        if !is_there {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        self.count_on_page(bytes);
        Ok(())
    }

    fn release_quota(&self, device: u32, bytes: u64) {
        self.discount_on_page(bytes);
        if let Some(quota) = &self.quota {
            quota.release(device as usize, bytes);
        }
    }

    fn quota_free(&self, device: u32) -> u64 {
        self.quota.as_ref().map_or(u64::MAX, |quota| quota.free(device as usize))
    }

    /// New memory of a device that counts.
    fn make(&self, device: u32, bytes: u64) -> CuResult<Physical> {
        self.charge_quota(device, bytes)?;
        Physical::create(&self.api, device, bytes).inspect_err(|_| self.release_quota(device, bytes))
    }

    /// Memory in use is free again.
    fn give(&self, state: &mut State, device: u32, bytes: u64) {
        state.give(device, bytes);
        self.release_quota(device, bytes);
    }

    /// Sets memory aside, in place of what was.
    fn set_aside(&self, state: &mut State, device: u32, physical: Physical) {
        state.reserve.insert(device, physical).inspect(|old| self.release_quota(device, old.bytes));
    }

    /// The most that the session may use of each device.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread that unmaps.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<()> {
        let memory = Arc::clone(self);
        std::thread::Builder::new().name("dxpu-unmap".to_owned()).spawn(move || memory.unmap_loop())?;
        Ok(())
    }

    /// Keeps a range of addresses for the client.
    pub(crate) fn reserve_addresses(&self, range: VaRange) -> bool {
        let mut got = 0;
        // SAFETY: `got` is valid for the call.
        let reserved = unsafe { self.api.address_reserve(&mut got, range.bytes as usize, 0, range.base, 0) };
        if reserved.is_ok() && got != range.base {
            // SAFETY: the range was just reserved and nothing is in it.
            let _ = unsafe { self.api.address_free(got, range.bytes as usize) };
        }
        reserved.is_ok() && got == range.base
    }

    /// Keeps further addresses for the client, where it has host memory. The context must be current.
    pub(crate) fn reserve_further(&self, range: VaRange) -> CuResult<()> {
        let is_whole = range.bytes > 0
            && range.bytes <= FURTHER_BYTES_MAX
            && range.base.is_multiple_of(GRANULE)
            && range.bytes.is_multiple_of(GRANULE);
        if !is_whole {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut state = self.lock();
        if state.further >= FURTHER_MAX || !self.reserve_addresses(range) {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        state.further += 1;
        Ok(())
    }

    /// Allocates memory at an address. The context must be current.
    pub(crate) fn allocate(&self, context: u32, device: u32, address: u64, bytes: u64) -> CuResult<()> {
        // Counted before it can fail: the client counts every allocation, too, failed ones included.
        let is_credited = self.lock().spend(bytes);
        self.allocate_as(context, device, address, bytes, is_credited)
    }

    /// The same for memory that the client does not take from its credit.
    pub(crate) fn allocate_uncounted(
        &self,
        context: u32,
        device: u32,
        address: u64,
        bytes: u64,
    ) -> CuResult<()> {
        self.allocate_as(context, device, address, bytes, false)
    }

    fn allocate_as(
        &self,
        context: u32,
        device: u32,
        address: u64,
        bytes: u64,
        is_credited: bool,
    ) -> CuResult<()> {
        if bytes == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        self.until_a_guest_leaves(bytes, || self.allocate_once(context, device, address, bytes, is_credited))
    }

    fn allocate_once(
        &self,
        context: u32,
        device: u32,
        address: u64,
        bytes: u64,
        is_credited: bool,
    ) -> CuResult<()> {
        let (start, end) = granules(address, bytes);
        let mut state = self.wait_for_leaving(address, bytes);
        let mut made = Vec::new();
        let mut at = start;
        while at < end {
            if let Some((from, to)) = state.mapping_at(at) {
                made.push((from, false));
                at = to;
                continue;
            }
            let next = state.mappings.range(at..end).next().map_or(end, |(&next, _)| next);
            let mut mapped = self.map_fresh(&mut state, device, at, next - at, is_credited);
            if mapped.as_ref().err() == Some(&CudaError::OUT_OF_MEMORY)
                && self.comes_back(&state, device, next - at)
            {
                // What the program freed before is on its way back.
                state = self.regain(state);
                mapped = self.map_fresh(&mut state, device, at, next - at, is_credited);
            }
            match mapped {
                Ok(mapping) => {
                    state.mappings.insert(at, mapping);
                    made.push((at, true));
                }
                Err(error) => {
                    for (from, fresh) in made {
                        if fresh {
                            self.unmap_now(&mut state, from);
                        }
                    }
                    return Err(error);
                }
            }
            at = next;
        }
        for (from, _) in made {
            if let Some(mapping) = state.mappings.get_mut(&from) {
                mapping.users += 1;
            }
        }
        state.allocations.insert(address, Allocation { bytes, context });
        Ok(())
    }

    /// Waits until no memory that is being unmapped lies in a range.
    fn wait_for_leaving(&self, address: u64, bytes: u64) -> MutexGuard<'_, State> {
        let end = address.saturating_add(bytes);
        let mut state = self.lock();
        while state.leaving.iter().any(|&(from, to)| from < end && address < to) && !state.closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// New memory of a device, within the session's limit. If the device has none, memory within the credit comes from
    /// the reserve.
    fn create(&self, state: &mut State, device: u32, bytes: u64, is_credited: bool) -> CuResult<Physical> {
        state.is_device_full = false;
        let used = state.used_bytes.get(&device).copied().unwrap_or(0) + state.lent(device);
        if used.checked_add(bytes).is_none_or(|sum| sum > self.limit_bytes()) {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        let physical = match self.make(device, bytes) {
            Err(CudaError::OUT_OF_MEMORY) if is_credited && state.reserve.contains_key(&device) => {
                // The reserve is for this moment: give it up, allocate, and set aside again what is left of the credit.
                state.reserve.remove(&device).inspect(|reserve| self.release_quota(device, reserve.bytes));
                let physical = self.make(device, bytes)?;
                let left = state.credit_bytes / GRANULE * GRANULE;
                match self.make(device, left.max(GRANULE)) {
                    Ok(rest) => self.set_aside(state, device, rest),
                    Err(error) => tracing::warn!(%error, "memory that was promised is gone"),
                }
                physical
            }
            Err(CudaError::OUT_OF_MEMORY) => {
                // Not by its own limit, nor by what the sessions of its worker have together.
                state.is_device_full = self.quota_free(device) >= bytes;
                return Err(CudaError::OUT_OF_MEMORY);
            }
            other => other?,
        };
        *state.used_bytes.entry(device).or_default() += bytes;
        Ok(physical)
    }

    /// New memory, mapped.
    fn map_fresh(
        &self,
        state: &mut State,
        device: u32,
        address: u64,
        bytes: u64,
        is_credited: bool,
    ) -> CuResult<Mapping> {
        let physical = Arc::new(self.create(state, device, bytes, is_credited)?);
        let mapped = self.map_for(address, bytes, device, &physical);
        if mapped.is_err() {
            self.give(state, device, bytes);
        }
        mapped.map(|()| Mapping { bytes, users: 0, is_ours: true, has_access: true, physical })
    }

    fn map_for(&self, address: u64, bytes: u64, device: u32, physical: &Physical) -> CuResult<()> {
        self.map(address, bytes, physical)?;
        if let Err(error) = self.set_access(address, bytes, device, READ_WRITE) {
            // SAFETY: it was mapped just now and no other code uses it yet.
            let _ = unsafe { self.api.memory_unmap(address, bytes as usize) };
            return Err(error);
        }
        Ok(())
    }

    /// Physical memory for the client itself (cuMemCreate).
    pub(crate) fn create_physical(&self, device: u32, bytes: u64) -> CuResult<Physical> {
        let is_credited = self.lock().spend(bytes);
        self.until_a_guest_leaves(bytes, || self.create_once(device, bytes, is_credited))
    }

    fn create_once(&self, device: u32, bytes: u64, is_credited: bool) -> CuResult<Physical> {
        let mut state = self.lock();
        let made = self.create(&mut state, device, bytes, is_credited);
        if made.as_ref().err() == Some(&CudaError::OUT_OF_MEMORY) && self.comes_back(&state, device, bytes) {
            state = self.regain(state);
            return self.create(&mut state, device, bytes, is_credited);
        }
        made
    }

    /// The client let go of physical memory. The driver frees it when it is mapped nowhere.
    pub(crate) fn release_physical(&self, physical: Arc<Physical>) {
        if !physical.is_imported() {
            self.give(&mut self.lock(), physical.device, physical.bytes);
        }
    }

    /// Counts memory that the driver itself gives out: arrays.
    pub(crate) fn charge(&self, device: u32, bytes: u64) -> CuResult<()> {
        let mut state = self.lock();
        let used = state.used_bytes.get(&device).copied().unwrap_or(0);
        if used.checked_add(bytes).is_none_or(|sum| sum > self.limit_bytes()) {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        self.charge_quota(device, bytes)?;
        *state.used_bytes.entry(device).or_default() += bytes;
        Ok(())
    }

    /// Counts it no more.
    pub(crate) fn discharge(&self, device: u32, bytes: u64) {
        self.give(&mut self.lock(), device, bytes);
    }

    fn map(&self, address: u64, bytes: u64, physical: &Physical) -> CuResult<()> {
        // SAFETY: no pointers; the driver refuses what is not reserved or already mapped.
        unsafe { self.api.memory_map(address, bytes as usize, 0, physical.handle, 0) }
    }

    /// The same for memory that the client has mapped.
    pub(crate) fn set_client_access(
        &self,
        address: u64,
        bytes: u64,
        device: u32,
        protection: u32,
    ) -> CuResult<()> {
        self.set_access(address, bytes, device, protection)?;
        let mut state = self.lock();
        for (_, mapping) in state.mappings.range_mut(address..address.saturating_add(bytes)) {
            if mapping.physical.device == device {
                mapping.has_access = protection == READ_WRITE;
            }
        }
        Ok(())
    }

    /// Lets a device use a mapped range, as `protection` says.
    pub(crate) fn set_access(&self, address: u64, bytes: u64, device: u32, protection: u32) -> CuResult<()> {
        let access =
            MemAccess { location: MemLocation { kind: DEVICE, id: device as i32 }, flags: protection };
        // SAFETY: the description is valid for the call.
        unsafe { self.api.memory_set_access(address, bytes as usize, &access, 1) }
    }

    fn unmap_now(&self, state: &mut State, address: u64) {
        if let Some(mapping) = state.mappings.remove(&address) {
            // SAFETY: the caller has made sure that no work uses it any more.
            if let Err(error) = unsafe { self.api.memory_unmap(address, mapping.bytes as usize) } {
                tracing::warn!(address, %error, "cannot unmap device memory");
            }
            if mapping.is_ours {
                self.give(state, mapping.physical.device, mapping.bytes);
            }
        }
    }

    /// Maps physical memory of the client's (cuMemMap).
    pub(crate) fn map_physical(
        &self,
        address: u64,
        bytes: u64,
        offset: u64,
        physical: &Arc<Physical>,
    ) -> CuResult<()> {
        let mut state = self.wait_for_leaving(address, bytes);
        // SAFETY: no pointers; the driver refuses what it cannot do, such as a part of the memory.
        unsafe { self.api.memory_map(address, bytes as usize, offset as usize, physical.handle, 0)? };
        let physical = Arc::clone(physical);
        state
            .mappings
            .insert(address, Mapping { bytes, users: 1, is_ours: false, has_access: false, physical });
        Ok(())
    }

    /// The pieces that a range of allocations lies in, and where the first begins.
    pub(crate) fn pieces_of(&self, address: u64, bytes: u64) -> CuResult<(u64, Vec<Arc<Physical>>)> {
        let end = address.checked_add(bytes).filter(|end| *end > address).ok_or(CudaError::INVALID_VALUE)?;
        let state = self.lock();
        let mut pieces = Vec::new();
        let (mut at, mut first) = (address, None);
        while at < end {
            let (&from, mapping) = state.mappings.range(..=at).next_back().ok_or(CudaError::INVALID_VALUE)?;
            if from + mapping.bytes <= at || !mapping.is_ours {
                return Err(CudaError::INVALID_VALUE);
            }
            first.get_or_insert(from);
            pieces.push(Arc::clone(&mapping.physical));
            at = from + mapping.bytes;
        }
        Ok((first.unwrap_or(address), pieces))
    }

    /// Frees an allocation when the work before is done.
    pub(crate) fn free(&self, context: Arc<LiveContext>, address: u64) -> CuResult<()> {
        let mut state = self.lock();
        let Some(allocation) = state.allocations.remove(&address) else {
            return Err(CudaError::INVALID_VALUE);
        };
        // A step that it shares with other allocations stays mapped: `leave` only takes this user off its count.
        state.leaving.push((address, address + allocation.bytes));
        let what = Leaving::Allocation { address, bytes: allocation.bytes };
        state.queue.push(Free { context, what });
        self.changed.notify_all();
        Ok(())
    }

    /// The context an allocation was made in.
    pub(crate) fn context_of(&self, address: u64) -> Option<u32> {
        self.lock().allocations.get(&address).map(|allocation| allocation.context)
    }

    /// Frees what a context has allocated. Its work must be done.
    pub(crate) fn free_all_of(&self, context: u32) {
        let mut state = self.lock();
        let gone: Vec<(u64, u64)> = state
            .allocations
            .iter()
            .filter(|(_, allocation)| allocation.context == context)
            .map(|(&address, allocation)| (address, allocation.bytes))
            .collect();
        for (address, bytes) in gone {
            state.allocations.remove(&address);
            self.leave(&mut state, address, bytes);
        }
    }

    /// Unmaps physical memory of the client's (cuMemUnmap) when the work before is done.
    pub(crate) fn unmap_physical(&self, context: Arc<LiveContext>, address: u64, bytes: u64) -> CuResult<()> {
        let mut state = self.lock();
        state.leaving.push((address, address + bytes));
        state.queue.push(Free { context, what: Leaving::Mapped { address, bytes } });
        self.changed.notify_all();
        Ok(())
    }

    /// Lets go of something when the work of all `contexts` before this is done.
    pub(crate) fn let_go(&self, contexts: Vec<Arc<LiveContext>>, kept: Arc<dyn Kept>) {
        let free = |context| Free { context, what: Leaving::Kept(Arc::clone(&kept)) };
        // All in one batch, which waits for all before it ends any.
        self.lock().queue.extend(contexts.into_iter().map(free));
        self.changed.notify_all();
    }

    /// One user less in each mapping of a range; unmaps those that have none.
    fn leave(&self, state: &mut State, address: u64, bytes: u64) {
        let (start, end) = granules(address, bytes);
        let mut at = start;
        while at < end {
            let Some((from, to)) = state.mapping_at(at) else {
                at += GRANULE;
                continue;
            };
            if let Some(mapping) = state.mappings.get_mut(&from) {
                mapping.users = mapping.users.saturating_sub(1);
                if mapping.users == 0 {
                    self.unmap_now(state, from);
                }
            }
            at = to;
        }
    }

    fn unmap_loop(&self) {
        let mut state = self.lock();
        loop {
            if state.closed {
                return;
            }
            if state.queue.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let batch = std::mem::take(&mut state.queue);
            drop(state);
            // Wait until all work of the context before the free is done, as CUDA's own free does.
            let mut last = None;
            for free in &batch {
                if last != Some(Arc::as_ptr(&free.context)) {
                    last = Some(Arc::as_ptr(&free.context));
                    let waited = current::enter(&self.api, free.context.raw())
                        // SAFETY: no pointers.
                        .and_then(|()| unsafe { self.api.context_synchronize() });
                    if let Err(error) = waited {
                        // The context is dead: no work runs in it.
                        tracing::debug!(%error, "freeing memory of a dead context");
                    }
                }
            }
            let (kept, batch): (Vec<_>, Vec<_>) =
                batch.into_iter().partition(|free| matches!(free.what, Leaving::Kept(_)));
            // Without the lock: the driver takes its time to unpin pages.
            drop(kept);
            state = self.lock();
            for free in batch {
                let range = match free.what {
                    Leaving::Kept(_) => continue,
                    Leaving::Allocation { address, bytes } => {
                        self.leave(&mut state, address, bytes);
                        (address, address + bytes)
                    }
                    Leaving::Mapped { address, bytes } => {
                        let inside: Vec<u64> =
                            state.mappings.range(address..address + bytes).map(|(&at, _)| at).collect();
                        inside.into_iter().for_each(|at| self.unmap_now(&mut state, at));
                        (address, address + bytes)
                    }
                };
                if let Some(place) = state.leaving.iter().position(|&leaving| leaving == range) {
                    state.leaving.swap_remove(place);
                }
            }
            self.changed.notify_all();
        }
    }

    /// Waits until freed memory is free.
    fn settled<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while !state.leaving.is_empty() && !state.closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Lets the client allocate up to `bytes` in all without awaiting the answer, if each device has that much to set
    /// aside. Returns by how much that is more than before.
    pub(crate) fn grant(&self, devices: u32, bytes: u64) -> u64 {
        let mut state = self.lock();
        let used =
            (0..devices).filter_map(|device| state.used_bytes.get(&device).copied()).max().unwrap_or(0);
        let bytes = bytes.min(self.limit_bytes().saturating_sub(used)) / GRANULE * GRANULE;
        if bytes <= state.credit_bytes {
            return 0;
        }
        for device in 0..devices {
            if state.reserve.get(&device).is_some_and(|kept| kept.bytes >= bytes) {
                continue;
            }
            match self.make(device, bytes) {
                Ok(physical) => self.set_aside(&mut state, device, physical),
                Err(_) => return 0,
            }
        }
        let granted = bytes - state.credit_bytes;
        state.credit_bytes = bytes;
        granted
    }

    /// Waits until what was freed is free.
    pub(crate) fn settle(&self) {
        drop(self.settled(self.lock()));
    }

    /// Free and total bytes as the session sees them, given those of the device: what is set aside is free for it, and
    /// its limit is all it has.
    pub(crate) fn seen(&self, device: u32, free: u64, total: u64) -> (u64, u64) {
        let state = self.lock();
        let own = state.reserve.get(&device).map_or(0, |physical| physical.bytes) + state.lent(device);
        // An online session gets what guests have, if it needs it.
        let free = free.saturating_add(self.guest_bytes()).min(self.quota_free(device)) + own;
        let used = state.used_bytes.get(&device).copied().unwrap_or(0);
        (free.min(self.limit_bytes().saturating_sub(used)), total.min(self.limit_bytes()))
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

impl State {
    /// Takes an allocation out of the credit. True when it was within it.
    fn spend(&mut self, bytes: u64) -> bool {
        let is_credited = bytes <= self.credit_bytes;
        self.credit_bytes = self.credit_bytes.saturating_sub(bytes);
        is_credited
    }

    fn lent(&self, device: u32) -> u64 {
        self.lent_bytes.get(&device).copied().unwrap_or(0)
    }

    fn give(&mut self, device: u32, bytes: u64) {
        if let Some(used) = self.used_bytes.get_mut(&device) {
            *used = used.saturating_sub(bytes);
        }
    }

    /// Start and end of the mapping that holds `address`.
    fn mapping_at(&self, address: u64) -> Option<(u64, u64)> {
        let (&from, mapping) = self.mappings.range(..=address).next_back()?;
        (address < from + mapping.bytes).then_some((from, from + mapping.bytes))
    }
}

/// The steps that hold a range.
fn granules(address: u64, bytes: u64) -> (u64, u64) {
    (address / GRANULE * GRANULE, (address + bytes).next_multiple_of(GRANULE))
}
