//! Bodies: copies.

#![allow(unsafe_code)]

use crate::{
    border::*,
    host::HostRegion,
    state::{
        Array, Copy, NodeOp, Place, Stream, capturing, client, forbid_on_capturing, is_device_address,
        run_copy,
    },
};
use cuda_abi::*;
use cuda_wire::{Plane, Shape};
use std::sync::Arc;

/// Runs a plain copy, or puts it behind a stream.
fn line(target: u64, source: u64, bytes: usize, stream: StreamArg, synchronous: bool) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    if (target == 0 || source == 0) && bytes != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    // SAFETY: the caller of the API function promises that host addresses are valid for the copy.
    let copy = unsafe { Copy::line(target, source, bytes as u64) };
    run(&stream, copy, synchronous)
}

/// What the name of a function calls device memory must be known to CUDA, as pinned memory is too: reading anything else
/// here would be a crash.
pub(crate) fn check_device(address: u64, bytes: usize) -> CuResult<()> {
    if bytes == 0 || is_device_address(address) || client()?.pinned.holds(address, bytes as u64) {
        return Ok(());
    }
    Err(CudaError::INVALID_VALUE)
}

pub(crate) fn run(stream: &Arc<Stream>, copy: Copy, synchronous: bool) -> CuResult<()> {
    if synchronous {
        // A synchronous copy cannot become part of a graph.
        forbid_on_capturing(stream)?;
        return run_copy(stream, &copy, true);
    }
    if let Some(capturing) = capturing(stream) {
        copy.check()?;
        let context = Arc::clone(&stream.context);
        return capturing.add(NodeOp::Copy { copy, context });
    }
    run_copy(stream, &copy, false)
}

/// cuMemcpy
pub(crate) fn unified(dst: u64, src: u64, byte_count: usize, default_stream: StreamArg) -> CuResult<()> {
    line(dst, src, byte_count, default_stream, true)
}

/// cuMemcpyAsync
pub(crate) fn unified_async(dst: u64, src: u64, byte_count: usize, stream: StreamArg) -> CuResult<()> {
    line(dst, src, byte_count, stream, false)
}

/// cuMemcpyHtoD_v2
pub(crate) fn host_to_device(
    dst_device: u64,
    src_host: HostSource,
    byte_count: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    check_device(dst_device, byte_count)?;
    line(dst_device, src_host.address(), byte_count, default_stream, true)
}

/// cuMemcpyHtoDAsync_v2
pub(crate) fn host_to_device_async(
    dst_device: u64,
    src_host: HostSource,
    byte_count: usize,
    stream: StreamArg,
) -> CuResult<()> {
    check_device(dst_device, byte_count)?;
    line(dst_device, src_host.address(), byte_count, stream, false)
}

/// cuMemcpyDtoH_v2
pub(crate) fn device_to_host(
    dst_host: HostTarget,
    src_device: u64,
    byte_count: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    check_device(src_device, byte_count)?;
    line(dst_host.address(), src_device, byte_count, default_stream, true)
}

/// cuMemcpyDtoHAsync_v2
pub(crate) fn device_to_host_async(
    dst_host: HostTarget,
    src_device: u64,
    byte_count: usize,
    stream: StreamArg,
) -> CuResult<()> {
    check_device(src_device, byte_count)?;
    line(dst_host.address(), src_device, byte_count, stream, false)
}

/// cuMemcpyDtoD_v2
pub(crate) fn device_to_device(
    dst_device: u64,
    src_device: u64,
    byte_count: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    check_device(dst_device, byte_count)?;
    check_device(src_device, byte_count)?;
    line(dst_device, src_device, byte_count, default_stream, true)
}

/// cuMemcpyDtoDAsync_v2
pub(crate) fn device_to_device_async(
    dst_device: u64,
    src_device: u64,
    byte_count: usize,
    stream: StreamArg,
) -> CuResult<()> {
    check_device(dst_device, byte_count)?;
    check_device(src_device, byte_count)?;
    line(dst_device, src_device, byte_count, stream, false)
}

/// cuMemcpyPeer: addresses say by themselves which device they belong to.
pub(crate) fn peer(
    dst_device: u64,
    dst_context: ContextHandle,
    src_device: u64,
    src_context: ContextHandle,
    byte_count: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    check_peers(dst_context, src_context)?;
    check_device(dst_device, byte_count)?;
    check_device(src_device, byte_count)?;
    line(dst_device, src_device, byte_count, default_stream, true)
}

