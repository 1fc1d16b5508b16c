//! The structures here are laid out as those that bindgen makes of the real header.

use core::mem::{align_of, offset_of, size_of};
use cuda_abi as ours;
use cudarc::driver::sys;

macro_rules! same_layout {
    ($($ours:ident = $theirs:ident { $($field:ident: $their_field:ident),* $(,)? })*) => {
        #[test]
        fn sizes_and_alignments_are_those_of_the_header() {
            $(
                assert_eq!(size_of::<ours::$ours>(), size_of::<sys::$theirs>(), stringify!($ours));
                assert_eq!(align_of::<ours::$ours>(), align_of::<sys::$theirs>(), stringify!($ours));
            )*
        }

        #[test]
        fn fields_are_where_the_header_puts_them() {
            $($(
                assert_eq!(
                    offset_of!(ours::$ours, $field),
                    offset_of!(sys::$theirs, $their_field),
                    concat!(stringify!($ours), ".", stringify!($field)),
                );
            )*)*
        }
    };
}

same_layout! {
    CUDA_MEMCPY2D = CUDA_MEMCPY2D_st { src_x_in_bytes: srcXInBytes, src_y: srcY, src_memory_type: srcMemoryType, src_host: srcHost, src_device: srcDevice, src_array: srcArray, src_pitch: srcPitch, dst_x_in_bytes: dstXInBytes, dst_y: dstY, dst_memory_type: dstMemoryType, dst_host: dstHost, dst_device: dstDevice, dst_array: dstArray, dst_pitch: dstPitch, width_in_bytes: WidthInBytes, height: Height }
    CUDA_MEMCPY3D = CUDA_MEMCPY3D_st { src_x_in_bytes: srcXInBytes, src_y: srcY, src_z: srcZ, src_lod: srcLOD, src_memory_type: srcMemoryType, src_host: srcHost, src_device: srcDevice, src_array: srcArray, reserved0: reserved0, src_pitch: srcPitch, src_height: srcHeight, dst_x_in_bytes: dstXInBytes, dst_y: dstY, dst_z: dstZ, dst_lod: dstLOD, dst_memory_type: dstMemoryType, dst_host: dstHost, dst_device: dstDevice, dst_array: dstArray, reserved1: reserved1, dst_pitch: dstPitch, dst_height: dstHeight, width_in_bytes: WidthInBytes, height: Height, depth: Depth }
    CUDA_MEMCPY3D_PEER = CUDA_MEMCPY3D_PEER_st { src_x_in_bytes: srcXInBytes, src_y: srcY, src_z: srcZ, src_lod: srcLOD, src_memory_type: srcMemoryType, src_host: srcHost, src_device: srcDevice, src_array: srcArray, src_context: srcContext, src_pitch: srcPitch, src_height: srcHeight, dst_x_in_bytes: dstXInBytes, dst_y: dstY, dst_z: dstZ, dst_lod: dstLOD, dst_memory_type: dstMemoryType, dst_host: dstHost, dst_device: dstDevice, dst_array: dstArray, dst_context: dstContext, dst_pitch: dstPitch, dst_height: dstHeight, width_in_bytes: WidthInBytes, height: Height, depth: Depth }
    CUmemcpyAttributes = CUmemcpyAttributes_st { src_access_order: srcAccessOrder, src_loc_hint: srcLocHint, dst_loc_hint: dstLocHint, flags: flags }
    CUextent3D = CUextent3D_st { width: width, height: height, depth: depth }
    CUDA_MEMCPY3D_BATCH_OP = CUDA_MEMCPY3D_BATCH_OP_st { src: src, dst: dst, extent: extent, src_access_order: srcAccessOrder, flags: flags }
    CUDA_ARRAY_DESCRIPTOR = CUDA_ARRAY_DESCRIPTOR_st { width: Width, height: Height, format: Format, num_channels: NumChannels }
    CUDA_ARRAY3D_DESCRIPTOR = CUDA_ARRAY3D_DESCRIPTOR_st { width: Width, height: Height, depth: Depth, format: Format, num_channels: NumChannels, flags: Flags }
    CUDA_ARRAY_MEMORY_REQUIREMENTS = CUDA_ARRAY_MEMORY_REQUIREMENTS_st { size: size, alignment: alignment, reserved: reserved }
    CUDA_ARRAY_SPARSE_PROPERTIES = CUDA_ARRAY_SPARSE_PROPERTIES_st { tile_extent: tileExtent, miptail_first_level: miptailFirstLevel, miptail_size: miptailSize, flags: flags, reserved: reserved }
    CUDA_RESOURCE_DESC = CUDA_RESOURCE_DESC_st { res_type: resType, res: res, flags: flags }
    CUDA_TEXTURE_DESC = CUDA_TEXTURE_DESC_st { address_mode: addressMode, filter_mode: filterMode, flags: flags, max_anisotropy: maxAnisotropy, mipmap_filter_mode: mipmapFilterMode, mipmap_level_bias: mipmapLevelBias, min_mipmap_level_clamp: minMipmapLevelClamp, max_mipmap_level_clamp: maxMipmapLevelClamp, border_color: borderColor, reserved: reserved }
    CUDA_RESOURCE_VIEW_DESC = CUDA_RESOURCE_VIEW_DESC_st { format: format, width: width, height: height, depth: depth, first_mipmap_level: firstMipmapLevel, last_mipmap_level: lastMipmapLevel, first_layer: firstLayer, last_layer: lastLayer, reserved: reserved }
    CUuuid = CUuuid_st { bytes: bytes }
    CUdevprop = CUdevprop_st { max_threads_per_block: maxThreadsPerBlock, max_threads_dim: maxThreadsDim, max_grid_size: maxGridSize, shared_mem_per_block: sharedMemPerBlock, total_constant_memory: totalConstantMemory, simd_width: SIMDWidth, mem_pitch: memPitch, regs_per_block: regsPerBlock, clock_rate: clockRate, texture_align: textureAlign }
    CUctxCreateParams = CUctxCreateParams_st { exec_affinity_params: execAffinityParams, num_exec_affinity_params: numExecAffinityParams, cig_params: cigParams }
    CUmemLocation = CUmemLocation_st { kind: type_, id: id }
    CUmemAccessDesc = CUmemAccessDesc_st { location: location, flags: flags }
    CUmemPoolProps = CUmemPoolProps_st { alloc_type: allocType, handle_types: handleTypes, location: location, win32_security_attributes: win32SecurityAttributes, max_size: maxSize, usage: usage, reserved: reserved }
    CUipcMemHandle = CUipcMemHandle_st { reserved: reserved }
    CUipcEventHandle = CUipcEventHandle_st { reserved: reserved }
    CUmemPoolPtrExportData = CUmemPoolPtrExportData_st { reserved: reserved }
    CUlaunchConfig = CUlaunchConfig_st { grid_dim_x: gridDimX, grid_dim_y: gridDimY, grid_dim_z: gridDimZ, block_dim_x: blockDimX, block_dim_y: blockDimY, block_dim_z: blockDimZ, shared_mem_bytes: sharedMemBytes, stream: hStream, attrs: attrs, num_attrs: numAttrs }
    CUDA_LAUNCH_PARAMS = CUDA_LAUNCH_PARAMS_st { function: function, grid_dim: gridDimX, block_dim: blockDimX, shared_mem_bytes: sharedMemBytes, stream: hStream, kernel_params: kernelParams }
    CUlaunchAttribute = CUlaunchAttribute_st { id: id, pad: pad, value: value }
    CUaccessPolicyWindow = CUaccessPolicyWindow_st { base_ptr: base_ptr, num_bytes: num_bytes, hit_ratio: hitRatio, hit_prop: hitProp, miss_prop: missProp }
    CUDA_KERNEL_NODE_PARAMS_v1 = CUDA_KERNEL_NODE_PARAMS_st { func: func, grid_dim_x: gridDimX, grid_dim_y: gridDimY, grid_dim_z: gridDimZ, block_dim_x: blockDimX, block_dim_y: blockDimY, block_dim_z: blockDimZ, shared_mem_bytes: sharedMemBytes, kernel_params: kernelParams, extra: extra }
    CUDA_KERNEL_NODE_PARAMS_v2 = CUDA_KERNEL_NODE_PARAMS_v2_st { func: func, grid_dim_x: gridDimX, grid_dim_y: gridDimY, grid_dim_z: gridDimZ, block_dim_x: blockDimX, block_dim_y: blockDimY, block_dim_z: blockDimZ, shared_mem_bytes: sharedMemBytes, kernel_params: kernelParams, extra: extra, kern: kern, ctx: ctx }
    CUDA_MEMSET_NODE_PARAMS = CUDA_MEMSET_NODE_PARAMS_st { dst: dst, pitch: pitch, value: value, element_size: elementSize, width: width, height: height }
    CUDA_MEMSET_NODE_PARAMS_v2 = CUDA_MEMSET_NODE_PARAMS_v2_st { dst: dst, pitch: pitch, value: value, element_size: elementSize, width: width, height: height, ctx: ctx }
    CUDA_MEMCPY_NODE_PARAMS = CUDA_MEMCPY_NODE_PARAMS_st { flags: flags, reserved: reserved, copy_ctx: copyCtx, copy_params: copyParams }
    CUDA_HOST_NODE_PARAMS = CUDA_HOST_NODE_PARAMS_st { function: fn_, user_data: userData }
    CUDA_CHILD_GRAPH_NODE_PARAMS = CUDA_CHILD_GRAPH_NODE_PARAMS_st { graph: graph, ownership: ownership }
    CUDA_CONDITIONAL_NODE_PARAMS = CUDA_CONDITIONAL_NODE_PARAMS { handle: handle, kind: type_, size: size, graphs: phGraph_out, ctx: ctx }
    CUDA_EVENT_NODE_PARAMS = CUDA_EVENT_RECORD_NODE_PARAMS_st { event: event }
    CUDA_MEM_ALLOC_NODE_PARAMS = CUDA_MEM_ALLOC_NODE_PARAMS_v1_st { pool_props: poolProps, access_descs: accessDescs, access_desc_count: accessDescCount, bytesize: bytesize, dptr: dptr }
    CUDA_MEM_FREE_NODE_PARAMS = CUDA_MEM_FREE_NODE_PARAMS_st { dptr: dptr }
    CUDA_BATCH_MEM_OP_NODE_PARAMS = CUDA_BATCH_MEM_OP_NODE_PARAMS_v1_st { ctx: ctx, count: count, param_array: paramArray, flags: flags }
    CUgraphEdgeData = CUgraphEdgeData_st { from_port: from_port, to_port: to_port, kind: type_, reserved: reserved }
    CUDA_GRAPH_INSTANTIATE_PARAMS = CUDA_GRAPH_INSTANTIATE_PARAMS_st { flags: flags, upload_stream: hUploadStream, error_node_out: hErrNode_out, result_out: result_out }
    CUgraphExecUpdateResultInfo = CUgraphExecUpdateResultInfo_st { result: result, error_node: errorNode, error_from_node: errorFromNode }
    CUmemAllocationProp = CUmemAllocationProp_st { kind: type_, requested_handle_types: requestedHandleTypes, location: location, win32_handle_meta_data: win32HandleMetaData, compression_type: allocFlags }
    CUexecAffinityParam = CUexecAffinityParam_st { kind: type_, sm_count: param }
    CUmemcpy3DOperand = CUmemcpy3DOperand_st { kind: type_, operand: op }
    CUmemcpy3DPointerOperand = CUmemcpy3DOperand_st__bindgen_ty_1__bindgen_ty_1 { pointer: ptr, row_length: rowLength, layer_height: layerHeight, location_hint: locHint }
    CUstreamBatchMemOpParams = CUstreamBatchMemOpParams_union {}
    CUstreamMemOpValueParams = CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st { operation: operation, address: address, value: __bindgen_anon_1, flags: flags, alias: alias }
    CUstreamMemOpFlagsParams = CUstreamBatchMemOpParams_union_CUstreamMemOpFlushRemoteWritesParams_st { operation: operation, flags: flags }
    CUgraphNodeParams = CUgraphNodeParams_st { kind: type_, reserved0: reserved0, body: __bindgen_anon_1, reserved2: reserved2 }
    CUlaunchAttributeValue = CUlaunchAttributeValue_union {}
}

