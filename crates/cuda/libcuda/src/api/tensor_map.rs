//! Bodies: tensor maps. A map is made here of its arguments alone; maps whose bits are not known here are asked for.

use crate::{api::device::attribute, border::*, process, state::current_context};
use core::sync::atomic::{AtomicBool, Ordering};
use cuda_abi::*;
use cuda_client::tensor_map::{
    Im2col, Refusal, Tensor, check_place, im2col_rank, replace_address as at_another_address, tiled,
    tiled_rank,
};
use cuda_wire::{Command, Im2colWide};

/// The compute capability whose maps were observed.
const CAPABILITY_MAJOR: u32 = 9;

/// Fails where the current device has no tensor maps, or has them in a form that was never observed.
fn check_device() -> Result<(), Failure> {
    let device = current_context()?.device()?;
    if device.attribute(attribute::TENSOR_MAPS) != Some(1) {
        return Err(CudaError::NOT_SUPPORTED.into());
    }
    if device.limits.capability.0 != CAPABILITY_MAJOR {
        return Err(Refusal::Unknown("tensor maps were observed on compute capability 9.0 only").into());
    }
    Ok(())
}

/// Why a call fails.
enum Failure {
    /// As any call may.
    Call(CudaError),
    /// There is no such map.
    Map(Refusal),
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Self {
        Self::Call(error)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Map(refusal)
    }
}

/// The answer to the program. What we refuse and the real driver might not is said aloud, once for each function.
fn answer(
    symbol: &'static str,
    told: &AtomicBool,
    make: impl FnOnce() -> Result<CUtensorMap, Failure>,
) -> CuResult<CUtensorMap> {
    make().map_err(|failure| match failure {
        Failure::Call(error) => error,
        Failure::Map(refusal) => {
            if let Refusal::Unknown(reason) = refusal
                && !told.swap(true, Ordering::Relaxed)
            {
                process::refused(symbol, reason);
            }
            refusal.error()
        }
    })
}

/// cuTensorMapEncodeTiled
pub(crate) fn encode_tiled(
    mut tensor_map: Out<'_, CUtensorMap>,
    tensor_data_type: u32,
    tensor_rank: u32,
    global_address: u64,
    global_dim: Array<'_, u64>,
    global_strides: Array<'_, u64>,
    box_dim: Array<'_, u32>,
    element_strides: Array<'_, u32>,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    oob_fill: u32,
) -> CuResult<()> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let map = answer("cuTensorMapEncodeTiled", &TOLD, || {
        check_device()?;
        check_place(tensor_map.address())?;
        let rank = tiled_rank(tensor_rank)?;
        let tensor = Tensor {
            element: tensor_data_type,
            address: global_address,
            sizes: global_dim.elements(rank)?,
            strides: global_strides.elements(rank - 1)?,
            element_strides: element_strides.elements(rank)?,
            interleave,
            swizzle,
            promotion: l2_promotion,
            fill: oob_fill,
        };
        Ok(tiled(&tensor, box_dim.elements(rank)?)?)
    })?;
    tensor_map.set(map);
    Ok(())
}

/// cuTensorMapEncodeIm2col
#[allow(clippy::too_many_arguments, reason = "the C function has as many")]
pub(crate) fn encode_im2col(
    mut tensor_map: Out<'_, CUtensorMap>,
    tensor_data_type: u32,
    tensor_rank: u32,
    global_address: u64,
    global_dim: Array<'_, u64>,
    global_strides: Array<'_, u64>,
    pixel_box_lower_corner: Array<'_, i32>,
    pixel_box_upper_corner: Array<'_, i32>,
    channels_per_pixel: u32,
    pixels_per_column: u32,
    element_strides: Array<'_, u32>,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    oob_fill: u32,
) -> CuResult<()> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let map = answer("cuTensorMapEncodeIm2col", &TOLD, || {
        check_device()?;
        check_place(tensor_map.address())?;
        let rank = im2col_rank(tensor_rank)?;
        let tensor = Tensor {
            element: tensor_data_type,
            address: global_address,
            sizes: global_dim.elements(rank)?,
            strides: global_strides.elements(rank - 1)?,
            element_strides: element_strides.elements(rank)?,
            interleave,
            swizzle,
            promotion: l2_promotion,
            fill: oob_fill,
        };
        let columns = Im2col {
            lower: pixel_box_lower_corner.elements(rank - 2)?,
            upper: pixel_box_upper_corner.elements(rank - 2)?,
            channels: channels_per_pixel,
            pixels: pixels_per_column,
        };
        Ok(columns.encode(&tensor)?)
    })?;
    tensor_map.set(map);
    Ok(())
}

/// cuTensorMapEncodeIm2colWide
#[allow(clippy::too_many_arguments, reason = "the C function has as many")]
pub(crate) fn encode_im2col_wide(
    mut tensor_map: Out<'_, CUtensorMap>,
    tensor_data_type: u32,
    tensor_rank: u32,
    global_address: u64,
    global_dim: Array<'_, u64>,
    global_strides: Array<'_, u64>,
    pixel_box_lower_corner_width: i32,
    pixel_box_upper_corner_width: i32,
    channels_per_pixel: u32,
    pixels_per_column: u32,
    element_strides: Array<'_, u32>,
    interleave: u32,
    mode: u32,
    swizzle: u32,
    l2_promotion: u32,
    oob_fill: u32,
) -> CuResult<()> {
    let context = current_context()?;
    let rank = im2col_rank(tensor_rank).map_err(|refusal| refusal.error())?;
    let map = Im2colWide {
        element: tensor_data_type,
        address: global_address,
        sizes: global_dim.elements(rank)?.to_vec(),
        strides: global_strides.elements(rank - 1)?.to_vec(),
        element_strides: element_strides.elements(rank)?.to_vec(),
        corners: [pixel_box_lower_corner_width, pixel_box_upper_corner_width],
        channels: channels_per_pixel,
        pixels: pixels_per_column,
        interleave,
        mode,
        swizzle,
        promotion: l2_promotion,
        fill: oob_fill,
    };
    let made = context.link.ask::<[u8; 128]>(&Command::TensorMapWide { context: context.id, map });
    tensor_map.set(CValue::read(&context.settle(made)?));
    Ok(())
}

/// cuTensorMapReplaceAddress
pub(crate) fn replace_address(mut tensor_map: InOut<'_, CUtensorMap>, global_address: u64) -> CuResult<()> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let map = answer("cuTensorMapReplaceAddress", &TOLD, || {
        check_device()?;
        check_place(tensor_map.address())?;
        Ok(at_another_address(&tensor_map.get(), global_address)?)
    })?;
    tensor_map.set(map);
    Ok(())
}
