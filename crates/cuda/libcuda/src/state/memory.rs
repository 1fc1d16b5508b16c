//! Device memory as the client placed it: every allocation of one worker's devices, by address.

use super::{Context, Device, FreedBlock, client, lock, squeeze_pools};
use crate::reserve::Reserved;
use cuda_abi::{CuResult, CudaError};
use cuda_client::{
    addresses::{AddressSpace, CHUNK_BYTES, Kind},
    managed::BLOCK_BYTES,
    suballocator::Block,
};
use cuda_wire::{Command, MemoryHandleId, VaRange};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

/// What lies in a range of device addresses.
#[derive(Clone, Debug)]
pub(crate) struct Allocation {
    /// First address.
    pub(crate) base: u64,
    /// Bytes.
    pub(crate) bytes: u64,
    /// How it came to be.
    pub(crate) kind: AllocationKind,
    /// The context it was made in, as a handle.
    pub(crate) context: u64,
    /// The device its bytes are on.
    pub(crate) device: usize,
    /// A number no other allocation of the process ever had.
    pub(crate) buffer: u64,
}

impl Allocation {
    /// The same as a block of a pool, if it is one.
    pub(crate) fn as_block(&self) -> Option<FreedBlock> {
        let AllocationKind::Pool { pool, block } = self.kind else { return None };
        Some(FreedBlock { pool, context: self.context, block: Block { address: self.base, number: block } })
    }
}

/// How device memory came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocationKind {
    /// cuMemAlloc.
    Plain,
    /// cuMemAllocAsync.
    Pool {
        /// Handle of the pool.
        pool: u64,
        /// Number of the block in its heap.
        block: u32,
    },
    /// A variable of a module; the driver placed it.
    Variable,
    /// The same declared `__managed__`: this process has pages there, too.
    ManagedVariable,
    /// Physical memory mapped into a reservation.
    Mapped {
        /// Handle of the physical memory.
        physical: u64,
        /// `CUmemAccess_flags` of its device, 0 until set.
        access: u32,
    },
    /// Memory of a graph's allocation node.
    Graph,
    /// cuMemAllocManaged: this process has pages there, too.
    Managed,
    /// The same by cuMemHostAlloc with `CU_MEMHOSTALLOC_DEVICEMAP`: to the program it is memory of the host.
    MappedHost {
        /// What the program asked for.
        flags: u32,
    },
    /// Host memory that the program has registered, with device memory behind it at the same addresses.
    RegisteredHost {
        /// What the program asked for.
        flags: u32,
    },
    /// Memory of another process.
    Imported {
        /// Where what is mapped begins.
        at: u64,
    },
}

impl AllocationKind {
    /// Whether it belongs to a module.
    fn is_variable(self) -> bool {
        matches!(self, Self::Variable | Self::ManagedVariable)
    }

    /// The flags of what is memory of the host to the program.
    pub(crate) fn host_flags(self) -> Option<u32> {
        match self {
            Self::MappedHost { flags } | Self::RegisteredHost { flags } => Some(flags),
            _ => None,
        }
    }

    /// Whether it is managed memory to the program.
    pub(crate) fn is_managed(self) -> bool {
        matches!(self, Self::Managed | Self::ManagedVariable)
    }
}

/// Physical memory made by cuMemCreate.
pub(crate) struct Physical {
    /// Its handle.
    pub(crate) handle: u64,
    /// Its name on the worker.
    pub(crate) id: MemoryHandleId,
    /// Bytes.
    pub(crate) bytes: u64,
    /// The device it is on.
    pub(crate) device: usize,
    /// `CUmemAllocationProp` it was made with, as the program gave it.
    pub(crate) properties: cuda_abi::CUmemAllocationProp,
    /// cuMemCreate and cuMemRetainAllocationHandle count up, cuMemRelease down.
    pub(crate) references: AtomicU32,
}

/// The addresses of one worker's devices.
pub(crate) struct DeviceMemory {
    reserved: Reserved,
    state: Mutex<State>,
    /// Whether anything lies outside of the range: variables that the driver has placed, or registered host memory.
    has_strays: AtomicBool,
}

struct State {
    space: AddressSpace,
    allocations: BTreeMap<u64, Allocation>,
    /// Reservations of cuMemAddressReserve: base to bytes.
    reservations: BTreeMap<u64, u64>,
    /// Where variables lie that a driver placed outside of the range: first address to the keeper of the pages. They
    /// stay when their module goes: the driver may use the place again.
    strays: BTreeMap<u64, Reserved>,
    /// Registered host memory: base to bytes.
    registered: BTreeMap<u64, u64>,
    /// Addresses that the worker keeps free for such memory, for as long as it is there: base to bytes.
    kept: BTreeMap<u64, u64>,
}

