//! One capture sequence: its phase, its streams and what they will depend on.

use super::{CaptureId, CaptureStream};
use crate::graph::{
    ids::{EdgeData, GraphId, NodeId},
    store::{Edge, KERNEL_NODE},
};
use cuda_abi::{CuResult, CudaError};
use std::collections::{BTreeSet, HashMap};

/// `CUstreamCaptureMode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// No thread may make unsafe calls.
    #[default]
    Global,
    /// The capturing thread may not make unsafe calls.
    ThreadLocal,
    /// Unsafe calls are allowed.
    Relaxed,
}

impl Mode {
    /// The mode of a number.
    pub const fn from_c(mode: u32) -> Option<Self> {
        match mode {
            0 => Some(Self::Global),
            1 => Some(Self::ThreadLocal),
            2 => Some(Self::Relaxed),
            _ => None,
        }
    }
}

/// `CUstreamCaptureStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It does not capture.
    None = 0,
    /// It captures.
    Active = 1,
    /// Its capture must be ended.
    Invalidated = 2,
}

/// Where a sequence is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It takes nodes.
    Active,
    /// A rule was broken; it can only end.
    Invalidated,
    /// It ended.
    Ended,
}

macro_rules! transitions {
    ($($(#[$meta:meta])* $event:ident: $($from:ident)|+ => $to:ident;)*) => {
        impl Phase {
            $($(#[$meta])* pub(super) fn $event(&mut self) {
                if matches!(self, $(Self::$from)|+) {
                    *self = Self::$to;
                }
            })*

            /// Every arrow: event, from, to.
            #[cfg(test)]
            pub(super) const ARROWS: &[(&str, Phase, Phase)] =
                &[$($((stringify!($event), Phase::$from, Phase::$to)),+),*];
        }
    };
}

transitions! {
    /// A rule was broken.
    break_rule: Active => Invalidated;
    /// cuStreamEndCapture on the origin, or the end of the origin.
    end: Active | Invalidated => Ended;
}

/// What a stream's capture looks like.
#[derive(Debug, PartialEq, Eq)]
pub struct Info<'a> {
    /// Whether it captures.
    pub status: Status,
    /// More, while the status is [`Status::Active`].
    pub active: Option<ActiveInfo<'a>>,
}

/// The rest of an [`Info`].
#[derive(Debug, PartialEq, Eq)]
pub struct ActiveInfo<'a> {
    /// The sequence.
    pub id: CaptureId,
    /// The graph it captures into.
    pub graph: GraphId,
    /// What the next node will depend on.
    pub frontier: &'a [Edge],
}

#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) graph: GraphId,
    pub(super) origin: CaptureStream,
    pub(super) mode: Mode,
    pub(super) thread: u64,
    pub(super) phase: Phase,
    /// Streams that are part of it, with what their next node depends on.
    members: HashMap<u64, Member>,
    /// Captured nodes that no captured node follows. At the end all of them must be in the origin's frontier: the
    /// others were never joined.
    ends: BTreeSet<NodeId>,
}

#[derive(Clone, Debug)]
struct Member {
    stream: CaptureStream,
    frontier: Vec<Edge>,
}

impl Sequence {
    pub(super) fn new(
        graph: GraphId,
        origin: CaptureStream,
        mode: Mode,
        thread: u64,
        frontier: Vec<Edge>,
    ) -> Self {
        let members = HashMap::from([(origin.stream, Member { stream: origin, frontier })]);
        Self { graph, origin, mode, thread, phase: Phase::Active, members, ends: BTreeSet::new() }
    }

    pub(super) fn check_active(&self) -> CuResult<()> {
        match self.phase {
            Phase::Active => Ok(()),
            Phase::Invalidated | Phase::Ended => Err(CudaError::STREAM_CAPTURE_INVALIDATED),
        }
    }

    pub(super) fn invalidate(&mut self) {
        self.phase.break_rule();
    }

