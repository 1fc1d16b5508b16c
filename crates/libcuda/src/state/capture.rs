//! Stream capture: work that becomes a graph instead of running.

use super::{Event, NodeOp, Stream, lock};
use cuda_abi::{CuResult, CudaError};
use std::sync::{Arc, atomic::{AtomicBool, AtomicU32, Ordering}};

/// A stream's place in a capture.
#[derive(Default)]
pub(crate) struct CaptureSlot {
    active: AtomicBool,
}

/// The captured record of an event.
pub(crate) struct CapturedRecord;

/// A graph inside a graph.
#[derive(Clone)]
pub(crate) struct ChildGraph;

/// Captures under way in this process. While it is 0, capture costs each call one load.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

/// Whether work of a stream must go through [`add`].
#[inline]
pub(crate) fn concerns(stream: &Stream) -> bool {
    UNDER_WAY.load(Ordering::Relaxed) != 0 && stream.capture.active.load(Ordering::Acquire)
}

/// Adds work of a capturing stream to its graph.
pub(crate) fn add(_stream: &Arc<Stream>, _op: NodeOp) -> CuResult<()> {
    Err(CudaError::STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses a call that cannot be captured while a capture of this process forbids it.
#[inline]
pub(crate) fn forbid_unsafe_call() -> CuResult<()> {
    if UNDER_WAY.load(Ordering::Relaxed) == 0 { Ok(()) } else { forbid_slow() }
}

#[cold]
fn forbid_slow() -> CuResult<()> {
    Ok(())
}

/// Refuses a call that waits for, or asks about, a capturing stream.
#[inline]
pub(crate) fn forbid_wait(stream: &Stream) -> CuResult<()> {
    if concerns(stream) { Err(CudaError::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
}

/// Refuses a call about an event whose latest record was captured.
pub(crate) fn forbid_captured_event(event: &Event) -> CuResult<()> {
    if lock(&event.captured).is_some() { Err(CudaError::CAPTURED_EVENT) } else { Ok(()) }
}

/// Ends the capture of a stream that is destroyed.
pub(crate) fn end_capture_of(_stream: &Stream) {}
