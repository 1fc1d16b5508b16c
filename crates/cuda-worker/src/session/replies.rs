//! Replies: gathered while there is more to execute, sent before the loop blocks.

use crate::{
    session::{gate::Gate, link::Link},
    sync::lock,
};
use cuda_abi::CuResult;
use cuda_driver::LinkLost;
use cuda_wire::{ReplyHeader, Wire};
use std::sync::{Arc, Mutex};
use transport::{Closer, Tx};

/// Beyond this, gathering more saves nothing.
const GATHERED_BYTES_MAX: usize = 64 << 10;

pub(crate) struct Replies {
    out: Mutex<Out>,
    closer: Closer,
    gate: Arc<Gate>,
    link: Arc<Link>,
}

struct Out {
    tx: Tx,
    gathered: Vec<u8>,
}

impl Replies {
    pub(crate) fn new(tx: Tx, closer: Closer, gate: Arc<Gate>, link: Arc<Link>) -> Self {
        let out = Out { tx, gathered: Vec::with_capacity(GATHERED_BYTES_MAX) };
        Self { out: Mutex::new(out), closer, gate, link }
    }

    /// Adds a reply. It leaves with the next [`Self::flush`], or at once when much has gathered.
    pub(crate) fn push(&self, call: u32, result: CuResult<()>, body: &[u8]) -> Result<(), LinkLost> {
        let mut out = lock(&self.out);
        // Within the lock: each error is reported by one reply, and counts never go back from a reply to the next.
        let (deferred_context, deferred) = match self.gate.take_deferred() {
            Some((context, error)) => (context.0, error.code()),
            None => (0, 0),
        };
        // A failure carries the driver's words instead of an answer.
        let message = if result.is_err() { self.gate.take_message() } else { String::new() };
        let body = if result.is_ok() { body } else { message.as_bytes() };
        let header = ReplyHeader {
            bytes: body.len() as u32,
            call,
            status: result.err().map_or(0, |error| error.code()),
            deferred,
            deferred_context,
            notices: self.link.events.sent(),
            chunks: self.link.lanes.chunks_sent(),
            memory_credit_bytes: self.gate.memory_credit(),
        };
        header.put(&mut out.gathered);
        out.gathered.extend_from_slice(body);
        if out.gathered.len() > GATHERED_BYTES_MAX { out.flush() } else { Ok(()) }
    }

    pub(crate) fn flush(&self) -> Result<(), LinkLost> {
        lock(&self.out).flush()
    }

    /// A reply from a thread that is not the command loop leaves at once.
    pub(crate) fn send(&self, call: u32, result: CuResult<()>, body: &[u8]) {
        if self.push(call, result, body).and_then(|()| self.flush()).is_err() {
            // The command loop notices.
            self.closer.close();
        }
    }

    pub(crate) fn close(&self) {
        self.closer.close();
    }
}

impl Out {
    fn flush(&mut self) -> Result<(), LinkLost> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let result = self.tx.send(&[&self.gathered]).map_err(|_| LinkLost);
        self.gathered.clear();
        self.gathered.shrink_to(4 * GATHERED_BYTES_MAX);
        result
    }
}
