//! Fills of device memory.

use crate::names::Alike;
use crate::operation::{Operation, operate};
use crate::streams::{Flavour, Stream};
use trace_log::entry::Kind;

hooks! {
    cuMemsetD8_v2 @ Legacy => fill_8(target: u64, value: u8, count: usize);
    cuMemsetD8_v2_ptds @ PerThread => fill_8(target: u64, value: u8, count: usize);
    cuMemsetD16_v2 @ Legacy => fill_16(target: u64, value: u16, count: usize);
    cuMemsetD16_v2_ptds @ PerThread => fill_16(target: u64, value: u16, count: usize);
    cuMemsetD32_v2 @ Legacy => fill_32(target: u64, value: u32, count: usize);
    cuMemsetD32_v2_ptds @ PerThread => fill_32(target: u64, value: u32, count: usize);
    cuMemsetD8Async @ Legacy => fill_8_async(target: u64, value: u8, count: usize, stream: usize);
    cuMemsetD8Async_ptsz @ PerThread => fill_8_async(target: u64, value: u8, count: usize, stream: usize);
    cuMemsetD16Async @ Legacy => fill_16_async(target: u64, value: u16, count: usize, stream: usize);
    cuMemsetD16Async_ptsz @ PerThread => fill_16_async(target: u64, value: u16, count: usize, stream: usize);
    cuMemsetD32Async @ Legacy => fill_32_async(target: u64, value: u32, count: usize, stream: usize);
    cuMemsetD32Async_ptsz @ PerThread => fill_32_async(target: u64, value: u32, count: usize, stream: usize);
    cuMemsetD2D8_v2 @ Legacy => fill_2d_8(target: u64, pitch: usize, value: u8, width: usize, height: usize);
    cuMemsetD2D8_v2_ptds @ PerThread => fill_2d_8(target: u64, pitch: usize, value: u8, width: usize, height: usize);
    cuMemsetD2D16_v2 @ Legacy => fill_2d_16(target: u64, pitch: usize, value: u16, width: usize, height: usize);
    cuMemsetD2D16_v2_ptds @ PerThread => fill_2d_16(target: u64, pitch: usize, value: u16, width: usize, height: usize);
    cuMemsetD2D32_v2 @ Legacy => fill_2d_32(target: u64, pitch: usize, value: u32, width: usize, height: usize);
    cuMemsetD2D32_v2_ptds @ PerThread => fill_2d_32(target: u64, pitch: usize, value: u32, width: usize, height: usize);
    cuMemsetD2D8Async @ Legacy => fill_2d_8_async(target: u64, pitch: usize, value: u8, width: usize, height: usize, stream: usize);
    cuMemsetD2D8Async_ptsz @ PerThread => fill_2d_8_async(target: u64, pitch: usize, value: u8, width: usize, height: usize, stream: usize);
    cuMemsetD2D16Async @ Legacy => fill_2d_16_async(target: u64, pitch: usize, value: u16, width: usize, height: usize, stream: usize);
    cuMemsetD2D16Async_ptsz @ PerThread => fill_2d_16_async(target: u64, pitch: usize, value: u16, width: usize, height: usize, stream: usize);
    cuMemsetD2D32Async @ Legacy => fill_2d_32_async(target: u64, pitch: usize, value: u32, width: usize, height: usize, stream: usize);
    cuMemsetD2D32Async_ptsz @ PerThread => fill_2d_32_async(target: u64, pitch: usize, value: u32, width: usize, height: usize, stream: usize);
}

fn fill(real: impl FnOnce() -> u32, stream: Stream, bytes: usize) -> u32 {
    let describe = || {
        let alike = Alike::Memset { magnitude: bytes.checked_ilog2().unwrap_or(0) };
        Operation { kind: Kind::Memset, alike, flags: 0, count: 1, bytes: bytes as u64 }
    };
    operate(stream, describe, real)
}

/// Bodies for each width of a value: with and without a stream, of one and of two dimensions.
macro_rules! fills {
    ($($value:ty: $line:ident $line_async:ident $plane:ident $plane_async:ident;)*) => {$(
        fn $line(real: impl FnOnce() -> u32, flavour: Flavour, _target: u64, _value: $value, count: usize) -> u32 {
            fill(real, Stream::new(0, flavour), count.saturating_mul(size_of::<$value>()))
        }

        fn $line_async(
            real: impl FnOnce() -> u32, flavour: Flavour, _target: u64, _value: $value, count: usize, stream: usize,
        ) -> u32 {
            fill(real, Stream::new(stream, flavour), count.saturating_mul(size_of::<$value>()))
        }

        fn $plane(
            real: impl FnOnce() -> u32, flavour: Flavour, _target: u64, _pitch: usize, _value: $value, width: usize,
            height: usize,
        ) -> u32 {
            let bytes = width.saturating_mul(height).saturating_mul(size_of::<$value>());
            fill(real, Stream::new(0, flavour), bytes)
        }

        fn $plane_async(
            real: impl FnOnce() -> u32, flavour: Flavour, _target: u64, _pitch: usize, _value: $value, width: usize,
            height: usize, stream: usize,
        ) -> u32 {
            let bytes = width.saturating_mul(height).saturating_mul(size_of::<$value>());
            fill(real, Stream::new(stream, flavour), bytes)
        }
    )*};
}

fills! {
    u8: fill_8 fill_8_async fill_2d_8 fill_2d_8_async;
    u16: fill_16 fill_16_async fill_2d_16 fill_2d_16_async;
    u32: fill_32 fill_32_async fill_2d_32 fill_2d_32_async;
}
