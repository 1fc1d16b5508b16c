//! What one command changes in the tables.

use super::{
    FIRST_CREATED_CONTEXT, Manifest, Module, Stream, Told,
    graphs::{Graph, Node},
    tags::{ALLOCATE, COPY_IN, COPY_OUT, FREE},
};
use crate::{
    calls::{ENQUEUE, is_about_the_session},
    frames::{Frame, Unreadable},
    host_data::HostBytes,
    images::Images,
    mutant::{Mutant, is_planted},
};
use cuda_wire::{Command, ContextId, HostData, ImageSource, Op, StreamId, TransferId, transfer_of_run};
use std::collections::HashMap;

/// The highest kind of a stream: a context's legacy stream.
const STREAM_KIND_MAX: u32 = 2;

/// Commands on their way into a manifest, and what else must be known about them.
pub(crate) struct Folding<'a> {
    pub(crate) manifest: &'a mut Manifest,
    pub(crate) images: &'a mut Images,
    pub(crate) host: &'a HostBytes,
    /// What calls were answered.
    pub(crate) answers: &'a HashMap<u32, Told>,
    /// Transfers that landed behind the cut; those that a folded command asked for are set to true.
    pub(crate) late: HashMap<TransferId, bool>,
    /// Pushes whose bytes no frame needs any more.
    pub(crate) dropped: Vec<TransferId>,
}

impl Folding<'_> {
    /// Folds one frame.
    pub(crate) fn fold(&mut self, frame: &Frame<'_>) -> Result<(), Unreadable> {
        let told = self.answers.get(&frame.call).filter(|_| frame.call != 0);
        // What was refused has changed nothing.
        let is_refused = told.is_some_and(|told| told.status != 0) && !is_planted(Mutant::RefusedIsFolded);
        if is_refused || is_about_the_session(frame.opcode) {
            return Ok(());
        }
        if frame.opcode == ENQUEUE && !self.is_worth_reading(frame) {
            return Ok(());
        }
        let command = Command::decode(frame.opcode, frame.body()).map_err(|error| frame.unreadable(error))?;
        match &command {
            Command::Enqueue { stream, op } => self.enqueue(*stream, op),
            Command::GraphLaunch { exec, stream, run } => {
                if self.manifest.streams.contains_key(stream) {
                    self.manifest.launch(*exec);
                    self.note_late(*exec, *run);
                }
            }
            Command::ModuleLoad { module, context, hash, image, options } => {
                self.keep_image(hash, image);
                let manifest = &mut *self.manifest;
                if manifest.has_context(*context) && !manifest.module_order.contains_key(module) {
                    let made = Module {
                        id: *module,
                        context: *context,
                        hash: *hash,
                        options: options.clone(),
                        told: told.cloned(),
                        attributes: Default::default(),
                    };
                    manifest.module_order.insert(*module, manifest.loads);
                    manifest.modules.insert(manifest.loads, made);
                    manifest.loads += 1;
                }
            }
            Command::GraphInstantiate { exec, context, nodes } => {
                let manifest = &mut *self.manifest;
                let is_possible = told.is_some() || manifest.has_names_of_all(nodes);
                if is_possible && manifest.has_context(*context) && !manifest.graphs.contains_key(exec) {
                    let nodes = nodes.iter().map(Node::new).collect();
                    let graph = Graph { context: *context, nodes, told: told.cloned() };
                    manifest.graphs.insert(*exec, graph);
                }
            }
            // A driver makes the graph anew: it refuses what names things that are gone.
            Command::GraphUpdate { nodes, .. }
                if told.is_none() && !self.manifest.has_names_of_all(nodes) => {}
            other => self.manifest.apply(other),
        }
        Ok(())
    }

    fn is_worth_reading(&self, frame: &Frame<'_>) -> bool {
        match frame.body().get(size_of::<StreamId>()) {
            Some(&(ALLOCATE | FREE | COPY_IN)) => true,
            Some(&COPY_OUT) => !self.late.is_empty(),
            Some(_) => false,
            // It is torn: reading it says so.
            None => true,
        }
    }

    fn enqueue(&mut self, stream: StreamId, op: &Op<'_>) {
        match op {
            Op::Allocate { address, bytes } => {
                if let Some(context) = self.manifest.streams.get(&stream).map(|stream| stream.context) {
                    self.manifest.space.allocate(context, *address, *bytes);
                }
            }
            Op::Free { address } if self.manifest.streams.contains_key(&stream) => {
                self.manifest.space.free(*address);
            }
            Op::CopyIn { data: HostData::Pushed { transfer }, .. } => self.dropped.push(*transfer),
            Op::CopyOut { transfer, .. } => {
                if let Some(is_asked) = self.late.get_mut(transfer) {
                    *is_asked = true;
                }
            }
            _ => {}
        }
    }

    /// Notes transfers of a graph's launch that landed behind the cut.
    fn note_late(&mut self, exec: cuda_wire::ExecId, run: u32) {
        if self.late.is_empty() {
            return;
        }
        for transfer in self.manifest.graphs.get(&exec).into_iter().flat_map(Graph::copies_out) {
            if let Some(is_asked) = self.late.get_mut(&transfer_of_run(transfer, run)) {
                *is_asked = true;
            }
        }
    }

    /// Keeps the bytes of an image, wherever they are now.
    fn keep_image(&mut self, hash: &[u8; 32], image: &ImageSource<'_>) {
        match image {
            ImageSource::Known {} => {}
            ImageSource::Inline { bytes } => self.images.copy(*hash, bytes.0),
            ImageSource::Pushed { transfer, .. } => {
                if let Some(bytes) = self.host.only(*transfer) {
                    self.images.share(*hash, bytes.clone());
                }
                self.dropped.push(*transfer);
            }
        }
    }
}

