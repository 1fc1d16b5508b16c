//! Executable graphs: their latest nodes, kept as bytes.

use super::{Manifest, Told, tags::COPY_OUT};
use cuda_wire::{ContextId, GraphNode, Op, Reader, TransferId, Wire};

/// An executable graph.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    pub(super) context: ContextId,
    pub(super) nodes: Vec<Node>,
    /// What the program was told when it made the graph.
    pub(super) told: Option<Told>,
}

/// One node; its operation as the wire has it.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) op: Vec<u8>,
    pub(super) after: Vec<u32>,
    pub(super) enabled: bool,
}

impl Node {
    pub(super) fn new(node: &GraphNode<'_>) -> Self {
        Self { op: node.op.to_bytes(), after: node.after.clone(), enabled: node.enabled }
    }

    /// The operation. `None` cannot happen: the bytes were made from one.
    pub(super) fn op(&self) -> Option<Op<'_>> {
        Op::take(&mut Reader::new(&self.op)).ok()
    }
}

impl Graph {
    /// Replaces all nodes, if the graph keeps its shape.
    pub(super) fn update(&mut self, nodes: &[GraphNode<'_>]) {
        if nodes.len() == self.nodes.len() {
            self.nodes = nodes.iter().map(Node::new).collect();
        }
    }

    pub(super) fn set_node(&mut self, index: u32, op: &Op<'_>, enabled: bool) {
        if let Some(node) = self.nodes.get_mut(index as usize) {
            node.op = op.to_bytes();
            node.enabled = enabled;
        }
    }

    /// Operations that a launch runs and whose tag is one of `tags`. All others are not read: a graph may have thousands
    /// of nodes and be launched thousands of times between two cuts.
    pub(super) fn active(&self, tags: &'static [u8]) -> impl Iterator<Item = Op<'_>> {
        let wanted = |node: &&Node| node.enabled && node.op.first().is_some_and(|tag| tags.contains(tag));
        self.nodes.iter().filter(wanted).filter_map(Node::op)
    }

    /// Transfers to the host that a launch makes, without the launch's number.
    pub(super) fn copies_out(&self) -> impl Iterator<Item = TransferId> + '_ {
        self.active(&[COPY_OUT]).filter_map(|op| match op {
            Op::CopyOut { transfer, .. } => Some(transfer),
            _ => None,
        })
    }
}

impl Manifest {
    /// Whether everything that the nodes name is there.
    pub(super) fn has_names_of_all(&self, nodes: &[GraphNode<'_>]) -> bool {
        nodes.iter().all(|node| self.has_names_of(&node.op))
    }

    /// Whether everything that an operation names by a name of its own is still there.
    pub(super) fn has_names_of(&self, op: &Op<'_>) -> bool {
        match op {
            Op::Launch { kernel, .. } => self.module_order.contains_key(&kernel.module),
            Op::Record { event, .. } | Op::Wait { event, .. } => self.events.contains_key(event),
            _ => true,
        }
    }
}
