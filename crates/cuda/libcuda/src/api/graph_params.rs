//! Between the parameters of a node in C and its work.

#![allow(unsafe_code)]

use super::{copy::copy_of, launch::pack, stream_memory::memory_ops};
use crate::{
    border::*,
    state::{
        Context, Copy, Event, Function, Given, Item, KernelNode, NodeOp, Place, array_place, client,
        current_context, memory_of,
    },
};
use cuda_abi::*;
use cuda_client::launch::{LaunchShape, check};
use cuda_wire::{LaunchAttribute, Plane, Shape};
use std::sync::Arc;

/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
pub(crate) const CLUSTER_DIMENSION: u32 = 4;
/// Memory operations in one node, as in one call.
const MEMORY_OPS_MAX: u32 = 256;

/// The context of a handle; null means the current one.
pub(crate) fn context_or_current(handle: u64) -> CuResult<Arc<Context>> {
    let context = if handle == 0 { current_context()? } else { Context::find_alive(handle)? };
    context.check()?;
    Ok(context)
}

/// A kernel node. What is not among its parameters, its attributes, stays as in `old`.
pub(crate) fn kernel(params: &CUDA_KERNEL_NODE_PARAMS_v2, old: Option<&KernelNode>) -> CuResult<Item> {
    let handle = if params.func != 0 { params.func } else { params.kern };
    let node = KernelNode {
        handle,
        function: function(handle, params.ctx)?,
        grid: [params.grid_dim_x, params.grid_dim_y, params.grid_dim_z],
        block: [params.block_dim_x, params.block_dim_y, params.block_dim_z],
        shared_bytes: params.shared_mem_bytes,
        cooperative: old.is_some_and(|old| old.cooperative),
        attributes: old.map_or(Vec::new(), |old| old.attributes.clone()),
        parameters: Vec::new(),
    };
    check_kernel(&node)?;
    let mut parameters = Vec::new();
    pack(&node.function.sheet.layout, params.kernel_params, params.extra, &mut parameters)?;
    Ok(NodeOp::Kernel(KernelNode { parameters, ..node }).into())
}

fn function(handle: u64, context: u64) -> CuResult<Arc<Function>> {
    let client = client()?;
    if let Some(function) = client.functions.get(handle) {
        return Ok(function);
    }
    let kernel = client.kernels.get(handle).ok_or(CudaError::INVALID_HANDLE)?;
    kernel.function(&*context_or_current(context)?)
}

/// Whether a kernel node could be launched.
pub(crate) fn check_kernel(node: &KernelNode) -> CuResult<()> {
    let shape = LaunchShape {
        grid: node.grid,
        block: node.block,
        dynamic_shared: node.shared_bytes,
        cooperative: node.cooperative,
        cluster: cluster(&node.attributes),
    };
    check(&shape, &node.function.context.device()?.limits, &node.function.sheet.limits())
}

fn cluster(attributes: &[LaunchAttribute]) -> Option<[u32; 3]> {
    let value = &attributes.iter().find(|attribute| attribute.id == CLUSTER_DIMENSION)?.value;
    let word = |at: usize| u32::from_le_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]]);
    Some([word(0), word(4), word(8)])
}

/// The parameters of a kernel node. The addresses among them are good until the node changes or ends.
pub(crate) fn kernel_for_c(item: &mut Item) -> CuResult<CUDA_KERNEL_NODE_PARAMS_v2> {
    let kernel_params = item.kernel_parameters()?;
    let node = item.kernel()?;
    let is_function = client()?.functions.get(node.handle).is_some();
    let (func, kern) = if is_function { (node.handle, 0) } else { (0, node.handle) };
    let [grid_dim_x, grid_dim_y, grid_dim_z] = node.grid;
    let [block_dim_x, block_dim_y, block_dim_z] = node.block;
    Ok(CUDA_KERNEL_NODE_PARAMS_v2 {
        func,
        grid_dim_x,
        grid_dim_y,
        grid_dim_z,
        block_dim_x,
        block_dim_y,
        block_dim_z,
        shared_mem_bytes: node.shared_bytes,
        kernel_params,
        extra: 0,
        kern,
        ctx: node.function.context.handle,
    })
}

