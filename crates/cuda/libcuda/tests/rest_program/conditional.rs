//! Conditional nodes of graphs.

use super::{Handle, INVALID_VALUE, cuMemcpyHtoD_v2, cuStreamSynchronize, good, hold, made};
use cuda_abi::{
    CU_GRAPH_NODE_TYPE_CONDITIONAL, CUDA_CONDITIONAL_NODE_PARAMS, CUDA_HOST_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMSET_NODE_PARAMS, CUgraphNodeParams,
};
use std::{
    ffi::{c_char, c_void},
    ptr::{from_mut, from_ref, null},
};

unsafe extern "C" {
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> u32;
    fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> u32;
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> u32;
    fn cuGraphCreate(graph: *mut Handle, flags: u32) -> u32;
    fn cuGraphDestroy(graph: Handle) -> u32;
    fn cuGraphClone(clone: *mut Handle, graph: Handle) -> u32;
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
    fn cuGraphAddHostNode(
        node: *mut Handle,
        graph: Handle,
        dependencies: *const Handle,
        count: usize,
        params: *const CUDA_HOST_NODE_PARAMS,
    ) -> u32;
    fn cuGraphNodeGetType(node: Handle, kind: *mut u32) -> u32;
    fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64) -> u32;
    fn cuGraphLaunch(exec: Handle, stream: Handle) -> u32;
    fn cuGraphExecDestroy(exec: Handle) -> u32;
}

const ASSIGN: u32 = 1;
const IF: u32 = 0;
const WHILE: u32 = 1;
const SWITCH: u32 = 2;
const NOT_SUPPORTED: u32 = 801;

/// `count`: adds one to a word, and goes on while it is less than a limit. `choose`: sets the value to what a word holds.
const CODE: &std::ffi::CStr = c".version 8.4
.target sm_90
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);
.visible .entry count(.param .u64 word, .param .u32 limit, .param .u64 condition) {
    .reg .u64 %address, %handle;
    .reg .u32 %value, %limit, %more;
    .reg .pred %less;
    ld.param.u64 %address, [word];
    ld.param.u32 %limit, [limit];
    ld.param.u64 %handle, [condition];
    ld.global.u32 %value, [%address];
    add.u32 %value, %value, 1;
    st.global.u32 [%address], %value;
    setp.lt.u32 %less, %value, %limit;
    selp.u32 %more, 1, 0, %less;
    {
        .param .b64 first;
        .param .b32 second;
        st.param.b64 [first], %handle;
        st.param.b32 [second], %more;
        call.uni cudaGraphSetConditional, (first, second);
    }
    ret;
}
.visible .entry choose(.param .u64 word, .param .u64 condition) {
    .reg .u64 %address, %handle;
    .reg .u32 %value;
    ld.param.u64 %address, [word];
    ld.param.u64 %handle, [condition];
    ld.global.u32 %value, [%address];
    {
        .param .b64 first;
        .param .b32 second;
        st.param.b64 [first], %handle;
        st.param.b32 [second], %value;
        call.uni cudaGraphSetConditional, (first, second);
    }
    ret;
}
";

struct Stage {
    context: Handle,
    count: Handle,
    choose: Handle,
    /// Two words.
    words: u64,
}

impl Stage {
    unsafe fn new(context: Handle) -> Self {
        // SAFETY: the functions get what the C API asks for.
        unsafe {
            let module: Handle = made(|module| cuModuleLoadData(module, CODE.as_ptr().cast()));
            Self {
                context,
                count: made(|function| cuModuleGetFunction(function, module, c"count".as_ptr())),
                choose: made(|function| cuModuleGetFunction(function, module, c"choose".as_ptr())),
                words: made(|address| cuMemAlloc_v2(address, 8)),
            }
        }
    }

    unsafe fn write(&self, words: [u32; 2]) {
        // SAFETY: the functions get what the C API asks for.
        good(unsafe { cuMemcpyHtoD_v2(self.words, from_ref(&words).cast(), 8) });
    }

    unsafe fn read(&self) -> [u32; 2] {
        let mut words = [0_u32; 2];
        // SAFETY: the functions get what the C API asks for.
        good(unsafe { cuMemcpyDtoH_v2(from_mut(&mut words).cast(), self.words, 8) });
        words
    }

