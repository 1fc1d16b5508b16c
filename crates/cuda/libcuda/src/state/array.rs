//! Arrays: names of the client's for memory whose layout only the worker's driver knows.
//!
//! A copy names a place in an array by an address of the array's window ([`ArrayId::address`]), so copies, captures and graphs
//! treat it as a plane of device memory.

use super::{Context, Device, client, kind, lock};
use cuda_abi::{CuResult, CudaError};
use cuda_client::{arrays::ArrayNames, slab::Slab};
use cuda_wire::{ArrayId, ArrayInfo, ArrayPlace, Command, Plane, Shape};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, RwLock},
};

static ARRAYS: Slab<Array> = Slab::new(kind::ARRAY);
static MIPMAPPED: Slab<Mipmapped> = Slab::new(kind::MIPMAPPED);
static NAMES: Mutex<ArrayNames> = Mutex::new(ArrayNames::new());
/// What copies look up by address.
static WINDOWS: OnceLock<RwLock<HashMap<ArrayId, Arc<Storage>>>> = OnceLock::new();

fn windows() -> &'static RwLock<HashMap<ArrayId, Arc<Storage>>> {
    WINDOWS.get_or_init(RwLock::default)
}

/// What an array is on the worker.
pub(crate) struct Storage {
    id: ArrayId,
    /// With all levels.
    info: ArrayInfo,
    context: Arc<Context>,
    /// Handles of the levels that the program asked for; of an ordinary array its own.
    handles: Mutex<HashMap<u32, u64>>,
}

/// A `CUarray`: an array, or a level of a mipmapped one.
pub(crate) struct Array {
    handle: u64,
    storage: Arc<Storage>,
    level: u32,
    /// It goes with the mipmapped array.
    is_level: bool,
}

/// A `CUmipmappedArray`.
pub(crate) struct Mipmapped {
    handle: u64,
    storage: Arc<Storage>,
}

impl Storage {
    fn create(context: &Arc<Context>, info: ArrayInfo) -> CuResult<Arc<Self>> {
        let id = lock(&NAMES).take()?;
        context.link.unprotect("it has CUDA arrays, which no image holds");
        let created = context.call(&Command::ArrayCreate { array: id, context: context.id, info });
        if let Err(error) = created {
            lock(&NAMES).give(id);
            return Err(error);
        }
        let storage = Arc::new(Self { id, info, context: Arc::clone(context), handles: Mutex::default() });
        locks::write(windows()).insert(id, Arc::clone(&storage));
        Ok(storage)
    }

    /// Ends it. Its name is free when the worker was told, since commands keep their order.
    fn destroy(&self) -> CuResult<()> {
        locks::write(windows()).remove(&self.id);
        let posted = match self.context.check_alive() {
            Ok(()) => self.context.post(&Command::ArrayDestroy { array: self.id }),
            // It went with its context.
            Err(_) => Ok(()),
        };
        lock(&NAMES).give(self.id);
        posted
    }

    fn at(address: u64) -> Option<(Arc<Self>, u64)> {
        let (id, offset) = ArrayId::at(address)?;
        Some((locks::read(windows()).get(&id).cloned()?, offset))
    }
}

impl Array {
    /// Makes an array of one level.
    pub(crate) fn create(context: &Arc<Context>, info: ArrayInfo) -> CuResult<u64> {
        Self::name(&Storage::create(context, info)?, 0, false)
    }

    fn name(storage: &Arc<Storage>, level: u32, is_level: bool) -> CuResult<u64> {
        let mut handles = lock(&storage.handles);
        if let Some(handle) = handles.get(&level) {
            return Ok(*handle);
        }
        let handle = ARRAYS
            .insert_with(|handle| Arc::new(Self { handle, storage: Arc::clone(storage), level, is_level }))?;
        handles.insert(level, handle);
        Ok(handle)
    }

    /// The array behind a handle that a copy names. The driver tells null apart from other handles that name nothing.
    pub(crate) fn find_for_copy(handle: u64) -> CuResult<Arc<Self>> {
        if handle == 0 { Err(CudaError::INVALID_VALUE) } else { Self::find(handle) }
    }

    /// The array behind a handle.
    pub(crate) fn find(handle: u64) -> CuResult<Arc<Self>> {
        ARRAYS.get(handle).ok_or(CudaError::INVALID_HANDLE)
    }

    /// What it is, by itself.
    pub(crate) fn info(&self) -> ArrayInfo {
        self.storage.info.level(self.level)
    }