/// A copy node.
pub(crate) fn memcpy(params: &CUDA_MEMCPY3D, context: Arc<Context>) -> CuResult<Item> {
    if params.width_in_bytes == 0 || params.height == 0 || params.depth == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let copy = copy_of(&(*params).into())?;
    copy.check()?;
    Ok(Item::new(NodeOp::Copy { copy, context }, Given::Copy(*params)))
}

/// The parameters of a copy node.
pub(crate) fn memcpy_for_c(item: &Item) -> CuResult<CUDA_MEMCPY3D> {
    match (&item.given, &item.op) {
        (Given::Copy(params), _) => Ok(*params),
        (_, NodeOp::Copy { copy, .. }) => Ok(describe_copy(copy)),
        _ => Err(CudaError::INVALID_VALUE),
    }
}

/// A captured copy in the words of C.
fn describe_copy(copy: &Copy) -> CUDA_MEMCPY3D {
    let end = |place: &Place| match place {
        Place::Host(region) => (CU_MEMORYTYPE_HOST, region.span().0, 0, region.pitches()),
        Place::Device(plane) => {
            (CU_MEMORYTYPE_DEVICE, 0, plane.address, (plane.row_pitch, plane.slice_pitch))
        }
    };
    let height = |(row, slice): (u64, u64)| slice.checked_div(row).unwrap_or(0) as usize;
    let (src_memory_type, src_host, src_device, source) = end(&copy.source);
    let (dst_memory_type, dst_host, dst_device, target) = end(&copy.target);
    let mut described = CUDA_MEMCPY3D {
        src_memory_type,
        src_host,
        src_device,
        src_pitch: source.0 as usize,
        src_height: height(source),
        dst_memory_type,
        dst_host,
        dst_device,
        dst_pitch: target.0 as usize,
        dst_height: height(target),
        width_in_bytes: copy.shape.width as usize,
        height: copy.shape.height as usize,
        depth: copy.shape.depth as usize,
        ..CUDA_MEMCPY3D::default()
    };
    let array = |place: &Place| match place {
        Place::Device(plane) => array_place(plane),
        Place::Host(_) => None,
    };
    if let Some((array, at)) = array(&copy.source) {
        (described.src_memory_type, described.src_array, described.src_device) =
            (CU_MEMORYTYPE_ARRAY, array, 0);
        (described.src_x_in_bytes, described.src_y) = (at.x_bytes as usize, at.y as usize);
        (described.src_z, described.src_pitch, described.src_height) = (at.z as usize, 0, 0);
    }
    if let Some((array, at)) = array(&copy.target) {
        (described.dst_memory_type, described.dst_array, described.dst_device) =
            (CU_MEMORYTYPE_ARRAY, array, 0);
        (described.dst_x_in_bytes, described.dst_y) = (at.x_bytes as usize, at.y as usize);
        (described.dst_z, described.dst_pitch, described.dst_height) = (at.z as usize, 0, 0);
    }
    described
}

/// A memset node.
pub(crate) fn memset(params: &CUDA_MEMSET_NODE_PARAMS, context: Arc<Context>) -> CuResult<Item> {
    let element = u64::from(params.element_size);
    let width = (params.width as u64).checked_mul(element).ok_or(CudaError::INVALID_VALUE)?;
    let (pitch, height) = (params.pitch as u64, params.height as u64);
    let good = matches!(element, 1 | 2 | 4)
        && width != 0
        && height != 0
        && params.dst.is_multiple_of(element)
        && (height == 1 || (pitch >= width && pitch.is_multiple_of(element)));
    if !good {
        return Err(CudaError::INVALID_VALUE);
    }
    let rows = if height == 1 { Some(0) } else { (height - 1).checked_mul(pitch) };
    let span = rows.and_then(|rows| rows.checked_add(width)).ok_or(CudaError::INVALID_VALUE)?;
    let device = memory_of(params.dst).ok_or(CudaError::INVALID_VALUE)?;
    device.memory.check_range(params.dst, span)?;
    let target = Plane { address: params.dst, row_pitch: pitch, slice_pitch: 0 };
    let shape = Shape { width, height, depth: 1 };
    Ok(NodeOp::Fill { target, shape, element_bytes: element as u8, value: params.value, context }.into())
}

