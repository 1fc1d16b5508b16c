//! The driver trait of one session.

use crate::{
    config::SoftConfig,
    context::Context,
    device_info,
    line::{Line, Place},
    memory::{GRANULE, Mapping, Physical, Region},
    op::OwnedOp,
    promises::Promise,
    ranges::Ranges,
    retire::What,
    session::{Session, Tables, VARIABLE_SLOT_BYTES, VARIABLE_SLOTS},
    sharing_gate::SharingGate,
    space::{Access, Block, Held, PhysicalMemory, READ, WRITE},
    sync::lock,
    turns::Turn,
    work::PendingBlock,
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{
    DRIVER_VA_BYTES, Driver, Exports, HostLink, LimitOf, PageHandle, PendingRead, SharedPages, Snapshots,
    Ticket, WaitTarget,
};
use cuda_wire::{
    ContextId, DeviceInfo, EventId, KernelRef, MemoryHandleId, Op, Plane, RegionId, Shape, StreamId, VaRange,
};
use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

/// `CUDA_VERSION` that the soft driver serves.
pub(crate) const CUDA_VERSION: i32 = 13000;

/// A CUDA driver in software, for one session.
///
/// Dropping it ends everything: it stops kernels, waits for its threads and unmaps all memory. Streams that are inside a
/// [`HostLink`] call end when that call returns, so break the link first.
pub struct SoftDriver {
    pub(crate) session: Arc<Session>,
}

impl SoftDriver {
    /// A driver with fresh devices.
    pub fn new(config: SoftConfig) -> Self {
        Self { session: Session::new(config) }
    }
}

impl std::fmt::Debug for SoftDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoftDriver").field("config", &self.session.config).finish_non_exhaustive()
    }
}

impl Drop for SoftDriver {
    fn drop(&mut self) {
        self.session.abort();
        self.session.join();
    }
}

impl Driver for SoftDriver {
    fn devices(&self) -> Vec<DeviceInfo> {
        let device = |ordinal| {
            let total_bytes = self.session.ledger.total(ordinal as usize);
            let info = device_info::of(&self.session.config, ordinal);
            DeviceInfo { memory_bytes: info.memory_bytes.min(total_bytes), ..info }
        };
        (0..self.session.config.devices).map(device).collect()
    }

    fn fault(&self) -> Option<CudaError> {
        self.session.merged_fault()
    }

    fn take_message(&self) -> Option<String> {
        self.session.take_message()
    }

    fn cuda_version(&self) -> i32 {
        CUDA_VERSION
    }

    fn build(&self) -> String {
        self.session.config.build.clone()
    }

    fn reserve_addresses(&self, candidates: &[VaRange]) -> Option<VaRange> {
        for &range in candidates {
            if range.bytes <= DRIVER_VA_BYTES {
                continue;
            }
            let Ok(region) = Region::reserve(range.base, range.bytes) else { continue };
            if !self.session.space.set_region(region) {
                return None;
            }
            let internal = range.base + range.bytes - DRIVER_VA_BYTES;
            *lock(&self.session.internal) =
                Ranges::with_next(internal, DRIVER_VA_BYTES, internal + VARIABLE_SLOTS * VARIABLE_SLOT_BYTES);
            self.session.variables_at.store(internal, Ordering::Relaxed);
            return Some(range);
        }
        None
    }

    fn attach(&self, link: Arc<dyn HostLink>) {
        self.session.attach(link);
    }

    fn poll(&self, target: WaitTarget) -> CuResult<bool> {
        let goal = self.session.goal(target)?;
        let is_done = goal.places.iter().all(Place::is_reached)
            && goal.record.as_ref().is_none_or(|record| record.reached_at().is_some());
        goal.context.check()?;
        Ok(is_done)
    }

    fn wait(&self, target: WaitTarget) -> CuResult<()> {
        let goal = self.session.goal(target)?;
        goal.places.iter().try_for_each(Place::wait)?;
        if let Some(record) = &goal.record {
            record.wait()?;
        }
        goal.context.check()
    }

