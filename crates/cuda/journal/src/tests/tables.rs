//! A driver that only keeps tables: what exists after some commands. Written without looking at the manifest, as plainly as
//! possible.

use crate::images::ImageHash;
use cuda_wire::{Command, GraphNode, Op, Reader, Wire};
use std::collections::{BTreeMap, BTreeSet};

/// `CUDA_ERROR_INVALID_VALUE`.
pub(super) const INVALID: u32 = 1;

#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    pub(super) contexts: BTreeMap<u32, (u32, u32)>,
    pub(super) limits: BTreeMap<(u32, u32), u64>,
    pub(super) peers: BTreeSet<(u32, u32)>,
    /// Address, bytes, context.
    pub(super) memory: Vec<(u64, u64, u32)>,
    pub(super) physical: Vec<Physical>,
    pub(super) maps: Vec<Map>,
    made: usize,
    pub(super) modules: Vec<Module>,
    pub(super) streams: BTreeMap<u32, (u32, u32, i32)>,
    pub(super) events: BTreeMap<u32, (u32, u32)>,
    pub(super) graphs: BTreeMap<u32, (u32, Vec<Node>)>,
}

#[derive(Clone, Debug)]
pub(super) struct Physical {
    number: usize,
    handle: Option<u32>,
    device: u32,
    bytes: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Map {
    address: u64,
    bytes: u64,
    offset: u64,
    physical: usize,
    access: BTreeMap<u32, u32>,
}

/// Shown by its `Debug`.
#[derive(Clone, Debug)]
#[allow(dead_code)]
pub(super) struct Module {
    pub(super) id: u32,
    context: u32,
    hash: ImageHash,
    options: String,
    attributes: BTreeMap<(u32, u32), i32>,
}

/// Operation, edges, whether it is switched on.
pub(super) type Node = (Vec<u8>, Vec<u32>, bool);

pub(super) fn op_of(node: &Node) -> Op<'_> {
    Op::take(&mut Reader::new(&node.0)).unwrap()
}

fn ok(is: bool) -> Result<(), u32> {
    if is { Ok(()) } else { Err(INVALID) }
}

impl Tables {
    fn has(&self, context: u32) -> bool {
        context < 0x100 || self.contexts.contains_key(&context)
    }

    fn is_free(&self, address: u64, bytes: u64) -> bool {
        let taken = self.memory.iter().map(|block| (block.0, block.1));
        let mapped = self.maps.iter().map(|map| (map.address, map.bytes));
        bytes > 0 && taken.chain(mapped).all(|(at, length)| address + bytes <= at || at + length <= address)
    }

    pub(super) fn allocate(&mut self, context: u32, address: u64, bytes: u64) -> Result<(), u32> {
        if !self.has(context) || !self.is_free(address, bytes) {
            return Err(INVALID);
        }
        self.memory.push((address, bytes, context));
        Ok(())
    }

    pub(super) fn free(&mut self, address: u64) -> Result<(), u32> {
        let place = self.memory.iter().position(|block| block.0 == address).ok_or(INVALID)?;
        self.memory.remove(place);
        Ok(())
    }

    pub(super) fn is_named(&self, op: &Op<'_>) -> bool {
        match op {
            Op::Launch { kernel, .. } => self.modules.iter().any(|module| module.id == kernel.module.0),
            Op::Record { event, .. } | Op::Wait { event, .. } => self.events.contains_key(&event.0),
            _ => true,
        }
    }

    /// Whether a command gives a name again that a graph still uses for what is gone. No client does: it counts its names.
    pub(super) fn is_name_reused(&self, command: &Command<'_>) -> bool {
        let nodes = || self.graphs.values().flat_map(|graph| &graph.1).map(op_of);
        let mut dangling = nodes().filter(|op| !self.is_named(op));
        match command {
            Command::EventCreate { event: made, .. } => dangling
                .any(|op| matches!(op, Op::Record { event, .. } | Op::Wait { event, .. } if event == *made)),
            Command::ModuleLoad { module, .. } => {
                dangling.any(|op| matches!(op, Op::Launch { kernel, .. } if kernel.module == *module))
            }
            _ => false,
        }
    }

    /// Mappings that fill a range exactly.
    fn filling(&self, address: u64, bytes: u64) -> Result<Vec<u64>, u32> {
        let mut inside: Vec<(u64, u64)> = self
            .maps
            .iter()
            .filter(|map| map.address < address + bytes && address < map.address + map.bytes)
            .map(|map| (map.address, map.bytes))
            .collect();
        inside.sort_unstable();
        let is_within = inside.iter().all(|(at, length)| *at >= address && at + length <= address + bytes);
        let sum: u64 = inside.iter().map(|(_, length)| length).sum();
        if bytes == 0 || !is_within || sum != bytes {
            return Err(INVALID);
        }
        Ok(inside.into_iter().map(|(at, _)| at).collect())
    }

