//! What a command is about.

use crate::ids::{ContextId, EventId, ExecId, KernelRef, ModuleId, StreamId};

/// The thing whose context an error belongs to when the client does not await the command's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A context itself.
    Context(ContextId),
    /// The primary context of this device.
    Device(u32),
    /// The context of a stream.
    Stream(StreamId),
    /// The context of an event.
    Event(EventId),
    /// The context of a module.
    Module(ModuleId),
    /// The context of an executable graph.
    Exec(ExecId),
    /// The command names no context; the primary context of the first device answers for it.
    Nothing,
}

impl From<KernelRef> for ModuleId {
    fn from(kernel: KernelRef) -> Self {
        kernel.module
    }
}