    fn read_back_begin(
        &self,
        stream: StreamId,
        source: Plane,
        shape: Shape,
    ) -> CuResult<Box<dyn PendingRead>> {
        Ok(Box::new(self.session.read_back(stream, source, shape)?))
    }

    fn take_deferred(&self) -> Option<(ContextId, CudaError)> {
        self.session.take_deferred()
    }

    fn grant_memory_credit(&self) -> u64 {
        self.session.account.grant()
    }

    fn limit_memory(&self, bytes: u64, of: LimitOf) {
        match of {
            LimitOf::Session => self.session.ledger.limit_own(bytes),
            LimitOf::Lease => self.session.ledger.limit(bytes),
        }
    }

    fn page(&self) -> Option<PageHandle> {
        self.session.config.page.clone()
    }

    fn share(&self, ticket: Ticket) -> CuResult<()> {
        self.session.share(ticket);
        Ok(())
    }

    fn quiet(&self) -> CuResult<bool> {
        Ok(lock(&self.session.tables).all_busy_ends().is_empty())
    }

    fn waits_at_gate(&self) -> bool {
        self.session.sharing_gate.get().is_some_and(SharingGate::holds_back)
    }

    fn rests(&self) -> bool {
        self.session.sharing_gate.get().is_none_or(SharingGate::rests)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn exports(&self) -> Option<&dyn Exports> {
        Some(self)
    }

    fn share_host(&self, region: RegionId, pages: Arc<SharedPages>) -> CuResult<()> {
        lock(&self.session.tables).shared.insert(region, pages);
        Ok(())
    }

    /// Work that is not done keeps the memory by itself.
    fn unshare_host(&self, region: RegionId) {
        lock(&self.session.tables).shared.remove(&region);
    }

    fn abort(&self) {
        self.session.abort();
    }
}

/// What a wait waits for.
struct Goal {
    context: Arc<Context>,
    places: Vec<Place>,
    record: Option<Arc<crate::line::Record>>,
}

impl Session {
    fn goal(&self, target: WaitTarget) -> CuResult<Goal> {
        let mut tables = lock(&self.tables);
        Ok(match target {
            WaitTarget::Context(id) => {
                let context = self.context_dead_or_alive(&mut tables, id)?;
                let places = tables.busy_ends(context.life, |_| true);
                Goal { context, places, record: None }
            }
            WaitTarget::Stream(id) => {
                let line = tables.stream(id)?;
                // A wait for the legacy stream also waits for the streams that it is ordered after.
                let mut places = match line.kind {
                    crate::line::LineKind::Legacy => tables.implicit_order(&line),
                    _ => Vec::new(),
                };
                places.push(line.end());
                Goal { context: line.context.clone(), places, record: None }
            }
            WaitTarget::Event(id) => {
                let event = tables.event(id)?;
                Goal { context: event.context.clone(), places: Vec::new(), record: event.current() }
            }
        })
    }

    /// The first address that belongs to the driver.
    pub(crate) fn client_end(&self) -> u64 {
        self.space.region().map_or(0, |region| region.end() - DRIVER_VA_BYTES)
    }

    /// Ends a context's life: its names go now, its memory when its work is done.
    pub(crate) fn end_life(&self, tables: &mut Tables, context: &Arc<Context>) {
        let life = context.life;
        let after = tables.all_busy_ends();
        tables.streams.retain(|_, line| line.context.life != life);
        tables.events.retain(|_, event| event.context.life != life);
        tables.execs.retain(|_, exec| exec.context.life != life);
        tables.promises.remove_life(life);
        let mut ended = Vec::new();
        tables.modules.retain(|_, module| {
            let goes = module.context.life == life;
            if goes {
                ended.push(module.clone());
            }
            !goes
        });
        let arrays: Vec<_> = tables.arrays.extract_if(|_, array| array.life == life).collect();
        let objects: Vec<_> = tables.samplers.extract_if(|_, object| object.life == life).collect();
        tables.greens.retain(|_, green| green.life != life);
        tables.contexts.remove(&context.id);
        for (_, object) in objects {
            self.retire(object.going(), after.clone());
        }
        for (_, array) in arrays {
            let (address, bytes) = (array.address, array.bytes);
            self.retire(What::Internal { address, bytes }, after.clone());
        }
        for module in ended {
            self.retire_module(&module, after.clone());
        }
        if let Some((address, bytes)) = crate::heap::take(context) {
            self.retire(What::Internal { address, bytes }, after.clone());
        }
        self.retire(What::Life(life), after);
        // Lines with work stay in `lines` for waits on them; new work cannot reach them.
        if let Some(lines) = tables.lines.get_mut(&life) {
            lines.retain(|line| !line.is_idle());
            if lines.is_empty() {
                tables.lines.remove(&life);
            }
        }
    }

