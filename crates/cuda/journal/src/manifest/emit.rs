//! The manifest as commands.

use super::{
    Manifest, Module, Told,
    graphs::{Graph, Node},
    space::Block,
};
use crate::{
    images::{ImageHash, Images},
    mutant::{Mutant, is_planted},
};
use cuda_wire::{
    Command, ContextId, ExecId, ImageSource, JitOption, ModuleId, Op, begin_command, finish_command,
};
use std::{collections::BTreeMap, sync::Arc};

/// A part of the manifest, in order.
#[derive(Clone, Debug)]
pub enum Item {
    /// A whole command frame.
    Frame(Vec<u8>),
    /// A module to load. The caller decides how its image travels.
    Load(Load),
}

/// A module to load again.
///
/// The caller sends [`Load::frame`] with [`ImageSource::Known`] first. If the worker answers that it has no such image, the
/// caller sends the bytes.
#[derive(Clone, Debug)]
pub struct Load {
    /// The call of its frame. The reply is compared with what the program was told.
    pub call: u32,
    /// The module.
    pub module: ModuleId,
    /// Its context.
    pub context: ContextId,
    /// The name of its image.
    pub hash: ImageHash,
    /// The bytes of its image. `None`: no session of this journal ever sent them, because the worker knew the hash.
    /// The caller must have them elsewhere.
    pub image: Option<Arc<[u8]>>,
    /// Options of the load.
    pub options: Vec<JitOption>,
}

impl Load {
    /// The command frame, its image by `source`.
    pub fn frame(&self, source: ImageSource<'_>) -> Vec<u8> {
        let command = Command::ModuleLoad {
            module: self.module,
            context: self.context,
            hash: self.hash,
            image: source,
            options: self.options.clone(),
        };
        frame(&command, self.call)
    }
}

/// A node of an executable graph that names a module or an event which is gone. The manifest makes the graph with an empty
/// node in its place, so that the graph exists and can be updated or destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dangling {
    /// The graph.
    pub exec: ExecId,
    /// The place of the node.
    pub node: u32,
}

/// A command as a frame.
pub(crate) fn frame(command: &Command<'_>, call: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let start = begin_command(&mut out, command.opcode(), call);
    command.put_body(&mut out);
    finish_command(&mut out, start);
    out
}

/// Items under construction.
#[derive(Default)]
pub(crate) struct Items {
    pub(crate) items: Vec<Item>,
    /// What the program was told about those that have an answer. The answer of number `n` has the call `n + 1`: all of
    /// them come before the first call of the journal's own frames, so no two are open under one name.
    pub(crate) told: Vec<Option<Told>>,
}

impl Items {
    fn put(&mut self, command: &Command<'_>) {
        self.items.push(Item::Frame(frame(command, 0)));
    }

    /// The call of the next item that has an answer.
    fn next_call(&mut self, told: Option<&Told>) -> u32 {
        self.told.push(told.cloned());
        self.told.len() as u32
    }

    fn put_load(&mut self, module: &Module, images: &Images) {
        let load = Load {
            call: self.next_call(module.told.as_ref()),
            module: module.id,
            context: module.context,
            hash: module.hash,
            image: images.get(&module.hash).cloned(),
            options: module.options.clone(),
        };
        self.items.push(Item::Load(load));
    }
}

impl Manifest {
    /// The commands that make the objects again, in an order that a fresh session can execute.
    pub(crate) fn items(&self, images: &Images) -> Items {
        let mut items = Items::default();
        for (&context, &(device, flags)) in &self.contexts {
            items.put(&Command::ContextCreate { context, device, flags });
        }
        self.modules.values().for_each(|module| items.put_load(module, images));
        for module in self.modules.values() {
            for (&(index, attribute), &value) in &module.attributes {
                let kernel = cuda_wire::KernelRef { module: module.id, index };
                items.put(&Command::KernelSetAttribute { kernel, attribute, value });
            }
        }
        for (&(context, limit), &value) in &self.limits {
            items.put(&Command::ContextSetLimit { context, limit, value });
        }
        for &(context, peer) in &self.peers {
            items.put(&Command::ContextEnablePeer { context, peer, enable: true });
        }
        self.put_memory(&mut items);
        for (&stream, of) in &self.streams {
            let (context, kind, priority) = (of.context, of.kind, of.priority);
            items.put(&Command::StreamCreate { stream, context, kind, priority });
        }
        for (&event, &(context, flags)) in &self.events {
            items.put(&Command::EventCreate { event, context, flags });
        }
        for (&exec, graph) in &self.graphs {
            self.put_graph(exec, graph, &mut items);
        }
        items
    }

    fn put_memory(&self, items: &mut Items) {
        let mut mapped: BTreeMap<u64, Vec<(u64, &Block)>> = BTreeMap::new();
        for (&address, block) in &self.space.blocks {
            match block {
                Block::Allocated { bytes, context } => {
                    items.put(&Command::MemoryAllocate { context: *context, address, bytes: *bytes });
                }
                Block::Mapped { physical, .. } => mapped.entry(*physical).or_default().push((address, block)),
            }
        }
        // One after the other, each with its maps: two may have had the same name, one after the other.
        for (made, physical) in &self.space.physical {
            let (handle, device) = (physical.handle, physical.device);
            items.put(&Command::PhysicalCreate { handle, device, bytes: physical.bytes });
            for (address, block) in mapped.remove(made).unwrap_or_default() {
                let Block::Mapped { bytes, offset, access, .. } = block else { continue };
                items.put(&Command::PhysicalMap { address, bytes: *bytes, offset: *offset, handle });
                for (&device, &protection) in access {
                    items.put(&Command::PhysicalSetAccess { address, bytes: *bytes, device, protection });
                }
            }
            if physical.is_released && !is_planted(Mutant::ReleaseForgotten) {
                items.put(&Command::PhysicalRelease { handle });
            }
        }
    }

    fn put_graph(&self, exec: ExecId, graph: &Graph, items: &mut Items) {
        let nodes = graph.nodes.iter().map(|node| {
            let op = node.op().filter(|op| self.has_names_of(op)).unwrap_or(Op::Empty {});
            cuda_wire::GraphNode { op, after: node.after.clone(), enabled: node.enabled }
        });
        let command = Command::GraphInstantiate { exec, context: graph.context, nodes: nodes.collect() };
        let call = items.next_call(graph.told.as_ref());
        items.items.push(Item::Frame(frame(&command, call)));
    }

    /// Nodes of graphs that cannot be made again as they were.
    pub fn dangling(&self) -> Vec<Dangling> {
        let mut found = Vec::new();
        for (&exec, graph) in &self.graphs {
            let is_gone = |node: &Node| !node.op().is_some_and(|op| self.has_names_of(&op));
            let places = graph.nodes.iter().enumerate().filter(|(_, node)| is_gone(node));
            found.extend(places.map(|(place, _)| Dangling { exec, node: place as u32 }));
        }
        found
    }
}