/// cuMemcpyPeerAsync
pub(crate) fn peer_async(
    dst_device: u64,
    dst_context: ContextHandle,
    src_device: u64,
    src_context: ContextHandle,
    byte_count: usize,
    stream: StreamArg,
) -> CuResult<()> {
    check_peers(dst_context, src_context)?;
    check_device(dst_device, byte_count)?;
    check_device(src_device, byte_count)?;
    line(dst_device, src_device, byte_count, stream, false)
}

fn check_peers(target: ContextHandle, source: ContextHandle) -> CuResult<()> {
    crate::state::Context::find_alive(target.0)?.check()?;
    crate::state::Context::find_alive(source.0)?.check()
}

/// One end of a copy in three dimensions, as C describes it.
struct End {
    memory_type: u32,
    array: u64,
    host: u64,
    device: u64,
    x: usize,
    y: usize,
    z: usize,
    pitch: usize,
    height: usize,
}

impl End {
    fn place(&self, shape: Shape) -> CuResult<Place> {
        let base = match self.memory_type {
            CU_MEMORYTYPE_HOST => self.host,
            CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED => self.device,
            CU_MEMORYTYPE_ARRAY => {
                let place = [self.x as u64, self.y as u64, self.z as u64];
                return Ok(Place::Device(Array::find_for_copy(self.array)?.place(place)?));
            }
            _ => return Err(CudaError::INVALID_VALUE),
        };
        // A pitch of 0 means that rows lie side by side, which is only meant when there is one row.
        let pitch = if self.pitch == 0 { shape.width as usize } else { self.pitch };
        let height = if self.height == 0 { shape.height as usize } else { self.height };
        if base == 0 || (pitch as u64) < shape.width {
            return Err(CudaError::INVALID_VALUE);
        }
        let slice_pitch = pitch.checked_mul(height).ok_or(CudaError::INVALID_VALUE)?;
        let offset = self
            .z
            .checked_mul(slice_pitch)
            .zip(self.y.checked_mul(pitch))
            .and_then(|(slices, rows)| slices.checked_add(rows)?.checked_add(self.x))
            .ok_or(CudaError::INVALID_VALUE)?;
        let address = base.checked_add(offset as u64).ok_or(CudaError::INVALID_VALUE)?;
        let (row_pitch, slice_pitch) = (pitch as u64, slice_pitch as u64);
        if is_device_address(base) {
            return Ok(Place::Device(Plane { address, row_pitch, slice_pitch }));
        }
        if self.memory_type == CU_MEMORYTYPE_DEVICE {
            return Err(CudaError::INVALID_VALUE);
        }
        // SAFETY: the caller of the API function promises that the host memory it describes is valid for the copy.
        Ok(Place::Host(unsafe { HostRegion::new(address, shape, row_pitch, slice_pitch) }))
    }
}

/// The copy that C describes.
pub(crate) fn copy_of(copy: &CUDA_MEMCPY3D_PEER) -> CuResult<Copy> {
    if copy.src_lod != 0 || copy.dst_lod != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let shape =
        Shape { width: copy.width_in_bytes as u64, height: copy.height as u64, depth: copy.depth as u64 };
    shape.bytes().ok_or(CudaError::INVALID_VALUE)?;
    let source = End {
        memory_type: copy.src_memory_type,
        array: copy.src_array,
        host: copy.src_host,
        device: copy.src_device,
        x: copy.src_x_in_bytes,
        y: copy.src_y,
        z: copy.src_z,
        pitch: copy.src_pitch,
        height: copy.src_height,
    };
    let target = End {
        memory_type: copy.dst_memory_type,
        array: copy.dst_array,
        host: copy.dst_host,
        device: copy.dst_device,
        x: copy.dst_x_in_bytes,
        y: copy.dst_y,
        z: copy.dst_z,
        pitch: copy.dst_pitch,
        height: copy.dst_height,
    };
    if shape.bytes() == Some(0) {
        // Nothing is touched, whatever the addresses are.
        let nothing = Place::Device(Plane::line(0));
        return Ok(Copy { source: nothing, target: nothing, shape: Shape::line(0) });
    }
    Ok(Copy { source: source.place(shape)?, target: target.place(shape)?, shape })
}

