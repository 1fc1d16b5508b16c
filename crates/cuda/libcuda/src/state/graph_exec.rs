//! Executable graphs: laid flat on the worker, with what each launch needs kept here.
//!
//! A launch is one command without an answer. Host memory that nodes read is offered to the worker for as long as the
//! node is; host memory that nodes write is expected anew at each launch; host functions have a name for as long as
//! the node is. What a node gave up is taken back behind the last launch, which may still use it.

use super::{
    Context, Device, Event, Item, MemoryPlan, NodeOp, PinnedFill, Place, Stream, check_device_plane, client,
    copy::end_write, device_of_plane, graphs, lock, memory_of, names_array, recorded_by_graph,
    release_objects, retain_objects,
};
use crate::{host::HostRegion, link::SharedLink};
use cuda_abi::*;
use cuda_client::{
    graph::{GraphId, Mismatch, NodeId, Payload, Snapshot, store::Objects},
    slab::Slab,
};
use cuda_wire::{Command, ExecId, GraphNode, Op, TransferId, transfer_of_run};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

static EXECS: Slab<Exec> = Slab::new(super::kind::GRAPH_EXEC);

/// Nodes and their parameters must fit one command with room for their frames.
const GRAPH_BYTES_MAX: usize = cuda_wire::COMMAND_BYTES_MAX as usize / 2;

/// A `CUgraphExec`.
pub(crate) struct Exec {
    /// Its handle.
    pub(crate) handle: u64,
    id: ExecId,
    context: Arc<Context>,
    graph: GraphId,
    /// `CUDA_GRAPH_INSTANTIATE_FLAG_*`.
    pub(crate) flags: u64,
    state: Mutex<State>,
}

struct State {
    /// The graph, with what its nodes do by now.
    snapshot: Snapshot<Item>,
    places: HashMap<NodeId, u32>,
    nodes: Vec<ExecNode>,
    memory: MemoryPlan,
    /// Launches so far.
    run: u32,
    last_stream: Option<Arc<Stream>>,
    objects: Objects,
}

pub(super) struct ExecNode {
    pub(super) item: Option<Item>,
    after: Vec<u32>,
    /// How many nodes each of its bodies has; they lie right before it.
    pub(super) bodies: Vec<u32>,
    enabled: bool,
    host: HostUse,
}

/// What a node needs of this process when it runs.
#[derive(Clone, Copy, Default)]
struct HostUse {
    pulled: Option<TransferId>,
    written: Option<(TransferId, HostRegion)>,
    function: Option<u64>,
}

impl HostUse {
    fn is_nothing(&self) -> bool {
        self.pulled.is_none() && self.function.is_none()
    }

    fn end(&self, link: &SharedLink) {
        self.pulled.iter().for_each(|transfer| link.withdraw(*transfer));
        self.function.iter().for_each(|token| link.withdraw_host_call(*token));
    }
}

/// What ends when the last launch has.
struct Leftover {
    host: Vec<HostUse>,
    objects: Objects,
}

impl Leftover {
    fn end(&self, link: &SharedLink) {
        self.host.iter().for_each(|host| host.end(link));
        release_objects(&self.objects);
    }
}

/// Why a graph cannot be made executable.
pub(crate) struct InstantiateError {
    /// What the call returns.
    pub(crate) error: CudaError,
    /// `CUgraphInstantiateResult`.
    pub(crate) result: u32,
    /// The node at fault.
    pub(crate) node: Option<NodeId>,
}

impl From<CudaError> for InstantiateError {
    fn from(error: CudaError) -> Self {
        Self { error, result: CUDA_GRAPH_INSTANTIATE_ERROR, node: None }
    }
}

impl Exec {
    /// The executable graph behind a handle.
    pub(crate) fn find(handle: u64) -> CuResult<Arc<Self>> {
        EXECS.get(handle).ok_or(CudaError::INVALID_VALUE)
    }