    fn empty(&mut self, context: u32) {
        self.limits.retain(|key, _| key.0 != context);
        self.peers.retain(|pair| pair.0 != context && pair.1 != context);
        self.memory.retain(|block| block.2 != context);
        self.modules.retain(|module| module.context != context);
        self.streams.retain(|_, stream| stream.0 != context);
        self.events.retain(|_, event| event.0 != context);
        self.graphs.retain(|_, graph| graph.0 != context);
    }

    fn end_unmapped(&mut self) {
        let maps = &self.maps;
        let is_mapped = |number| maps.iter().any(|map| map.physical == number);
        self.physical.retain(|physical| physical.handle.is_some() || is_mapped(physical.number));
    }

    fn nodes(&self, nodes: &[GraphNode<'_>]) -> Result<Vec<Node>, u32> {
        if nodes.iter().any(|node| !self.is_named(&node.op)) {
            return Err(INVALID);
        }
        Ok(nodes.iter().map(|node| (node.op.to_bytes(), node.after.clone(), node.enabled)).collect())
    }

    /// Executes a command, but for what streams do later.
    pub(super) fn execute(&mut self, command: &Command<'_>) -> Result<(), u32> {
        self.execute_on_contexts(command)?;
        self.execute_on_memory(command)?;
        self.execute_on_objects(command)?;
        self.execute_work(command)
    }

    fn execute_on_contexts(&mut self, command: &Command<'_>) -> Result<(), u32> {
        match command {
            Command::ContextCreate { context, device, flags } => {
                ok(context.0 >= 0x100 && !self.contexts.contains_key(&context.0))?;
                self.contexts.insert(context.0, (*device, *flags));
            }
            Command::ContextDestroy { context } => {
                ok(self.contexts.contains_key(&context.0))?;
                self.empty(context.0);
                self.contexts.remove(&context.0);
            }
            Command::ContextReset { context } => {
                ok(self.has(context.0))?;
                self.empty(context.0);
            }
            Command::ContextSetLimit { context, limit, value } => {
                ok(self.has(context.0))?;
                self.limits.insert((context.0, *limit), *value);
            }
            Command::ContextEnablePeer { context, peer, enable } => {
                ok(context != peer && self.has(context.0) && self.has(peer.0))?;
                match enable {
                    true => self.peers.insert((context.0, peer.0)),
                    false => self.peers.remove(&(context.0, peer.0)),
                };
            }
            _ => {}
        }
        Ok(())
    }

    fn execute_on_memory(&mut self, command: &Command<'_>) -> Result<(), u32> {
        match command {
            Command::MemoryAllocate { context, address, bytes } => {
                self.allocate(context.0, *address, *bytes)?;
            }
            Command::MemoryFree { address } => self.free(*address)?,
            Command::PhysicalCreate { handle, device, bytes } => {
                ok(*bytes > 0 && self.physical.iter().all(|physical| physical.handle != Some(handle.0)))?;
                let number = self.made;
                self.made += 1;
                let made = Physical { number, handle: Some(handle.0), device: *device, bytes: *bytes };
                self.physical.push(made);
            }
            Command::PhysicalRelease { handle } => {
                let mut all = self.physical.iter_mut();
                all.find(|physical| physical.handle == Some(handle.0)).ok_or(INVALID)?.handle = None;
                self.end_unmapped();
            }
            Command::PhysicalMap { address, bytes, offset, handle } => {
                let mut all = self.physical.iter();
                let physical = all.find(|physical| physical.handle == Some(handle.0)).ok_or(INVALID)?;
                ok(offset + bytes <= physical.bytes && self.is_free(*address, *bytes))?;
                let physical = physical.number;
                let (address, bytes, offset) = (*address, *bytes, *offset);
                self.maps.push(Map { address, bytes, offset, physical, access: BTreeMap::new() });
            }
            Command::PhysicalUnmap { address, bytes } => {
                let starts = self.filling(*address, *bytes)?;
                self.maps.retain(|map| !starts.contains(&map.address));
                self.end_unmapped();
            }
            Command::PhysicalSetAccess { address, bytes, device, protection } => {
                ok(matches!(protection, 0 | 1 | 3))?;
                let starts = self.filling(*address, *bytes)?;
                for map in self.maps.iter_mut().filter(|map| starts.contains(&map.address)) {
                    map.access.insert(*device, *protection);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn execute_on_objects(&mut self, command: &Command<'_>) -> Result<(), u32> {
        match command {
            Command::ModuleLoad { module, context, hash, options, .. } => {
                ok(self.has(context.0) && self.modules.iter().all(|known| known.id != module.0))?;
                self.modules.push(Module {
                    id: module.0,
                    context: context.0,
                    hash: *hash,
                    options: format!("{options:?}"),
                    attributes: BTreeMap::new(),
                });
            }
            Command::ModuleUnload { module } => {
                let place = self.modules.iter().position(|known| known.id == module.0).ok_or(INVALID)?;
                self.modules.remove(place);
            }
            Command::KernelSetAttribute { kernel, attribute, value } => {
                let mut all = self.modules.iter_mut();
                let module = all.find(|known| known.id == kernel.module.0).ok_or(INVALID)?;
                module.attributes.insert((kernel.index, *attribute), *value);
            }
            Command::StreamCreate { stream, context, kind, priority } => {
                ok(self.has(context.0) && *kind <= 2 && !self.streams.contains_key(&stream.0))?;
                self.streams.insert(stream.0, (context.0, *kind, *priority));
            }
            Command::StreamDestroy { stream } => {
                self.streams.remove(&stream.0).ok_or(INVALID)?;
            }
            Command::EventCreate { event, context, flags } => {
                ok(self.has(context.0) && !self.events.contains_key(&event.0))?;
                self.events.insert(event.0, (context.0, *flags));
            }
            Command::EventDestroy { event } => {
                self.events.remove(&event.0).ok_or(INVALID)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn execute_work(&mut self, command: &Command<'_>) -> Result<(), u32> {
        match command {
            Command::GraphInstantiate { exec, context, nodes } => {
                ok(self.has(context.0) && !self.graphs.contains_key(&exec.0))?;
                let nodes = self.nodes(nodes)?;
                self.graphs.insert(exec.0, (context.0, nodes));
            }
            Command::GraphUpdate { exec, nodes } => {
                let nodes = self.nodes(nodes)?;
                let graph = self.graphs.get_mut(&exec.0).ok_or(INVALID)?;
                ok(graph.1.len() == nodes.len())?;
                graph.1 = nodes;
            }
            Command::GraphSetNode { exec, index, op, enabled } => {
                let graph = self.graphs.get_mut(&exec.0).ok_or(INVALID)?;
                let node = graph.1.get_mut(*index as usize).ok_or(INVALID)?;
                *node = (op.to_bytes(), node.1.clone(), *enabled);
            }
            Command::GraphDestroy { exec } => {
                self.graphs.remove(&exec.0).ok_or(INVALID)?;
            }
            Command::GraphLaunch { exec, stream, .. } => {
                ok(self.streams.contains_key(&stream.0))?;
                let (context, nodes) = self.graphs.get(&exec.0).ok_or(INVALID)?.clone();
                for node in nodes.iter().filter(|node| node.2) {
                    // What a node cannot do kills no other node here.
                    let _ = match op_of(node) {
                        Op::Allocate { address, bytes } => self.allocate(context, address, bytes),
                        Op::Free { address } => self.free(address),
                        _ => Ok(()),
                    };
                }
            }
            Command::Enqueue { stream, op } => {
                let context = self.streams.get(&stream.0).ok_or(INVALID)?.0;
                match op {
                    Op::Allocate { address, bytes } => self.allocate(context, *address, *bytes)?,
                    Op::Free { address } => self.free(*address)?,
                    _ => {}
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Everything that exists, in words. Two tables that a program cannot tell apart look the same.
    pub(super) fn view(&self) -> Vec<String> {
        let mut lines = vec![
            format!("contexts {:?}", self.contexts),
            format!("limits {:?}", self.limits),
            format!("peers {:?}", self.peers),
            format!("streams {:?}", self.streams),
            format!("events {:?}", self.events),
            format!("modules {:?}", self.modules),
        ];
        let mut memory = self.memory.clone();
        memory.sort_unstable();
        lines.push(format!("memory {memory:?}"));
        for physical in &self.physical {
            let mut maps: Vec<_> = self
                .maps
                .iter()
                .filter(|map| map.physical == physical.number)
                .map(|map| (map.address, map.bytes, map.offset, map.access.clone()))
                .collect();
            maps.sort();
            let (handle, device, bytes) = (physical.handle, physical.device, physical.bytes);
            lines.push(format!("physical {handle:?} {device} {bytes} {maps:?}"));
        }
        for (exec, (context, nodes)) in &self.graphs {
            // A node that names what is gone can do nothing any more.
            let nodes: Vec<String> = nodes
                .iter()
                .map(|node| match op_of(node) {
                    op if self.is_named(&op) => format!("{op:?} {:?} {}", node.1, node.2),
                    _ => format!("{:?} {:?} {}", Op::Empty {}, node.1, node.2),
                })
                .collect();
            lines.push(format!("graph {exec} {context} {nodes:?}"));
        }
        lines
    }
}
