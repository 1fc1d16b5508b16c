//! A program whose graphs loop and choose: a while node with a switch node in its body, launched again and again.

use crate::program::*;
use cuda_abi::{
    CU_GRAPH_NODE_TYPE_CONDITIONAL, CUDA_CONDITIONAL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v2,
    CUDA_MEMSET_NODE_PARAMS, CUgraphNodeParams,
};
use std::{
    ffi::{CStr, c_void},
    fmt::Write,
    ptr::{from_mut, null},
    time::Duration,
};

unsafe extern "C" {
    fn cuGraphCreate(graph: *mut Handle, flags: u32) -> u32;
    fn cuGraphDestroy(graph: Handle) -> u32;
    fn cuGraphConditionalHandleCreate(
        handle: *mut u64,
        graph: Handle,
        context: Handle,
        value: u32,
        flags: u32,
    ) -> u32;
    fn cuGraphAddNode_v2(
        node: *mut Handle,
        graph: Handle,
        dependencies: *const Handle,
        data: *const c_void,
        count: usize,
        params: *mut CUgraphNodeParams,
    ) -> u32;
    fn cuGraphAddKernelNode_v2(
        node: *mut Handle,
        graph: Handle,
        dependencies: *const Handle,
        count: usize,
        params: *const CUDA_KERNEL_NODE_PARAMS_v2,
    ) -> u32;
    fn cuGraphAddMemsetNode(
        node: *mut Handle,
        graph: Handle,
        dependencies: *const Handle,
        count: usize,
        params: *const CUDA_MEMSET_NODE_PARAMS,
        context: Handle,
    ) -> u32;
    fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64) -> u32;
    fn cuGraphLaunch(exec: Handle, stream: Handle) -> u32;
    fn cuGraphExecDestroy(exec: Handle) -> u32;
}

const ASSIGN: u32 = 1;
const WHILE: u32 = 1;
const SWITCH: u32 = 2;
const CHOICES: u32 = 3;
const ROUNDS: u32 = 24;

/// `count`: adds one to a word, goes on while it is less than a limit, and chooses by what is left of a division by three.
const CODE: &CStr = c".version 8.4
.target sm_90
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);
.visible .entry count(.param .u64 word, .param .u32 limit, .param .u64 loops, .param .u64 chooses) {
    .reg .u64 %address, %loops, %chooses;
    .reg .u32 %value, %limit, %more, %choice;
    .reg .pred %less;
    ld.param.u64 %address, [word];
    ld.param.u32 %limit, [limit];
    ld.param.u64 %loops, [loops];
    ld.param.u64 %chooses, [chooses];
    ld.global.u32 %value, [%address];
    add.u32 %value, %value, 1;
    st.global.u32 [%address], %value;
    setp.lt.u32 %less, %value, %limit;
    selp.u32 %more, 1, 0, %less;
    rem.u32 %choice, %value, 3;
    {
        .param .b64 first;
        .param .b32 second;
        st.param.b64 [first], %loops;
        st.param.b32 [second], %more;
        call.uni cudaGraphSetConditional, (first, second);
    }
    {
        .param .b64 first;
        .param .b32 second;
        st.param.b64 [first], %chooses;
        st.param.b32 [second], %choice;
        call.uni cudaGraphSetConditional, (first, second);
    }
    ret;
}
";

struct Builder {
    context: Handle,
    count: Handle,
}

impl Builder {
    fn handle(&self, graph: Handle) -> u64 {
        made(|handle| cu!(cuGraphConditionalHandleCreate(handle, graph, self.context, 1, ASSIGN)))
    }

    fn conditional(&self, graph: Handle, after: &[Handle], handle: u64, kind: u32, size: u32) -> Vec<Handle> {
        let given = CUDA_CONDITIONAL_NODE_PARAMS { handle, kind, size, graphs: 0, ctx: self.context };
        let mut params = CUgraphNodeParams::of(CU_GRAPH_NODE_TYPE_CONDITIONAL, given);
        let mut node = 0;
        cu!(cuGraphAddNode_v2(&mut node, graph, after.as_ptr(), null(), after.len(), &mut params));
        let filled: CUDA_CONDITIONAL_NODE_PARAMS = params.body();
        // SAFETY: the library has written the bodies there, as many as were asked for.
        unsafe { std::slice::from_raw_parts(filled.graphs as *const Handle, size as usize) }.to_vec()
    }

    fn counter(&self, graph: Handle, word: u64, limit: u32, handles: [u64; 2]) -> Handle {
        let (mut word, mut limit, [mut loops, mut chooses]) = (word, limit, handles);
        let parameters: &mut [*mut c_void] = &mut [
            from_mut(&mut word).cast(),
            from_mut(&mut limit).cast(),
            from_mut(&mut loops).cast(),
            from_mut(&mut chooses).cast(),
        ];
        let given = CUDA_KERNEL_NODE_PARAMS_v2 {
            func: self.count,
            grid_dim_x: 1,
            grid_dim_y: 1,
            grid_dim_z: 1,
            block_dim_x: 1,
            block_dim_y: 1,
            block_dim_z: 1,
            kernel_params: parameters.as_mut_ptr() as u64,
            ..Default::default()
        };
        made(|node| cu!(cuGraphAddKernelNode_v2(node, graph, null(), 0, &given)))
    }

    /// Counts to `limit` and fills one of three words in each turn.
    fn graph(&self, words: u64, limit: u32) -> Handle {
        let graph = made(|graph| cu!(cuGraphCreate(graph, 0)));
        let handles = [self.handle(graph), self.handle(graph)];
        let body = self.conditional(graph, &[], handles[0], WHILE, 1)[0];
        let counted = self.counter(body, words, limit, handles);
        for (choice, body) in (1..).zip(self.conditional(body, &[counted], handles[1], SWITCH, CHOICES)) {
            let (dst, value) = (words + 4 * choice, limit * 10 + choice as u32);
            let given =
                CUDA_MEMSET_NODE_PARAMS { dst, value, element_size: 4, width: 1, height: 1, pitch: 0 };
            let mut node = 0;
            cu!(cuGraphAddMemsetNode(&mut node, body, null(), 0, &given, self.context));
        }
        graph
    }
}

/// Each round counts on from where the last one ended, with the same executable graph for some rounds.
pub(crate) fn program(context: Handle) -> String {
    let module = made(|module| cu!(cuModuleLoadData(module, CODE.as_ptr().cast())));
    let builder = Builder {
        context,
        count: made(|function| cu!(cuModuleGetFunction(function, module, c"count".as_ptr()))),
    };
    let words = made(|address| cu!(cuMemAlloc_v2(address, 16)));
    let stream = stream();
    cu!(cuMemsetD32Async(words, 0, 4, stream));
    let (mut saw, mut exec) = (String::new(), 0);
    for round in 0..ROUNDS {
        if round % 6 == 0 {
            if exec != 0 {
                cu!(cuGraphExecDestroy(exec));
            }
            let graph = builder.graph(words, 5 + round);
            exec = made(|exec| cu!(cuGraphInstantiateWithFlags(exec, graph, 0)));
            cu!(cuGraphDestroy(graph));
        }
        cu!(cuGraphLaunch(exec, stream));
        cu!(cuStreamSynchronize(stream));
        let _ = writeln!(saw, "{round} {:?}", read(words, 16));
        if round % 2 == 1 {
            cu!(cuMemsetD32Async(words, round / 4, 1, stream));
        }
        // So that images are taken in between.
        std::thread::sleep(Duration::from_millis(5));
    }
    saw
}