    /// Makes a graph executable.
    pub(crate) fn instantiate(graph: GraphId, flags: u64) -> Result<Arc<Self>, InstantiateError> {
        let mut store = graphs();
        let snapshot = store.graphs.snapshot(graph)?;
        store.captures.refuse_capturing_into(graph)?;
        store.captures.unsafe_call(super::capture_thread())?;
        if store.graphs.is_embedded(graph)? {
            return Err(CudaError::NOT_SUPPORTED.into());
        }
        store.handles.check_used(graph)?;
        let objects = store.graphs.objects(graph)?;
        // Such a graph has one executable form at a time.
        let is_single = store.graphs.owns_memory(graph)? || store.graphs.is_conditional(graph)?;
        drop(store);

        let circle =
            |error| InstantiateError { error, result: CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE, node: None };
        let flat = snapshot.flatten().map_err(circle)?;
        let context = context_of(&snapshot)?;
        let id = ExecId(client()?.next_id());
        let places: HashMap<NodeId, u32> = flat.places().collect();
        let nodes: Vec<ExecNode> = flat
            .nodes
            .into_iter()
            .map(|node| ExecNode {
                item: node.payload,
                after: node.after,
                bodies: node.bodies,
                enabled: true,
                host: HostUse::default(),
            })
            .collect();
        super::check_bodies(&nodes).map_err(|error| InstantiateError {
            error,
            result: CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED,
            node: None,
        })?;
        let memory = memory_plan(&nodes);
        let mut state =
            State { snapshot, places, nodes, memory, run: 0, last_stream: None, objects: Objects::new() };
        let hosts = state.host_uses(&context)?;
        state.send_all(&hosts, |nodes| {
            context.call(&Command::GraphInstantiate { exec: id, context: context.id, nodes }).map(drop)
        })?;
        state.take_hosts(hosts);
        retain_objects(&objects);
        state.objects = objects;
        let mut made = None;
        EXECS.insert_with(|handle| {
            let exec = Arc::new(Self {
                handle,
                id,
                context: Arc::clone(&context),
                graph,
                flags,
                state: Mutex::new(state),
            });
            made = Some(Arc::clone(&exec));
            exec
        })?;
        let made = made.ok_or(CudaError::UNKNOWN)?;
        // Bound to a name, so that the store is not locked any more when the graph is destroyed again.
        let booked = if is_single { graphs().memory.instantiate(graph, made.handle) } else { Ok(()) };
        match booked {
            Ok(()) => Ok(made),
            Err(error) => {
                made.destroy()?;
                Err(error.into())
            }
        }
    }

    /// Runs it behind a stream's work.
    pub(crate) fn launch(&self, stream: &Arc<Stream>) -> CuResult<()> {
        self.check_link(stream)?;
        let mut state = lock(&self.state);
        if !state.memory.is_empty() {
            let auto_free = self.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
            let left = graphs().memory.launch(&state.memory, auto_free)?;
            for address in left {
                stream.enqueue(Op::Free { address })?;
            }
        }
        let run = state.run;
        state.run = state.run.wrapping_add(1);
        // An event that other processes know: they must find the launch when this call has returned.
        let mut shared = None;
        for node in state.nodes.iter().filter(|node| node.enabled) {
            if let Some((transfer, region)) = node.host.written {
                expect_run(&self.context, transfer_of_run(transfer, run), &region);
            }
            if let Some(Item { op: NodeOp::Record { event, .. }, .. }) = &node.item {
                recorded_by_graph(event);
            }
            if let Some(Item { op: NodeOp::Record { event, .. } | NodeOp::Wait { event, .. }, .. }) =
                &node.item
                && event.is_interprocess()
            {
                shared = Some(Arc::clone(event));
            }
        }
        stream.order_behind_copies()?;
        super::managed::launching_graph(stream, || {
            stream.context.post(&Command::GraphLaunch { exec: self.id, stream: stream.id, run })
        })?;
        state.last_stream = Some(Arc::clone(stream));
        match shared {
            Some(event) => event.await_others(),
            None => Ok(()),
        }
    }

    /// Gets the next launch ready.
    pub(crate) fn upload(&self, stream: &Arc<Stream>) -> CuResult<()> {
        self.check_link(stream)?;
        stream.context.post(&Command::GraphUpload { exec: self.id, stream: stream.id })
    }

