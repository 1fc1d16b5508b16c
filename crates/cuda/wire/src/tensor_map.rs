//! Tensor maps that only the worker's driver can make.

wire_struct! {
    /// The arguments of cuTensorMapEncodeIm2colWide. There are as many sizes as the tensor has dimensions.
    #[derive(Eq)]
    pub struct Im2colWide {
        /// `CUtensorMapDataType`.
        pub element: u32,
        /// Where the tensor is.
        pub address: u64,
        /// Elements of each dimension.
        pub sizes: Vec<u64>,
        /// Bytes of each dimension but the innermost.
        pub strides: Vec<u64>,
        /// Steps between elements, in each dimension.
        pub element_strides: Vec<u32>,
        /// The corners of the box of pixels.
        pub corners: [i32; 2],
        /// Channels of a pixel.
        pub channels: u32,
        /// Pixels of a column.
        pub pixels: u32,
        /// `CUtensorMapInterleave`.
        pub interleave: u32,
        /// `CUtensorMapIm2ColWideMode`.
        pub mode: u32,
        /// `CUtensorMapSwizzle`.
        pub swizzle: u32,
        /// `CUtensorMapL2promotion`.
        pub promotion: u32,
        /// `CUtensorMapFloatOOBfill`.
        pub fill: u32,
    }
}
