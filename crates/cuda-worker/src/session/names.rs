//! Which context a name belongs to, for errors that are reported later.

use crate::sync::lock;
use cuda_wire::{Command, ContextId, EventId, ExecId, ModuleId, StreamId};
use std::collections::HashMap;
use std::sync::Mutex;

#[derive(Default)]
pub(crate) struct Names {
    maps: Mutex<Maps>,
}

#[derive(Default)]
pub(crate) struct Maps {
    pub(crate) streams: HashMap<StreamId, ContextId>,
    pub(crate) events: HashMap<EventId, ContextId>,
    pub(crate) modules: HashMap<ModuleId, ContextId>,
    pub(crate) execs: HashMap<ExecId, ContextId>,
}

/// What a command is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject {
    Context(ContextId),
    Device(u32),
    Stream(StreamId),
    Event(EventId),
    Module(ModuleId),
    Exec(ExecId),
    /// The command names no context; the primary context of the first device answers for it.
    Nothing,
}

impl Subject {
    pub(crate) fn of(command: &Command<'_>) -> Self {
        match command {
            Command::ContextCreate { context, .. }
            | Command::ContextDestroy { context }
            | Command::ContextReset { context }
            | Command::ContextSynchronize { context }
            | Command::ContextSetLimit { context, .. }
            | Command::ContextEnablePeer { context, .. }
            | Command::MemoryAllocate { context, .. }
            | Command::ModuleLoad { context, .. }
            | Command::Link { context, .. }
            | Command::StreamCreate { context, .. }
            | Command::EventCreate { context, .. }
            | Command::GraphInstantiate { context, .. } => Self::Context(*context),
            Command::MemoryInfo { device }
            | Command::DeviceStatus { device }
            | Command::PhysicalCreate { device, .. }
            | Command::PhysicalSetAccess { device, .. } => Self::Device(*device),
            Command::StreamDestroy { stream }
            | Command::StreamSynchronize { stream }
            | Command::StreamQuery { stream }
            | Command::Enqueue { stream, .. }
            | Command::ReadBack { stream, .. }
            | Command::GraphLaunch { stream, .. }
            | Command::GraphUpload { stream, .. } => Self::Stream(*stream),
            Command::EventDestroy { event }
            | Command::EventSynchronize { event }
            | Command::EventQuery { event }
            | Command::EventElapsed { start: event, .. } => Self::Event(*event),
            Command::ModuleUnload { module } => Self::Module(*module),
            Command::KernelSetAttribute { kernel, .. }
            | Command::ActiveClusters { kernel, .. }
            | Command::LargestCluster { kernel, .. } => Self::Module(kernel.module),
            Command::GraphUpdate { exec, .. }
            | Command::GraphSetNode { exec, .. }
            | Command::GraphDestroy { exec } => Self::Exec(*exec),
            Command::MemoryFree { .. }
            | Command::PhysicalRelease { .. }
            | Command::PhysicalMap { .. }
            | Command::PhysicalUnmap { .. }
            | Command::Goodbye {} => Self::Nothing,
        }
    }
}

impl Names {
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Maps) -> T) -> T {
        change(&mut lock(&self.maps))
    }

    pub(crate) fn context_of(&self, subject: Subject) -> ContextId {
        let maps = lock(&self.maps);
        let found = match subject {
            Subject::Context(context) => Some(context),
            // The primary context of a device has the device's number.
            Subject::Device(device) => Some(ContextId(device)),
            Subject::Stream(stream) => maps.streams.get(&stream).copied(),
            Subject::Event(event) => maps.events.get(&event).copied(),
            Subject::Module(module) => maps.modules.get(&module).copied(),
            Subject::Exec(exec) => maps.execs.get(&exec).copied(),
            Subject::Nothing => None,
        };
        found.unwrap_or_default()
    }

    /// Everything in a context ended with it.
    pub(crate) fn forget_context(&self, gone: ContextId) {
        let mut maps = lock(&self.maps);
        maps.streams.retain(|_, context| *context != gone);
        maps.events.retain(|_, context| *context != gone);
        maps.modules.retain(|_, context| *context != gone);
        maps.execs.retain(|_, context| *context != gone);
    }
}
