//! The machine's libcuda: the functions we call, found once by name.
//!
//! Types follow CUDA's documented C interface; a test compares their layouts with the bindings of the `cudarc` crate.
//! Codes and options are plain integers here, unlike in such bindings: a newer driver may return a code that no Rust
//! `enum` of ours knows, and that would be undefined behaviour.

#![allow(unsafe_code)]

use cuda_abi::{CuResult, CudaError};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// A `CUdeviceptr`.
pub(crate) type DeviceAddress = u64;

macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub(crate) struct $name(pub(crate) *mut c_void);

        // SAFETY: a handle is a name that only the driver looks behind, and the driver API may be called from any
        // thread.
        unsafe impl Send for $name {}
        // SAFETY: as above; the name itself is never changed.
        unsafe impl Sync for $name {}

        impl Default for $name {
            fn default() -> Self {
                Self(std::ptr::null_mut())
            }
        }
    )*};
}

handles! {
    /// `CUcontext`
    Context;
    /// `CUgreenCtx`
    GreenContext;
    /// `CUdevResourceDesc`
    ResourceList;
    /// `CUstream`
    Stream;
    /// `CUevent`
    Event;
    /// `CUmodule`
    Module;
    /// `CUfunction`
    Function;
    /// `CUlinkState`
    LinkState;
    /// `CUgraph`
    Graph;
    /// `CUgraphNode`
    GraphNode;
    /// `CUgraphExec`
    GraphExec;
    /// `CUarray`
    Array;
    /// `CUmipmappedArray`
    MipmappedArray;
    /// `CUtexref`
    TextureReference;
    /// `CUsurfref`
    SurfaceReference;
}

/// `CU_STREAM_LEGACY`: the legacy stream of the current context.
pub(crate) const STREAM_LEGACY: usize = 1;

/// `CUmemLocation` of a device.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct MemLocation {
    pub(crate) kind: c_uint,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MemAllocationProp {
    pub(crate) kind: c_uint,
    pub(crate) handle_types: c_uint,
    pub(crate) location: MemLocation,
    pub(crate) win32: *mut c_void,
    pub(crate) flags: [u8; 8],
}

/// `CUipcEventHandle`, which the driver takes by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

/// `CUmemAccessDesc`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MemAccess {
    pub(crate) location: MemLocation,
    pub(crate) flags: c_uint,
}

/// `CUlaunchAttribute`
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct LaunchAttribute {
    pub(crate) id: c_uint,
    pub(crate) pad: [u8; 4],
    pub(crate) value: [u8; 64],
}

/// `CUlaunchConfig`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: Stream,
    pub(crate) attributes: *mut LaunchAttribute,
    pub(crate) attribute_count: c_uint,
}