/// Registered memory often lies close together. Memory that lies in two kept ranges could not be mapped.
const KEPT_BYTES: u64 = 1 << 30;

/// Drivers give modules memory in pages of this size.
const STRAY_BYTES: u64 = 2 << 20;

static NEXT_BUFFER: AtomicU64 = AtomicU64::new(1);

impl DeviceMemory {
    pub(super) fn new(reserved: Reserved) -> Self {
        let space = AddressSpace::new(reserved.range());
        let (allocations, reservations, strays, registered, kept) = Default::default();
        let state = State { space, allocations, reservations, strays, registered, kept };
        Self { reserved, state: Mutex::new(state), has_strays: AtomicBool::new(false) }
    }

    /// Whether an address is a device address.
    #[inline]
    pub(crate) fn holds(&self, address: u64) -> bool {
        let range = self.reserved.range();
        address.wrapping_sub(range.base) < range.bytes || self.holds_stray(address)
    }

    #[inline]
    fn holds_stray(&self, address: u64) -> bool {
        self.has_strays.load(Ordering::Acquire) && lock(&self.state).is_elsewhere(address)
    }

    /// Places an allocation. The caller tells the worker.
    pub(crate) fn place(&self, context: &Context, bytes: u64, kind: AllocationKind) -> CuResult<u64> {
        let mut state = lock(&self.state);
        let device = context.device as u32;
        let base = match kind {
            AllocationKind::Managed | AllocationKind::MappedHost { .. } => {
                state.space.allocate_pages(bytes, device, 0)?
            }
            _ => state.space.allocate(bytes, Kind::Memory, device, 0)?,
        };
        state.note(base, bytes, kind, context);
        Ok(base)
    }

    /// Whether the worker keeps a range for us, in one piece.
    pub(super) fn is_kept(&self, base: u64, bytes: u64) -> bool {
        let state = lock(&self.state);
        let before = state.kept.range(..=base).next_back();
        before.is_some_and(|(start, count)| base + bytes <= start + count)
    }

    /// What the worker may be asked to keep for a range, the best first. None of it is kept yet.
    pub(super) fn keepable(&self, base: u64, bytes: u64) -> Vec<VaRange> {
        let state = lock(&self.state);
        let rounded = [KEPT_BYTES, CHUNK_BYTES].map(|step| {
            let start = base / step * step;
            VaRange { base: start, bytes: (base + bytes).next_multiple_of(step) - start }
        });
        let is_free = |range: &VaRange| {
            let before = state.kept.range(..range.base + range.bytes).next_back();
            before.is_none_or(|(start, count)| start + count <= range.base)
        };
        rounded.into_iter().filter(is_free).collect()
    }

    /// The worker keeps it.
    pub(super) fn note_kept(&self, range: VaRange) {
        lock(&self.state).kept.insert(range.base, range.bytes);
    }

    /// Notes registered host memory, whose device memory the worker has made.
    pub(super) fn note_registered(&self, context: &Context, base: u64, bytes: u64, flags: u32) {
        let mut state = lock(&self.state);
        state.note(base, bytes, AllocationKind::RegisteredHost { flags }, context);
        state.registered.insert(base, bytes);
        self.has_strays.store(true, Ordering::Release);
    }

    /// Whether such memory starts here.
    pub(super) fn is_registered(&self, base: u64) -> bool {
        self.has_strays.load(Ordering::Acquire) && lock(&self.state).registered.contains_key(&base)
    }

    /// Whether any of a range is host memory at one address.
    pub(crate) fn meets_registered(&self, base: u64, bytes: u64) -> bool {
        let state = lock(&self.state);
        let before = state.registered.range(..base.saturating_add(bytes)).next_back();
        before.is_some_and(|(at, count)| at + count > base)
    }

    /// Forgets it.
    pub(super) fn forget_registered(&self, base: u64) {
        let mut state = lock(&self.state);
        if state.registered.remove(&base).is_some() {
            state.allocations.remove(&base);
        }
    }

    /// Takes an allocation of cuMemAlloc, a graph or a pool out of the table; the address may be used again later. The
    /// caller gives a pool's block back to its pool.
    pub(crate) fn remove(&self, base: u64) -> CuResult<Allocation> {
        let mut state = lock(&self.state);
        match state.allocations.get(&base).map(|allocation| allocation.kind) {
            Some(
                AllocationKind::Plain
                | AllocationKind::Graph
                | AllocationKind::Managed
                | AllocationKind::MappedHost { .. },
            ) => {
                state.space.free(base);
            }
            Some(AllocationKind::Pool { .. }) => {}
            _ => return Err(CudaError::INVALID_VALUE),
        }
        state.allocations.remove(&base).ok_or(CudaError::INVALID_VALUE)
    }

