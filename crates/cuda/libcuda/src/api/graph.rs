//! Bodies: graphs, their nodes and edges. The worker hears of a graph when it is instantiated.

use super::{capture, graph_dot};
use crate::{
    border::*,
    state::{graphs, release_objects, retain_objects},
};
use core::ffi::CStr;
use cuda_abi::*;
use cuda_client::graph::{EdgeData, GraphId, NodeId, Payload, store::Edge};

/// The graph of a handle.
pub(crate) fn graph_id(graph: GraphHandle) -> GraphId {
    GraphId(graph.0)
}

/// The node of a handle.
pub(crate) fn node_id(node: GraphNodeHandle) -> NodeId {
    NodeId(node.0)
}

/// What an edge carries, from C.
pub(crate) fn edge_data(data: &CUgraphEdgeData) -> CuResult<EdgeData> {
    let [a, b, c, d, e] = data.reserved;
    EdgeData::from_bytes([data.from_port, data.to_port, data.kind, a, b, c, d, e])
}

/// What an edge carries, for C.
fn edge_data_for_c(data: EdgeData) -> CUgraphEdgeData {
    CUgraphEdgeData { from_port: data.from_port, to_port: data.to_port, kind: data.kind, reserved: [0; 5] }
}

/// Nodes that a caller lists, with what the edges to them carry.
pub(crate) fn edges_of(nodes: &[GraphNodeHandle], data: Option<&[CUgraphEdgeData]>) -> CuResult<Vec<Edge>> {
    let edge = |(index, node): (usize, &GraphNodeHandle)| {
        let data = data.and_then(|data| data.get(index)).map(edge_data).transpose()?;
        Ok(Edge { node: node_id(*node), data: data.unwrap_or_default() })
    };
    nodes.iter().enumerate().map(edge).collect()
}

/// cuGraphCreate
pub(crate) fn create(mut graph: Out<'_, GraphHandle>, flags: u32) -> CuResult<()> {
    if flags != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    graph.set(GraphHandle(graphs().graphs.create().0));
    Ok(())
}

/// cuGraphDestroy
pub(crate) fn destroy(graph: GraphHandle) -> CuResult<()> {
    capture::discard(graph_id(graph))
}

/// cuGraphClone
pub(crate) fn clone(mut graph_clone: Out<'_, GraphHandle>, original_graph: GraphHandle) -> CuResult<()> {
    let mut store = graphs();
    let clone = store.graphs.clone_graph(graph_id(original_graph))?;
    retain_objects(&store.graphs.objects(clone)?);
    graph_clone.set(GraphHandle(clone.0));
    Ok(())
}

/// cuGraphNodeFindInClone
pub(crate) fn find_in_clone(
    mut node: Out<'_, GraphNodeHandle>,
    original_node: GraphNodeHandle,
    cloned_graph: GraphHandle,
) -> CuResult<()> {
    let found = graphs().graphs.find_in_clone(node_id(original_node), graph_id(cloned_graph))?;
    node.set(GraphNodeHandle(found.0));
    Ok(())
}

/// Answers as the driver lists things: how many there are without an array; with one, as many as fit, the rest of the
/// array null.
fn list<T: CType>(all: &[T], null: T, array: Option<OutSlice<'_, T>>, mut count: InOut<'_, usize>) {
    match array {
        None => count.set(all.len()),
        Some(mut array) => {
            let nothing = std::iter::repeat_n(null, array.len().saturating_sub(all.len()));
            array.fill(all.iter().copied().chain(nothing));
            count.set(all.len().min(array.len()));
        }
    }
}

fn handles(nodes: impl IntoIterator<Item = NodeId>) -> Vec<GraphNodeHandle> {
    nodes.into_iter().map(|node| GraphNodeHandle(node.0)).collect()
}

/// cuGraphGetNodes
pub(crate) fn nodes(
    graph: GraphHandle,
    nodes: Option<OutSlice<'_, GraphNodeHandle>>,
    num_nodes: InOut<'_, usize>,
) -> CuResult<()> {
    let all = handles(graphs().graphs.nodes(graph_id(graph))?.iter().copied());
    list(&all, GraphNodeHandle::NULL, nodes, num_nodes);
    Ok(())
}

