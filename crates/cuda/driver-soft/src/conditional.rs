//! Conditional nodes of graphs: bodies that run as a value says.

use crate::{
    SoftDriver,
    graph::{GraphRun, Node},
    line::Line,
    op::OwnedOp,
    session::{Session, Tables},
    sync::{Lock, lock},
    work::Work,
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{BODIES_DEEP_MAX, condition, level};
use std::{collections::HashMap, ops::Range, sync::Arc};

/// A conditional node in one launch.
pub(crate) struct Conditional {
    handle: u64,
    kind: u32,
    bodies: Vec<Arc<GraphRun>>,
}

impl Conditional {
    pub(crate) fn held_bytes(&self) -> usize {
        self.bodies.iter().map(|body| body.held_bytes()).sum()
    }

    /// Runs what the value says, until it says that it is enough.
    pub(crate) fn execute(&self, session: &Arc<Session>, line: &Arc<Line>) -> CuResult<()> {
        loop {
            // A body that fails kills the context, and a program may leave a loop that never ends.
            if session.is_aborted() || line.context.check().is_err() {
                return Ok(());
            }
            let value = session.conditions.value(self.handle);
            let chosen = match self.kind {
                condition::IF => usize::from(value == 0),
                condition::WHILE if value == 0 => return Ok(()),
                condition::WHILE => 0,
                _ => value as usize,
            };
            if let Some(body) = self.bodies.get(chosen) {
                body.execute(session, line)?;
            }
            if self.kind != condition::WHILE {
                return Ok(());
            }
        }
    }
}

/// The sizes of a node's bodies.
pub(crate) fn sizes(node: &Node) -> &[u32] {
    match &node.op {
        OwnedOp::Conditional { bodies, .. } => bodies,
        _ => &[],
    }
}

/// Whether the bodies of all nodes are where they must be, hold only what they may, and edges stay within them.
pub(crate) fn check(nodes: &[Node]) -> CuResult<()> {
    check_level(nodes, 0..nodes.len(), 0)
}

fn check_level(nodes: &[Node], range: Range<usize>, depth: usize) -> CuResult<()> {
    let nodes_here = level(range, |index| sizes(&nodes[index])).ok_or(CudaError::INVALID_VALUE)?;
    if depth > BODIES_DEEP_MAX {
        return Err(CudaError::INVALID_VALUE);
    }
    let is_here =
        |before: &u32| nodes_here.binary_search_by_key(&(*before as usize), |node| node.index).is_ok();
    for node in &nodes_here {
        let Node { op, after, .. } = &nodes[node.index];
        let is_good = match op {
            OwnedOp::Empty | OwnedOp::Launch(_) | OwnedOp::Fill { .. } => true,
            OwnedOp::CopyDevice { .. } | OwnedOp::Conditional { .. } => true,
            _ => depth == 0,
        };
        if !is_good || !after.iter().all(is_here) {
            return Err(CudaError::INVALID_VALUE);
        }
        node.bodies.iter().try_for_each(|body| check_level(nodes, body.clone(), depth + 1))?;
    }
    Ok(())
}

impl SoftDriver {
    /// A launch of the nodes in `range`, which [`check`] has seen.
    pub(crate) fn run_of(
        &self,
        tables: &mut Tables,
        line: &Arc<Line>,
        nodes: &[Node],
        range: Range<usize>,
        run: u32,
        changes: &mut Vec<crate::admit::Undo>,
    ) -> CuResult<Arc<GraphRun>> {
        let here = level(range, |index| sizes(&nodes[index])).ok_or(CudaError::INVALID_VALUE)?;
        let places: HashMap<usize, u32> =
            here.iter().enumerate().map(|(place, node)| (node.index, place as u32)).collect();
        let (mut works, mut edges) = (Vec::with_capacity(here.len()), Vec::with_capacity(here.len()));
        for node in &here {
            let Node { op, after, enabled } = &nodes[node.index];
            let work = match op {
                _ if !enabled => Work::Nothing,
                OwnedOp::Conditional { handle, kind, .. } => {
                    let bodies = node.bodies.iter();
                    let bodies =
                        bodies.map(|body| self.run_of(tables, line, nodes, body.clone(), run, changes));
                    let bodies = bodies.collect::<CuResult<Vec<_>>>()?;
                    Work::Conditional(Box::new(Conditional { handle: *handle, kind: *kind, bodies }))
                }
                op => self.session.admit(tables, line, &op.in_run(run), false, changes)?,
            };
            works.push(work);
            edges.push(after.iter().filter_map(|before| places.get(&(*before as usize)).copied()).collect());
        }
        Ok(GraphRun::new(works, &edges))
    }
}

/// The values that conditional nodes go by, each for as long as a graph or a launch has the node.
#[derive(Default)]
pub(crate) struct Conditions(Lock<HashMap<u64, Condition>>);

#[derive(Default)]
struct Condition {
    value: u32,
    holders: usize,
}

impl Conditions {
    /// Sets the value of a handle that a graph has.
    pub(crate) fn set(&self, handle: u64, value: u32) {
        if let Some(condition) = lock(&self.0).get_mut(&handle) {
            condition.value = value;
        }
    }

    fn value(&self, handle: u64) -> u32 {
        lock(&self.0).get(&handle).map_or(0, |condition| condition.value)
    }
}

/// The conditional nodes of a graph: while one of these lives, their values do.
pub(crate) struct Handles {
    conditions: Arc<Conditions>,
    /// With the values that a launch begins with.
    firsts: Vec<(u64, Option<u32>)>,
}

impl Handles {
    pub(crate) fn of(conditions: &Arc<Conditions>, nodes: &[Node]) -> Self {
        let of = |node: &Node| match node.op {
            OwnedOp::Conditional { handle, first, .. } => Some((handle, first)),
            _ => None,
        };
        let firsts: Vec<_> = nodes.iter().filter_map(of).collect();
        let mut kept = lock(&conditions.0);
        firsts.iter().for_each(|(handle, _)| kept.entry(*handle).or_default().holders += 1);
        drop(kept);
        Self { conditions: Arc::clone(conditions), firsts }
    }

    /// A launch begins.
    pub(crate) fn begin(&self) {
        for (handle, first) in &self.firsts {
            first.iter().for_each(|value| self.conditions.set(*handle, *value));
        }
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        let mut kept = lock(&self.conditions.0);
        for (handle, _) in &self.firsts {
            if let Some(condition) = kept.get_mut(handle) {
                condition.holders -= 1;
                if condition.holders == 0 {
                    kept.remove(handle);
                }
            }
        }
    }
}