    pub(crate) fn find_kernel(
        tables: &Tables,
        kernel: KernelRef,
    ) -> CuResult<Arc<crate::module::LoadedKernel>> {
        let module = tables.modules.get(&kernel.module).ok_or(CudaError::INVALID_HANDLE)?;
        module.kernels.get(kernel.index as usize).cloned().ok_or(CudaError::INVALID_HANDLE)
    }

    /// Owns an op; its kernel is looked up now.
    pub(crate) fn own(&self, op: Op<'_>) -> CuResult<OwnedOp> {
        let shared =
            |region| lock(&self.tables).shared.get(&region).cloned().ok_or(CudaError::INVALID_HANDLE);
        OwnedOp::new(self.op_in_memory(op)?, |kernel| Self::find_kernel(&lock(&self.tables), kernel), shared)
    }

    pub(crate) fn allocate(&self, context: ContextId, address: u64, bytes: u64) -> CuResult<()> {
        let mut tables = lock(&self.tables);
        let context = self.context_dead_or_alive(&mut tables, context)?;
        // Drawn from the credit whatever the outcome: the client counts so too.
        let device = context.device as usize;
        let mut charge = self.account.charge_from_credit(device, bytes);
        context.check()?;
        self.check_client_range(address, bytes)?;
        let turn = self.space.turns.take(address, bytes);
        let promise = Promise { bytes, life: context.life, turn: turn.number(), is_mapped: false };
        tables.promises.add(address, promise)?;
        drop(tables);
        if charge.is_none() {
            self.drain()?;
            charge = self.account.charge(device, bytes);
        }
        if charge.is_none() {
            charge = self.wait_for_memory(context.device, bytes, || self.account.charge(device, bytes));
        }
        let outcome = charge.ok_or(CudaError::OUT_OF_MEMORY).and_then(|charge| {
            let (device, life) = (context.device, context.life);
            self.map_pending(PendingBlock { turn, device, life, charge })
        });
        if outcome.is_err() {
            lock(&self.tables).promises.remove(address);
        }
        outcome
    }

    pub(crate) fn create_physical(&self, handle: MemoryHandleId, device: u32, bytes: u64) -> CuResult<()> {
        self.check_device(device)?;
        let mut charge = self.account.charge_from_credit(device as usize, bytes);
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) || lock(&self.tables).physical.contains_key(&handle) {
            return Err(CudaError::INVALID_VALUE);
        }
        if charge.is_none() {
            self.drain()?;
            charge = self.account.charge(device as usize, bytes);
        }
        if charge.is_none() {
            charge = self.wait_for_memory(device, bytes, || self.account.charge(device as usize, bytes));
        }
        let charge = charge.ok_or(CudaError::OUT_OF_MEMORY)?;
        let pages = Physical::create(bytes).map_err(|_| CudaError::OUT_OF_MEMORY)?;
        let memory = Arc::new(PhysicalMemory { pages, device, _charge: Some(charge) });
        lock(&self.tables).physical.insert(handle, memory);
        Ok(())
    }

