//! Graphs. A launch puts the nodes into the stream one by one, the last added first wherever the edges allow it.

use super::{
    Fake, State, handle, put,
    work::{Item, Work},
};
use crate::sys::{
    BatchMemOpNode, Context, Copy3D, Event, Graph, GraphExec, GraphNode, HostNode, KernelNode, MemsetNode,
    NODE_CONDITIONAL, NodeParams, Stream,
};
use cuda_abi::{CuResult, CudaError};
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};

#[derive(Debug, Default)]
pub(super) struct GraphsState {
    pub(super) graphs: HashMap<Graph, Vec<Node>>,
    /// Work in the order it runs.
    pub(super) execs: HashMap<GraphExec, Vec<Work>>,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    raw: GraphNode,
    after: Vec<GraphNode>,
    work: Vec<Work>,
    attributes: Vec<u32>,
    /// Of a conditional node, in memory that stays as the driver's does.
    bodies: Vec<Graph>,
}

impl GraphsState {
    /// The nodes of a graph, where a conditional one does what its first body does, once.
    fn with_bodies(&self, graph: Graph) -> Option<Vec<Node>> {
        let mut nodes = self.graphs.get(&graph)?.clone();
        for node in &mut nodes {
            if let Some(body) = node.bodies.first() {
                node.work = order(self.with_bodies(*body)?);
            }
        }
        Some(nodes)
    }

    fn remove(&mut self, graph: Graph) -> Option<()> {
        let nodes = self.graphs.remove(&graph)?;
        for body in nodes.iter().flat_map(|node| &node.bodies) {
            self.remove(*body);
        }
        Some(())
    }
}

/// Where a node is added: the place of its handle, the graph, and the nodes before it.
type Spot = (*mut GraphNode, Graph, *const GraphNode, usize);

/// The latest node whose predecessors have all run, again and again.
fn order(mut left: Vec<Node>) -> Vec<Work> {
    let mut done = Vec::new();
    let mut work = Vec::new();
    while !left.is_empty() {
        let is_ready = |node: &Node| node.after.iter().all(|before| done.contains(before));
        let at = left.iter().rposition(is_ready).expect("a node is added after those it follows");
        let mut node = left.remove(at);
        if let [Work::Launch(launch)] = node.work.as_mut_slice() {
            launch.attributes = node.attributes;
        }
        done.push(node.raw);
        work.extend(node.work);
    }
    work
}

impl Fake {
    fn add(&self, (out, graph, after, count): Spot, work: Vec<Work>) -> CuResult<()> {
        // SAFETY: the caller promises `count` nodes.
        let after = (0..count).map(|at| unsafe { after.add(at).read() }).collect();
        let mut state = self.lock();
        let nodes = state.graphs.graphs.get_mut(&graph).ok_or(CudaError::INVALID_HANDLE)?;
        let raw = GraphNode(handle());
        nodes.push(Node { raw, after, work, attributes: Vec::new(), bodies: Vec::new() });
        put(out, raw);
        Ok(())
    }

    pub(crate) fn graph_create(&self, out: *mut Graph, _flags: c_uint) -> CuResult<()> {
        let graph = Graph(handle());
        self.lock().graphs.graphs.insert(graph, Vec::new());
        put(out, graph);
        Ok(())
    }

    pub(crate) fn graph_destroy(&self, graph: Graph) -> CuResult<()> {
        let mut state = self.lock();
        if state.graphs.remove(graph).is_none() {
            state.violation("cuGraphDestroy of a graph that is not there");
            return Err(CudaError::INVALID_HANDLE);
        }
        Ok(())
    }

    pub(crate) fn graph_add_empty(
        &self,
        node: *mut GraphNode,
        graph: Graph,
        after: *const GraphNode,
        count: usize,
    ) -> CuResult<()> {
        self.add((node, graph, after, count), Vec::new())
    }

