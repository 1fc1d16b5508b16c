//! Bodies: graph exec.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuGraphInstantiate_v2 cuGraphInstantiate
pub(crate) fn instantiate_v2(
    graph_exec: Out<'_, GraphExecHandle>,
    graph: GraphHandle,
    error_node: Option<Out<'_, GraphNodeHandle>>,
    log_buffer: Option<OutSlice<'_, u8>>,
    buffer_size: usize,
) -> CuResult<()> {
    Err(process::pending("cuGraphInstantiate_v2"))
}

/// cuGraphInstantiateWithFlags
pub(crate) fn instantiate_with_flags(
    graph_exec: Out<'_, GraphExecHandle>,
    graph: GraphHandle,
    flags: u64,
) -> CuResult<()> {
    Err(process::pending("cuGraphInstantiateWithFlags"))
}

/// cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz
pub(crate) fn instantiate_with_params(
    graph_exec: Out<'_, GraphExecHandle>,
    graph: GraphHandle,
    instantiate_params: InOut<'_, CUDA_GRAPH_INSTANTIATE_PARAMS>,
    default_stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuGraphInstantiateWithParams"))
}

/// cuGraphExecDestroy
pub(crate) fn destroy(graph_exec: GraphExecHandle) -> CuResult<()> {
    Err(process::pending("cuGraphExecDestroy"))
}

/// cuGraphExecGetFlags
pub(crate) fn flags(graph_exec: GraphExecHandle, flags: Out<'_, u64>) -> CuResult<()> {
    Err(process::pending("cuGraphExecGetFlags"))
}

/// cuGraphLaunch cuGraphLaunch_ptsz
pub(crate) fn launch(graph: GraphExecHandle, stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuGraphLaunch"))
}

/// cuGraphUpload cuGraphUpload_ptsz
pub(crate) fn upload(graph: GraphExecHandle, stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuGraphUpload"))
}

/// cuGraphExecUpdate
pub(crate) fn update_v1(
    graph_exec: GraphExecHandle,
    graph: GraphHandle,
    error_node: Option<Out<'_, GraphNodeHandle>>,
    update_result_out: Option<Out<'_, u32>>,
) -> CuResult<()> {
    Err(process::pending("cuGraphExecUpdate"))
}

/// cuGraphExecUpdate_v2
pub(crate) fn update_v2(
    graph_exec: GraphExecHandle,
    graph: GraphHandle,
    result_info: Option<Out<'_, CUgraphExecUpdateResultInfo>>,
) -> CuResult<()> {
    Err(process::pending("cuGraphExecUpdate_v2"))
}

/// cuGraphExecNodeSetParams
pub(crate) fn set_node_params(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    node_params: InOut<'_, CUgraphNodeParams>,
) -> CuResult<()> {
    Err(process::pending("cuGraphExecNodeSetParams"))
}

/// cuGraphExecKernelNodeSetParams
pub(crate) fn set_kernel_params_v1(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    node_params: &CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult<()> {
    Err(process::pending("cuGraphExecKernelNodeSetParams"))
}

/// cuGraphExecKernelNodeSetParams_v2
pub(crate) fn set_kernel_params_v2(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    node_params: &CUDA_KERNEL_NODE_PARAMS_v2,
) -> CuResult<()> {
    Err(process::pending("cuGraphExecKernelNodeSetParams_v2"))
}

/// cuGraphExecMemcpyNodeSetParams
pub(crate) fn set_memcpy_params(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    copy_params: &CUDA_MEMCPY3D,
    context: ContextHandle,
) -> CuResult<()> {
    Err(process::pending("cuGraphExecMemcpyNodeSetParams"))
}

/// cuGraphExecMemsetNodeSetParams
pub(crate) fn set_memset_params(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    memset_params: &CUDA_MEMSET_NODE_PARAMS,
    context: ContextHandle,
) -> CuResult<()> {
    Err(process::pending("cuGraphExecMemsetNodeSetParams"))
}

/// cuGraphExecHostNodeSetParams
pub(crate) fn set_host_params(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    node_params: &CUDA_HOST_NODE_PARAMS,
) -> CuResult<()> {
    Err(process::pending("cuGraphExecHostNodeSetParams"))
}

/// cuGraphExecChildGraphNodeSetParams
pub(crate) fn set_child_params(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    child_graph: GraphHandle,
) -> CuResult<()> {
    Err(process::pending("cuGraphExecChildGraphNodeSetParams"))
}

/// cuGraphExecEventRecordNodeSetEvent
pub(crate) fn set_event_record_event(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    event: EventHandle,
) -> CuResult<()> {
    Err(process::pending("cuGraphExecEventRecordNodeSetEvent"))
}

/// cuGraphExecEventWaitNodeSetEvent
pub(crate) fn set_event_wait_event(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    event: EventHandle,
) -> CuResult<()> {
    Err(process::pending("cuGraphExecEventWaitNodeSetEvent"))
}

/// cuGraphExecBatchMemOpNodeSetParams
pub(crate) fn set_batch_mem_op_params(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    node_params: &CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> CuResult<()> {
    Err(process::pending("cuGraphExecBatchMemOpNodeSetParams"))
}

/// cuGraphNodeSetEnabled
pub(crate) fn set_node_enabled(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    is_enabled: u32,
) -> CuResult<()> {
    Err(process::pending("cuGraphNodeSetEnabled"))
}

/// cuGraphNodeGetEnabled
pub(crate) fn node_enabled(
    graph_exec: GraphExecHandle,
    node: GraphNodeHandle,
    is_enabled: Out<'_, u32>,
) -> CuResult<()> {
    Err(process::pending("cuGraphNodeGetEnabled"))
}
