//! All graphs of a process, their nodes and edges.
//!
//! Cycles: the driver lets a program make one and refuses to instantiate it, so edges are added without a search.
//!
//! Orders that programs see, as the driver gives them:
//!
//! - nodes: as they were made;
//! - edges: by upstream node as made, then as they were added;
//! - dependencies of a node: as added, but taking one out puts the last in its place;
//! - roots: the youngest first; a node that loses its last dependency is young again.

use super::ids::{EdgeData, GraphId, NodeId};
use cuda_abi::{CuResult, CudaError};
use std::collections::{BTreeMap, HashMap};

/// What a node does, as far as graphs care.
pub trait Payload: Clone {
    /// `CUgraphNodeType`.
    fn node_type(&self) -> u32;

    /// Whether it allocates or frees memory. A graph with such a node has one life: it can be neither cloned nor
    /// embedded, and the node and its edges stay.
    fn owns_memory(&self) -> bool;

    /// Whether an executable node of this kind can go on as `new`, which has the same type. The other way round it
    /// says why not.
    fn may_become(&self, new: &Self) -> Result<(), super::UpdateResult>;
}

/// `CU_GRAPH_NODE_TYPE_KERNEL`.
pub const KERNEL_NODE: u32 = 0;

/// One edge seen from a node: the node at its other end, and what it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The other node.
    pub node: NodeId,
    /// What it carries.
    pub data: EdgeData,
}

#[derive(Clone, Debug)]
pub(super) struct Node<P> {
    pub(super) graph: GraphId,
    pub(super) payload: P,
    /// The graph that a child graph node embeds; it belongs to the node.
    pub(super) child: Option<GraphId>,
    /// The bodies of a conditional node; they belong to it.
    pub(super) bodies: Vec<GraphId>,
    pub(super) before: Vec<Edge>,
    pub(super) after: Vec<Edge>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    /// In the order they were made, since ids grow.
    pub(super) nodes: Vec<NodeId>,
    /// Oldest first.
    roots: Vec<NodeId>,
    /// The node that embeds it.
    pub(super) embedded_in: Option<NodeId>,
    /// Which node of the original became which of this clone.
    clone_of: HashMap<NodeId, NodeId>,
    /// References to user objects that end with the graph.
    pub(super) objects: BTreeMap<u64, u32>,
    /// Nodes that own memory, its children's not counted: they have none.
    memory_nodes: usize,
}

/// All graphs of a process.
#[derive(Clone, Debug)]
pub struct Graphs<P> {
    pub(super) graphs: HashMap<GraphId, Graph>,
    pub(super) nodes: HashMap<NodeId, Node<P>>,
    next_graph: u64,
    next_node: u64,
}

impl<P> Default for Graphs<P> {
    fn default() -> Self {
        Self { graphs: HashMap::new(), nodes: HashMap::new(), next_graph: 1, next_node: 1 }
    }
}

/// References to user objects, by object.
pub type Objects = BTreeMap<u64, u32>;

impl<P: Payload> Graphs<P> {
    /// An empty graph.
    pub fn create(&mut self) -> GraphId {
        let id = GraphId::of_serial(self.next_graph);
        self.next_graph += 1;
        self.graphs.insert(id, Graph::default());
        id
    }

