//! Copies between any two places, with CUDA's rules on when host memory may be touched.
//!
//! - From pageable memory: the bytes are taken before the call returns. A synchronous copy of a few of them waits for
//!   nothing else; a larger one waits until they are on the device, and so for the work before it.
//! - To pageable memory: the call returns when the bytes are there.
//! - Pinned memory: the bytes move while the program goes on; a wait for the stream waits for them too.
//! - Pinned memory that the worker maps too (`Shared`) is read and written by the stream's own copy: no byte passes here.
//! - A pinned source that an earlier copy still writes is read when the stream gets there, not now.

#![allow(unsafe_code)]

use super::{Device, Stream, StreamKind, check_array_plane, client, device_of_array, memory_of, names_array};
use crate::host::HostRegion;
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{Blob, Bytes, Command, HostData, INLINE_BYTES_MAX, Op, Plane, Shape};
use std::sync::{Arc, mpsc};

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// The program's memory.
    Host(HostRegion),
    /// A device's memory.
    Device(Plane),
}

/// A copy as a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    /// Where from.
    pub(crate) source: Place,
    /// Where to.
    pub(crate) target: Place,
    /// How much.
    pub(crate) shape: Shape,
}

/// A pushed copy up to this size is sent by the calling thread at once; a larger one waits to be pulled, which costs a
/// round trip and saves the worker from keeping it.
const PUSH_BYTES_MAX: u64 = 8 << 20;

impl Copy {
    /// A plain copy of `bytes` between two addresses of either kind.
    ///
    /// # Safety
    ///
    /// As [`HostRegion::new`] for an address that is no device address.
    pub(crate) unsafe fn line(target: u64, source: u64, bytes: u64) -> Self {
        let place = |address| match super::is_device_address(address) {
            true => Place::Device(Plane::line(address)),
            // SAFETY: our caller's promise is the same.
            false => Place::Host(unsafe { HostRegion::line(address, bytes) }),
        };
        Self { source: place(source), target: place(target), shape: Shape::line(bytes) }
    }

    fn bytes(&self) -> u64 {
        self.shape.bytes().unwrap_or(0)
    }

    /// Fails where a device end lies outside of allocations.
    pub(crate) fn check(&self) -> CuResult<()> {
        for place in [&self.source, &self.target] {
            if let Place::Device(plane) = place {
                check_device_plane(plane, &self.shape)?;
            }
        }
        Ok(())
    }
}

/// The device that a plane lies on, in its memory or in an array.
pub(crate) fn device_of_plane(plane: &Plane) -> Option<&'static Device> {
    if names_array(plane) { device_of_array(plane) } else { memory_of(plane.address) }
}

/// Fails where a plane lies outside of allocations.
pub(crate) fn check_device_plane(plane: &Plane, shape: &Shape) -> CuResult<()> {
    if names_array(plane) {
        return check_array_plane(plane, shape);
    }
    let device = memory_of(plane.address).ok_or(CudaError::INVALID_VALUE)?;
    device.memory.check_range(plane.address, plane_span(plane, shape)?)
}

/// Bytes from a plane's first to its last, gaps included.
pub(crate) fn plane_span(plane: &Plane, shape: &Shape) -> CuResult<u64> {
    let rows = shape.height.saturating_sub(1).checked_mul(plane.row_pitch);
    let slices = shape.depth.saturating_sub(1).checked_mul(plane.slice_pitch);
    rows.zip(slices)
        .and_then(|(rows, slices)| rows.checked_add(slices)?.checked_add(shape.width))
        .ok_or(CudaError::INVALID_VALUE)
}

/// Runs a copy behind a stream that is not captured. With `synchronous`, returns when CUDA's synchronous copies do.
pub(crate) fn run_copy(stream: &Arc<Stream>, copy: &Copy, synchronous: bool) -> CuResult<()> {
    if copy.bytes() == 0 {
        return Ok(());
    }
    copy.check()?;
    if !matches!((copy.source, copy.target), (Place::Device(_), Place::Device(_))) {
        super::shadow::fetch_all()?;
    }
    if super::managed::is_any() {
        return super::managed::copy_managed(stream, copy, synchronous);
    }
    run_checked(stream, copy, synchronous)
}

