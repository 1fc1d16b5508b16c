//! Events in captures: how streams fork off a sequence and join it again.

use super::{CaptureId, CaptureStream, Captures, StreamOrder, sequence::Phase};
use cuda_abi::{CuResult, CudaError};

/// What a record of an event turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Nothing is captured: record it in the stream.
    Plain,
    /// The capture noted it; there is nothing to do.
    Noted,
    /// It becomes a node, to be captured.
    Node,
}

/// What a wait for an event turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nothing is captured: wait in the stream.
    Plain,
    /// The capture noted it; there is nothing to do.
    Noted,
    /// The stream, which did not capture, is part of a capture from now on.
    Joined,
    /// It becomes a node, to be captured.
    Node,
}

/// Where an event was last recorded.
enum Recorded {
    Outside,
    In(CaptureId),
    /// In a capture that ended or was invalidated: such an event is of no use until it is recorded again.
    InDeadCapture,
}

impl Captures {
    /// An event is recorded in a stream; with `external`, as a node of its own.
    pub fn record(&mut self, stream: CaptureStream, event: u64, external: bool) -> CuResult<Record> {
        match self.admit(stream)? {
            None if external => Err(CudaError::ILLEGAL_STATE),
            None => {
                self.events.forget(event);
                Ok(Record::Plain)
            }
            Some(_) if external => Ok(Record::Node),
            Some(id) => {
                let frontier =
                    self.sequences.get(&id).map_or(&[][..], |sequence| sequence.frontier(stream.stream));
                self.events.record(event, id, frontier.to_vec());
                Ok(Record::Noted)
            }
        }
    }

    /// A stream is to wait for an event; with `external`, in a node of its own. `recorded` says whether the event was
    /// ever recorded in a stream: waiting for one that was not is nothing.
    pub fn wait(
        &mut self,
        stream: CaptureStream,
        event: u64,
        external: bool,
        recorded: bool,
    ) -> CuResult<Wait> {
        if stream.kind == StreamOrder::Legacy
            && let Recorded::In(id) = self.where_recorded(event)
        {
            // The legacy stream cannot capture, whatever the origin is.
            self.invalidate(id);
            return Err(CudaError::STREAM_CAPTURE_IMPLICIT);
        }
        let own = self.admit(stream)?;
        if external && own.is_some() {
            return Ok(Wait::Node);
        }
        match (self.where_recorded(event), own) {
            (Recorded::InDeadCapture, own) => {
                own.into_iter().for_each(|id| self.invalidate(id));
                Err(CudaError::INVALID_VALUE)
            }
            (_, None) if external => Err(CudaError::ILLEGAL_STATE),
            (Recorded::Outside, None) => Ok(Wait::Plain),
            (Recorded::Outside, Some(_)) if !recorded => Ok(Wait::Noted),
            (Recorded::Outside, Some(id)) => {
                self.invalidate(id);
                Err(CudaError::STREAM_CAPTURE_ISOLATION)
            }
            (Recorded::In(id), Some(own)) if own != id => {
                self.invalidate(id);
                self.invalidate(own);
                Err(CudaError::STREAM_CAPTURE_MERGE)
            }
            (Recorded::In(id), own) => {
                self.join(id, stream, event);
                Ok(if own.is_some() { Wait::Noted } else { Wait::Joined })
            }
        }
    }

    fn join(&mut self, id: CaptureId, stream: CaptureStream, event: u64) {
        if let (Some(sequence), Some((_, frontier))) = (self.sequences.get_mut(&id), self.events.get(event)) {
            sequence.join(stream, frontier);
            self.streams.insert(stream.stream, id);
        }
    }

    fn where_recorded(&self, event: u64) -> Recorded {
        match self.events.get(event) {
            None => Recorded::Outside,
            Some((id, _)) => match self.sequences.get(id).map(|sequence| sequence.phase) {
                Some(Phase::Active) => Recorded::In(*id),
                Some(Phase::Invalidated | Phase::Ended) | None => Recorded::InDeadCapture,
            },
        }
    }

    /// The program asks whether an event is done, or waits for it: never possible for one recorded in a capture, and
    /// an attempt ends a capture that goes on.
    pub fn event_used_by_host(&mut self, event: u64) -> CuResult<()> {
        match self.where_recorded(event) {
            Recorded::Outside => Ok(()),
            Recorded::InDeadCapture => Err(CudaError::INVALID_VALUE),
            Recorded::In(id) => {
                self.invalidate(id);
                Err(CudaError::CAPTURED_EVENT)
            }
        }
    }

    /// The program asks for the time between events: not possible for one recorded in a capture, but harmless.
    pub fn event_timed(&self, event: u64) -> CuResult<()> {
        match self.where_recorded(event) {
            Recorded::Outside => Ok(()),
            Recorded::InDeadCapture => Err(CudaError::INVALID_VALUE),
            Recorded::In(_) => Err(CudaError::CAPTURED_EVENT),
        }
    }
}
