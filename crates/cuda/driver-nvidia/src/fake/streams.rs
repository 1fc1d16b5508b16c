//! Streams, and the calls that put work into them.

use super::{
    Fake, State, handle, key, put,
    work::{Copying, Item, Place, Work},
};
use crate::sys::{BatchMemOp, Context, Copy2D, DeviceAddress, HostFunction, MEMORY_HOST, Stream};
use cuda_abi::{CuResult, CudaError};
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::MutexGuard;

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the legacy stream.
const NON_BLOCKING: c_uint = 1;

#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) context: Context,
    pub(super) is_legacy: bool,
    pub(super) is_blocking: bool,
    /// It takes no more work, and goes when its work is over.
    pub(super) is_destroyed: bool,
    pub(super) queue: VecDeque<Item>,
    /// A host function of it runs right now.
    pub(super) is_running: bool,
}

impl StreamState {
    fn new(context: Context, is_legacy: bool, is_blocking: bool) -> Self {
        let queue = VecDeque::new();
        Self { context, is_legacy, is_blocking, is_destroyed: false, queue, is_running: false }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.is_running
    }
}

impl State {
    /// A stream that takes calls. The calling thread must have a live context; the legacy stream is that context's.
    pub(super) fn stream(&mut self, stream: Stream) -> CuResult<&mut StreamState> {
        let context = self.current()?;
        let key = key(stream, context);
        let is_legacy = key == context.0.addr() | 1;
        if is_legacy {
            self.streams.entry(key).or_insert_with(|| StreamState::new(context, true, false));
        }
        match self.streams.get(&key) {
            Some(found) if !found.is_destroyed => {
                if let Some(error) = self.contexts.get(&found.context).and_then(|context| context.dead) {
                    return Err(error);
                }
            }
            _ => self.violation("use of a stream that is not there"),
        }
        self.streams.get_mut(&key).filter(|stream| !stream.is_destroyed).ok_or(CudaError::INVALID_HANDLE)
    }

    /// Where host bytes lie: in registered memory, or in memory that the GPU cannot reach.
    pub(super) fn host(&self, start: usize, bytes: usize) -> Option<Place> {
        self.memory.is_pinned(start, bytes).then_some(Place::Pinned(start))
    }

    pub(super) fn source(&self, start: usize, bytes: usize) -> Place {
        self.host(start, bytes).unwrap_or_else(|| {
            let start: *const u8 = std::ptr::with_exposed_provenance(start);
            // SAFETY: the caller of a copy promises that many bytes.
            Place::Taken(unsafe { std::slice::from_raw_parts(start, bytes) }.to_vec())
        })
    }
}

