//! Tensor maps that only the driver can make.

#![allow(unsafe_code)]

use crate::sys::{Api, EncodeIm2colWide};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::Im2colWide;

/// `CUtensorMap`, which must lie at a multiple of 64 bytes.
#[repr(C, align(64))]
struct Map([u8; 128]);

/// What cuTensorMapEncodeIm2colWide makes of these arguments; drivers before CUDA 12.8 do not have it.
pub(crate) fn im2col_wide(api: &Api, map: &Im2colWide) -> CuResult<[u8; 128]> {
    /// The most dimensions of a tensor.
    const DIMENSIONS_MAX: usize = 5;
    let rank = map.sizes.len();
    let fits = (1..=DIMENSIONS_MAX).contains(&rank) && map.strides.len() + 1 >= rank;
    if !fits || map.element_strides.len() < rank {
        return Err(CudaError::INVALID_VALUE);
    }
    // SAFETY: the symbol has this signature by CUDA's documentation.
    let encode: EncodeIm2colWide =
        unsafe { api.later_function("cuTensorMapEncodeIm2colWide") }.ok_or(CudaError::NOT_SUPPORTED)?;
    let mut made = Map([0; 128]);
    // SAFETY: the lists have as many elements as the tensor has dimensions, and the driver does not follow the address.
    let code = unsafe {
        encode(
            made.0.as_mut_ptr().cast(),
            map.element,
            rank as u32,
            map.address as usize as *mut _,
            map.sizes.as_ptr(),
            map.strides.as_ptr(),
            map.corners[0],
            map.corners[1],
            map.channels,
            map.pixels,
            map.element_strides.as_ptr(),
            map.interleave,
            map.mode,
            map.swizzle,
            map.promotion,
            map.fill,
        )
    };
    crate::sys::check(code)?;
    Ok(made.0)
}
