//! Bodies: stream capture. The worker never hears of it.

use crate::{
    api::graph::{edges_of, node_id},
    border::*,
    state::{
        CAPTURE_MODE, Stream, begin_capture, capture_stream, end_capture, graphs, lock, release_objects,
    },
};
use cuda_abi::*;
use cuda_client::graph::{GraphId, capture::Info};

/// cuStreamBeginCapture cuStreamBeginCapture_ptsz
pub(crate) fn begin_v1(stream: StreamArg) -> CuResult<()> {
    begin_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL)
}

/// cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz
pub(crate) fn begin_v2(stream: StreamArg, mode: u32) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    let mut store = graphs();
    let graph = store.graphs.create();
    begin_capture(&mut store, &stream, graph, Vec::new(), mode).inspect_err(|_| {
        let _ = store.graphs.destroy(graph);
    })
}

/// cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz
pub(crate) fn begin_to_graph(
    stream: StreamArg,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    dependency_data: Option<&[CUgraphEdgeData]>,
    _num_dependencies: usize,
    mode: u32,
) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    let graph = GraphId(graph.0);
    let frontier = edges_of(dependencies, dependency_data)?;
    let mut store = graphs();
    store.graphs.nodes(graph)?;
    for edge in &frontier {
        if store.graphs.graph_of(edge.node)? != graph {
            return Err(CudaError::INVALID_VALUE);
        }
    }
    begin_capture(&mut store, &stream, graph, frontier, mode)
}

/// cuThreadExchangeStreamCaptureMode. The driver takes any number here.
pub(crate) fn exchange_mode(mut mode: InOut<'_, u32>) -> CuResult<()> {
    mode.set(CAPTURE_MODE.with(|known| known.replace(mode.get())));
    Ok(())
}

/// cuStreamEndCapture cuStreamEndCapture_ptsz
pub(crate) fn end(stream: StreamArg, graph: Option<Out<'_, GraphHandle>>) -> CuResult<()> {
    let ended = Stream::of(stream).and_then(|stream| end_capture(&stream));
    // A capture into a graph that the program has need not be told.
    if let Some(mut graph) = graph {
        graph.set(ended.map_or(GraphHandle::NULL, |graph| GraphHandle(graph.0)));
    }
    ended.map(drop)
}

/// cuStreamIsCapturing cuStreamIsCapturing_ptsz
pub(crate) fn is_capturing(stream: StreamArg, capture_status: Out<'_, u32>) -> CuResult<()> {
    info_v1(stream, capture_status, None)
}

/// cuStreamGetCaptureInfo cuStreamGetCaptureInfo_ptsz
pub(crate) fn info_v1(
    stream: StreamArg,
    mut capture_status_out: Out<'_, u32>,
    id_out: Option<Out<'_, u64>>,
) -> CuResult<()> {
    if !crate::state::captures_exist() {
        // Asked before nearly every allocation and launch of a library, and nearly always in vain.
        Stream::of(stream)?;
        capture_status_out.set(CU_STREAM_CAPTURE_STATUS_NONE);
        return Ok(());
    }
    let stream = Stream::of(stream)?;
    let store = graphs();
    let Info { status, active } = store.captures.info(capture_stream(&stream))?;
    capture_status_out.set(status as u32);
    if let (Some(mut id), Some(active)) = (id_out, active) {
        id.set(active.id.0);
    }
    Ok(())
}

/// cuStreamGetCaptureInfo_v2 cuStreamGetCaptureInfo_v2_ptsz
pub(crate) fn info_v2(
    stream: StreamArg,
    capture_status_out: Out<'_, u32>,
    id_out: Option<Out<'_, u64>>,
    graph_out: Option<Out<'_, GraphHandle>>,
    dependencies_out: Option<Out<'_, u64>>,
    num_dependencies_out: Option<Out<'_, usize>>,
) -> CuResult<()> {
    info_v3(stream, capture_status_out, id_out, graph_out, dependencies_out, None, num_dependencies_out)
}