    fn check_link(&self, stream: &Stream) -> CuResult<()> {
        // Its nodes are on one worker, and so must be the stream.
        if Arc::ptr_eq(&self.context.link, &stream.context.link) {
            Ok(())
        } else {
            Err(CudaError::INVALID_VALUE)
        }
    }

    /// Ends it when its last launch has.
    pub(crate) fn destroy(&self) -> CuResult<()> {
        EXECS.remove(self.handle).ok_or(CudaError::INVALID_VALUE)?;
        let mut state = lock(&self.state);
        let host = state.nodes.iter().map(|node| node.host).filter(|host| !host.is_nothing()).collect();
        let leftover = Leftover { host, objects: std::mem::take(&mut state.objects) };
        let last_stream = state.last_stream.take();
        drop(state);
        let mut store = graphs();
        store.memory.exec_ended(self.handle);
        if store.graphs.nodes(self.graph).is_err() {
            store.memory.graph_ended(self.graph);
        }
        drop(store);
        let posted = self.context.post(&Command::GraphDestroy { exec: self.id });
        self.end_later(leftover, last_stream)?;
        posted
    }

    /// Ends what launches may still use, behind the last of them. Launches of one executable graph never overlap.
    fn end_later(&self, leftover: Leftover, last_stream: Option<Arc<Stream>>) -> CuResult<()> {
        if leftover.host.is_empty() && leftover.objects.is_empty() {
            return Ok(());
        }
        let link = Arc::clone(&self.context.link);
        let Some(stream) = last_stream.filter(|_| !link.is_lost()) else {
            leftover.end(&link);
            return Ok(());
        };
        if client()?.streams.get(stream.handle).is_none() {
            // The stream is gone, so only a wait for the whole context tells when its work is done.
            let _ = self.context.call(&Command::ContextSynchronize { context: self.context.id });
            leftover.end(&link);
            return Ok(());
        }
        let ending = Arc::clone(&link);
        let token = link.offer_host_call(Box::new(move || leftover.end(&ending)), true);
        stream.enqueue(Op::HostCall { token })
    }

    /// Gives a node other work of the same kind (cuGraphExec…SetParams).
    pub(crate) fn set_node(&self, node: NodeId, make: impl FnOnce(&Item) -> CuResult<Item>) -> CuResult<()> {
        let mut state = lock(&self.state);
        let place = state.place(node)?;
        let known = state.snapshot.node_mut(node).ok_or(CudaError::INVALID_VALUE)?;
        let new = make(&known.payload)?;
        if known.payload.node_type() != new.node_type() || known.payload.may_become(&new).is_err() {
            return Err(CudaError::INVALID_VALUE);
        }
        known.payload = new.clone();
        let old = state.replace(place, new, &self.context, self.id)?;
        let last_stream = state.last_stream.clone();
        drop(state);
        self.end_later(Leftover { host: old.into_iter().collect(), objects: Objects::new() }, last_stream)
    }

    /// Gives the nodes of an embedded graph other work (cuGraphExecChildGraphNodeSetParams).
    pub(crate) fn set_child(&self, node: NodeId, child: &Snapshot<Item>) -> CuResult<()> {
        let mut state = lock(&self.state);
        let known = state.snapshot.node_mut(node).ok_or(CudaError::INVALID_VALUE)?;
        let known = known.child.as_mut().ok_or(CudaError::INVALID_VALUE)?;
        known.update(child).map_err(|_| CudaError::GRAPH_EXEC_UPDATE_FAILURE)?;
        self.send_snapshot(state, Objects::new())
    }

    /// Gives all nodes other work (cuGraphExecUpdate). `Ok(Some(…))` says why the graphs do not match.
    pub(crate) fn update(&self, graph: GraphId) -> CuResult<Option<Mismatch>> {
        let store = graphs();
        let new = store.graphs.snapshot(graph)?;
        let objects = store.graphs.objects(graph)?;
        drop(store);
        let mut state = lock(&self.state);
        if let Err(mismatch) = state.snapshot.update(&new) {
            return Ok(Some(mismatch));
        }
        retain_objects(&objects);
        let old = std::mem::replace(&mut state.objects, objects);
        self.send_snapshot(state, old)?;
        Ok(None)
    }

