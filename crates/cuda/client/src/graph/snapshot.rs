//! A graph as a value: nodes by number instead of by name, in an order it can run in, children laid flat.

use super::{
    ids::{EdgeData, GraphId, NodeId},
    store::{Graphs, Payload},
};
use cuda_abi::{CuResult, CudaError};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

/// A graph at one moment. Numbers count its nodes in the order they were made.
#[derive(Clone, Debug)]
pub struct Snapshot<P> {
    /// Its nodes, as they were made.
    pub nodes: Vec<SnapshotNode<P>>,
}

/// A node of a [`Snapshot`].
#[derive(Clone, Debug)]
pub struct SnapshotNode<P> {
    /// Its name in the graph.
    pub id: NodeId,
    /// What it does.
    pub payload: P,
    /// The graph it embeds.
    pub child: Option<Snapshot<P>>,
    /// The bodies of a conditional node.
    pub bodies: Vec<Snapshot<P>>,
    /// The nodes it waits for, in the order of its edges.
    pub before: Vec<(usize, EdgeData)>,
    /// How many wait for it.
    pub dependents: usize,
}

/// A graph as a list of nodes, each behind all it waits for. Embedded graphs are part of the list.
#[derive(Clone, Debug)]
pub struct Flat<P> {
    /// The list.
    pub nodes: Vec<FlatNode<P>>,
    places: HashMap<NodeId, u32>,
}

/// A node of a [`Flat`] list.
#[derive(Clone, Debug)]
pub struct FlatNode<P> {
    /// What it does; `None` for a place where edges of an embedded graph meet.
    pub payload: Option<P>,
    /// Places in the list that come before this one, ascending.
    pub after: Vec<u32>,
    /// How many nodes each of its bodies has. They lie right before it, body after body; no edge leads out of one.
    pub bodies: Vec<u32>,
}

impl<P> Flat<P> {
    /// Where a node is; a child graph node is where its embedded graph is done.
    pub fn place(&self, node: NodeId) -> CuResult<u32> {
        self.places.get(&node).copied().ok_or(CudaError::INVALID_VALUE)
    }

    /// All nodes with their places.
    pub fn places(&self) -> impl Iterator<Item = (NodeId, u32)> {
        self.places.iter().map(|(node, place)| (*node, *place))
    }
}

impl<P: Payload> Graphs<P> {
    /// The graph as a value.
    pub fn snapshot(&self, graph: GraphId) -> CuResult<Snapshot<P>> {
        let ids = self.nodes(graph)?;
        let numbers: HashMap<NodeId, usize> =
            ids.iter().enumerate().map(|(number, id)| (*id, number)).collect();
        let mut nodes = Vec::with_capacity(ids.len());
        for id in ids {
            let node = self.node(*id)?;
            let before = node.before.iter().map(|edge| (numbers[&edge.node], edge.data)).collect();
            let child = node.child.map(|child| self.snapshot(child)).transpose()?;
            let bodies = node.bodies.iter().map(|body| self.snapshot(*body)).collect::<CuResult<Vec<_>>>()?;
            let (payload, dependents) = (node.payload.clone(), node.after.len());
            nodes.push(SnapshotNode { id: *id, payload, child, bodies, before, dependents });
        }
        Ok(Snapshot { nodes })
    }
}

impl<P: Payload> Snapshot<P> {
    /// Numbers in an order in which each node is behind all it waits for, otherwise as made; `INVALID_VALUE` if the
    /// edges run in a circle.
    pub fn order(&self) -> CuResult<Vec<usize>> {
        let forward =
            |(number, node): (usize, &SnapshotNode<P>)| node.before.iter().all(|edge| edge.0 < number);
        if self.nodes.iter().enumerate().all(forward) {
            return Ok((0..self.nodes.len()).collect());
        }
        let mut waits: Vec<usize> = self.nodes.iter().map(|node| node.before.len()).collect();
        let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for (number, node) in self.nodes.iter().enumerate() {
            node.before.iter().for_each(|edge| dependents[edge.0].push(number));
        }
        let ready = waits.iter().enumerate().filter(|(_, waits)| **waits == 0);
        let mut ready: BinaryHeap<Reverse<usize>> = ready.map(|(number, _)| Reverse(number)).collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(Reverse(number)) = ready.pop() {
            order.push(number);
            for dependent in &dependents[number] {
                waits[*dependent] -= 1;
                if waits[*dependent] == 0 {
                    ready.push(Reverse(*dependent));
                }
            }
        }
        if order.len() == self.nodes.len() { Ok(order) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// The nodes that nothing waits for, youngest first.
    pub fn exits(&self) -> Vec<usize> {
        (0..self.nodes.len()).rev().filter(|number| self.nodes[*number].dependents == 0).collect()
    }

    /// The node of this name, here or in an embedded graph.
    pub fn node_mut(&mut self, id: NodeId) -> Option<&mut SnapshotNode<P>> {
        // Names grow with the order of making, but an embedded graph is younger than the nodes beside its node.
        if let Ok(place) = self.nodes.binary_search_by_key(&id, |node| node.id) {
            return self.nodes.get_mut(place);
        }
        let inner = self.nodes.iter_mut().flat_map(|node| node.child.iter_mut().chain(&mut node.bodies));
        inner.into_iter().find_map(|inner| inner.node_mut(id))
    }

    /// The list that a worker gets.
    pub fn flatten(&self) -> CuResult<Flat<P>> {
        let mut flat = Flat { nodes: Vec::with_capacity(self.nodes.len()), places: HashMap::new() };
        self.flatten_into(&mut flat, &[])?;
        Ok(flat)
    }

    /// Appends the graph, its roots behind `entry`, and returns the places of its exits.
    fn flatten_into(&self, flat: &mut Flat<P>, entry: &[u32]) -> CuResult<Vec<u32>> {
        let mut done = vec![0; self.nodes.len()];
        let mut exits = Vec::new();
        for number in self.order()? {
            let node = &self.nodes[number];
            let mut after: Vec<u32> = node.before.iter().map(|edge| done[edge.0]).collect();
            if after.is_empty() {
                after.extend(entry);
            }
            after.sort_unstable();
            let place = match &node.child {
                None => {
                    let mut bodies = Vec::with_capacity(node.bodies.len());
                    for body in &node.bodies {
                        let start = flat.nodes.len();
                        body.flatten_into(flat, &[])?;
                        bodies.push((flat.nodes.len() - start) as u32);
                    }
                    let place = flat.push(Some(node.payload.clone()), after)?;
                    flat.nodes[place as usize].bodies = bodies;
                    place
                }
                Some(child) => {
                    // All edges into the embedded graph meet in one place, or each of its roots would have them all.
                    let entry = if after.len() > 1 { vec![flat.push(None, after)?] } else { after };
                    let mut inner = child.flatten_into(flat, &entry)?;
                    if inner.is_empty() {
                        inner = entry;
                    }
                    flat.push(None, inner)?
                }
            };
            flat.places.insert(node.id, place);
            done[number] = place;
            if node.dependents == 0 {
                exits.push(place);
            }
        }
        exits.sort_unstable();
        Ok(exits)
    }
}

impl<P> Flat<P> {
    fn push(&mut self, payload: Option<P>, after: Vec<u32>) -> CuResult<u32> {
        let place = u32::try_from(self.nodes.len()).map_err(|_| CudaError::OUT_OF_MEMORY)?;
        self.nodes.push(FlatNode { payload, after, bodies: Vec::new() });
        Ok(place)
    }
}
