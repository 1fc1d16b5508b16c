//! What is forbidden while streams capture. Breaking a rule invalidates the captures that the call would have spoilt.
//!
//! | call | forbidden when | code |
//! |---|---|---|
//! | work in a stream whose capture is invalidated | always | 901 |
//! | any use of the legacy stream | a blocking stream of its context captures | 906 |
//! | cuStreamSynchronize, cuStreamQuery, cuStreamGetFlags, cuStreamGetId, cuStreamGetDevice, cuStreamAddCallback, cuStreamAttachMemAsync, cuGraphLaunch, cuGraphUpload | this stream captures | 900 |
//! | cuCtxSynchronize, cuCtxRecordEvent | a stream of the context captures | 900 |
//! | cuGraphInstantiate | the graph is being captured | 900 |
//! | an unsafe call | as the modes of thread and captures say | 900 |
//!
//! Unsafe, as the driver has it: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged, cuMemFree, cuMemHostAlloc,
//! cuMemAllocHost, cuMemFreeHost, cuMemHostRegister, cuMemHostUnregister, cuArrayCreate; cuMemAllocAsync and
//! cuMemFreeAsync in a stream that does not capture; cuMemPoolCreate, cuMemPoolTrimTo, cuMemPoolGetAttribute,
//! cuMemPoolSetAttribute; cuStreamSynchronize, cuStreamQuery, cuEventSynchronize and cuEventQuery on others;
//! cuModuleUnload, cuCtxSetLimit, cuCtxSetCacheConfig, cuGraphInstantiate, cuGraphExecDestroy.
//!
//! Not unsafe, though one might think so: synchronous copies and fills (they are work in the legacy stream), making
//! and destroying streams, events and contexts, loading modules, cuMemGetInfo, the virtual memory calls,
//! cuFuncSetAttribute, cuGraphExecUpdate, cuGraphLaunch in a stream that does not capture.

use super::{
    CaptureId, CaptureStream, CaptureThread, Captures, StreamOrder,
    sequence::{Mode, Sequence},
};
use crate::graph::ids::GraphId;
use cuda_abi::{CuResult, CudaError};

impl Captures {
    /// Work is put into a stream: `Some` if it must be captured.
    pub fn admit(&mut self, stream: CaptureStream) -> CuResult<Option<CaptureId>> {
        self.keep_the_legacy_stream_out(stream)?;
        let Some(id) = self.streams.get(&stream.stream).copied() else { return Ok(None) };
        let Some(sequence) = self.sequences.get(&id) else { return Ok(None) };
        sequence.check_active().map(|()| Some(id))
    }

    /// A call that cannot be captured names a stream: it must not capture.
    pub fn refuse_capturing(&mut self, stream: CaptureStream) -> CuResult<()> {
        self.keep_the_legacy_stream_out(stream)?;
        match self.streams.get(&stream.stream).copied() {
            None => Ok(()),
            Some(id) => {
                self.invalidate(id);
                Err(CudaError::STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// The program asks whether a stream is idle, or waits for it.
    pub fn stream_used_by_host(&mut self, stream: CaptureStream, thread: CaptureThread) -> CuResult<()> {
        self.refuse_capturing(stream)?;
        self.unsafe_call(thread)
    }

    /// A call means all streams of a context.
    pub fn refuse_capturing_in(&mut self, context: u64) -> CuResult<()> {
        self.invalidate_where(|sequence| sequence.members().any(|member| member.context == context))
    }

    /// A graph is instantiated: it must be complete.
    pub fn refuse_capturing_into(&mut self, graph: GraphId) -> CuResult<()> {
        self.invalidate_where(|sequence| sequence.graph == graph)
    }

    /// A call that a capture would not see although the captured work may depend on it.
    pub fn unsafe_call(&mut self, thread: CaptureThread) -> CuResult<()> {
        let forbids = |sequence: &Sequence| {
            let own = sequence.thread == thread.thread;
            match thread.mode {
                Mode::Relaxed => false,
                Mode::ThreadLocal => own && sequence.mode != Mode::Relaxed,
                Mode::Global if own => sequence.mode != Mode::Relaxed,
                Mode::Global => sequence.mode == Mode::Global,
            }
        };
        self.invalidate_where(forbids)
    }

    fn keep_the_legacy_stream_out(&mut self, stream: CaptureStream) -> CuResult<()> {
        if stream.kind != StreamOrder::Legacy {
            return Ok(());
        }
        let disturbed: Vec<CaptureId> = self.sequences_the_legacy_stream_disturbs(stream).collect();
        if disturbed.is_empty() {
            return Ok(());
        }
        disturbed.into_iter().for_each(|id| self.invalidate(id));
        Err(CudaError::STREAM_CAPTURE_IMPLICIT)
    }

    /// Sequences with a stream that the legacy stream would have to wait for.
    pub(super) fn sequences_the_legacy_stream_disturbs(
        &self,
        legacy: CaptureStream,
    ) -> impl Iterator<Item = CaptureId> {
        let waits_for = move |member: &CaptureStream| {
            member.context == legacy.context && member.kind == StreamOrder::Blocking
        };
        self.sequences
            .iter()
            .filter(move |(_, sequence)| sequence.members().any(waits_for))
            .map(|(id, _)| *id)
    }

    /// Invalidates the sequences that a call would spoil; success if there are none.
    fn invalidate_where(&mut self, spoils: impl Fn(&Sequence) -> bool) -> CuResult<()> {
        let mut result = Ok(());
        for sequence in self.sequences.values_mut().filter(|sequence| spoils(sequence)) {
            sequence.invalidate();
            result = Err(CudaError::STREAM_CAPTURE_UNSUPPORTED);
        }
        result
    }

    /// Invalidates one sequence. Also for a launch that the driver refuses: it spoils the capture it was meant for.
    pub fn invalidate(&mut self, id: CaptureId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.invalidate();
        }
    }
}