/// The flags of an allocation are a structure of their own in C and lie flat here.
#[test]
fn allocation_flags_lie_flat() {
    type Theirs = sys::CUmemAllocationProp_st__bindgen_ty_1;
    let start = offset_of!(sys::CUmemAllocationProp_st, allocFlags);
    assert_eq!(offset_of!(ours::CUmemAllocationProp, usage), start + offset_of!(Theirs, usage));
    assert_eq!(offset_of!(ours::CUmemAllocationProp, reserved), start + offset_of!(Theirs, reserved));
}

/// A tensor map is aligned to 128 bytes in C and may lie on any multiple of 64; here it is only its bytes.
#[test]
fn a_tensor_map_has_the_header_s_size() {
    assert_eq!(size_of::<ours::CUtensorMap>(), size_of::<sys::CUtensorMap_st>());
    assert_eq!(offset_of!(ours::CUtensorMap, opaque), offset_of!(sys::CUtensorMap_st, opaque));
}

/// The notes of the driver lie between the kind and the union.
#[test]
fn a_resource_has_the_header_s_size() {
    assert_eq!(size_of::<ours::CUdevResource>(), size_of::<sys::CUdevResource_st>());
    assert_eq!(offset_of!(ours::CUdevResource, sm), offset_of!(sys::CUdevResource_st, __bindgen_anon_1));
}

