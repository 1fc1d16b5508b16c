//! Bodies: nodes of every kind.

#![allow(unsafe_code)]

use super::{
    graph::{edges_of, graph_id, node_id},
    graph_attributes, graph_params as params,
};
use crate::{
    border::*,
    state::{
        ChildGraph, Context, Given, Item, NodeOp, client, event_of, graphs, place_graph_memory,
        retain_objects,
    },
};
use cuda_abi::*;
use cuda_client::graph::{GraphId, NodeId, Payload, store::Edge};
use std::sync::Arc;

/// `CU_MEM_LOCATION_TYPE_DEVICE` and `CU_MEM_ALLOCATION_TYPE_PINNED`.
const LOCATION_DEVICE: u32 = 1;
const ALLOCATION_PINNED: u32 = 1;

fn add(
    mut graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    item: CuResult<Item>,
) -> CuResult<()> {
    let graph = graph_id(graph);
    let dependencies = edges_of(dependencies, None)?;
    let mut store = graphs();
    store.graphs.nodes(graph)?;
    graph_node.set(GraphNodeHandle(store.graphs.add(graph, &dependencies, item?)?.0));
    Ok(())
}

/// Gives a node other work of the same kind.
fn set(node: GraphNodeHandle, item: impl FnOnce(&Item) -> CuResult<Item>) -> CuResult<()> {
    let mut store = graphs();
    let known = store.graphs.payload_mut(node_id(node))?;
    let new = item(known)?;
    if new.node_type() != known.node_type() {
        return Err(CudaError::INVALID_VALUE);
    }
    *known = new;
    Ok(())
}

/// The context that a copy or memset node stays in when its parameters change.
pub(crate) fn same_context(item: &Item) -> CuResult<Arc<Context>> {
    item.context().ok_or(CudaError::INVALID_VALUE)
}

/// cuGraphAddNode
pub(crate) fn add_v1(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    node_params: InOut<'_, CUgraphNodeParams>,
) -> CuResult<()> {
    add_v2(graph_node, graph, dependencies, None, num_dependencies, node_params)
}

/// cuGraphAddNode_v2
pub(crate) fn add_v2(
    mut graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    dependency_data: Option<&[CUgraphEdgeData]>,
    _num_dependencies: usize,
    mut node_params: InOut<'_, CUgraphNodeParams>,
) -> CuResult<()> {
    let graph = graph_id(graph);
    let edges = edges_of(dependencies, dependency_data)?;
    let mut given = node_params.get();
    let node = match given.kind {
        CU_GRAPH_NODE_TYPE_GRAPH => {
            let child: CUDA_CHILD_GRAPH_NODE_PARAMS = given.body();
            let (node, embedded) = embed(graph, &edges, GraphId(child.graph), child.ownership)?;
            given.set_body(CUDA_CHILD_GRAPH_NODE_PARAMS { graph: embedded.0, ..child });
            node_params.set(given);
            node
        }
        CU_GRAPH_NODE_TYPE_CONDITIONAL => {
            let asked: CUDA_CONDITIONAL_NODE_PARAMS = given.body();
            let context = params::context_or_current(asked.ctx)?;
            let (node, filled) = graphs().add_conditional(graph, &edges, &asked, &context)?;
            given.set_body(filled);
            node_params.set(given);
            node
        }
        CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            let (node, filled) = allocate(graph, &edges, given.body())?;
            given.set_body(filled);
            node_params.set(given);
            node
        }
        CU_GRAPH_NODE_TYPE_MEM_FREE => free(graph, &edges, given.body::<CUDA_MEM_FREE_NODE_PARAMS>().dptr)?,
        _ => {
            let item = item_of(&given, None)?;
            graphs().graphs.add(graph, &edges, item)?
        }
    };
    graph_node.set(GraphNodeHandle(node.0));
    Ok(())
}