    /// Notes a block of a pool.
    pub(crate) fn note_block(&self, context: &Context, bytes: u64, pool: u64, block: Block) {
        let kind = AllocationKind::Pool { pool, block: block.number };
        lock(&self.state).note(block.address, bytes, kind, context);
    }

    /// Takes a block of a pool out of the table; the caller gives it back to its pool. `None` if no block starts here.
    pub(crate) fn take_block(&self, base: u64) -> Option<FreedBlock> {
        let mut state = lock(&self.state);
        let Entry::Occupied(entry) = state.allocations.entry(base) else { return None };
        let freed = entry.get().as_block()?;
        entry.remove();
        Some(freed)
    }

    /// Places memory of another process: `bytes` from `offset` on of a range of `span`. Returns where the range begins.
    pub(super) fn place_import(
        &self,
        context: &Context,
        device: usize,
        span: u64,
        offset: u64,
        bytes: u64,
    ) -> CuResult<u64> {
        let mut state = lock(&self.state);
        let at = state.space.allocate(span, Kind::Memory, device as u32, 0)?;
        let buffer = NEXT_BUFFER.fetch_add(1, Ordering::Relaxed);
        let (base, context, kind) = (at + offset, context.handle, AllocationKind::Imported { at });
        state.allocations.insert(base, Allocation { base, bytes, kind, context, device, buffer });
        Ok(at)
    }

    /// Forgets it.
    pub(super) fn remove_import(&self, base: u64) {
        let mut state = lock(&self.state);
        if let Some(AllocationKind::Imported { at }) = state.allocations.get(&base).map(|known| known.kind) {
            state.allocations.remove(&base);
            state.space.free(at);
        }
    }

    /// Addresses for a pool to map memory in.
    pub(super) fn reserve_arena(&self, context: &Context, bytes: u64) -> CuResult<u64> {
        lock(&self.state).space.allocate(bytes, Kind::PoolMemory, context.device as u32, 0)
    }

    /// Gives the addresses of an arena back.
    pub(super) fn free_arena(&self, base: u64) {
        lock(&self.state).space.free(base);
    }

    /// The allocation that holds an address.
    pub(crate) fn find(&self, address: u64) -> Option<Allocation> {
        let state = lock(&self.state);
        let (_, allocation) = state.allocations.range(..=address).next_back()?;
        (address - allocation.base < allocation.bytes).then(|| allocation.clone())
    }

    /// Fails unless `bytes` from `address` on lie in allocations without a gap.
    pub(crate) fn check_range(&self, address: u64, bytes: u64) -> CuResult<()> {
        let state = lock(&self.state);
        let end = address.checked_add(bytes).ok_or(CudaError::INVALID_VALUE)?;
        let mut at = address;
        while at < end {
            let (_, allocation) =
                state.allocations.range(..=at).next_back().ok_or(CudaError::INVALID_VALUE)?;
            let allocation_end = allocation.base + allocation.bytes;
            if allocation_end <= at {
                return Err(CudaError::INVALID_VALUE);
            }
            at = allocation_end;
        }
        Ok(())
    }

    /// Notes a variable that the driver placed. Fails where this process has memory of its own: the address would mean
    /// two things.
    pub(super) fn note_variable(
        &self,
        address: u64,
        bytes: u64,
        kind: AllocationKind,
        context: &Context,
    ) -> CuResult<()> {
        let mut state = lock(&self.state);
        let range = self.reserved.range();
        let mut at = address / STRAY_BYTES * STRAY_BYTES;
        while at < address + bytes {
            if at.wrapping_sub(range.base) >= range.bytes && !state.stray_at(at) {
                let Some(pages) = Reserved::exactly(at, STRAY_BYTES) else {
                    crate::log::error(&format!(
                        "a variable of a module lies at {address:#x}, where this program has memory of its own; start \
                         the program again, which moves its memory"
                    ));
                    return Err(CudaError::OUT_OF_MEMORY);
                };
                state.strays.insert(at, pages);
                self.has_strays.store(true, Ordering::Release);
            }
            at += STRAY_BYTES;
        }
        state.note(address, bytes, kind, context);
        Ok(())
    }

