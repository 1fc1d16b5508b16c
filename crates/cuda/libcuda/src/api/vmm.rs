//! Bodies: virtual memory management.

use crate::{
    border::*,
    state::{AllocationKind, Physical, client, memory_of, or_squeeze},
};
use cuda_abi::*;
use cuda_wire::{Command, MemoryHandleId};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

const ALLOCATION_PINNED: u32 = 1;
const LOCATION_DEVICE: u32 = 1;
const HANDLE_FILE_DESCRIPTOR: u32 = 1;
const GRANULARITY_MINIMUM: u32 = 0;
const GRANULARITY_RECOMMENDED: u32 = 1;

/// The device that properties ask for.
fn device_of(properties: &CUmemAllocationProp) -> CuResult<&'static crate::state::Device> {
    if properties.kind != ALLOCATION_PINNED || properties.location.kind != LOCATION_DEVICE {
        return Err(CudaError::INVALID_VALUE);
    }
    // A handle for another process would need that process to have the same worker. PyTorch asks for memory that could
    // be exported by a file descriptor and never exports it; the export itself is refused.
    if properties.requested_handle_types & !HANDLE_FILE_DESCRIPTOR != 0 {
        return Err(CudaError::NOT_SUPPORTED);
    }
    client()?.device(properties.location.id)
}

/// cuMemAddressReserve
pub(crate) fn address_reserve(
    mut pointer: Out<'_, u64>,
    size: usize,
    alignment: usize,
    addr: u64,
    flags: u64,
) -> CuResult<()> {
    let client = client()?;
    // The current context says on which worker; a reservation can only be mapped there.
    let current = crate::state::current().map_or(0, |context| context.device);
    let device = &client.devices[current];
    let granularity = device.info.granularity.0 as usize;
    let aligned = alignment == 0 || alignment.is_power_of_two();
    if size == 0 || !size.is_multiple_of(granularity) || !aligned || flags != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let alignment = alignment.max(granularity);
    pointer.set(device.memory.reserve(size as u64, alignment as u64, addr)?);
    Ok(())
}

/// cuMemAddressFree
pub(crate) fn address_free(pointer: u64, size: usize) -> CuResult<()> {
    let device = memory_of(pointer).ok_or(CudaError::INVALID_VALUE)?;
    device.memory.unreserve(pointer, size as u64)
}

/// cuMemCreate
pub(crate) fn create(
    mut handle: Out<'_, MemoryHandle>,
    size: usize,
    properties: &CUmemAllocationProp,
    flags: u64,
) -> CuResult<()> {
    let device = device_of(properties)?;
    let bytes = size as u64;
    if size == 0 || !bytes.is_multiple_of(device.info.granularity.0) || flags != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let client = client()?;
    let id = MemoryHandleId(client.next_id());
    let command = Command::PhysicalCreate { handle: id, device: device.remote, bytes };
    or_squeeze(device, || device.link.allocate(&command, bytes))?;
    let made = client.physical.insert_with(|handle| {
        Arc::new(Physical {
            handle,
            id,
            bytes,
            device: device.ordinal,
            properties: *properties,
            references: AtomicU32::new(1),
        })
    })?;
    handle.set(MemoryHandle(made));
    Ok(())
}

fn find(handle: MemoryHandle) -> CuResult<Arc<Physical>> {
    client()?.physical.get(handle.0).ok_or(CudaError::INVALID_VALUE)
}

/// cuMemRelease: the memory itself stays while it is mapped somewhere; the worker counts that.
pub(crate) fn release(handle: MemoryHandle) -> CuResult<()> {
    let physical = find(handle)?;
    let left =
        physical.references.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
    match left {
        Ok(1) => {
            client()?.devices[physical.device].link.post(&Command::PhysicalRelease { handle: physical.id })
        }
        Ok(_) => Ok(()),
        Err(_) => Err(CudaError::INVALID_VALUE),
    }
}

