//! Green contexts.

use super::{
    Handle, INVALID_VALUE, NON_BLOCKING, NOT_READY, cuCtxRecordEvent, cuCtxSetCurrent, cuEventCreate,
};
use super::{
    cuEventQuery, cuEventRecord, cuEventSynchronize, cuLaunchHostFunc, cuStreamCreate, cuStreamQuery,
};
use super::{cuStreamSynchronize, good, hold, made, open};
use cuda_abi::{CUDA_LAUNCH_PARAMS, CUdevResource};
use std::{
    ffi::{c_char, c_void},
    ptr::{from_mut, null_mut},
};

unsafe extern "C" {
    fn cuCtxGetCurrent(context: *mut Handle) -> u32;
    fn cuCtxPushCurrent_v2(context: Handle) -> u32;
    fn cuCtxPopCurrent_v2(context: *mut Handle) -> u32;
    fn cuCtxSynchronize() -> u32;
    fn cuCtxGetDevResource(context: Handle, resource: *mut CUdevResource, kind: u32) -> u32;
    fn cuCtxFromGreenCtx(context: *mut Handle, green: Handle) -> u32;
    fn cuDeviceGetAttribute(value: *mut i32, attribute: u32, device: i32) -> u32;
    fn cuDeviceGetDevResource(device: i32, resource: *mut CUdevResource, kind: u32) -> u32;
    fn cuDevSmResourceSplitByCount(
        result: *mut CUdevResource,
        groups: *mut u32,
        input: *const CUdevResource,
        remainder: *mut CUdevResource,
        flags: u32,
        min_count: u32,
    ) -> u32;
    fn cuDevResourceGenerateDesc(description: *mut Handle, resources: *mut CUdevResource, count: u32) -> u32;
    fn cuGreenCtxCreate(green: *mut Handle, description: Handle, device: i32, flags: u32) -> u32;
    fn cuGreenCtxDestroy(green: Handle) -> u32;
    fn cuGreenCtxGetDevResource(green: Handle, resource: *mut CUdevResource, kind: u32) -> u32;
    fn cuGreenCtxGetId(green: Handle, id: *mut u64) -> u32;
    fn cuGreenCtxStreamCreate(stream: *mut Handle, green: Handle, flags: u32, priority: i32) -> u32;
    fn cuGreenCtxRecordEvent(green: Handle, event: Handle) -> u32;
    fn cuGreenCtxWaitEvent(green: Handle, event: Handle) -> u32;
    fn cuStreamGetCtx(stream: Handle, context: *mut Handle) -> u32;
    fn cuStreamGetCtx_v2(stream: Handle, context: *mut Handle, green: *mut Handle) -> u32;
    fn cuStreamGetGreenCtx(stream: Handle, green: *mut Handle) -> u32;
    fn cuLaunchCooperativeKernelMultiDevice(launches: *mut CUDA_LAUNCH_PARAMS, count: u32, flags: u32)
    -> u32;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> u32;
    fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> u32;
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> u32;
    fn cuLaunchKernel(
        function: Handle,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: Handle,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> u32;
}

const SM: u32 = 1;
const DEFAULT_STREAM: u32 = 1;
const MULTIPROCESSORS: u32 = 16;
const INVALID_CONTEXT: u32 = 201;
const INVALID_HANDLE: u32 = 400;
const NOT_SUPPORTED: u32 = 801;
const CONTEXT_IS_DESTROYED: u32 = 709;
const INVALID_RESOURCE_TYPE: u32 = 914;
const INVALID_RESOURCE_CONFIGURATION: u32 = 915;

/// Adds one to a word.
const ADD: &std::ffi::CStr = c".version 8.0
.target sm_90
.address_size 64
.visible .entry add(.param .u64 word) {
    .reg .u64 %address;
    .reg .u32 %value;
    ld.param.u64 %address, [word];
    ld.global.u32 %value, [%address];
    add.u32 %value, %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
";

unsafe fn device_whole() -> CUdevResource {
    let mut whole = CUdevResource::default();
    // SAFETY: the place is good.
    good(unsafe { cuDeviceGetDevResource(0, &mut whole, SM) });
    whole
}

/// A green context of two multiprocessors.
unsafe fn small() -> Handle {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        let (whole, mut group, mut groups) = (device_whole(), CUdevResource::default(), 1);
        good(cuDevSmResourceSplitByCount(&mut group, &mut groups, &whole, null_mut(), 0, 2));
        let description = made(|description| cuDevResourceGenerateDesc(description, &mut group, 1));
        made(|green| cuGreenCtxCreate(green, description, 0, DEFAULT_STREAM))
    }
}

pub(super) unsafe fn split() {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        let count = made(|value: *mut i32| cuDeviceGetAttribute(value, MULTIPROCESSORS, 0)) as u32;
        let whole = device_whole();
        assert_eq!((whole.kind, whole.sm[0]), (SM, count));
        assert_eq!(cuDeviceGetDevResource(0, &mut CUdevResource::default(), 7), INVALID_RESOURCE_TYPE);
        let mut groups = 0;
        good(cuDevSmResourceSplitByCount(null_mut(), &mut groups, &whole, null_mut(), 0, 2));
        assert_eq!(groups, count / 2, "counted only");

        let mut parts = [CUdevResource::default(); 300];
        let (mut groups, mut rest) = (1, CUdevResource::default());
        good(cuDevSmResourceSplitByCount(parts.as_mut_ptr(), &mut groups, &whole, &mut rest, 0, 1));
        assert_eq!((groups, parts[0].sm[0], parts[1].kind, rest.sm[0]), (1, 2, 0, count - 2));
        let mut all = 300;
        good(cuDevSmResourceSplitByCount(parts.as_mut_ptr(), &mut all, &whole, &mut rest, 0, 2));
        assert_eq!((all, rest.kind), (count / 2, 0), "nothing is left");

        let split = |input: &CUdevResource, least| {
            cuDevSmResourceSplitByCount(null_mut(), &mut 0, input, null_mut(), 0, least)
        };
        assert_eq!(split(&whole, count + 1), INVALID_VALUE);
        assert_eq!(split(&CUdevResource::default(), 2), INVALID_RESOURCE_TYPE);
        assert_eq!(split(&parts[0], 2), INVALID_RESOURCE_CONFIGURATION, "no green context has it yet");

        // Two groups together, split again from within.
        let description = made(|description| cuDevResourceGenerateDesc(description, parts.as_mut_ptr(), 2));
        let green: Handle = made(|green| cuGreenCtxCreate(green, description, 0, DEFAULT_STREAM));
        let mut own = CUdevResource::default();
        good(cuGreenCtxGetDevResource(green, &mut own, SM));
        assert_eq!(own.sm[0], 4);
        good(split(&own, 2));
        let mut half = CUdevResource::default();
        good(cuDevSmResourceSplitByCount(&mut half, &mut 1, &own, &mut rest, 0, 2));
        assert_eq!((half.sm[0], rest.sm[0]), (2, 2));
        let description = made(|description| cuDevResourceGenerateDesc(description, &mut half, 1));
        let inner: Handle = made(|green| cuGreenCtxCreate(green, description, 0, DEFAULT_STREAM));
        good(cuGreenCtxGetDevResource(inner, &mut own, SM));
        assert_eq!(own.sm[0], 2);

        assert_eq!(cuGreenCtxCreate(&mut 0, 12, 0, DEFAULT_STREAM), INVALID_VALUE);
        assert_eq!(
            cuDevResourceGenerateDesc(&mut 0, &mut CUdevResource::default(), 1),
            INVALID_RESOURCE_TYPE
        );
        assert_eq!(cuDevResourceGenerateDesc(&mut 0, &mut half, 0), INVALID_VALUE);
        good(cuGreenCtxDestroy(inner));
        assert_eq!(cuGreenCtxDestroy(inner), INVALID_CONTEXT);
    }
}

