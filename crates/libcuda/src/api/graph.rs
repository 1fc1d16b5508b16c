//! Bodies: graph.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuGraphCreate
pub(crate) fn create(graph: Out<'_, GraphHandle>, flags: u32) -> CuResult<()> {
    Err(process::pending("cuGraphCreate"))
}

/// cuGraphDestroy
pub(crate) fn destroy(graph: GraphHandle) -> CuResult<()> {
    Err(process::pending("cuGraphDestroy"))
}

/// cuGraphClone
pub(crate) fn clone(graph_clone: Out<'_, GraphHandle>, original_graph: GraphHandle) -> CuResult<()> {
    Err(process::pending("cuGraphClone"))
}

/// cuGraphNodeFindInClone
pub(crate) fn find_in_clone(
    node: Out<'_, GraphNodeHandle>,
    original_node: GraphNodeHandle,
    cloned_graph: GraphHandle,
) -> CuResult<()> {
    Err(process::pending("cuGraphNodeFindInClone"))
}

/// cuGraphGetNodes
pub(crate) fn nodes(
    graph: GraphHandle,
    nodes: Option<OutSlice<'_, GraphNodeHandle>>,
    num_nodes: InOut<'_, usize>,
) -> CuResult<()> {
    Err(process::pending("cuGraphGetNodes"))
}

/// cuGraphGetRootNodes
pub(crate) fn root_nodes(
    graph: GraphHandle,
    root_nodes: Option<OutSlice<'_, GraphNodeHandle>>,
    num_root_nodes: InOut<'_, usize>,
) -> CuResult<()> {
    Err(process::pending("cuGraphGetRootNodes"))
}

/// cuGraphGetEdges
pub(crate) fn edges_v1(
    graph: GraphHandle,
    from: Option<OutSlice<'_, GraphNodeHandle>>,
    to: Option<OutSlice<'_, GraphNodeHandle>>,
    num_edges: InOut<'_, usize>,
) -> CuResult<()> {
    Err(process::pending("cuGraphGetEdges"))
}

/// cuGraphGetEdges_v2
pub(crate) fn edges_v2(
    graph: GraphHandle,
    from: Option<OutSlice<'_, GraphNodeHandle>>,
    to: Option<OutSlice<'_, GraphNodeHandle>>,
    edge_data: Option<OutSlice<'_, CUgraphEdgeData>>,
    num_edges: InOut<'_, usize>,
) -> CuResult<()> {
    Err(process::pending("cuGraphGetEdges_v2"))
}

/// cuGraphNodeGetType
pub(crate) fn node_type(node: GraphNodeHandle, kind: Out<'_, u32>) -> CuResult<()> {
    Err(process::pending("cuGraphNodeGetType"))
}

/// cuGraphNodeGetDependencies
pub(crate) fn node_dependencies_v1(
    node: GraphNodeHandle,
    dependencies: Option<OutSlice<'_, GraphNodeHandle>>,
    num_dependencies: InOut<'_, usize>,
) -> CuResult<()> {
    Err(process::pending("cuGraphNodeGetDependencies"))
}

/// cuGraphNodeGetDependencies_v2
pub(crate) fn node_dependencies_v2(
    node: GraphNodeHandle,
    dependencies: Option<OutSlice<'_, GraphNodeHandle>>,
    edge_data: Option<OutSlice<'_, CUgraphEdgeData>>,
    num_dependencies: InOut<'_, usize>,
) -> CuResult<()> {
    Err(process::pending("cuGraphNodeGetDependencies_v2"))
}

/// cuGraphNodeGetDependentNodes
pub(crate) fn node_dependents_v1(
    node: GraphNodeHandle,
    dependent_nodes: Option<OutSlice<'_, GraphNodeHandle>>,
    num_dependent_nodes: InOut<'_, usize>,
) -> CuResult<()> {
    Err(process::pending("cuGraphNodeGetDependentNodes"))
}

/// cuGraphNodeGetDependentNodes_v2
pub(crate) fn node_dependents_v2(
    node: GraphNodeHandle,
    dependent_nodes: Option<OutSlice<'_, GraphNodeHandle>>,
    edge_data: Option<OutSlice<'_, CUgraphEdgeData>>,
    num_dependent_nodes: InOut<'_, usize>,
) -> CuResult<()> {
    Err(process::pending("cuGraphNodeGetDependentNodes_v2"))
}

/// cuGraphAddDependencies
pub(crate) fn add_dependencies_v1(
    graph: GraphHandle,
    from: &[GraphNodeHandle],
    to: &[GraphNodeHandle],
    num_dependencies: usize,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddDependencies"))
}

/// cuGraphAddDependencies_v2
pub(crate) fn add_dependencies_v2(
    graph: GraphHandle,
    from: &[GraphNodeHandle],
    to: &[GraphNodeHandle],
    edge_data: Option<&[CUgraphEdgeData]>,
    num_dependencies: usize,
) -> CuResult<()> {
    Err(process::pending("cuGraphAddDependencies_v2"))
}

/// cuGraphRemoveDependencies
pub(crate) fn remove_dependencies_v1(
    graph: GraphHandle,
    from: &[GraphNodeHandle],
    to: &[GraphNodeHandle],
    num_dependencies: usize,
) -> CuResult<()> {
    Err(process::pending("cuGraphRemoveDependencies"))
}

/// cuGraphRemoveDependencies_v2
pub(crate) fn remove_dependencies_v2(
    graph: GraphHandle,
    from: &[GraphNodeHandle],
    to: &[GraphNodeHandle],
    edge_data: Option<&[CUgraphEdgeData]>,
    num_dependencies: usize,
) -> CuResult<()> {
    Err(process::pending("cuGraphRemoveDependencies_v2"))
}

/// cuGraphDestroyNode
pub(crate) fn destroy_node(node: GraphNodeHandle) -> CuResult<()> {
    Err(process::pending("cuGraphDestroyNode"))
}

/// cuGraphDebugDotPrint
pub(crate) fn debug_dot_print(graph: GraphHandle, path: &CStr, flags: u32) -> CuResult<()> {
    Err(process::pending("cuGraphDebugDotPrint"))
}
