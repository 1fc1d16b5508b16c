//! Putting work into streams.

#![allow(unsafe_code)]

use crate::{
    array::{self, Arrays},
    context::LiveContext,
    copy_in::{copy_in, to_device},
    copy_out::copy_out,
    cut::Room,
    launch::{Launch, attributes, launch},
    leaving::{Entered, Leaving},
    memory::Memory,
    pinned::{Slots, Words},
    printed::Printed,
    progress::Progress,
    seat::Seat,
    shared::{self, Regions, Way},
    stream::LiveStream,
    sys::{Api, BatchMemOp, Copy2D, MEMORY_DEVICE, Stream},
    tables::Tables,
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::HostLink;
use cuda_wire::{ArrayId, ContextId, HostData, MemoryOp, Op, Plane, Shape};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What work in streams needs beside the driver.
pub(crate) struct Work {
    pub(crate) api: Api,
    pub(crate) words: Arc<Words>,
    pub(crate) slots: Arc<Slots>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) room: Arc<Room>,
    pub(crate) regions: Regions,
    pub(crate) arrays: Arrays,
    pub(crate) printed: Option<Printed>,
    /// Absent in a session that has its GPU for itself.
    pub(crate) seat: OnceLock<Seat>,
    pub(crate) link: OnceLock<Arc<dyn HostLink>>,
    pub(crate) aborted: AtomicBool,
    /// In a session whose context is merged with those of others.
    pub(crate) leaving: Option<Leaving>,
    pub(crate) deferred: Mutex<VecDeque<(ContextId, CudaError)>>,
}

impl Work {
    pub(crate) fn link(&self) -> CuResult<&Arc<dyn HostLink>> {
        self.link.get().ok_or(CudaError::DEVICE_UNAVAILABLE)
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    /// Whether the session must leave in order, because others have their contexts in the same server.
    pub(crate) fn is_merged(&self) -> bool {
        self.leaving.is_some()
    }

    /// Whether a stream goes on whose bytes do not come. With merged contexts it does not when the client is gone: a kernel that finds
    /// other bytes than it expects may fail, which ends the contexts of other sessions.
    pub(crate) fn goes_on_without_bytes(&self) -> bool {
        !self.is_merged() || !self.is_aborted() && self.link.get().is_some_and(|link| link.has_failed_pull())
    }

    /// A command is about to put work into a stream. Refused when the session leaves in order.
    #[inline]
    pub(crate) fn enter(&self) -> CuResult<Option<Entered<'_>>> {
        let Some(leaving) = &self.leaving else { return Ok(None) };
        let entered = leaving.enter();
        if self.is_aborted() { Err(CudaError::DEVICE_UNAVAILABLE) } else { Ok(Some(entered)) }
    }

    /// Remembers an error of work that no call awaits.
    pub(crate) fn defer(&self, context: u32, error: CudaError) {
        if !self.is_aborted() {
            let mut deferred = self.deferred.lock().unwrap_or_else(PoisonError::into_inner);
            deferred.push_back((ContextId(context), error));
        }
    }

    /// Whether online sessions come first.
    pub(crate) fn is_offline(&self) -> bool {
        matches!(self.seat.get(), Some(Seat::Offline(_)))
    }

    /// Part of a copy between host and device is about to be put into a stream. An offline session's may wait first.
    #[inline]
    pub(crate) fn before_part(&self, stream: &Arc<LiveStream>, bytes: u64) -> CuResult<()> {
        match self.seat.get() {
            None => Ok(()),
            Some(seat) => seat.before_part(self, stream, bytes),
        }
    }

    /// Sends printed text to the client, before the client hears that a wait is over.
    #[inline]
    pub(crate) fn after_wait(&self, context: &LiveContext) {
        if context.may_print() {
            self.collect_printed();
        }
    }

    #[cold]
    fn collect_printed(&self) {
        if let (Some(printed), Some(link)) = (&self.printed, self.link.get()) {
            printed.collect(|text| link.print(text));
        }
    }
}