/// The same for a copy that is known to be right, whatever kernels may have written into pinned memory.
pub(super) fn run_checked(stream: &Arc<Stream>, copy: &Copy, synchronous: bool) -> CuResult<()> {
    match (copy.source, copy.target) {
        (Place::Device(source), Place::Device(target)) => between_devices(stream, source, target, copy.shape),
        (Place::Host(source), Place::Device(target)) => {
            to_device(stream, source, target, copy.shape, synchronous)
        }
        (Place::Device(source), Place::Host(target)) => {
            to_host(stream, source, target, copy.shape, synchronous)
        }
        (Place::Host(source), Place::Host(target)) => {
            synchronize(stream)?;
            target.write(0, &source.to_vec());
            Ok(())
        }
    }
}

fn between_devices(stream: &Arc<Stream>, source: Plane, target: Plane, shape: Shape) -> CuResult<()> {
    let (from, to) = (device_of_plane(&source), device_of_plane(&target));
    let is_here = |device: Option<&Device>| {
        device.is_some_and(|device| Arc::ptr_eq(&device.link, &stream.context.link))
    };
    // A driver copies an array in the context that has it, and nowhere else.
    let has_array = names_array(&source) || names_array(&target);
    let is_one_device = from.map(|device| device.ordinal) == to.map(|device| device.ordinal);
    if is_here(from) && is_here(to) && (is_one_device || !has_array) {
        return stream.enqueue(Op::CopyDevice { target, source, shape });
    }
    through_this_host(stream, source, target, shape)
}

/// Copies between devices of different workers, or between arrays of two devices, by way of this process: in the order of `stream`, and done on return.
fn through_this_host(stream: &Arc<Stream>, source: Plane, target: Plane, shape: Shape) -> CuResult<()> {
    let bytes = shape.bytes().ok_or(CudaError::INVALID_VALUE)?;
    let mut buffer = vec![0u8; usize::try_from(bytes).map_err(|_| CudaError::OUT_OF_MEMORY)?];
    // SAFETY: `buffer` lives until both copies below are done: each is synchronous.
    let region = unsafe { HostRegion::line(buffer.as_mut_ptr() as u64, bytes) };
    synchronize(stream)?;
    let packed = |plane: Plane| -> CuResult<(Arc<Stream>, Plane)> {
        let device = device_of_plane(&plane).ok_or(CudaError::INVALID_VALUE)?;
        Ok((device.primary.legacy_stream()?, plane))
    };
    let (from, source) = packed(source)?;
    to_host(&from, source, region, shape, true)?;
    let (to, target) = packed(target)?;
    to_device(&to, region, target, shape, true)
}

