//! Bodies: kernel launches.

#![allow(unsafe_code)]

use crate::{
    border::*,
    host, process,
    state::{
        Event, Function, KernelNode, NodeOp, Stream, capturing, client, function_behind, managed,
        shadow::{lend, note_lent},
    },
};
use cuda_abi::*;
use cuda_client::launch::{LaunchShape, ParameterLayout, Source, check, parse_extra};
use cuda_wire::{Bytes, LaunchAttribute, Op};
use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

thread_local! {
    /// A launch's parameter block, kept between launches so that none of them allocates.
    static BLOCK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// `CUlaunchAttributeID` of those that change what is sent.
mod id {
    pub(super) const COOPERATIVE: u32 = 2;
    pub(super) const CLUSTER_DIMENSION: u32 = 4;
    pub(super) const PROGRAMMATIC_EVENT: u32 = 7;
    pub(super) const LAUNCH_COMPLETION_EVENT: u32 = 12;
}

/// The function behind a handle; a `CUkernel` means its function in `stream`'s context.
pub(crate) fn function_of(handle: FunctionHandle, stream: &Stream) -> CuResult<Arc<Function>> {
    let client = client()?;
    if let Some(function) = client.functions.get(handle.0) {
        return Ok(function);
    }
    match client.kernels.get(handle.0) {
        Some(kernel) => kernel.function(&stream.context),
        None => {
            let function = function_behind(handle.0).ok_or(CudaError::INVALID_HANDLE)?;
            client.functions.get(function).ok_or(CudaError::INVALID_HANDLE)
        }
    }
}

/// Lays a launch's parameters out as one block, wherever the program has them.
pub(crate) fn pack(layout: &ParameterLayout, pointers: u64, extra: u64, block: &mut Vec<u8>) -> CuResult<()> {
    let extra = match extra {
        0 => None,
        // SAFETY: an `extra` array ends in a zero key, and parse_extra reads no further.
        extra => Some(parse_extra(|index| unsafe { host::word(extra, index) })?),
    };
    match layout.source(pointers != 0, extra)? {
        Source::Nothing => {}
        Source::Pointers => layout.pack(block, |index, target| {
            // SAFETY: `kernelParams` has a pointer for each parameter of the kernel.
            let source = unsafe { host::word(pointers, index) };
            // SAFETY: that pointer is good for the parameter's bytes; `target` has as many.
            unsafe { host::copy_out(source, target) };
        }),
        Source::Buffer(extra) => {
            // SAFETY: the key said that a size is there.
            let bytes = layout.buffer_bytes(unsafe { host::word(extra.size_at, 0) })?;
            layout.pack_buffer(block, bytes, |target| {
                // SAFETY: the program's buffer has at least `bytes` bytes; `target` has exactly as many.
                unsafe { host::copy_out(extra.buffer, target) };
            });
        }
    }
    Ok(())
}

/// Checks a launch and sends it, or adds it to the graph that the stream is captured to.
fn launch(
    handle: FunctionHandle,
    shape: &LaunchShape,
    attributes: Vec<LaunchAttribute>,
    stream: StreamArg,
    pointers: u64,
    extra: u64,
) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    let function = function_of(handle, &stream)?;
    if !Arc::ptr_eq(&function.context, &stream.context) {
        return Err(CudaError::INVALID_HANDLE);
    }
    let device = stream.context.device()?;
    check(shape, &device.limits, &function.sheet.limits())
        .inspect_err(|_| crate::state::spoil_capture(&stream))?;
    BLOCK.with_borrow_mut(|block| {
        block.clear();
        pack(&function.sheet.layout, pointers, extra, block)?;
        if let Some(capturing) = capturing(&stream) {
            let node = KernelNode {
                handle: handle.0,
                function,
                grid: shape.grid,
                block: shape.block,
                shared_bytes: shape.dynamic_shared,
                cooperative: shape.cooperative,
                attributes,
                parameters: block.clone(),
            };
            return capturing.add(NodeOp::Kernel(node));
        }
        let lent = lend(&stream, block)?;
        let op = Op::Launch {
            kernel: function.kernel,
            grid: shape.grid,
            block: shape.block,
            shared_bytes: shape.dynamic_shared,
            cooperative: shape.cooperative,
            attributes,
            parameters: Bytes(block),
        };
        managed::launching(&stream, || stream.enqueue(op))?;
        if !lent.is_empty() {
            note_lent(&stream, &lent);
        }
        Ok(())
    })
}

/// cuLaunchKernel
pub(crate) fn kernel(
    function: FunctionHandle,
    grid_dim_x: u32,
    grid_dim_y: u32,
    grid_dim_z: u32,
    block_dim_x: u32,
    block_dim_y: u32,
    block_dim_z: u32,
    shared_mem_bytes: u32,
    stream: StreamArg,
    kernel_params: u64,
    extra: u64,
) -> CuResult<()> {
    let shape = LaunchShape {
        grid: [grid_dim_x, grid_dim_y, grid_dim_z],
        block: [block_dim_x, block_dim_y, block_dim_z],
        dynamic_shared: shared_mem_bytes,
        cooperative: false,
        cluster: None,
    };
    launch(function, &shape, Vec::new(), stream, kernel_params, extra)
}

