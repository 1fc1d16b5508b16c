//! Copies: where from and where to, how much, from page-locked memory or not, waited for or not.

#![allow(unsafe_code)]

use crate::driver;
use crate::names::Alike;
use crate::nothing;
use crate::operation::{Operation, operate};
use crate::streams::{Flavour, Stream};
use trace_log::entry::{Kind, flag};

hooks! {
    cuMemcpyHtoD_v2 @ Legacy => upload(target: u64, source: u64, bytes: usize);
    cuMemcpyHtoD_v2_ptds @ PerThread => upload(target: u64, source: u64, bytes: usize);
    cuMemcpyHtoDAsync_v2 @ Legacy => upload_async(target: u64, source: u64, bytes: usize, stream: usize);
    cuMemcpyHtoDAsync_v2_ptsz @ PerThread => upload_async(target: u64, source: u64, bytes: usize, stream: usize);
    cuMemcpyDtoH_v2 @ Legacy => download(target: u64, source: u64, bytes: usize);
    cuMemcpyDtoH_v2_ptds @ PerThread => download(target: u64, source: u64, bytes: usize);
    cuMemcpyDtoHAsync_v2 @ Legacy => download_async(target: u64, source: u64, bytes: usize, stream: usize);
    cuMemcpyDtoHAsync_v2_ptsz @ PerThread => download_async(target: u64, source: u64, bytes: usize, stream: usize);
    cuMemcpyDtoD_v2 @ Legacy => within(target: u64, source: u64, bytes: usize);
    cuMemcpyDtoD_v2_ptds @ PerThread => within(target: u64, source: u64, bytes: usize);
    cuMemcpyDtoDAsync_v2 @ Legacy => within_async(target: u64, source: u64, bytes: usize, stream: usize);
    cuMemcpyDtoDAsync_v2_ptsz @ PerThread => within_async(target: u64, source: u64, bytes: usize, stream: usize);
    cuMemcpy @ Legacy => any(target: u64, source: u64, bytes: usize);
    cuMemcpy_ptds @ PerThread => any(target: u64, source: u64, bytes: usize);
    cuMemcpyAsync @ Legacy => any_async(target: u64, source: u64, bytes: usize, stream: usize);
    cuMemcpyAsync_ptsz @ PerThread => any_async(target: u64, source: u64, bytes: usize, stream: usize);
    cuMemcpyHtoA_v2 @ Legacy => to_array(array: usize, offset: usize, source: u64, bytes: usize);
    cuMemcpyHtoA_v2_ptds @ PerThread => to_array(array: usize, offset: usize, source: u64, bytes: usize);
    cuMemcpyHtoAAsync_v2 @ Legacy => to_array_async(array: usize, offset: usize, source: u64, bytes: usize, stream: usize);
    cuMemcpyHtoAAsync_v2_ptsz @ PerThread => to_array_async(array: usize, offset: usize, source: u64, bytes: usize, stream: usize);
    cuMemcpyAtoH_v2 @ Legacy => from_array(target: u64, array: usize, offset: usize, bytes: usize);
    cuMemcpyAtoH_v2_ptds @ PerThread => from_array(target: u64, array: usize, offset: usize, bytes: usize);
    cuMemcpyAtoHAsync_v2 @ Legacy => from_array_async(target: u64, array: usize, offset: usize, bytes: usize, stream: usize);
    cuMemcpyAtoHAsync_v2_ptsz @ PerThread => from_array_async(target: u64, array: usize, offset: usize, bytes: usize, stream: usize);
    cuMemcpyPeer @ Legacy => between(target: u64, to: usize, source: u64, from: usize, bytes: usize);
    cuMemcpyPeer_ptds @ PerThread => between(target: u64, to: usize, source: u64, from: usize, bytes: usize);
    cuMemcpyPeerAsync @ Legacy => between_async(target: u64, to: usize, source: u64, from: usize, bytes: usize, stream: usize);
    cuMemcpyPeerAsync_ptsz @ PerThread => between_async(target: u64, to: usize, source: u64, from: usize, bytes: usize, stream: usize);
    cuMemcpy2D_v2 @ Legacy => plane(copy: *const Copy2D);
    cuMemcpy2D_v2_ptds @ PerThread => plane(copy: *const Copy2D);
    cuMemcpy2DUnaligned_v2 @ Legacy => plane(copy: *const Copy2D);
    cuMemcpy2DUnaligned_v2_ptds @ PerThread => plane(copy: *const Copy2D);
    cuMemcpy2DAsync_v2 @ Legacy => plane_async(copy: *const Copy2D, stream: usize);
    cuMemcpy2DAsync_v2_ptsz @ PerThread => plane_async(copy: *const Copy2D, stream: usize);
    cuMemcpy3D_v2 @ Legacy => space(copy: *const Copy3D);
    cuMemcpy3D_v2_ptds @ PerThread => space(copy: *const Copy3D);
    cuMemcpy3DAsync_v2 @ Legacy => space_async(copy: *const Copy3D, stream: usize);
    cuMemcpy3DAsync_v2_ptsz @ PerThread => space_async(copy: *const Copy3D, stream: usize);
}