fn to_device(
    stream: &Arc<Stream>,
    source: HostRegion,
    target: Plane,
    shape: Shape,
    synchronous: bool,
) -> CuResult<()> {
    let pinned = &client()?.pinned;
    let (address, span) = source.span();
    let link = &stream.context.link;
    let is_pinned = pinned.holds(address, span);
    let later = !synchronous && is_pinned;
    let send = |data| stream.enqueue(Op::CopyIn { target, shape, data });
    // Bytes that come through the lanes are there when this process has them, which only a pull waits for.
    let is_landing = is_pinned && pinned.is_being_written(address, span);
    let shared = is_pinned.then(|| pinned.shared(address, span)).flatten();
    let is_written = shared.as_ref().is_some_and(|shared| shared.is_written());
    // Earlier work may still write the source; only the stream knows when the bytes are there.
    let not_yet = is_landing || is_written || (is_pinned && link.host_calls_left());
    if !not_yet && source.bytes() <= INLINE_BYTES_MAX as u64 {
        send(HostData::Inline { bytes: Bytes(&source.to_vec()) })?;
        if !synchronous {
            return Ok(());
        }
        // Another process cannot be made to wait on the device.
        let may_leave = !is_pinned && stream.kind == StreamKind::Legacy && !super::shares_are_used();
        return if may_leave && client()?.unawaited.note(stream)? { Ok(()) } else { synchronize(stream) };
    }
    if !is_landing
        && let Some(source) = shared.and_then(|shared| shared.plane(link, address, source.pitches()))
    {
        stream.enqueue(Op::CopyInShared { target, source, shape })?;
        return if synchronous { synchronize(stream) } else { Ok(()) };
    }
    let may_push =
        !not_yet && (later || source.bytes() <= PUSH_BYTES_MAX) && !link.asks_by_name(source.bytes());
    if may_push && let Some(transfer) = link.announce_push(source.bytes()) {
        send(HostData::Pushed { transfer })?;
        if later {
            link.push_later(transfer, &source);
            return Ok(());
        }
        link.push(transfer, &source)?;
        return if synchronous { synchronize(stream) } else { Ok(()) };
    }
    let transfer = link.offer(&source, true);
    send(HostData::Pulled { transfer })?;
    if later {
        return Ok(());
    }
    // The worker pulls the bytes when the stream gets there; after an error it never does.
    let done = synchronize(stream);
    link.withdraw_and_wait(transfer);
    done
}

/// Waits for a stream. Then every later command, on any stream, finds what a synchronous copy wrote.
fn synchronize(stream: &Stream) -> CuResult<()> {
    stream.context.call(&Command::StreamSynchronize { stream: stream.id }).map(drop)
}

fn to_host(
    stream: &Arc<Stream>,
    source: Plane,
    target: HostRegion,
    shape: Shape,
    synchronous: bool,
) -> CuResult<()> {
    let pinned = &client()?.pinned;
    let (address, span) = target.span();
    let context = &stream.context;
    let is_large = target.bytes() > INLINE_BYTES_MAX as u64;
    if (!synchronous || is_large)
        && !pinned.is_being_written(address, span)
        && let Some(shared) = pinned.shared(address, span)
        && let Some(target) = shared.plane(&context.link, address, target.pitches())
    {
        // Before, so that no thread reads it for a copy of its own behind this one.
        shared.note_written();
        stream.enqueue(Op::CopyOutShared { source, target, shape })?;
        return if synchronous { synchronize(stream) } else { Ok(()) };
    }
    let is_pinned = pinned.holds(address, span);
    if !synchronous && is_pinned {
        let hazard = pinned.begin_write(address, span);
        let sink = pinned.in_order(target, hazard);
        let transfer = context.link.expect_by(target.bytes(), sink, Box::new(move || end_write(hazard)));
        return stream.enqueue(Op::CopyOut { source, shape, transfer });
    }
    if target.bytes() <= INLINE_BYTES_MAX as u64 {
        stream.order_behind_copies()?;
        let bytes = context.settle(context.link.ask::<Blob>(&Command::ReadBack {
            stream: stream.id,
            source,
            shape,
        }))?;
        target.write(0, &bytes.0);
        return Ok(());
    }
    let (landed, memory_is_ours_no_more) = mpsc::sync_channel(1);
    // Copies that were begun before may still have to write it.
    let hazard = is_pinned.then(|| pinned.begin_write(address, span));
    let landed = Box::new(move || {
        hazard.into_iter().for_each(end_write);
        let _ = landed.send(());
    });
    let transfer = match hazard {
        Some(hazard) => context.link.expect_by(target.bytes(), pinned.in_order(target, hazard), landed),
        None => context.link.expect(&target, landed),
    };
    let done = stream.enqueue(Op::CopyOut { source, shape, transfer }).and_then(|()| synchronize(stream));
    // After an error the bytes may never come. Either way the program gets its memory back only when no lane is
    // writing it.
    context.link.give_up(transfer);
    let _ = memory_is_ours_no_more.recv();
    done
}

/// Notes that a write into pinned memory is done.
pub(crate) fn end_write(hazard: u64) {
    if let Ok(client) = client() {
        client.pinned.end_write(hazard);
    }
}
