//! Memory of the program's that this process maps too: the copy engine reads and writes it itself.

#![allow(unsafe_code)]

use crate::{
    array,
    op::{Work, names_array},
    pinned::SLOT_BYTES,
    stream::LiveStream,
    sys::{Api, Copy2D, MEMORY_DEVICE, MEMORY_HOST, Stream},
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::SharedPages;
use cuda_wire::{Plane, RegionId, Shape, SharedPlane};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Pages that the driver knows. Dropped when no work uses them any more, on a thread that may call the library.
pub(crate) struct Registered {
    api: Api,
    pages: Arc<SharedPages>,
}

impl Registered {
    /// Makes the pages known to all contexts. The calling thread has one.
    pub(crate) fn new(api: &Api, pages: Arc<SharedPages>) -> CuResult<Self> {
        const PORTABLE: u32 = 1;
        let start = std::ptr::with_exposed_provenance_mut(pages.address());
        // SAFETY: the pages stay mapped as long as `pages` lives, which is until they are unregistered.
        unsafe { api.host_register(start, pages.bytes(), PORTABLE)? };
        Ok(Self { api: *api, pages })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let start = std::ptr::with_exposed_provenance_mut(self.pages.address());
        // SAFETY: registered in `new`; whoever drops it knows that no work uses it.
        if let Err(error) = unsafe { self.api.host_unregister(start) } {
            // The driver may still use the pages: they stay until the process ends.
            tracing::warn!(%error, "the driver keeps memory of the client that it should let go of");
            std::mem::forget(Arc::clone(&self.pages));
        }
    }
}

/// By name.
#[derive(Default)]
pub(crate) struct Regions(Mutex<HashMap<RegionId, Arc<Registered>>>);

impl Regions {
    pub(crate) fn insert(&self, region: RegionId, pages: Registered) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(region, Arc::new(pages));
    }

    pub(crate) fn remove(&self, region: RegionId) -> Option<Arc<Registered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&region)
    }

    /// Where a copy begins in this process, if all of it is in its region.
    fn find(&self, plane: &SharedPlane, shape: &Shape) -> CuResult<usize> {
        let regions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = &regions.get(&plane.region).ok_or(CudaError::INVALID_HANDLE)?.pages;
        let end = plane.end(shape).filter(|end| *end <= pages.bytes() as u64);
        shape.bytes().zip(end).ok_or(CudaError::INVALID_VALUE)?;
        Ok(pages.address() + plane.offset as usize)
    }
}

/// Which way a copy goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    In,
    Out,
}

/// Puts a copy into a stream. `unshare` waits for it before the pages go.
pub(crate) fn copy(
    work: &Work,
    live: &Arc<LiveStream>,
    device: Plane,
    shared: SharedPlane,
    shape: Shape,
    way: Way,
) -> CuResult<()> {
    let host = work.regions.find(&shared, &shape)?;
    let stream = live.enter()?;
    if names_array(&device) {
        work.before_part(live, shape.width * shape.height)?;
        return array::shared(work, stream, device, (host, shared), shape, way);
    }
    for slice in 0..shape.depth {
        let at = device.address + slice * device.slice_pitch;
        let host = host + (slice * shared.slice_pitch) as usize;
        if shape.height == 1 {
            line(work, live, (at, host), shape.width as usize, way)?;
        } else {
            work.before_part(live, shape.width * shape.height)?;
            rows(work, stream, (at, device.row_pitch), (host, shared.row_pitch), shape, way)?;
        }
    }
    Ok(())
}

/// An offline session's copy may wait between its parts, so that an online one's does not wait for all of it.
fn line(
    work: &Work,
    live: &Arc<LiveStream>,
    (device, host): (u64, usize),
    bytes: usize,
    way: Way,
) -> CuResult<()> {
    let stream = live.enter()?;
    let part_bytes = if work.is_offline() { SLOT_BYTES } else { bytes };
    for at in (0..bytes).step_by(part_bytes.max(1)) {
        let count = part_bytes.min(bytes - at);
        work.before_part(live, count as u64)?;
        part(work, stream, device + at as u64, host + at, count, way)?;
    }
    Ok(())
}

fn part(work: &Work, stream: Stream, device: u64, host: usize, bytes: usize, way: Way) -> CuResult<()> {
    match way {
        // SAFETY: `find` has checked the range; the pages stay until the stream has copied.
        Way::In => unsafe {
            work.api.copy_in(device, std::ptr::with_exposed_provenance(host), bytes, stream)
        },
        // SAFETY: as above.
        Way::Out => unsafe {
            work.api.copy_out(std::ptr::with_exposed_provenance_mut(host), device, bytes, stream)
        },
    }
}

fn rows(
    work: &Work,
    stream: Stream,
    (device, device_pitch): (u64, u64),
    (host, host_pitch): (usize, u64),
    shape: Shape,
    way: Way,
) -> CuResult<()> {
    let (device_pitch, host_pitch) = (device_pitch as usize, host_pitch as usize);
    let extent = Copy2D { width: shape.width as usize, height: shape.height as usize, ..Copy2D::default() };
    let copy = match way {
        Way::In => Copy2D {
            source_type: MEMORY_HOST,
            source_host: host,
            source_pitch: host_pitch,
            target_type: MEMORY_DEVICE,
            target_device: device,
            target_pitch: device_pitch,
            ..extent
        },
        Way::Out => Copy2D {
            source_type: MEMORY_DEVICE,
            source_device: device,
            source_pitch: device_pitch,
            target_type: MEMORY_HOST,
            target_host: host,
            target_pitch: host_pitch,
            ..extent
        },
    };
    // SAFETY: as in `line`; the description is valid for the call.
    unsafe { work.api.copy_2d(&copy, stream) }
}