    unsafe fn handle(&self, graph: Handle, value: u32, flags: u32) -> u64 {
        // SAFETY: the functions get what the C API asks for.
        unsafe { made(|handle| cuGraphConditionalHandleCreate(handle, graph, self.context, value, flags)) }
    }

    unsafe fn kernel(
        &self,
        graph: Handle,
        after: &[Handle],
        func: Handle,
        parameters: &mut [*mut c_void],
    ) -> Handle {
        let given = CUDA_KERNEL_NODE_PARAMS_v2 {
            func,
            grid_dim_x: 1,
            grid_dim_y: 1,
            grid_dim_z: 1,
            block_dim_x: 1,
            block_dim_y: 1,
            block_dim_z: 1,
            kernel_params: parameters.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: the functions get what the C API asks for.
        unsafe { made(|node| cuGraphAddKernelNode_v2(node, graph, after.as_ptr(), after.len(), &given)) }
    }

    unsafe fn count_node(&self, graph: Handle, word: u64, limit: u32, handle: u64) -> Handle {
        let (mut word, mut limit, mut handle) = (word, limit, handle);
        let parameters =
            &mut [from_mut(&mut word).cast(), from_mut(&mut limit).cast(), from_mut(&mut handle).cast()];
        // SAFETY: the functions get what the C API asks for.
        unsafe { self.kernel(graph, &[], self.count, parameters) }
    }

    unsafe fn choose_node(&self, graph: Handle, handle: u64) -> Handle {
        let (mut word, mut handle) = (self.words, handle);
        let parameters = &mut [from_mut(&mut word).cast(), from_mut(&mut handle).cast()];
        // SAFETY: the functions get what the C API asks for.
        unsafe { self.kernel(graph, &[], self.choose, parameters) }
    }

    unsafe fn fill(&self, graph: Handle, dst: u64, value: u32) {
        let given = CUDA_MEMSET_NODE_PARAMS { dst, value, element_size: 4, width: 1, height: 1, pitch: 0 };
        let _: Handle =
            // SAFETY: the functions get what the C API asks for.
            unsafe { made(|node| cuGraphAddMemsetNode(node, graph, null(), 0, &given, self.context)) };
    }

    /// The code and the bodies of a conditional node.
    unsafe fn try_conditional(
        &self,
        graph: Handle,
        after: &[Handle],
        handle: u64,
        kind: u32,
        size: u32,
    ) -> (u32, Vec<Handle>) {
        let given = CUDA_CONDITIONAL_NODE_PARAMS { handle, kind, size, graphs: 0, ctx: self.context };
        let mut params = CUgraphNodeParams::of(CU_GRAPH_NODE_TYPE_CONDITIONAL, given);
        let mut node = 0;
        // SAFETY: the functions get what the C API asks for.
        unsafe {
            let code = cuGraphAddNode_v2(&mut node, graph, after.as_ptr(), null(), after.len(), &mut params);
            if code != 0 {
                return (code, Vec::new());
            }
            assert_eq!(made(|kind: *mut u32| cuGraphNodeGetType(node, kind)), CU_GRAPH_NODE_TYPE_CONDITIONAL);
            let filled: CUDA_CONDITIONAL_NODE_PARAMS = params.body();
            (0, std::slice::from_raw_parts(filled.graphs as *const Handle, size as usize).to_vec())
        }
    }

    unsafe fn conditional(
        &self,
        graph: Handle,
        after: &[Handle],
        handle: u64,
        kind: u32,
        size: u32,
    ) -> Vec<Handle> {
        // SAFETY: the functions get what the C API asks for.
        let (code, bodies) = unsafe { self.try_conditional(graph, after, handle, kind, size) };
        good(code);
        bodies
    }
}

unsafe fn run(exec: Handle) {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        good(cuGraphLaunch(exec, 0));
        good(cuStreamSynchronize(0));
    }
}

