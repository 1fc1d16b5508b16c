//! Nodes and edges of graphs.

use super::{CUDA_MEMCPY3D, CUmemPoolProps};
use crate::value::{CValue, c_structs};

c_structs! {
    /// A kernel node, first form.
    CUDA_KERNEL_NODE_PARAMS_v1 {
        func: u64,
        grid_dim_x: u32,
        grid_dim_y: u32,
        grid_dim_z: u32,
        block_dim_x: u32,
        block_dim_y: u32,
        block_dim_z: u32,
        shared_mem_bytes: u32,
        kernel_params: u64,
        extra: u64,
    }

    /// A kernel node that may name a `CUkernel`. The third form has the same fields.
    CUDA_KERNEL_NODE_PARAMS_v2 {
        func: u64,
        grid_dim_x: u32,
        grid_dim_y: u32,
        grid_dim_z: u32,
        block_dim_x: u32,
        block_dim_y: u32,
        block_dim_z: u32,
        shared_mem_bytes: u32,
        kernel_params: u64,
        extra: u64,
        kern: u64,
        ctx: u64,
    }

    /// A memset node; its context is an argument of its own.
    CUDA_MEMSET_NODE_PARAMS {
        dst: u64,
        pitch: usize,
        value: u32,
        element_size: u32,
        width: usize,
        height: usize,
    }

    /// A memset node with its context.
    CUDA_MEMSET_NODE_PARAMS_v2 {
        dst: u64,
        pitch: usize,
        value: u32,
        element_size: u32,
        width: usize,
        height: usize,
        ctx: u64,
    }

    /// A copy node with its context.
    CUDA_MEMCPY_NODE_PARAMS {
        flags: i32,
        reserved: i32,
        copy_ctx: u64,
        copy_params: CUDA_MEMCPY3D,
    }

    /// A host node: a function of the program and its argument, both as addresses.
    CUDA_HOST_NODE_PARAMS {
        function: u64,
        user_data: u64,
    }

    /// A child graph node.
    CUDA_CHILD_GRAPH_NODE_PARAMS {
        graph: u64,
        ownership: u32,
    }

    /// An event record or event wait node.
    CUDA_EVENT_NODE_PARAMS {
        event: u64,
    }

    /// A conditional node; `graphs` is a result: the address of an array of the bodies.
    CUDA_CONDITIONAL_NODE_PARAMS {
        handle: u64,
        kind: u32,
        size: u32,
        graphs: u64,
        ctx: u64,
    }

    /// An allocation node; `dptr` is a result.
    CUDA_MEM_ALLOC_NODE_PARAMS {
        pool_props: CUmemPoolProps,
        /// Address of an array of [`crate::CUmemAccessDesc`].
        access_descs: u64,
        access_desc_count: usize,
        bytesize: usize,
        dptr: u64,
    }

    /// A node that frees.
    CUDA_MEM_FREE_NODE_PARAMS {
        dptr: u64,
    }

    /// A node of memory operations.
    CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: u64,
        count: u32,
        /// Address of an array of [`crate::CUstreamBatchMemOpParams`].
        param_array: u64,
        flags: u32,
    }

    /// A node of any kind; what `body` holds depends on `kind`.
    CUgraphNodeParams {
        kind: u32,
        reserved0: [i32; 3],
        body: [u64; 29],
        reserved2: i64,
    }

    /// What an edge carries.
    CUgraphEdgeData {
        from_port: u8,
        to_port: u8,
        kind: u8,
        reserved: [u8; 5],
    }

    /// What cuGraphInstantiateWithParams takes and returns.
    CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: u64,
        upload_stream: u64,
        error_node_out: u64,
        result_out: u32,
    }

    /// What cuGraphExecUpdate_v2 returns.
    CUgraphExecUpdateResultInfo {
        result: u32,
        error_node: u64,
        error_from_node: u64,
    }
}

impl CUgraphNodeParams {
    /// The body as the structure that belongs to `kind`; the caller knows which.
    pub fn body<T: CValue>(&self) -> T {
        let mut bytes = [0; 29 * 8];
        self.body.write(&mut bytes);
        T::read(&bytes)
    }

    /// Replaces the body, the bytes behind it zero.
    pub fn set_body<T: CValue>(&mut self, body: T) {
        let mut bytes = [0; 29 * 8];
        body.write(&mut bytes);
        self.body = CValue::read(&bytes);
    }

    /// A node of this kind with this body.
    pub fn of<T: CValue>(kind: u32, body: T) -> Self {
        let mut params = Self { kind, ..Self::default() };
        params.set_body(body);
        params
    }
}

impl From<CUDA_KERNEL_NODE_PARAMS_v1> for CUDA_KERNEL_NODE_PARAMS_v2 {
    fn from(old: CUDA_KERNEL_NODE_PARAMS_v1) -> Self {
        let mut bytes = [0; size_of::<CUDA_KERNEL_NODE_PARAMS_v1>()];
        old.write(&mut bytes);
        Self::read(&bytes)
    }
}

impl From<CUDA_KERNEL_NODE_PARAMS_v2> for CUDA_KERNEL_NODE_PARAMS_v1 {
    fn from(new: CUDA_KERNEL_NODE_PARAMS_v2) -> Self {
        let mut bytes = [0; size_of::<CUDA_KERNEL_NODE_PARAMS_v2>()];
        new.write(&mut bytes);
        Self::read(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_its_body() {
        let event = CUDA_EVENT_NODE_PARAMS { event: 77 };
        let params = CUgraphNodeParams::of(7, event);
        assert_eq!(params.body::<CUDA_EVENT_NODE_PARAMS>(), event);
    }

    #[test]
    fn the_new_kernel_node_begins_with_the_old_one() {
        let old = CUDA_KERNEL_NODE_PARAMS_v1 { func: 1, block_dim_z: 2, extra: 3, ..Default::default() };
        let new = CUDA_KERNEL_NODE_PARAMS_v2::from(old);
        assert_eq!((new.func, new.block_dim_z, new.extra, new.kern), (1, 2, 3, 0));
        assert_eq!(CUDA_KERNEL_NODE_PARAMS_v1::from(new), old);
    }
}
