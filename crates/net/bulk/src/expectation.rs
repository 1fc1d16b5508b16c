//! One transfer that this side expects.

use crate::{
    buffer::Buffer,
    coverage::{Coverage, Refused},
    ends::Done,
    fault::Fault,
    landed::Landing,
    lanes::Shared,
};
use cuda_wire::{LinkLost, Sink, TransferId};
use locks::{lock, wait};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

/// A part of a transfer in a lane buffer.
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) buffer: Buffer,
    pub(crate) bytes: usize,
    /// Whether the buffer is one of the bounded pool, or came from the spares for early chunks.
    pub(crate) pooled: bool,
    /// The chunk that has landed with this piece, if it is the last of one.
    pub(crate) landing: Option<Landing>,
}

/// What the receiving lanes and the waiting thread know of a transfer.
pub(crate) struct Expected {
    pub(crate) transfer: TransferId,
    pub(crate) bytes: u64,
    /// Called by lane threads; without one the pieces go to the mailbox of a blocked caller.
    pub(crate) sink: Option<Box<dyn Sink + Send + Sync>>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    coverage: Coverage,
    landed_bytes: u64,
    /// Lanes that are using the sink right now: `done` waits for them.
    active: u32,
    failed: bool,
    mailbox: VecDeque<Piece>,
    /// The caller sleeps until a piece comes. Only one thread waits for a transfer.
    is_awaited: bool,
    done: Option<Done>,
}

impl Expected {
    pub(crate) fn new(
        transfer: TransferId,
        bytes: u64,
        sink: Option<Box<dyn Sink + Send + Sync>>,
        coverage: Coverage,
        done: Option<Done>,
    ) -> Self {
        let mailbox = VecDeque::new();
        let state =
            State { coverage, landed_bytes: 0, active: 0, failed: false, mailbox, is_awaited: false, done };
        Self { transfer, bytes, sink, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A new chunk wants to write `offset..offset + bytes`.
    pub(crate) fn claim(&self, offset: u64, bytes: u32) -> Result<(), Fault> {
        let end = offset.checked_add(bytes.into()).filter(|end| *end <= self.bytes);
        let Some(end) = end else {
            let Self { transfer, bytes: all, .. } = self;
            return Err(Fault::protocol(format!("{bytes} bytes at {offset} of {transfer}, which has {all}")));
        };
        let mut state = lock(&self.state);
        state.coverage.claim(offset, end).map_err(|refused| refusal(self.transfer, offset, refused))?;
        state.active += 1;
        Ok(())
    }

    /// Whether so many holes are open that only what comes in order should fill them.
    pub(crate) fn is_crowded(&self) -> bool {
        lock(&self.state).coverage.is_crowded()
    }

    /// A chunk that was claimed before this expectation was made is about to be delivered.
    pub(crate) fn adopt(&self) {
        lock(&self.state).active += 1;
    }

    pub(crate) fn mail(&self, piece: Piece) {
        let mut state = lock(&self.state);
        state.mailbox.push_back(piece);
        // A notification is a system call, whether or not the caller waits. One that is busy looks into its mailbox next.
        if std::mem::take(&mut state.is_awaited) {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// A claimed chunk is through: `bytes` of it reached the sink. True when that was the last of the transfer.
    pub(crate) fn release(&self, bytes: u64) -> Option<(Done, Result<(), LinkLost>)> {
        let mut state = lock(&self.state);
        state.active -= 1;
        state.landed_bytes += bytes;
        self.take_done(&mut state)
    }

    pub(crate) fn fail(&self) -> Option<(Done, Result<(), LinkLost>)> {
        let mut state = lock(&self.state);
        state.failed = true;
        self.changed.notify_all();
        self.take_done(&mut state)
    }

    fn take_done(&self, state: &mut State) -> Option<(Done, Result<(), LinkLost>)> {
        let complete = state.landed_bytes == self.bytes;
        if state.active != 0 || !(complete || state.failed) {
            return None;
        }
        Some((state.done.take()?, if complete { Ok(()) } else { Err(LinkLost) }))
    }
}

pub(crate) fn refusal(transfer: TransferId, offset: u64, refused: Refused) -> Fault {
    Fault::protocol(match refused {
        Refused::Overlap => format!("bytes at {offset} of {transfer} came twice"),
        Refused::Scattered => format!("{transfer} comes in too many scattered chunks"),
    })
}

/// A transfer that is expected and not yet waited for. Dropping it gives the transfer up.
pub struct Expectation {
    pub(crate) shared: Arc<Shared>,
    pub(crate) expected: Arc<Expected>,
}

impl Expectation {
    /// Hands every part to `sink` on this thread, as it comes, and returns when the last was taken.
    pub fn wait(self, sink: &dyn Sink) -> Result<(), LinkLost> {
        let expected = &self.expected;
        let mut state = lock(&expected.state);
        loop {
            if let Some(piece) = state.mailbox.pop_front() {
                drop(state);
                sink.take(piece.offset, &piece.buffer.bytes()[..piece.bytes]);
                let bytes = piece.bytes as u64;
                self.put_back(piece);
                state = lock(&expected.state);
                state.landed_bytes += bytes;
            } else if state.landed_bytes == expected.bytes {
                return Ok(());
            } else if state.failed {
                return Err(LinkLost);
            } else {
                state.is_awaited = true;
                state = wait(&expected.changed, state);
            }
        }
    }

    fn put_back(&self, piece: Piece) {
        match piece.pooled {
            true => self.shared.pool.put(piece.buffer),
            false => self.shared.incoming.spares.put(piece.buffer),
        }
        if let Some(landing) = piece.landing {
            self.shared.landed.end(landing);
        }
    }
}

impl Drop for Expectation {
    fn drop(&mut self) {
        self.shared.incoming.forget(self.expected.transfer);
        let left = std::mem::take(&mut lock(&self.expected.state).mailbox);
        left.into_iter().for_each(|piece| self.put_back(piece));
    }
}