/// cuLaunchCooperativeKernel
pub(crate) fn cooperative_kernel(
    function: FunctionHandle,
    grid_dim_x: u32,
    grid_dim_y: u32,
    grid_dim_z: u32,
    block_dim_x: u32,
    block_dim_y: u32,
    block_dim_z: u32,
    shared_mem_bytes: u32,
    stream: StreamArg,
    kernel_params: u64,
) -> CuResult<()> {
    let shape = LaunchShape {
        grid: [grid_dim_x, grid_dim_y, grid_dim_z],
        block: [block_dim_x, block_dim_y, block_dim_z],
        dynamic_shared: shared_mem_bytes,
        cooperative: true,
        cluster: None,
    };
    launch(function, &shape, Vec::new(), stream, kernel_params, 0)
}

/// cuLaunchCooperativeKernelMultiDevice: the grids of several devices wait for each other, which nothing here lets them do.
pub(crate) fn cooperative_on_devices(
    launches: &[CUDA_LAUNCH_PARAMS],
    _count: u32,
    flags: u32,
) -> CuResult<()> {
    /// `CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_*_SYNC`.
    const FLAGS: u32 = 3;
    static TOLD: AtomicBool = AtomicBool::new(false);
    let [one] = launches else {
        if launches.is_empty() {
            return Err(CudaError::INVALID_VALUE);
        }
        if !TOLD.swap(true, Ordering::Relaxed) {
            process::refused(
                "cuLaunchCooperativeKernelMultiDevice",
                "the grids of several GPUs cannot wait for each other",
            );
        }
        return Err(CudaError::NOT_SUPPORTED);
    };
    let stream = StreamArg::new(StreamHandle(one.stream), StreamArg::Legacy);
    if flags & !FLAGS != 0 || !matches!(stream, StreamArg::Created(_)) {
        return Err(CudaError::INVALID_VALUE);
    }
    let shape = LaunchShape {
        grid: one.grid_dim,
        block: one.block_dim,
        dynamic_shared: one.shared_mem_bytes,
        cooperative: true,
        cluster: None,
    };
    launch(FunctionHandle(one.function), &shape, Vec::new(), stream, one.kernel_params, 0)
}

/// An attribute as it is sent: events by the name the worker knows.
pub(crate) fn attribute_for_wire(attribute: &CUlaunchAttribute) -> CuResult<LaunchAttribute> {
    let mut value = attribute.value.bytes();
    if matches!(attribute.id, id::PROGRAMMATIC_EVENT | id::LAUNCH_COMPLETION_EVENT) {
        let event = Event::find(attribute.value.event())?;
        event.note_record();
        crate::state::pool_order::recorded_elsewhere(&event);
        value[..8].copy_from_slice(&u64::from(event.id.0).to_le_bytes());
    }
    Ok(LaunchAttribute { id: attribute.id, value })
}

/// What a configuration says beyond the plain launch: the shape it asks for, and the attributes to send.
pub(crate) fn shape_of(config: &CUlaunchConfig) -> CuResult<(LaunchShape, Vec<LaunchAttribute>)> {
    // SAFETY: the program says how many attributes are at this address.
    let attributes: &[CUlaunchAttribute] = unsafe { slice_at(config.attrs, config.num_attrs) }?;
    let mut shape = LaunchShape {
        grid: [config.grid_dim_x, config.grid_dim_y, config.grid_dim_z],
        block: [config.block_dim_x, config.block_dim_y, config.block_dim_z],
        dynamic_shared: config.shared_mem_bytes,
        cooperative: false,
        cluster: None,
    };
    let mut sent = Vec::with_capacity(attributes.len());
    for attribute in attributes {
        match attribute.id {
            id::COOPERATIVE => shape.cooperative = attribute.value.get::<u32>() != 0,
            id::CLUSTER_DIMENSION => {
                shape.cluster = Some(attribute.value.dimensions());
                sent.push(attribute_for_wire(attribute)?);
            }
            // 0 is CU_LAUNCH_ATTRIBUTE_IGNORE.
            0 => {}
            _ => sent.push(attribute_for_wire(attribute)?),
        }
    }
    Ok((shape, sent))
}

/// cuLaunchKernelEx
pub(crate) fn kernel_ex(
    config: &CUlaunchConfig,
    function: FunctionHandle,
    kernel_params: u64,
    extra: u64,
    default_stream: StreamArg,
) -> CuResult<()> {
    let (shape, attributes) = shape_of(config)?;
    let stream = StreamArg::new(StreamHandle(config.stream), default_stream);
    launch(function, &shape, attributes, stream, kernel_params, extra)
}
