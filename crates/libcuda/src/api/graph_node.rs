//! Bodies: graph node.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuGraphAddNode
pub(crate) fn add_v1(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    node_params: InOut<'_, CUgraphNodeParams>,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddNode"))
}

/// cuGraphAddNode_v2
pub(crate) fn add_v2(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    dependency_data: Option<&[CUgraphEdgeData]>,
    num_dependencies: usize,
    node_params: InOut<'_, CUgraphNodeParams>,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddNode_v2"))
}

/// cuGraphNodeSetParams
pub(crate) fn set_params(node: GraphNodeHandle, node_params: InOut<'_, CUgraphNodeParams>) -> CuResult<()> {
    Err(process::pending("cuGraphNodeSetParams"))
}

/// cuGraphAddKernelNode
pub(crate) fn add_kernel_v1(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    node_params: &CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddKernelNode"))
}

/// cuGraphAddKernelNode_v2
pub(crate) fn add_kernel_v2(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    node_params: &CUDA_KERNEL_NODE_PARAMS_v2,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddKernelNode_v2"))
}

/// cuGraphKernelNodeGetParams
pub(crate) fn kernel_params_v1(
    node: GraphNodeHandle,
    node_params: Out<'_, CUDA_KERNEL_NODE_PARAMS_v1>,
) -> CuResult<()> {
    Err(process::pending("cuGraphKernelNodeGetParams"))
}

/// cuGraphKernelNodeGetParams_v2
pub(crate) fn kernel_params_v2(
    node: GraphNodeHandle,
    node_params: Out<'_, CUDA_KERNEL_NODE_PARAMS_v2>,
) -> CuResult<()> {
    Err(process::pending("cuGraphKernelNodeGetParams_v2"))
}

