//! Bodies: what an address is.

#![allow(unsafe_code)]

use crate::{
    border::*,
    state::{Allocation, AllocationKind, client, memory_of},
};
use cuda_abi::*;

/// `CUpointer_attribute`.
mod number {
    pub(super) const CONTEXT: u32 = 1;
    pub(super) const MEMORY_TYPE: u32 = 2;
    pub(super) const DEVICE_POINTER: u32 = 3;
    pub(super) const HOST_POINTER: u32 = 4;
    pub(super) const SYNC_MEMOPS: u32 = 6;
    pub(super) const BUFFER_ID: u32 = 7;
    pub(super) const IS_MANAGED: u32 = 8;
    pub(super) const DEVICE_ORDINAL: u32 = 9;
    pub(super) const IS_LEGACY_IPC_CAPABLE: u32 = 10;
    pub(super) const RANGE_START: u32 = 11;
    pub(super) const RANGE_SIZE: u32 = 12;
    pub(super) const MAPPED: u32 = 13;
    pub(super) const ALLOWED_HANDLE_TYPES: u32 = 14;
    pub(super) const IS_GPU_DIRECT_RDMA_CAPABLE: u32 = 15;
    pub(super) const ACCESS_FLAGS: u32 = 16;
    pub(super) const MEMPOOL: u32 = 17;
    pub(super) const MAPPING_SIZE: u32 = 18;
    pub(super) const MAPPING_BASE: u32 = 19;
    pub(super) const MEMORY_BLOCK_ID: u32 = 20;
    pub(super) const IS_HW_DECOMPRESS_CAPABLE: u32 = 21;
}

/// An answer, with the width C expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Word(u64),
    Int(u32),
    Flag(bool),
}

impl Answer {
    fn write(self, mut place: OutAny<'_>) {
        match self {
            Self::Word(value) => place.set(value),
            Self::Int(value) => place.set(value),
            Self::Flag(value) => place.set(u8::from(value)),
        }
    }
}

/// What CUDA writes for an attribute that does not apply, in the form of cuPointerGetAttributes.
fn nothing(attribute: u32) -> CuResult<Answer> {
    use number::*;
    Ok(match attribute {
        MEMORY_TYPE | SYNC_MEMOPS | IS_MANAGED | ALLOWED_HANDLE_TYPES | ACCESS_FLAGS => Answer::Int(0),
        DEVICE_ORDINAL => Answer::Int(-2i32 as u32),
        IS_LEGACY_IPC_CAPABLE | MAPPED | IS_GPU_DIRECT_RDMA_CAPABLE | IS_HW_DECOMPRESS_CAPABLE => {
            Answer::Flag(false)
        }
        CONTEXT | DEVICE_POINTER | HOST_POINTER | BUFFER_ID | RANGE_START | RANGE_SIZE | MEMPOOL
        | MAPPING_SIZE | MAPPING_BASE | MEMORY_BLOCK_ID => Answer::Word(0),
        _ => return Err(CudaError::INVALID_VALUE),
    })
}

/// `CUmemAllocationHandleType`s that memory can be exported as.
fn handle_types(kind: AllocationKind) -> u32 {
    let Ok(client) = client() else { return 0 };
    match kind {
        AllocationKind::Mapped { physical, .. } => {
            client.physical.get(physical).map_or(0, |physical| physical.properties.requested_handle_types)
        }
        AllocationKind::Pool { pool, .. } => client.pools.get(pool).map_or(0, |pool| pool.handle_types),
        _ => 0,
    }
}

fn of_device(found: &Allocation, attribute: u32, pointer: u64) -> CuResult<Answer> {
    use number::*;
    Ok(match attribute {
        CONTEXT => Answer::Word(found.context),
        MEMORY_TYPE => Answer::Int(CU_MEMORYTYPE_DEVICE),
        DEVICE_POINTER => Answer::Word(pointer),
        // The host cannot reach device memory.
        HOST_POINTER if !found.kind.is_managed() => return Err(CudaError::INVALID_VALUE),
        HOST_POINTER => Answer::Word(pointer),
        SYNC_MEMOPS => Answer::Int(0),
        BUFFER_ID | MEMORY_BLOCK_ID => Answer::Word(found.buffer),
        IS_MANAGED => Answer::Int(found.kind.is_managed().into()),
        DEVICE_ORDINAL => Answer::Int(found.device as u32),
        IS_LEGACY_IPC_CAPABLE => Answer::Flag(found.kind.is_ipc_capable()),
        IS_GPU_DIRECT_RDMA_CAPABLE | IS_HW_DECOMPRESS_CAPABLE => Answer::Flag(false),
        RANGE_START | MAPPING_BASE => Answer::Word(found.base),
        RANGE_SIZE | MAPPING_SIZE => Answer::Word(found.bytes),
        MAPPED => Answer::Flag(true),
        ALLOWED_HANDLE_TYPES => Answer::Int(handle_types(found.kind)),
        ACCESS_FLAGS => Answer::Int(match found.kind {
            AllocationKind::Mapped { access, .. } => access,
            _ => 3,
        }),
        MEMPOOL => Answer::Word(match found.kind {
            AllocationKind::Pool { pool, .. } => pool,
            _ => 0,
        }),
        _ => return Err(CudaError::INVALID_VALUE),
    })
}

