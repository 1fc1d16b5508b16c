//! A session's seat on a GPU that online and offline programs share. A dedicated session has none.
//!
//! ```text
//!   Online   work is put into a stream ─▶ the stream is remembered      `quiet` asks the remembered ones whether they are idle
//!   Offline  turnstile says where ─▶ the stream waits for the gate word on the device ─▶ work is put into the stream
//! ```

mod gate;
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
        }
    }

    /// Part of a copy between host and device is about to be put into a stream.
    pub(crate) fn before_part(&self, work: &Work, stream: &Arc<LiveStream>, bytes: u64) -> CuResult<()> {
        match self {
            Self::Online(_) => Ok(()),
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
        if let Self::Offline(gate) = self {
            gate.forget(work, stream);
        }
    }

    /// Writes to the log how an offline session's work was cut into groups.
    pub(crate) fn tell(&self) {
        if let Self::Offline(gate) = self {
            gate.tell();
        }
    }

    /// The number of the timed work that runs.
    pub(crate) fn running(&self) -> Option<u64> {
        match self {
            Self::Online(_) => None,
            Self::Offline(gate) => gate.running(),
        }
    }

    /// Whether all work is done. `true` for an offline session: no other session waits for it.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            Self::Online(touched) => touched.are_idle(),
            Self::Offline(_) => true,
        }
    }
}
