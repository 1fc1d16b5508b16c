//! Stream capture: from stream calls to nodes.
//!
//! A capture sequence begins on one stream, its origin. Work put into a capturing stream becomes a node behind the
//! stream's *frontier*, the nodes that the next one will depend on. A stream joins a sequence when it waits for an
//! event that was recorded in it, and leaves when the sequence ends.
//!
//! ```text
//!          begin              capture, fork, join
//!   None --------> Active <------------------------+
//!                  |  |  \                         |
//!                  |  |   +------------------------+
//!                  |  |
//!   forbidden call,|  | end on the origin: the graph; or no graph, if work was left
//!   end on another |  | unjoined (904) or the thread is not the one that began (908)
//!   stream (903)   |  |
//!                  v  +-----------------------------------> Ended
//!          Invalidated --- end on the origin: 901, no graph -->
//! ```
//!
//! Everything here was asked of the real driver. What it forbids is in [`rules`].

mod join;
pub mod rules;
mod sequence;
#[cfg(test)]
mod tests;

pub use join::{Record, Wait};
pub use sequence::{Info, Mode, Phase, Status};

use super::{
    ids::{GraphId, NodeId},
    store::{Edge, Graphs, Payload},
};
use cuda_abi::{CuResult, CudaError};
use sequence::{Events, Sequence};
use std::collections::{BTreeMap, HashMap};

/// A capture sequence; its number is unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaptureId(pub u64);

/// A stream, as far as capture cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureStream {
    /// Its handle.
    pub stream: u64,
    /// Its context's handle.
    pub context: u64,
    /// How it is ordered against the context's legacy stream.
    pub kind: StreamOrder,
}

/// How a stream is ordered against the context's legacy stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamOrder {
    /// It is the legacy stream.
    Legacy,
    /// Ordered against it.
    Blocking,
    /// Not ordered against it.
    NonBlocking,
}

/// The thread that makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureThread {
    /// A number of its own.
    pub thread: u64,
    /// What it set with cuThreadExchangeStreamCaptureMode.
    pub mode: Mode,
}

/// What an end of capture leaves.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    /// The captured graph, or why there is none.
    pub graph: CuResult<GraphId>,
    /// Streams that capture no more.
    pub streams: Vec<u64>,
    /// A graph that ends with the capture.
    pub discard: Option<GraphId>,
}

/// All captures of a process.
#[derive(Clone, Debug)]
pub struct Captures {
    sequences: BTreeMap<CaptureId, Sequence>,
    /// Which sequence a stream is part of.
    streams: HashMap<u64, CaptureId>,
    events: Events,
    next: u64,
}

impl Default for Captures {
    fn default() -> Self {
        Self { sequences: BTreeMap::new(), streams: HashMap::new(), events: Events::default(), next: 1 }
    }
}

impl Captures {
    /// Whether no stream captures and no event was last recorded in a capture: then no call needs to ask anything
    /// here.
    pub fn is_quiet(&self) -> bool {
        self.sequences.is_empty() && self.events.is_empty()
    }