    /// Handles are small numbers here.
    pub(crate) fn graph_conditional_handle(
        &self,
        out: *mut u64,
        graph: Graph,
        _context: Context,
        value: c_uint,
        flags: c_uint,
    ) -> CuResult<()> {
        let state = self.lock();
        state.graphs.graphs.get(&graph).ok_or(CudaError::INVALID_HANDLE)?;
        put(out, 0xc0 | u64::from(value) << 8 | u64::from(flags) << 16);
        Ok(())
    }

    pub(crate) fn graph_add_node(
        &self,
        node: *mut GraphNode,
        graph: Graph,
        after: *const GraphNode,
        _edges: *const c_void,
        count: usize,
        params: *mut NodeParams,
    ) -> CuResult<()> {
        // SAFETY: valid for the call, as the caller promises.
        let params = unsafe { &mut *params };
        if params.kind != NODE_CONDITIONAL || params.handle & 0xff != 0xc0 {
            return Err(CudaError::INVALID_VALUE);
        }
        self.add((node, graph, after, count), Vec::new())?;
        let mut bodies = vec![Graph::default(); params.size as usize];
        for body in &mut bodies {
            self.graph_create(body, 0)?;
        }
        let mut state = self.lock();
        let nodes = state.graphs.graphs.get_mut(&graph).ok_or(CudaError::INVALID_HANDLE)?;
        if let Some(last) = nodes.last_mut() {
            last.bodies = bodies;
            params.bodies = last.bodies.as_mut_ptr();
        }
        Ok(())
    }

    pub(crate) fn graph_add_kernel(
        &self,
        node: *mut GraphNode,
        graph: Graph,
        after: *const GraphNode,
        count: usize,
        params: *const KernelNode,
    ) -> CuResult<()> {
        // SAFETY: valid for the call, as the caller promises.
        let params = unsafe { params.read() };
        let state = self.lock();
        state.function(params.function)?.loaded()?.takes(params.shared_bytes)?;
        let launch = state.launched(params.function, params.grid, &[], params.extra)?;
        drop(state);
        self.add((node, graph, after, count), vec![Work::Launch(launch)])
    }

    pub(crate) fn graph_kernel_attribute(
        &self,
        node: GraphNode,
        attribute: c_uint,
        _value: *const [u8; 64],
    ) -> CuResult<()> {
        let mut state = self.lock();
        let mut nodes = state.graphs.graphs.values_mut().flatten();
        let found = nodes.find(|other| other.raw == node).ok_or(CudaError::INVALID_HANDLE)?;
        found.attributes.push(attribute);
        Ok(())
    }

    pub(crate) fn graph_add_memset(
        &self,
        node: *mut GraphNode,
        graph: Graph,
        after: *const GraphNode,
        count: usize,
        params: *const MemsetNode,
        _context: Context,
    ) -> CuResult<()> {
        // SAFETY: valid for the call, as the caller promises.
        let MemsetNode { target, pitch, value, element_bytes, width, height } = unsafe { params.read() };
        if !matches!(element_bytes, 1 | 2 | 4) {
            return Err(CudaError::INVALID_VALUE);
        }
        let element = value.to_le_bytes()[..element_bytes as usize].to_vec();
        self.add(
            (node, graph, after, count),
            vec![Work::Fill { target, pitch, element, count: width, height }],
        )
    }

    /// Host memory of a copy node must be registered: bytes of pageable memory would be taken at each run.
    pub(crate) fn graph_add_copy(
        &self,
        node: *mut GraphNode,
        graph: Graph,
        after: *const GraphNode,
        count: usize,
        params: *const Copy3D,
        _context: Context,
    ) -> CuResult<()> {
        // SAFETY: valid for the call, as the caller promises.
        let copy = unsafe { params.read() };
        // Host memory in a graph is read when the graph runs.
        let Some(copying) = self.lock().copying(&copy)? else { return Err(CudaError::INVALID_VALUE) };
        let work = Work::Copy(copying);
        self.add((node, graph, after, count), vec![work])
    }

