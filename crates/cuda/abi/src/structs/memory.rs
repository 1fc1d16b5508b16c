//! Physical memory, access and pools.

use crate::value::c_structs;

c_structs! {
    /// Where memory is.
    CUmemLocation {
        kind: u32,
        id: i32,
    }

    /// What cuMemCreate is asked for. The flags are a nested structure in C.
    CUmemAllocationProp {
        kind: u32,
        requested_handle_types: u32,
        location: CUmemLocation,
        win32_handle_meta_data: u64,
        compression_type: u8,
        gpu_direct_rdma_capable: u8,
        usage: u16,
        reserved: [u8; 4],
    }

    /// Who may do what.
    CUmemAccessDesc {
        location: CUmemLocation,
        flags: u32,
    }

    /// What a pool is made of.
    CUmemPoolProps {
        alloc_type: u32,
        handle_types: u32,
        location: CUmemLocation,
        win32_security_attributes: u64,
        max_size: usize,
        usage: u16,
        reserved: [u8; 54],
    }

    /// Memory for another process.
    CUipcMemHandle {
        reserved: [u8; 64],
    }

    /// An event for another process.
    CUipcEventHandle {
        reserved: [u8; 64],
    }

    /// An address in a pool, for another process.
    CUmemPoolPtrExportData {
        reserved: [u8; 64],
    }
}