/// The work that generic parameters describe, for kinds of nodes that need no more than that.
pub(crate) fn item_of(given: &CUgraphNodeParams, old: Option<&Item>) -> CuResult<Item> {
    if given.reserved0 != [0; 3] || given.reserved2 != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    match given.kind {
        CU_GRAPH_NODE_TYPE_KERNEL => params::kernel(&given.body(), old.and_then(|old| old.kernel().ok())),
        CU_GRAPH_NODE_TYPE_MEMCPY => {
            let copy: CUDA_MEMCPY_NODE_PARAMS = given.body();
            params::memcpy(&copy.copy_params, params::context_or_current(copy.copy_ctx)?)
        }
        CU_GRAPH_NODE_TYPE_MEMSET => {
            let fill: CUDA_MEMSET_NODE_PARAMS_v2 = given.body();
            params::memset(&given.body(), params::context_or_current(fill.ctx)?)
        }
        CU_GRAPH_NODE_TYPE_HOST => params::host(&given.body()),
        CU_GRAPH_NODE_TYPE_EMPTY => Ok(NodeOp::Empty.into()),
        CU_GRAPH_NODE_TYPE_WAIT_EVENT => params::wait(given.body::<CUDA_EVENT_NODE_PARAMS>().event),
        CU_GRAPH_NODE_TYPE_EVENT_RECORD => params::record(given.body::<CUDA_EVENT_NODE_PARAMS>().event),
        CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => params::batch(&given.body()),
        // Semaphores of other APIs would have to reach the worker's machine; conditional nodes cannot change.
        CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL
        | CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT
        | CU_GRAPH_NODE_TYPE_CONDITIONAL => Err(CudaError::NOT_SUPPORTED),
        _ => Err(CudaError::INVALID_VALUE),
    }
}

/// cuGraphNodeSetParams
pub(crate) fn set_params(node: GraphNodeHandle, node_params: InOut<'_, CUgraphNodeParams>) -> CuResult<()> {
    let given = node_params.get();
    set(node, |old| item_of(&given, Some(old)))
}

