//! Bodies: stream-ordered allocation and memory pools.

use crate::{
    border::*,
    state::{
        AllocationKind, MemoryPool, NodeOp, Stream, captures_exist, capturing, client, forbid_unsafe_call,
        memory_of, note_pool_use, run_op,
    },
};
use cuda_abi::*;
use cuda_client::pool::attribute_bytes;
use std::sync::Arc;

/// `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_ALLOCATION_TYPE_PINNED`.
const LOCATION_DEVICE: u32 = 1;
const ALLOCATION_PINNED: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: u32 = 3;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE_DESCRIPTOR: u32 = 1;

/// cuMemAllocAsync
pub(crate) fn alloc_async(device_pointer: Out<'_, u64>, byte_size: usize, stream: StreamArg) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    let pool = stream.context.device()?.current_pool();
    alloc(device_pointer, byte_size, pool, &stream)
}

/// cuMemAllocFromPoolAsync
pub(crate) fn alloc_from_pool_async(
    device_pointer: Out<'_, u64>,
    byte_size: usize,
    pool: PoolHandle,
    stream: StreamArg,
) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    alloc(device_pointer, byte_size, pool.0, &stream)
}

fn alloc(mut device_pointer: Out<'_, u64>, bytes: usize, pool: u64, stream: &Arc<Stream>) -> CuResult<()> {
    let pool = MemoryPool::find(pool)?;
    if pool.device != stream.context.device || pool.is_imported() {
        return Err(CudaError::INVALID_VALUE);
    }
    if bytes == 0 {
        device_pointer.set(0);
        return Ok(());
    }
    let bytes = bytes as u64;
    let device = stream.context.device()?;
    if bytes > device.info.memory_bytes {
        return Err(CudaError::OUT_OF_MEMORY);
    }
    if let Some(capturing) = capturing(stream) {
        let address = device.memory.place(&stream.context, bytes, AllocationKind::Graph)?;
        capturing.add(NodeOp::Allocate { address, bytes }).inspect_err(|_| {
            let _ = device.memory.remove(address);
        })?;
        device_pointer.set(address);
        return Ok(());
    }
    forbid_unsafe_call()?;
    note_pool_use();
    let block = pool.allocate(stream, bytes)?;
    device.memory.note_block(&stream.context, bytes, pool.handle, block);
    device_pointer.set(block.address);
    Ok(())
}

/// cuMemFreeAsync
pub(crate) fn free_async(device_pointer: u64, stream: StreamArg) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    if device_pointer == 0 {
        return Ok(());
    }
    if !captures_exist() {
        let mut devices = client()?.devices.iter();
        if let Some(device) = devices.find(|device| device.memory.holds(device_pointer))
            && let Some(block) = device.memory.take_block(device_pointer)
        {
            return block.free_in(&stream);
        }
    }
    let device = memory_of(device_pointer).ok_or(CudaError::INVALID_VALUE)?;
    let known = device.memory.find(device_pointer).filter(|known| known.base == device_pointer);
    let known = known.ok_or(CudaError::INVALID_VALUE)?;
    if known.kind.host_flags().is_some() {
        return Err(CudaError::INVALID_VALUE);
    }
    if let Some(capturing) = capturing(&stream) {
        return capturing.add(NodeOp::Free { address: device_pointer });
    }
    forbid_unsafe_call()?;
    if crate::state::free_imported(device_pointer)? {
        return Ok(());
    }
    if crate::state::free_graph_memory(device_pointer)? {
        return run_op(&stream, NodeOp::Free { address: device_pointer });
    }
    if device.memory.find(device_pointer).is_some_and(|known| known.kind == AllocationKind::Managed) {
        return crate::state::free_device_memory(device_pointer);
    }
    match device.memory.remove(device_pointer)?.as_block() {
        Some(block) => block.free_in(&stream),
        None => run_op(&stream, NodeOp::Free { address: device_pointer }),
    }
}

fn device_at(location: &CUmemLocation) -> CuResult<usize> {
    if location.kind != LOCATION_DEVICE {
        return Err(CudaError::INVALID_VALUE);
    }
    Ok(client()?.device(location.id)?.ordinal)
}

/// cuMemPoolCreate
pub(crate) fn create(mut pool: Out<'_, PoolHandle>, pool_props: &CUmemPoolProps) -> CuResult<()> {
    if pool_props.alloc_type != ALLOCATION_PINNED {
        return Err(CudaError::INVALID_VALUE);
    }
    // Handles of other kinds are for other systems, or for several machines.
    if pool_props.handle_types & !FILE_DESCRIPTOR != 0 {
        return Err(CudaError::NOT_SUPPORTED);
    }
    forbid_unsafe_call()?;
    let device = device_at(&pool_props.location)?;
    let made = MemoryPool::create(device, pool_props.max_size as u64, pool_props.handle_types)?;
    pool.set(PoolHandle(made.handle));
    Ok(())
}

