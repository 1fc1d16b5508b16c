//! Every command of the wire, in the order of its table.

#![allow(unsafe_code)]

use crate::{
    array::LiveArray,
    context::LiveContext,
    driver::NvidiaDriver,
    graph::Exec,
    launch, linker, module,
    op::enqueue,
    reference::Reference,
    sampler::{self, LiveSampler},
    stream::{LiveEvent, LiveStream},
    sys::{Function, LaunchConfig, Stream},
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Driver, WaitTarget};
use cuda_wire::*;
use std::sync::{Arc, PoisonError};

/// Contexts below this are the primary contexts of devices.
const FIRST_CREATED_CONTEXT: u32 = 0x100;

impl NvidiaDriver {
    pub(crate) fn check_device(&self, device: u32) -> CuResult<()> {
        if (device as usize) < self.devices.len() { Ok(()) } else { Err(CudaError::INVALID_DEVICE) }
    }

    pub(crate) fn say(&self, message: String) {
        if !message.is_empty() {
            *self.message.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
        }
    }

    /// Any context, for freeing memory that belongs to none: mapped memory belongs to the process.
    pub(crate) fn any_context(&self) -> CuResult<Arc<LiveContext>> {
        self.lock().context(ContextId(0))
    }

    /// A texture or surface reference, in its module's context.
    fn reference(&self, module: ModuleId, name: &str, is_surface: bool) -> CuResult<Reference> {
        let (raw, context) = {
            let tables = self.lock();
            let module = tables.modules.get(&module).ok_or(CudaError::INVALID_HANDLE)?;
            (module.raw(), Arc::clone(&module.context))
        };
        context.enter()?;
        Reference::find(&self.api, raw, name, is_surface)
    }

    /// Keeps a texture or surface object under its name; returns what kernels know it by.
    fn keep_sampler(&self, id: SamplerId, made: LiveSampler) -> u64 {
        let handle = made.handle;
        self.lock().samplers.insert(id, Arc::new(made));
        handle
    }

    /// Asks the driver about clusters of a launch.
    fn ask_clusters(
        &self,
        (kernel, grid, block, shared_bytes, given): (KernelRef, [u32; 3], [u32; 3], u32, &[LaunchAttribute]),
        ask: impl Fn(*mut i32, Function, *const LaunchConfig) -> CuResult<()>,
    ) -> CuResult<i32> {
        let (function, context, mut attributes) = {
            let tables = self.lock();
            let context = tables.modules.get(&kernel.module).map(|module| Arc::clone(&module.context));
            (tables.function(kernel)?, context, launch::attributes(&tables, given, false)?)
        };
        context.ok_or(CudaError::INVALID_HANDLE)?.enter()?;
        let config = LaunchConfig {
            grid,
            block,
            shared_bytes,
            stream: Stream::default(),
            attributes: attributes.as_mut_ptr(),
            attribute_count: attributes.len() as u32,
        };
        let mut count = 0;
        module::of_loaded(&self.api, function, || ask(&mut count, function, &config))?;
        Ok(count)
    }

    /// Waits for a context's work and forgets all that is in it.
    fn empty_context(&self, context: &Arc<LiveContext>) {
        self.cuts.want_all();
        if context.enter().is_ok() {
            // SAFETY: no pointers. A dead context has no work.
            let _ = unsafe { self.api.context_synchronize() };
        }
        self.lock().forget_context(context);
        drop(self.work.arrays.take_of(context));
        self.cuts.forget_context(context.id);
        self.work.memory.free_all_of(context.id);
    }
}

impl Commands for NvidiaDriver {
    fn context_create(&self, context: ContextId, device: u32, flags: u32) -> CuResult<()> {
        self.check_device(device)?;
        if context.0 < FIRST_CREATED_CONTEXT || self.lock().contexts.contains_key(&context) {
            return Err(CudaError::INVALID_VALUE);
        }
        /// `CU_CTX_SCHED_*`: dropped, since the program's threads do not wait in this process.
        const SCHEDULING: u32 = 0x7;
        let made = Arc::new(LiveContext::create(&self.api, context.0, device, flags & !SCHEDULING)?);
        if let Some(barrier) = self.cuts.barrier() {
            // Its streams could change memory that a cut before it has not read yet.
            barrier.hold(&self.work, &LiveStream::legacy(&self.api, Arc::clone(&made)))?;
        }
        self.lock().contexts.insert(context, made);
        Ok(())
    }