pub(super) unsafe fn work(primary: Handle) {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        let module: Handle = made(|module| cuModuleLoadData(module, ADD.as_ptr().cast()));
        let add: Handle = made(|function| cuModuleGetFunction(function, module, c"add".as_ptr()));
        let green = small();
        let context: Handle = made(|context| cuCtxFromGreenCtx(context, green));
        assert!(context != primary && context != green);
        let id = made(|id: *mut u64| cuGreenCtxGetId(green, id));
        assert_eq!(cuGreenCtxGetId(0, &mut 0), INVALID_CONTEXT, "none is current");

        good(cuCtxPushCurrent_v2(context));
        assert_eq!(made(|current: *mut Handle| cuCtxGetCurrent(current)), context);
        assert_eq!(made(|id: *mut u64| cuGreenCtxGetId(0, id)), id);
        let mut own = CUdevResource::default();
        assert_eq!(cuCtxGetDevResource(0, &mut own, SM), INVALID_CONTEXT, "as an H200 answers");
        good(cuCtxGetDevResource(context, &mut own, SM));
        assert_eq!(own.sm[0], 2);
        // Memory that was made through it is the primary context's.
        let mut word: u64 = made(|address| cuMemAlloc_v2(address, 4));
        let zero = 0_u32;
        good(super::cuMemcpyHtoD_v2(word, std::ptr::from_ref(&zero).cast(), 4));
        let launch = |stream: Handle, word: &mut u64| {
            let mut parameters = [from_mut(word).cast::<c_void>()];
            good(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), null_mut()));
        };
        let (own_stream, created): (Handle, Handle) = (
            made(|stream| cuGreenCtxStreamCreate(stream, green, NON_BLOCKING, 0)),
            made(|stream| cuStreamCreate(stream, 0)),
        );
        assert_eq!(cuGreenCtxStreamCreate(&mut 0, green, 0, 0), INVALID_VALUE, "it must not block");
        for stream in [0, own_stream, created] {
            launch(stream, &mut word);
            good(cuStreamSynchronize(stream));
            assert_eq!(made(|of: *mut Handle| cuStreamGetGreenCtx(stream, of)), green);
            assert_eq!(made(|of: *mut Handle| cuStreamGetCtx(stream, of)), context);
            let mut both = (0, 0);
            good(cuStreamGetCtx_v2(stream, &mut both.0, &mut both.1));
            assert_eq!(both, (primary, green));
        }
        const PER_THREAD: Handle = 2;
        assert_eq!(cuStreamQuery(PER_THREAD), INVALID_HANDLE);
        good(cuCtxSynchronize());
        assert_eq!(made(|popped: *mut Handle| cuCtxPopCurrent_v2(popped)), context);

        assert_eq!(made(|current: *mut Handle| cuCtxGetCurrent(current)), primary);
        assert_eq!(made(|of: *mut Handle| cuStreamGetGreenCtx(0, of)), 0);
        // A stream of it is used while the primary context is current.
        launch(own_stream, &mut word);
        cooperative(add, own_stream, &mut word);
        let event: Handle = made(|event| cuEventCreate(event, 0));
        good(cuEventRecord(event, own_stream));
        good(cuEventSynchronize(event));
        good(cuCtxSetCurrent(context));
        good(cuGreenCtxDestroy(green));
        assert_eq!(cuStreamSynchronize(0), CONTEXT_IS_DESTROYED);
        good(cuCtxSetCurrent(primary));
        let mut read = 0_u32;
        good(cuMemcpyDtoH_v2(from_mut(&mut read).cast(), word, 4));
        assert_eq!(read, 5, "memory outlives the green context");
        assert_eq!(cuCtxPushCurrent_v2(context), INVALID_CONTEXT);
    }
}