/// The forms of CUDA 3.1 are in the header only for NVIDIA's own use: numbers of 32 bits, one after the other.
#[test]
fn narrow_descriptors_have_no_gaps() {
    assert_eq!(size_of::<ours::CUDA_ARRAY_DESCRIPTOR_v1>(), 16);
    assert_eq!(offset_of!(ours::CUDA_ARRAY_DESCRIPTOR_v1, num_channels), 12);
    assert_eq!(size_of::<ours::CUDA_ARRAY3D_DESCRIPTOR_v1>(), 24);
    assert_eq!(offset_of!(ours::CUDA_ARRAY3D_DESCRIPTOR_v1, flags), 20);
}

/// Forms of a structure that share one type here are the same in C.
#[test]
fn later_forms_are_the_same() {
    assert_eq!(
        size_of::<sys::CUDA_KERNEL_NODE_PARAMS_v2_st>(),
        size_of::<sys::CUDA_KERNEL_NODE_PARAMS_v3_st>()
    );
    assert_eq!(
        offset_of!(sys::CUDA_KERNEL_NODE_PARAMS_v2_st, ctx),
        offset_of!(sys::CUDA_KERNEL_NODE_PARAMS_v3_st, ctx)
    );
    assert_eq!(size_of::<sys::CUDA_HOST_NODE_PARAMS_st>(), size_of::<sys::CUDA_HOST_NODE_PARAMS_v2_st>());
    assert_eq!(
        size_of::<sys::CUDA_MEM_ALLOC_NODE_PARAMS_v1_st>(),
        size_of::<sys::CUDA_MEM_ALLOC_NODE_PARAMS_v2_st>()
    );
    assert_eq!(
        size_of::<sys::CUDA_BATCH_MEM_OP_NODE_PARAMS_v1_st>(),
        size_of::<sys::CUDA_BATCH_MEM_OP_NODE_PARAMS_v2_st>()
    );
    assert_eq!(
        size_of::<sys::CUDA_EVENT_RECORD_NODE_PARAMS_st>(),
        size_of::<sys::CUDA_EVENT_WAIT_NODE_PARAMS_st>()
    );
}