    pub(super) fn forget_variable(&self, address: u64) {
        let mut state = lock(&self.state);
        if state.allocations.get(&address).is_some_and(|known| known.kind.is_variable()) {
            state.allocations.remove(&address);
        }
    }

    /// Forgets what a context held, but for other processes' memory. Mapped memory belongs to the process and stays.
    pub(super) fn forget_context(&self, context: u64) {
        let mut state = lock(&self.state);
        let gone: Vec<u64> = state
            .allocations
            .values()
            .filter(|known| {
                known.context == context
                    && !matches!(known.kind, AllocationKind::Mapped { .. } | AllocationKind::Imported { .. })
            })
            .map(|known| known.base)
            .collect();
        for base in gone {
            if let Some(known) = state.allocations.remove(&base)
                && !known.kind.is_variable()
                && !matches!(known.kind, AllocationKind::Pool { .. })
            {
                state.space.free(base);
            }
        }
    }

    /// cuMemAddressReserve.
    pub(crate) fn reserve(&self, bytes: u64, alignment: u64, hint: u64) -> CuResult<u64> {
        let mut state = lock(&self.state);
        let base = state.space.reserve(bytes, alignment, hint, 0)?;
        state.reservations.insert(base, bytes);
        Ok(base)
    }

    /// cuMemAddressFree.
    pub(crate) fn unreserve(&self, base: u64, bytes: u64) -> CuResult<()> {
        let mut state = lock(&self.state);
        if state.reservations.get(&base) != Some(&bytes) || state.mapped_in(base, bytes).next().is_some() {
            return Err(CudaError::INVALID_VALUE);
        }
        state.reservations.remove(&base);
        state.space.free_reservation(base, bytes)
    }

    /// cuMemMap.
    pub(crate) fn map(&self, address: u64, bytes: u64, offset: u64, physical: &Physical) -> CuResult<()> {
        let mut state = lock(&self.state);
        let inside = state.is_reserved(address, bytes);
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= physical.bytes);
        if !fits {
            return Err(CudaError::NOT_SUPPORTED);
        }
        if !inside || bytes == 0 || state.mapped_in(address, bytes).next().is_some() {
            return Err(CudaError::INVALID_VALUE);
        }
        let allocation = Allocation {
            base: address,
            bytes,
            kind: AllocationKind::Mapped { physical: physical.handle, access: 0 },
            context: 0,
            device: physical.device,
            buffer: NEXT_BUFFER.fetch_add(1, Ordering::Relaxed),
        };
        state.allocations.insert(address, allocation);
        Ok(())
    }

    /// cuMemUnmap: whole mappings only; where nothing is mapped there is nothing to do. Returns the physical memory they were of.
    pub(crate) fn unmap(&self, address: u64, bytes: u64) -> CuResult<Vec<u64>> {
        let mut state = lock(&self.state);
        if state.is_reserved(address, bytes) && state.mapped_in(address, bytes).next().is_none() {
            return Ok(Vec::new());
        }
        let mappings = state.whole_mappings(address, bytes)?;
        let physical = |known: Allocation| match known.kind {
            AllocationKind::Mapped { physical, .. } => Some(physical),
            _ => None,
        };
        Ok(mappings
            .into_iter()
            .filter_map(|base| state.allocations.remove(&base))
            .filter_map(physical)
            .collect())
    }

    /// cuMemSetAccess, for the device that holds the memory. Returns false when another device is meant.
    pub(crate) fn set_access(&self, address: u64, bytes: u64, flags: u32) -> CuResult<()> {
        let mut state = lock(&self.state);
        for base in state.whole_mappings(address, bytes)? {
            if let Some(AllocationKind::Mapped { access, .. }) =
                state.allocations.get_mut(&base).map(|a| &mut a.kind)
            {
                *access = flags;
            }
        }
        Ok(())
    }
}

impl State {
    /// Whether an address outside of the range is a device address.
    fn is_elsewhere(&self, address: u64) -> bool {
        let registered = self.registered.range(..=address).next_back();
        self.stray_at(address) || registered.is_some_and(|(base, bytes)| address - base < *bytes)
    }

    fn stray_at(&self, address: u64) -> bool {
        let stray = self.strays.range(..=address).next_back();
        stray.is_some_and(|(&start, _)| address - start < STRAY_BYTES)
    }

    fn note(&mut self, base: u64, bytes: u64, kind: AllocationKind, context: &Context) {
        let buffer = NEXT_BUFFER.fetch_add(1, Ordering::Relaxed);
        let allocation =
            Allocation { base, bytes, kind, context: context.handle, device: context.device, buffer };
        self.allocations.insert(base, allocation);
    }

