//! The objects that exist at a cut, as the commands that make them again.
//!
//! ```text
//!   frames before the cut ── fold ──▶ tables: contexts, modules, memory, streams, events, graphs
//!                                        │ items: in an order that a fresh session can execute
//!                                        ▼
//!   contexts ▸ modules ▸ kernel attributes ▸ limits ▸ peers ▸ memory ▸ mappings ▸ streams ▸ events ▸ graphs
//! ```
//!
//! Modules come before memory because a driver places their variables itself: the earlier they are loaded, the more
//! likely they get the same addresses. Launches, copies, fills and records fold to nothing: the image has what they wrote.
//!
//! A command that no worker would have accepted changes nothing here either, since one-way commands do not say whether
//! they failed.

mod emit;
mod fold;
mod graphs;
mod space;
pub(crate) mod tags;

pub(crate) use emit::Items;
#[cfg(test)]
pub(crate) use emit::frame;
pub use emit::{Dangling, Item, Load};
pub(crate) use fold::Folding;

use crate::{
    images::ImageHash,
    mutant::{Mutant, is_planted},
};
use cuda_wire::{ContextId, EventId, ExecId, JitOption, KernelRef, ModuleId, StreamId, VariableInfo};
use graphs::Graph;
use space::Space;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Contexts below this are the primary contexts of devices and always exist.
const FIRST_CREATED_CONTEXT: u32 = 0x100;

/// The objects that exist at a cut.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// Created contexts: device and flags.
    contexts: BTreeMap<ContextId, (u32, u32)>,
    limits: BTreeMap<(ContextId, u32), u64>,
    peers: BTreeSet<(ContextId, ContextId)>,
    space: Space,
    /// By the order in which they were loaded.
    modules: BTreeMap<u64, Module>,
    module_order: BTreeMap<ModuleId, u64>,
    loads: u64,
    streams: BTreeMap<StreamId, Stream>,
    /// Context and flags.
    events: BTreeMap<EventId, (ContextId, u32)>,
    graphs: BTreeMap<ExecId, Graph>,
}

#[derive(Clone, Debug)]
struct Stream {
    context: ContextId,
    kind: u32,
    priority: i32,
}

#[derive(Clone, Debug)]
struct Module {
    id: ModuleId,
    context: ContextId,
    hash: ImageHash,
    options: Vec<JitOption>,
    /// What the program was told about it.
    told: Option<Told>,
    /// Kernel index and attribute, and the last value.
    attributes: BTreeMap<(u32, u32), i32>,
}

/// An answer that was given to the program.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) status: u32,
    pub(crate) digest: crate::Digest,
    pub(crate) variables: Arc<[VariableInfo]>,
}

impl Manifest {
    fn has_context(&self, context: ContextId) -> bool {
        context.0 < FIRST_CREATED_CONTEXT || self.contexts.contains_key(&context)
    }

    fn module_of(&mut self, kernel: KernelRef) -> Option<&mut Module> {
        self.modules.get_mut(self.module_order.get(&kernel.module)?)
    }

    /// Ends everything in a context.
    fn empty_context(&mut self, context: ContextId) {
        self.limits.retain(|(of, _), _| *of != context);
        self.peers.retain(|(of, peer)| *of != context && *peer != context);
        if !is_planted(Mutant::MemoryOutlivesContext) {
            self.space.free_all_of(context);
        }
        self.modules.retain(|_, module| module.context != context);
        let modules = &self.modules;
        self.module_order.retain(|_, order| modules.contains_key(order));
        self.streams.retain(|_, stream| stream.context != context);
        self.events.retain(|_, (of, _)| *of != context);
        self.graphs.retain(|_, graph| graph.context != context);
    }

    /// Memory that the manifest's commands allocate: what they take from the memory credit of a fresh session.
    pub fn allocated_bytes(&self) -> u64 {
        self.space.allocated_bytes()
    }

    /// Images that the manifest needs.
    pub fn images(&self) -> impl Iterator<Item = ImageHash> + '_ {
        self.modules.values().map(|module| module.hash)
    }
}