fn of_pinned(base: u64, bytes: u64, attribute: u32, pointer: u64) -> CuResult<Answer> {
    use number::*;
    Ok(match attribute {
        CONTEXT => Answer::Word(crate::state::current().map_or(0, |context| context.handle)),
        MEMORY_TYPE => Answer::Int(CU_MEMORYTYPE_HOST),
        // Under unified addressing the address is the same for the device, although only copies can use it here.
        DEVICE_POINTER | HOST_POINTER => Answer::Word(pointer),
        SYNC_MEMOPS | IS_MANAGED | ALLOWED_HANDLE_TYPES => Answer::Int(0),
        BUFFER_ID | MEMORY_BLOCK_ID => Answer::Word(base),
        DEVICE_ORDINAL => Answer::Int(crate::state::current().map_or(0, |context| context.device as u32)),
        IS_LEGACY_IPC_CAPABLE | IS_GPU_DIRECT_RDMA_CAPABLE | IS_HW_DECOMPRESS_CAPABLE => Answer::Flag(false),
        RANGE_START | MAPPING_BASE => Answer::Word(base),
        RANGE_SIZE | MAPPING_SIZE => Answer::Word(bytes),
        MAPPED => Answer::Flag(true),
        ACCESS_FLAGS => Answer::Int(3),
        MEMPOOL => Answer::Word(0),
        _ => return Err(CudaError::INVALID_VALUE),
    })
}

/// The answer, or an error where the address or the attribute makes no sense.
fn answer(attribute: u32, pointer: u64) -> CuResult<Answer> {
    if let Some(device) = memory_of(pointer) {
        let found = device.memory.find(pointer).ok_or(CudaError::INVALID_VALUE)?;
        return match found.kind.host_flags() {
            Some(_) => of_pinned(found.base, found.bytes, attribute, pointer),
            None => of_device(&found, attribute, pointer),
        };
    }
    let range = client()?.pinned.find(pointer).ok_or(CudaError::INVALID_VALUE)?;
    of_pinned(range.base, range.bytes, attribute, pointer)
}

/// cuPointerGetAttribute
pub(crate) fn attribute(data: OutAny<'_>, attribute: u32, pointer: u64) -> CuResult<()> {
    answer(attribute, pointer)?.write(data);
    Ok(())
}

/// cuPointerGetAttributes: what does not apply is answered with nothing, not with an error.
pub(crate) fn attributes(
    _num_attributes: u32,
    attributes: &[u32],
    data: &[u64],
    pointer: u64,
) -> CuResult<()> {
    if attributes.is_empty() {
        return Err(CudaError::INVALID_VALUE);
    }
    for (attribute, place) in attributes.iter().zip(data) {
        // SAFETY: the API has the caller provide in `data` a place of the right type for each attribute.
        let place = unsafe { OutAny::at(*place) }.ok_or(CudaError::INVALID_VALUE)?;
        match answer(*attribute, pointer) {
            Ok(answer) => answer.write(place),
            Err(_) => nothing(*attribute)?.write(place),
        }
    }
    Ok(())
}

/// cuPointerSetAttribute: only SYNC_MEMOPS can be set, and copies keep that promise already.
pub(crate) fn set_attribute(_value: InAny<'_>, attribute: u32, pointer: u64) -> CuResult<()> {
    if attribute != number::SYNC_MEMOPS {
        return Err(CudaError::INVALID_VALUE);
    }
    let device = memory_of(pointer).ok_or(CudaError::INVALID_VALUE)?;
    device.memory.find(pointer).map(drop).ok_or(CudaError::INVALID_VALUE)
}
