//! What a node of a graph does, together with what the program said about it and may ask back.

use super::{ConditionalNode, Context, Copy, KernelNode, NodeOp, Place, device_of_plane, memory_of};
use cuda_abi::*;
use cuda_client::graph::{Payload, UpdateResult};
use std::sync::Arc;

/// A node's work and its parameters as the program gave them.
pub(crate) struct Item {
    /// The work.
    pub(crate) op: NodeOp,
    /// What cannot be told from the work alone.
    pub(crate) given: Given,
    /// Addresses of the parameters of a kernel, once the program asked for them. They point into `op`.
    shown: Option<Box<[u64]>>,
}

/// Parameters that a program reads back as it gave them.
#[derive(Clone, Default)]
pub(crate) enum Given {
    /// The work says everything.
    #[default]
    Nothing,
    /// A copy.
    Copy(CUDA_MEMCPY3D),
    /// An allocation.
    Allocation {
        /// Where.
        properties: CUmemPoolProps,
        /// Devices that may reach it.
        access: Arc<[CUmemAccessDesc]>,
    },
    /// Memory operations.
    MemoryOps {
        /// What.
        operations: Arc<[CUstreamBatchMemOpParams]>,
        /// Always 0.
        flags: u32,
    },
}

impl Item {
    /// Work with the parameters it was made from.
    pub(crate) fn new(op: NodeOp, given: Given) -> Self {
        Self { op, given, shown: None }
    }

    /// The context it happens in, if that matters.
    pub(crate) fn context(&self) -> Option<Arc<Context>> {
        match &self.op {
            NodeOp::Kernel(node) => Some(Arc::clone(&node.function.context)),
            NodeOp::Copy { context, .. }
            | NodeOp::Fill { context, .. }
            | NodeOp::MemoryOps { context, .. }
            | NodeOp::Conditional(ConditionalNode { context, .. }) => Some(Arc::clone(context)),
            NodeOp::Record { event, .. } | NodeOp::Wait { event, .. } => Some(Arc::clone(&event.context)),
            NodeOp::Allocate { address, .. } => {
                let allocation = memory_of(*address)?.memory.find(*address)?;
                Context::find(allocation.context).ok()
            }
            NodeOp::Empty | NodeOp::Host { .. } | NodeOp::Free { .. } | NodeOp::Child(_) => None,
        }
    }

    /// The kernel, of a kernel node.
    pub(crate) fn kernel(&self) -> CuResult<&KernelNode> {
        match &self.op {
            NodeOp::Kernel(node) => Ok(node),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// The kernel, to be changed.
    pub(crate) fn kernel_mut(&mut self) -> CuResult<&mut KernelNode> {
        self.shown = None;
        match &mut self.op {
            NodeOp::Kernel(node) => Ok(node),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// The address of an array of addresses of a kernel's parameters. It is good until the node changes or ends.
    pub(crate) fn kernel_parameters(&mut self) -> CuResult<u64> {
        let node = self.kernel()?;
        let layout = node.function.sheet.layout.parameters();
        if layout.is_empty() {
            return Ok(0);
        }
        let start = node.parameters.as_ptr() as u64;
        let addresses = layout.iter().map(|parameter| start + u64::from(parameter.offset)).collect();
        Ok(self.shown.get_or_insert(addresses).as_ptr() as u64)
    }
}

impl Clone for Item {
    fn clone(&self) -> Self {
        // The parameters of the copy lie elsewhere.
        Self { op: self.op.clone(), given: self.given.clone(), shown: None }
    }
}

impl From<NodeOp> for Item {
    fn from(op: NodeOp) -> Self {
        Self::new(op, Given::Nothing)
    }
}

impl Payload for Item {
    fn node_type(&self) -> u32 {
        match &self.op {
            NodeOp::Kernel(_) => CU_GRAPH_NODE_TYPE_KERNEL,
            NodeOp::Copy { .. } => CU_GRAPH_NODE_TYPE_MEMCPY,
            NodeOp::Fill { .. } => CU_GRAPH_NODE_TYPE_MEMSET,
            NodeOp::Host { .. } => CU_GRAPH_NODE_TYPE_HOST,
            NodeOp::Child(_) => CU_GRAPH_NODE_TYPE_GRAPH,
            NodeOp::Conditional(_) => CU_GRAPH_NODE_TYPE_CONDITIONAL,
            NodeOp::Empty => CU_GRAPH_NODE_TYPE_EMPTY,
            NodeOp::Wait { .. } => CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            NodeOp::Record { .. } => CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            NodeOp::Allocate { .. } => CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            NodeOp::Free { .. } => CU_GRAPH_NODE_TYPE_MEM_FREE,
            NodeOp::MemoryOps { .. } => CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        }
    }

    fn owns_memory(&self) -> bool {
        matches!(self.op, NodeOp::Allocate { .. } | NodeOp::Free { .. })
    }

    fn may_become(&self, new: &Self) -> Result<(), UpdateResult> {
        match (&self.op, &new.op) {
            (NodeOp::Kernel(old), NodeOp::Kernel(new)) => kernel_may_become(old, new),
            (NodeOp::Copy { copy: old, .. }, NodeOp::Copy { copy: new, .. }) => copy_may_become(old, new),
            (
                NodeOp::Fill { target: old_target, shape: old_shape, element_bytes: old_element, .. },
                NodeOp::Fill { target, shape, element_bytes, .. },
            ) => {
                let lines = old_shape.height == 1 && shape.height == 1;
                let same = old_shape == shape && old_element == element_bytes;
                let same_device = device_of(old_target.address) == device_of(target.address);
                same_device.then_some(()).filter(|()| lines || same).ok_or(UpdateResult::ParametersChanged)
            }
            (NodeOp::Conditional(old), NodeOp::Conditional(new))
                if (old.handle, old.kind) != (new.handle, new.kind) =>
            {
                Err(UpdateResult::ParametersChanged)
            }
            (NodeOp::Allocate { address: old, .. }, NodeOp::Allocate { address: new, .. })
            | (NodeOp::Free { address: old }, NodeOp::Free { address: new })
                if old != new =>
            {
                Err(UpdateResult::NotSupported)
            }
            _ => Ok(()),
        }
    }
}

fn kernel_may_become(old: &KernelNode, new: &KernelNode) -> Result<(), UpdateResult> {
    if !Arc::ptr_eq(&old.function.context, &new.function.context) {
        return Err(UpdateResult::UnsupportedFunctionChange);
    }
    if old.cooperative != new.cooperative {
        return Err(UpdateResult::AttributesChanged);
    }
    Ok(())
}

/// A copy of one line may change its size, others only their addresses; host stays host and a device stays itself.
fn copy_may_become(old: &Copy, new: &Copy) -> Result<(), UpdateResult> {
    let is_line = |copy: &Copy| copy.shape.height == 1 && copy.shape.depth == 1;
    let same_end = |old: &Place, new: &Place| match (old, new) {
        (Place::Host(_), Place::Host(_)) => true,
        (Place::Device(old), Place::Device(new)) => {
            let device = |plane| device_of_plane(plane).map(|device| device.ordinal);
            device(old) == device(new)
        }
        _ => false,
    };
    let same_ends = same_end(&old.source, &new.source) && same_end(&old.target, &new.target);
    if same_ends && ((is_line(old) && is_line(new)) || old.shape == new.shape) {
        Ok(())
    } else {
        Err(UpdateResult::ParametersChanged)
    }
}

fn device_of(address: u64) -> Option<usize> {
    memory_of(address).map(|device| device.ordinal)
}
