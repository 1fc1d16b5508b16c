//! The real driver's functions that we call ourselves. Handles and addresses are plain words here.

#![allow(unsafe_code)]

use crate::real;
use crate::symbols::at;

macro_rules! calls {
    ($($(#[$meta:meta])* $name:ident = $symbol:ident ($($argument:ident: $ty:ty),* $(,)?);)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// As the CUDA documentation says: pointers must be good for what the function does with them.
        #[allow(clippy::too_many_arguments)]
        pub(crate) unsafe fn $name($($argument: $ty),*) -> u32 {
            // SAFETY: the symbol has this signature by CUDA's documentation; the rest is our caller's promise.
            unsafe {
                core::mem::transmute::<usize, unsafe extern "C" fn($($ty),*) -> u32>(real::address(at::$symbol))($($argument),*)
            }
        }
    )*};
}

calls! {
    /// cuCtxGetCurrent
    current = cuCtxGetCurrent(context: *mut usize);
    /// cuCtxPushCurrent
    push = cuCtxPushCurrent_v2(context: usize);
    /// cuCtxPopCurrent
    pop = cuCtxPopCurrent_v2(context: *mut usize);
    /// cuCtxSynchronize
    synchronize = cuCtxSynchronize();
    /// cuCtxGetDevice
    device = cuCtxGetDevice(device: *mut i32);
    /// cuDeviceGetName
    device_name = cuDeviceGetName(name: *mut u8, bytes: i32, device: i32);
    /// cuThreadExchangeStreamCaptureMode
    exchange_capture_mode = cuThreadExchangeStreamCaptureMode(mode: *mut u32);
    /// cuStreamIsCapturing
    is_capturing = cuStreamIsCapturing(stream: usize, status: *mut u32);
    /// cuStreamCreate
    stream_create = cuStreamCreate(stream: *mut usize, flags: u32);
    /// cuStreamDestroy
    stream_destroy = cuStreamDestroy_v2(stream: usize);
    /// cuStreamSynchronize
    stream_synchronize = cuStreamSynchronize(stream: usize);
    /// cuEventCreate
    event_create = cuEventCreate(event: *mut usize, flags: u32);
    /// cuEventRecord
    event_record = cuEventRecord(event: usize, stream: usize);
    /// cuEventQuery
    event_query = cuEventQuery(event: usize);
    /// cuEventElapsedTime
    event_elapsed = cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize);
    /// cuModuleLoadData
    module_load = cuModuleLoadData(module: *mut usize, image: *const u8);
    /// cuModuleGetFunction
    module_function = cuModuleGetFunction(function: *mut usize, module: usize, name: *const u8);
    /// cuModuleGetGlobal
    module_global = cuModuleGetGlobal_v2(address: *mut u64, bytes: *mut usize, module: usize, name: *const u8);
    /// cuLaunchKernel
    launch = cuLaunchKernel(
        function: usize, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32,
        stream: usize, parameters: *mut *mut u64, extra: usize,
    );
    /// cuMemcpyDtoH
    read = cuMemcpyDtoH_v2(target: *mut u8, source: u64, bytes: usize);
    /// cuMemcpyHtoD
    write = cuMemcpyHtoD_v2(target: u64, source: *const u8, bytes: usize);
    /// cuMemcpyHtoDAsync
    write_later = cuMemcpyHtoDAsync_v2(target: u64, source: *const u8, bytes: usize, stream: usize);
    /// cuMemAlloc
    allocate = cuMemAlloc_v2(address: *mut u64, bytes: usize);
    /// cuMemFree
    free = cuMemFree_v2(address: u64);
    /// cuMemAllocHost
    allocate_host = cuMemAllocHost_v2(address: *mut *mut u8, bytes: usize);
    /// cuMemFreeHost
    free_host = cuMemFreeHost(address: *mut u8);
    /// cuPointerGetAttribute
    pointer_attribute = cuPointerGetAttribute(value: *mut u32, attribute: u32, address: u64);
    /// cuFuncGetName
    function_name = cuFuncGetName(name: *mut *const i8, function: usize);
    /// cuKernelGetName
    kernel_name = cuKernelGetName(name: *mut *const i8, kernel: usize);
    /// cuGraphGetNodes
    graph_nodes = cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize);
    /// cuGraphNodeGetType
    node_type = cuGraphNodeGetType(node: usize, kind: *mut u32);
    /// cuGraphChildGraphNodeGetGraph
    child_graph = cuGraphChildGraphNodeGetGraph(node: usize, graph: *mut usize);
}

/// The context of the calling thread, 0 if it has none.
pub(crate) fn current_context() -> usize {
    let mut context = 0;
    // SAFETY: `context` is a place for the answer.
    if unsafe { current(&mut context) } == 0 { context } else { 0 }
}

/// CU_STREAM_CAPTURE_MODE_RELAXED
const RELAXED: u32 = 2;

/// Runs what a capture of another thread would forbid, without breaking that capture.
pub(crate) fn beside_captures<R>(body: impl FnOnce() -> R) -> R {
    let mut mode = RELAXED;
    // SAFETY: `mode` is read and written by the call.
    let is_exchanged = unsafe { exchange_capture_mode(&mut mode) } == 0;
    let result = body();
    if is_exchanged {
        // SAFETY: as above.
        unsafe { exchange_capture_mode(&mut mode) };
    }
    result
}

/// The name of the current context's device.
pub(crate) fn current_device_name() -> Option<String> {
    let mut number = 0;
    let mut name = [0u8; 256];
    // SAFETY: both are places for the answers, of the size that is said.
    let is_known = unsafe { device(&mut number) == 0 && device_name(name.as_mut_ptr(), 256, number) == 0 };
    let length = name.iter().position(|&byte| byte == 0)?;
    is_known.then(|| String::from_utf8_lossy(&name[..length]).into_owned())
}