impl Fake {
    /// Puts work at the end of a stream.
    pub(super) fn enqueue<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        stream: Stream,
        work: Work,
    ) -> CuResult<()> {
        if let Some(items_max) = state.queue_items_max {
            state.stream(stream)?;
            let key = key(stream, state.current()?);
            let has_room =
                |state: &State| state.streams.get(&key).is_none_or(|stream| stream.queue.len() < items_max);
            state.waits_for_room = Some(std::thread::current().id());
            state = self.block(state, "a call into a full stream", has_room);
            state.waits_for_room = None;
            self.changed.notify_all();
        }
        state.next_ticket += 1;
        let number = state.next_ticket;
        state.stream(stream)?.queue.push_back(Item { number, work });
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// The streams that take calls, in the order they were made.
    pub(crate) fn streams(&self) -> Vec<usize> {
        let state = self.lock();
        state.streams.iter().filter(|(_, stream)| !stream.is_destroyed).map(|(&key, _)| key).collect()
    }

    pub(crate) fn stream_create(&self, out: *mut Stream, flags: c_uint, _priority: c_int) -> CuResult<()> {
        let mut state = self.lock();
        let context = state.current()?;
        let stream = Stream(handle());
        let is_blocking = flags & NON_BLOCKING == 0;
        state.streams.insert(stream.0.addr(), StreamState::new(context, false, is_blocking));
        state.memory.add_stream();
        put(out, stream);
        Ok(())
    }

    /// Returns at once; the stream goes when its work is over.
    pub(crate) fn stream_destroy(&self, stream: Stream) -> CuResult<()> {
        let mut state = self.lock();
        let found = state.stream(stream)?;
        found.is_destroyed = true;
        if found.is_idle() {
            state.streams.remove(&stream.0.addr());
        }
        Ok(())
    }

    pub(crate) fn stream_query(&self, stream: Stream) -> CuResult<()> {
        if self.lock().stream(stream)?.is_idle() { Ok(()) } else { Err(CudaError::NOT_READY) }
    }

    pub(crate) fn stream_synchronize(&self, stream: Stream) -> CuResult<()> {
        let mut state = self.lock();
        state.stream(stream)?;
        let key = key(stream, state.current()?);
        let is_over = |state: &State| state.streams.get(&key).is_none_or(StreamState::is_idle);
        let state = self.block(state, "cuStreamSynchronize", is_over);
        state.current().map(drop)
    }

    pub(crate) fn copy_in(
        &self,
        target: DeviceAddress,
        source: *const c_void,
        bytes: usize,
        stream: Stream,
    ) -> CuResult<()> {
        let state = self.lock();
        if state.memory.leaves_variable(target, bytes) {
            return Err(CudaError::INVALID_VALUE);
        }
        let source = state.source(source.addr(), bytes);
        self.enqueue(state, stream, Work::Copy(Copying::line(Place::Device(target), source, bytes)))
    }

    /// To pageable memory the documentation says that the call returns when the bytes are there.
    pub(crate) fn copy_out(
        &self,
        target: *mut c_void,
        source: DeviceAddress,
        bytes: usize,
        stream: Stream,
    ) -> CuResult<()> {
        let mut state = self.lock();
        let Some(target) = state.host(target.addr(), bytes) else {
            state.violation("cuMemcpyDtoHAsync to pageable memory, which blocks");
            return Err(CudaError::INVALID_VALUE);
        };
        self.enqueue(state, stream, Work::Copy(Copying::line(target, Place::Device(source), bytes)))
    }

    pub(crate) fn copy_device(
        &self,
        target: DeviceAddress,
        source: DeviceAddress,
        bytes: usize,
        stream: Stream,
    ) -> CuResult<()> {
        let copy = Copying::line(Place::Device(target), Place::Device(source), bytes);
        self.enqueue(self.lock(), stream, Work::Copy(copy))
    }

    pub(crate) fn copy_2d(&self, copy: *const Copy2D, stream: Stream) -> CuResult<()> {
        // SAFETY: valid for the call, as the caller promises.
        let copy = unsafe { copy.read() };
        if copy.source_pitch < copy.width || copy.target_pitch < copy.width || copy.height == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut state = self.lock();
        let extent = |pitch: usize| pitch * (copy.height - 1) + copy.width;
        let source = match copy.source_type {
            MEMORY_HOST => state.source(copy.source_host, extent(copy.source_pitch)),
            _ => Place::Device(copy.source_device),
        };
        let target = match copy.target_type {
            MEMORY_HOST => match state.host(copy.target_host, extent(copy.target_pitch)) {
                Some(target) => target,
                None => {
                    state.violation("cuMemcpy2DAsync to pageable memory, which blocks");
                    return Err(CudaError::INVALID_VALUE);
                }
            },
            _ => Place::Device(copy.target_device),
        };
        let copying = Copying {
            source,
            source_pitch: copy.source_pitch,
            source_slice: 0,
            target,
            target_pitch: copy.target_pitch,
            target_slice: 0,
            extent: [copy.width, copy.height, 1],
        };
        self.enqueue(state, stream, Work::Copy(copying))
    }

    fn fill(&self, stream: Stream, target: u64, element: &[u8], rows: (usize, usize, usize)) -> CuResult<()> {
        let (pitch, count, height) = rows;
        let work = Work::Fill { target, pitch, element: element.to_vec(), count, height };
        self.enqueue(self.lock(), stream, work)
    }

    pub(crate) fn fill_8(
        &self,
        target: DeviceAddress,
        value: u8,
        count: usize,
        stream: Stream,
    ) -> CuResult<()> {
        self.fill(stream, target, &[value], (0, count, 1))
    }

    pub(crate) fn fill_16(
        &self,
        target: DeviceAddress,
        value: u16,
        count: usize,
        stream: Stream,
    ) -> CuResult<()> {
        self.fill(stream, target, &value.to_le_bytes(), (0, count, 1))
    }

    pub(crate) fn fill_32(
        &self,
        target: DeviceAddress,
        value: c_uint,
        count: usize,
        stream: Stream,
    ) -> CuResult<()> {
        self.fill(stream, target, &value.to_le_bytes(), (0, count, 1))
    }

    pub(crate) fn fill_2d_8(
        &self,
        target: DeviceAddress,
        pitch: usize,
        value: u8,
        width: usize,
        height: usize,
        stream: Stream,
    ) -> CuResult<()> {
        self.fill(stream, target, &[value], (pitch, width, height))
    }

    pub(crate) fn fill_2d_16(
        &self,
        target: DeviceAddress,
        pitch: usize,
        value: u16,
        width: usize,
        height: usize,
        stream: Stream,
    ) -> CuResult<()> {
        self.fill(stream, target, &value.to_le_bytes(), (pitch, width, height))
    }

    pub(crate) fn fill_2d_32(
        &self,
        target: DeviceAddress,
        pitch: usize,
        value: c_uint,
        width: usize,
        height: usize,
        stream: Stream,
    ) -> CuResult<()> {
        self.fill(stream, target, &value.to_le_bytes(), (pitch, width, height))
    }

    pub(crate) fn stream_wait_value(
        &self,
        stream: Stream,
        address: DeviceAddress,
        value: u64,
        flags: c_uint,
    ) -> CuResult<()> {
        let work = Work::of_memory_op(4, address, value, flags)?;
        self.enqueue(self.lock(), stream, work)
    }

    pub(crate) fn stream_write_value(
        &self,
        stream: Stream,
        address: DeviceAddress,
        value: u64,
        flags: c_uint,
    ) -> CuResult<()> {
        let work = Work::of_memory_op(5, address, value, flags)?;
        self.enqueue(self.lock(), stream, work)
    }

    pub(crate) fn stream_memory_ops(
        &self,
        stream: Stream,
        count: c_uint,
        ops: *mut BatchMemOp,
        _flags: c_uint,
    ) -> CuResult<()> {
        // SAFETY: the caller promises `count` of them.
        let ops = unsafe { std::slice::from_raw_parts(ops, count as usize) };
        for work in Work::of_memory_ops(ops)? {
            self.enqueue(self.lock(), stream, work)?;
        }
        Ok(())
    }

    pub(crate) fn launch_host(
        &self,
        stream: Stream,
        function: HostFunction,
        argument: *mut c_void,
    ) -> CuResult<()> {
        let work = Work::Host { function, argument: argument.expose_provenance() };
        self.enqueue(self.lock(), stream, work)
    }
}
