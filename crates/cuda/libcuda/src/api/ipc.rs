//! Bodies: memory and events for other processes.

#![allow(unsafe_code)]

use crate::{
    border::*,
    state::{
        AllocationKind, Event, MemoryPool, Physical, client, current, current_context, forbid_unsafe_call,
        import_pieces, is_own, open_memory as open_shared, open_pool_memory, read_handle, share_event,
        share_memory, share_physical,
    },
};
use cuda_abi::*;
use cuda_client::shares::{HANDLE_BYTES, Handle, What};
use cuda_wire::ShareName;
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, atomic::AtomicU32};

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_PEER_ACCESS: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE_DESCRIPTOR: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_ALLOCATION_TYPE_PINNED`.
const LOCATION_DEVICE: u32 = 1;
const ALLOCATION_PINNED: u32 = 1;

/// cuIpcGetMemHandle
pub(crate) fn memory_handle(mut handle: Out<'_, CUipcMemHandle>, device_pointer: u64) -> CuResult<()> {
    current_context()?;
    let reserved = share_memory(device_pointer, What::Memory, |found| found.kind.is_ipc_capable())?;
    handle.set(CUipcMemHandle { reserved });
    Ok(())
}

/// cuIpcOpenMemHandle_v2 cuIpcOpenMemHandle
pub(crate) fn open_memory(
    mut device_pointer: Out<'_, u64>,
    handle: CUipcMemHandle,
    flags: u32,
) -> CuResult<()> {
    let context = current_context()?;
    if flags & !LAZY_PEER_ACCESS != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    forbid_unsafe_call()?;
    let handle = read_handle("cuIpcOpenMemHandle", &handle.reserved, What::Memory)?;
    // CUDA opens no handle in the process that made it.
    if is_own(&handle) {
        return Err(CudaError::INVALID_CONTEXT);
    }
    device_pointer.set(open_shared("cuIpcOpenMemHandle", &context, &handle)?);
    Ok(())
}

/// cuIpcCloseMemHandle
pub(crate) fn close_memory(device_pointer: u64) -> CuResult<()> {
    current_context()?;
    match crate::state::close_memory(device_pointer, false)? {
        true => Ok(()),
        false => Err(CudaError::INVALID_VALUE),
    }
}

/// cuIpcGetEventHandle
pub(crate) fn event_handle(mut handle: Out<'_, CUipcEventHandle>, event: EventHandle) -> CuResult<()> {
    let event = Event::find(event.0)?;
    if !event.is_interprocess() {
        return Err(CudaError::INVALID_HANDLE);
    }
    handle.set(CUipcEventHandle { reserved: share_event(&event)? });
    Ok(())
}

/// cuIpcOpenEventHandle
pub(crate) fn open_event(mut event: Out<'_, EventHandle>, handle: CUipcEventHandle) -> CuResult<()> {
    let context = current_context()?;
    let handle = read_handle("cuIpcOpenEventHandle", &handle.reserved, What::Event);
    let handle = handle.map_err(|_| CudaError::MAP_FAILED)?;
    if is_own(&handle) {
        return Err(CudaError::INVALID_CONTEXT);
    }
    event.set(EventHandle(Event::open("cuIpcOpenEventHandle", &context, &handle)?.handle));
    Ok(())
}

/// A file that holds a handle, for the program to pass to another process as it passes any descriptor.
fn file_of(bytes: &[u8; HANDLE_BYTES]) -> CuResult<OwnedFd> {
    let write = || {
        let file = rustix::fs::memfd_create("dxpu handle", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::io::pwrite(&file, bytes, 0)?;
        rustix::fs::fcntl_add_seals(
            &file,
            SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
        )?;
        Ok(file)
    };
    write().map_err(|_: rustix::io::Errno| CudaError::OPERATING_SYSTEM)
}

/// The handle in a file of the program's. The file stays open.
fn handle_in(function: &str, descriptor: u64, what: What) -> CuResult<Handle> {
    let number = i32::try_from(descriptor).ok().filter(|number| *number >= 0);
    let number = number.ok_or(CudaError::INVALID_VALUE)?;
    // SAFETY: a number that names no open file makes the read below fail; the program keeps what it passes open during
    // the call.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    let mut bytes = [0; HANDLE_BYTES];
    let read = rustix::io::pread(file.as_fd(), &mut bytes, 0).map_err(|_| CudaError::INVALID_VALUE)?;
    if read != HANDLE_BYTES {
        return Err(CudaError::UNKNOWN);
    }
    read_handle(function, &bytes, what)
}

fn find_physical(handle: MemoryHandle) -> CuResult<Arc<Physical>> {
    client()?.physical.get(handle.0).ok_or(CudaError::INVALID_VALUE)
}

/// cuMemExportToShareableHandle
pub(crate) fn export_physical(
    mut shareable_handle: OutAny<'_>,
    handle: MemoryHandle,
    handle_type: u32,
    flags: u64,
) -> CuResult<()> {
    let physical = find_physical(handle)?;
    let allowed = physical.properties.requested_handle_types & FILE_DESCRIPTOR;
    if flags != 0 || handle_type != FILE_DESCRIPTOR || allowed == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let device = &client()?.devices[physical.device];
    let bytes = share_physical(device, physical.id, physical.bytes)?;
    shareable_handle.set(file_of(&bytes)?.into_raw_fd());
    Ok(())
}

/// cuMemImportFromShareableHandle
pub(crate) fn import_physical(
    mut handle: Out<'_, MemoryHandle>,
    os_handle: u64,
    handle_type: u32,
) -> CuResult<()> {
    const NAME: &str = "cuMemImportFromShareableHandle";
    let client = client()?;
    if handle_type != FILE_DESCRIPTOR {
        return Err(CudaError::INVALID_VALUE);
    }
    let shared = handle_in(NAME, os_handle, What::Physical)?;
    let near = &client.devices[current().map_or(0, |context| context.device)];
    let pieces = import_pieces(NAME, &near.link, &shared)?;
    let [(id, imported)] = pieces[..] else { return Err(CudaError::INVALID_VALUE) };
    let is_owner = |device: &&crate::state::Device| {
        Arc::ptr_eq(&device.link, &near.link) && device.remote == imported.device
    };
    let owner = client.devices.iter().find(is_owner).ok_or(CudaError::INVALID_DEVICE)?;
    let properties = CUmemAllocationProp {
        kind: ALLOCATION_PINNED,
        requested_handle_types: FILE_DESCRIPTOR,
        location: CUmemLocation { kind: LOCATION_DEVICE, id: owner.ordinal as i32 },
        ..Default::default()
    };
    let made = client.physical.insert_with(|handle| {
        Arc::new(Physical {
            handle,
            id,
            bytes: imported.bytes,
            device: owner.ordinal,
            properties,
            references: AtomicU32::new(1),
        })
    })?;
    handle.set(MemoryHandle(made));
    Ok(())
}

/// cuMemPoolExportToShareableHandle: which pool it is, its addresses say themselves.
pub(crate) fn export_pool(
    mut shareable_handle: OutAny<'_>,
    pool: PoolHandle,
    handle_type: u32,
    flags: u64,
) -> CuResult<()> {
    let pool = MemoryPool::find(pool.0)?;
    if flags != 0 || handle_type != FILE_DESCRIPTOR || !pool.is_shareable() {
        return Err(CudaError::INVALID_VALUE);
    }
    let device = &client()?.devices[pool.device];
    let name = ShareName { worker: 0, session: [0; 16], key: [0; 16] };
    let bytes = u64::from(device.remote);
    let handle = Handle { what: What::Pool, pieces: 0, name, bytes, offset: 0 };
    shareable_handle.set(file_of(&handle.to_bytes())?.into_raw_fd());
    Ok(())
}

/// cuMemPoolImportFromShareableHandle
pub(crate) fn import_pool(
    mut pool: Out<'_, PoolHandle>,
    os_handle: u64,
    handle_type: u32,
    flags: u64,
) -> CuResult<()> {
    const NAME: &str = "cuMemPoolImportFromShareableHandle";
    let client = client()?;
    if flags != 0 || handle_type != FILE_DESCRIPTOR {
        return Err(CudaError::INVALID_VALUE);
    }
    let handle = handle_in(NAME, os_handle, What::Pool)?;
    let near = &client.devices[current().map_or(0, |context| context.device)];
    let is_owner = |device: &&crate::state::Device| {
        Arc::ptr_eq(&device.link, &near.link) && u64::from(device.remote) == handle.bytes
    };
    let owner = client.devices.iter().find(is_owner).ok_or(CudaError::INVALID_DEVICE)?;
    pool.set(PoolHandle(MemoryPool::imported(owner.ordinal)?.handle));
    Ok(())
}

/// cuMemPoolExportPointer
pub(crate) fn export_pool_pointer(
    mut share_data: Out<'_, CUmemPoolPtrExportData>,
    device_pointer: u64,
) -> CuResult<()> {
    let is_shareable = |pool: u64| MemoryPool::find(pool).is_ok_and(|pool| pool.is_shareable());
    let reserved = share_memory(device_pointer, What::PoolPointer, |found| match found.kind {
        AllocationKind::Pool { pool, .. } => found.base == device_pointer && is_shareable(pool),
        _ => false,
    })?;
    share_data.set(CUmemPoolPtrExportData { reserved });
    Ok(())
}

/// cuMemPoolImportPointer
pub(crate) fn import_pool_pointer(
    mut device_pointer: Out<'_, u64>,
    pool: PoolHandle,
    share_data: &CUmemPoolPtrExportData,
) -> CuResult<()> {
    const NAME: &str = "cuMemPoolImportPointer";
    let pool = MemoryPool::find(pool.0)?;
    if !pool.is_imported() {
        return Err(CudaError::INVALID_VALUE);
    }
    let handle = read_handle(NAME, &share_data.reserved, What::PoolPointer)?;
    let context = &client()?.devices[pool.device].primary;
    device_pointer.set(open_pool_memory(NAME, context, &handle)?);
    Ok(())
}
