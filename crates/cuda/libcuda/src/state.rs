//! Everything this process knows about its GPUs: devices, contexts, streams, modules, memory.
//!
//! State is kept here so that asking for it costs no round trip. One [`Client`] per process, made by cuInit and never
//! unmade: the program's other libraries may call at any moment until the process ends.

mod array;
mod attribute_cache;
mod capture;
mod client;
mod context;
mod copy;
mod device;
mod event;
mod graph_exec;
mod graph_item;
mod graph_memory;
mod graphs;
mod kernel;
mod linker;
mod local_storage;
pub(crate) mod managed;
mod memory;
mod module;
mod op;
mod pinned;
mod pinned_fill;
mod pool;
mod pool_memory;
pub(crate) mod pool_order;
mod reference;
mod sampler;
pub(crate) mod shadow;
mod stream;
mod thread;
mod unawaited;
mod user_object;

pub(crate) use array::*;
pub(crate) use attribute_cache::*;
pub(crate) use capture::*;
pub(crate) use client::*;
pub(crate) use context::*;
pub(crate) use copy::*;
pub(crate) use device::*;
pub(crate) use event::*;
pub(crate) use graph_exec::*;
pub(crate) use graph_item::*;
pub(crate) use graph_memory::*;
pub(crate) use graphs::*;
pub(crate) use kernel::*;
pub(crate) use linker::*;
pub(crate) use local_storage::*;
pub(crate) use memory::*;
pub(crate) use module::*;
pub(crate) use op::*;
pub(crate) use pinned::*;
pub(crate) use pinned_fill::*;
pub(crate) use pool::*;
pub(crate) use reference::*;
pub(crate) use sampler::*;
pub(crate) use stream::*;
pub(crate) use thread::*;
pub(crate) use unawaited::*;
pub(crate) use user_object::*;