fn three_dimensional(copy: &CUDA_MEMCPY3D_PEER, stream: StreamArg, synchronous: bool) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    run(&stream, copy_of(copy)?, synchronous)
}

/// A copy in two dimensions is one of a single slice.
pub(crate) fn as_3d(copy: &CUDA_MEMCPY2D) -> CUDA_MEMCPY3D_PEER {
    CUDA_MEMCPY3D_PEER {
        src_x_in_bytes: copy.src_x_in_bytes,
        src_y: copy.src_y,
        src_z: 0,
        src_lod: 0,
        src_memory_type: copy.src_memory_type,
        src_host: copy.src_host,
        src_device: copy.src_device,
        src_array: copy.src_array,
        src_context: 0,
        src_pitch: copy.src_pitch,
        src_height: 0,
        dst_x_in_bytes: copy.dst_x_in_bytes,
        dst_y: copy.dst_y,
        dst_z: 0,
        dst_lod: 0,
        dst_memory_type: copy.dst_memory_type,
        dst_host: copy.dst_host,
        dst_device: copy.dst_device,
        dst_array: copy.dst_array,
        dst_context: 0,
        dst_pitch: copy.dst_pitch,
        dst_height: 0,
        width_in_bytes: copy.width_in_bytes,
        height: copy.height,
        depth: 1,
    }
}

/// cuMemcpy2D_v2
pub(crate) fn copy_2d(copy: &CUDA_MEMCPY2D, default_stream: StreamArg) -> CuResult<()> {
    three_dimensional(&as_3d(copy), default_stream, true)
}

/// cuMemcpy2DUnaligned_v2
pub(crate) fn copy_2d_unaligned(copy: &CUDA_MEMCPY2D, default_stream: StreamArg) -> CuResult<()> {
    three_dimensional(&as_3d(copy), default_stream, true)
}

/// cuMemcpy2DAsync_v2
pub(crate) fn copy_2d_async(copy: &CUDA_MEMCPY2D, stream: StreamArg) -> CuResult<()> {
    three_dimensional(&as_3d(copy), stream, false)
}

/// cuMemcpy3D_v2
pub(crate) fn copy_3d(copy: &CUDA_MEMCPY3D, default_stream: StreamArg) -> CuResult<()> {
    three_dimensional(&(*copy).into(), default_stream, true)
}

/// cuMemcpy3DAsync_v2
pub(crate) fn copy_3d_async(copy: &CUDA_MEMCPY3D, stream: StreamArg) -> CuResult<()> {
    three_dimensional(&(*copy).into(), stream, false)
}

/// cuMemcpy3DPeer
pub(crate) fn copy_3d_peer(copy: &CUDA_MEMCPY3D_PEER, default_stream: StreamArg) -> CuResult<()> {
    three_dimensional(copy, default_stream, true)
}

/// cuMemcpy3DPeerAsync
pub(crate) fn copy_3d_peer_async(copy: &CUDA_MEMCPY3D_PEER, stream: StreamArg) -> CuResult<()> {
    three_dimensional(copy, stream, false)
}

/// Runs the copies of a batch in order; on an error says which one failed.
fn batch<T>(
    copies: impl IntoIterator<Item = T>,
    mut fail_index: Option<Out<'_, usize>>,
    mut run_one: impl FnMut(T) -> CuResult<()>,
) -> CuResult<()> {
    for (index, copy) in copies.into_iter().enumerate() {
        run_one(copy).inspect_err(|_| {
            if let Some(place) = &mut fail_index {
                place.set(index);
            }
        })?;
    }
    Ok(())
}

/// cuMemcpyBatchAsync
pub(crate) fn batch_async_v1(
    dsts: &[u64],
    srcs: &[u64],
    sizes: &[usize],
    _count: usize,
    attrs: &[CUmemcpyAttributes],
    attrs_idxs: &[usize],
    _num_attrs: usize,
    fail_idx: Option<Out<'_, usize>>,
    stream: StreamArg,
) -> CuResult<()> {
    // Attributes say when sources may be read: reading in stream order, as we do, satisfies each of them.
    let ascending =
        attrs_idxs.first().is_none_or(|first| *first == 0) && attrs_idxs.is_sorted_by(|a, b| a < b);
    if dsts.is_empty() || attrs.is_empty() || !ascending {
        return Err(CudaError::INVALID_VALUE);
    }
    let copies = dsts.iter().zip(srcs).zip(sizes);
    batch(copies, fail_idx, |((target, source), bytes)| line(*target, *source, *bytes, stream, false))
}