    fn context_destroy(&self, context: ContextId) -> CuResult<()> {
        if context.0 < FIRST_CREATED_CONTEXT {
            return Err(CudaError::INVALID_CONTEXT);
        }
        let live = self.lock().context(context)?;
        self.empty_context(&live);
        self.lock().contexts.remove(&context);
        Ok(())
    }

    fn context_reset(&self, context: ContextId) -> CuResult<()> {
        let live = self.lock().context(context)?;
        self.empty_context(&live);
        Ok(())
    }

    fn context_set_limit(&self, context: ContextId, limit: u32, value: u64) -> CuResult<()> {
        let context = self.lock().context(context)?;
        context.enter()?;
        // SAFETY: no pointers.
        unsafe { self.api.context_set_limit(limit, value as usize) }
    }

    fn context_enable_peer(&self, context: ContextId, peer: ContextId, enable: bool) -> CuResult<()> {
        let (context, peer) = {
            let tables = self.lock();
            (tables.context(context)?, tables.context(peer)?)
        };
        context.enter()?;
        // SAFETY: both contexts live until the call returns.
        unsafe {
            match enable {
                true => self.api.context_enable_peer(peer.raw(), 0),
                false => self.api.context_disable_peer(peer.raw()),
            }
        }
    }

    fn memory_allocate(&self, context: ContextId, address: u64, bytes: u64) -> CuResult<()> {
        let context = self.lock().context(context)?;
        context.enter()?;
        // It may wait for memory that was freed, and that for the streams.
        self.cuts.want_all();
        self.work.memory.allocate(context.id, context.device, address, bytes)
    }

    fn memory_free(&self, address: u64) -> CuResult<()> {
        let context = self.work.memory.context_of(address).ok_or(CudaError::INVALID_VALUE)?;
        let context = self.lock().context(ContextId(context))?;
        self.work.memory.free(context, address)
    }

    fn memory_info(&self, device: u32) -> CuResult<(u64, u64)> {
        self.check_device(device)?;
        let context = self.lock().context(ContextId(device))?;
        // CUDA's own free is done when it returns.
        self.cuts.want_all();
        self.work.memory.settle();
        context.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        unsafe { self.api.memory_info(&mut free, &mut total)? };
        Ok(self.work.memory.seen(device, free as u64, total as u64))
    }

    fn physical_create(&self, handle: MemoryHandleId, device: u32, bytes: u64) -> CuResult<()> {
        self.check_device(device)?;
        self.cuts.want_all();
        let physical = self.work.memory.create_physical(device, bytes)?;
        self.lock().physical.insert(handle, Arc::new(physical));
        Ok(())
    }

    fn physical_release(&self, handle: MemoryHandleId) -> CuResult<()> {
        let physical = self.lock().physical.remove(&handle).ok_or(CudaError::INVALID_HANDLE)?;
        self.work.memory.release_physical(physical);
        Ok(())
    }

    fn physical_map(&self, address: u64, bytes: u64, offset: u64, handle: MemoryHandleId) -> CuResult<()> {
        let physical = self.lock().physical.get(&handle).cloned().ok_or(CudaError::INVALID_HANDLE)?;
        self.any_context()?.enter()?;
        self.cuts.want_all();
        self.work.memory.map_physical(address, bytes, offset, &physical)
    }

    fn physical_unmap(&self, address: u64, bytes: u64) -> CuResult<()> {
        self.work.memory.unmap_physical(self.any_context()?, address, bytes)
    }

    fn physical_set_access(&self, address: u64, bytes: u64, device: u32, protection: u32) -> CuResult<()> {
        self.check_device(device)?;
        self.any_context()?.enter()?;
        self.work.memory.set_client_access(address, bytes, device, protection)
    }