/// cuGraphGetRootNodes
pub(crate) fn root_nodes(
    graph: GraphHandle,
    root_nodes: Option<OutSlice<'_, GraphNodeHandle>>,
    num_root_nodes: InOut<'_, usize>,
) -> CuResult<()> {
    let all = handles(graphs().graphs.roots(graph_id(graph))?);
    list(&all, GraphNodeHandle::NULL, root_nodes, num_root_nodes);
    Ok(())
}

/// cuGraphGetEdges
pub(crate) fn edges_v1(
    graph: GraphHandle,
    from: Option<OutSlice<'_, GraphNodeHandle>>,
    to: Option<OutSlice<'_, GraphNodeHandle>>,
    num_edges: InOut<'_, usize>,
) -> CuResult<()> {
    edges_v2(graph, from, to, None, num_edges)
}

/// cuGraphGetEdges_v2
pub(crate) fn edges_v2(
    graph: GraphHandle,
    from: Option<OutSlice<'_, GraphNodeHandle>>,
    to: Option<OutSlice<'_, GraphNodeHandle>>,
    edge_data: Option<OutSlice<'_, CUgraphEdgeData>>,
    num_edges: InOut<'_, usize>,
) -> CuResult<()> {
    let all = graphs().graphs.edges(graph_id(graph))?;
    if from.is_some() != to.is_some() || (edge_data.is_some() && from.is_none()) {
        return Err(CudaError::INVALID_VALUE);
    }
    let lossy = all.iter().any(|(_, _, data)| !data.is_default());
    if lossy && from.is_some() && edge_data.is_none() {
        return Err(CudaError::LOSSY_QUERY);
    }
    if let Some(mut array) = edge_data {
        let nothing = std::iter::repeat_n(CUgraphEdgeData::default(), array.len().saturating_sub(all.len()));
        array.fill(all.iter().map(|(_, _, data)| edge_data_for_c(*data)).chain(nothing));
    }
    if let Some(mut array) = to {
        let nothing = std::iter::repeat_n(GraphNodeHandle::NULL, array.len().saturating_sub(all.len()));
        array.fill(all.iter().map(|(_, to, _)| GraphNodeHandle(to.0)).chain(nothing));
    }
    let upstream = handles(all.iter().map(|(from, _, _)| *from));
    list(&upstream, GraphNodeHandle::NULL, from, num_edges);
    Ok(())
}

/// cuGraphNodeGetType
pub(crate) fn node_type(node: GraphNodeHandle, mut kind: Out<'_, u32>) -> CuResult<()> {
    kind.set(graphs().graphs.payload(node_id(node))?.node_type());
    Ok(())
}

fn neighbours(
    edges: &[Edge],
    nodes: Option<OutSlice<'_, GraphNodeHandle>>,
    edge_data: Option<OutSlice<'_, CUgraphEdgeData>>,
    count: InOut<'_, usize>,
) -> CuResult<()> {
    if edge_data.is_some() && nodes.is_none() {
        return Err(CudaError::INVALID_VALUE);
    }
    let lossy = edges.iter().any(|edge| !edge.data.is_default());
    if lossy && nodes.is_some() && edge_data.is_none() {
        return Err(CudaError::LOSSY_QUERY);
    }
    if let Some(mut array) = edge_data {
        let nothing =
            std::iter::repeat_n(CUgraphEdgeData::default(), array.len().saturating_sub(edges.len()));
        array.fill(edges.iter().map(|edge| edge_data_for_c(edge.data)).chain(nothing));
    }
    list(&handles(edges.iter().map(|edge| edge.node)), GraphNodeHandle::NULL, nodes, count);
    Ok(())
}

/// cuGraphNodeGetDependencies
pub(crate) fn node_dependencies_v1(
    node: GraphNodeHandle,
    dependencies: Option<OutSlice<'_, GraphNodeHandle>>,
    num_dependencies: InOut<'_, usize>,
) -> CuResult<()> {
    node_dependencies_v2(node, dependencies, None, num_dependencies)
}