    /// Begins to capture a stream into `graph`, its first node behind `frontier`.
    pub fn begin(
        &mut self,
        stream: CaptureStream,
        graph: GraphId,
        frontier: Vec<Edge>,
        mode: u32,
        thread: CaptureThread,
    ) -> CuResult<CaptureId> {
        let mode = Mode::from_c(mode).ok_or(CudaError::INVALID_VALUE)?;
        if stream.kind == StreamOrder::Legacy {
            return Err(CudaError::STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.streams.contains_key(&stream.stream) || self.is_capturing_into(graph) {
            return Err(CudaError::ILLEGAL_STATE);
        }
        let id = CaptureId(self.next);
        self.next += 1;
        self.sequences.insert(id, Sequence::new(graph, stream, mode, thread.thread, frontier));
        self.streams.insert(stream.stream, id);
        Ok(id)
    }

    /// Ends the capture that began on `stream`. An error without an [`Ended`] leaves it going on.
    pub fn end(&mut self, stream: CaptureStream, thread: CaptureThread) -> CuResult<Ended> {
        let id = *self.streams.get(&stream.stream).ok_or(CudaError::ILLEGAL_STATE)?;
        let sequence = self.sequences.get_mut(&id).ok_or(CudaError::ILLEGAL_STATE)?;
        if sequence.origin.stream != stream.stream {
            sequence.invalidate();
            return Err(CudaError::STREAM_CAPTURE_UNMATCHED);
        }
        let result = sequence.end(thread.thread);
        let graph = sequence.graph;
        let discard = result.is_err().then_some(graph);
        Ok(Ended { graph: result.map(|()| graph), streams: self.remove(id), discard })
    }

    fn remove(&mut self, id: CaptureId) -> Vec<u64> {
        self.sequences.remove(&id);
        let streams: Vec<u64> =
            self.streams.iter().filter(|(_, of)| **of == id).map(|(key, _)| *key).collect();
        streams.iter().for_each(|stream| {
            self.streams.remove(stream);
        });
        streams
    }

    /// What a stream's capture looks like now. The legacy stream has none while a blocking stream of its context
    /// captures: it may not even be asked.
    pub fn info(&self, stream: CaptureStream) -> CuResult<Info<'_>> {
        if stream.kind == StreamOrder::Legacy
            && self.sequences_the_legacy_stream_disturbs(stream).next().is_some()
        {
            return Err(CudaError::STREAM_CAPTURE_IMPLICIT);
        }
        let found = self.streams.get(&stream.stream).and_then(|id| Some((*id, self.sequences.get(id)?)));
        Ok(match found {
            None => Info { status: Status::None, active: None },
            Some((id, sequence)) => sequence.info(id, stream.stream),
        })
    }

    /// Captures work of a stream whose admission said that it captures.
    pub fn capture<P: Payload>(
        &mut self,
        graphs: &mut Graphs<P>,
        stream: CaptureStream,
        payload: P,
    ) -> CuResult<NodeId> {
        let sequence = self.active(stream)?;
        let node = graphs.add(
            sequence.graph,
            &sequence.frontier_for(stream.stream, payload.node_type()),
            payload,
        )?;
        sequence.advance(stream.stream, node);
        Ok(node)
    }

    /// Changes what the next node of a stream depends on: adds to it, or with `replace` sets it. `nodes` are in the
    /// graph being captured.
    pub fn update_frontier(&mut self, stream: CaptureStream, nodes: &[Edge], replace: bool) -> CuResult<()> {
        let sequence = self.active(stream)?;
        sequence.update_frontier(stream.stream, nodes, replace);
        Ok(())
    }

    /// The graph a stream captures into.
    pub fn graph_of(&self, stream: CaptureStream) -> CuResult<GraphId> {
        let id = self.streams.get(&stream.stream).ok_or(CudaError::ILLEGAL_STATE)?;
        let sequence = self.sequences.get(id).ok_or(CudaError::ILLEGAL_STATE)?;
        sequence.check_active().map(|()| sequence.graph)
    }

    /// Whether a capture adds to this graph now. It may then be neither destroyed nor lose nodes.
    pub fn is_capturing_into(&self, graph: GraphId) -> bool {
        self.sequences.values().any(|sequence| sequence.graph == graph)
    }

    /// A stream is destroyed. If a capture began on it, no call can end that any more, so it ends now; otherwise the
    /// work it captured stays and must be joined.
    pub fn stream_destroyed(&mut self, stream: u64) -> Option<Ended> {
        let id = self.streams.remove(&stream)?;
        let sequence = self.sequences.get_mut(&id)?;
        if sequence.origin.stream != stream {
            sequence.forget(stream);
            return None;
        }
        let discard = Some(sequence.graph);
        Some(Ended { graph: Err(CudaError::STREAM_CAPTURE_INVALIDATED), streams: self.remove(id), discard })
    }

    /// An event is destroyed.
    pub fn event_destroyed(&mut self, event: u64) {
        self.events.forget(event);
    }

    fn active(&mut self, stream: CaptureStream) -> CuResult<&mut Sequence> {
        let id = self.streams.get(&stream.stream).ok_or(CudaError::ILLEGAL_STATE)?;
        let sequence = self.sequences.get_mut(id).ok_or(CudaError::ILLEGAL_STATE)?;
        sequence.check_active()?;
        Ok(sequence)
    }
}
