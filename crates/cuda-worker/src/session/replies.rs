//! Replies: each leaves at once, in one piece. Somebody waits for it, and what the loop does next may take long.

use crate::{
    session::{gate::Gate, link::Link},
    sync::lock,
};
use cuda_abi::CuResult;
use cuda_driver::LinkLost;
use cuda_wire::{ReplyHeader, TransferId, WAYS, Wire};
use std::sync::{Arc, Mutex};
use transport::{Closer, Tx};

pub(crate) struct Replies {
    out: Mutex<Out>,
    closer: Closer,
    gate: Arc<Gate>,
    link: Arc<Link>,
}

struct Out {
    tx: Tx,
    /// A header, kept for its memory.
    header: Vec<u8>,
}

impl Replies {
    pub(crate) fn new(tx: Tx, closer: Closer, gate: Arc<Gate>, link: Arc<Link>) -> Self {
        let out = Out { tx, header: Vec::with_capacity(ReplyHeader::BYTES) };
        Self { out: Mutex::new(out), closer, gate, link }
    }

    /// Sends a reply.
    pub(crate) fn send(&self, call: u32, result: CuResult<()>, body: &[u8]) -> Result<(), LinkLost> {
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
        let Out { tx, header: bytes } = &mut *out;
        bytes.clear();
        header.put(bytes);
        tx.send(&[bytes, body]).map_err(|_| LinkLost)
    }

    /// Sends a transfer among the replies.
    pub(crate) fn send_transfer(&self, transfer: TransferId, data: &[u8]) -> Result<(), LinkLost> {
        let mut out = lock(&self.out);
        let name = transfer.0.to_le_bytes();
        let header = ReplyHeader {
            bytes: (name.len() + data.len()) as u32,
            call: 0,
            status: 0,
            deferred: 0,
            deferred_context: 0,
            notices: 0,
            chunks: [0; WAYS],
            memory_credit_bytes: 0,
        };
        let Out { tx, header: bytes } = &mut *out;
        bytes.clear();
        header.put(bytes);
        bytes.extend_from_slice(&name);
        tx.send(&[bytes, data]).map_err(|_| LinkLost)?;
        // Within the lock: the next reply counts it.
        self.link.lanes.note_sent_aside();
        Ok(())
    }

    /// The same for a thread that is not the command loop, which then notices that it failed.
    pub(crate) fn send_or_close(&self, call: u32, result: CuResult<()>, body: &[u8]) {
        if self.send(call, result, body).is_err() {
            self.closer.close();
        }
    }

    pub(crate) fn close(&self) {
        self.closer.close();
    }
}
