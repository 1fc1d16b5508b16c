//! Graphs that can be launched: how many kernels each runs.

#![allow(unsafe_code)]

use crate::driver;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

static KERNELS: Mutex<Option<HashMap<usize, u32>>> = Mutex::new(None);

/// CU_GRAPH_NODE_TYPE_KERNEL and CU_GRAPH_NODE_TYPE_GRAPH
const KERNEL_NODE: u32 = 0;
const GRAPH_NODE: u32 = 4;
/// Graphs within graphs are followed so deep.
const DEPTH_MAX: u32 = 8;

/// A graph was made ready.
pub(crate) fn instantiated(exec: usize, graph: usize) {
    let kernels = kernels_of(graph, 0);
    let mut known = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
    known.get_or_insert_default().insert(exec, kernels);
}

/// It is gone.
pub(crate) fn destroyed(exec: usize) {
    if let Some(known) = KERNELS.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        known.remove(&exec);
    }
}

/// Kernels that a launch of it runs; at least 1.
pub(crate) fn kernels(exec: usize) -> u32 {
    let known = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
    known.as_ref().and_then(|known| known.get(&exec)).copied().unwrap_or(1).max(1)
}

fn kernels_of(graph: usize, depth: u32) -> u32 {
    let mut count = 0;
    // SAFETY: without a place for nodes the call only counts them.
    if depth > DEPTH_MAX || unsafe { driver::graph_nodes(graph, std::ptr::null_mut(), &mut count) } != 0 {
        return 0;
    }
    let mut nodes = vec![0; count];
    // SAFETY: `nodes` has room for `count` handles.
    if unsafe { driver::graph_nodes(graph, nodes.as_mut_ptr(), &mut count) } != 0 {
        return 0;
    }
    let mut kernels = 0u32;
    for &node in nodes.iter().take(count) {
        let mut kind = u32::MAX;
        // SAFETY: `kind` is a place for the answer.
        let is_known = unsafe { driver::node_type(node, &mut kind) } == 0;
        if is_known && kind == KERNEL_NODE {
            kernels = kernels.saturating_add(1);
        }
        if is_known && kind == GRAPH_NODE {
            let mut child = 0;
            // SAFETY: the node is one that holds a graph, and `child` a place for it.
            if unsafe { driver::child_graph(node, &mut child) } == 0 {
                kernels = kernels.saturating_add(kernels_of(child, depth + 1));
            }
        }
    }
    kernels
}