/// cuMemcpyBatchAsync_v2
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
    batch_async_v1(dsts, srcs, sizes, count, attrs, attrs_idxs, num_attrs, None, stream)
}

/// cuMemcpy3DBatchAsync
pub(crate) fn batch_3d_async_v1(
    _num_ops: usize,
    op_list: &[CUDA_MEMCPY3D_BATCH_OP],
    fail_idx: Option<Out<'_, usize>>,
    flags: u64,
    stream: StreamArg,
) -> CuResult<()> {
    if flags != 0 || op_list.is_empty() {
        return Err(CudaError::INVALID_VALUE);
    }
    batch(op_list, fail_idx, |op| three_dimensional(&batch_copy(op)?, stream, false))
}

/// cuMemcpy3DBatchAsync_v2
pub(crate) fn batch_3d_async_v2(
    num_ops: usize,
    op_list: &[CUDA_MEMCPY3D_BATCH_OP],
    flags: u64,
    stream: StreamArg,
) -> CuResult<()> {
    batch_3d_async_v1(num_ops, op_list, None, flags, stream)
}

/// One end of a batch's copy.
struct BatchEnd {
    memory_type: u32,
    pointer: u64,
    array: u64,
    /// Byte, row and slice of an array.
    at: [usize; 3],
    /// Bytes of a row and rows of a slice of memory, as the program counts them.
    row_length: usize,
    layer_height: usize,
    /// Bytes of an element: 1 in memory.
    element: usize,
}

fn batch_end(operand: &CUmemcpy3DOperand) -> CuResult<BatchEnd> {
    if let Some(CUmemcpy3DPointerOperand { pointer, row_length, layer_height, .. }) = operand.pointer() {
        let (memory_type, array, at) = (CU_MEMORYTYPE_UNIFIED, 0, [0; 3]);
        return Ok(BatchEnd { memory_type, pointer, array, at, row_length, layer_height, element: 1 });
    }
    let CUmemcpy3DArrayOperand { array, offset } = operand.array().ok_or(CudaError::INVALID_VALUE)?;
    let element = Array::find(array)?.info().element_bytes().ok_or(CudaError::INVALID_VALUE)? as usize;
    let x = offset[0].checked_mul(element).ok_or(CudaError::INVALID_VALUE)?;
    let (memory_type, at) = (CU_MEMORYTYPE_ARRAY, [x, offset[1], offset[2]]);
    Ok(BatchEnd { memory_type, pointer: 0, array, at, row_length: 0, layer_height: 0, element })
}

/// A batch's copy. Its lengths count elements, which have one byte unless an array is among its ends.
fn batch_copy(op: &CUDA_MEMCPY3D_BATCH_OP) -> CuResult<CUDA_MEMCPY3D_PEER> {
    let (source, target) = (batch_end(&op.src)?, batch_end(&op.dst)?);
    let element = source.element.max(target.element);
    let bytes = |count: usize| count.checked_mul(element).ok_or(CudaError::INVALID_VALUE);
    Ok(CUDA_MEMCPY3D_PEER {
        src_x_in_bytes: source.at[0],
        src_y: source.at[1],
        src_z: source.at[2],
        src_lod: 0,
        src_memory_type: source.memory_type,
        src_host: 0,
        src_device: source.pointer,
        src_array: source.array,
        src_context: 0,
        src_pitch: bytes(source.row_length)?,
        src_height: source.layer_height,
        dst_x_in_bytes: target.at[0],
        dst_y: target.at[1],
        dst_z: target.at[2],
        dst_lod: 0,
        dst_memory_type: target.memory_type,
        dst_host: 0,
        dst_device: target.pointer,
        dst_array: target.array,
        dst_context: 0,
        dst_pitch: bytes(target.row_length)?,
        dst_height: target.layer_height,
        width_in_bytes: bytes(op.extent.width)?,
        height: op.extent.height,
        depth: op.extent.depth,
    })
}
