//! Arrays, and copies in three dimensions. An array is memory that no program can address, rows side by side. Texture and
//! surface objects are only counted.

use super::{
    Fake, State,
    work::{Copying, Place, Work},
};
use crate::sys::{
    Array, ArrayDescriptor, Copy3D, MEMORY_ARRAY, MEMORY_HOST, MipmappedArray, ResourceDescriptor, Stream,
    TextureDescriptor, ViewDescriptor,
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::ArrayInfo;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_uint;

#[derive(Debug, Default)]
pub(super) struct ArraysState {
    arrays: BTreeMap<usize, ArrayState>,
    /// Mipmapped arrays with their levels.
    mipmapped: BTreeMap<usize, Vec<usize>>,
    samplers: BTreeSet<u64>,
    next: usize,
}

#[derive(Debug)]
struct ArrayState {
    info: ArrayInfo,
    address: u64,
    /// A level goes with its mipmapped array alone.
    is_level: bool,
}

impl ArraysState {
    /// How many arrays there are, and how many objects.
    pub(super) fn count(&self) -> (usize, usize) {
        let alone = self.arrays.values().filter(|array| !array.is_level).count();
        (alone + self.mipmapped.len(), self.samplers.len())
    }

    fn name(&mut self) -> usize {
        self.next += 0x40;
        0x5000_0000 + self.next
    }
}

impl State {
    fn add_array(&mut self, info: ArrayInfo, is_level: bool) -> CuResult<usize> {
        let bytes = info.bytes().filter(|bytes| *bytes > 0).ok_or(CudaError::INVALID_VALUE)?;
        let context = self.current()?;
        let address = self.memory.add_variable(context, bytes as usize);
        let name = self.arrays.name();
        self.arrays.arrays.insert(name, ArrayState { info, address, is_level });
        Ok(name)
    }

    fn remove_array(&mut self, name: usize) {
        if let Some(array) = self.arrays.arrays.remove(&name) {
            self.memory.remove_variable(array.address);
        }
    }

    /// Place, pitch and bytes of a slice of an end in an array.
    fn array_end(&self, name: usize, at: [usize; 3], copy: &Copy3D) -> CuResult<(Place, usize, usize)> {
        let array = self.arrays.arrays.get(&name).ok_or(CudaError::INVALID_HANDLE)?;
        let extent = array.info.extent(0).ok_or(CudaError::INVALID_VALUE)?;
        let (row, slice) = (extent.row_bytes as usize, (extent.row_bytes * extent.rows) as usize);
        let element = array.info.element_bytes().unwrap_or(1) as usize;
        let fits = at[0] + copy.width <= row
            && at[1] + copy.height <= extent.rows as usize
            && at[2] + copy.depth <= extent.slices as usize
            && (at[0] % element, copy.width % element) == (0, 0);
        let offset = at[0] + at[1] * row + at[2] * slice;
        let place = Place::Device(array.address + offset as u64);
        fits.then_some((place, row, slice)).ok_or(CudaError::INVALID_VALUE)
    }

    /// The copy that a description means. `None`: its target is pageable memory.
    pub(super) fn copying(&mut self, copy: &Copy3D) -> CuResult<Option<Copying>> {
        let span = |pitch: usize, height: usize| {
            pitch * height * (copy.depth - 1) + pitch * (copy.height - 1) + copy.width
        };
        if copy.height == 0 || copy.depth == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let source = match copy.source_type {
            MEMORY_ARRAY => {
                self.array_end(copy.source_array, [copy.source_x, copy.source_y, copy.source_z], copy)?
            }
            kind => {
                let place = match kind {
                    MEMORY_HOST => self.source(copy.source_host, span(copy.source_pitch, copy.source_height)),
                    _ => Place::Device(copy.source_device),
                };
                (place, copy.source_pitch, copy.source_pitch * copy.source_height)
            }
        };
        let target = match copy.target_type {
            MEMORY_ARRAY => {
                self.array_end(copy.target_array, [copy.target_x, copy.target_y, copy.target_z], copy)?
            }
            kind => {
                let place = match kind {
                    MEMORY_HOST => self.host(copy.target_host, span(copy.target_pitch, copy.target_height)),
                    _ => Some(Place::Device(copy.target_device)),
                };
                let Some(place) = place else { return Ok(None) };
                (place, copy.target_pitch, copy.target_pitch * copy.target_height)
            }
        };
        Ok(Some(Copying {
            source: source.0,
            source_pitch: source.1,
            source_slice: source.2,
            target: target.0,
            target_pitch: target.1,
            target_slice: target.2,
            extent: [copy.width, copy.height, copy.depth],
        }))
    }
}

fn info_of(descriptor: *const ArrayDescriptor, levels: u32) -> ArrayInfo {
    // SAFETY: valid for the call, as the caller promises.
    let given = unsafe { descriptor.read() };
    ArrayInfo {
        format: given.format,
        channels: given.channels,
        width: given.width as u64,
        height: given.height as u64,
        depth: given.depth as u64,
        flags: given.flags,
        levels,
    }
}

impl Fake {
    pub(crate) fn copy_3d(&self, copy: *const Copy3D, stream: Stream) -> CuResult<()> {
        // SAFETY: valid for the call, as the caller promises.
        let copy = unsafe { copy.read() };
        let mut state = self.lock();
        let Some(copying) = state.copying(&copy)? else {
            state.violation("cuMemcpy3DAsync to pageable memory, which blocks");
            return Err(CudaError::INVALID_VALUE);
        };
        self.enqueue(state, stream, Work::Copy(copying))
    }

    pub(crate) fn array_create(&self, array: *mut Array, given: *const ArrayDescriptor) -> CuResult<()> {
        let name = self.lock().add_array(info_of(given, 0), false)?;
        // SAFETY: valid for the call, as the caller promises.
        unsafe { array.write(Array(std::ptr::without_provenance_mut(name))) };
        Ok(())
    }

    pub(crate) fn array_destroy(&self, array: Array) -> CuResult<()> {
        let mut state = self.lock();
        let name = array.0.addr();
        if state.arrays.arrays.get(&name).is_none_or(|array| array.is_level) {
            state.violation("cuArrayDestroy of what is no array");
            return Err(CudaError::INVALID_HANDLE);
        }
        state.remove_array(name);
        Ok(())
    }

    pub(crate) fn mipmapped_create(
        &self,
        array: *mut MipmappedArray,
        given: *const ArrayDescriptor,
        levels: c_uint,
    ) -> CuResult<()> {
        let mut state = self.lock();
        let info = info_of(given, levels);
        let made = (0..levels).map(|level| state.add_array(info.level(level), true));
        let made = made.collect::<CuResult<Vec<_>>>()?;
        let name = state.arrays.name();
        state.arrays.mipmapped.insert(name, made);
        // SAFETY: valid for the call, as the caller promises.
        unsafe { array.write(MipmappedArray(std::ptr::without_provenance_mut(name))) };
        Ok(())
    }

    pub(crate) fn mipmapped_level(
        &self,
        level: *mut Array,
        array: MipmappedArray,
        number: c_uint,
    ) -> CuResult<()> {
        let state = self.lock();
        let levels = state.arrays.mipmapped.get(&array.0.addr()).ok_or(CudaError::INVALID_HANDLE)?;
        let name = *levels.get(number as usize).ok_or(CudaError::INVALID_VALUE)?;
        // SAFETY: valid for the call, as the caller promises.
        unsafe { level.write(Array(std::ptr::without_provenance_mut(name))) };
        Ok(())
    }

    pub(crate) fn mipmapped_destroy(&self, array: MipmappedArray) -> CuResult<()> {
        let mut state = self.lock();
        let levels = state.arrays.mipmapped.remove(&array.0.addr()).ok_or(CudaError::INVALID_HANDLE)?;
        levels.into_iter().for_each(|level| state.remove_array(level));
        Ok(())
    }

    pub(crate) fn texture_create(
        &self,
        handle: *mut u64,
        resource: *const ResourceDescriptor,
        _texture: *const TextureDescriptor,
        _view: *const ViewDescriptor,
    ) -> CuResult<()> {
        self.surface_create(handle, resource)
    }

    pub(crate) fn texture_destroy(&self, handle: u64) -> CuResult<()> {
        self.surface_destroy(handle)
    }

    pub(crate) fn surface_create(
        &self,
        handle: *mut u64,
        resource: *const ResourceDescriptor,
    ) -> CuResult<()> {
        let mut state = self.lock();
        // SAFETY: valid for the call, as the caller promises.
        let resource = unsafe { resource.read() };
        let name = usize::from_ne_bytes(resource.resource[..8].try_into().expect("eight bytes"));
        let is_there = match resource.kind {
            0 => state.arrays.arrays.contains_key(&name),
            1 => state.arrays.mipmapped.contains_key(&name),
            _ => true,
        };
        if !is_there {
            return Err(CudaError::INVALID_HANDLE);
        }
        let made = state.arrays.name() as u64;
        state.arrays.samplers.insert(made);
        // SAFETY: valid for the call, as the caller promises.
        unsafe { handle.write(made) };
        Ok(())
    }

    pub(crate) fn surface_destroy(&self, handle: u64) -> CuResult<()> {
        let mut state = self.lock();
        if !state.arrays.samplers.remove(&handle) {
            state.violation("the end of what is no texture or surface object");
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(())
    }
}
