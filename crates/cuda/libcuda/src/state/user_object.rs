//! Objects of the program whose end waits for the graphs that use them.

use crate::border::HostFn;
use cuda_abi::{CuResult, CudaError};
use cuda_client::{graph::store::Objects, slab::Slab};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

static OBJECTS: Slab<UserObject> = Slab::new(super::kind::USER_OBJECT);

/// A `CUuserObject`.
pub(crate) struct UserObject {
    pointer: u64,
    destructor: HostFn,
    references: AtomicU32,
}

impl UserObject {
    /// Makes an object with this many references.
    pub(crate) fn create(pointer: u64, destructor: HostFn, references: u32) -> CuResult<u64> {
        OBJECTS.insert(Arc::new(Self { pointer, destructor, references: AtomicU32::new(references) }))
    }

    /// Adds references.
    pub(crate) fn retain(handle: u64, count: u32) -> CuResult<()> {
        let object = OBJECTS.get(handle).ok_or(CudaError::INVALID_VALUE)?;
        let more = |held: u32| if held == 0 { None } else { held.checked_add(count) };
        object
            .references
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .map(drop)
            .map_err(|_| CudaError::INVALID_VALUE)
    }

    /// Takes references away; with the last one the object ends. No lock may be held: the program's destructor runs.
    pub(crate) fn release(handle: u64, count: u32) -> CuResult<()> {
        let object = OBJECTS.get(handle).ok_or(CudaError::INVALID_VALUE)?;
        let fewer = |held: u32| Some(held.saturating_sub(count));
        let before = object.references.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer).unwrap_or(0);
        if before != 0 && before <= count && OBJECTS.remove(handle).is_some() {
            object.destructor.call(object.pointer);
        }
        Ok(())
    }

    /// Whether a handle names an object.
    pub(crate) fn check(handle: u64) -> CuResult<()> {
        OBJECTS.get(handle).map(drop).ok_or(CudaError::INVALID_VALUE)
    }
}

/// Adds the references that a new graph holds.
pub(crate) fn retain_objects(objects: &Objects) {
    for (object, count) in objects {
        let _ = UserObject::retain(*object, *count);
    }
}

/// Takes away the references of a graph that ended. No lock may be held.
pub(crate) fn release_objects(objects: &Objects) {
    for (object, count) in objects {
        let _ = UserObject::release(*object, *count);
    }
}
