//! The client's names and what they stand for here.

use crate::{
    context::LiveContext,
    graph::Exec,
    green::LiveGreen,
    memory::Physical,
    module::LoadedModule,
    sampler::LiveSampler,
    stream::{LiveEvent, LiveStream},
    sys::Function,
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{
    ContextId, EventId, ExecId, GreenId, KernelRef, MemoryHandleId, ModuleId, SamplerId, StreamId,
};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) contexts: HashMap<ContextId, Arc<LiveContext>>,
    pub(crate) streams: HashMap<StreamId, Arc<LiveStream>>,
    /// Streams that the client has destroyed and that still have work. They count as work of their context.
    pub(crate) departing: Vec<Arc<LiveStream>>,
    pub(crate) events: HashMap<EventId, Arc<LiveEvent>>,
    pub(crate) modules: HashMap<ModuleId, LoadedModule>,
    pub(crate) execs: HashMap<ExecId, Arc<Exec>>,
    pub(crate) physical: HashMap<MemoryHandleId, Arc<Physical>>,
    pub(crate) samplers: HashMap<SamplerId, Arc<LiveSampler>>,
    pub(crate) greens: HashMap<GreenId, Arc<LiveGreen>>,
}

impl Tables {
    pub(crate) fn context(&self, id: ContextId) -> CuResult<Arc<LiveContext>> {
        self.contexts.get(&id).cloned().ok_or(CudaError::INVALID_CONTEXT)
    }

    #[inline]
    pub(crate) fn stream(&self, id: StreamId) -> CuResult<Arc<LiveStream>> {
        self.streams.get(&id).cloned().ok_or(CudaError::INVALID_HANDLE)
    }

    pub(crate) fn event(&self, id: EventId) -> CuResult<Arc<LiveEvent>> {
        self.events.get(&id).cloned().ok_or(CudaError::INVALID_HANDLE)
    }

    pub(crate) fn exec(&self, id: ExecId) -> CuResult<Arc<Exec>> {
        self.execs.get(&id).cloned().ok_or(CudaError::INVALID_HANDLE)
    }

    #[inline]
    pub(crate) fn function(&self, kernel: KernelRef) -> CuResult<Function> {
        let module = self.modules.get(&kernel.module).ok_or(CudaError::INVALID_HANDLE)?;
        module.functions.get(kernel.index as usize).copied().ok_or(CudaError::INVALID_HANDLE)
    }

    pub(crate) fn green(&self, id: GreenId) -> CuResult<Arc<LiveGreen>> {
        self.greens.get(&id).cloned().ok_or(CudaError::INVALID_CONTEXT)
    }

    /// The streams of a context, with those that are departing.
    pub(crate) fn streams_of(&self, context: &Arc<LiveContext>) -> Vec<Arc<LiveStream>> {
        let all = self.streams.values().chain(&self.departing);
        all.filter(|stream| Arc::ptr_eq(&stream.context, context)).cloned().collect()
    }

    /// Takes out the departing streams that have no work left, or are dead. The caller drops them without the lock.
    pub(crate) fn take_departed(&mut self) -> Vec<Arc<LiveStream>> {
        self.departing.extract_if(.., |stream| stream.is_idle() != Ok(false)).collect()
    }

    /// Forgets everything that lives in a context.
    pub(crate) fn forget_context(&mut self, context: &Arc<LiveContext>) {
        self.samplers.retain(|_, sampler| !Arc::ptr_eq(&sampler.context, context));
        self.execs.retain(|_, exec| !Arc::ptr_eq(&exec.context, context));
        self.modules.retain(|_, module| !Arc::ptr_eq(&module.context, context));
        self.events.retain(|_, event| !Arc::ptr_eq(&event.context, context));
        self.departing.retain(|stream| !Arc::ptr_eq(&stream.context, context));
        self.streams.retain(|_, stream| !Arc::ptr_eq(&stream.context, context));
        self.greens.retain(|_, green| !Arc::ptr_eq(&green.primary, context));
    }
}