    /// Brings the worker to what the snapshot says.
    fn send_snapshot(&self, mut state: std::sync::MutexGuard<'_, State>, objects: Objects) -> CuResult<()> {
        let flat = state.snapshot.flatten()?;
        for (node, new) in state.nodes.iter_mut().zip(flat.nodes) {
            node.item = new.payload;
        }
        state.memory = memory_plan(&state.nodes);
        let hosts = state.host_uses(&self.context)?;
        state.send_all(&hosts, |nodes| {
            self.context.call(&Command::GraphUpdate { exec: self.id, nodes }).map(drop)
        })?;
        let old = state.take_hosts(hosts);
        let last_stream = state.last_stream.clone();
        drop(state);
        self.end_later(Leftover { host: old, objects }, last_stream)
    }

    /// Switches a node on or off.
    pub(crate) fn set_enabled(&self, node: NodeId, enabled: bool) -> CuResult<()> {
        let mut state = lock(&self.state);
        let place = state.switchable(node)?;
        let known = state.nodes.get_mut(place as usize).ok_or(CudaError::INVALID_VALUE)?;
        known.enabled = enabled;
        let op = known.op(&known.host)?;
        self.context.post(&Command::GraphSetNode { exec: self.id, index: place, op, enabled })
    }

    /// Whether a node is switched on.
    pub(crate) fn is_enabled(&self, node: NodeId) -> CuResult<bool> {
        let state = lock(&self.state);
        let place = state.switchable(node)?;
        Ok(state.nodes.get(place as usize).is_some_and(|node| node.enabled))
    }
}

impl State {
    fn place(&self, node: NodeId) -> CuResult<u32> {
        self.places.get(&node).copied().ok_or(CudaError::INVALID_VALUE)
    }

