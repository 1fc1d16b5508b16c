//! Pinned memory that kernels are given pointers to.
//!
//! On one machine a kernel reads and writes pinned host memory by itself. Here the memory is the program's and the kernel
//! runs elsewhere. So a launch whose parameters point into pinned memory gets device memory in its stead, a *shadow*:
//!
//! ```text
//!   pinned memory ── as it is at the launch ──▶ shadow ──▶ kernel ──▶ shadow ── what changed ──▶ pinned memory
//! ```
//!
//! The copies are in the stream, before and behind the kernel. Only bytes that the kernel changed are written back: the
//! program may use other parts of the same memory meanwhile. Pointers that lie in device memory are not seen; a kernel
//! that follows one of those to the host faults, as it would on a GPU without mapped memory.

use super::{Context, Copy, Pinned, Place, Stream, allocate, client, lock, run_copy};
use crate::host::HostRegion;
use cuda_abi::{CuResult, CudaError};
use cuda_client::host_memory::HostRange;
use cuda_wire::{Command, Op, Plane, Shape};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// More than this is meant for copies, and would cost every launch as much.
const SHADOWED_BYTES_MAX: u64 = 64 << 20;

/// Device memory by the first address of its pinned memory and by context.
static SHADOWS: Mutex<BTreeMap<(u64, u64), u64>> = Mutex::new(BTreeMap::new());

/// Pinned memory that a launch uses.
pub(crate) struct Lent {
    range: HostRange,
    device: u64,
    /// What it held at the launch.
    before: Vec<u8>,
}

/// Puts device memory in the place of pinned memory in a launch's parameters.
#[inline]
pub(crate) fn lend(stream: &Arc<Stream>, parameters: &mut [u8]) -> CuResult<Vec<Lent>> {
    let pinned = &client()?.pinned;
    let mut lent = Vec::new();
    for word in parameters.as_chunks_mut::<8>().0 {
        let pointer = u64::from_le_bytes(*word);
        if pinned.may_hold(pointer)
            && let Some(range) = pinned.find(pointer)
        {
            let device = shadow_of(stream, pinned, range, &mut lent)?;
            *word = (device + (pointer - range.base)).to_le_bytes();
        }
    }
    Ok(lent)
}

#[cold]
fn shadow_of(stream: &Arc<Stream>, pinned: &Pinned, range: HostRange, lent: &mut Vec<Lent>) -> CuResult<u64> {
    if let Some(known) = lent.iter().find(|lent| lent.range.base == range.base) {
        return Ok(known.device);
    }
    if range.bytes > SHADOWED_BYTES_MAX {
        crate::process::refused(
            "cuLaunchKernel",
            "a kernel is given a pointer into more than 64 MiB of pinned memory; copy what it needs to the device",
        );
        return Err(CudaError::NOT_SUPPORTED);
    }
    let context = &stream.context;
    if pinned.is_being_written(range.base, range.bytes) {
        // Work before this launch has its say first.
        context.call(&Command::ContextSynchronize { context: context.id })?;
    }
    let device = device_memory(context, &range)?;
    // SAFETY: the program pinned the range and keeps it until it unpins it.
    let before = unsafe { HostRegion::line(range.base, range.bytes) }.to_vec();
    let copy = Copy {
        // SAFETY: these bytes are ours and stay until the copy has taken them, which for pageable memory is at once.
        source: Place::Host(unsafe { HostRegion::line(before.as_ptr() as u64, range.bytes) }),
        target: Place::Device(Plane::line(device)),
        shape: Shape::line(range.bytes),
    };
    run_copy(stream, &copy, false)?;
    lent.push(Lent { range, device, before });
    Ok(device)
}

fn device_memory(context: &Arc<Context>, range: &HostRange) -> CuResult<u64> {
    let key = (range.base, context.handle);
    if let Some(device) = lock(&SHADOWS).get(&key) {
        return Ok(*device);
    }
    let device = allocate(context, range.bytes)?;
    lock(&SHADOWS).insert(key, device);
    Ok(device)
}

/// Has what the kernel changes written back. Called after the launch.
pub(crate) fn take_back(stream: &Arc<Stream>, lent: Vec<Lent>) -> CuResult<()> {
    for Lent { range, device, before } in lent {
        let hazard = client()?.pinned.begin_write(range.base, range.bytes);
        // SAFETY: the range is pinned as long as a copy into it is under way: who unpins it waits for that.
        let target = unsafe { HostRegion::line(range.base, range.bytes) };
        let link = &stream.context.link;
        let changes = Box::new(Changes { target, before });
        let transfer = link.expect_by(range.bytes, changes, Box::new(move || super::copy::end_write(hazard)));
        let (source, shape) = (Plane::line(device), Shape::line(range.bytes));
        let op = Op::CopyOut { source, shape, transfer };
        stream.enqueue(op)?;
    }
    Ok(())
}

/// Takes a shadow's bytes and writes those that a kernel changed.
struct Changes {
    target: HostRegion,
    before: Vec<u8>,
}

impl bulk::Sink for Changes {
    fn take(&self, offset: u64, after: &[u8]) {
        let before = &self.before[offset as usize..];
        let mut at = 0;
        while at < after.len() {
            let pairs = || after[at..].iter().zip(&before[at..]);
            let same = pairs().take_while(|(new, old)| new == old).count();
            let changed = pairs().skip(same).take_while(|(new, old)| new != old).count();
            let start = at + same;
            if changed > 0 {
                self.target.write(offset + start as u64, &after[start..start + changed]);
            }
            at = start + changed;
        }
    }
}

/// Pinned memory goes: its shadows go too.
pub(crate) fn forget(base: u64) {
    let gone: Vec<u64> = {
        let mut shadows = lock(&SHADOWS);
        let keys: Vec<(u64, u64)> =
            shadows.range((base, 0)..=(base, u64::MAX)).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| shadows.remove(key)).collect()
    };
    for device in gone {
        // Memory of a context that ended went with it.
        let _ = crate::api::memory::free(device);
    }
}

/// A context ended, and with it the device memory that was made in it.
pub(super) fn forget_context(context: u64) {
    lock(&SHADOWS).retain(|(_, of), _| *of != context);
}
