//! Texture and surface references of modules, which programs of CUDA 11 and before use.
//!
//! What a program sets is kept here. The worker is told all of it as soon as something is bound, and again after every change.

use super::{Module, client, kind, lock};
use cuda_abi::{CuResult, CudaError};
use cuda_client::slab::Slab;
use cuda_wire::{Command, Resource, Sampling, array_kind};
use std::sync::{Arc, Mutex};

static REFERENCES: Slab<Reference> = Slab::new(kind::REFERENCE);

/// A `CUtexref` or `CUsurfref`.
pub(crate) struct Reference {
    handle: u64,
    /// The module and the name in it; none of what cuTexRefCreate made.
    of: Option<(Arc<Module>, String)>,
    is_surface: bool,
    state: Mutex<ReferenceState>,
}

/// What a program has set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReferenceState {
    /// What is bound, as the worker knows it.
    pub(crate) resource: Option<Resource>,
    /// The handle of a bound array or mipmapped array, else 0.
    pub(crate) bound: u64,
    /// `CUarray_format` and channels of memory.
    pub(crate) format: (u32, u32),
    /// How it is read.
    pub(crate) sampling: Sampling,
}

/// `CU_TR_ADDRESS_MODE_CLAMP`
const CLAMP: u32 = 1;

impl Default for ReferenceState {
    fn default() -> Self {
        let sampling = Sampling {
            address_modes: [CLAMP; 3],
            filter_mode: 0,
            flags: 0,
            max_anisotropy: 0,
            mipmap_filter_mode: 0,
            mipmap_level_bias: 0.0,
            min_mipmap_level_clamp: 0.0,
            max_mipmap_level_clamp: 0.0,
            border_color: [0.0; 4],
        };
        Self { resource: None, bound: 0, format: (array_kind::FLOAT, 1), sampling }
    }
}

impl Reference {
    fn register(of: Option<(Arc<Module>, String)>, is_surface: bool) -> CuResult<u64> {
        let state = Mutex::new(ReferenceState::default());
        REFERENCES.insert_with(|handle| Arc::new(Self { handle, of, is_surface, state }))
    }

    /// A texture reference of no module (cuTexRefCreate).
    pub(crate) fn create() -> CuResult<u64> {
        client()?;
        Self::register(None, false)
    }

    /// The reference of a name in a module. The same one each time.
    pub(crate) fn of_module(module: &Arc<Module>, name: &str, is_surface: bool) -> CuResult<u64> {
        let is_it = |reference: &Self| {
            let is_name = |(of, known): &(Arc<Module>, String)| Arc::ptr_eq(of, module) && known == name;
            reference.is_surface == is_surface && reference.of.as_ref().is_some_and(is_name)
        };
        let known = REFERENCES.snapshot().into_iter().find(|(_, reference)| is_it(reference));
        if let Some((handle, _)) = known {
            return Ok(handle);
        }
        let command = Command::ReferenceFind { module: module.id, name: name.to_owned(), is_surface };
        module.context.call(&command)?;
        Self::register(Some((Arc::clone(module), name.to_owned())), is_surface)
    }

    /// The reference behind a handle.
    pub(crate) fn find(handle: u64, is_surface: bool) -> CuResult<Arc<Self>> {
        let found = REFERENCES.get(handle).filter(|reference| reference.is_surface == is_surface);
        found.ok_or(CudaError::INVALID_HANDLE)
    }

    /// What was set.
    pub(crate) fn state(&self) -> ReferenceState {
        *lock(&self.state)
    }

    /// Sets something. If that is refused, nothing was set.
    pub(crate) fn change(&self, change: impl FnOnce(&mut ReferenceState) -> CuResult<()>) -> CuResult<()> {
        let mut state = lock(&self.state);
        let mut changed = *state;
        change(&mut changed)?;
        if let (Some((module, name)), Some(resource)) = (&self.of, changed.resource) {
            let (module, context) = (module.id, &module.context);
            context.link.unprotect("it has texture or surface references, which no image holds");
            let (name, is_surface, sampling) = (name.clone(), self.is_surface, changed.sampling);
            context.call(&Command::ReferenceBind { module, name, is_surface, resource, sampling })?;
        }
        *state = changed;
        Ok(())
    }

    /// Ends what cuTexRefCreate made; a module's goes with it, and the driver has nothing against being asked.
    pub(crate) fn destroy(&self) -> CuResult<()> {
        if self.of.is_some() {
            return Ok(());
        }
        REFERENCES.remove(self.handle).map(drop).ok_or(CudaError::INVALID_HANDLE)
    }
}

/// A module goes with its references.
pub(crate) fn forget_references(module: &Module) {
    for (handle, reference) in REFERENCES.snapshot() {
        if reference.of.as_ref().is_some_and(|(of, _)| std::ptr::eq(&**of, module)) {
            REFERENCES.remove(handle);
        }
    }
}
