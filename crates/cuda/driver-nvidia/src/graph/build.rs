//! From flat nodes to a CUDA graph.

#![allow(unsafe_code)]

use super::{
    GraphGates, RawGraph, conditional,
    transfer::{Buffer, PullIn, SendOut},
};
use crate::{
    array::ArrayEnd,
    context::LiveContext,
    launch::{attributes, with_parameters},
    module::of_loaded,
    op::{HostCall, Work, memory_ops},
    seat::EQUAL,
    stream::LiveEvent,
    sys::{
        Api, BatchMemOp, BatchMemOpNode, Copy3D, Function, Graph, GraphNode as RawNode, HostFunction,
        HostNode, KernelNode, MEMORY_DEVICE, MEMORY_HOST, MemsetNode,
    },
    tables::Tables,
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{GraphNode, HostData, Op, Plane, Shape};
use sharing::{GraphStep, graph_gates};
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: in streams alone.
const PROGRAMMATIC_SERIALIZATION: u32 = 6;

/// What a node points to: kept for as long as a launch may run.
pub(super) enum Keeper {
    Call(#[expect(dead_code, reason = "kept alive for the node that points to it")] Box<HostCall>),
    Pull(#[expect(dead_code, reason = "kept alive for the node that points to it")] Box<PullIn>),
    Send(#[expect(dead_code, reason = "kept alive for the node that points to it")] Box<SendOut>),
    Bytes(#[expect(dead_code, reason = "kept alive for the node that points to it")] Arc<Buffer>),
}

pub(super) struct Built {
    pub(super) graph: RawGraph,
    pub(super) keepers: Vec<Keeper>,
    /// Events that its nodes record.
    pub(super) records: Vec<Weak<LiveEvent>>,
    /// Whether nodes talk to the client or use memory of ours.
    pub(super) talks: bool,
}

/// One end of a copy node.
#[derive(Clone, Copy)]
enum End {
    Device(Plane),
    Array(ArrayEnd),
    /// Packed bytes at an address of this process.
    Host(usize),
}

pub(super) struct Builder<'a> {
    pub(super) work: &'a Arc<Work>,
    tables: &'a Tables,
    pub(super) context: &'a LiveContext,
    pub(super) graph: Graph,
    keepers: Vec<Keeper>,
    records: Vec<Weak<LiveEvent>>,
    /// What the driver calls the values of conditional nodes, by what the client calls them.
    pub(super) handles: HashMap<u64, u64>,
    run: &'a Arc<AtomicU32>,
}

pub(super) fn build(
    work: &Arc<Work>,
    tables: &Tables,
    context: &LiveContext,
    nodes: &[GraphNode<'_>],
    gates: Option<GraphGates>,
    run: &Arc<AtomicU32>,
) -> CuResult<Built> {
    let mut raw = Graph::default();
    // SAFETY: `raw` is valid for the call.
    unsafe { work.api.graph_create(&mut raw, 0)? };
    let graph = RawGraph { api: work.api, raw };
    let handles = conditional::handles(work, context, raw, nodes)?;
    let (keepers, records) = (Vec::new(), Vec::new());
    let mut builder = Builder { work, tables, context, graph: raw, keepers, records, handles, run };
    let gates = gates.map(|gates| (gates, groups(nodes, gates)));
    builder.level(nodes, 0..nodes.len(), 0, gates.as_ref())?;
    let Builder { keepers, records, .. } = builder;
    Ok(Built { graph, talks: !keepers.is_empty(), keepers, records })
}

/// In front of which nodes a gate stands.
fn groups(nodes: &[GraphNode<'_>], gates: GraphGates) -> Vec<bool> {
    let step = |node| {
        let GraphNode { op, after, enabled }: &GraphNode<'_> = node;
        let is_work = *enabled && matches!(op, Op::Launch { .. } | Op::Fill { .. } | Op::CopyDevice { .. });
        GraphStep { after, is_work }
    };
    let steps: Vec<GraphStep<'_>> = nodes.iter().map(step).collect();
    graph_gates(&steps, gates.time_ns, gates.budget_ns)
}

/// A function's limit of dynamic shared memory, raised while a node is added that needs more than it is now.
///
/// Programs set the limit before each launch, perhaps to less for the next (cuDNN does). Natively a captured launch is
/// checked when it is captured; here all nodes are added at the end, when the last limit holds.
struct RaisedSharedBytes<'a> {
    api: &'a Api,
    function: Function,
    before: c_int,
}

impl<'a> RaisedSharedBytes<'a> {
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
    const LIMIT: c_uint = 8;

    fn of(api: &'a Api, function: Function, needed: u32) -> CuResult<Option<Self>> {
        let mut before = 0;
        // SAFETY: the function lives as long as its module, and `before` is valid for the call.
        of_loaded(api, function, || unsafe { api.function_attribute(&mut before, Self::LIMIT, function) })?;
        let needed = c_int::try_from(needed).map_err(|_| CudaError::INVALID_VALUE)?;
        if needed <= before {
            return Ok(None);
        }
        // SAFETY: the function is loaded.
        unsafe { api.function_set_attribute(function, Self::LIMIT, needed)? };
        Ok(Some(Self { api, function, before }))
    }
}

impl Drop for RaisedSharedBytes<'_> {
    fn drop(&mut self) {
        // SAFETY: the function is loaded.
        let lowered = unsafe { self.api.function_set_attribute(self.function, Self::LIMIT, self.before) };
        if let Err(error) = lowered {
            tracing::warn!(%error, "a function keeps a raised limit of shared memory");
        }
    }
}

impl Builder<'_> {
    /// Adds what does the work of a node; returns what the nodes behind it wait for.
    pub(super) fn add(&mut self, op: &Op<'_>, after: &[RawNode]) -> CuResult<RawNode> {
        match op {
            Op::Empty {} | Op::Free { .. } => self.empty(after),
            // Its memory is mapped here and now, and stays when the graph has run.
            Op::Allocate { address, bytes } => {
                let (context, device) = (self.context.id, self.context.device);
                match self.work.memory.context_of(*address) {
                    Some(_) => {}
                    None => self.work.memory.allocate_uncounted(context, device, *address, *bytes)?,
                }
                self.empty(after)
            }
            Op::Launch { kernel, grid, block, shared_bytes, cooperative, attributes: given, parameters } => {
                let node = KernelNode {
                    function: self.tables.function(*kernel)?,
                    grid: *grid,
                    block: *block,
                    shared_bytes: *shared_bytes,
                    parameters: std::ptr::null_mut(),
                    extra: std::ptr::null_mut(),
                    kernel: std::ptr::null_mut(),
                    context: self.context.raw(),
                };
                let mut raw = RawNode::default();
                let _raised = RaisedSharedBytes::of(&self.work.api, node.function, *shared_bytes)?;
                let parameters = conditional::with_handles(parameters.0, &self.handles);
                with_parameters(&parameters, |extra| {
                    let node = KernelNode { extra, ..node };
                    // SAFETY: everything pointed to is valid for the call, which copies the parameters.
                    unsafe {
                        self.work.api.graph_add_kernel(
                            &mut raw,
                            self.graph,
                            after.as_ptr(),
                            after.len(),
                            &node,
                        )
                    }
                })?;
                for attribute in attributes(self.tables, given, *cooperative)? {
                    // In a graph the edges say what may overlap. Our edges let nothing overlap, so the attribute has no
                    // effect.
                    if attribute.id == PROGRAMMATIC_SERIALIZATION {
                        continue;
                    }
                    // SAFETY: the value has the size of the driver's union and is valid for the call.
                    unsafe { self.work.api.graph_kernel_attribute(raw, attribute.id, &attribute.value)? };
                }
                Ok(raw)
            }
            Op::Fill { target, shape, element_bytes, value } => {
                self.fill(*target, *shape, *element_bytes, *value, after)
            }
            Op::CopyDevice { target, source, shape } => {
                let (target, source) = (self.end(target, shape)?, self.end(source, shape)?);
                self.copy(target, source, *shape, after)
            }
            Op::CopyIn { target, shape, data } => self.copy_in(*target, *shape, data, after),
            Op::CopyOut { source, shape, transfer } => {
                let buffer =
                    Arc::new(Buffer::new(self.work, shape.bytes().ok_or(CudaError::INVALID_VALUE)?)?);
                let source = self.end(source, shape)?;
                let copied = self.copy(End::Host(buffer.address()), source, *shape, after)?;
                let send = Box::new(SendOut {
                    link: self.work.link()?.clone(),
                    transfer: *transfer,
                    run: Arc::clone(self.run),
                    buffer: Arc::clone(&buffer),
                });
                let node = self.host(SendOut::call, (&raw const *send).cast(), &[copied])?;
                self.keepers.push(Keeper::Send(send));
                Ok(node)
            }
            // The client has graphs use the lanes.
            Op::CopyInShared { .. } | Op::CopyOutShared { .. } => Err(CudaError::NOT_SUPPORTED),
            Op::HostCall { token } => {
                unsafe extern "C" fn call(argument: *mut c_void) {
                    // SAFETY: the argument is a `HostCall` that the graph keeps.
                    unsafe { &*argument.cast::<HostCall>() }.run();
                }
                let kept = Box::new(HostCall { link: self.work.link()?.clone(), token: *token });
                let node = self.host(call, (&raw const *kept).cast(), after)?;
                self.keepers.push(Keeper::Call(kept));
                Ok(node)
            }
            Op::Record { event, .. } => {
                let event = self.tables.event(*event)?;
                let mut raw = RawNode::default();
                // SAFETY: everything pointed to is valid for the call.
                unsafe {
                    let (before, count) = (after.as_ptr(), after.len());
                    self.work.api.graph_add_record(&mut raw, self.graph, before, count, event.raw())?;
                }
                self.records.push(Arc::downgrade(&event));
                Ok(raw)
            }
            Op::Wait { event, .. } => {
                let event = self.tables.event(*event)?;
                let mut raw = RawNode::default();
                // SAFETY: everything pointed to is valid for the call.
                unsafe {
                    let (before, count) = (after.as_ptr(), after.len());
                    self.work.api.graph_add_wait(&mut raw, self.graph, before, count, event.raw())?;
                }
                Ok(raw)
            }
            Op::MemoryOps { ops } => self.memory_ops(&mut memory_ops(ops), after),
            // With its bodies, which only its level knows.
            Op::Conditional { .. } => Err(CudaError::INVALID_VALUE),
        }
    }

    /// The end of a copy in memory or in an array.
    fn end(&self, plane: &Plane, shape: &Shape) -> CuResult<End> {
        Ok(self.work.arrays.end(plane, shape)?.map_or(End::Device(*plane), End::Array))
    }

    /// A node that waits until the gate is open.
    pub(super) fn gate(&self, gates: GraphGates, after: &[RawNode]) -> CuResult<RawNode> {
        /// `CU_STREAM_MEM_OP_WAIT_VALUE_64`
        const WAIT_64: c_uint = 4;
        let mut wait =
            BatchMemOp { operation: WAIT_64, address: gates.word, flags: EQUAL, ..BatchMemOp::default() };
        self.memory_ops(std::slice::from_mut(&mut wait), after)
    }

    fn memory_ops(&self, ops: &mut [BatchMemOp], after: &[RawNode]) -> CuResult<RawNode> {
        let (count, list) = (ops.len() as u32, ops.as_mut_ptr());
        let node = BatchMemOpNode { context: self.context.raw(), count, ops: list, flags: 0 };
        let mut raw = RawNode::default();
        // SAFETY: everything pointed to is valid for the call, which copies the list.
        unsafe {
            let (before, count) = (after.as_ptr(), after.len());
            self.work.api.graph_add_memory_ops(&mut raw, self.graph, before, count, &node)?;
        }
        Ok(raw)
    }

    pub(super) fn empty(&self, after: &[RawNode]) -> CuResult<RawNode> {
        let mut raw = RawNode::default();
        // SAFETY: everything pointed to is valid for the call.
        unsafe { self.work.api.graph_add_empty(&mut raw, self.graph, after.as_ptr(), after.len())? };
        Ok(raw)
    }

    fn host(&self, function: HostFunction, argument: *const c_void, after: &[RawNode]) -> CuResult<RawNode> {
        let node = HostNode { function, argument: argument.cast_mut() };
        let mut raw = RawNode::default();
        // SAFETY: the argument is kept for as long as a launch may run.
        unsafe { self.work.api.graph_add_host(&mut raw, self.graph, after.as_ptr(), after.len(), &node)? };
        Ok(raw)
    }

    fn copy_in(
        &mut self,
        target: Plane,
        shape: Shape,
        data: &HostData<'_>,
        after: &[RawNode],
    ) -> CuResult<RawNode> {
        let bytes = shape.bytes().ok_or(CudaError::INVALID_VALUE)?;
        let buffer = Arc::new(Buffer::new(self.work, bytes)?);
        let target = self.end(&target, &shape)?;
        match data {
            HostData::Inline { bytes: inline } => {
                if inline.0.len() as u64 != bytes {
                    return Err(CudaError::INVALID_VALUE);
                }
                buffer.write(0, inline.0);
                let node = self.copy(target, End::Host(buffer.address()), shape, after)?;
                self.keepers.push(Keeper::Bytes(buffer));
                Ok(node)
            }
            HostData::Pulled { transfer } => {
                let (link, transfer) = (self.work.link()?.clone(), *transfer);
                let pull = Box::new(PullIn { link, transfer, buffer: Arc::clone(&buffer) });
                let pulled = self.host(PullIn::call, (&raw const *pull).cast(), after)?;
                self.keepers.push(Keeper::Pull(pull));
                self.copy(target, End::Host(buffer.address()), shape, &[pulled])
            }
            // Pushed bytes come once, but a graph may run many times.
            HostData::Pushed { .. } => Err(CudaError::INVALID_VALUE),
        }
    }

    fn fill(
        &self,
        target: Plane,
        shape: Shape,
        element_bytes: u8,
        value: u32,
        after: &[RawNode],
    ) -> CuResult<RawNode> {
        let mut before = after.to_vec();
        let mut raw = RawNode::default();
        for slice in 0..shape.depth.max(1) {
            let node = MemsetNode {
                target: target.address + slice * target.slice_pitch,
                pitch: target.row_pitch as usize,
                value,
                element_bytes: element_bytes.into(),
                width: (shape.width / u64::from(element_bytes.max(1))) as usize,
                height: shape.height.max(1) as usize,
            };
            // SAFETY: everything pointed to is valid for the call.
            unsafe {
                let (api, context) = (&self.work.api, self.context.raw());
                api.graph_add_memset(&mut raw, self.graph, before.as_ptr(), before.len(), &node, context)?;
            }
            before = vec![raw];
        }
        Ok(raw)
    }

    fn copy(&self, target: End, source: End, shape: Shape, after: &[RawNode]) -> CuResult<RawNode> {
        let mut node = Copy3D {
            width: shape.width as usize,
            height: shape.height.max(1) as usize,
            depth: shape.depth.max(1) as usize,
            ..Copy3D::default()
        };
        match source {
            End::Device(plane) => {
                (node.source_type, node.source_device) = (MEMORY_DEVICE, plane.address);
                (node.source_pitch, node.source_height) = pitches(plane, shape)?;
            }
            End::Array(end) => end.as_source(&mut node),
            End::Host(address) => {
                (node.source_type, node.source_host) = (MEMORY_HOST, address);
                (node.source_pitch, node.source_height) = (node.width, node.height);
            }
        }
        match target {
            End::Device(plane) => {
                (node.target_type, node.target_device) = (MEMORY_DEVICE, plane.address);
                (node.target_pitch, node.target_height) = pitches(plane, shape)?;
            }
            End::Array(end) => end.as_target(&mut node),
            End::Host(address) => {
                (node.target_type, node.target_host) = (MEMORY_HOST, address);
                (node.target_pitch, node.target_height) = (node.width, node.height);
            }
        }
        let mut raw = RawNode::default();
        // SAFETY: the description is valid for the call; host memory in it is kept for as long as a launch may run.
        unsafe {
            let (api, context) = (&self.work.api, self.context.raw());
            api.graph_add_copy(&mut raw, self.graph, after.as_ptr(), after.len(), &node, context)?;
        }
        Ok(raw)
    }
}

/// A plane's pitch, and its slices' distance in rows, as a copy node wants them.
fn pitches(plane: Plane, shape: Shape) -> CuResult<(usize, usize)> {
    let pitch = if plane.row_pitch == 0 { shape.width } else { plane.row_pitch };
    let rows = match shape.depth {
        0 | 1 => shape.height.max(1),
        _ if plane.slice_pitch.is_multiple_of(pitch) => plane.slice_pitch / pitch,
        _ => return Err(CudaError::NOT_SUPPORTED),
    };
    Ok((pitch as usize, rows as usize))
}