    pub(crate) fn graph_add_host(
        &self,
        node: *mut GraphNode,
        graph: Graph,
        after: *const GraphNode,
        count: usize,
        params: *const HostNode,
    ) -> CuResult<()> {
        // SAFETY: valid for the call, as the caller promises.
        let HostNode { function, argument } = unsafe { params.read() };
        let work = Work::Host { function, argument: argument.expose_provenance() };
        self.add((node, graph, after, count), vec![work])
    }

    pub(crate) fn graph_add_record(
        &self,
        node: *mut GraphNode,
        graph: Graph,
        after: *const GraphNode,
        count: usize,
        event: Event,
    ) -> CuResult<()> {
        self.lock().event(event)?;
        self.add((node, graph, after, count), vec![Work::Record { event, ticket: 0 }])
    }

    pub(crate) fn graph_add_wait(
        &self,
        node: *mut GraphNode,
        graph: Graph,
        after: *const GraphNode,
        count: usize,
        event: Event,
    ) -> CuResult<()> {
        self.lock().event(event)?;
        self.add((node, graph, after, count), vec![Work::WaitEvent { event, ticket: 0 }])
    }

    pub(crate) fn graph_add_memory_ops(
        &self,
        node: *mut GraphNode,
        graph: Graph,
        after: *const GraphNode,
        count: usize,
        params: *const BatchMemOpNode,
    ) -> CuResult<()> {
        // SAFETY: valid for the call with its list, as the caller promises.
        let ops = unsafe {
            let params = params.read();
            std::slice::from_raw_parts(params.ops.cast_const(), params.count as usize)
        };
        self.add((node, graph, after, count), Work::of_memory_ops(ops)?)
    }

    pub(crate) fn graph_instantiate(&self, out: *mut GraphExec, graph: Graph, _flags: u64) -> CuResult<()> {
        let mut state = self.lock();
        let nodes = state.graphs.with_bodies(graph).ok_or(CudaError::INVALID_HANDLE)?;
        let exec = GraphExec(handle());
        state.graphs.execs.insert(exec, order(nodes));
        put(out, exec);
        Ok(())
    }

    /// Records and waits get their tickets here, in the order of the work.
    pub(crate) fn graph_launch(&self, exec: GraphExec, stream: Stream) -> CuResult<()> {
        let mut state = self.lock();
        let work = state.graphs.execs.get(&exec).ok_or(CudaError::INVALID_HANDLE)?.clone();
        state.stream(stream)?;
        for work in work {
            let work = state.with_ticket(work)?;
            state.next_ticket += 1;
            let number = state.next_ticket;
            state.stream(stream)?.queue.push_back(Item { number, work });
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    pub(crate) fn graph_upload(&self, exec: GraphExec, stream: Stream) -> CuResult<()> {
        let mut state = self.lock();
        state.graphs.execs.get(&exec).ok_or(CudaError::INVALID_HANDLE)?;
        state.stream(stream).map(drop)
    }

    /// A launch under way goes on to its end.
    pub(crate) fn graph_exec_destroy(&self, exec: GraphExec) -> CuResult<()> {
        let mut state = self.lock();
        if state.graphs.execs.remove(&exec).is_none() {
            state.violation("cuGraphExecDestroy of a graph that is not there");
            return Err(CudaError::INVALID_HANDLE);
        }
        Ok(())
    }
}

impl State {
    fn with_ticket(&mut self, work: Work) -> CuResult<Work> {
        Ok(match work {
            Work::Record { event, .. } => Work::Record { event, ticket: self.record(event)? },
            Work::WaitEvent { event, .. } => match self.event(event)?.latest {
                0 => Work::Nothing,
                ticket => Work::WaitEvent { event, ticket },
            },
            other => other,
        })
    }
}
