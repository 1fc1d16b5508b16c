//! Texture and surface objects. What kernels know them by is the worker's driver's choice, so two contexts may have one number.

use super::{Context, client};
use cuda_abi::{CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CuResult, CudaError};
use cuda_wire::{Command, Resource, ResourceView, SamplerId, Sampling};
use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, RwLock},
};

/// Whether an object is a texture or a surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SamplerKind {
    /// `CUtexObject`.
    Texture,
    /// `CUsurfObject`.
    Surface,
}

/// What names an object: the handle of its context, its kind, its number.
type Name = (u64, SamplerKind, u64);

static SAMPLERS: OnceLock<RwLock<HashMap<Name, Arc<Sampler>>>> = OnceLock::new();

fn samplers() -> &'static RwLock<HashMap<Name, Arc<Sampler>>> {
    SAMPLERS.get_or_init(RwLock::default)
}

/// What the program said about an object, and may ask back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Described {
    /// What it shows.
    pub(crate) resource: CUDA_RESOURCE_DESC,
    /// How it is read.
    pub(crate) texture: CUDA_TEXTURE_DESC,
    /// Which part.
    pub(crate) view: Option<CUDA_RESOURCE_VIEW_DESC>,
}

/// A texture or surface object.
pub(crate) struct Sampler {
    id: SamplerId,
    context: Arc<Context>,
    /// What the program said.
    pub(crate) described: Described,
}

impl Sampler {
    /// Makes a texture object; returns what kernels know it by.
    pub(crate) fn texture(
        context: &Arc<Context>,
        described: Described,
        resource: Resource,
        sampling: Sampling,
        view: Option<ResourceView>,
    ) -> CuResult<u64> {
        let sampler = SamplerId(client()?.next_id());
        let id = context.id;
        let command = Command::TextureCreate { sampler, context: id, resource, sampling, view };
        Self::create(context, described, sampler, SamplerKind::Texture, &command)
    }

    /// Makes a surface object; returns what kernels know it by.
    pub(crate) fn surface(context: &Arc<Context>, described: Described, resource: Resource) -> CuResult<u64> {
        let sampler = SamplerId(client()?.next_id());
        let command = Command::SurfaceCreate { sampler, context: context.id, resource };
        Self::create(context, described, sampler, SamplerKind::Surface, &command)
    }

    fn create(
        context: &Arc<Context>,
        described: Described,
        id: SamplerId,
        kind: SamplerKind,
        command: &Command<'_>,
    ) -> CuResult<u64> {
        context
            .link
            .unprotect("it has texture or surface objects, whose handles another GPU may choose differently");
        let handle = context.settle(context.link.ask::<u64>(command))?;
        let made = Arc::new(Self { id, context: Arc::clone(context), described });
        locks::write(samplers()).insert((context.handle, kind, handle), made);
        Ok(handle)
    }

    /// The object of a number, in the current context.
    pub(crate) fn find(kind: SamplerKind, handle: u64) -> CuResult<Arc<Self>> {
        let context = super::current_context()?;
        let found = locks::read(samplers()).get(&(context.handle, kind, handle)).cloned();
        found.ok_or(CudaError::INVALID_VALUE)
    }

    /// Ends it.
    pub(crate) fn destroy(kind: SamplerKind, handle: u64) -> CuResult<()> {
        let context = super::current_context()?;
        let gone = locks::write(samplers()).remove(&(context.handle, kind, handle));
        let gone = gone.ok_or(CudaError::INVALID_VALUE)?;
        gone.context.post(&Command::SamplerDestroy { sampler: gone.id })
    }
}

/// A context ends with its objects.
pub(crate) fn forget_samplers(context: &Context) {
    locks::write(samplers()).retain(|(handle, ..), _| *handle != context.handle);
}
