//! Bodies: memset.

use crate::{
    border::*,
    state::{
        NodeOp, PinnedFill, Stream, capturing, client, end_write, memory_of, plane_span, run_op,
        shadow::fetch_all,
    },
};
use cuda_abi::*;
use cuda_wire::{Command, Op, Plane, Shape};
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
    is_awaited: bool,
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
    let context = Arc::clone(&stream.context);
    let target = Plane { address, row_pitch: pitch, slice_pitch: 0 };
    let shape = Shape { width, height: height as u64, depth: 1 };
    let span = plane_span(&target, &shape)?;
    if let Some(capturing) = capturing(&stream) {
        // A capture takes any address: cuDNN captures fills at addresses without memory to see what they would launch.
        // A wrong address is reported when the graph is instantiated.
        return capturing.add(NodeOp::Fill { target, shape, element_bytes, value, context });
    }
    match memory_of(address) {
        Some(device) => device.memory.check_range(address, span)?,
        None => {
            fill_pinned(&stream, &target, &shape, element_bytes, value)?;
            // The forms without "Async" wait for the device if the memory is the host's, and only then.
            return match is_awaited {
                true => stream.context.call(&Command::StreamSynchronize { stream: stream.id }).map(drop),
                false => Ok(()),
            };
        }
    }
    run_op(&stream, NodeOp::Fill { target, shape, element_bytes, value, context })
}

/// Fills memory of the program's when the stream comes to it.
#[cold]
fn fill_pinned(
    stream: &Arc<Stream>,
    target: &Plane,
    shape: &Shape,
    element_bytes: u8,
    value: u32,
) -> CuResult<()> {
    let Some(fill) = PinnedFill::new(target, shape, element_bytes, value) else {
        crate::log::debug(|| format!("a fill at {:#x}, which is no memory of CUDA's", target.address));
        return Err(CudaError::INVALID_VALUE);
    };
    fetch_all()?;
    let hazard = client()?.pinned.begin_write(target.address, plane_span(target, shape)?);
    let write = Box::new(move || {
        fill.run();
        end_write(hazard);
    });
    let token = stream.context.link.offer_host_call(write, true);
    stream.enqueue(Op::HostCall { token })
}

macro_rules! fills {
    ($($(#[$meta:meta])* $line:ident, $line_async:ident, $plane:ident, $plane_async:ident: $ty:ty;)*) => {$(
        $(#[$meta])*
        pub(crate) fn $line(dst_device: u64, value: $ty, count: usize, default_stream: StreamArg) -> CuResult<()> {
            fill(dst_device, 0, value.into(), size_of::<$ty>() as u8, count, 1, default_stream, true)
        }

        $(#[$meta])*
        pub(crate) fn $line_async(dst_device: u64, value: $ty, count: usize, stream: StreamArg) -> CuResult<()> {
            fill(dst_device, 0, value.into(), size_of::<$ty>() as u8, count, 1, stream, false)
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
            fill(dst_device, dst_pitch, value.into(), size_of::<$ty>() as u8, width, height, default_stream, true)
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
            fill(dst_device, dst_pitch, value.into(), size_of::<$ty>() as u8, width, height, stream, false)
        }
    )*};
}

fills! {
    /// cuMemsetD8, cuMemsetD2D8 and their asynchronous forms. For device memory none waits for the device.
    d8, d8_async, d2d8, d2d8_async: u8;
    /// The same with 16-bit elements.
    d16, d16_async, d2d16, d2d16_async: u16;
    /// The same with 32-bit elements.
    d32, d32_async, d2d32, d2d32_async: u32;
}