    fn is_reserved(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        self.reservations.range(..=address).next_back().is_some_and(|(base, reserved)| end <= base + reserved)
    }

    fn mapped_in(&self, address: u64, bytes: u64) -> impl Iterator<Item = &Allocation> {
        let end = address.saturating_add(bytes);
        self.allocations
            .range(..end)
            .rev()
            .take_while(move |(_, known)| known.base + known.bytes > address)
            .map(|(_, a)| a)
    }

    /// The mappings that fill a range exactly.
    fn whole_mappings(&self, address: u64, bytes: u64) -> CuResult<Vec<u64>> {
        let end = address.checked_add(bytes).ok_or(CudaError::INVALID_VALUE)?;
        let mut at = address;
        let mut found = Vec::new();
        while at < end {
            let known = self.allocations.get(&at).ok_or(CudaError::INVALID_VALUE)?;
            if !matches!(known.kind, AllocationKind::Mapped { .. }) {
                return Err(CudaError::INVALID_VALUE);
            }
            found.push(at);
            at += known.bytes;
        }
        if at == end && !found.is_empty() { Ok(found) } else { Err(CudaError::INVALID_VALUE) }
    }
}

/// The device memory that an address lies in, if it is a device address.
pub(crate) fn memory_of(address: u64) -> Option<&'static Device> {
    let client = client().ok()?;
    let first = client.devices.iter().find(|device| device.memory.holds(address))?;
    // Several devices of one worker share addresses: the allocation names the device that owns the bytes.
    let owner = first.memory.find(address).and_then(|known| client.devices.get(known.device));
    Some(owner.unwrap_or(first))
}

/// Whether an address is a device address of any worker.
#[inline]
pub(crate) fn is_device_address(address: u64) -> bool {
    client().is_ok_and(|client| client.devices.iter().any(|device| device.memory.holds(address)))
}

/// The bytes that an allocation of `bytes` takes. GPUs round up to this size, and some programs read a little past the
/// end of what they allocated.
pub(crate) fn padded(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(512).unwrap_or(bytes)
}

/// Allocates device memory in a context.
pub(crate) fn allocate(context: &Arc<Context>, bytes: u64) -> CuResult<u64> {
    allocate_as(context, bytes, AllocationKind::Plain)
}

/// The same for memory of a kind.
pub(super) fn allocate_as(context: &Arc<Context>, bytes: u64, kind: AllocationKind) -> CuResult<u64> {
    let device = context.device()?;
    if bytes > device.info.memory_bytes {
        return Err(CudaError::OUT_OF_MEMORY);
    }
    let address = device.memory.place(context, bytes, kind)?;
    let bytes = match kind {
        AllocationKind::Managed | AllocationKind::MappedHost { .. } => {
            bytes.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(bytes)
        }
        _ => padded(bytes),
    };
    let command = Command::MemoryAllocate { context: context.id, address, bytes };
    let told = or_squeeze(device, || context.settle(context.link.allocate(&command, bytes)));
    if told.is_err() {
        let _ = device.memory.remove(address);
    }
    told.map(|()| address)
}

/// Frees device memory that any call of the program, or this library itself, has allocated.
pub(crate) fn free_device_memory(address: u64) -> CuResult<()> {
    if let Some(context) = super::current() {
        context.check_alive()?;
    }
    super::forbid_unsafe_call()?;
    let device = memory_of(address).ok_or(CudaError::INVALID_VALUE)?;
    if device.memory.is_registered(address) {
        return Err(CudaError::INVALID_VALUE);
    }
    if super::free_graph_memory(address)? {
        return device.link.post(&Command::MemoryFree { address });
    }
    if super::free_imported(address)? {
        return Ok(());
    }
    // Before the address can be used again.
    super::managed::free_managed(address);
    let allocation = device.memory.remove(address)?;
    super::forget_shared(&allocation);
    let block = allocation.as_block();
    if let Some(block) = block {
        block.free()?;
    }
    if let Ok(context) = Context::find(allocation.context) {
        context.check()?;
    }
    if block.is_some() {
        return Ok(());
    }
    device.link.post(&Command::MemoryFree { address })
}

/// Asks a worker for memory; a second time where the device has none and pools gave some back.
pub(crate) fn or_squeeze<T>(device: &Device, ask: impl Fn() -> CuResult<T>) -> CuResult<T> {
    match ask() {
        Err(CudaError::OUT_OF_MEMORY) if squeeze_pools(device.ordinal) => ask(),
        answer => answer,
    }
}