    /// All of it, as copies name it.
    pub(crate) fn plane(&self) -> CuResult<Plane> {
        let info = &self.storage.info;
        let place = info.extent(self.level).zip(info.level_offset(self.level));
        let (extent, offset) = place.ok_or(CudaError::INVALID_VALUE)?;
        Ok(extent.plane(self.storage.id.address() + offset))
    }

    /// The place of a byte, row and slice of it.
    pub(crate) fn place(&self, [x, y, z]: [u64; 3]) -> CuResult<Plane> {
        let plane = self.plane()?;
        let extent = self.storage.info.extent(self.level).ok_or(CudaError::INVALID_VALUE)?;
        let is_inside = x < extent.row_bytes && y < extent.rows && z < extent.slices;
        if !is_inside {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(Plane { address: plane.address + z * plane.slice_pitch + y * plane.row_pitch + x, ..plane })
    }

    /// Ends it. A level goes with its mipmapped array.
    pub(crate) fn destroy(&self) -> CuResult<()> {
        if self.is_level {
            return Err(CudaError::INVALID_VALUE);
        }
        ARRAYS.remove(self.handle).ok_or(CudaError::INVALID_HANDLE)?;
        self.storage.destroy()
    }
}

impl Mipmapped {
    /// Makes a mipmapped array.
    pub(crate) fn create(context: &Arc<Context>, info: ArrayInfo) -> CuResult<u64> {
        let storage = Storage::create(context, info)?;
        MIPMAPPED.insert_with(|handle| Arc::new(Self { handle, storage }))
    }

    /// The mipmapped array behind a handle.
    pub(crate) fn find(handle: u64) -> CuResult<Arc<Self>> {
        MIPMAPPED.get(handle).ok_or(CudaError::INVALID_HANDLE)
    }

    /// Where its first level begins.
    pub(crate) fn address(&self) -> u64 {
        self.storage.id.address()
    }

    /// The array that a level is.
    pub(crate) fn level(&self, level: u32) -> CuResult<u64> {
        if level >= self.storage.info.level_count() {
            return Err(CudaError::INVALID_VALUE);
        }
        Array::name(&self.storage, level, true)
    }

    /// Ends it with its levels.
    pub(crate) fn destroy(&self) -> CuResult<()> {
        MIPMAPPED.remove(self.handle).ok_or(CudaError::INVALID_HANDLE)?;
        for handle in lock(&self.storage.handles).values() {
            ARRAYS.remove(*handle);
        }
        self.storage.destroy()
    }
}

/// Whether a plane is a place in an array.
#[inline]
pub(crate) fn names_array(plane: &Plane) -> bool {
    ArrayId::at(plane.address).is_some()
}

/// The device of an array's place.
pub(crate) fn device_of_array(plane: &Plane) -> Option<&'static Device> {
    let (storage, _) = Storage::at(plane.address)?;
    client().ok()?.devices.get(storage.context.device)
}

/// Fails where a copy leaves its array, or the array is gone.
pub(crate) fn check_array_plane(plane: &Plane, shape: &Shape) -> CuResult<()> {
    let (storage, offset) = Storage::at(plane.address).ok_or(CudaError::INVALID_VALUE)?;
    storage.context.check()?;
    storage.info.place(offset, plane, shape).map(drop).ok_or(CudaError::INVALID_VALUE)
}

/// A place in an array as C names it: handle and coordinates.
pub(crate) fn array_place(plane: &Plane) -> Option<(u64, ArrayPlace)> {
    let (storage, offset) = Storage::at(plane.address)?;
    let place = storage.info.place(offset, &Plane::line(plane.address), &Shape::line(1))?;
    let is_level = storage.info.levels != 0;
    Some((Array::name(&storage, place.level, is_level).ok()?, place))
}

/// A context ends with its arrays.
pub(crate) fn forget_arrays(context: &Context) {
    let is_of = |storage: &Storage| std::ptr::eq(&*storage.context, context);
    let gone: Vec<Arc<Storage>> =
        locks::write(windows()).extract_if(|_, storage| is_of(storage)).map(|(_, storage)| storage).collect();
    for storage in gone {
        for handle in lock(&storage.handles).values() {
            ARRAYS.remove(*handle);
        }
        lock(&NAMES).give(storage.id);
    }
    for (handle, mipmapped) in MIPMAPPED.snapshot() {
        if is_of(&mipmapped.storage) {
            MIPMAPPED.remove(handle);
        }
    }
}