/// cuMemPoolDestroy: what was allocated from it stays until it is freed.
pub(crate) fn destroy(pool: PoolHandle) -> CuResult<()> {
    let pool = MemoryPool::find(pool.0)?;
    if pool.books.is_default() {
        return Err(CudaError::INVALID_VALUE);
    }
    let client = client()?;
    let device = &client.devices[pool.device];
    if device.current_pool() == pool.handle {
        device.set_current_pool(device.default_pool);
    }
    pool.destroy()
}

/// cuMemPoolTrimTo
pub(crate) fn trim_to(pool: PoolHandle, min_bytes_to_keep: usize) -> CuResult<()> {
    let pool = MemoryPool::find(pool.0)?;
    forbid_unsafe_call()?;
    pool.trim_to(min_bytes_to_keep as u64)
}

/// cuMemPoolSetAttribute
pub(crate) fn set_attribute(pool: PoolHandle, attribute: u32, value: InAny<'_>) -> CuResult<()> {
    let pool = MemoryPool::find(pool.0)?;
    forbid_unsafe_call()?;
    let value = if attribute_bytes(attribute)? == 4 { value.get::<u32>().into() } else { value.get::<u64>() };
    pool.books.set_attribute(attribute, value)
}

/// cuMemPoolGetAttribute
pub(crate) fn attribute(pool: PoolHandle, attribute: u32, mut value: OutAny<'_>) -> CuResult<()> {
    let pool = MemoryPool::find(pool.0)?;
    forbid_unsafe_call()?;
    let found = pool.books.attribute(attribute)?;
    if attribute_bytes(attribute)? == 4 {
        value.set(found as u32);
    } else {
        value.set(found);
    }
    Ok(())
}

/// cuMemPoolSetAccess: the owner always has access; others would need peer access.
pub(crate) fn set_access(pool: PoolHandle, map: &[CUmemAccessDesc], _count: usize) -> CuResult<()> {
    let pool = MemoryPool::find(pool.0)?;
    for entry in map {
        let device = device_at(&entry.location)?;
        match (device == pool.device, entry.flags) {
            (true, READ_WRITE) => {}
            (true, _) => return Err(CudaError::INVALID_VALUE),
            (false, flags) => pool.set_access(device, flags),
        }
    }
    Ok(())
}

/// cuMemPoolGetAccess
pub(crate) fn access(
    mut flags: Out<'_, u32>,
    mem_pool: PoolHandle,
    location: &CUmemLocation,
) -> CuResult<()> {
    let pool = MemoryPool::find(mem_pool.0)?;
    let device = device_at(location)?;
    flags.set(if device == pool.device { READ_WRITE } else { pool.access(device) });
    Ok(())
}

/// cuDeviceGetDefaultMemPool
pub(crate) fn device_default(mut pool_out: Out<'_, PoolHandle>, device: i32) -> CuResult<()> {
    pool_out.set(PoolHandle(client()?.device(device)?.default_pool));
    Ok(())
}

/// cuDeviceGetMemPool
pub(crate) fn device_current(mut pool: Out<'_, PoolHandle>, device: i32) -> CuResult<()> {
    pool.set(PoolHandle(client()?.device(device)?.current_pool()));
    Ok(())
}

/// cuDeviceSetMemPool
pub(crate) fn device_set_current(device: i32, pool: PoolHandle) -> CuResult<()> {
    let device = client()?.device(device)?;
    let pool = MemoryPool::find(pool.0)?;
    if pool.device != device.ordinal {
        return Err(CudaError::INVALID_VALUE);
    }
    device.set_current_pool(pool.handle);
    Ok(())
}

fn check_kind(kind: u32) -> CuResult<()> {
    if kind == ALLOCATION_PINNED { Ok(()) } else { Err(CudaError::NOT_SUPPORTED) }
}

/// cuMemGetDefaultMemPool
pub(crate) fn location_default(
    pool_out: Out<'_, PoolHandle>,
    location: &CUmemLocation,
    kind: u32,
) -> CuResult<()> {
    check_kind(kind)?;
    device_default(pool_out, device_at(location)? as i32)
}

/// cuMemGetMemPool
pub(crate) fn location_current(
    pool: Out<'_, PoolHandle>,
    location: &CUmemLocation,
    kind: u32,
) -> CuResult<()> {
    check_kind(kind)?;
    device_current(pool, device_at(location)? as i32)
}

/// cuMemSetMemPool
pub(crate) fn location_set_current(location: &CUmemLocation, kind: u32, pool: PoolHandle) -> CuResult<()> {
    check_kind(kind)?;
    device_set_current(device_at(location)? as i32, pool)
}
