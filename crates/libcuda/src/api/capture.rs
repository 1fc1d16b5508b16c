//! Bodies: capture.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuStreamBeginCapture cuStreamBeginCapture_ptsz
pub(crate) fn begin_v1(stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuStreamBeginCapture"))
}

/// cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz
pub(crate) fn begin_v2(stream: StreamArg, mode: u32) -> CuResult<()> {
    Err(process::pending("cuStreamBeginCapture_v2"))
}

/// cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz
pub(crate) fn begin_to_graph(
    stream: StreamArg,
    graph: GraphHandle,
    dependencies: &[GraphNodeHandle],
    dependency_data: Option<&[CUgraphEdgeData]>,
    num_dependencies: usize,
    mode: u32,
) -> CuResult<()> {
    Err(process::pending("cuStreamBeginCaptureToGraph"))
}

/// cuThreadExchangeStreamCaptureMode
pub(crate) fn exchange_mode(mode: InOut<'_, u32>) -> CuResult<()> {
    Err(process::pending("cuThreadExchangeStreamCaptureMode"))
}

/// cuStreamEndCapture cuStreamEndCapture_ptsz
pub(crate) fn end(stream: StreamArg, graph: Out<'_, GraphHandle>) -> CuResult<()> {
    Err(process::pending("cuStreamEndCapture"))
}

/// cuStreamIsCapturing cuStreamIsCapturing_ptsz
pub(crate) fn is_capturing(stream: StreamArg, capture_status: Out<'_, u32>) -> CuResult<()> {
    Err(process::pending("cuStreamIsCapturing"))
}

/// cuStreamGetCaptureInfo cuStreamGetCaptureInfo_ptsz
pub(crate) fn info_v1(
    stream: StreamArg,
    capture_status_out: Out<'_, u32>,
    id_out: Option<Out<'_, u64>>,
) -> CuResult<()> {
    Err(process::pending("cuStreamGetCaptureInfo"))
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
    Err(process::pending("cuStreamGetCaptureInfo_v2"))
}

/// cuStreamGetCaptureInfo_v3 cuStreamGetCaptureInfo_v3_ptsz
pub(crate) fn info_v3(
    stream: StreamArg,
    capture_status_out: Out<'_, u32>,
    id_out: Option<Out<'_, u64>>,
    graph_out: Option<Out<'_, GraphHandle>>,
    dependencies_out: Option<Out<'_, u64>>,
    edge_data_out: Option<Out<'_, u64>>,
    num_dependencies_out: Option<Out<'_, usize>>,
) -> CuResult<()> {
    Err(process::pending("cuStreamGetCaptureInfo_v3"))
}

/// cuStreamUpdateCaptureDependencies cuStreamUpdateCaptureDependencies_ptsz
pub(crate) fn update_dependencies_v1(
    stream: StreamArg,
    dependencies: &[GraphNodeHandle],
    num_dependencies: usize,
    flags: u32,
) -> CuResult<()> {
    Err(process::pending("cuStreamUpdateCaptureDependencies"))
}

/// cuStreamUpdateCaptureDependencies_v2 cuStreamUpdateCaptureDependencies_v2_ptsz
pub(crate) fn update_dependencies_v2(
    stream: StreamArg,
    dependencies: &[GraphNodeHandle],
    dependency_data: Option<&[CUgraphEdgeData]>,
    num_dependencies: usize,
    flags: u32,
) -> CuResult<()> {
    Err(process::pending("cuStreamUpdateCaptureDependencies_v2"))
}
