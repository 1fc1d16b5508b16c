//! Arrays, textures and surfaces.

use crate::value::{CValue, c_structs};

c_structs! {
    /// An array of one or two dimensions.
    CUDA_ARRAY_DESCRIPTOR {
        width: usize,
        height: usize,
        format: u32,
        num_channels: u32,
    }

    /// An array of up to three dimensions.
    CUDA_ARRAY3D_DESCRIPTOR {
        width: usize,
        height: usize,
        depth: usize,
        format: u32,
        num_channels: u32,
        flags: u32,
    }

    /// [`CUDA_ARRAY_DESCRIPTOR`] as CUDA 3.1 had it.
    CUDA_ARRAY_DESCRIPTOR_v1 {
        width: u32,
        height: u32,
        format: u32,
        num_channels: u32,
    }

    /// [`CUDA_ARRAY3D_DESCRIPTOR`] as CUDA 3.1 had it.
    CUDA_ARRAY3D_DESCRIPTOR_v1 {
        width: u32,
        height: u32,
        depth: u32,
        format: u32,
        num_channels: u32,
        flags: u32,
    }

    /// What memory an array needs.
    CUDA_ARRAY_MEMORY_REQUIREMENTS {
        size: usize,
        alignment: usize,
        reserved: [u32; 4],
    }

    /// How a sparse array is cut into tiles.
    CUDA_ARRAY_SPARSE_PROPERTIES {
        tile_extent: [u32; 3],
        miptail_first_level: u32,
        miptail_size: u64,
        flags: u32,
        reserved: [u32; 4],
    }

    /// What a texture or surface object shows.
    CUDA_RESOURCE_DESC {
        res_type: u32,
        /// By `res_type`: see [`CUDA_RESOURCE_DESC::handle`] and [`CUDA_RESOURCE_DESC::memory`].
        res: [u64; 16],
        flags: u32,
    }

    /// The resource when it is memory. Only rows of memory have a height and a pitch.
    CUDA_RESOURCE_MEMORY {
        device_pointer: u64,
        format: u32,
        num_channels: u32,
        /// Bytes of linear memory, or elements of a row.
        width: usize,
        height: usize,
        pitch: usize,
    }

    /// How a texture is read.
    CUDA_TEXTURE_DESC {
        address_mode: [u32; 3],
        filter_mode: u32,
        flags: u32,
        max_anisotropy: u32,
        mipmap_filter_mode: u32,
        mipmap_level_bias: f32,
        min_mipmap_level_clamp: f32,
        max_mipmap_level_clamp: f32,
        border_color: [f32; 4],
        reserved: [i32; 12],
    }

    /// A part of an array, perhaps in another format.
    CUDA_RESOURCE_VIEW_DESC {
        format: u32,
        width: usize,
        height: usize,
        depth: usize,
        first_mipmap_level: u32,
        last_mipmap_level: u32,
        first_layer: u32,
        last_layer: u32,
        reserved: [u32; 16],
    }
}

impl CUDA_RESOURCE_DESC {
    /// The handle of an array or mipmapped array.
    pub fn handle(&self) -> u64 {
        self.res[0]
    }

    /// The resource as memory.
    pub fn memory(&self) -> CUDA_RESOURCE_MEMORY {
        let mut bytes = [0; 128];
        self.res.write(&mut bytes);
        CUDA_RESOURCE_MEMORY::read(&bytes)
    }
}