/// cuGraphNodeGetDependencies_v2
pub(crate) fn node_dependencies_v2(
    node: GraphNodeHandle,
    dependencies: Option<OutSlice<'_, GraphNodeHandle>>,
    edge_data: Option<OutSlice<'_, CUgraphEdgeData>>,
    num_dependencies: InOut<'_, usize>,
) -> CuResult<()> {
    neighbours(graphs().graphs.dependencies(node_id(node))?, dependencies, edge_data, num_dependencies)
}

/// cuGraphNodeGetDependentNodes
pub(crate) fn node_dependents_v1(
    node: GraphNodeHandle,
    dependent_nodes: Option<OutSlice<'_, GraphNodeHandle>>,
    num_dependent_nodes: InOut<'_, usize>,
) -> CuResult<()> {
    node_dependents_v2(node, dependent_nodes, None, num_dependent_nodes)
}

/// cuGraphNodeGetDependentNodes_v2
pub(crate) fn node_dependents_v2(
    node: GraphNodeHandle,
    dependent_nodes: Option<OutSlice<'_, GraphNodeHandle>>,
    edge_data: Option<OutSlice<'_, CUgraphEdgeData>>,
    num_dependent_nodes: InOut<'_, usize>,
) -> CuResult<()> {
    neighbours(graphs().graphs.dependents(node_id(node))?, dependent_nodes, edge_data, num_dependent_nodes)
}

/// cuGraphAddDependencies
pub(crate) fn add_dependencies_v1(
    graph: GraphHandle,
    from: &[GraphNodeHandle],
    to: &[GraphNodeHandle],
    num_dependencies: usize,
) -> CuResult<()> {
    add_dependencies_v2(graph, from, to, None, num_dependencies)
}

/// cuGraphAddDependencies_v2: one after the other; the first that fails leaves those before it in place.
pub(crate) fn add_dependencies_v2(
    graph: GraphHandle,
    from: &[GraphNodeHandle],
    to: &[GraphNodeHandle],
    edge_data: Option<&[CUgraphEdgeData]>,
    _num_dependencies: usize,
) -> CuResult<()> {
    let mut store = graphs();
    store.graphs.nodes(graph_id(graph))?;
    for (edge, to) in edges_of(from, edge_data)?.iter().zip(to) {
        store.graphs.add_edge(graph_id(graph), edge.node, node_id(*to), edge.data)?;
    }
    Ok(())
}

/// cuGraphRemoveDependencies
pub(crate) fn remove_dependencies_v1(
    graph: GraphHandle,
    from: &[GraphNodeHandle],
    to: &[GraphNodeHandle],
    num_dependencies: usize,
) -> CuResult<()> {
    remove_dependencies_v2(graph, from, to, None, num_dependencies)
}

/// cuGraphRemoveDependencies_v2, as [`add_dependencies_v2`].
pub(crate) fn remove_dependencies_v2(
    graph: GraphHandle,
    from: &[GraphNodeHandle],
    to: &[GraphNodeHandle],
    edge_data: Option<&[CUgraphEdgeData]>,
    _num_dependencies: usize,
) -> CuResult<()> {
    let mut store = graphs();
    store.graphs.nodes(graph_id(graph))?;
    for (edge, to) in edges_of(from, edge_data)?.iter().zip(to) {
        let data = edge_data.map(|_| edge.data);
        store.graphs.remove_edge(graph_id(graph), edge.node, node_id(*to), data)?;
    }
    Ok(())
}

/// cuGraphDestroyNode
pub(crate) fn destroy_node(node: GraphNodeHandle) -> CuResult<()> {
    let mut store = graphs();
    let graph = store.graphs.graph_of(node_id(node))?;
    if store.captures.is_capturing_into(graph) {
        return Err(CudaError::ILLEGAL_STATE);
    }
    let objects = store.graphs.destroy_node(node_id(node))?;
    drop(store);
    release_objects(&objects);
    Ok(())
}

/// cuGraphDebugDotPrint
pub(crate) fn debug_dot_print(graph: GraphHandle, path: &CStr, flags: u32) -> CuResult<()> {
    use std::os::unix::ffi::OsStrExt;
    let text = graph_dot::text(&graphs().graphs, graph_id(graph), flags)?;
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
    std::fs::write(path, text).map_err(|_| CudaError::OPERATING_SYSTEM)
}
