//! What a kernel reads through the texture units, and how.

wire_struct! {
    /// What a texture or surface object shows.
    #[derive(Copy, Eq)]
    pub struct Resource {
        /// `CUresourcetype`: 0 an array, 1 a mipmapped array, 2 linear memory, 3 rows of memory.
        pub kind: u32,
        /// Memory, or the place of an array's first byte in its window.
        pub address: u64,
        /// `CUarray_format` of memory.
        pub format: u32,
        /// Channels of memory.
        pub channels: u32,
        /// Bytes of linear memory; elements of a row of memory.
        pub width: u64,
        /// Rows of memory.
        pub height: u64,
        /// Bytes from a row of memory to the next.
        pub pitch: u64,
    }
}

/// `CUresourcetype`.
pub mod resource_kind {
    #![allow(missing_docs, reason = "the names of cuda.h")]

    pub const ARRAY: u32 = 0;
    pub const MIPMAPPED_ARRAY: u32 = 1;
    pub const LINEAR: u32 = 2;
    pub const PITCH_2D: u32 = 3;
}

wire_struct! {
    /// How a texture is read: `CUDA_TEXTURE_DESC`.
    #[derive(Copy)]
    pub struct Sampling {
        /// `CUaddress_mode` of each dimension.
        pub address_modes: [u32; 3],
        /// `CUfilter_mode`.
        pub filter_mode: u32,
        /// `CU_TRSF_*`.
        pub flags: u32,
        /// 1 to 16.
        pub max_anisotropy: u32,
        /// `CUfilter_mode` between levels.
        pub mipmap_filter_mode: u32,
        /// Added to the level.
        pub mipmap_level_bias: f32,
        /// The lowest level.
        pub min_mipmap_level_clamp: f32,
        /// The highest level.
        pub max_mipmap_level_clamp: f32,
        /// What lies outside, in the border mode.
        pub border_color: [f32; 4],
    }
}

wire_struct! {
    /// A part of an array in another format: `CUDA_RESOURCE_VIEW_DESC`.
    #[derive(Copy, Eq)]
    pub struct ResourceView {
        /// `CUresourceViewFormat`.
        pub format: u32,
        /// Elements of a row.
        pub width: u64,
        /// Rows.
        pub height: u64,
        /// Slices.
        pub depth: u64,
        /// The level that is level 0 of the view.
        pub first_level: u32,
        /// The last level.
        pub last_level: u32,
        /// The layer that is layer 0 of the view.
        pub first_layer: u32,
        /// The last layer.
        pub last_layer: u32,
    }
}