/// The parameters of a memset node.
pub(crate) fn memset_for_c(item: &Item) -> CuResult<CUDA_MEMSET_NODE_PARAMS> {
    let NodeOp::Fill { target, shape, element_bytes, value, .. } = &item.op else {
        return Err(CudaError::INVALID_VALUE);
    };
    Ok(CUDA_MEMSET_NODE_PARAMS {
        dst: target.address,
        pitch: target.row_pitch as usize,
        value: *value,
        element_size: u32::from(*element_bytes),
        width: (shape.width / u64::from(*element_bytes).max(1)) as usize,
        height: shape.height as usize,
    })
}

/// A host node.
pub(crate) fn host(params: &CUDA_HOST_NODE_PARAMS) -> CuResult<Item> {
    // SAFETY: the program says that this is a function of type CUhostFn.
    let function = unsafe { HostFn::from_address(params.function) }.ok_or(CudaError::INVALID_VALUE)?;
    Ok(NodeOp::Host { function, user_data: params.user_data }.into())
}

/// The parameters of a host node.
pub(crate) fn host_for_c(item: &Item) -> CuResult<CUDA_HOST_NODE_PARAMS> {
    match &item.op {
        NodeOp::Host { function, user_data } => {
            Ok(CUDA_HOST_NODE_PARAMS { function: function.address(), user_data: *user_data })
        }
        _ => Err(CudaError::INVALID_VALUE),
    }
}

fn event(handle: u64) -> CuResult<Arc<Event>> {
    if handle == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    Event::find(handle)
}

/// An event record node.
pub(crate) fn record(handle: u64) -> CuResult<Item> {
    Ok(NodeOp::Record { event: event(handle)?, flags: 0 }.into())
}

/// An event wait node.
pub(crate) fn wait(handle: u64) -> CuResult<Item> {
    Ok(NodeOp::Wait { event: event(handle)?, flags: 0 }.into())
}

/// A node of memory operations.
pub(crate) fn batch(params: &CUDA_BATCH_MEM_OP_NODE_PARAMS) -> CuResult<Item> {
    if params.flags != 0 || params.count == 0 || params.count > MEMORY_OPS_MAX {
        return Err(CudaError::INVALID_VALUE);
    }
    // SAFETY: the program says that as many operations are there.
    let operations: &[CUstreamBatchMemOpParams] = unsafe { slice_at(params.param_array, params.count) }?;
    let op = NodeOp::MemoryOps { ops: memory_ops(operations)?, context: context_or_current(params.ctx)? };
    Ok(Item::new(op, Given::MemoryOps { operations: operations.into(), flags: params.flags }))
}

/// The parameters of a node of memory operations. The address among them is good until the node changes or ends.
pub(crate) fn batch_for_c(item: &mut Item) -> CuResult<CUDA_BATCH_MEM_OP_NODE_PARAMS> {
    let NodeOp::MemoryOps { ops, context } = &item.op else { return Err(CudaError::INVALID_VALUE) };
    if !matches!(item.given, Given::MemoryOps { .. }) {
        let describe = |op: &cuda_wire::MemoryOp| {
            CUstreamBatchMemOpParams::of(CUstreamMemOpValueParams {
                operation: op.kind,
                address: op.address,
                value: op.value,
                flags: op.flags,
                ..CUstreamMemOpValueParams::default()
            })
        };
        let operations = ops.iter().map(describe).collect();
        item.given = Given::MemoryOps { operations, flags: 0 };
    }
    let Given::MemoryOps { operations, flags } = &item.given else { return Err(CudaError::UNKNOWN) };
    Ok(CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: context.handle,
        count: operations.len() as u32,
        param_array: operations.as_ptr() as u64,
        flags: *flags,
    })
}
