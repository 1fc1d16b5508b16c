//! Bodies: copy.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuMemcpy cuMemcpy_ptds
pub(crate) fn unified(dst: u64, src: u64, byte_count: usize, default_stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemcpy"))
}

/// cuMemcpyAsync cuMemcpyAsync_ptsz
pub(crate) fn unified_async(dst: u64, src: u64, byte_count: usize, stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemcpyAsync"))
}

/// cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds
pub(crate) fn host_to_device(
    dst_device: u64,
    src_host: HostSource,
    byte_count: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemcpyHtoD_v2"))
}

/// cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz
pub(crate) fn host_to_device_async(
    dst_device: u64,
    src_host: HostSource,
    byte_count: usize,
    stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemcpyHtoDAsync_v2"))
}

/// cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds
pub(crate) fn device_to_host(
    dst_host: HostTarget,
    src_device: u64,
    byte_count: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemcpyDtoH_v2"))
}

/// cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz
pub(crate) fn device_to_host_async(
    dst_host: HostTarget,
    src_device: u64,
    byte_count: usize,
    stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemcpyDtoHAsync_v2"))
}

/// cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds
pub(crate) fn device_to_device(
    dst_device: u64,
    src_device: u64,
    byte_count: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemcpyDtoD_v2"))
}

/// cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz
pub(crate) fn device_to_device_async(
    dst_device: u64,
    src_device: u64,
    byte_count: usize,
    stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemcpyDtoDAsync_v2"))
}

/// cuMemcpyPeer cuMemcpyPeer_ptds
pub(crate) fn peer(
    dst_device: u64,
    dst_context: ContextHandle,
    src_device: u64,
    src_context: ContextHandle,
    byte_count: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemcpyPeer"))
}

/// cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz
pub(crate) fn peer_async(
    dst_device: u64,
    dst_context: ContextHandle,
    src_device: u64,
    src_context: ContextHandle,
    byte_count: usize,
    stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemcpyPeerAsync"))
}

/// cuMemcpy2D_v2 cuMemcpy2D_v2_ptds
pub(crate) fn copy_2d(copy: &CUDA_MEMCPY2D, default_stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemcpy2D_v2"))
}

/// cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds
pub(crate) fn copy_2d_unaligned(copy: &CUDA_MEMCPY2D, default_stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemcpy2DUnaligned_v2"))
}

/// cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz
pub(crate) fn copy_2d_async(copy: &CUDA_MEMCPY2D, stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemcpy2DAsync_v2"))
}

/// cuMemcpy3D_v2 cuMemcpy3D_v2_ptds
pub(crate) fn copy_3d(copy: &CUDA_MEMCPY3D, default_stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemcpy3D_v2"))
}

/// cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz
pub(crate) fn copy_3d_async(copy: &CUDA_MEMCPY3D, stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemcpy3DAsync_v2"))
}

/// cuMemcpy3DPeer cuMemcpy3DPeer_ptds
pub(crate) fn copy_3d_peer(copy: &CUDA_MEMCPY3D_PEER, default_stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemcpy3DPeer"))
}

/// cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz
pub(crate) fn copy_3d_peer_async(copy: &CUDA_MEMCPY3D_PEER, stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemcpy3DPeerAsync"))
}

/// cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz
pub(crate) fn batch_async_v1(
    dsts: &[u64],
    srcs: &[u64],
    sizes: &[usize],
    count: usize,
    attrs: &[CUmemcpyAttributes],
    attrs_idxs: &[usize],
    num_attrs: usize,
    fail_idx: Option<Out<'_, usize>>,
    stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemcpyBatchAsync"))
}

/// cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz
pub(crate) fn batch_async_v2(
    dsts: &[u64],
    srcs: &[u64],
    sizes: &[usize],
    count: usize,
    attrs: &[CUmemcpyAttributes],
    attrs_idxs: &[usize],
    num_attrs: usize,
    stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemcpyBatchAsync_v2"))
}

/// cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz
pub(crate) fn batch_3d_async_v1(
    num_ops: usize,
    op_list: &[CUDA_MEMCPY3D_BATCH_OP],
    fail_idx: Option<Out<'_, usize>>,
    flags: u64,
    stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemcpy3DBatchAsync"))
}

/// cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz
pub(crate) fn batch_3d_async_v2(
    num_ops: usize,
    op_list: &[CUDA_MEMCPY3D_BATCH_OP],
    flags: u64,
    stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemcpy3DBatchAsync_v2"))
}
