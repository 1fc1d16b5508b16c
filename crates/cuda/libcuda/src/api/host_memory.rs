//! Bodies: pinned and registered host memory.

use crate::{
    border::*,
    state::{client, current_context, forbid_unsafe_call, free_device_memory, managed, shadow},
};
use cuda_abi::*;
use cuda_client::shadow::SIGNAL_BYTES_MAX;
use cuda_wire::Command;

/// `CU_MEMHOSTALLOC_PORTABLE`, `_DEVICEMAP`, `_WRITECOMBINED`.
const ALLOC_FLAGS: u32 = 0b111;
const ALLOC_DEVICE_MAP: u32 = 2;
/// `CU_MEMHOSTREGISTER_PORTABLE`, `_DEVICEMAP`, `_IOMEMORY`, `_READ_ONLY`.
const REGISTER_FLAGS: u32 = 0b1111;
const REGISTER_DEVICE_MAP: u32 = 2;
const REGISTER_IO_MEMORY: u32 = 4;

/// cuMemAllocHost_v2
pub(crate) fn alloc(host_pointer: Out<'_, u64>, byte_size: usize) -> CuResult<()> {
    alloc_flags(host_pointer, byte_size, 0)
}

/// cuMemHostAlloc
pub(crate) fn alloc_flags(mut host_pointer: Out<'_, u64>, byte_size: usize, flags: u32) -> CuResult<()> {
    let context = current_context()?;
    forbid_unsafe_call()?;
    if flags & !ALLOC_FLAGS != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    if byte_size == 0 {
        host_pointer.set(0);
        return Ok(());
    }
    // What is smaller may be a signal that the program gives to a kernel while it runs; shadows carry those.
    let is_mapped = flags & ALLOC_DEVICE_MAP != 0 && byte_size as u64 > SIGNAL_BYTES_MAX;
    // Where the GPU has no room for it, it is pinned memory like any other.
    if is_mapped && let Ok(address) = managed::allocate_mapped_host(&context, byte_size as u64, flags) {
        host_pointer.set(address);
        return Ok(());
    }
    host_pointer.set(client()?.pinned.allocate(byte_size, flags, &context.link)?);
    Ok(())
}

/// Waits for copies that may still use host memory that is about to go.
fn wait_for_copies() -> CuResult<()> {
    let context = current_context()?;
    shadow::fetch_all()?;
    context.call(&Command::ContextSynchronize { context: context.id }).map(drop)
}

/// cuMemFreeHost
pub(crate) fn free(host_pointer: u64) -> CuResult<()> {
    if host_pointer == 0 {
        return Ok(());
    }
    forbid_unsafe_call()?;
    if let Some((known, _)) = managed::mapped_host_at(host_pointer) {
        if known.base != host_pointer || managed::is_registered(host_pointer) {
            return Err(CudaError::INVALID_VALUE);
        }
        wait_for_copies()?;
        return free_device_memory(host_pointer);
    }
    let pinned = &client()?.pinned;
    pinned.find(host_pointer).filter(|range| range.base == host_pointer).ok_or(CudaError::INVALID_VALUE)?;
    wait_for_copies()?;
    shadow::forget(host_pointer);
    pinned.free(host_pointer)
}

/// cuMemHostGetDevicePointer_v2: the same address. Where there is no device memory at it, launches replace it.
pub(crate) fn device_pointer(
    mut device_pointer: Out<'_, u64>,
    host_pointer: u64,
    flags: u32,
) -> CuResult<()> {
    current_context()?;
    let is_pinned = client()?.pinned.find(host_pointer).is_some();
    if flags != 0 || !is_pinned && managed::mapped_host_at(host_pointer).is_none() {
        return Err(CudaError::INVALID_VALUE);
    }
    device_pointer.set(host_pointer);
    Ok(())
}

/// cuMemHostGetFlags
pub(crate) fn flags(mut flags: Out<'_, u32>, host_pointer: u64) -> CuResult<()> {
    current_context()?;
    let known = match managed::mapped_host_at(host_pointer) {
        Some((_, known)) => known,
        None => client()?.pinned.find(host_pointer).ok_or(CudaError::INVALID_VALUE)?.flags,
    };
    flags.set(known);
    Ok(())
}

/// cuMemHostRegister_v2 cuMemHostRegister
pub(crate) fn register(host_pointer: u64, byte_size: usize, flags: u32) -> CuResult<()> {
    let context = current_context()?;
    forbid_unsafe_call()?;
    if host_pointer == 0 || byte_size == 0 || flags & !REGISTER_FLAGS != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    if flags & REGISTER_IO_MEMORY != 0 {
        return Err(CudaError::NOT_SUPPORTED);
    }
    let bytes = byte_size as u64;
    if managed::meets_registered(host_pointer, bytes) {
        return Err(CudaError::HOST_MEMORY_ALREADY_REGISTERED);
    }
    let pinned = &client()?.pinned;
    pinned.register(host_pointer, bytes, flags)?;
    let is_mapped = flags & REGISTER_DEVICE_MAP != 0 && bytes > SIGNAL_BYTES_MAX;
    // Where the worker cannot have its addresses, it is pinned memory like any other.
    if is_mapped && managed::adopt_registered(&context, host_pointer, bytes, flags).is_ok() {
        pinned.unregister(host_pointer)?;
    }
    Ok(())
}

/// cuMemHostUnregister
pub(crate) fn unregister(host_pointer: u64) -> CuResult<()> {
    if host_pointer == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    forbid_unsafe_call()?;
    if managed::is_registered(host_pointer) {
        wait_for_copies()?;
        return managed::give_back_registered(host_pointer);
    }
    // As driver 580: an address inside a registration is another error than one that is in none.
    if managed::meets_registered(host_pointer, 1) {
        return Err(CudaError::INVALID_VALUE);
    }
    let pinned = &client()?.pinned;
    let range = pinned.find(host_pointer).ok_or(CudaError::HOST_MEMORY_NOT_REGISTERED)?;
    if range.base != host_pointer {
        return Err(CudaError::INVALID_VALUE);
    }
    wait_for_copies()?;
    shadow::forget(host_pointer);
    pinned.unregister(host_pointer)
}