    pub(crate) fn map_physical(
        &self,
        address: u64,
        bytes: u64,
        offset: u64,
        handle: MemoryHandleId,
    ) -> CuResult<()> {
        self.check_client_range(address, bytes)?;
        let mut tables = lock(&self.tables);
        let physical = tables.physical.get(&handle).cloned().ok_or(CudaError::INVALID_HANDLE)?;
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= physical.pages.bytes());
        if !fits || [address, bytes, offset].iter().any(|value| !value.is_multiple_of(GRANULE)) {
            return Err(CudaError::INVALID_VALUE);
        }
        let turn = self.space.turns.take(address, bytes);
        tables.promises.add(address, Promise { bytes, life: 0, turn: turn.number(), is_mapped: true })?;
        drop(tables);
        let outcome = self.map_physical_in_turn(&turn, offset, physical);
        if outcome.is_err() {
            lock(&self.tables).promises.remove(address);
        }
        outcome
    }

    fn map_physical_in_turn(&self, turn: &Turn, offset: u64, physical: Arc<PhysicalMemory>) -> CuResult<()> {
        if !self.space.wait_for(turn, || self.must_give_up()) {
            return Err(CudaError::DEVICE_UNAVAILABLE);
        }
        let region = self.space.region_of(turn.start, turn.bytes).ok_or(CudaError::INVALID_VALUE)?;
        let mapping = Mapping::shared(&region, turn.start, turn.bytes, &physical.pages, offset)
            .map_err(|_| CudaError::OUT_OF_MEMORY)?;
        let access = (0..self.config.devices).map(|_| AtomicU8::new(0)).collect();
        self.space.insert(Block {
            mapping,
            device: physical.device,
            life: 0,
            access: Access::Granted(access),
            turn: turn.number(),
            held: Held::Physical(physical, offset),
        });
        Ok(())
    }

    pub(crate) fn unmap_physical(&self, address: u64, bytes: u64) -> CuResult<()> {
        let mut tables = lock(&self.tables);
        let starts = tables.promises.filling(address, bytes).ok_or(CudaError::INVALID_VALUE)?;
        if !starts.iter().all(|&start| tables.promises.get(start).is_some_and(|promise| promise.is_mapped)) {
            return Err(CudaError::INVALID_VALUE);
        }
        let after = tables.all_busy_ends();
        let promises: Vec<_> =
            starts.iter().filter_map(|&at| Some((at, tables.promises.remove(at)?))).collect();
        drop(tables);
        for (address, promise) in promises {
            // Its bytes stay charged to the handle, so none become free by this.
            self.retire(What::Block { address, turn: promise.turn, device: 0, bytes: 0 }, after.clone());
        }
        Ok(())
    }

    pub(crate) fn set_access(&self, address: u64, bytes: u64, device: u32, protection: u32) -> CuResult<()> {
        self.check_device(device)?;
        let allowed = match protection {
            0 => 0,
            1 => READ,
            3 => READ | WRITE,
            _ => return Err(CudaError::INVALID_VALUE),
        };
        let tables = lock(&self.tables);
        let starts = tables.promises.filling(address, bytes).ok_or(CudaError::INVALID_VALUE)?;
        for block in starts.into_iter().filter_map(|start| self.space.find(start)) {
            let Access::Granted(devices) = &block.access else { return Err(CudaError::INVALID_VALUE) };
            devices[device as usize].store(allowed, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Milliseconds between two records.
    pub(crate) fn elapsed(&self, start: EventId, end: EventId) -> CuResult<f32> {
        let mut tables = lock(&self.tables);
        let mut records = Vec::new();
        for id in [start, end] {
            let event = tables.event(id)?;
            event.context.check()?;
            let record = event.latest.clone().filter(|_| event.has_timing);
            records.push(record.ok_or(CudaError::INVALID_HANDLE)?);
        }
        let reached = |index: usize| records[index].reached_at().ok_or(CudaError::NOT_READY);
        let (start, end) = (reached(0)?, reached(1)?);
        Ok((end.saturating_sub(start) as f64 / 1e6) as f32)
    }

    /// Takes a line out of those of its context when nothing is left to wait for.
    pub(crate) fn forget_idle(tables: &mut Tables, line: &Arc<Line>) {
        let named: Vec<*const Line> = tables.streams.values().map(Arc::as_ptr).collect();
        if let Some(lines) = tables.lines.get_mut(&line.context.life) {
            lines.retain(|line| named.contains(&Arc::as_ptr(line)) || !line.is_idle());
        }
    }
}