pub(super) unsafe fn repeated(context: Handle) {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        let stage = Stage::new(context);
        let graph: Handle = made(|graph| cuGraphCreate(graph, 0));
        let outer = stage.handle(graph, 1, ASSIGN);
        let inner = stage.handle(graph, 1, ASSIGN);
        let body = stage.conditional(graph, &[], outer, WHILE, 1)[0];
        stage.count_node(body, stage.words, 10, outer);
        assert_eq!(
            cuGraphInstantiateWithFlags(&mut 0, graph, 0),
            INVALID_VALUE,
            "the inner handle has no node"
        );
        // A loop in the loop, which runs at least once each time since its value is left at 0 or set to 1 at launch.
        let within = stage.conditional(body, &[], inner, WHILE, 1)[0];
        stage.count_node(within, stage.words + 4, 5, inner);
        let exec: Handle = made(|exec| cuGraphInstantiateWithFlags(exec, graph, 0));
        stage.write([0, 0]);
        run(exec);
        assert_eq!(stage.read(), [10, 5]);
        // Both begin with 1 again, so both bodies run once more.
        run(exec);
        assert_eq!(stage.read(), [11, 6]);
        // Two launches that are under way together.
        stage.write([0, 0]);
        good(cuGraphLaunch(exec, 0));
        good(cuGraphLaunch(exec, 0));
        good(cuGraphExecDestroy(exec));
        good(cuGraphDestroy(graph));
        good(cuStreamSynchronize(0));
        assert_eq!(stage.read(), [11, 6]);
    }
}

pub(super) unsafe fn choices(context: Handle) {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        let stage = Stage::new(context);
        let graph: Handle = made(|graph| cuGraphCreate(graph, 0));
        let (either, which) = (stage.handle(graph, 7, 0), stage.handle(graph, 0, ASSIGN));
        let chosen = [stage.choose_node(graph, either), stage.choose_node(graph, which)];
        let two = stage.conditional(graph, &chosen, either, IF, 2);
        stage.fill(two[0], stage.words + 4, 100);
        stage.fill(two[1], stage.words + 4, 200);
        let exec: Handle = {
            // The other handle has no node, so the graph cannot run.
            assert_eq!(cuGraphInstantiateWithFlags(&mut 0, graph, 0), INVALID_VALUE);
            let cases = stage.conditional(two[0], &[], which, SWITCH, 3);
            stage.fill(cases[1], stage.words, 11);
            stage.fill(cases[2], stage.words, 22);
            made(|exec| cuGraphInstantiateWithFlags(exec, graph, 0))
        };
        for (word, expected) in [(0, [0, 200]), (1, [11, 100]), (2, [22, 100]), (3, [3, 100])] {
            stage.write([word, 5]);
            run(exec);
            assert_eq!(stage.read(), expected, "for {word}");
        }
    }
}

pub(super) unsafe fn errors(context: Handle) {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        let stage = Stage::new(context);
        let (graph, other): (Handle, Handle) =
            (made(|graph| cuGraphCreate(graph, 0)), made(|graph| cuGraphCreate(graph, 0)));
        assert_eq!(cuGraphConditionalHandleCreate(&mut 0, graph, context, 0, 2), INVALID_VALUE);
        assert_eq!(cuGraphConditionalHandleCreate(&mut 0, 5, context, 0, 0), INVALID_VALUE);
        let handle = stage.handle(graph, 0, 0);
        let refused = |graph, handle, kind, size| {
            let (code, _) = stage.try_conditional(graph, &[], handle, kind, size);
            assert_eq!(code, INVALID_VALUE, "{kind} {size}");
        };
        refused(graph, handle, WHILE, 2);
        refused(graph, handle, IF, 0);
        refused(graph, handle, IF, 3);
        refused(graph, handle, SWITCH, 0);
        refused(graph, handle, 3, 1);
        refused(graph, handle + 1, IF, 1);
        refused(other, handle, IF, 1);
        let body = stage.conditional(graph, &[], handle, IF, 1)[0];
        refused(graph, handle, IF, 1);
        assert_eq!(cuGraphClone(&mut 0, graph), NOT_SUPPORTED);
        assert_eq!(cuGraphDestroy(body), INVALID_VALUE, "it ends with its node");
        let exec = made(|exec| cuGraphInstantiateWithFlags(exec, graph, 0));
        assert_eq!(cuGraphInstantiateWithFlags(&mut 0, graph, 0), NOT_SUPPORTED, "one at a time");
        good(cuGraphExecDestroy(exec));
        let host = CUDA_HOST_NODE_PARAMS { function: hold as *const () as u64, user_data: 0 };
        good(cuGraphAddHostNode(&mut 0, body, null(), 0, &host));
        assert_eq!(cuGraphInstantiateWithFlags(&mut 0, graph, 0), INVALID_VALUE);
    }
}
