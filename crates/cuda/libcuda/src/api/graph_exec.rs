//! Bodies: executable graphs.

use super::{
    graph::{graph_id, node_id},
    graph_node::{item_of, same_context},
    graph_params as params,
};
use crate::{
    border::*,
    state::{Exec, InstantiateError, Stream, forbid_on_capturing, forbid_unsafe_call, graphs},
};
use cuda_abi::*;
use cuda_client::graph::{Mismatch, NodeId, UpdateResult};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_*` besides freeing memory on launch.
const UPLOAD: u64 = 2;
const DEVICE_LAUNCH: u64 = 4;
const USE_NODE_PRIORITY: u64 = 8;
const AUTO_FREE: u64 = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH as u64;

fn make(graph: GraphHandle, flags: u64) -> Result<std::sync::Arc<Exec>, InstantiateError> {
    if flags & !(AUTO_FREE | UPLOAD | DEVICE_LAUNCH | USE_NODE_PRIORITY) != 0 {
        return Err(CudaError::INVALID_VALUE.into());
    }
    if flags & DEVICE_LAUNCH != 0 {
        // Kernels would launch the graph on the device, and the client would not know.
        return Err(CudaError::NOT_SUPPORTED.into());
    }
    Exec::instantiate(graph_id(graph), flags)
}

/// cuGraphInstantiate_v2 cuGraphInstantiate
pub(crate) fn instantiate_v2(
    mut graph_exec: Out<'_, GraphExecHandle>,
    graph: GraphHandle,
    error_node: Option<Out<'_, GraphNodeHandle>>,
    log_buffer: Option<OutSlice<'_, u8>>,
    _buffer_size: usize,
) -> CuResult<()> {
    if let Some(mut log) = log_buffer {
        log.set_text(b"");
    }
    let made = make(graph, 0);
    if let Some(mut place) = error_node {
        let node = made.as_ref().err().and_then(|error| error.node);
        place.set(node.map_or(GraphNodeHandle::NULL, |node| GraphNodeHandle(node.0)));
    }
    graph_exec.set(GraphExecHandle(made.map_err(|error| error.error)?.handle));
    Ok(())
}

/// cuGraphInstantiateWithFlags
pub(crate) fn instantiate_with_flags(
    mut graph_exec: Out<'_, GraphExecHandle>,
    graph: GraphHandle,
    flags: u64,
) -> CuResult<()> {
    if flags & UPLOAD != 0 {
        // There is no stream to upload in.
        return Err(CudaError::INVALID_VALUE);
    }
    graph_exec.set(GraphExecHandle(make(graph, flags).map_err(|error| error.error)?.handle));
    Ok(())
}

/// cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz
pub(crate) fn instantiate_with_params(
    mut graph_exec: Out<'_, GraphExecHandle>,
    graph: GraphHandle,
    mut instantiate_params: InOut<'_, CUDA_GRAPH_INSTANTIATE_PARAMS>,
    default_stream: StreamArg,
) -> CuResult<()> {
    let mut given = instantiate_params.get();
    let made = make(graph, given.flags).and_then(|exec| {
        if given.flags & UPLOAD != 0 {
            let stream = StreamArg::new(StreamHandle(given.upload_stream), default_stream);
            Stream::of(stream).and_then(|stream| exec.upload(&stream))?;
        }
        Ok(exec)
    });
    let failure = made.as_ref().err();
    given.result_out = failure.map_or(CUDA_GRAPH_INSTANTIATE_SUCCESS, |failure| failure.result);
    given.error_node_out = failure.and_then(|failure| failure.node).map_or(0, |node| node.0);
    instantiate_params.set(given);
    graph_exec.set(GraphExecHandle(made.map_err(|error| error.error)?.handle));
    Ok(())
}

/// cuGraphExecDestroy
pub(crate) fn destroy(graph_exec: GraphExecHandle) -> CuResult<()> {
    let exec = Exec::find(graph_exec.0)?;
    forbid_unsafe_call()?;
    exec.destroy()
}

/// cuGraphExecGetFlags
pub(crate) fn flags(graph_exec: GraphExecHandle, mut flags: Out<'_, u64>) -> CuResult<()> {
    flags.set(Exec::find(graph_exec.0)?.flags);
    Ok(())
}

/// cuGraphLaunch cuGraphLaunch_ptsz. A capture has no place for it: the driver refuses, and so do we.
pub(crate) fn launch(graph: GraphExecHandle, stream: StreamArg) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    forbid_on_capturing(&stream)?;
    Exec::find(graph.0)?.launch(&stream)
}

/// cuGraphUpload cuGraphUpload_ptsz
pub(crate) fn upload(graph: GraphExecHandle, stream: StreamArg) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    forbid_on_capturing(&stream)?;
    Exec::find(graph.0)?.upload(&stream)
}

/// The result of an update and the code that the call returns.
fn update(graph_exec: GraphExecHandle, graph: GraphHandle) -> (CUgraphExecUpdateResultInfo, CuResult<()>) {
    let mut info = CUgraphExecUpdateResultInfo::default();
    let result = match Exec::find(graph_exec.0).and_then(|exec| exec.update(graph_id(graph))) {
        Ok(None) => Ok(()),
        Ok(Some(Mismatch { result, node, from })) => {
            let handle = |node: Option<NodeId>| node.map_or(0, |node| node.0);
            info.result = result as u32;
            (info.error_node, info.error_from_node) = (handle(node), handle(from));
            Err(CudaError::GRAPH_EXEC_UPDATE_FAILURE)
        }
        Err(error) => {
            info.result = UpdateResult::Error as u32;
            Err(error)
        }
    };
    (info, result)
}

/// cuGraphExecUpdate. Where graphs differ in size, driver 580 answers "not supported" here; we answer as documented.
pub(crate) fn update_v1(
    graph_exec: GraphExecHandle,
    graph: GraphHandle,
    error_node: Option<Out<'_, GraphNodeHandle>>,
    update_result_out: Option<Out<'_, u32>>,
) -> CuResult<()> {
    let (info, result) = update(graph_exec, graph);
    if let Some(mut node) = error_node {
        node.set(GraphNodeHandle(info.error_node));
    }
    if let Some(mut place) = update_result_out {
        place.set(info.result);
    }
    result
}

/// cuGraphExecUpdate_v2
pub(crate) fn update_v2(
    graph_exec: GraphExecHandle,
    graph: GraphHandle,
    result_info: Option<Out<'_, CUgraphExecUpdateResultInfo>>,
) -> CuResult<()> {
    let (info, result) = update(graph_exec, graph);
    if let Some(mut place) = result_info {
        place.set(info);
    }
    result
}

/// cuGraphExecNodeSetParams
pub(crate) fn set_node_params(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    node_params: InOut<'_, CUgraphNodeParams>,
) -> CuResult<()> {
    let given = node_params.get();
    if given.kind == CU_GRAPH_NODE_TYPE_GRAPH {
        let child: CUDA_CHILD_GRAPH_NODE_PARAMS = given.body();
        return set_child_params(graph_exec, node, GraphHandle(child.graph));
    }
    Exec::find(graph_exec.0)?.set_node(node_id(node), |old| item_of(&given, Some(old)))
}

/// cuGraphExecKernelNodeSetParams
pub(crate) fn set_kernel_params_v1(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    node_params: &CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult<()> {
    set_kernel_params_v2(graph_exec, node, &(*node_params).into())
}

/// cuGraphExecKernelNodeSetParams_v2
pub(crate) fn set_kernel_params_v2(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    node_params: &CUDA_KERNEL_NODE_PARAMS_v2,
) -> CuResult<()> {
    Exec::find(graph_exec.0)?.set_node(node_id(node), |old| params::kernel(node_params, Some(old.kernel()?)))
}

/// cuGraphExecMemcpyNodeSetParams
pub(crate) fn set_memcpy_params(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    copy_params: &CUDA_MEMCPY3D,
    context: ContextHandle,
) -> CuResult<()> {
    let context = params::context_or_current(context.0)?;
    Exec::find(graph_exec.0)?.set_node(node_id(node), |_| params::memcpy(copy_params, context))
}

/// cuGraphExecMemsetNodeSetParams
pub(crate) fn set_memset_params(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    memset_params: &CUDA_MEMSET_NODE_PARAMS,
    context: ContextHandle,
) -> CuResult<()> {
    let exec = Exec::find(graph_exec.0)?;
    let context = params::context_or_current(context.0);
    exec.set_node(node_id(node), |old| params::memset(memset_params, context.or_else(|_| same_context(old))?))
}

/// cuGraphExecHostNodeSetParams
pub(crate) fn set_host_params(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    node_params: &CUDA_HOST_NODE_PARAMS,
) -> CuResult<()> {
    Exec::find(graph_exec.0)?.set_node(node_id(node), |_| params::host(node_params))
}

/// cuGraphExecChildGraphNodeSetParams
pub(crate) fn set_child_params(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    child_graph: GraphHandle,
) -> CuResult<()> {
    let exec = Exec::find(graph_exec.0)?;
    let child = graphs().graphs.snapshot(graph_id(child_graph))?;
    exec.set_child(node_id(node), &child)
}

/// cuGraphExecEventRecordNodeSetEvent
pub(crate) fn set_event_record_event(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    event: EventHandle,
) -> CuResult<()> {
    Exec::find(graph_exec.0)?.set_node(node_id(node), |_| params::record(event.0))
}

/// cuGraphExecEventWaitNodeSetEvent
pub(crate) fn set_event_wait_event(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    event: EventHandle,
) -> CuResult<()> {
    Exec::find(graph_exec.0)?.set_node(node_id(node), |_| params::wait(event.0))
}

/// cuGraphExecBatchMemOpNodeSetParams
pub(crate) fn set_batch_mem_op_params(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    node_params: &CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> CuResult<()> {
    Exec::find(graph_exec.0)?.set_node(node_id(node), |_| params::batch(node_params))
}

/// cuGraphNodeSetEnabled
pub(crate) fn set_node_enabled(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    is_enabled: u32,
) -> CuResult<()> {
    Exec::find(graph_exec.0)?.set_enabled(node_id(node), is_enabled != 0)
}

/// cuGraphNodeGetEnabled
pub(crate) fn node_enabled(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    mut is_enabled: Out<'_, u32>,
) -> CuResult<()> {
    is_enabled.set(u32::from(Exec::find(graph_exec.0)?.is_enabled(node_id(node))?));
    Ok(())
}