/// One end of a copy.
#[derive(Clone, Copy)]
enum End {
    /// Host memory at an address.
    Host(u64),
    /// Device memory, or an array.
    Device,
    /// Memory that only the driver can tell the kind of.
    Unknown(u64),
}

/// `CUDA_MEMCPY2D`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy2D {
    source: Side2D,
    target: Side2D,
    width: usize,
    height: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Side2D {
    x: usize,
    y: usize,
    memory_type: u32,
    host: u64,
    device: u64,
    array: usize,
    pitch: usize,
}

/// `CUDA_MEMCPY3D`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy3D {
    source: Side3D,
    target: Side3D,
    width: usize,
    height: usize,
    depth: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Side3D {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    memory_type: u32,
    host: u64,
    device: u64,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUmemorytype` and the two addresses that it chooses from.
fn end(memory_type: u32, host: u64, device: u64) -> End {
    match memory_type {
        1 => End::Host(host),
        4 => End::Unknown(device),
        _ => End::Device,
    }
}

/// CU_POINTER_ATTRIBUTE_MEMORY_TYPE, and CU_MEMORYTYPE_HOST for memory that the driver locked.
const MEMORY_TYPE: u32 = 2;
const HOST: u32 = 1;

/// What the driver says of an address: nothing about ordinary host memory.
fn memory_type(address: u64) -> Option<u32> {
    let mut kind = 0;
    // SAFETY: `kind` is a place for the answer.
    (unsafe { driver::pointer_attribute(&mut kind, MEMORY_TYPE, address) } == 0).then_some(kind)
}

/// Whether an end is host memory, and whether that is page-locked.
fn host(end: End) -> Option<bool> {
    match end {
        End::Device => None,
        End::Host(address) => Some(memory_type(address) == Some(HOST)),
        End::Unknown(address) => match memory_type(address) {
            None => Some(false),
            Some(HOST) => Some(true),
            Some(_) => None,
        },
    }
}

fn copy(
    real: impl FnOnce() -> u32,
    stream: Stream,
    is_async: bool,
    (target, source): (End, End),
    bytes: usize,
) -> u32 {
    if nothing::is_done() && host(target).is_some() {
        return nothing::make(stream, real);
    }
    let describe = || {
        let (direction, is_pinned) = match (host(source), host(target)) {
            (Some(is_pinned), None) => (flag::TO_DEVICE, is_pinned),
            (None, Some(is_pinned)) => (flag::TO_HOST, is_pinned),
            _ => (0, false),
        };
        // To ordinary memory, the driver returns when the bytes are there, whatever the call is named.
        let waits = !is_async && direction != 0 || direction == flag::TO_HOST && !is_pinned;
        let pinned = if is_pinned { flag::PINNED } else { 0 };
        let flags = direction | pinned | if waits { flag::WAITS } else { 0 };
        let alike = Alike::Copy { flags, magnitude: bytes.checked_ilog2().unwrap_or(0) };
        Operation { kind: Kind::Copy, alike, flags, count: 1, bytes: bytes as u64 }
    };
    operate(stream, describe, real)
}

fn upload(real: impl FnOnce() -> u32, flavour: Flavour, _target: u64, source: u64, bytes: usize) -> u32 {
    copy(real, Stream::new(0, flavour), false, (End::Device, End::Host(source)), bytes)
}

fn upload_async(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    _target: u64,
    source: u64,
    bytes: usize,
    stream: usize,
) -> u32 {
    copy(real, Stream::new(stream, flavour), true, (End::Device, End::Host(source)), bytes)
}

fn download(real: impl FnOnce() -> u32, flavour: Flavour, target: u64, _source: u64, bytes: usize) -> u32 {
    copy(real, Stream::new(0, flavour), false, (End::Host(target), End::Device), bytes)
}

fn download_async(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    target: u64,
    _source: u64,
    bytes: usize,
    stream: usize,
) -> u32 {
    copy(real, Stream::new(stream, flavour), true, (End::Host(target), End::Device), bytes)
}

fn within(real: impl FnOnce() -> u32, flavour: Flavour, _target: u64, _source: u64, bytes: usize) -> u32 {
    copy(real, Stream::new(0, flavour), false, (End::Device, End::Device), bytes)
}

fn within_async(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    _target: u64,
    _source: u64,
    bytes: usize,
    stream: usize,
) -> u32 {
    copy(real, Stream::new(stream, flavour), true, (End::Device, End::Device), bytes)
}

fn any(real: impl FnOnce() -> u32, flavour: Flavour, target: u64, source: u64, bytes: usize) -> u32 {
    copy(real, Stream::new(0, flavour), false, (End::Unknown(target), End::Unknown(source)), bytes)
}

fn any_async(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    target: u64,
    source: u64,
    bytes: usize,
    stream: usize,
) -> u32 {
    copy(real, Stream::new(stream, flavour), true, (End::Unknown(target), End::Unknown(source)), bytes)
}

fn to_array(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    _array: usize,
    _offset: usize,
    source: u64,
    bytes: usize,
) -> u32 {
    copy(real, Stream::new(0, flavour), false, (End::Device, End::Host(source)), bytes)
}

fn to_array_async(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    _array: usize,
    _offset: usize,
    source: u64,
    bytes: usize,
    stream: usize,
) -> u32 {
    copy(real, Stream::new(stream, flavour), true, (End::Device, End::Host(source)), bytes)
}

fn from_array(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    target: u64,
    _array: usize,
    _offset: usize,
    bytes: usize,
) -> u32 {
    copy(real, Stream::new(0, flavour), false, (End::Host(target), End::Device), bytes)
}

fn from_array_async(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    target: u64,
    _array: usize,
    _offset: usize,
    bytes: usize,
    stream: usize,
) -> u32 {
    copy(real, Stream::new(stream, flavour), true, (End::Host(target), End::Device), bytes)
}

fn between(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    _target: u64,
    _to: usize,
    _source: u64,
    _from: usize,
    bytes: usize,
) -> u32 {
    copy(real, Stream::new(0, flavour), true, (End::Device, End::Device), bytes)
}

fn between_async(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    _target: u64,
    _to: usize,
    _source: u64,
    _from: usize,
    bytes: usize,
    stream: usize,
) -> u32 {
    copy(real, Stream::new(stream, flavour), true, (End::Device, End::Device), bytes)
}

fn plane_on(real: impl FnOnce() -> u32, stream: Stream, is_async: bool, description: *const Copy2D) -> u32 {
    if description.is_null() {
        return real();
    }
    // SAFETY: not null, so it is a description by the API's own demand.
    let Copy2D { source, target, width, height } = unsafe { *description };
    let ends = (
        end(target.memory_type, target.host, target.device),
        end(source.memory_type, source.host, source.device),
    );
    copy(real, stream, is_async, ends, width.saturating_mul(height))
}

fn plane(real: impl FnOnce() -> u32, flavour: Flavour, description: *const Copy2D) -> u32 {
    plane_on(real, Stream::new(0, flavour), false, description)
}

fn plane_async(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    description: *const Copy2D,
    stream: usize,
) -> u32 {
    plane_on(real, Stream::new(stream, flavour), true, description)
}

fn space_on(real: impl FnOnce() -> u32, stream: Stream, is_async: bool, description: *const Copy3D) -> u32 {
    if description.is_null() {
        return real();
    }
    // SAFETY: not null, so it is a description by the API's own demand.
    let Copy3D { source, target, width, height, depth } = unsafe { *description };
    let ends = (
        end(target.memory_type, target.host, target.device),
        end(source.memory_type, source.host, source.device),
    );
    copy(real, stream, is_async, ends, width.saturating_mul(height).saturating_mul(depth))
}

fn space(real: impl FnOnce() -> u32, flavour: Flavour, description: *const Copy3D) -> u32 {
    space_on(real, Stream::new(0, flavour), false, description)
}

fn space_async(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    description: *const Copy3D,
    stream: usize,
) -> u32 {
    space_on(real, Stream::new(stream, flavour), true, description)
}