/// cuMemMap
pub(crate) fn map(
    pointer: u64,
    size: usize,
    offset: usize,
    handle: MemoryHandle,
    flags: u64,
) -> CuResult<()> {
    let physical = find(handle)?;
    let device = memory_of(pointer).ok_or(CudaError::INVALID_VALUE)?;
    let owner = &client()?.devices[physical.device];
    let granularity = owner.info.granularity.0;
    let aligned =
        [pointer, size as u64, offset as u64].iter().all(|number| number.is_multiple_of(granularity));
    if flags != 0 || !aligned || !Arc::ptr_eq(&device.link, &owner.link) {
        return Err(CudaError::INVALID_VALUE);
    }
    device.memory.map(pointer, size as u64, offset as u64, &physical)?;
    device.link.post(&Command::PhysicalMap {
        address: pointer,
        bytes: size as u64,
        offset: offset as u64,
        handle: physical.id,
    })
}

/// cuMemUnmap
pub(crate) fn unmap(pointer: u64, size: usize) -> CuResult<()> {
    let device = memory_of(pointer).ok_or(CudaError::INVALID_VALUE)?;
    if device.memory.unmap(pointer, size as u64)?.is_empty() {
        return Ok(());
    }
    device.link.post(&Command::PhysicalUnmap { address: pointer, bytes: size as u64 })
}

/// cuMemSetAccess
pub(crate) fn set_access(pointer: u64, size: usize, desc: &[CUmemAccessDesc], _count: usize) -> CuResult<()> {
    let device = memory_of(pointer).ok_or(CudaError::INVALID_VALUE)?;
    if desc.is_empty() {
        return Err(CudaError::INVALID_VALUE);
    }
    for entry in desc {
        let target = client()?.device(entry.location.id)?;
        if entry.location.kind != LOCATION_DEVICE || !matches!(entry.flags, 0 | 1 | 3) {
            return Err(CudaError::INVALID_VALUE);
        }
        device.memory.set_access(pointer, size as u64, entry.flags)?;
        device.link.post(&Command::PhysicalSetAccess {
            address: pointer,
            bytes: size as u64,
            device: target.remote,
            protection: entry.flags,
        })?;
    }
    Ok(())
}

/// cuMemGetAccess
pub(crate) fn access(mut flags: Out<'_, u64>, location: &CUmemLocation, pointer: u64) -> CuResult<()> {
    let device = memory_of(pointer).ok_or(CudaError::INVALID_VALUE)?;
    let found = device.memory.find(pointer).ok_or(CudaError::INVALID_VALUE)?;
    let asked = client()?.device(location.id)?;
    flags.set(match found.kind {
        AllocationKind::Mapped { access, .. } if found.device == asked.ordinal => access.into(),
        AllocationKind::Mapped { .. } => 0,
        _ => return Err(CudaError::INVALID_VALUE),
    });
    Ok(())
}

/// cuMemGetAllocationGranularity
pub(crate) fn granularity(
    mut granularity: Out<'_, usize>,
    properties: &CUmemAllocationProp,
    option: u32,
) -> CuResult<()> {
    let device = device_of(properties)?;
    granularity.set(match option {
        GRANULARITY_MINIMUM => device.info.granularity.0 as usize,
        GRANULARITY_RECOMMENDED => device.info.granularity.1 as usize,
        _ => return Err(CudaError::INVALID_VALUE),
    });
    Ok(())
}

/// cuMemGetAllocationPropertiesFromHandle
pub(crate) fn properties_from_handle(
    mut properties: Out<'_, CUmemAllocationProp>,
    handle: MemoryHandle,
) -> CuResult<()> {
    properties.set(find(handle)?.properties);
    Ok(())
}

/// cuMemRetainAllocationHandle
pub(crate) fn retain_handle(mut handle: Out<'_, MemoryHandle>, addr: u64) -> CuResult<()> {
    let device = memory_of(addr).ok_or(CudaError::INVALID_VALUE)?;
    let found = device.memory.find(addr).ok_or(CudaError::INVALID_VALUE)?;
    let AllocationKind::Mapped { physical, .. } = found.kind else {
        return Err(CudaError::INVALID_VALUE);
    };
    let physical = find(MemoryHandle(physical))?;
    // Released to nothing while still mapped: it can be retained again no more.
    let retained = physical
        .references
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| (count > 0).then(|| count + 1));
    retained.map_err(|_| CudaError::INVALID_VALUE)?;
    handle.set(MemoryHandle(physical.handle));
    Ok(())
}