/// cuGraphKernelNodeSetParams
pub(crate) fn set_kernel_params_v1(
    node: GraphNodeHandle,
    node_params: &CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult<()> {
    Err(process::pending("cuGraphKernelNodeSetParams"))
}

/// cuGraphKernelNodeSetParams_v2
pub(crate) fn set_kernel_params_v2(
    node: GraphNodeHandle,
    node_params: &CUDA_KERNEL_NODE_PARAMS_v2,
) -> CuResult<()> {
    Err(process::pending("cuGraphKernelNodeSetParams_v2"))
}

/// cuGraphKernelNodeCopyAttributes
pub(crate) fn copy_kernel_attributes(dst: GraphNodeHandle, src: GraphNodeHandle) -> CuResult<()> {
    Err(process::pending("cuGraphKernelNodeCopyAttributes"))
}

/// cuGraphKernelNodeGetAttribute
pub(crate) fn kernel_attribute(
    node: GraphNodeHandle,
    attribute: u32,
    value_out: Out<'_, CUlaunchAttributeValue>,
) -> CuResult<()> {
    Err(process::pending("cuGraphKernelNodeGetAttribute"))
}

/// cuGraphKernelNodeSetAttribute
pub(crate) fn set_kernel_attribute(
    node: GraphNodeHandle,
    attribute: u32,
    value: &CUlaunchAttributeValue,
) -> CuResult<()> {
    Err(process::pending("cuGraphKernelNodeSetAttribute"))
}

/// cuGraphAddMemcpyNode
pub(crate) fn add_memcpy(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    copy_params: &CUDA_MEMCPY3D,
    context: ContextHandle,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddMemcpyNode"))
}

/// cuGraphMemcpyNodeGetParams
pub(crate) fn memcpy_params(node: GraphNodeHandle, node_params: Out<'_, CUDA_MEMCPY3D>) -> CuResult<()> {
    Err(process::pending("cuGraphMemcpyNodeGetParams"))
}

/// cuGraphMemcpyNodeSetParams
pub(crate) fn set_memcpy_params(node: GraphNodeHandle, node_params: &CUDA_MEMCPY3D) -> CuResult<()> {
    Err(process::pending("cuGraphMemcpyNodeSetParams"))
}

/// cuGraphAddMemsetNode
pub(crate) fn add_memset(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    memset_params: &CUDA_MEMSET_NODE_PARAMS,
    context: ContextHandle,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddMemsetNode"))
}

/// cuGraphMemsetNodeGetParams
pub(crate) fn memset_params(
    node: GraphNodeHandle,
    node_params: Out<'_, CUDA_MEMSET_NODE_PARAMS>,
) -> CuResult<()> {
    Err(process::pending("cuGraphMemsetNodeGetParams"))
}

/// cuGraphMemsetNodeSetParams
pub(crate) fn set_memset_params(
    node: GraphNodeHandle,
    node_params: &CUDA_MEMSET_NODE_PARAMS,
) -> CuResult<()> {
    Err(process::pending("cuGraphMemsetNodeSetParams"))
}

/// cuGraphAddHostNode
pub(crate) fn add_host(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    node_params: &CUDA_HOST_NODE_PARAMS,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddHostNode"))
}

/// cuGraphHostNodeGetParams
pub(crate) fn host_params(
    node: GraphNodeHandle,
    node_params: Out<'_, CUDA_HOST_NODE_PARAMS>,
) -> CuResult<()> {
    Err(process::pending("cuGraphHostNodeGetParams"))
}

/// cuGraphHostNodeSetParams
pub(crate) fn set_host_params(node: GraphNodeHandle, node_params: &CUDA_HOST_NODE_PARAMS) -> CuResult<()> {
    Err(process::pending("cuGraphHostNodeSetParams"))
}

/// cuGraphAddChildGraphNode
pub(crate) fn add_child(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    child_graph: GraphHandle,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddChildGraphNode"))
}

/// cuGraphChildGraphNodeGetGraph
pub(crate) fn child_graph(node: GraphNodeHandle, graph: Out<'_, GraphHandle>) -> CuResult<()> {
    Err(process::pending("cuGraphChildGraphNodeGetGraph"))
}

/// cuGraphAddEmptyNode
pub(crate) fn add_empty(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddEmptyNode"))
}

/// cuGraphAddEventRecordNode
pub(crate) fn add_event_record(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    event: EventHandle,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddEventRecordNode"))
}

/// cuGraphEventRecordNodeGetEvent
pub(crate) fn event_record_event(node: GraphNodeHandle, event_out: Out<'_, EventHandle>) -> CuResult<()> {
    Err(process::pending("cuGraphEventRecordNodeGetEvent"))
}

/// cuGraphEventRecordNodeSetEvent
pub(crate) fn set_event_record_event(node: GraphNodeHandle, event: EventHandle) -> CuResult<()> {
    Err(process::pending("cuGraphEventRecordNodeSetEvent"))
}

/// cuGraphAddEventWaitNode
pub(crate) fn add_event_wait(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    event: EventHandle,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddEventWaitNode"))
}

/// cuGraphEventWaitNodeGetEvent
pub(crate) fn event_wait_event(node: GraphNodeHandle, event_out: Out<'_, EventHandle>) -> CuResult<()> {
    Err(process::pending("cuGraphEventWaitNodeGetEvent"))
}

/// cuGraphEventWaitNodeSetEvent
pub(crate) fn set_event_wait_event(node: GraphNodeHandle, event: EventHandle) -> CuResult<()> {
    Err(process::pending("cuGraphEventWaitNodeSetEvent"))
}

/// cuGraphAddMemAllocNode
pub(crate) fn add_mem_alloc(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    node_params: InOut<'_, CUDA_MEM_ALLOC_NODE_PARAMS>,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddMemAllocNode"))
}

/// cuGraphMemAllocNodeGetParams
pub(crate) fn mem_alloc_params(
    node: GraphNodeHandle,
    params_out: Out<'_, CUDA_MEM_ALLOC_NODE_PARAMS>,
) -> CuResult<()> {
    Err(process::pending("cuGraphMemAllocNodeGetParams"))
}

/// cuGraphAddMemFreeNode
pub(crate) fn add_mem_free(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    device_pointer: u64,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddMemFreeNode"))
}

/// cuGraphMemFreeNodeGetParams
pub(crate) fn mem_free_params(node: GraphNodeHandle, dptr_out: Out<'_, u64>) -> CuResult<()> {
    Err(process::pending("cuGraphMemFreeNodeGetParams"))
}

/// cuGraphAddBatchMemOpNode
pub(crate) fn add_batch_mem_op(
    graph_node: Out<'_, GraphNodeHandle>,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    node_params: &CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddBatchMemOpNode"))
}

/// cuGraphBatchMemOpNodeGetParams
pub(crate) fn batch_mem_op_params(
    node: GraphNodeHandle,
    node_params_out: Out<'_, CUDA_BATCH_MEM_OP_NODE_PARAMS>,
) -> CuResult<()> {
    Err(process::pending("cuGraphBatchMemOpNodeGetParams"))
}

/// cuGraphBatchMemOpNodeSetParams
pub(crate) fn set_batch_mem_op_params(
    node: GraphNodeHandle,
    node_params: &CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> CuResult<()> {
    Err(process::pending("cuGraphBatchMemOpNodeSetParams"))
}