    /// Clients that look at devices use a status connection, which NVML answers.
    fn device_status(&self, device: u32) -> CuResult<DeviceStatus> {
        self.check_device(device)?;
        Err(CudaError::NOT_SUPPORTED)
    }

    fn module_load<'a>(
        &self,
        module: ModuleId,
        context: ContextId,
        hash: [u8; 32],
        image: ImageSource<'a>,
        options: Vec<JitOption>,
    ) -> CuResult<ModuleInfo> {
        let ImageSource::Inline { bytes } = image else { return Err(CudaError::INVALID_VALUE) };
        let context = self.lock().context(context)?;
        let place = self.known.place(&hash, &self.devices[context.device as usize], &options);
        let (loaded, info) =
            module::load(&self.api, &context, bytes.0, &options, place).map_err(|(error, message)| {
                self.say(message);
                error
            })?;
        self.lock().modules.insert(module, loaded);
        Ok(info)
    }

    fn module_unload(&self, module: ModuleId) -> CuResult<()> {
        let gone = self.lock().modules.remove(&module).ok_or(CudaError::INVALID_HANDLE)?;
        if let Some(barrier) = self.cuts.barrier() {
            // A cut before it has not read its variables yet.
            barrier.keep(gone);
        }
        Ok(())
    }

    fn kernel_set_attribute(&self, kernel: KernelRef, attribute: u32, value: i32) -> CuResult<()> {
        let (function, context) = {
            let tables = self.lock();
            let function = tables.function(kernel)?;
            (function, tables.modules.get(&kernel.module).map(|module| Arc::clone(&module.context)))
        };
        context.ok_or(CudaError::INVALID_HANDLE)?.enter()?;
        // SAFETY: the function lives as long as its module.
        let set = || unsafe { self.api.function_set_attribute(function, attribute, value) };
        module::of_loaded(&self.api, function, set)
    }

    fn link<'a>(
        &self,
        context: ContextId,
        inputs: Vec<LinkInput<'a>>,
        options: Vec<JitOption>,
    ) -> CuResult<LinkOutput> {
        let context = self.lock().context(context)?;
        linker::link(&self.api, &context, &inputs, &options)
    }

    fn active_clusters(
        &self,
        kernel: KernelRef,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        attributes: Vec<LaunchAttribute>,
    ) -> CuResult<i32> {
        let launch = (kernel, grid, block, shared_bytes, attributes.as_slice());
        // SAFETY: the pointers are valid for the call.
        self.ask_clusters(launch, |count, function, config| unsafe {
            self.api.active_clusters(count, function, config)
        })
    }

    fn largest_cluster(
        &self,
        kernel: KernelRef,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        attributes: Vec<LaunchAttribute>,
    ) -> CuResult<i32> {
        let launch = (kernel, grid, block, shared_bytes, attributes.as_slice());
        // SAFETY: the pointers are valid for the call.
        self.ask_clusters(launch, |count, function, config| unsafe {
            self.api.largest_cluster(count, function, config)
        })
    }

    fn stream_create(&self, stream: StreamId, context: ContextId, kind: u32, priority: i32) -> CuResult<()> {
        let context = self.lock().context(context)?;
        let made = LiveStream::create(&self.api, context, kind, priority)?;
        if let Some(barrier) = self.cuts.barrier() {
            barrier.hold(&self.work, &made)?;
        }
        self.lock().streams.insert(stream, Arc::new(made));
        Ok(())
    }

    fn stream_destroy(&self, stream: StreamId) -> CuResult<()> {
        let mut tables = self.lock();
        let gone = tables.streams.remove(&stream).ok_or(CudaError::INVALID_HANDLE)?;
        tables.departing.push(Arc::clone(&gone));
        let departed = tables.take_departed();
        drop(tables);
        if let Some(seat) = self.work.seat.get() {
            seat.forget(&self.work, &gone);
        }
        drop(gone);
        drop(departed);
        Ok(())
    }

    fn stream_query(&self, stream: StreamId) -> CuResult<()> {
        if self.poll(WaitTarget::Stream(stream))? { Ok(()) } else { Err(CudaError::NOT_READY) }
    }

    fn enqueue<'a>(&self, stream: StreamId, op: Op<'a>) -> CuResult<()> {
        let _entered = self.work.enter()?;
        let stream = self.lock().stream(stream)?;
        match op {
            Op::Allocate { .. } => self.cuts.want_all(),
            _ => self.cuts.want(&stream),
        }
        match self.work.seat.get() {
            None => enqueue(&self.work, &self.tables, &stream, op),
            Some(seat) => seat.enqueue(&self.work, &self.tables, &stream, op),
        }
    }

    fn event_create(&self, event: EventId, context: ContextId, flags: u32) -> CuResult<()> {
        let context = self.lock().context(context)?;
        let made = LiveEvent::create(&self.api, context, flags)?;
        self.lock().events.insert(event, Arc::new(made));
        Ok(())
    }

    fn event_destroy(&self, event: EventId) -> CuResult<()> {
        let gone = self.lock().events.remove(&event);
        gone.map(drop).ok_or(CudaError::INVALID_HANDLE)
    }

    fn event_query(&self, event: EventId) -> CuResult<()> {
        if self.poll(WaitTarget::Event(event))? { Ok(()) } else { Err(CudaError::NOT_READY) }
    }

    fn event_elapsed(&self, start: EventId, end: EventId) -> CuResult<f32> {
        let (start, end) = {
            let tables = self.lock();
            (tables.event(start)?, tables.event(end)?)
        };
        self.milliseconds_between(&start, &end)
    }

    fn graph_instantiate<'a>(
        &self,
        exec: ExecId,
        context: ContextId,
        nodes: Vec<GraphNode<'a>>,
    ) -> CuResult<()> {
        let context = self.lock().context(context)?;
        let made = Exec::new(&self.work, &self.tables, context, &nodes)?;
        self.lock().execs.insert(exec, Arc::new(made));
        Ok(())
    }

    fn graph_update<'a>(&self, exec: ExecId, nodes: Vec<GraphNode<'a>>) -> CuResult<()> {
        let exec = self.lock().exec(exec)?;
        exec.update(&self.tables, &nodes)
    }

    fn graph_set_node<'a>(&self, exec: ExecId, index: u32, op: Op<'a>, enabled: bool) -> CuResult<()> {
        let exec = self.lock().exec(exec)?;
        exec.set_node(index, op, enabled)
    }

    fn graph_launch(&self, exec: ExecId, stream: StreamId, run: u32) -> CuResult<()> {
        let _entered = self.work.enter()?;
        let (exec, stream) = {
            let tables = self.lock();
            (tables.exec(exec)?, tables.stream(stream)?)
        };
        self.cuts.want(&stream);
        match self.work.seat.get() {
            None => exec.launch(&self.tables, &stream, run),
            Some(seat) => seat.launch_graph(&self.tables, &exec, &stream, run),
        }
    }

    fn graph_upload(&self, exec: ExecId, stream: StreamId) -> CuResult<()> {
        let (exec, stream) = {
            let tables = self.lock();
            (tables.exec(exec)?, tables.stream(stream)?)
        };
        self.cuts.want(&stream);
        exec.upload(&self.tables, &stream)
    }

    fn graph_destroy(&self, exec: ExecId) -> CuResult<()> {
        let gone = self.lock().execs.remove(&exec);
        gone.map(drop).ok_or(CudaError::INVALID_HANDLE)
    }

    fn array_create(&self, array: ArrayId, context: ContextId, info: ArrayInfo) -> CuResult<()> {
        if self.work.arrays.contains(array) {
            return Err(CudaError::INVALID_VALUE);
        }
        let context = self.lock().context(context)?;
        // The driver takes its memory from what cuts may have.
        self.cuts.want_all();
        let made = LiveArray::create(&self.work, context, info)?;
        self.work.arrays.insert(array, made);
        Ok(())
    }

    fn array_destroy(&self, array: ArrayId) -> CuResult<()> {
        let gone = self.work.arrays.remove(array).ok_or(CudaError::INVALID_HANDLE)?;
        let context = Arc::clone(&gone.context);
        self.work.memory.let_go(vec![context], gone);
        Ok(())
    }

    fn texture_create(
        &self,
        sampler: SamplerId,
        context: ContextId,
        resource: Resource,
        sampling: Sampling,
        view: Option<ResourceView>,
    ) -> CuResult<u64> {
        let context = self.lock().context(context)?;
        let resource = sampler::describe(&self.work.arrays, &resource)?;
        let made = LiveSampler::texture(&self.api, context, &resource, &sampling, view)?;
        Ok(self.keep_sampler(sampler, made))
    }

    fn surface_create(&self, sampler: SamplerId, context: ContextId, resource: Resource) -> CuResult<u64> {
        let context = self.lock().context(context)?;
        let resource = sampler::describe(&self.work.arrays, &resource)?;
        let made = LiveSampler::surface(&self.api, context, &resource)?;
        Ok(self.keep_sampler(sampler, made))
    }

    fn reference_find(&self, module: ModuleId, name: String, is_surface: bool) -> CuResult<()> {
        self.reference(module, &name, is_surface).map(drop)
    }

    fn reference_bind(
        &self,
        module: ModuleId,
        name: String,
        is_surface: bool,
        resource: Resource,
        sampling: Sampling,
    ) -> CuResult<()> {
        let reference = self.reference(module, &name, is_surface)?;
        reference.bind(&self.api, &self.work.arrays, &resource, &sampling)
    }

    fn sampler_destroy(&self, sampler: SamplerId) -> CuResult<()> {
        let gone = self.lock().samplers.remove(&sampler).ok_or(CudaError::INVALID_HANDLE)?;
        let context = Arc::clone(&gone.context);
        self.work.memory.let_go(vec![context], gone);
        Ok(())
    }

    fn sm_resource(&self, device: u32, green: Option<GreenId>) -> CuResult<SmInfo> {
        self.check_device(device)?;
        self.sm_info(device, green)
    }

    fn sm_split(&self, device: u32, green: Option<GreenId>, split: SmSplit) -> CuResult<SmGroups> {
        self.check_device(device)?;
        self.sm_groups(device, green, split)
    }

    fn green_create(
        &self,
        green: GreenId,
        context: ContextId,
        parts: Vec<SmPart>,
        flags: u32,
    ) -> CuResult<SmInfo> {
        let primary = self.lock().context(context)?;
        if context.0 >= FIRST_CREATED_CONTEXT || self.lock().greens.contains_key(&green) {
            return Err(CudaError::INVALID_VALUE);
        }
        let (made, runs_on) = self.make_green(primary, &parts, flags)?;
        self.lock().greens.insert(green, Arc::new(made));
        Ok(runs_on)
    }

    fn green_destroy(&self, green: GreenId) -> CuResult<()> {
        let gone = self.lock().greens.remove(&green);
        gone.map(drop).ok_or(CudaError::INVALID_CONTEXT)
    }

    fn addresses_reserve(&self, range: VaRange) -> CuResult<()> {
        let context = self.lock().context(ContextId(0))?;
        context.enter()?;
        self.work.memory.reserve_further(range)
    }

    fn tensor_map_wide(&self, context: ContextId, map: Im2colWide) -> CuResult<[u8; 128]> {
        self.lock().context(context)?.enter()?;
        crate::tensor_map::im2col_wide(&self.api, &map)
    }

    fn green_stream_create(
        &self,
        stream: StreamId,
        context: ContextId,
        green: GreenId,
        kind: u32,
        priority: i32,
    ) -> CuResult<()> {
        let (green, primary) = {
            let tables = self.lock();
            (tables.green(green)?, tables.context(context)?)
        };
        if !Arc::ptr_eq(&green.primary, &primary) {
            return Err(CudaError::INVALID_CONTEXT);
        }
        let made = LiveStream::of_green(&self.api, green, kind, priority)?;
        if let Some(barrier) = self.cuts.barrier() {
            barrier.hold(&self.work, &made)?;
        }
        self.lock().streams.insert(stream, Arc::new(made));
        Ok(())
    }
}