    /// The place of a node that can be switched off: kernels, copies and fills.
    fn switchable(&self, node: NodeId) -> CuResult<u32> {
        let place = self.place(node)?;
        let item = self.nodes.get(place as usize).and_then(|node| node.item.as_ref());
        match item.map(|item| &item.op) {
            Some(NodeOp::Kernel(_) | NodeOp::Copy { .. } | NodeOp::Fill { .. }) => Ok(place),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// What each node needs of this process from now on.
    fn host_uses(&self, context: &Context) -> CuResult<Vec<HostUse>> {
        let mut hosts: Vec<HostUse> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            match node.item.as_ref().map_or(Ok(HostUse::default()), |item| host_use(item, context)) {
                Ok(host) => hosts.push(host),
                Err(error) => {
                    hosts.iter().for_each(|host| host.end(&context.link));
                    return Err(error);
                }
            }
        }
        Ok(hosts)
    }

    /// Sends all nodes.
    fn send_all(
        &self,
        hosts: &[HostUse],
        send: impl FnOnce(Vec<GraphNode<'_>>) -> CuResult<()>,
    ) -> CuResult<()> {
        let bytes: usize = self.nodes.iter().map(ExecNode::bytes).sum();
        if bytes > GRAPH_BYTES_MAX {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for (node, host) in self.nodes.iter().zip(hosts) {
            nodes.push(GraphNode { op: node.op(host)?, after: node.after.clone(), enabled: node.enabled });
        }
        send(nodes)
    }

    /// Puts new needs in place and returns the old ones that must end.
    fn take_hosts(&mut self, hosts: Vec<HostUse>) -> Vec<HostUse> {
        let swap = |(node, host): (&mut ExecNode, HostUse)| std::mem::replace(&mut node.host, host);
        self.nodes.iter_mut().zip(hosts).map(swap).filter(|host| !host.is_nothing()).collect()
    }

    fn replace(
        &mut self,
        place: u32,
        item: Item,
        context: &Context,
        exec: ExecId,
    ) -> CuResult<Option<HostUse>> {
        let host = host_use(&item, context)?;
        let node = self.nodes.get_mut(place as usize).ok_or(CudaError::INVALID_VALUE)?;
        node.item = Some(item);
        let old = std::mem::replace(&mut node.host, host);
        let op = node.op(&node.host)?;
        context.post(&Command::GraphSetNode { exec, index: place, op, enabled: node.enabled })?;
        Ok(Some(old).filter(|old| !old.is_nothing()))
    }
}

impl ExecNode {
    /// What the worker is told.
    fn op(&self, host: &HostUse) -> CuResult<Op<'_>> {
        let Some(item) = &self.item else { return Ok(Op::Empty {}) };
        Ok(match &item.op {
            NodeOp::Empty | NodeOp::Child(_) => Op::Empty {},
            NodeOp::Kernel(node) => node.to_wire(),
            NodeOp::Conditional(node) => Op::Conditional {
                handle: node.handle,
                kind: node.kind,
                first: node.first,
                bodies: self.bodies.clone(),
            },
            NodeOp::Copy { copy, .. } => match (copy.source, copy.target, host) {
                (Place::Device(source), Place::Device(target), _) => {
                    Op::CopyDevice { target, source, shape: copy.shape }
                }
                (Place::Host(_), Place::Device(target), HostUse { pulled: Some(transfer), .. }) => {
                    let data = cuda_wire::HostData::Pulled { transfer: *transfer };
                    Op::CopyIn { target, shape: copy.shape, data }
                }
                (Place::Device(source), Place::Host(_), HostUse { written: Some((transfer, _)), .. }) => {
                    Op::CopyOut { source, shape: copy.shape, transfer: *transfer }
                }
                (Place::Host(_), Place::Host(_), HostUse { function: Some(token), .. }) => {
                    Op::HostCall { token: *token }
                }
                _ => return Err(CudaError::UNKNOWN),
            },
            NodeOp::Fill { target, shape, element_bytes, value, .. } => {
                if let Some(token) = host.function {
                    return Ok(Op::HostCall { token });
                }
                // A capture takes any address, so it is checked here: only device memory can be filled.
                check_device_plane(target, shape)?;
                Op::Fill { target: *target, shape: *shape, element_bytes: *element_bytes, value: *value }
            }
            NodeOp::Host { .. } => Op::HostCall { token: host.function.ok_or(CudaError::UNKNOWN)? },
            NodeOp::Record { event, flags } => Op::Record { event: event.id, flags: *flags },
            NodeOp::Wait { event, flags } => Op::Wait { event: event.id, flags: *flags },
            NodeOp::Allocate { address, bytes, .. } => Op::Allocate { address: *address, bytes: *bytes },
            NodeOp::Free { address } => Op::Free { address: *address },
            NodeOp::MemoryOps { ops, .. } => Op::MemoryOps { ops: ops.clone() },
        })
    }

    /// About what it takes in a command.
    fn bytes(&self) -> usize {
        const PLAIN: usize = 96;
        const ATTRIBUTE: usize = 68;
        let item = match self.item.as_ref().map(|item| &item.op) {
            Some(NodeOp::Kernel(node)) => node.parameters.len() + node.attributes.len() * ATTRIBUTE,
            Some(NodeOp::MemoryOps { ops, .. }) => ops.len() * 24,
            _ => 0,
        };
        PLAIN + (self.after.len() + self.bodies.len()) * 4 + item
    }
}

/// Prepares this process for a node.
fn host_use(item: &Item, context: &Context) -> CuResult<HostUse> {
    match &item.op {
        NodeOp::Host { function, user_data } => {
            let (function, user_data) = (*function, *user_data);
            let run = super::managed::around_host_function(move || function.call(user_data));
            let token = context.link.offer_host_call(Box::new(run), false);
            Ok(HostUse { function: Some(token), ..HostUse::default() })
        }
        NodeOp::Copy { copy, .. } => match (copy.source, copy.target) {
            (Place::Host(source), Place::Host(target)) => {
                let run = move || target.write(0, &source.to_vec());
                let token = context.link.offer_host_call(Box::new(run), false);
                Ok(HostUse { function: Some(token), ..HostUse::default() })
            }
            (Place::Host(source), Place::Device(_)) => {
                Ok(HostUse { pulled: Some(context.link.offer(&source, false)), ..HostUse::default() })
            }
            (Place::Device(_), Place::Host(target)) => {
                Ok(HostUse { written: Some((context.link.name_repeated(), target)), ..HostUse::default() })
            }
            (Place::Device(_), Place::Device(_)) => Ok(HostUse::default()),
        },
        NodeOp::Fill { target, shape, element_bytes, value, .. } if memory_of(target.address).is_none() => {
            let fill =
                PinnedFill::new(target, shape, *element_bytes, *value).ok_or(CudaError::INVALID_VALUE)?;
            let token = context.link.offer_host_call(Box::new(move || fill.run()), false);
            Ok(HostUse { function: Some(token), ..HostUse::default() })
        }
        _ => Ok(HostUse::default()),
    }
}

/// Gets ready for what one launch writes into the program's memory.
fn expect_run(context: &Context, transfer: TransferId, region: &HostRegion) {
    let (address, span) = region.span();
    let Some(pinned) =
        client().ok().map(|client| &client.pinned).filter(|pinned| pinned.holds(address, span))
    else {
        return context.link.expect_named(transfer, region.bytes(), Box::new(*region), Box::new(|| {}));
    };
    let hazard = pinned.begin_write(address, span);
    let landed = Box::new(move || end_write(hazard));
    context.link.expect_named(transfer, region.bytes(), pinned.in_order(*region, hazard), landed);
}

fn memory_plan(nodes: &[ExecNode]) -> MemoryPlan {
    let ops = || nodes.iter().filter_map(|node| node.item.as_ref()).map(|item| &item.op);
    let allocated: Vec<u64> = ops()
        .filter_map(|op| match op {
            NodeOp::Allocate { address, .. } => Some(*address),
            _ => None,
        })
        .collect();
    let freed: Vec<u64> = ops()
        .filter_map(|op| match op {
            NodeOp::Free { address } => Some(*address),
            _ => None,
        })
        .collect();
    MemoryPlan::new(&allocated, &freed)
}

/// The context that a graph is made executable in. All of its nodes must be on one worker.
fn context_of(snapshot: &Snapshot<Item>) -> Result<Arc<Context>, InstantiateError> {
    let mut found: Option<Arc<Context>> = None;
    check_contexts(snapshot, &mut found)?;
    match found {
        Some(context) => {
            context.check()?;
            Ok(context)
        }
        None => Ok(super::current_context()?),
    }
}

fn check_contexts(
    snapshot: &Snapshot<Item>,
    found: &mut Option<Arc<Context>>,
) -> Result<(), InstantiateError> {
    for node in &snapshot.nodes {
        node.child.iter().chain(&node.bodies).try_for_each(|inner| check_contexts(inner, found))?;
        let Some(context) = node.payload.context() else { continue };
        let first = found.get_or_insert_with(|| Arc::clone(&context));
        let far = |place: &Place| match place {
            Place::Device(plane) => {
                let is_far = |device: &Device| {
                    let is_elsewhere = names_array(plane) && device.ordinal != context.device;
                    is_elsewhere || !Arc::ptr_eq(&device.link, &first.link)
                };
                device_of_plane(plane).is_some_and(is_far)
            }
            Place::Host(_) => false,
        };
        let elsewhere = match &node.payload.op {
            NodeOp::Copy { copy, .. } => far(&copy.source) || far(&copy.target),
            _ => false,
        };
        if elsewhere || !Arc::ptr_eq(&first.link, &context.link) {
            return Err(InstantiateError {
                error: CudaError::NOT_SUPPORTED,
                result: CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED,
                node: Some(node.id),
            });
        }
    }
    Ok(())
}

/// The event of a record or wait node.
pub(crate) fn event_of(item: &Item) -> Option<&Arc<Event>> {
    match &item.op {
        NodeOp::Record { event, .. } | NodeOp::Wait { event, .. } => Some(event),
        _ => None,
    }
}