/// Puts one piece of work at the end of a stream.
pub(crate) fn enqueue(
    work: &Arc<Work>,
    tables: &Mutex<Tables>,
    stream: &Arc<LiveStream>,
    op: Op<'_>,
) -> CuResult<()> {
    let lock = || tables.lock().unwrap_or_else(PoisonError::into_inner);
    match op {
        Op::Empty {} => Ok(()),
        Op::Launch { kernel, grid, block, shared_bytes, cooperative, attributes: given, parameters } => {
            let (function, mut attributes) = {
                let tables = lock();
                (tables.function(kernel)?, attributes(&tables, &given, cooperative)?)
            };
            let parameters = parameters.0;
            let what = Launch { function, grid, block, shared_bytes, parameters };
            launch(&work.api, stream.enter()?, &what, &mut attributes)
        }
        Op::Fill { target, shape, element_bytes, value } => {
            fill(&work.api, stream.enter()?, target, shape, element_bytes, value)
        }
        Op::CopyDevice { target, source, shape } if names_array(&target) || names_array(&source) => {
            array::between(work, stream.enter()?, target, source, shape)
        }
        Op::CopyDevice { target, source, shape } => {
            copy_device(&work.api, stream.enter()?, target, source, shape)
        }
        Op::CopyIn { target, shape, data: HostData::Inline { bytes } } => {
            copy_inline(work, stream, target, shape, bytes.0)
        }
        Op::CopyIn { target, shape, data: HostData::Pushed { transfer } } => {
            copy_in(work, stream, target, shape, transfer, false)
        }
        Op::CopyIn { target, shape, data: HostData::Pulled { transfer } } => {
            copy_in(work, stream, target, shape, transfer, true)
        }
        Op::CopyOut { source, shape, transfer } => copy_out(work, stream, source, shape, transfer),
        Op::CopyInShared { target, source, shape } => {
            shared::copy(work, stream, target, source, shape, Way::In)
        }
        Op::CopyOutShared { source, target, shape } => {
            shared::copy(work, stream, source, target, shape, Way::Out)
        }
        Op::HostCall { token } => host_call(work, stream.enter()?, token),
        Op::Record { event, flags } => {
            let event = lock().event(event)?;
            event.forget_age();
            let raw = stream.enter()?;
            // SAFETY: event and stream live until the call returns.
            unsafe { work.api.event_record(event.raw(), raw, flags) }
        }
        Op::Wait { event, flags } => {
            let event = lock().event(event)?;
            let raw = stream.enter()?;
            // SAFETY: as above.
            unsafe { work.api.stream_wait_event(raw, event.raw(), flags) }
        }
        Op::Allocate { address, bytes } => {
            stream.enter()?;
            work.memory.allocate(stream.context.id, stream.context.device, address, bytes)
        }
        Op::Free { address } => work.memory.free(Arc::clone(&stream.context), address),
        // Graphs alone have bodies.
        Op::Conditional { .. } => Err(CudaError::INVALID_VALUE),
        Op::MemoryOps { ops } => write_and_wait(work, stream, &ops),
    }
}

fn write_and_wait(work: &Arc<Work>, stream: &LiveStream, ops: &[MemoryOp]) -> CuResult<()> {
    let mut ops = memory_ops(ops);
    let raw = stream.enter()?;
    // SAFETY: the list is valid for the call. Addresses are the program's to answer for.
    unsafe { work.api.stream_memory_ops(raw, ops.len() as u32, ops.as_mut_ptr(), 0) }
}

/// Whether a place is one in an array.
pub(crate) fn names_array(plane: &Plane) -> bool {
    ArrayId::at(plane.address).is_some()
}

