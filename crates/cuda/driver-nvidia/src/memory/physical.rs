//! Memory without an address.

use crate::sys::{Api, MemAllocationProp, MemLocation};
use cuda_abi::{CuResult, CudaError};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `CU_MEM_LOCATION_TYPE_DEVICE`, and `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(super) const DEVICE: u32 = 1;
const PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE_DESCRIPTOR: u32 = 1;

/// Properties of plain memory of a device.
pub(crate) fn properties(device: u32) -> MemAllocationProp {
    MemAllocationProp {
        kind: PINNED,
        handle_types: 0,
        location: MemLocation { kind: DEVICE, id: device as i32 },
        win32: std::ptr::null_mut(),
        flags: [0; 8],
    }
}

/// Physical memory. Its drop releases the handle; the driver frees the memory when it is mapped nowhere.
#[derive(Debug)]
pub(crate) struct Physical {
    api: Api,
    pub(crate) handle: u64,
    pub(crate) bytes: u64,
    pub(crate) device: u32,
    /// It is another session's, and counts as that one's.
    is_imported: bool,
}

impl Physical {
    /// Whether it counts as another session's.
    pub(super) fn is_imported(&self) -> bool {
        self.is_imported
    }

    /// All memory is made so that it can be exported: when it is made the program has not said whether it will share it.
    pub(crate) fn create(api: &Api, device: u32, bytes: u64) -> CuResult<Self> {
        let mut handle = 0;
        let plain = properties(device);
        let exportable = MemAllocationProp { handle_types: FILE_DESCRIPTOR, ..plain };
        // SAFETY: both pointers are valid for the call.
        let made = unsafe { api.memory_create(&mut handle, bytes as usize, &exportable, 0) };
        match made {
            // Some systems (a virtual GPU, say) have no such memory.
            Err(CudaError::NOT_SUPPORTED | CudaError::NOT_PERMITTED | CudaError::INVALID_VALUE) => {
                // SAFETY: as above.
                unsafe { api.memory_create(&mut handle, bytes as usize, &plain, 0)? }
            }
            made => made?,
        }
        Ok(Self { api: *api, handle, bytes, device, is_imported: false })
    }

    /// Memory that another session has exported.
    pub(crate) fn import(api: &Api, fd: &OwnedFd, device: u32, bytes: u64) -> CuResult<Self> {
        let mut handle = 0;
        let from = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        // SAFETY: the handle is valid for the call; a descriptor travels as the number in the pointer.
        unsafe { api.memory_import(&mut handle, from, FILE_DESCRIPTOR)? };
        Ok(Self { api: *api, handle, bytes, device, is_imported: true })
    }

    /// A descriptor by which another session has it too.
    pub(crate) fn export(&self) -> CuResult<OwnedFd> {
        let mut fd: i32 = -1;
        // SAFETY: for this kind of handle the driver writes one `int`.
        unsafe { self.api.memory_export((&raw mut fd).cast(), self.handle, FILE_DESCRIPTOR, 0)? };
        // SAFETY: the driver made it for us a moment ago.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: no pointers. A driver that fails here has lost the memory anyway.
        let _ = unsafe { self.api.memory_release(self.handle) };
    }
}