/// A cooperative launch over one device; over two it is refused.
unsafe fn cooperative(function: Handle, stream: Handle, word: &mut u64) {
    let mut parameters = [from_mut(word).cast::<c_void>()];
    let mut once = CUDA_LAUNCH_PARAMS {
        function,
        grid_dim: [1; 3],
        block_dim: [1; 3],
        shared_mem_bytes: 0,
        stream,
        kernel_params: parameters.as_mut_ptr() as u64,
    };
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        good(cuLaunchCooperativeKernelMultiDevice(&mut once, 1, 0));
        assert_eq!(cuLaunchCooperativeKernelMultiDevice(&mut once, 0, 0), INVALID_VALUE);
        once.stream = 0;
        assert_eq!(cuLaunchCooperativeKernelMultiDevice(&mut once, 1, 0), INVALID_VALUE);
        assert_eq!(cuLaunchCooperativeKernelMultiDevice([once, once].as_mut_ptr(), 2, 0), NOT_SUPPORTED);
    }
}

pub(super) unsafe fn events(primary: Handle) {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        let (one, two) = (small(), small());
        let stream =
            |green| made(|stream: *mut Handle| cuGreenCtxStreamCreate(stream, green, NON_BLOCKING, 0));
        let (held, free) = (stream(one), stream(two));
        let event = || made(|event: *mut Handle| cuEventCreate(event, 0));
        let (of_one, of_two, of_all) = (event(), event(), event());
        good(cuLaunchHostFunc(held, hold, null_mut()));
        good(cuGreenCtxRecordEvent(one, of_one));
        good(cuGreenCtxRecordEvent(two, of_two));
        good(cuCtxRecordEvent(primary, of_all));
        good(cuEventSynchronize(of_two));
        assert_eq!(cuEventQuery(of_one), NOT_READY);
        assert_eq!(cuEventQuery(of_all), NOT_READY, "a primary context has its green contexts' work");
        good(cuGreenCtxWaitEvent(two, of_one));
        let later = stream(two);
        assert_eq!(cuStreamQuery(free), NOT_READY);
        assert_eq!(cuStreamQuery(later), NOT_READY);
        let plain: Handle = made(|stream| cuStreamCreate(stream, NON_BLOCKING));
        good(cuStreamSynchronize(plain));
        open();
        for event in [of_one, of_all] {
            good(cuEventSynchronize(event));
        }
        for stream in [free, later] {
            good(cuStreamSynchronize(stream));
        }
        good(cuGreenCtxDestroy(one));
        good(cuGreenCtxDestroy(two));
    }
}