/// Copies bytes that came with the command.
fn copy_inline(
    work: &Arc<Work>,
    stream: &LiveStream,
    target: Plane,
    shape: Shape,
    bytes: &[u8],
) -> CuResult<()> {
    if shape.bytes() != Some(bytes.len() as u64) {
        return Err(CudaError::INVALID_VALUE);
    }
    // The driver takes bytes of ordinary memory before it returns.
    let host = bytes.as_ptr().expose_provenance();
    to_device(work, stream.enter()?, host, 0, target, shape, bytes.len() as u64)
}

pub(crate) fn memory_ops(ops: &[MemoryOp]) -> Vec<BatchMemOp> {
    let op = |op: &MemoryOp| BatchMemOp {
        operation: op.kind,
        address: op.address,
        value: op.value,
        flags: op.flags,
        ..BatchMemOp::default()
    };
    ops.iter().map(op).collect()
}

fn fill(
    api: &Api,
    stream: Stream,
    target: Plane,
    shape: Shape,
    element_bytes: u8,
    value: u32,
) -> CuResult<()> {
    if !matches!(element_bytes, 1 | 2 | 4) {
        return Err(CudaError::INVALID_VALUE);
    }
    let count = (shape.width / u64::from(element_bytes)) as usize;
    let height = shape.height as usize;
    for slice in 0..shape.depth {
        let at = target.address + slice * target.slice_pitch;
        let pitch = target.row_pitch as usize;
        // SAFETY: no pointers of ours; device addresses are the program's to answer for.
        unsafe {
            match (element_bytes, height) {
                (1, 0 | 1) => api.fill_8(at, value as u8, count, stream)?,
                (2, 0 | 1) => api.fill_16(at, value as u16, count, stream)?,
                (_, 0 | 1) => api.fill_32(at, value, count, stream)?,
                (1, _) => api.fill_2d_8(at, pitch, value as u8, count, height, stream)?,
                (2, _) => api.fill_2d_16(at, pitch, value as u16, count, height, stream)?,
                (_, _) => api.fill_2d_32(at, pitch, value, count, height, stream)?,
            }
        }
    }
    Ok(())
}

fn copy_device(api: &Api, stream: Stream, target: Plane, source: Plane, shape: Shape) -> CuResult<()> {
    for slice in 0..shape.depth {
        let from = source.address + slice * source.slice_pitch;
        let to = target.address + slice * target.slice_pitch;
        if shape.height <= 1 {
            // SAFETY: no pointers of ours.
            unsafe { api.copy_device(to, from, shape.width as usize, stream)? };
            continue;
        }
        let copy = Copy2D {
            source_type: MEMORY_DEVICE,
            source_device: from,
            source_pitch: source.row_pitch as usize,
            target_type: MEMORY_DEVICE,
            target_device: to,
            target_pitch: target.row_pitch as usize,
            width: shape.width as usize,
            height: shape.height as usize,
            ..Copy2D::default()
        };
        // SAFETY: the description is valid for the call.
        unsafe { api.copy_2d(&copy, stream)? };
    }
    Ok(())
}

/// What a host function of a stream or a graph needs.
pub(crate) struct HostCall {
    pub(crate) link: Arc<dyn HostLink>,
    pub(crate) token: u64,
}

impl HostCall {
    pub(crate) fn run(&self) {
        // A client that is gone runs nothing more, and its streams end with the session.
        let _ = self.link.host_call(self.token);
    }
}

fn host_call(work: &Arc<Work>, stream: Stream, token: u64) -> CuResult<()> {
    unsafe extern "C" fn run(argument: *mut c_void) {
        // SAFETY: the argument is the box made below, handed over to this one call.
        let call = unsafe { Box::from_raw(argument.cast::<HostCall>()) };
        call.run();
    }
    let call = Box::into_raw(Box::new(HostCall { link: work.link()?.clone(), token }));
    // SAFETY: the driver calls `run` once with the argument.
    let launched = unsafe { work.api.launch_host(stream, run, call.cast()) };
    if launched.is_err() {
        // SAFETY: the driver did not take it.
        drop(unsafe { Box::from_raw(call) });
    }
    launched
}
