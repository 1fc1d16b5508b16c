//! Arrays of the driver, and copies with an end in one.
//!
//! A copy names a place in an array by an address of the array's window ([`ArrayId::address`]). The driver wants the array's
//! handle and three coordinates, so such copies are described in three dimensions, a rectangle at a time.

#![allow(unsafe_code)]

use crate::{
    context::LiveContext,
    memory::Memory,
    op::Work,
    rows::blocks,
    shared::Way,
    sys::{
        Api, Array, ArrayDescriptor, Copy3D, MEMORY_ARRAY, MEMORY_DEVICE, MEMORY_HOST, MipmappedArray, Stream,
    },
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{ArrayId, ArrayInfo, LEVELS_MAX, Plane, Shape, SharedPlane};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the driver made.
enum Raw {
    Plain(Array),
    /// With its levels, which go with it.
    Mipmapped(MipmappedArray, Vec<Array>),
}

/// An array of the program's.
pub(crate) struct LiveArray {
    api: Api,
    memory: Arc<Memory>,
    pub(crate) context: Arc<LiveContext>,
    info: ArrayInfo,
    bytes: u64,
    raw: Raw,
}

impl LiveArray {
    pub(crate) fn create(work: &Work, context: Arc<LiveContext>, info: ArrayInfo) -> CuResult<Self> {
        let bytes = info.bytes().filter(|_| info.levels <= LEVELS_MAX).ok_or(CudaError::INVALID_VALUE)?;
        context.enter()?;
        let (api, memory) = (work.api, Arc::clone(&work.memory));
        let raw = memory.until_a_guest_leaves(bytes, || {
            memory.charge(context.device, bytes)?;
            create(&api, &info).inspect_err(|error| {
                memory.discharge(context.device, bytes);
                if *error == CudaError::OUT_OF_MEMORY {
                    memory.note_device_full();
                }
            })
        })?;
        Ok(Self { api, memory, context, info, bytes, raw })
    }

    /// The array of a level.
    fn level(&self, level: u32) -> Option<Array> {
        match &self.raw {
            Raw::Plain(array) => (level == 0).then_some(*array),
            Raw::Mipmapped(_, levels) => levels.get(level as usize).copied(),
        }
    }

    /// The mipmapped array, if it is one.
    pub(crate) fn mipmapped(&self) -> Option<MipmappedArray> {
        match &self.raw {
            Raw::Plain(_) => None,
            Raw::Mipmapped(array, _) => Some(*array),
        }
    }
}

fn create(api: &Api, info: &ArrayInfo) -> CuResult<Raw> {
    let descriptor = ArrayDescriptor {
        width: info.width as usize,
        height: info.height as usize,
        depth: info.depth as usize,
        format: info.format,
        channels: info.channels,
        flags: info.flags,
    };
    if info.levels == 0 {
        let mut array = Array::default();
        // SAFETY: both pointers are valid for the call.
        unsafe { api.array_create(&mut array, &descriptor)? };
        return Ok(Raw::Plain(array));
    }
    let mut whole = MipmappedArray::default();
    // SAFETY: as above.
    unsafe { api.mipmapped_create(&mut whole, &descriptor, info.levels)? };
    let level = |number| {
        let mut array = Array::default();
        // SAFETY: the pointer is valid for the call, and the array was made just now.
        unsafe { api.mipmapped_level(&mut array, whole, number) }.map(|()| array)
    };
    match (0..info.levels).map(level).collect() {
        Ok(levels) => Ok(Raw::Mipmapped(whole, levels)),
        Err(error) => {
            // SAFETY: no other code knows it.
            let _ = unsafe { api.mipmapped_destroy(whole) };
            Err(error)
        }
    }
}

impl Drop for LiveArray {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: the work that used it is done, and no table has it any more.
            let _ = unsafe {
                match &self.raw {
                    Raw::Plain(array) => self.api.array_destroy(*array),
                    Raw::Mipmapped(array, _) => self.api.mipmapped_destroy(*array),
                }
            };
        }
        self.memory.discharge(self.context.device, self.bytes);
    }
}

/// A place in an array, as the driver names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrayEnd {
    pub(crate) array: Array,
    x: usize,
    y: usize,
    z: usize,
}

impl ArrayEnd {
    /// Makes it the source of a copy.
    pub(crate) fn as_source(self, copy: &mut Copy3D) {
        (copy.source_type, copy.source_array) = (MEMORY_ARRAY, self.array.0.addr());
        (copy.source_x, copy.source_y, copy.source_z) = (self.x, self.y, self.z);
    }

    /// Makes it the target of a copy.
    pub(crate) fn as_target(self, copy: &mut Copy3D) {
        (copy.target_type, copy.target_array) = (MEMORY_ARRAY, self.array.0.addr());
        (copy.target_x, copy.target_y, copy.target_z) = (self.x, self.y, self.z);
    }
}

/// The arrays of a session.
#[derive(Default)]
pub(crate) struct Arrays(Mutex<HashMap<ArrayId, Arc<LiveArray>>>);