    /// Ends it and says whether its graph is good.
    pub(super) fn end(&mut self, thread: u64) -> CuResult<()> {
        let was_active = self.check_active();
        self.phase.end();
        was_active?;
        if self.mode != Mode::Relaxed && thread != self.thread {
            return Err(CudaError::STREAM_CAPTURE_WRONG_THREAD);
        }
        let joined = self.frontier(self.origin.stream);
        let is_joined = |end: &NodeId| joined.iter().any(|edge| edge.node == *end);
        if self.ends.iter().all(is_joined) { Ok(()) } else { Err(CudaError::STREAM_CAPTURE_UNJOINED) }
    }

    pub(super) fn info(&self, id: CaptureId, stream: u64) -> Info<'_> {
        match self.phase {
            Phase::Active => {
                let active = ActiveInfo { id, graph: self.graph, frontier: self.frontier(stream) };
                Info { status: Status::Active, active: Some(active) }
            }
            Phase::Invalidated | Phase::Ended => Info { status: Status::Invalidated, active: None },
        }
    }

    /// Streams that are part of it.
    pub(super) fn members(&self) -> impl Iterator<Item = &CaptureStream> {
        self.members.values().map(|member| &member.stream)
    }

    /// What the next node of a stream depends on.
    pub(super) fn frontier(&self, stream: u64) -> &[Edge] {
        self.members.get(&stream).map_or(&[], |member| &member.frontier)
    }

    /// The same for a node of this type: what an edge says about kernels is lost on any other node.
    pub(super) fn frontier_for(&self, stream: u64, node_type: u32) -> Vec<Edge> {
        let plain = |edge: &Edge| match node_type {
            KERNEL_NODE => *edge,
            _ => Edge { node: edge.node, data: EdgeData::default() },
        };
        self.frontier(stream).iter().map(plain).collect()
    }

    /// A node was captured in a stream.
    pub(super) fn advance(&mut self, stream: u64, node: NodeId) {
        if let Some(member) = self.members.get_mut(&stream) {
            for edge in member.frontier.drain(..) {
                self.ends.remove(&edge.node);
            }
            member.frontier.push(Edge { node, data: EdgeData::default() });
            self.ends.insert(node);
        }
    }

    /// A stream waits for `nodes`; it becomes a member if it is none.
    pub(super) fn join(&mut self, stream: CaptureStream, nodes: &[Edge]) {
        let member = self.members.entry(stream.stream).or_insert(Member { stream, frontier: Vec::new() });
        add_new(&mut member.frontier, nodes);
    }

    /// cuStreamUpdateCaptureDependencies. Nodes that leave a frontier this way need not be joined.
    pub(super) fn update_frontier(&mut self, stream: u64, nodes: &[Edge], replace: bool) {
        let Some(member) = self.members.get_mut(&stream) else { return };
        if replace {
            for edge in member.frontier.drain(..) {
                if !nodes.iter().any(|kept| kept.node == edge.node) {
                    self.ends.remove(&edge.node);
                }
            }
        }
        add_new(&mut member.frontier, nodes);
    }

    /// A member is no more.
    pub(super) fn forget(&mut self, stream: u64) {
        self.members.remove(&stream);
    }
}

fn add_new(frontier: &mut Vec<Edge>, nodes: &[Edge]) {
    for edge in nodes {
        if !frontier.iter().any(|known| known.node == edge.node) {
            frontier.push(*edge);
        }
    }
}

/// Events whose latest record was captured.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    events: HashMap<u64, (CaptureId, Vec<Edge>)>,
}

impl Events {
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(super) fn record(&mut self, event: u64, id: CaptureId, frontier: Vec<Edge>) {
        self.events.insert(event, (id, frontier));
    }

    pub(super) fn forget(&mut self, event: u64) {
        self.events.remove(&event);
    }

    pub(super) fn get(&self, event: u64) -> Option<&(CaptureId, Vec<Edge>)> {
        self.events.get(&event)
    }
}
