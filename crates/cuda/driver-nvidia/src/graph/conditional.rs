//! The levels of a graph: its own nodes, and those in the bodies of conditional nodes.
//!
//! The driver makes the handle of a conditional node when it makes the graph. Kernels were given the client's handle, so where that is
//! found in their parameters the driver's is put in its place.

#![allow(unsafe_code)]

use super::{GraphGates, build::Builder};
use crate::{
    context::LiveContext,
    op::Work,
    sys::{Context, Graph, GraphNode as RawNode, NODE_CONDITIONAL, NodeParams},
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{BODIES_DEEP_MAX, GraphNode, Op, level};
use std::{borrow::Cow, collections::HashMap, ops::Range, sync::Arc};

/// A handle of the driver's for each conditional node.
pub(super) fn handles(
    work: &Arc<Work>,
    context: &LiveContext,
    graph: Graph,
    nodes: &[GraphNode<'_>],
) -> CuResult<HashMap<u64, u64>> {
    /// `CU_GRAPH_COND_ASSIGN_DEFAULT`
    const ASSIGN: u32 = 1;
    let mut handles = HashMap::new();
    for node in nodes {
        let Op::Conditional { handle, first, .. } = node.op else { continue };
        let (value, flags) = first.map_or((0, 0), |value| (value, ASSIGN));
        let mut made = 0;
        // SAFETY: the place is valid for the call, and the graph is a new one of ours.
        unsafe { work.api.graph_conditional_handle(&mut made, graph, context.raw(), value, flags)? };
        if handles.insert(handle, made).is_some() {
            return Err(CudaError::INVALID_VALUE);
        }
    }
    Ok(handles)
}

/// Parameters of a kernel with the driver's handles in place of the client's.
pub(super) fn with_handles<'p>(parameters: &'p [u8], handles: &HashMap<u64, u64>) -> Cow<'p, [u8]> {
    let mut parameters = Cow::Borrowed(parameters);
    if handles.is_empty() {
        return parameters;
    }
    // A handle is a number of eight bytes, which lies at a multiple of eight.
    for at in (0..parameters.len().saturating_sub(7)).step_by(8) {
        let Some(word) = parameters[at..].first_chunk::<8>() else { break };
        if let Some(handle) = handles.get(&u64::from_le_bytes(*word)) {
            parameters.to_mut()[at..at + 8].copy_from_slice(&handle.to_le_bytes());
        }
    }
    parameters
}

impl Builder<'_> {
    /// Adds the nodes in `range` that are in no body there, and to the bodies what is theirs. Gates stand outside of bodies.
    pub(super) fn level(
        &mut self,
        nodes: &[GraphNode<'_>],
        range: Range<usize>,
        depth: usize,
        gates: Option<&(GraphGates, Vec<bool>)>,
    ) -> CuResult<()> {
        let here = level(range, |index| nodes[index].bodies()).ok_or(CudaError::INVALID_VALUE)?;
        if depth > BODIES_DEEP_MAX {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut made: HashMap<u32, RawNode> = HashMap::with_capacity(here.len());
        for place in here {
            let (at, node) = (place.index, &nodes[place.index]);
            let mut after = Vec::with_capacity(node.after.len());
            for before in &node.after {
                after.push(*made.get(before).ok_or(CudaError::INVALID_VALUE)?);
            }
            if let Some((gates, is_gated)) = gates
                && is_gated.get(at) == Some(&true)
            {
                after = vec![self.gate(*gates, &after)?];
            }
            let raw = match &node.op {
                _ if !node.enabled => self.empty(&after),
                Op::Conditional { handle, kind, .. } => {
                    self.conditional(nodes, (*handle, *kind), &place.bodies, depth, &after)
                }
                op => self.add(op, &after),
            };
            // The client gets one code for the whole graph; this log line names the node.
            let raw = raw.inspect_err(
                |error| tracing::warn!(%error, node = at, op = ?node.op, "the driver does not take a node of a graph"),
            )?;
            made.insert(at as u32, raw);
        }
        Ok(())
    }

    fn conditional(
        &mut self,
        nodes: &[GraphNode<'_>],
        (handle, condition): (u64, u32),
        bodies: &[Range<usize>],
        depth: usize,
        after: &[RawNode],
    ) -> CuResult<RawNode> {
        let handle = self.handles.get(&handle).copied().ok_or(CudaError::INVALID_VALUE)?;
        let mut params = conditional_params(handle, condition, bodies.len() as u32, self.context.raw());
        let mut raw = RawNode::default();
        // SAFETY: everything pointed to is valid for the call; without edge data all edges are full ones.
        unsafe {
            let (before, count) = (after.as_ptr(), after.len());
            let (api, edges) = (&self.work.api, std::ptr::null());
            api.graph_add_node(&mut raw, self.graph, before, edges, count, &mut params)?;
        }
        if params.bodies.is_null() {
            return Err(CudaError::UNKNOWN);
        }
        // SAFETY: the driver has put as many graphs there as were asked for; they live as long as the node.
        let graphs = unsafe { std::slice::from_raw_parts(params.bodies, bodies.len()) }.to_vec();
        let outer = self.graph;
        for (graph, body) in graphs.into_iter().zip(bodies) {
            self.graph = graph;
            self.level(nodes, body.clone(), depth + 1, None)?;
        }
        self.graph = outer;
        Ok(raw)
    }
}

fn conditional_params(handle: u64, condition: u32, size: u32, context: Context) -> NodeParams {
    NodeParams {
        kind: NODE_CONDITIONAL,
        reserved: [0; 3],
        handle,
        condition,
        size,
        bodies: std::ptr::null_mut(),
        context,
        unused: [0; 25],
        reserved2: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_put_where_the_client_s_were() {
        let handles = HashMap::from([(0x1122_3344_5566_7788, 9)]);
        let client = 0x1122_3344_5566_7788_u64.to_le_bytes();
        let parameters = [&[1; 8][..], &client[..], &[2; 4][..]].concat();
        let driver = [&[1; 8][..], &9_u64.to_le_bytes()[..], &[2; 4][..]].concat();
        assert_eq!(with_handles(&parameters, &handles), driver);
        let elsewhere = [&[1; 4][..], &client[..], &[2; 4][..]].concat();
        assert_eq!(with_handles(&elsewhere, &handles), elsewhere, "no number of eight bytes lies there");
    }
}