/// Commands of programs that are not protected: their link gave the journal up before it sent the first.
macro_rules! of_unprotected {
    () => {
        // Arrays, and what shows them.
        Command::ArrayCreate { .. }
            | Command::ArrayDestroy { .. }
            | Command::TextureCreate { .. }
            | Command::SurfaceCreate { .. }
            | Command::SamplerDestroy { .. }
            | Command::ReferenceFind { .. }
            | Command::ReferenceBind { .. }
            // What is shared with another process.
            | Command::MemoryShare { .. }
            | Command::PhysicalShare { .. }
            | Command::EventShare { .. }
            | Command::PhysicalImport { .. }
            | Command::EventImport { .. }
            // Green contexts.
            | Command::SmResource { .. }
            | Command::SmSplit { .. }
            | Command::GreenCreate { .. }
            | Command::GreenDestroy { .. }
            | Command::GreenStreamCreate { .. }
            // Host memory at one address.
            | Command::AddressesReserve { .. }
    };
}

impl Manifest {
    /// Applies a command that concerns the tables alone. A new command must be put into one of these groups.
    fn apply(&mut self, command: &Command<'_>) {
        match command {
            Command::ContextCreate { .. }
            | Command::ContextDestroy { .. }
            | Command::ContextReset { .. }
            | Command::ContextSetLimit { .. }
            | Command::ContextEnablePeer { .. } => self.apply_to_contexts(command),

            Command::MemoryAllocate { .. }
            | Command::MemoryFree { .. }
            | Command::PhysicalCreate { .. }
            | Command::PhysicalRelease { .. }
            | Command::PhysicalMap { .. }
            | Command::PhysicalUnmap { .. }
            | Command::PhysicalSetAccess { .. } => self.apply_to_memory(command),

            Command::ModuleUnload { .. }
            | Command::KernelSetAttribute { .. }
            | Command::StreamCreate { .. }
            | Command::StreamDestroy { .. }
            | Command::EventCreate { .. }
            | Command::EventDestroy { .. }
            | Command::GraphUpdate { .. }
            | Command::GraphSetNode { .. }
            | Command::GraphDestroy { .. } => self.apply_to_objects(command),

            // These make and end nothing.
            Command::MemoryInfo { .. }
            | Command::DeviceStatus { .. }
            | Command::Link { .. }
            | Command::ActiveClusters { .. }
            | Command::LargestCluster { .. }
            | Command::StreamQuery { .. }
            | Command::EventQuery { .. }
            | Command::EventElapsed { .. }
            | Command::GraphUpload { .. }
            | Command::ContextSynchronize { .. }
            | Command::StreamSynchronize { .. }
            | Command::ReadBack { .. }
            | Command::EventSynchronize { .. }
            | Command::Goodbye {}
            | Command::Guard { .. }
            | Command::Cut { .. }
            | Command::ImageRestore { .. }
            | Command::ImageCopy { .. }
            | Command::ImageFetch { .. }
            | of_unprotected!()
            // It changes nothing.
            | Command::TensorMapWide { .. }
            // A program that survives shares no memory.
            | Command::HostShare { .. }
            | Command::HostUnshare { .. }
            | Command::Leave {} => {}

            // The caller has them: they need more than the tables.
            Command::Enqueue { .. }
            | Command::GraphLaunch { .. }
            | Command::ModuleLoad { .. }
            | Command::GraphInstantiate { .. } => {}
        }
    }