/// cuGraphAddKernelNode
pub(crate) fn add_kernel_v1(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    node_params: &CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult<()> {
    add_kernel_v2(graph_node, graph, dependencies, num_dependencies, &(*node_params).into())
}

/// cuGraphAddKernelNode_v2
pub(crate) fn add_kernel_v2(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    _num_dependencies: usize,
    node_params: &CUDA_KERNEL_NODE_PARAMS_v2,
) -> CuResult<()> {
    add(graph_node, graph, dependencies, params::kernel(node_params, None))
}

/// cuGraphKernelNodeGetParams
pub(crate) fn kernel_params_v1(
    node: GraphNodeHandle,
    mut node_params: Out<'_, CUDA_KERNEL_NODE_PARAMS_v1>,
) -> CuResult<()> {
    node_params.set(params::kernel_for_c(graphs().graphs.payload_mut(node_id(node))?)?.into());
    Ok(())
}

/// cuGraphKernelNodeGetParams_v2
pub(crate) fn kernel_params_v2(
    node: GraphNodeHandle,
    mut node_params: Out<'_, CUDA_KERNEL_NODE_PARAMS_v2>,
) -> CuResult<()> {
    node_params.set(params::kernel_for_c(graphs().graphs.payload_mut(node_id(node))?)?);
    Ok(())
}

/// cuGraphKernelNodeSetParams
pub(crate) fn set_kernel_params_v1(
    node: GraphNodeHandle,
    node_params: &CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult<()> {
    set_kernel_params_v2(node, &(*node_params).into())
}

/// cuGraphKernelNodeSetParams_v2
pub(crate) fn set_kernel_params_v2(
    node: GraphNodeHandle,
    node_params: &CUDA_KERNEL_NODE_PARAMS_v2,
) -> CuResult<()> {
    set(node, |old| params::kernel(node_params, Some(old.kernel()?)))
}

/// cuGraphKernelNodeCopyAttributes
pub(crate) fn copy_kernel_attributes(dst: GraphNodeHandle, src: GraphNodeHandle) -> CuResult<()> {
    let mut store = graphs();
    let source = store.graphs.payload(node_id(src))?.kernel()?;
    let (cooperative, attributes) = (source.cooperative, source.attributes.clone());
    let target = store.graphs.payload_mut(node_id(dst))?.kernel_mut()?;
    (target.cooperative, target.attributes) = (cooperative, attributes);
    Ok(())
}

/// cuGraphKernelNodeGetAttribute
pub(crate) fn kernel_attribute(
    node: GraphNodeHandle,
    attribute: u32,
    mut value_out: Out<'_, CUlaunchAttributeValue>,
) -> CuResult<()> {
    value_out.set(graph_attributes::get(graphs().graphs.payload(node_id(node))?.kernel()?, attribute)?);
    Ok(())
}

/// cuGraphKernelNodeSetAttribute
pub(crate) fn set_kernel_attribute(
    node: GraphNodeHandle,
    attribute: u32,
    value: &CUlaunchAttributeValue,
) -> CuResult<()> {
    let mut store = graphs();
    graph_attributes::set(store.graphs.payload_mut(node_id(node))?.kernel_mut()?, attribute, value)
}

/// cuGraphAddMemcpyNode
pub(crate) fn add_memcpy(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    _num_dependencies: usize,
    copy_params: &CUDA_MEMCPY3D,
    context: ContextHandle,
) -> CuResult<()> {
    let item = params::context_or_current(context.0).and_then(|context| params::memcpy(copy_params, context));
    add(graph_node, graph, dependencies, item)
}

/// cuGraphMemcpyNodeGetParams
pub(crate) fn memcpy_params(node: GraphNodeHandle, mut node_params: Out<'_, CUDA_MEMCPY3D>) -> CuResult<()> {
    node_params.set(params::memcpy_for_c(graphs().graphs.payload(node_id(node))?)?);
    Ok(())
}

/// cuGraphMemcpyNodeSetParams
pub(crate) fn set_memcpy_params(node: GraphNodeHandle, node_params: &CUDA_MEMCPY3D) -> CuResult<()> {
    set(node, |old| params::memcpy(node_params, same_context(old)?))
}

/// cuGraphAddMemsetNode
pub(crate) fn add_memset(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    _num_dependencies: usize,
    memset_params: &CUDA_MEMSET_NODE_PARAMS,
    context: ContextHandle,
) -> CuResult<()> {
    let item =
        params::context_or_current(context.0).and_then(|context| params::memset(memset_params, context));
    add(graph_node, graph, dependencies, item)
}

/// cuGraphMemsetNodeGetParams
pub(crate) fn memset_params(
    node: GraphNodeHandle,
    mut node_params: Out<'_, CUDA_MEMSET_NODE_PARAMS>,
) -> CuResult<()> {
    node_params.set(params::memset_for_c(graphs().graphs.payload(node_id(node))?)?);
    Ok(())
}

/// cuGraphMemsetNodeSetParams
pub(crate) fn set_memset_params(
    node: GraphNodeHandle,
    node_params: &CUDA_MEMSET_NODE_PARAMS,
) -> CuResult<()> {
    set(node, |old| params::memset(node_params, same_context(old)?))
}

/// cuGraphAddHostNode
pub(crate) fn add_host(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    _num_dependencies: usize,
    node_params: &CUDA_HOST_NODE_PARAMS,
) -> CuResult<()> {
    add(graph_node, graph, dependencies, params::host(node_params))
}

/// cuGraphHostNodeGetParams
pub(crate) fn host_params(
    node: GraphNodeHandle,
    mut node_params: Out<'_, CUDA_HOST_NODE_PARAMS>,
) -> CuResult<()> {
    node_params.set(params::host_for_c(graphs().graphs.payload(node_id(node))?)?);
    Ok(())
}

/// cuGraphHostNodeSetParams
pub(crate) fn set_host_params(node: GraphNodeHandle, node_params: &CUDA_HOST_NODE_PARAMS) -> CuResult<()> {
    set(node, |_| params::host(node_params))
}

/// cuGraphAddChildGraphNode
pub(crate) fn add_child(
    mut graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    _num_dependencies: usize,
    child_graph: GraphHandle,
) -> CuResult<()> {
    let edges = edges_of(dependencies, None)?;
    let (node, _) =
        embed(graph_id(graph), &edges, graph_id(child_graph), CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE)?;
    graph_node.set(GraphNodeHandle(node.0));
    Ok(())
}

/// Adds a child graph node; returns it and the graph it embeds.
fn embed(graph: GraphId, edges: &[Edge], child: GraphId, ownership: u32) -> CuResult<(NodeId, GraphId)> {
    let mut store = graphs();
    let payload = Item::from(NodeOp::Child(ChildGraph));
    let node = match ownership {
        CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE => {
            let node = store.graphs.add_child(graph, edges, payload, child)?;
            let embedded = store.graphs.child(node)?;
            retain_objects(&store.graphs.objects(embedded)?);
            node
        }
        CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE if store.captures.is_capturing_into(child) => {
            return Err(CudaError::ILLEGAL_STATE);
        }
        CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE => store.graphs.add_moved_child(graph, edges, payload, child)?,
        _ => return Err(CudaError::INVALID_VALUE),
    };
    Ok((node, store.graphs.child(node)?))
}

/// cuGraphChildGraphNodeGetGraph
pub(crate) fn child_graph(node: GraphNodeHandle, mut graph: Out<'_, GraphHandle>) -> CuResult<()> {
    graph.set(GraphHandle(graphs().graphs.child(node_id(node))?.0));
    Ok(())
}

/// cuGraphAddEmptyNode
pub(crate) fn add_empty(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    _num_dependencies: usize,
) -> CuResult<()> {
    add(graph_node, graph, dependencies, Ok(NodeOp::Empty.into()))
}

/// cuGraphAddEventRecordNode
pub(crate) fn add_event_record(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    _num_dependencies: usize,
    event: EventHandle,
) -> CuResult<()> {
    add(graph_node, graph, dependencies, params::record(event.0))
}

fn node_event(node: GraphNodeHandle, kind: u32) -> CuResult<EventHandle> {
    let store = graphs();
    let item = store.graphs.payload(node_id(node))?;
    let event = event_of(item).filter(|_| item.node_type() == kind).ok_or(CudaError::INVALID_VALUE)?;
    Ok(EventHandle(event.handle))
}

/// cuGraphEventRecordNodeGetEvent
pub(crate) fn event_record_event(node: GraphNodeHandle, mut event_out: Out<'_, EventHandle>) -> CuResult<()> {
    event_out.set(node_event(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD)?);
    Ok(())
}

/// cuGraphEventRecordNodeSetEvent
pub(crate) fn set_event_record_event(node: GraphNodeHandle, event: EventHandle) -> CuResult<()> {
    set(node, |_| params::record(event.0))
}

/// cuGraphAddEventWaitNode
pub(crate) fn add_event_wait(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    _num_dependencies: usize,
    event: EventHandle,
) -> CuResult<()> {
    add(graph_node, graph, dependencies, params::wait(event.0))
}

/// cuGraphEventWaitNodeGetEvent
pub(crate) fn event_wait_event(node: GraphNodeHandle, mut event_out: Out<'_, EventHandle>) -> CuResult<()> {
    event_out.set(node_event(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT)?);
    Ok(())
}

/// cuGraphEventWaitNodeSetEvent
pub(crate) fn set_event_wait_event(node: GraphNodeHandle, event: EventHandle) -> CuResult<()> {
    set(node, |_| params::wait(event.0))
}

/// cuGraphAddMemAllocNode
pub(crate) fn add_mem_alloc(
    mut graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    _num_dependencies: usize,
    mut node_params: InOut<'_, CUDA_MEM_ALLOC_NODE_PARAMS>,
) -> CuResult<()> {
    let (node, filled) = allocate(graph_id(graph), &edges_of(dependencies, None)?, node_params.get())?;
    node_params.set(filled);
    graph_node.set(GraphNodeHandle(node.0));
    Ok(())
}

/// Adds an allocation node; its memory is placed now and for all launches.
fn allocate(
    graph: GraphId,
    edges: &[Edge],
    mut given: CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CuResult<(NodeId, CUDA_MEM_ALLOC_NODE_PARAMS)> {
    let properties = given.pool_props;
    if properties.handle_types != 0 {
        return Err(CudaError::NOT_SUPPORTED);
    }
    let on_device = properties.alloc_type == ALLOCATION_PINNED && properties.location.kind == LOCATION_DEVICE;
    if !on_device || given.bytesize == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let device = client()?.device(properties.location.id).map_err(|_| CudaError::INVALID_VALUE)?;
    // SAFETY: the program says that as many descriptions are there.
    let access: &[CUmemAccessDesc] = unsafe { slice_at(given.access_descs, given.access_desc_count) }?;
    let is_owner = |entry: &CUmemAccessDesc| {
        entry.location.kind == LOCATION_DEVICE && entry.location.id == properties.location.id
    };
    if !access.iter().all(is_owner) {
        // Memory of a graph is not mapped on other devices.
        return Err(CudaError::NOT_SUPPORTED);
    }
    let current = crate::state::current().filter(|context| context.device == device.ordinal);
    let context = current.unwrap_or_else(|| Arc::clone(&device.primary));
    let bytes = given.bytesize as u64;
    let mut store = graphs();
    store.graphs.nodes(graph)?;
    let address = place_graph_memory(&context, bytes)?;
    let op = NodeOp::Allocate { address, bytes };
    let item = Item::new(op, Given::Allocation { properties, access: access.into() });
    let node = store.graphs.add(graph, edges, item).inspect_err(|_| {
        let _ = device.memory.remove(address);
    })?;
    store.memory.add(address, bytes, device.ordinal, graph);
    given.dptr = address;
    Ok((node, given))
}

/// cuGraphMemAllocNodeGetParams
pub(crate) fn mem_alloc_params(
    node: GraphNodeHandle,
    mut params_out: Out<'_, CUDA_MEM_ALLOC_NODE_PARAMS>,
) -> CuResult<()> {
    let store = graphs();
    let item = store.graphs.payload(node_id(node))?;
    let NodeOp::Allocate { address, bytes, .. } = &item.op else { return Err(CudaError::INVALID_VALUE) };
    let mut shown =
        CUDA_MEM_ALLOC_NODE_PARAMS { bytesize: *bytes as usize, dptr: *address, ..Default::default() };
    match &item.given {
        Given::Allocation { properties, access } => {
            shown.pool_props = *properties;
            shown.access_desc_count = access.len();
            shown.access_descs = if access.is_empty() { 0 } else { access.as_ptr() as u64 };
        }
        _ => {
            let device = crate::state::memory_of(*address).map_or(0, |device| device.ordinal as i32);
            shown.pool_props.alloc_type = ALLOCATION_PINNED;
            shown.pool_props.location = CUmemLocation { kind: LOCATION_DEVICE, id: device };
        }
    }
    params_out.set(shown);
    Ok(())
}

/// cuGraphAddMemFreeNode
pub(crate) fn add_mem_free(
    mut graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    _num_dependencies: usize,
    device_pointer: u64,
) -> CuResult<()> {
    let node = free(graph_id(graph), &edges_of(dependencies, None)?, device_pointer)?;
    graph_node.set(GraphNodeHandle(node.0));
    Ok(())
}

/// Adds a node that frees memory of a graph.
fn free(graph: GraphId, edges: &[Edge], address: u64) -> CuResult<NodeId> {
    let mut store = graphs();
    store.graphs.nodes(graph)?;
    store.memory.add_free(address, graph)?;
    let added = store.graphs.add(graph, edges, NodeOp::Free { address }.into());
    if added.is_err() {
        store.memory.remove_free(address, graph);
    }
    added
}

/// cuGraphMemFreeNodeGetParams
pub(crate) fn mem_free_params(node: GraphNodeHandle, mut dptr_out: Out<'_, u64>) -> CuResult<()> {
    match graphs().graphs.payload(node_id(node))?.op {
        NodeOp::Free { address } => {
            dptr_out.set(address);
            Ok(())
        }
        _ => Err(CudaError::INVALID_VALUE),
    }
}

/// cuGraphAddBatchMemOpNode
pub(crate) fn add_batch_mem_op(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    _num_dependencies: usize,
    node_params: &CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> CuResult<()> {
    add(graph_node, graph, dependencies, params::batch(node_params))
}

/// cuGraphBatchMemOpNodeGetParams
pub(crate) fn batch_mem_op_params(
    node: GraphNodeHandle,
    mut node_params_out: Out<'_, CUDA_BATCH_MEM_OP_NODE_PARAMS>,
) -> CuResult<()> {
    node_params_out.set(params::batch_for_c(graphs().graphs.payload_mut(node_id(node))?)?);
    Ok(())
}

/// cuGraphBatchMemOpNodeSetParams
pub(crate) fn set_batch_mem_op_params(
    node: GraphNodeHandle,
    node_params: &CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> CuResult<()> {
    set(node, |_| params::batch(node_params))
}
