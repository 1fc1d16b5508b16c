//! Copies in two and three dimensions, and in batches.

use super::CUmemLocation;
use crate::value::{CValue, c_structs};

c_structs! {
    /// A copy in two dimensions.
    CUDA_MEMCPY2D {
        src_x_in_bytes: usize,
        src_y: usize,
        src_memory_type: u32,
        src_host: u64,
        src_device: u64,
        src_array: u64,
        src_pitch: usize,
        dst_x_in_bytes: usize,
        dst_y: usize,
        dst_memory_type: u32,
        dst_host: u64,
        dst_device: u64,
        dst_array: u64,
        dst_pitch: usize,
        width_in_bytes: usize,
        height: usize,
    }

    /// A copy in three dimensions.
    CUDA_MEMCPY3D {
        src_x_in_bytes: usize,
        src_y: usize,
        src_z: usize,
        src_lod: usize,
        src_memory_type: u32,
        src_host: u64,
        src_device: u64,
        src_array: u64,
        reserved0: u64,
        src_pitch: usize,
        src_height: usize,
        dst_x_in_bytes: usize,
        dst_y: usize,
        dst_z: usize,
        dst_lod: usize,
        dst_memory_type: u32,
        dst_host: u64,
        dst_device: u64,
        dst_array: u64,
        reserved1: u64,
        dst_pitch: usize,
        dst_height: usize,
        width_in_bytes: usize,
        height: usize,
        depth: usize,
    }

    /// A copy in three dimensions between contexts.
    CUDA_MEMCPY3D_PEER {
        src_x_in_bytes: usize,
        src_y: usize,
        src_z: usize,
        src_lod: usize,
        src_memory_type: u32,
        src_host: u64,
        src_device: u64,
        src_array: u64,
        src_context: u64,
        src_pitch: usize,
        src_height: usize,
        dst_x_in_bytes: usize,
        dst_y: usize,
        dst_z: usize,
        dst_lod: usize,
        dst_memory_type: u32,
        dst_host: u64,
        dst_device: u64,
        dst_array: u64,
        dst_context: u64,
        dst_pitch: usize,
        dst_height: usize,
        width_in_bytes: usize,
        height: usize,
        depth: usize,
    }

    /// How the copies of a batch read their sources.
    CUmemcpyAttributes {
        src_access_order: u32,
        src_loc_hint: CUmemLocation,
        dst_loc_hint: CUmemLocation,
        flags: u32,
    }

    /// An extent in elements.
    CUextent3D {
        width: usize,
        height: usize,
        depth: usize,
    }

    /// One side of a copy of a three-dimensional batch.
    CUmemcpy3DOperand {
        kind: u32,
        /// A pointer operand or an array operand, as `kind` says.
        operand: [u64; 4],
    }

    /// The operand when it is a pointer.
    CUmemcpy3DPointerOperand {
        pointer: u64,
        row_length: usize,
        layer_height: usize,
        location_hint: CUmemLocation,
    }

    /// The operand when it is an array.
    CUmemcpy3DArrayOperand {
        array: u64,
        /// Element, row and slice.
        offset: [usize; 3],
    }

    /// One copy of a three-dimensional batch.
    CUDA_MEMCPY3D_BATCH_OP {
        src: CUmemcpy3DOperand,
        dst: CUmemcpy3DOperand,
        extent: CUextent3D,
        src_access_order: u32,
        flags: u32,
    }
}

impl CUmemcpy3DOperand {
    /// The operand as a pointer, if `kind` says that it is one.
    pub fn pointer(&self) -> Option<CUmemcpy3DPointerOperand> {
        let mut bytes = [0; 32];
        self.operand.write(&mut bytes);
        (self.kind == crate::CU_MEMCPY_OPERAND_TYPE_POINTER).then(|| CUmemcpy3DPointerOperand::read(&bytes))
    }

    /// The operand as an array, if `kind` says that it is one.
    pub fn array(&self) -> Option<CUmemcpy3DArrayOperand> {
        let mut bytes = [0; 32];
        self.operand.write(&mut bytes);
        (self.kind == crate::CU_MEMCPY_OPERAND_TYPE_ARRAY).then(|| CUmemcpy3DArrayOperand::read(&bytes))
    }
}

impl From<CUDA_MEMCPY3D> for CUDA_MEMCPY3D_PEER {
    /// The same copy within whatever contexts the pointers belong to.
    fn from(copy: CUDA_MEMCPY3D) -> Self {
        let mut bytes = [0; size_of::<CUDA_MEMCPY3D>()];
        copy.write(&mut bytes);
        Self { src_context: 0, dst_context: 0, ..Self::read(&bytes) }
    }
}
