//! Every command that a driver executes, in the order of the wire's table.

use crate::{
    SoftDriver,
    conditional::{self, Handles},
    context::Context,
    graph::{Exec, Node},
    line::{Line, LineKind, Task},
    op::Event,
    session::{FIRST_CREATED_CONTEXT, Session},
    status,
    sync::lock,
    work::Work,
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Driver, WaitTarget};
use cuda_wire::{
    ArrayId, ArrayInfo, Commands, ContextId, DeviceStatus, EventId, ExecId, GraphNode, GreenId, Im2colWide,
    ImageSource, JitOption, KernelRef, LaunchAttribute, LinkInput, LinkOutput, MemoryHandleId, ModuleId,
    ModuleInfo, Op, Resource, ResourceView, SamplerId, Sampling, SmGroups, SmInfo, SmPart, SmSplit, StreamId,
    VaRange,
};
use std::sync::Arc;

/// `CU_EVENT_DISABLE_TIMING`.
const EVENT_DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`
const EVENT_INTERPROCESS: u32 = 4;

impl Commands for SoftDriver {
    fn context_create<'a>(&self, context: ContextId, device: u32, _flags: u32) -> CuResult<()> {
        self.session.check_device(device)?;
        let mut tables = lock(&self.session.tables);
        if context.0 < FIRST_CREATED_CONTEXT || tables.contexts.contains_key(&context) {
            return Err(CudaError::INVALID_VALUE);
        }
        tables.contexts.insert(context, Context::new(context, device));
        Ok(())
    }

    fn context_destroy<'a>(&self, context: ContextId) -> CuResult<()> {
        let mut tables = lock(&self.session.tables);
        let context = tables.contexts.get(&context).cloned().ok_or(CudaError::INVALID_CONTEXT)?;
        self.session.end_life(&mut tables, &context);
        Ok(())
    }

    fn context_reset<'a>(&self, context: ContextId) -> CuResult<()> {
        let mut tables = lock(&self.session.tables);
        let context = self.session.context_dead_or_alive(&mut tables, context)?;
        self.session.end_life(&mut tables, &context);
        Ok(())
    }

    fn context_set_limit<'a>(&self, context: ContextId, limit: u32, value: u64) -> CuResult<()> {
        let mut tables = lock(&self.session.tables);
        self.session.context(&mut tables, context)?.set_limit(limit, value)
    }

    fn context_enable_peer<'a>(&self, context: ContextId, peer: ContextId, enable: bool) -> CuResult<()> {
        let mut tables = lock(&self.session.tables);
        let context = self.session.context(&mut tables, context)?;
        let peer = self.session.context(&mut tables, peer)?;
        if context.device == peer.device {
            return Err(CudaError::INVALID_DEVICE);
        }
        context.set_peer(&peer, enable)
    }

    fn memory_allocate<'a>(&self, context: ContextId, address: u64, bytes: u64) -> CuResult<()> {
        self.session.allocate(context, address, bytes)
    }

    fn memory_free<'a>(&self, address: u64) -> CuResult<()> {
        self.session.free(address)
    }

    fn memory_info<'a>(&self, device: u32) -> CuResult<(u64, u64)> {
        self.session.check_device(device)?;
        let _settled = self.session.retiring.settled();
        let (free, total) = self.session.account.info(device as usize);
        Ok((free.saturating_add(self.session.retiring.bytes(device)).min(total), total))
    }

    fn physical_create<'a>(&self, handle: MemoryHandleId, device: u32, bytes: u64) -> CuResult<()> {
        self.session.create_physical(handle, device, bytes)
    }

    fn physical_release<'a>(&self, handle: MemoryHandleId) -> CuResult<()> {
        let released = lock(&self.session.tables).physical.remove(&handle);
        released.map(drop).ok_or(CudaError::INVALID_HANDLE)
    }

    fn physical_map<'a>(
        &self,
        address: u64,
        bytes: u64,
        offset: u64,
        handle: MemoryHandleId,
    ) -> CuResult<()> {
        self.session.map_physical(address, bytes, offset, handle)
    }

    fn physical_unmap<'a>(&self, address: u64, bytes: u64) -> CuResult<()> {
        self.session.unmap_physical(address, bytes)
    }

    fn physical_set_access<'a>(
        &self,
        address: u64,
        bytes: u64,
        device: u32,
        protection: u32,
    ) -> CuResult<()> {
        self.session.set_access(address, bytes, device, protection)
    }

    fn device_status<'a>(&self, device: u32) -> CuResult<DeviceStatus> {
        self.session.check_device(device)?;
        // How busy it is takes a moment to measure, and commands wait for nothing: a status connection measures it.
        Ok(status::at_rest(&self.session.config, &*self.session.ledger, device))
    }

    fn module_load<'a>(
        &self,
        module: ModuleId,
        context: ContextId,
        hash: [u8; 32],
        image: ImageSource<'a>,
        options: Vec<JitOption>,
    ) -> CuResult<ModuleInfo> {
        self.session.load_module(module, context, hash, image, &options)
    }

    fn module_unload<'a>(&self, module: ModuleId) -> CuResult<()> {
        self.session.unload_module(module)
    }

    fn kernel_set_attribute<'a>(&self, kernel: KernelRef, attribute: u32, value: i32) -> CuResult<()> {
        let kernel = Session::find_kernel(&lock(&self.session.tables), kernel)?;
        kernel.set_attribute(attribute, value)
    }

    fn link<'a>(
        &self,
        context: ContextId,
        inputs: Vec<LinkInput<'a>>,
        _options: Vec<JitOption>,
    ) -> CuResult<LinkOutput> {
        self.session.context(&mut lock(&self.session.tables), context)?;
        Ok(self.session.link_images(&inputs))
    }

    fn active_clusters(
        &self,
        _: KernelRef,
        _: [u32; 3],
        _: [u32; 3],
        _: u32,
        _: Vec<LaunchAttribute>,
    ) -> CuResult<i32> {
        // Its attributes say that there are no clusters, so clients know the answer.
        Err(CudaError::NOT_SUPPORTED)
    }

    fn largest_cluster(
        &self,
        _: KernelRef,
        _: [u32; 3],
        _: [u32; 3],
        _: u32,
        _: Vec<LaunchAttribute>,
    ) -> CuResult<i32> {
        Err(CudaError::NOT_SUPPORTED)
    }

    fn stream_create<'a>(
        &self,
        stream: StreamId,
        context: ContextId,
        kind: u32,
        _priority: i32,
    ) -> CuResult<()> {
        // Host threads share the processor evenly: a priority is accepted and changes nothing.
        let kind = match kind {
            0 => LineKind::Blocking,
            1 => LineKind::NonBlocking,
            2 => LineKind::Legacy,
            _ => return Err(CudaError::INVALID_VALUE),
        };
        let mut tables = lock(&self.session.tables);
        let context = self.session.context(&mut tables, context)?;
        if tables.streams.contains_key(&stream) {
            return Err(CudaError::INVALID_VALUE);
        }
        let line = Line::new(context, kind);
        tables.streams.insert(stream, line.clone());
        self.session.keep(&mut tables, &line);
        Ok(())
    }

    fn stream_destroy<'a>(&self, stream: StreamId) -> CuResult<()> {
        let mut tables = lock(&self.session.tables);
        let line = tables.streams.remove(&stream).ok_or(CudaError::INVALID_HANDLE)?;
        Session::forget_idle(&mut tables, &line);
        Ok(())
    }

    fn stream_query<'a>(&self, stream: StreamId) -> CuResult<()> {
        ready(self.poll(WaitTarget::Stream(stream))?)
    }

    fn enqueue<'a>(&self, stream: StreamId, op: Op<'a>) -> CuResult<()> {
        /// Up to this much goes with the next reply: the client's thread that reads replies is awake, a lane's may
        /// sleep.
        const SMALL_BYTES: u64 = 32 << 10;
        if let Op::CopyOut { source, shape, transfer } = op
            && shape.bytes().is_some_and(|bytes| (1..=SMALL_BYTES).contains(&bytes))
        {
            let read = self.session.read_back(stream, source, shape)?;
            if self.session.link()?.send_when_read(transfer, Box::new(read)).is_ok() {
                return Ok(());
            }
        }
        let line = lock(&self.session.tables).stream(stream)?;
        let kernel = match op {
            Op::Launch { kernel, .. } => Some(kernel),
            _ => None,
        };
        let op = self.session.own(op).inspect_err(|_| {
            if let Some(kernel) = kernel {
                self.session.say_refusal(kernel);
            }
        })?;
        self.session.enqueue(&line, op)
    }

    fn event_create<'a>(&self, event: EventId, context: ContextId, flags: u32) -> CuResult<()> {
        let mut tables = lock(&self.session.tables);
        let context = self.session.context(&mut tables, context)?;
        if tables.events.contains_key(&event) {
            return Err(CudaError::INVALID_VALUE);
        }
        let has_timing = flags & EVENT_DISABLE_TIMING == 0;
        let shared = match flags & EVENT_INTERPROCESS {
            0 => None,
            _ => Some(self.session.shared_events.create()?),
        };
        tables.events.insert(event, Event { context, has_timing, latest: None, shared });
        Ok(())
    }

    fn event_destroy<'a>(&self, event: EventId) -> CuResult<()> {
        lock(&self.session.tables).events.remove(&event).map(drop).ok_or(CudaError::INVALID_HANDLE)
    }

    fn event_query<'a>(&self, event: EventId) -> CuResult<()> {
        ready(self.poll(WaitTarget::Event(event))?)
    }

    fn event_elapsed<'a>(&self, start: EventId, end: EventId) -> CuResult<f32> {
        self.session.elapsed(start, end)
    }

    fn graph_instantiate<'a>(
        &self,
        exec: ExecId,
        context: ContextId,
        nodes: Vec<GraphNode<'a>>,
    ) -> CuResult<()> {
        let nodes = self.own_nodes(nodes)?;
        let mut tables = lock(&self.session.tables);
        let context = self.session.context(&mut tables, context)?;
        if tables.execs.contains_key(&exec) {
            return Err(CudaError::INVALID_VALUE);
        }
        let handles = Arc::new(Handles::of(&self.session.conditions, &nodes));
        tables.execs.insert(exec, Exec { context, nodes, handles, last: None });
        Ok(())
    }

    fn graph_update<'a>(&self, exec: ExecId, nodes: Vec<GraphNode<'a>>) -> CuResult<()> {
        let nodes = self.own_nodes(nodes)?;
        let mut tables = lock(&self.session.tables);
        let exec = tables.execs.get_mut(&exec).ok_or(CudaError::INVALID_HANDLE)?;
        let same_shape = exec.nodes.len() == nodes.len()
            && exec
                .nodes
                .iter()
                .zip(&nodes)
                .all(|(old, new)| old.op.is_like(&new.op) && old.after == new.after);
        if !same_shape {
            return Err(CudaError::GRAPH_EXEC_UPDATE_FAILURE);
        }
        exec.handles = Arc::new(Handles::of(&self.session.conditions, &nodes));
        exec.nodes = nodes;
        Ok(())
    }

    fn graph_set_node<'a>(&self, exec: ExecId, index: u32, op: Op<'a>, enabled: bool) -> CuResult<()> {
        let op = self.session.own(op)?;
        let mut tables = lock(&self.session.tables);
        let exec = tables.execs.get_mut(&exec).ok_or(CudaError::INVALID_HANDLE)?;
        let node = exec.nodes.get_mut(index as usize).ok_or(CudaError::INVALID_VALUE)?;
        if !node.op.is_like(&op) {
            return Err(CudaError::INVALID_VALUE);
        }
        node.op = op;
        node.enabled = enabled;
        Ok(())
    }

    fn graph_launch<'a>(&self, exec: ExecId, stream: StreamId, run: u32) -> CuResult<()> {
        let line = lock(&self.session.tables).stream(stream)?;
        line.wait_for_room(&self.session.load);
        let mut tables = lock(&self.session.tables);
        line.context.check()?;
        let kept = tables.execs.get(&exec).ok_or(CudaError::INVALID_HANDLE)?;
        kept.context.check()?;
        let (nodes, handles) = (kept.nodes.clone(), Arc::clone(&kept.handles));
        let last = kept.last.clone().filter(|last| !last.is_reached());
        let mut changes = Vec::new();
        let made = self.run_of(&mut tables, &line, &nodes, 0..nodes.len(), run, &mut changes);
        let made = match made {
            Ok(made) => made.with_handles(&handles),
            Err(error) => {
                self.session.undo(&mut tables, changes);
                return Err(error);
            }
        };
        let work = Work::Graph(made);
        let mut after = tables.implicit_order(&line);
        after.extend(last);
        let place = line.push(&self.session, Task { after, work })?;
        if let Some(exec) = tables.execs.get_mut(&exec) {
            exec.last = Some(place);
        }
        Ok(())
    }

    fn graph_upload<'a>(&self, exec: ExecId, stream: StreamId) -> CuResult<()> {
        let tables = lock(&self.session.tables);
        tables.stream(stream)?.context.check()?;
        tables.execs.get(&exec).map(|_| ()).ok_or(CudaError::INVALID_HANDLE)
    }

    fn graph_destroy<'a>(&self, exec: ExecId) -> CuResult<()> {
        lock(&self.session.tables).execs.remove(&exec).map(drop).ok_or(CudaError::INVALID_HANDLE)
    }

    fn array_create<'a>(&self, array: ArrayId, context: ContextId, info: ArrayInfo) -> CuResult<()> {
        self.session.create_array(array, context, info)
    }

    fn array_destroy<'a>(&self, array: ArrayId) -> CuResult<()> {
        self.session.destroy_array(array)
    }

    fn texture_create<'a>(
        &self,
        sampler: SamplerId,
        context: ContextId,
        resource: Resource,
        sampling: Sampling,
        view: Option<ResourceView>,
    ) -> CuResult<u64> {
        self.session.create_texture(sampler, context, &resource, &sampling, view.as_ref())
    }

    fn surface_create<'a>(
        &self,
        sampler: SamplerId,
        context: ContextId,
        resource: Resource,
    ) -> CuResult<u64> {
        self.session.create_surface(sampler, context, &resource)
    }

    fn sampler_destroy<'a>(&self, sampler: SamplerId) -> CuResult<()> {
        self.session.destroy_sampler(sampler)
    }

    fn reference_find<'a>(&self, module: ModuleId, name: String, _is_surface: bool) -> CuResult<()> {
        self.session.find_reference(module, &name).map(drop)
    }

    fn reference_bind<'a>(
        &self,
        module: ModuleId,
        name: String,
        _is_surface: bool,
        resource: Resource,
        sampling: Sampling,
    ) -> CuResult<()> {
        self.session.bind_reference(module, &name, &resource, &sampling)
    }

    fn sm_resource<'a>(&self, device: u32, green: Option<GreenId>) -> CuResult<SmInfo> {
        self.session.sm_resource(device, green)
    }

    fn sm_split<'a>(&self, device: u32, green: Option<GreenId>, split: SmSplit) -> CuResult<SmGroups> {
        self.session.sm_split(device, green, split)
    }

    fn green_create<'a>(
        &self,
        green: GreenId,
        context: ContextId,
        parts: Vec<SmPart>,
        flags: u32,
    ) -> CuResult<SmInfo> {
        self.session.create_green(green, context, &parts, flags)
    }

    fn green_destroy<'a>(&self, green: GreenId) -> CuResult<()> {
        self.session.destroy_green(green)
    }

    /// Its maps are for copies that this device does not have.
    fn tensor_map_wide<'a>(&self, _context: ContextId, _map: Im2colWide) -> CuResult<[u8; 128]> {
        Err(CudaError::NOT_SUPPORTED)
    }

    fn addresses_reserve<'a>(&self, range: VaRange) -> CuResult<()> {
        if self.session.space.add_region(range) { Ok(()) } else { Err(CudaError::OUT_OF_MEMORY) }
    }

    fn green_stream_create<'a>(
        &self,
        stream: StreamId,
        context: ContextId,
        green: GreenId,
        kind: u32,
        priority: i32,
    ) -> CuResult<()> {
        /// The green context's own legacy stream is ordered against the primary context's as a blocking stream is.
        const LEGACY: u32 = 2;
        if !lock(&self.session.tables).greens.contains_key(&green) {
            return Err(CudaError::INVALID_CONTEXT);
        }
        self.stream_create(stream, context, if kind == LEGACY { 0 } else { kind }, priority)
    }
}

impl SoftDriver {
    fn own_nodes(&self, nodes: Vec<GraphNode<'_>>) -> CuResult<Vec<Node>> {
        let own = |(index, node): (usize, GraphNode<'_>)| {
            let mut after = node.after;
            after.sort_unstable();
            after.dedup();
            // Edges lead upwards only, so a graph has no circle.
            if after.last().is_some_and(|&before| before as usize >= index) {
                return Err(CudaError::INVALID_VALUE);
            }
            if matches!(node.op, Op::CopyInShared { .. } | Op::CopyOutShared { .. }) {
                return Err(CudaError::NOT_SUPPORTED);
            }
            Ok(Node { op: self.session.own(node.op)?, after, enabled: node.enabled })
        };
        let nodes = nodes.into_iter().enumerate().map(own).collect::<CuResult<Vec<_>>>()?;
        conditional::check(&nodes)?;
        Ok(nodes)
    }
}

fn ready(is_ready: bool) -> CuResult<()> {
    if is_ready { Ok(()) } else { Err(CudaError::NOT_READY) }
}