impl Arrays {
    fn lock(&self) -> MutexGuard<'_, HashMap<ArrayId, Arc<LiveArray>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn contains(&self, id: ArrayId) -> bool {
        self.lock().contains_key(&id)
    }

    pub(crate) fn insert(&self, id: ArrayId, array: LiveArray) {
        self.lock().insert(id, Arc::new(array));
    }

    pub(crate) fn remove(&self, id: ArrayId) -> Option<Arc<LiveArray>> {
        self.lock().remove(&id)
    }

    /// Takes out the arrays of a context.
    pub(crate) fn take_of(&self, context: &Arc<LiveContext>) -> Vec<Arc<LiveArray>> {
        let is_of = |array: &Arc<LiveArray>| Arc::ptr_eq(&array.context, context);
        self.lock().extract_if(|_, array| is_of(array)).map(|(_, array)| array).collect()
    }

    /// The array that holds an address of a window.
    pub(crate) fn find(&self, address: u64) -> CuResult<Arc<LiveArray>> {
        let (id, _) = ArrayId::at(address).ok_or(CudaError::INVALID_VALUE)?;
        self.lock().get(&id).cloned().ok_or(CudaError::INVALID_HANDLE)
    }

    /// The end of a copy in an array. `None`: `plane` is one of memory.
    pub(crate) fn end(&self, plane: &Plane, shape: &Shape) -> CuResult<Option<ArrayEnd>> {
        let Some((_, offset)) = ArrayId::at(plane.address) else { return Ok(None) };
        let array = self.find(plane.address)?;
        let place = array.info.place(offset, plane, shape).ok_or(CudaError::INVALID_VALUE)?;
        let raw = array.level(place.level).ok_or(CudaError::INVALID_VALUE)?;
        let (x, y, z) = (place.x_bytes as usize, place.y as usize, place.z as usize);
        Ok(Some(ArrayEnd { array: raw, x, y, z }))
    }

    fn must_end(&self, plane: &Plane, shape: &Shape) -> CuResult<ArrayEnd> {
        self.end(plane, shape)?.ok_or(CudaError::INVALID_VALUE)
    }
}

fn extent(shape: &Shape) -> Copy3D {
    Copy3D {
        width: shape.width as usize,
        height: shape.height.max(1) as usize,
        depth: shape.depth.max(1) as usize,
        ..Copy3D::default()
    }
}

fn run(work: &Work, stream: Stream, copy: &Copy3D) -> CuResult<()> {
    // SAFETY: the description is valid for the call. Our callers keep host memory in it until the stream has passed.
    unsafe { work.api.copy_3d(copy, stream) }
}

/// Puts copies of packed bytes between `host` and an array into a stream, as [`crate::copy_in::to_device`] does for memory.
pub(crate) fn packed(
    work: &Work,
    stream: Stream,
    (host, from, bytes): (usize, u64, u64),
    (plane, shape): (Plane, Shape),
    way: Way,
) -> CuResult<()> {
    for block in blocks(plane, shape, from, bytes) {
        let shape = Shape { width: block.width, height: block.height, depth: 1 };
        let plane = Plane { address: block.address, row_pitch: block.pitch, slice_pitch: 0 };
        let end = work.arrays.must_end(&plane, &shape)?;
        let host = host + (block.packed - from) as usize;
        run(work, stream, &with_host(end, (host, block.width as usize), &shape, way))?;
    }
    Ok(())
}

/// A copy of one rectangle between an array and rows of host memory.
fn with_host(end: ArrayEnd, (host, pitch): (usize, usize), shape: &Shape, way: Way) -> Copy3D {
    let mut copy = extent(shape);
    match way {
        Way::In => {
            end.as_target(&mut copy);
            (copy.source_type, copy.source_host, copy.source_pitch) = (MEMORY_HOST, host, pitch);
            copy.source_height = copy.height;
        }
        Way::Out => {
            end.as_source(&mut copy);
            (copy.target_type, copy.target_host, copy.target_pitch) = (MEMORY_HOST, host, pitch);
            copy.target_height = copy.height;
        }
    }
    copy
}

/// Puts a copy between an array and memory of the program's into a stream.
pub(crate) fn shared(
    work: &Work,
    stream: Stream,
    plane: Plane,
    (host, pitches): (usize, SharedPlane),
    shape: Shape,
    way: Way,
) -> CuResult<()> {
    for slice in 0..shape.depth {
        let rectangle = Shape { depth: 1, ..shape };
        let plane = Plane { address: plane.address + slice * plane.slice_pitch, ..plane };
        let end = work.arrays.must_end(&plane, &rectangle)?;
        let host = host + (slice * pitches.slice_pitch) as usize;
        let pitch = pitches.row_pitch.max(shape.width) as usize;
        run(work, stream, &with_host(end, (host, pitch), &rectangle, way))?;
    }
    Ok(())
}

/// Puts a copy between two places into a stream of which at least one is in an array.
pub(crate) fn between(
    work: &Work,
    stream: Stream,
    target: Plane,
    source: Plane,
    shape: Shape,
) -> CuResult<()> {
    for slice in 0..shape.depth {
        let rectangle = Shape { depth: 1, ..shape };
        let at = |plane: Plane| Plane { address: plane.address + slice * plane.slice_pitch, ..plane };
        let (target, source) = (at(target), at(source));
        let mut copy = extent(&rectangle);
        match work.arrays.end(&source, &rectangle)? {
            Some(end) => end.as_source(&mut copy),
            None => {
                (copy.source_type, copy.source_device) = (MEMORY_DEVICE, source.address);
                (copy.source_pitch, copy.source_height) = (pitch(&source, &shape), copy.height);
            }
        }
        match work.arrays.end(&target, &rectangle)? {
            Some(end) => end.as_target(&mut copy),
            None => {
                (copy.target_type, copy.target_device) = (MEMORY_DEVICE, target.address);
                (copy.target_pitch, copy.target_height) = (pitch(&target, &shape), copy.height);
            }
        }
        run(work, stream, &copy)?;
    }
    Ok(())
}

fn pitch(plane: &Plane, shape: &Shape) -> usize {
    plane.row_pitch.max(shape.width) as usize
}
