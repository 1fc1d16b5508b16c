//! Bodies: memset.

use crate::{
    border::*,
    host::HostRegion,
    state::{NodeOp, Stream, client, concerns, end_write, memory_of, shadow::fetch_all, submit},
};
use cuda_abi::*;
use cuda_wire::{Op, Plane, Shape};
use std::sync::Arc;

/// Fills `height` rows of `width` elements.
fn fill(
    address: u64,
    pitch: usize,
    value: u32,
    element_bytes: u8,
    width: usize,
    height: usize,
    stream: StreamArg,
) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    let width = (width as u64).checked_mul(element_bytes.into()).ok_or(CudaError::INVALID_VALUE)?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    let pitch = pitch as u64;
    if !address.is_multiple_of(element_bytes.into())
        || (height > 1 && (pitch < width || !pitch.is_multiple_of(element_bytes.into())))
    {
        return Err(CudaError::INVALID_VALUE);
    }
    let rows = (height as u64 - 1).checked_mul(pitch).and_then(|rows| rows.checked_add(width));
    let span = rows.ok_or(CudaError::INVALID_VALUE)?;
    let context = Arc::clone(&stream.context);
    let target = Plane { address, row_pitch: pitch, slice_pitch: 0 };
    let shape = Shape { width, height: height as u64, depth: 1 };
    let is_pinned = || client().is_ok_and(|client| client.pinned.holds(address, span));
    match memory_of(address) {
        Some(device) if !concerns(&stream) => device.memory.check_range(address, span)?,
        // A capture takes any address, and cuDNN captures fills at none to see what they would launch: whoever instantiates the
        // graph is told.
        Some(_) => {}
        None if concerns(&stream) && !is_pinned() => {}
        None => {
            return fill_pinned(&stream, address, span, pitch, value, element_bytes, (width, height as u64));
        }
    }
    submit(&stream, NodeOp::Fill { target, shape, element_bytes, value, context })
}

/// Fills pinned memory, which is the program's: done here, when the stream comes to it.
#[cold]
fn fill_pinned(
    stream: &Arc<Stream>,
    address: u64,
    span: u64,
    pitch: u64,
    value: u32,
    element_bytes: u8,
    (width, height): (u64, u64),
) -> CuResult<()> {
    if !client()?.pinned.holds(address, span) {
        crate::log::debug(|| format!("a fill of {span} bytes at {address:#x}, which is no memory of CUDA's"));
        return Err(CudaError::INVALID_VALUE);
    }
    if concerns(stream) {
        crate::process::refused("cuMemsetAsync", "a captured fill of pinned host memory");
        return Err(CudaError::NOT_SUPPORTED);
    }
    fetch_all()?;
    let hazard = client()?.pinned.begin_write(address, span);
    let row: Vec<u8> =
        value.to_le_bytes()[..element_bytes.into()].iter().copied().cycle().take(width as usize).collect();
    // SAFETY: the range is pinned as long as a write into it is under way: who unpins it waits for that.
    let target = unsafe { HostRegion::new(address, Shape { width, height, depth: 1 }, pitch, 0) };
    let write = Box::new(move || {
        (0..height).for_each(|at| target.write(at * width, &row));
        end_write(hazard);
    });
    let token = stream.context.link.offer_host_call(write, true);
    stream.enqueue(Op::HostCall { token })
}

macro_rules! fills {
    ($($(#[$meta:meta])* $line:ident, $line_async:ident, $plane:ident, $plane_async:ident: $ty:ty;)*) => {$(
        $(#[$meta])*
        pub(crate) fn $line(dst_device: u64, value: $ty, count: usize, default_stream: StreamArg) -> CuResult<()> {
            fill(dst_device, 0, value.into(), size_of::<$ty>() as u8, count, 1, default_stream)
        }

        $(#[$meta])*
        pub(crate) fn $line_async(dst_device: u64, value: $ty, count: usize, stream: StreamArg) -> CuResult<()> {
            fill(dst_device, 0, value.into(), size_of::<$ty>() as u8, count, 1, stream)
        }

        $(#[$meta])*
        pub(crate) fn $plane(
            dst_device: u64,
            dst_pitch: usize,
            value: $ty,
            width: usize,
            height: usize,
            default_stream: StreamArg,
        ) -> CuResult<()> {
            fill(dst_device, dst_pitch, value.into(), size_of::<$ty>() as u8, width, height, default_stream)
        }

        $(#[$meta])*
        pub(crate) fn $plane_async(
            dst_device: u64,
            dst_pitch: usize,
            value: $ty,
            width: usize,
            height: usize,
            stream: StreamArg,
        ) -> CuResult<()> {
            fill(dst_device, dst_pitch, value.into(), size_of::<$ty>() as u8, width, height, stream)
        }
    )*};
}

fills! {
    /// cuMemsetD8, cuMemsetD2D8 and their asynchronous forms: none waits for the device.
    d8, d8_async, d2d8, d2d8_async: u8;
    /// The same with 16-bit elements.
    d16, d16_async, d2d16, d2d16_async: u16;
    /// The same with 32-bit elements.
    d32, d32_async, d2d32, d2d32_async: u32;
}