/// cuStreamGetCaptureInfo_v3 cuStreamGetCaptureInfo_v3_ptsz
pub(crate) fn info_v3(
    stream: StreamArg,
    mut capture_status_out: Out<'_, u32>,
    id_out: Option<Out<'_, u64>>,
    graph_out: Option<Out<'_, GraphHandle>>,
    dependencies_out: Option<Out<'_, u64>>,
    edge_data_out: Option<Out<'_, u64>>,
    num_dependencies_out: Option<Out<'_, usize>>,
) -> CuResult<()> {
    if edge_data_out.is_some() && dependencies_out.is_none() {
        return Err(CudaError::INVALID_VALUE);
    }
    if !crate::state::captures_exist() {
        return info_v1(stream, capture_status_out, None);
    }
    let stream = Stream::of(stream)?;
    let store = graphs();
    let Info { status, active } = store.captures.info(capture_stream(&stream))?;
    let Some(active) = active else {
        capture_status_out.set(status as u32);
        return Ok(());
    };
    let lossy = active.frontier.iter().any(|edge| !edge.data.is_default());
    if lossy && dependencies_out.is_some() && edge_data_out.is_none() {
        return Err(CudaError::LOSSY_QUERY);
    }
    capture_status_out.set(status as u32);
    if let Some(mut id) = id_out {
        id.set(active.id.0);
    }
    if let Some(mut graph) = graph_out {
        graph.set(GraphHandle(active.graph.0));
    }
    if let Some(mut count) = num_dependencies_out {
        count.set(active.frontier.len());
    }
    if let Some(mut dependencies) = dependencies_out {
        // The arrays are the stream's until it is asked again.
        let mut shown = lock(&stream.capture.shown);
        let data = |edge: &cuda_client::graph::store::Edge| u64::from_le_bytes(edge.data.to_bytes());
        *shown = (
            active.frontier.iter().map(|edge| edge.node.0).collect(),
            active.frontier.iter().map(data).collect(),
        );
        let address = |array: &Vec<u64>| if array.is_empty() { 0 } else { array.as_ptr() as u64 };
        dependencies.set(address(&shown.0));
        if let Some(mut edge_data) = edge_data_out {
            edge_data.set(address(&shown.1));
        }
    }
    Ok(())
}

/// cuStreamUpdateCaptureDependencies cuStreamUpdateCaptureDependencies_ptsz
pub(crate) fn update_dependencies_v1(
    stream: StreamArg,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    flags: u32,
) -> CuResult<()> {
    update_dependencies_v2(stream, dependencies, None, num_dependencies, flags)
}

/// cuStreamUpdateCaptureDependencies_v2 cuStreamUpdateCaptureDependencies_v2_ptsz
pub(crate) fn update_dependencies_v2(
    stream: StreamArg,
    dependencies: &[GraphNodeHandle],
    dependency_data: Option<&[CUgraphEdgeData]>,
    _num_dependencies: usize,
    flags: u32,
) -> CuResult<()> {
    let stream = capture_stream(&*Stream::of(stream)?);
    let mut store = graphs();
    let graph = store.captures.graph_of(stream)?;
    let replace = match flags {
        CU_STREAM_ADD_CAPTURE_DEPENDENCIES => false,
        CU_STREAM_SET_CAPTURE_DEPENDENCIES => true,
        _ => return Err(CudaError::INVALID_VALUE),
    };
    for node in dependencies {
        if store.graphs.graph_of(node_id(*node))? != graph {
            return Err(CudaError::INVALID_VALUE);
        }
    }
    store.captures.update_frontier(stream, &edges_of(dependencies, dependency_data)?, replace)
}

/// Takes a graph out of the store with what it holds.
pub(crate) fn discard(graph: GraphId) -> CuResult<()> {
    let mut store = graphs();
    if store.captures.is_capturing_into(graph) {
        return Err(CudaError::ILLEGAL_STATE);
    }
    let objects = store.graphs.destroy(graph)?;
    store.memory.graph_ended(graph);
    store.forget_handles();
    drop(store);
    release_objects(&objects);
    Ok(())
}