/// Each list of constants comes from an enum of the header; a few from each show that none has slipped.
#[test]
fn constants_have_the_header_s_numbers() {
    macro_rules! same {
        ($($theirs:ident { $($name:ident),* })*) => {
            $($(assert_eq!(ours::$name, sys::$theirs::$name as u32, stringify!($name));)*)*
        };
    }
    same! {
        CUstream_flags_enum { CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING }
        CUevent_flags_enum { CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS }
        CUevent_record_flags_enum { CU_EVENT_RECORD_DEFAULT, CU_EVENT_RECORD_EXTERNAL }
        CUevent_wait_flags_enum { CU_EVENT_WAIT_DEFAULT, CU_EVENT_WAIT_EXTERNAL }
        CUctx_flags_enum { CU_CTX_SCHED_AUTO, CU_CTX_MAP_HOST, CU_CTX_FLAGS_MASK }
        CUlimit_enum { CU_LIMIT_STACK_SIZE, CU_LIMIT_MAX_L2_FETCH_GRANULARITY, CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED }
        CUfunc_cache_enum { CU_FUNC_CACHE_PREFER_NONE, CU_FUNC_CACHE_PREFER_L1, CU_FUNC_CACHE_PREFER_EQUAL }
        CUsharedconfig_enum { CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE, CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE }
        CUmemorytype_enum { CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_UNIFIED }
        CUcomputemode_enum { CU_COMPUTEMODE_DEFAULT, CU_COMPUTEMODE_PROHIBITED, CU_COMPUTEMODE_EXCLUSIVE_PROCESS }
        CUdevice_P2PAttribute_enum { CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED }
        CUjit_option_enum { CU_JIT_MAX_REGISTERS, CU_JIT_GLOBAL_SYMBOL_ADDRESSES, CU_JIT_NUM_OPTIONS }
        CUjitInputType_enum { CU_JIT_INPUT_CUBIN, CU_JIT_INPUT_OBJECT, CU_JIT_NUM_INPUT_TYPES }
        CUlibraryOption_enum { CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE, CU_LIBRARY_BINARY_IS_PRESERVED, CU_LIBRARY_NUM_OPTIONS }
        CUmoduleLoadingMode_enum { CU_MODULE_EAGER_LOADING, CU_MODULE_LAZY_LOADING }
        CUfunctionLoadingState_enum { CU_FUNCTION_LOADING_STATE_UNLOADED, CU_FUNCTION_LOADING_STATE_LOADED }
        CUgraphNodeType_enum { CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_CONDITIONAL }
        CUgraphChildGraphNodeOwnership_enum { CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE }
        CUstreamCaptureStatus_enum { CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_INVALIDATED }
        CUstreamCaptureMode_enum { CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED }
        CUstreamUpdateCaptureDependencies_flags_enum { CU_STREAM_ADD_CAPTURE_DEPENDENCIES, CU_STREAM_SET_CAPTURE_DEPENDENCIES }
        CUgraphExecUpdateResult_enum { CU_GRAPH_EXEC_UPDATE_SUCCESS, CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED, CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED }
        CUgraphInstantiateResult_enum { CUDA_GRAPH_INSTANTIATE_SUCCESS, CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED, CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED }
        CUgraphDebugDot_flags_enum { CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE, CU_GRAPH_DEBUG_DOT_FLAGS_EXT_SEMAS_WAIT_NODE_PARAMS, CU_GRAPH_DEBUG_DOT_FLAGS_CONDITIONAL_NODE_PARAMS }
        CUgraphMem_attribute_enum { CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH }
        CUuserObject_flags_enum { CU_USER_OBJECT_NO_DESTRUCTOR_SYNC }
        CUuserObjectRetain_flags_enum { CU_GRAPH_USER_OBJECT_MOVE }
        CUstreamBatchMemOpType_enum { CU_STREAM_MEM_OP_WAIT_VALUE_32, CU_STREAM_MEM_OP_WRITE_VALUE_64, CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES }
        CUstreamWaitValue_flags_enum { CU_STREAM_WAIT_VALUE_GEQ, CU_STREAM_WAIT_VALUE_AND, CU_STREAM_WAIT_VALUE_FLUSH }
        CUstreamWriteValue_flags_enum { CU_STREAM_WRITE_VALUE_DEFAULT, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER }
        CUlaunchAttributeID_enum { CU_LAUNCH_ATTRIBUTE_IGNORE, CU_LAUNCH_ATTRIBUTE_PRIORITY, CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING }
        CUoccupancy_flags_enum { CU_OCCUPANCY_DEFAULT, CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE }
        CUexecAffinityType_enum { CU_EXEC_AFFINITY_TYPE_SM_COUNT }
        CUmemLocationType_enum { CU_MEM_LOCATION_TYPE_INVALID, CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT }
        CUmemAllocationType_enum { CU_MEM_ALLOCATION_TYPE_INVALID, CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_ALLOCATION_TYPE_MANAGED }
        CUmemAccess_flags_enum { CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_READWRITE }
        CUmemAllocationGranularity_flags_enum { CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED }
        CUmemPool_attribute_enum { CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH }
        CUmemcpy3DOperandType_enum { CU_MEMCPY_OPERAND_TYPE_POINTER, CU_MEMCPY_OPERAND_TYPE_ARRAY }
        CUmemcpySrcAccessOrder_enum { CU_MEMCPY_SRC_ACCESS_ORDER_INVALID, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL, CU_MEMCPY_SRC_ACCESS_ORDER_ANY }
        CUdriverProcAddressQueryResult_enum { CU_GET_PROC_ADDRESS_SUCCESS, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT }
        CUdriverProcAddress_flags_enum { CU_GET_PROC_ADDRESS_DEFAULT, CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM }
    }
}

/// Attributes by number are those of the header, at the ends and in the middle of each list.
#[test]
fn attributes_have_the_header_s_numbers() {
    use ours::attributes::*;
    macro_rules! same {
        ($($theirs:ident { $($name:ident),* })*) => {
            $($(assert_eq!($name, sys::$theirs::$name as u32, stringify!($name));)*)*
        };
    }
    same! {
        CUdevice_attribute_enum {
            CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED,
            CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED
        }
        CUpointer_attribute_enum {
            CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
            CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE
        }
        CUfunction_attribute_enum {
            CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, CU_FUNC_ATTRIBUTE_BINARY_VERSION,
            CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
        }
    }
}
