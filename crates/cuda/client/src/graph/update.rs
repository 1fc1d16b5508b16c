//! Which node of one graph stands for which of another: what cuGraphExecUpdate needs to know.
//!
//! Nodes are paired from the ends of the graphs backwards: exits by their order, then the dependencies of a pair by
//! the order of their edges. The pairing fails where it meets a node that is paired otherwise already.

use super::{ids::NodeId, snapshot::Snapshot, store::Payload};

/// `CUgraphExecUpdateResult`, without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateResult {
    /// For a reason that has no number of its own.
    Error = 1,
    /// The graphs have different shapes.
    TopologyChanged = 2,
    /// A node does something of another kind.
    NodeTypeChanged = 3,
    /// A kernel changed (before CUDA 12).
    FunctionChanged = 4,
    /// A parameter changed that cannot change.
    ParametersChanged = 5,
    /// The node cannot be updated at all.
    NotSupported = 6,
    /// A kernel changed in a way it cannot.
    UnsupportedFunctionChange = 7,
    /// An attribute changed that cannot change.
    AttributesChanged = 8,
}

/// Why two graphs do not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The reason.
    pub result: UpdateResult,
    /// The node of the new graph where it shows.
    pub node: Option<NodeId>,
    /// The upstream end of the edge where it shows.
    pub from: Option<NodeId>,
}

impl Mismatch {
    fn topology(node: Option<NodeId>, from: Option<NodeId>) -> Self {
        Self { result: UpdateResult::TopologyChanged, node, from }
    }
}

impl<P: Payload> Snapshot<P> {
    /// Gives each node the payload of its partner in `new`, in embedded graphs too. On a mismatch nothing changes.
    pub fn update(&mut self, new: &Self) -> Result<(), Mismatch> {
        let pairs = self.pairs(new)?;
        self.take_payloads(new, &pairs);
        Ok(())
    }

    /// The partners: for each node of `self` its number in `new` and the pairs of the embedded graphs.
    fn pairs(&self, new: &Self) -> Result<Vec<Pair>, Mismatch> {
        let partners = self.partners(new)?;
        let mut pairs = Vec::with_capacity(partners.len());
        for (old_node, number) in self.nodes.iter().zip(partners) {
            let new_node = &new.nodes[number];
            let inner = match (&old_node.child, &new_node.child) {
                (Some(old), Some(new)) => vec![old.pairs(new)?],
                _ if old_node.bodies.len() != new_node.bodies.len() => {
                    return Err(Mismatch::topology(Some(new_node.id), None));
                }
                _ => {
                    let verdict = old_node.payload.may_become(&new_node.payload);
                    verdict.map_err(|result| Mismatch { result, node: Some(new_node.id), from: None })?;
                    let bodies = old_node.bodies.iter().zip(&new_node.bodies);
                    bodies.map(|(old, new)| old.pairs(new)).collect::<Result<Vec<_>, _>>()?
                }
            };
            pairs.push(Pair { number, inner });
        }
        Ok(pairs)
    }

    fn take_payloads(&mut self, new: &Self, pairs: &[Pair]) {
        for (node, pair) in self.nodes.iter_mut().zip(pairs) {
            let partner = &new.nodes[pair.number];
            node.payload = partner.payload.clone();
            let inner = node.child.iter_mut().chain(&mut node.bodies);
            let partners = partner.child.iter().chain(&partner.bodies);
            for ((inner, new), pairs) in inner.zip(partners).zip(&pair.inner) {
                inner.take_payloads(new, pairs);
            }
        }
    }

    fn partners(&self, new: &Self) -> Result<Vec<usize>, Mismatch> {
        if self.nodes.len() != new.nodes.len() {
            return Err(Mismatch::topology(None, None));
        }
        let (exits, new_exits) = (self.exits(), new.exits());
        if exits.len() != new_exits.len() {
            let first_too_many = new_exits.get(exits.len()).map(|number| new.nodes[*number].id);
            return Err(Mismatch::topology(first_too_many, None));
        }
        let mut pairing =
            Pairing { old_to_new: vec![None; self.nodes.len()], new_to_old: vec![None; new.nodes.len()] };
        let mut to_visit: Vec<(usize, usize)> = exits.into_iter().zip(new_exits).collect();
        to_visit.iter().for_each(|(old, new)| pairing.pair(*old, *new));
        let mut visited = 0;
        while let Some((old, partner)) = to_visit.get(visited).copied() {
            visited += 1;
            let (old, partner) = (&self.nodes[old], &new.nodes[partner]);
            if old.payload.node_type() != partner.payload.node_type() {
                return Err(Mismatch {
                    result: UpdateResult::NodeTypeChanged,
                    node: Some(partner.id),
                    from: None,
                });
            }
            if old.before.len() != partner.before.len() {
                return Err(Mismatch::topology(Some(partner.id), None));
            }
            for (edge, new_edge) in old.before.iter().zip(&partner.before) {
                let mismatch = Mismatch::topology(Some(partner.id), Some(new.nodes[new_edge.0].id));
                match (pairing.old_to_new[edge.0], pairing.new_to_old[new_edge.0]) {
                    _ if edge.1 != new_edge.1 => return Err(mismatch),
                    (None, None) => {
                        pairing.pair(edge.0, new_edge.0);
                        to_visit.push((edge.0, new_edge.0));
                    }
                    (Some(known), _) if known == new_edge.0 => {}
                    _ => return Err(mismatch),
                }
            }
        }
        // Every node of a graph without circles leads to an exit, so all are paired unless there is one.
        pairing.old_to_new.into_iter().collect::<Option<Vec<usize>>>().ok_or(Mismatch::topology(None, None))
    }
}

struct Pair {
    number: usize,
    /// Of each graph that belongs to the node.
    inner: Vec<Vec<Pair>>,
}

struct Pairing {
    old_to_new: Vec<Option<usize>>,
    new_to_old: Vec<Option<usize>>,
}

impl Pairing {
    fn pair(&mut self, old: usize, new: usize) {
        self.old_to_new[old] = Some(new);
        self.new_to_old[new] = Some(old);
    }
}
