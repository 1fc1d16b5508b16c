//! A session's seat on a GPU that programs share. A session that has its GPU for itself has none.
//!
//! ```text
//!   Online   work is put into a stream ─▶ the stream is remembered      `quiet` asks the remembered ones whether they are idle
//!   Offline  turnstile says where ─▶ the stream waits for the gate word on the device ─▶ work is put into the stream
//!   Equal    both: its streams wait for the word of its own slot, and its keeper asks whether they have work
//! ```

mod gate;
mod marks;
mod samples;
mod touched;

pub(crate) use gate::{EQUAL, SharingGate};
pub(crate) use touched::Touched;

use crate::{
    graph::Exec,
    op::{Work, enqueue},
    stream::LiveStream,
    tables::Tables,
};
use cuda_abi::CuResult;
use cuda_wire::Op;
use std::sync::{Arc, Mutex};

pub(crate) enum Seat {
    /// Others wait for this session's work.
    Online(Touched),
    /// This session's work waits for others.
    Offline(Box<SharingGate>),
    /// Each waits for the other's turn to end.
    Equal(Box<SharingGate>, Touched),
}

impl Seat {
    /// Puts one piece of work at the end of a stream.
    pub(crate) fn enqueue(
        &self,
        work: &Arc<Work>,
        tables: &Mutex<Tables>,
        stream: &Arc<LiveStream>,
        op: Op<'_>,
    ) -> CuResult<()> {
        match self {
            Self::Online(touched) => {
                let result = enqueue(work, tables, stream, op);
                touched.touch(stream);
                result
            }
            Self::Offline(gate) => gate.enqueue(work, tables, stream, op),
            Self::Equal(gate, touched) => {
                // What does not wait needs no turn.
                let holds_back = SharingGate::holds_back(&op);
                let result = gate.enqueue(work, tables, stream, op);
                if holds_back {
                    touched.touch(stream);
                }
                result
            }
        }
    }

    /// Launches a graph.
    pub(crate) fn launch_graph(
        &self,
        tables: &Mutex<Tables>,
        exec: &Arc<Exec>,
        stream: &Arc<LiveStream>,
        run: u32,
    ) -> CuResult<()> {
        match self {
            Self::Online(touched) => {
                let result = exec.launch(tables, stream, run);
                touched.touch(stream);
                result
            }
            Self::Offline(gate) => gate.launch_graph(tables, exec, stream, run),
            Self::Equal(gate, touched) => {
                let result = gate.launch_graph(tables, exec, stream, run);
                touched.touch(stream);
                result
            }
        }
    }

    /// Part of a copy between host and device is about to be put into a stream. Equal sessions take turns with what computes: a copy
    /// uses engines of its own, and may wait for a client for long.
    pub(crate) fn before_part(&self, work: &Work, stream: &Arc<LiveStream>, bytes: u64) -> CuResult<()> {
        match self {
            Self::Online(_) | Self::Equal(..) => Ok(()),
            Self::Offline(gate) => gate.before_part(work, stream, bytes),
        }
    }

    /// A read of device memory was put into a stream. Reads wait for no gate: they are small.
    pub(crate) fn note_read(&self, stream: &Arc<LiveStream>) {
        if let Self::Online(touched) = self {
            touched.touch(stream);
        }
    }

    /// The client has destroyed a stream.
    pub(crate) fn forget(&self, work: &Work, stream: &Arc<LiveStream>) {
        if let Self::Offline(gate) | Self::Equal(gate, _) = self {
            gate.forget(work, stream);
        }
    }

    /// Writes to the log how the work was cut into groups.
    pub(crate) fn tell(&self) {
        if let Self::Offline(gate) | Self::Equal(gate, _) = self {
            gate.tell();
        }
    }

    /// The number of the timed work that runs.
    pub(crate) fn running(&self) -> Option<u64> {
        match self {
            Self::Online(_) => None,
            Self::Offline(gate) | Self::Equal(gate, _) => gate.running(),
        }
    }

    /// Whether all work is done. `true` for an offline session: no other session waits for it.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            Self::Online(touched) | Self::Equal(_, touched) => touched.are_idle(),
            Self::Offline(_) => true,
        }
    }

    /// Whether no long work that has passed the gate is on the device.
    pub(crate) fn rests(&self) -> bool {
        match self {
            Self::Online(_) | Self::Offline(_) => true,
            Self::Equal(gate, _) => gate.rests(),
        }
    }
}