    fn apply_to_contexts(&mut self, command: &Command<'_>) {
        match *command {
            Command::ContextCreate { context, device, flags } if context.0 >= FIRST_CREATED_CONTEXT => {
                self.contexts.entry(context).or_insert((device, flags));
            }
            Command::ContextDestroy { context } if self.contexts.contains_key(&context) => {
                self.empty_context(context);
                self.contexts.remove(&context);
            }
            Command::ContextReset { context } if self.has_context(context) => self.empty_context(context),
            Command::ContextSetLimit { context, limit, value } if self.has_context(context) => {
                self.limits.insert((context, limit), value);
            }
            Command::ContextEnablePeer { context, peer, enable } => self.enable_peer(context, peer, enable),
            _ => {}
        }
    }

    fn apply_to_memory(&mut self, command: &Command<'_>) {
        match *command {
            Command::MemoryAllocate { context, address, bytes } if self.has_context(context) => {
                self.space.allocate(context, address, bytes);
            }
            Command::MemoryFree { address } => self.space.free(address),
            Command::PhysicalCreate { handle, device, bytes } => self.space.create(handle, device, bytes),
            Command::PhysicalRelease { handle } => self.space.release(handle),
            Command::PhysicalMap { address, bytes, offset, handle } => {
                self.space.map(address, bytes, offset, handle);
            }
            Command::PhysicalUnmap { address, bytes } => self.space.unmap(address, bytes),
            Command::PhysicalSetAccess { address, bytes, device, protection } => {
                self.space.set_access(address, bytes, device, protection);
            }
            _ => {}
        }
    }

    fn apply_to_objects(&mut self, command: &Command<'_>) {
        match *command {
            Command::ModuleUnload { module } => {
                if let Some(order) = self.module_order.remove(&module) {
                    self.modules.remove(&order);
                }
            }
            Command::KernelSetAttribute { kernel, attribute, value } => {
                if let Some(module) = self.module_of(kernel) {
                    module.attributes.insert((kernel.index, attribute), value);
                }
            }
            Command::StreamCreate { stream, context, kind, priority }
                if self.has_context(context) && kind <= STREAM_KIND_MAX =>
            {
                self.streams.entry(stream).or_insert(Stream { context, kind, priority });
            }
            Command::StreamDestroy { stream } => drop(self.streams.remove(&stream)),
            Command::EventCreate { event, context, flags } if self.has_context(context) => {
                self.events.entry(event).or_insert((context, flags));
            }
            Command::EventDestroy { event } => drop(self.events.remove(&event)),
            Command::GraphUpdate { exec, ref nodes } => {
                if let Some(graph) = self.graphs.get_mut(&exec) {
                    graph.update(nodes);
                }
            }
            Command::GraphSetNode { exec, index, ref op, enabled } => {
                if let Some(graph) = self.graphs.get_mut(&exec)
                    && !is_planted(Mutant::NodeNotFolded)
                {
                    graph.set_node(index, op, enabled);
                }
            }
            Command::GraphDestroy { exec } => drop(self.graphs.remove(&exec)),
            _ => {}
        }
    }

    fn enable_peer(&mut self, context: ContextId, peer: ContextId, enable: bool) {
        if context == peer || !self.has_context(context) || !self.has_context(peer) {
            return;
        }
        match enable {
            true => self.peers.insert((context, peer)),
            false => self.peers.remove(&(context, peer)),
        };
    }

    /// A launch allocates and frees what the graph's nodes say.
    fn launch(&mut self, exec: cuda_wire::ExecId) {
        let Some(graph) = self.graphs.get(&exec) else { return };
        let context = graph.context;
        for op in graph.active(&[ALLOCATE, FREE]) {
            match op {
                Op::Allocate { address, bytes } => self.space.allocate(context, address, bytes),
                Op::Free { address } => self.space.free(address),
                _ => {}
            }
        }
    }
}
