//! Bodies: handles of conditional nodes.

use super::graph_params::context_or_current;
use crate::{border::*, state::graphs};
use cuda_abi::*;
use cuda_client::graph::GraphId;

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
const ASSIGN_DEFAULT: u32 = 1;

/// cuGraphConditionalHandleCreate
pub(crate) fn create_handle(
    mut handle: Out<'_, u64>,
    graph: GraphHandle,
    context: ContextHandle,
    default_launch_value: u32,
    flags: u32,
) -> CuResult<()> {
    if flags & !ASSIGN_DEFAULT != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let graph = GraphId(graph.0);
    let mut store = graphs();
    store.graphs.nodes(graph)?;
    // The driver does not take the current context for none.
    if context.is_null() {
        return Err(CudaError::INVALID_CONTEXT);
    }
    let context = context_or_current(context.0)?;
    let first = (flags & ASSIGN_DEFAULT != 0).then_some(default_launch_value);
    handle.set(store.handles.create(graph, context, first));
    Ok(())
}