/// `CUDA_MEMCPY2D`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Copy2D {
    pub(crate) source_x: usize,
    pub(crate) source_y: usize,
    pub(crate) source_type: c_uint,
    pub(crate) source_host: usize,
    pub(crate) source_device: DeviceAddress,
    pub(crate) source_array: usize,
    pub(crate) source_pitch: usize,
    pub(crate) target_x: usize,
    pub(crate) target_y: usize,
    pub(crate) target_type: c_uint,
    pub(crate) target_host: usize,
    pub(crate) target_device: DeviceAddress,
    pub(crate) target_array: usize,
    pub(crate) target_pitch: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUDA_MEMCPY3D`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Copy3D {
    pub(crate) source_x: usize,
    pub(crate) source_y: usize,
    pub(crate) source_z: usize,
    pub(crate) source_lod: usize,
    pub(crate) source_type: c_uint,
    pub(crate) source_host: usize,
    pub(crate) source_device: DeviceAddress,
    pub(crate) source_array: usize,
    pub(crate) reserved0: usize,
    pub(crate) source_pitch: usize,
    pub(crate) source_height: usize,
    pub(crate) target_x: usize,
    pub(crate) target_y: usize,
    pub(crate) target_z: usize,
    pub(crate) target_lod: usize,
    pub(crate) target_type: c_uint,
    pub(crate) target_host: usize,
    pub(crate) target_device: DeviceAddress,
    pub(crate) target_array: usize,
    pub(crate) reserved1: usize,
    pub(crate) target_pitch: usize,
    pub(crate) target_height: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// `CU_MEMORYTYPE_HOST`
pub(crate) const MEMORY_HOST: c_uint = 1;
/// `CU_MEMORYTYPE_DEVICE`
pub(crate) const MEMORY_DEVICE: c_uint = 2;

/// `CU_MEMORYTYPE_ARRAY`
pub(crate) const MEMORY_ARRAY: c_uint = 3;

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ArrayDescriptor {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
    pub(crate) flags: c_uint,
}

/// `CUDA_ARRAY_DESCRIPTOR`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ArrayDescriptor2D {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
}

/// `CUDA_RESOURCE_DESC`
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct ResourceDescriptor {
    pub(crate) kind: c_uint,
    pub(crate) pad: [u8; 4],
    pub(crate) resource: [u8; 128],
    pub(crate) flags: c_uint,
}

impl Default for ResourceDescriptor {
    fn default() -> Self {
        Self { kind: 0, pad: [0; 4], resource: [0; 128], flags: 0 }
    }
}

/// `CUDA_TEXTURE_DESC`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct TextureDescriptor {
    pub(crate) address_modes: [c_uint; 3],
    pub(crate) filter_mode: c_uint,
    pub(crate) flags: c_uint,
    pub(crate) max_anisotropy: c_uint,
    pub(crate) mipmap_filter_mode: c_uint,
    pub(crate) mipmap_level_bias: f32,
    pub(crate) min_mipmap_level_clamp: f32,
    pub(crate) max_mipmap_level_clamp: f32,
    pub(crate) border_color: [f32; 4],
    pub(crate) reserved: [c_int; 12],
}

/// `CUDA_RESOURCE_VIEW_DESC`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ViewDescriptor {
    pub(crate) format: c_uint,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) first_level: c_uint,
    pub(crate) last_level: c_uint,
    pub(crate) first_layer: c_uint,
    pub(crate) last_layer: c_uint,
    pub(crate) reserved: [c_uint; 16],
}

/// `CUDA_KERNEL_NODE_PARAMS`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct KernelNode {
    pub(crate) function: Function,
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) parameters: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
    pub(crate) kernel: *mut c_void,
    pub(crate) context: Context,
}

/// `CUgraphNodeParams` of a conditional node.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct NodeParams {
    pub(crate) kind: c_uint,
    pub(crate) reserved: [c_int; 3],
    pub(crate) handle: u64,
    pub(crate) condition: c_uint,
    pub(crate) size: c_uint,
    /// The driver puts the bodies here.
    pub(crate) bodies: *mut Graph,
    pub(crate) context: Context,
    pub(crate) unused: [u64; 25],
    pub(crate) reserved2: i64,
}

/// `CU_GRAPH_NODE_TYPE_CONDITIONAL`
pub(crate) const NODE_CONDITIONAL: c_uint = 13;

/// `CUDA_MEMSET_NODE_PARAMS`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MemsetNode {
    pub(crate) target: DeviceAddress,
    pub(crate) pitch: usize,
    pub(crate) value: c_uint,
    pub(crate) element_bytes: c_uint,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct HostNode {
    pub(crate) function: HostFunction,
    pub(crate) argument: *mut c_void,
}

/// `CUstreamBatchMemOpParams`: 48 bytes, of which waits and writes use the first five fields.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct BatchMemOp {
    pub(crate) operation: c_uint,
    pub(crate) address: DeviceAddress,
    pub(crate) value: u64,
    pub(crate) flags: c_uint,
    pub(crate) alias: DeviceAddress,
    pub(crate) pad: u64,
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct BatchMemOpNode {
    pub(crate) context: Context,
    pub(crate) count: c_uint,
    pub(crate) ops: *mut BatchMemOp,
    pub(crate) flags: c_uint,
}

/// `CUctxCreateParams`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ContextCreate {
    pub(crate) affinity: *mut c_void,
    pub(crate) affinity_count: c_int,
    pub(crate) cig: *mut c_void,
}

/// `CUhostFn`
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// Why the machine's driver cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is none.
    #[error("libcuda.so.1 cannot be loaded: is the NVIDIA driver installed?")]
    Library(#[source] libloading::Error),
    /// It is too old.
    #[error("libcuda.so.1 has no {name}: CUDA 12.8 or newer is needed")]
    Symbol {
        /// What it lacks.
        name: &'static str,
        /// Why it was not found.
        source: libloading::Error,
    },
}

/// `CUdevResource`: of it only the kind and what it says of multiprocessors are ours to read.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DevResource {
    pub(crate) kind: c_uint,
    pub(crate) internal: [u8; 92],
    pub(crate) sm: [c_uint; 10],
    pub(crate) next: u64,
}

/// `CU_DEV_RESOURCE_TYPE_SM`
pub(crate) const RESOURCE_SM: c_uint = 1;

impl Default for DevResource {
    fn default() -> Self {
        Self { kind: 0, internal: [0; 92], sm: [0; 10], next: 0 }
    }
}

macro_rules! api {
    ($($name:ident = $symbol:literal ($($argument:ident: $ty:ty),* $(,)?);)*) => {
        /// The functions of the machine's driver that we call.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Api {
            /// NVIDIA's library.
            Library(&'static Functions),
            /// A model of it, for tests on machines without a GPU.
            #[cfg(test)]
            Fake(&'static crate::fake::Fake),
        }

        /// The library's functions, as it exports them.
        #[derive(Debug)]
        pub(crate) struct Functions {
            $($name: unsafe extern "C" fn($($ty),*) -> u32,)*
        }

        impl Api {
            /// Loads the library, for good.
            pub(crate) fn load() -> Result<Self, LoadError> {
                // SAFETY: the NVIDIA driver's initialisers are made to run in any program.
                let library = unsafe { libloading::Library::new("libcuda.so.1") }.map_err(LoadError::Library)?;
                let functions = Functions {
                    $($name: {
                        let name = $symbol;
                        // SAFETY: the symbol has this signature by CUDA's documentation.
                        let symbol = unsafe { library.get(name.as_bytes()) };
                        *symbol.map_err(|source| LoadError::Symbol { name, source })?
                    },)*
                };
                // Its threads run until the process ends, so the code must stay.
                std::mem::forget(library);
                Ok(Self::Library(Box::leak(Box::new(functions))))
            }

            $(
                #[doc = concat!("`", $symbol, "`")]
                ///
                /// # Safety
                ///
                /// As the CUDA documentation says: pointers must be valid for what the function does with them.
                #[inline]
                #[allow(clippy::too_many_arguments)]
                pub(crate) unsafe fn $name(&self, $($argument: $ty),*) -> CuResult<()> {
                    match self {
                        // SAFETY: our caller's promise.
                        Self::Library(functions) => check(unsafe { (functions.$name)($($argument),*) }),
                        #[cfg(test)]
                        Self::Fake(fake) => fake.call($symbol, || fake.$name($($argument),*)),
                    }
                }
            )*
        }
    };
}

/// cuTensorMapEncodeIm2colWide
pub(crate) type EncodeIm2colWide = unsafe extern "C" fn(
    *mut c_void,
    c_uint,
    c_uint,
    *mut c_void,
    *const u64,
    *const u64,
    c_int,
    c_int,
    c_uint,
    c_uint,
    *const c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
) -> c_uint;

impl Api {
    /// A function that not every driver has which we work with.
    ///
    /// # Safety
    ///
    /// `T` is the type of a pointer to this function.
    pub(crate) unsafe fn later_function<T: Copy>(&self, name: &str) -> Option<T> {
        match self {
            Self::Library(_) => {
                // SAFETY: the library is loaded already, for good.
                let library = unsafe { libloading::Library::new("libcuda.so.1") }.ok()?;
                // SAFETY: our caller's promise.
                let found = unsafe { library.get::<T>(name.as_bytes()) }.ok().map(|symbol| *symbol);
                std::mem::forget(library);
                found
            }
            #[cfg(test)]
            Self::Fake(_) => None,
        }
    }
}

impl Api {
    /// The address of some code of the library. `None`: it is a model.
    pub(crate) fn code_address(&self) -> Option<usize> {
        match self {
            Self::Library(functions) => Some(functions.init as usize),
            #[cfg(test)]
            Self::Fake(_) => None,
        }
    }
}

/// A driver's answer as ours.
#[inline]
pub(crate) fn check(code: u32) -> CuResult<()> {
    match CudaError::from_code(code) {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

api! {
    init = "cuInit" (flags: c_uint);
    driver_version = "cuDriverGetVersion" (version: *mut c_int);
    device_count = "cuDeviceGetCount" (count: *mut c_int);
    device_name = "cuDeviceGetName" (name: *mut c_char, bytes: c_int, device: c_int);
    device_uuid = "cuDeviceGetUuid_v2" (uuid: *mut [u8; 16], device: c_int);
    device_memory = "cuDeviceTotalMem_v2" (bytes: *mut usize, device: c_int);
    device_attribute = "cuDeviceGetAttribute" (value: *mut c_int, attribute: c_uint, device: c_int);
    primary_retain = "cuDevicePrimaryCtxRetain" (context: *mut Context, device: c_int);
    context_create = "cuCtxCreate_v4" (context: *mut Context, params: *mut ContextCreate, flags: c_uint, device: c_int);
    context_destroy = "cuCtxDestroy_v2" (context: Context);
    context_set_current = "cuCtxSetCurrent" (context: Context);
    context_synchronize = "cuCtxSynchronize" ();
    context_set_limit = "cuCtxSetLimit" (limit: c_uint, value: usize);
    context_get_limit = "cuCtxGetLimit" (value: *mut usize, limit: c_uint);
    context_priorities = "cuCtxGetStreamPriorityRange" (least: *mut c_int, greatest: *mut c_int);
    context_enable_peer = "cuCtxEnablePeerAccess" (peer: Context, flags: c_uint);
    context_disable_peer = "cuCtxDisablePeerAccess" (peer: Context);
    device_resource = "cuDeviceGetDevResource" (device: c_int, resource: *mut DevResource, kind: c_uint);
    resource_split = "cuDevSmResourceSplitByCount" (groups: *mut DevResource, count: *mut c_uint, input: *const DevResource, rest: *mut DevResource, flags: c_uint, least: c_uint);
    resource_list = "cuDevResourceGenerateDesc" (list: *mut ResourceList, resources: *mut DevResource, count: c_uint);
    green_create = "cuGreenCtxCreate" (green: *mut GreenContext, list: ResourceList, device: c_int, flags: c_uint);
    green_destroy = "cuGreenCtxDestroy" (green: GreenContext);
    green_resource = "cuGreenCtxGetDevResource" (green: GreenContext, resource: *mut DevResource, kind: c_uint);
    green_context = "cuCtxFromGreenCtx" (context: *mut Context, green: GreenContext);
    green_stream_create = "cuGreenCtxStreamCreate" (stream: *mut Stream, green: GreenContext, flags: c_uint, priority: c_int);
    memory_info = "cuMemGetInfo_v2" (free: *mut usize, total: *mut usize);
    memory_granularity = "cuMemGetAllocationGranularity" (bytes: *mut usize, prop: *const MemAllocationProp, option: c_uint);
    address_reserve = "cuMemAddressReserve" (address: *mut DeviceAddress, bytes: usize, align: usize, hint: DeviceAddress, flags: u64);
    address_free = "cuMemAddressFree" (address: DeviceAddress, bytes: usize);
    memory_create = "cuMemCreate" (handle: *mut u64, bytes: usize, prop: *const MemAllocationProp, flags: u64);
    memory_release = "cuMemRelease" (handle: u64);
    memory_export = "cuMemExportToShareableHandle" (out: *mut c_void, handle: u64, kind: c_uint, flags: u64);
    memory_import = "cuMemImportFromShareableHandle" (handle: *mut u64, from: *mut c_void, kind: c_uint);
    memory_map = "cuMemMap" (address: DeviceAddress, bytes: usize, offset: usize, handle: u64, flags: u64);
    memory_unmap = "cuMemUnmap" (address: DeviceAddress, bytes: usize);
    memory_set_access = "cuMemSetAccess" (address: DeviceAddress, bytes: usize, access: *const MemAccess, count: usize);
    host_register = "cuMemHostRegister_v2" (start: *mut c_void, bytes: usize, flags: c_uint);
    host_unregister = "cuMemHostUnregister" (start: *mut c_void);
    host_device_pointer = "cuMemHostGetDevicePointer_v2" (address: *mut DeviceAddress, start: *mut c_void, flags: c_uint);
    copy_in = "cuMemcpyHtoDAsync_v2" (target: DeviceAddress, source: *const c_void, bytes: usize, stream: Stream);
    copy_out = "cuMemcpyDtoHAsync_v2" (target: *mut c_void, source: DeviceAddress, bytes: usize, stream: Stream);
    copy_device = "cuMemcpyDtoDAsync_v2" (target: DeviceAddress, source: DeviceAddress, bytes: usize, stream: Stream);
    copy_2d = "cuMemcpy2DAsync_v2" (copy: *const Copy2D, stream: Stream);
    copy_3d = "cuMemcpy3DAsync_v2" (copy: *const Copy3D, stream: Stream);
    array_create = "cuArray3DCreate_v2" (array: *mut Array, descriptor: *const ArrayDescriptor);
    array_destroy = "cuArrayDestroy" (array: Array);
    mipmapped_create = "cuMipmappedArrayCreate" (array: *mut MipmappedArray, descriptor: *const ArrayDescriptor, levels: c_uint);
    mipmapped_level = "cuMipmappedArrayGetLevel" (level: *mut Array, array: MipmappedArray, number: c_uint);
    mipmapped_destroy = "cuMipmappedArrayDestroy" (array: MipmappedArray);
    texture_create = "cuTexObjectCreate" (handle: *mut u64, resource: *const ResourceDescriptor, texture: *const TextureDescriptor, view: *const ViewDescriptor);
    texture_destroy = "cuTexObjectDestroy" (handle: u64);
    surface_create = "cuSurfObjectCreate" (handle: *mut u64, resource: *const ResourceDescriptor);
    surface_destroy = "cuSurfObjectDestroy" (handle: u64);
    module_texture = "cuModuleGetTexRef" (reference: *mut TextureReference, module: Module, name: *const c_char);
    module_surface = "cuModuleGetSurfRef" (reference: *mut SurfaceReference, module: Module, name: *const c_char);
    texture_set_array = "cuTexRefSetArray" (reference: TextureReference, array: Array, flags: c_uint);
    texture_set_mipmapped = "cuTexRefSetMipmappedArray" (reference: TextureReference, array: MipmappedArray, flags: c_uint);
    texture_set_address = "cuTexRefSetAddress_v2" (offset: *mut usize, reference: TextureReference, address: DeviceAddress, bytes: usize);
    texture_set_rows = "cuTexRefSetAddress2D_v3" (reference: TextureReference, descriptor: *const ArrayDescriptor2D, address: DeviceAddress, pitch: usize);
    texture_set_format = "cuTexRefSetFormat" (reference: TextureReference, format: c_uint, channels: c_int);
    texture_set_address_mode = "cuTexRefSetAddressMode" (reference: TextureReference, dimension: c_int, mode: c_uint);
    texture_set_filter = "cuTexRefSetFilterMode" (reference: TextureReference, mode: c_uint);
    texture_set_flags = "cuTexRefSetFlags" (reference: TextureReference, flags: c_uint);
    texture_set_anisotropy = "cuTexRefSetMaxAnisotropy" (reference: TextureReference, most: c_uint);
    texture_set_mipmap_filter = "cuTexRefSetMipmapFilterMode" (reference: TextureReference, mode: c_uint);
    texture_set_bias = "cuTexRefSetMipmapLevelBias" (reference: TextureReference, bias: f32);
    texture_set_clamp = "cuTexRefSetMipmapLevelClamp" (reference: TextureReference, least: f32, most: f32);
    texture_set_border = "cuTexRefSetBorderColor" (reference: TextureReference, color: *const [f32; 4]);
    surface_set_array = "cuSurfRefSetArray" (reference: SurfaceReference, array: Array, flags: c_uint);
    fill_8 = "cuMemsetD8Async" (target: DeviceAddress, value: u8, count: usize, stream: Stream);
    fill_16 = "cuMemsetD16Async" (target: DeviceAddress, value: u16, count: usize, stream: Stream);
    fill_32 = "cuMemsetD32Async" (target: DeviceAddress, value: c_uint, count: usize, stream: Stream);
    fill_2d_8 = "cuMemsetD2D8Async" (target: DeviceAddress, pitch: usize, value: u8, width: usize, height: usize, stream: Stream);
    fill_2d_16 = "cuMemsetD2D16Async" (target: DeviceAddress, pitch: usize, value: u16, width: usize, height: usize, stream: Stream);
    fill_2d_32 = "cuMemsetD2D32Async" (target: DeviceAddress, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream);
    module_load = "cuModuleLoadDataEx" (module: *mut Module, image: *const c_void, count: c_uint, options: *mut c_uint, values: *mut *mut c_void);
    module_unload = "cuModuleUnload" (module: Module);
    module_function_count = "cuModuleGetFunctionCount" (count: *mut c_uint, module: Module);
    module_functions = "cuModuleEnumerateFunctions" (functions: *mut Function, count: c_uint, module: Module);
    module_variable = "cuModuleGetGlobal_v2" (address: *mut DeviceAddress, bytes: *mut usize, module: Module, name: *const c_char);
    pointer_attribute = "cuPointerGetAttribute" (value: *mut c_void, attribute: c_uint, address: DeviceAddress);
    function_name = "cuFuncGetName" (name: *mut *const c_char, function: Function);
    function_parameter = "cuFuncGetParamInfo" (function: Function, index: usize, offset: *mut usize, bytes: *mut usize);
    function_attribute = "cuFuncGetAttribute" (value: *mut c_int, attribute: c_uint, function: Function);
    function_load = "cuFuncLoad" (function: Function);
    function_set_attribute = "cuFuncSetAttribute" (function: Function, attribute: c_uint, value: c_int);
    active_clusters = "cuOccupancyMaxActiveClusters" (count: *mut c_int, function: Function, config: *const LaunchConfig);
    largest_cluster = "cuOccupancyMaxPotentialClusterSize" (blocks: *mut c_int, function: Function, config: *const LaunchConfig);
    link_create = "cuLinkCreate_v2" (count: c_uint, options: *mut c_uint, values: *mut *mut c_void, state: *mut LinkState);
    link_add = "cuLinkAddData_v2" (state: LinkState, kind: c_uint, data: *mut c_void, bytes: usize, name: *const c_char, count: c_uint, options: *mut c_uint, values: *mut *mut c_void);
    link_complete = "cuLinkComplete" (state: LinkState, cubin: *mut *mut c_void, bytes: *mut usize);
    link_destroy = "cuLinkDestroy" (state: LinkState);
    launch = "cuLaunchKernelEx" (config: *const LaunchConfig, function: Function, parameters: *mut *mut c_void, extra: *mut *mut c_void);
    launch_host = "cuLaunchHostFunc" (stream: Stream, function: HostFunction, argument: *mut c_void);
    stream_create = "cuStreamCreateWithPriority" (stream: *mut Stream, flags: c_uint, priority: c_int);
    stream_destroy = "cuStreamDestroy_v2" (stream: Stream);
    stream_synchronize = "cuStreamSynchronize" (stream: Stream);
    stream_query = "cuStreamQuery" (stream: Stream);
    stream_wait_event = "cuStreamWaitEvent" (stream: Stream, event: Event, flags: c_uint);
    stream_wait_value = "cuStreamWaitValue64_v2" (stream: Stream, address: DeviceAddress, value: u64, flags: c_uint);
    stream_write_value = "cuStreamWriteValue64_v2" (stream: Stream, address: DeviceAddress, value: u64, flags: c_uint);
    stream_memory_ops = "cuStreamBatchMemOp_v2" (stream: Stream, count: c_uint, ops: *mut BatchMemOp, flags: c_uint);
    event_create = "cuEventCreate" (event: *mut Event, flags: c_uint);
    event_destroy = "cuEventDestroy_v2" (event: Event);
    event_export = "cuIpcGetEventHandle" (handle: *mut IpcHandle, event: Event);
    event_import = "cuIpcOpenEventHandle" (event: *mut Event, handle: IpcHandle);
    event_record = "cuEventRecordWithFlags" (event: Event, stream: Stream, flags: c_uint);
    event_query = "cuEventQuery" (event: Event);
    event_synchronize = "cuEventSynchronize" (event: Event);
    event_elapsed = "cuEventElapsedTime_v2" (milliseconds: *mut f32, start: Event, end: Event);
    graph_create = "cuGraphCreate" (graph: *mut Graph, flags: c_uint);
    graph_destroy = "cuGraphDestroy" (graph: Graph);
    graph_add_empty = "cuGraphAddEmptyNode" (node: *mut GraphNode, graph: Graph, after: *const GraphNode, count: usize);
    graph_conditional_handle = "cuGraphConditionalHandleCreate" (handle: *mut u64, graph: Graph, context: Context, value: c_uint, flags: c_uint);
    graph_add_node = "cuGraphAddNode_v2" (node: *mut GraphNode, graph: Graph, after: *const GraphNode, edges: *const c_void, count: usize, params: *mut NodeParams);
    graph_add_kernel = "cuGraphAddKernelNode_v2" (node: *mut GraphNode, graph: Graph, after: *const GraphNode, count: usize, params: *const KernelNode);
    graph_add_memset = "cuGraphAddMemsetNode" (node: *mut GraphNode, graph: Graph, after: *const GraphNode, count: usize, params: *const MemsetNode, context: Context);
    graph_add_copy = "cuGraphAddMemcpyNode" (node: *mut GraphNode, graph: Graph, after: *const GraphNode, count: usize, params: *const Copy3D, context: Context);
    graph_add_host = "cuGraphAddHostNode" (node: *mut GraphNode, graph: Graph, after: *const GraphNode, count: usize, params: *const HostNode);
    graph_add_record = "cuGraphAddEventRecordNode" (node: *mut GraphNode, graph: Graph, after: *const GraphNode, count: usize, event: Event);
    graph_add_wait = "cuGraphAddEventWaitNode" (node: *mut GraphNode, graph: Graph, after: *const GraphNode, count: usize, event: Event);
    graph_add_memory_ops = "cuGraphAddBatchMemOpNode" (node: *mut GraphNode, graph: Graph, after: *const GraphNode, count: usize, params: *const BatchMemOpNode);
    graph_kernel_attribute = "cuGraphKernelNodeSetAttribute" (node: GraphNode, attribute: c_uint, value: *const [u8; 64]);
    graph_instantiate = "cuGraphInstantiateWithFlags" (exec: *mut GraphExec, graph: Graph, flags: u64);
    graph_launch = "cuGraphLaunch" (exec: GraphExec, stream: Stream);
    graph_upload = "cuGraphUpload" (exec: GraphExec, stream: Stream);
    graph_exec_destroy = "cuGraphExecDestroy" (exec: GraphExec);
}

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::sys as reference;
    use std::mem::{offset_of, size_of};

    #[test]
    fn layouts_are_those_of_cuda() {
        assert_eq!(size_of::<MemAllocationProp>(), size_of::<reference::CUmemAllocationProp>());
        assert_eq!(
            offset_of!(MemAllocationProp, location),
            offset_of!(reference::CUmemAllocationProp, location)
        );
        assert_eq!(size_of::<MemAccess>(), size_of::<reference::CUmemAccessDesc>());
        assert_eq!(size_of::<LaunchAttribute>(), size_of::<reference::CUlaunchAttribute>());
        assert_eq!(offset_of!(LaunchAttribute, value), offset_of!(reference::CUlaunchAttribute, value));
        assert_eq!(size_of::<LaunchConfig>(), size_of::<reference::CUlaunchConfig>());
        assert_eq!(offset_of!(LaunchConfig, stream), offset_of!(reference::CUlaunchConfig, hStream));
        assert_eq!(offset_of!(LaunchConfig, attributes), offset_of!(reference::CUlaunchConfig, attrs));
        assert_eq!(size_of::<Copy2D>(), size_of::<reference::CUDA_MEMCPY2D>());
        assert_eq!(offset_of!(Copy2D, target_type), offset_of!(reference::CUDA_MEMCPY2D, dstMemoryType));
        assert_eq!(size_of::<Copy3D>(), size_of::<reference::CUDA_MEMCPY3D>());
        assert_eq!(offset_of!(Copy3D, target_type), offset_of!(reference::CUDA_MEMCPY3D, dstMemoryType));
        assert_eq!(offset_of!(Copy3D, width), offset_of!(reference::CUDA_MEMCPY3D, WidthInBytes));
        assert_eq!(size_of::<KernelNode>(), size_of::<reference::CUDA_KERNEL_NODE_PARAMS>());
        assert_eq!(offset_of!(KernelNode, extra), offset_of!(reference::CUDA_KERNEL_NODE_PARAMS, extra));
        assert_eq!(size_of::<ArrayDescriptor>(), size_of::<reference::CUDA_ARRAY3D_DESCRIPTOR>());
        assert_eq!(offset_of!(ArrayDescriptor, flags), offset_of!(reference::CUDA_ARRAY3D_DESCRIPTOR, Flags));
        assert_eq!(size_of::<ArrayDescriptor2D>(), size_of::<reference::CUDA_ARRAY_DESCRIPTOR>());
        assert_eq!(size_of::<ResourceDescriptor>(), size_of::<reference::CUDA_RESOURCE_DESC>());
        assert_eq!(offset_of!(ResourceDescriptor, resource), offset_of!(reference::CUDA_RESOURCE_DESC, res));
        assert_eq!(offset_of!(ResourceDescriptor, flags), offset_of!(reference::CUDA_RESOURCE_DESC, flags));
        assert_eq!(size_of::<TextureDescriptor>(), size_of::<reference::CUDA_TEXTURE_DESC>());
        let border = offset_of!(reference::CUDA_TEXTURE_DESC, borderColor);
        assert_eq!(offset_of!(TextureDescriptor, border_color), border);
        assert_eq!(size_of::<ViewDescriptor>(), size_of::<reference::CUDA_RESOURCE_VIEW_DESC>());
        let last = offset_of!(reference::CUDA_RESOURCE_VIEW_DESC, lastLayer);
        assert_eq!(offset_of!(ViewDescriptor, last_layer), last);
        assert_eq!(size_of::<NodeParams>(), size_of::<reference::CUgraphNodeParams>());
        let union = offset_of!(reference::CUgraphNodeParams, __bindgen_anon_1);
        assert_eq!(offset_of!(NodeParams, handle), union);
        let bodies = offset_of!(reference::CUDA_CONDITIONAL_NODE_PARAMS, phGraph_out);
        assert_eq!(offset_of!(NodeParams, bodies), union + bodies);
        let context = offset_of!(reference::CUDA_CONDITIONAL_NODE_PARAMS, ctx);
        assert_eq!(offset_of!(NodeParams, context), union + context);
        assert_eq!(size_of::<MemsetNode>(), size_of::<reference::CUDA_MEMSET_NODE_PARAMS>());
        assert_eq!(size_of::<HostNode>(), size_of::<reference::CUDA_HOST_NODE_PARAMS>());
        assert_eq!(size_of::<BatchMemOp>(), size_of::<reference::CUstreamBatchMemOpParams>());
        assert_eq!(size_of::<BatchMemOpNode>(), size_of::<reference::CUDA_BATCH_MEM_OP_NODE_PARAMS>());
        assert_eq!(size_of::<DevResource>(), size_of::<reference::CUdevResource_st>());
        assert_eq!(offset_of!(DevResource, sm), 96);
        assert_eq!(size_of::<ContextCreate>(), size_of::<reference::CUctxCreateParams>());
    }
}
