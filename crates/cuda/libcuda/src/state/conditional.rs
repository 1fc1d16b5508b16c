//! Conditional nodes of graphs, and the handles by which kernels set what they go by.
//!
//! A program passes a handle to kernels by value, in their parameters, long before a worker hears of the graph. So handles are
//! numbers of the client's choice, as likely to be met by chance as a key is guessed; a driver that has handles of its own puts
//! them in their place where it finds them in parameters.

use super::{Context, ExecNode, Given, GraphStore, InstantiateError, Item, NodeOp, Place};
use cuda_abi::{
    CU_GRAPH_NODE_TYPE_CONDITIONAL, CUDA_CONDITIONAL_NODE_PARAMS,
    CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED, CuResult, CudaError,
};
use cuda_client::graph::{GraphId, NodeId, store::Edge};
use cuda_wire::{BODIES_DEEP_MAX, condition};
use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

/// Bodies of one node, at most.
const BODIES_MAX: u32 = 4096;

/// A conditional node.
#[derive(Clone)]
pub(crate) struct ConditionalNode {
    /// What kernels know its value by.
    pub(crate) handle: u64,
    /// `CUgraphConditionalNodeType`.
    pub(crate) kind: u32,
    /// The value when the graph is launched.
    pub(crate) first: Option<u32>,
    /// The context of its kernels.
    pub(crate) context: Arc<Context>,
    /// Its bodies, as the program reads them.
    pub(crate) graphs: Arc<[u64]>,
}

impl ConditionalNode {
    /// What the program reads.
    pub(crate) fn params(&self) -> CUDA_CONDITIONAL_NODE_PARAMS {
        CUDA_CONDITIONAL_NODE_PARAMS {
            handle: self.handle,
            kind: self.kind,
            size: self.graphs.len() as u32,
            graphs: self.graphs.as_ptr() as u64,
            ctx: self.context.handle,
        }
    }
}

/// A handle that a program has.
struct Handle {
    graph: GraphId,
    context: Arc<Context>,
    first: Option<u32>,
    is_used: bool,
}

/// The handles of all graphs.
#[derive(Default)]
pub(crate) struct Handles(HashMap<u64, Handle>);

impl Handles {
    /// A new handle of a graph.
    pub(crate) fn create(&mut self, graph: GraphId, context: Arc<Context>, first: Option<u32>) -> u64 {
        let random = RandomState::new();
        let number = (0_u64..).map(|count| random.hash_one(count)).find(|number| {
            // Not one that could be an address or a small number.
            number >> 48 != 0 && !self.0.contains_key(number)
        });
        let number = number.unwrap_or(u64::MAX);
        self.0.insert(number, Handle { graph, context, first, is_used: false });
        number
    }

    /// Forgets those of graphs that are no more.
    pub(crate) fn forget(&mut self, is_there: impl Fn(GraphId) -> bool) {
        self.0.retain(|_, handle| is_there(handle.graph));
    }

    /// An error if a handle of a graph belongs to no node.
    pub(super) fn check_used(&self, graph: GraphId) -> Result<(), InstantiateError> {
        if self.0.values().all(|handle| handle.graph != graph || handle.is_used) {
            return Ok(());
        }
        let result = CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
        Err(InstantiateError { error: CudaError::INVALID_VALUE, result, node: None })
    }
}

impl GraphStore {
    /// Forgets handles whose graphs have ended.
    pub(crate) fn forget_handles(&mut self) {
        let graphs = &self.graphs;
        self.handles.forget(|graph| graphs.nodes(graph).is_ok());
    }

    /// Adds a conditional node; what the program reads comes back with it.
    pub(crate) fn add_conditional(
        &mut self,
        graph: GraphId,
        edges: &[Edge],
        given: &CUDA_CONDITIONAL_NODE_PARAMS,
        context: &Arc<Context>,
    ) -> CuResult<(NodeId, CUDA_CONDITIONAL_NODE_PARAMS)> {
        let &CUDA_CONDITIONAL_NODE_PARAMS { handle, kind, size, .. } = given;
        let is_size_good = match kind {
            condition::IF => matches!(size, 1 | 2),
            condition::WHILE => size == 1,
            condition::SWITCH => (1..=BODIES_MAX).contains(&size),
            _ => false,
        };
        let known = self.handles.0.get_mut(&handle).ok_or(CudaError::INVALID_VALUE)?;
        let is_here = self.graphs.is_within(graph, known.graph) && Arc::ptr_eq(&known.context, context);
        if !is_size_good || !is_here || known.is_used {
            return Err(CudaError::INVALID_VALUE);
        }
        let (first, context) = (known.first, Arc::clone(context));
        let mut made = None;
        let kind_of_node = CU_GRAPH_NODE_TYPE_CONDITIONAL;
        let node = self.graphs.add_conditional(graph, edges, kind_of_node, size as usize, |bodies| {
            let graphs = bodies.iter().map(|body| body.0).collect();
            let node = ConditionalNode { handle, kind, first, context, graphs };
            made = Some(node.params());
            Item::new(NodeOp::Conditional(node), Given::Nothing)
        })?;
        known.is_used = true;
        Ok((node, made.ok_or(CudaError::UNKNOWN)?))
    }
}

/// Bodies hold kernels, fills, copies on the device and further conditional nodes, and are not too deep in each other.
pub(super) fn check_bodies(nodes: &[ExecNode]) -> CuResult<()> {
    if nodes.iter().all(|node| node.bodies.is_empty()) {
        return Ok(());
    }
    check_level(nodes, 0..nodes.len(), 0)
}

fn check_level(nodes: &[ExecNode], range: std::ops::Range<usize>, depth: usize) -> CuResult<()> {
    let here = cuda_wire::level(range, |index| &nodes[index].bodies).ok_or(CudaError::UNKNOWN)?;
    if depth > BODIES_DEEP_MAX {
        return Err(CudaError::NOT_SUPPORTED);
    }
    for node in here {
        let op = nodes[node.index].item.as_ref().map(|item| &item.op);
        let is_good = match op {
            None | Some(NodeOp::Empty | NodeOp::Kernel(_) | NodeOp::Fill { .. } | NodeOp::Conditional(_)) => {
                true
            }
            Some(NodeOp::Copy { copy, .. }) => {
                matches!((copy.source, copy.target), (Place::Device(_), Place::Device(_)))
            }
            Some(_) => false,
        };
        if depth > 0 && !is_good {
            // As an H200 answers for a host function.
            return Err(CudaError::INVALID_VALUE);
        }
        node.bodies.into_iter().try_for_each(|body| check_level(nodes, body, depth + 1))?;
    }
    Ok(())
}