    /// Ends a graph of its own with all its nodes; what it held is handed back. An embedded graph ends with its node.
    pub fn destroy(&mut self, graph: GraphId) -> CuResult<Objects> {
        if self.graph(graph)?.embedded_in.is_some() {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut objects = Objects::new();
        self.remove_graph(graph, &mut objects);
        Ok(objects)
    }

    fn remove_graph(&mut self, graph: GraphId, objects: &mut Objects) {
        let Some(removed) = self.graphs.remove(&graph) else { return };
        add_objects(objects, &removed.objects);
        for node in removed.nodes {
            self.remove_inner(node, objects);
        }
    }

    /// Takes a node from the table with the graphs that belong to it.
    fn remove_inner(&mut self, node: NodeId, objects: &mut Objects) {
        let Some(Node { child, bodies, .. }) = self.nodes.remove(&node) else { return };
        child.into_iter().chain(bodies).for_each(|inner| self.remove_graph(inner, objects));
    }

    /// A copy with copies of all embedded graphs. It holds what the original holds.
    pub fn clone_graph(&mut self, original: GraphId) -> CuResult<GraphId> {
        if self.owns_memory(original)? || self.is_conditional(original)? {
            return Err(CudaError::NOT_SUPPORTED);
        }
        Ok(self.copy(original))
    }

    /// Whether a node of it, or of a graph that it embeds, is conditional: its value is known by one name.
    pub fn is_conditional(&self, graph: GraphId) -> CuResult<bool> {
        for node in self.nodes(graph)? {
            let node = self.node(*node)?;
            let is_inner = node.child.map_or(Ok(false), |child| self.is_conditional(child))?;
            if is_inner || !node.bodies.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn copy(&mut self, original: GraphId) -> GraphId {
        let copy = self.create();
        let Some(from) = self.graphs.get(&original) else { return copy };
        let (nodes, objects) = (from.nodes.clone(), from.objects.clone());
        let mut names = HashMap::with_capacity(nodes.len());
        for old in &nodes {
            let Some(node) = self.nodes.get(old) else { continue };
            let (payload, child) = (node.payload.clone(), node.child);
            let child = child.map(|child| self.copy(child));
            let new = self.insert(copy, payload, child);
            names.insert(*old, new);
        }
        for (old, new) in &names {
            let rename = |edge: &Edge| Some(Edge { node: *names.get(&edge.node)?, data: edge.data });
            let Some(node) = self.nodes.get(old) else { continue };
            let before: Vec<Edge> = node.before.iter().filter_map(rename).collect();
            let after: Vec<Edge> = node.after.iter().filter_map(rename).collect();
            if let Some(node) = self.nodes.get_mut(new) {
                (node.before, node.after) = (before, after);
            }
        }
        if let Some(graph) = self.graphs.get_mut(&copy) {
            graph.roots.retain(|root| self.nodes.get(root).is_some_and(|node| node.before.is_empty()));
            graph.clone_of = names;
            graph.objects = objects;
        }
        copy
    }

    /// The node of `clone` that `original` became. Only clones of the original's very graph know it.
    pub fn find_in_clone(&self, original: NodeId, clone: GraphId) -> CuResult<NodeId> {
        self.node(original)?;
        let copy = *self.graph(clone)?.clone_of.get(&original).ok_or(CudaError::INVALID_VALUE)?;
        self.node(copy).map(|_| copy)
    }

    /// A new node that runs after `dependencies`.
    pub fn add(&mut self, graph: GraphId, dependencies: &[Edge], payload: P) -> CuResult<NodeId> {
        self.check_dependencies(graph, dependencies, payload.node_type())?;
        Ok(self.add_checked(graph, dependencies, payload, None))
    }

    /// A new node that runs a copy of `child`.
    pub fn add_child(
        &mut self,
        graph: GraphId,
        dependencies: &[Edge],
        payload: P,
        child: GraphId,
    ) -> CuResult<NodeId> {
        self.check_dependencies(graph, dependencies, payload.node_type())?;
        let child = self.clone_graph(child)?;
        Ok(self.add_checked(graph, dependencies, payload, Some(child)))
    }

    /// A new node that runs `child` itself, which belongs to the node from now on.
    pub fn add_moved_child(
        &mut self,
        graph: GraphId,
        dependencies: &[Edge],
        payload: P,
        child: GraphId,
    ) -> CuResult<NodeId> {
        self.check_dependencies(graph, dependencies, payload.node_type())?;
        if self.owns_memory(child)? {
            return Err(CudaError::NOT_SUPPORTED);
        }
        if self.graph(child)?.embedded_in.is_some() || self.is_within(graph, child) {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(self.add_checked(graph, dependencies, payload, Some(child)))
    }

    /// A new node that has so many bodies, empty at first, which `payload` is told.
    pub fn add_conditional(
        &mut self,
        graph: GraphId,
        dependencies: &[Edge],
        node_type: u32,
        bodies: usize,
        payload: impl FnOnce(&[GraphId]) -> P,
    ) -> CuResult<NodeId> {
        self.check_dependencies(graph, dependencies, node_type)?;
        let bodies: Vec<GraphId> = (0..bodies).map(|_| self.create()).collect();
        let id = self.add_checked(graph, dependencies, payload(&bodies), None);
        for body in &bodies {
            if let Some(body) = self.graphs.get_mut(body) {
                body.embedded_in = Some(id);
            }
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.bodies = bodies;
        }
        Ok(id)
    }

    /// Whether `graph` is `outer` or embedded in it at any depth.
    pub fn is_within(&self, graph: GraphId, outer: GraphId) -> bool {
        let parent = |graph: &GraphId| Some(self.nodes.get(&self.graphs.get(graph)?.embedded_in?)?.graph);
        std::iter::successors(Some(graph), parent).any(|graph| graph == outer)
    }

    fn check_dependencies(&self, graph: GraphId, dependencies: &[Edge], node_type: u32) -> CuResult<()> {
        self.graph(graph)?;
        for (index, edge) in dependencies.iter().enumerate() {
            let from = self.node(edge.node)?;
            if from.graph != graph || dependencies[..index].iter().any(|other| other.node == edge.node) {
                return Err(CudaError::INVALID_VALUE);
            }
            let between_kernels = from.payload.node_type() == KERNEL_NODE && node_type == KERNEL_NODE;
            edge.data.check(between_kernels)?;
        }
        Ok(())
    }

    fn add_checked(&mut self, graph: GraphId, before: &[Edge], payload: P, child: Option<GraphId>) -> NodeId {
        let id = self.insert(graph, payload, child);
        for edge in before {
            self.connect(edge.node, id, edge.data);
        }
        id
    }

    fn insert(&mut self, graph: GraphId, payload: P, child: Option<GraphId>) -> NodeId {
        let id = NodeId::of_serial(self.next_node);
        self.next_node += 1;
        if let Some(child) = child.and_then(|child| self.graphs.get_mut(&child)) {
            child.embedded_in = Some(id);
        }
        if let Some(graph) = self.graphs.get_mut(&graph) {
            graph.nodes.push(id);
            graph.roots.push(id);
            graph.memory_nodes += usize::from(payload.owns_memory());
        }
        self.nodes.insert(
            id,
            Node { graph, payload, child, bodies: Vec::new(), before: Vec::new(), after: Vec::new() },
        );
        id
    }

    /// Puts an edge between two nodes of `graph` that have none yet.
    pub fn add_edge(&mut self, graph: GraphId, from: NodeId, to: NodeId, data: EdgeData) -> CuResult<()> {
        self.graph(graph)?;
        let (upstream, downstream) = (self.node(from)?, self.node(to)?);
        let foreign = upstream.graph != graph || downstream.graph != graph;
        if foreign || from == to || upstream.after.iter().any(|edge| edge.node == to) {
            return Err(CudaError::INVALID_VALUE);
        }
        let types = (upstream.payload.node_type(), downstream.payload.node_type());
        data.check(types == (KERNEL_NODE, KERNEL_NODE))?;
        self.connect(from, to, data);
        Ok(())
    }

    fn connect(&mut self, from: NodeId, to: NodeId, data: EdgeData) {
        if let Some(upstream) = self.nodes.get_mut(&from) {
            upstream.after.push(Edge { node: to, data });
        }
        let Some(downstream) = self.nodes.get_mut(&to) else { return };
        downstream.before.push(Edge { node: from, data });
        if downstream.before.len() == 1
            && let Some(graph) = self.graphs.get_mut(&downstream.graph)
        {
            // A new root is at the end, so this is short for all but programs that tie old roots together.
            if let Some(place) = graph.roots.iter().rposition(|root| *root == to) {
                graph.roots.remove(place);
            }
        }
    }

    /// Takes an edge out. Without `data`, whatever it carries.
    pub fn remove_edge(
        &mut self,
        graph: GraphId,
        from: NodeId,
        to: NodeId,
        data: Option<EdgeData>,
    ) -> CuResult<()> {
        self.graph(graph)?;
        let (upstream, downstream) = (self.node(from)?, self.node(to)?);
        if upstream.graph != graph || downstream.graph != graph {
            return Err(CudaError::INVALID_VALUE);
        }
        let edge = upstream.after.iter().find(|edge| edge.node == to).ok_or(CudaError::INVALID_VALUE)?;
        if data.is_some_and(|data| data != edge.data) {
            return Err(CudaError::INVALID_VALUE);
        }
        if upstream.payload.owns_memory() || downstream.payload.owns_memory() {
            return Err(CudaError::NOT_SUPPORTED);
        }
        self.disconnect(from, to);
        Ok(())
    }

    fn disconnect(&mut self, from: NodeId, to: NodeId) {
        if let Some(upstream) = self.nodes.get_mut(&from)
            && let Some(place) = upstream.after.iter().position(|edge| edge.node == to)
        {
            upstream.after.remove(place);
        }
        if let Some(downstream) = self.nodes.get_mut(&to)
            && let Some(place) = downstream.before.iter().position(|edge| edge.node == from)
        {
            downstream.before.swap_remove(place);
            if downstream.before.is_empty()
                && let Some(graph) = self.graphs.get_mut(&downstream.graph)
            {
                graph.roots.push(to);
            }
        }
    }

    /// Takes a node out with its edges; what its embedded graph held is handed back.
    pub fn destroy_node(&mut self, node: NodeId) -> CuResult<Objects> {
        let found = self.node(node)?;
        if found.payload.owns_memory() {
            return Err(CudaError::NOT_SUPPORTED);
        }
        let graph = found.graph;
        let before: Vec<NodeId> = found.before.iter().map(|edge| edge.node).collect();
        let after: Vec<NodeId> = found.after.iter().map(|edge| edge.node).collect();
        before.into_iter().for_each(|from| self.disconnect(from, node));
        after.into_iter().for_each(|to| self.disconnect(node, to));
        if let Some(graph) = self.graphs.get_mut(&graph) {
            graph.nodes.retain(|other| *other != node);
            graph.roots.retain(|other| *other != node);
        }
        let mut objects = Objects::new();
        self.remove_inner(node, &mut objects);
        Ok(objects)
    }

    /// Its nodes, as they were made.
    pub fn nodes(&self, graph: GraphId) -> CuResult<&[NodeId]> {
        Ok(&self.graph(graph)?.nodes)
    }

    /// Its nodes without dependencies, youngest first.
    pub fn roots(&self, graph: GraphId) -> CuResult<Vec<NodeId>> {
        Ok(self.graph(graph)?.roots.iter().rev().copied().collect())
    }

    /// Its edges: from, to and what they carry.
    pub fn edges(&self, graph: GraphId) -> CuResult<Vec<(NodeId, NodeId, EdgeData)>> {
        let nodes = self.graph(graph)?.nodes.iter();
        Ok(nodes
            .filter_map(|id| Some((id, self.nodes.get(id)?)))
            .flat_map(|(id, node)| node.after.iter().map(|edge| (*id, edge.node, edge.data)))
            .collect())
    }

    /// The edges into a node.
    pub fn dependencies(&self, node: NodeId) -> CuResult<&[Edge]> {
        Ok(&self.node(node)?.before)
    }

    /// The edges out of a node.
    pub fn dependents(&self, node: NodeId) -> CuResult<&[Edge]> {
        Ok(&self.node(node)?.after)
    }

    /// What a node does.
    pub fn payload(&self, node: NodeId) -> CuResult<&P> {
        Ok(&self.node(node)?.payload)
    }

    /// What a node does, to be changed. Its type and whether it owns memory must stay.
    pub fn payload_mut(&mut self, node: NodeId) -> CuResult<&mut P> {
        Ok(&mut self.nodes.get_mut(&node).ok_or(CudaError::INVALID_VALUE)?.payload)
    }

    /// The graph a node is in.
    pub fn graph_of(&self, node: NodeId) -> CuResult<GraphId> {
        Ok(self.node(node)?.graph)
    }

    /// The graph that a child graph node embeds.
    pub fn child(&self, node: NodeId) -> CuResult<GraphId> {
        self.node(node)?.child.ok_or(CudaError::INVALID_VALUE)
    }

    /// Whether a graph belongs to a node of another.
    pub fn is_embedded(&self, graph: GraphId) -> CuResult<bool> {
        Ok(self.graph(graph)?.embedded_in.is_some())
    }

    /// Whether a node of it owns memory.
    pub fn owns_memory(&self, graph: GraphId) -> CuResult<bool> {
        Ok(self.graph(graph)?.memory_nodes != 0)
    }

    /// Lets a graph hold further references to a user object.
    pub fn retain_object(&mut self, graph: GraphId, object: u64, count: u32) -> CuResult<()> {
        let graph = self.graphs.get_mut(&graph).ok_or(CudaError::INVALID_VALUE)?;
        let held = graph.objects.entry(object).or_default();
        *held = held.checked_add(count).ok_or(CudaError::INVALID_VALUE)?;
        Ok(())
    }

    /// Takes references to a user object from a graph, as far as it has them.
    pub fn release_object(&mut self, graph: GraphId, object: u64, count: u32) -> CuResult<()> {
        let graph = self.graphs.get_mut(&graph).ok_or(CudaError::INVALID_VALUE)?;
        if let Some(held) = graph.objects.get_mut(&object) {
            *held = held.saturating_sub(count);
            if *held == 0 {
                graph.objects.remove(&object);
            }
        }
        Ok(())
    }

    /// What a graph and those embedded in it hold; an executable graph takes as many references for itself.
    pub fn objects(&self, graph: GraphId) -> CuResult<Objects> {
        let mut objects: Objects = self.graph(graph)?.objects.clone();
        for node in self.nodes(graph)? {
            let Some(node) = self.nodes.get(node) else { continue };
            for inner in node.child.iter().chain(&node.bodies) {
                add_objects(&mut objects, &self.objects(*inner)?);
            }
        }
        Ok(objects)
    }

    pub(super) fn graph(&self, graph: GraphId) -> CuResult<&Graph> {
        self.graphs.get(&graph).ok_or(CudaError::INVALID_VALUE)
    }

    pub(super) fn node(&self, node: NodeId) -> CuResult<&Node<P>> {
        self.nodes.get(&node).ok_or(CudaError::INVALID_VALUE)
    }
}

fn add_objects(all: &mut Objects, more: &Objects) {
    for (object, count) in more {
        let held = all.entry(*object).or_default();
        *held = held.saturating_add(*count);
    }
}
