//! Replies: each leaves at once, in one piece. A thread of the client waits for it, and the command loop's next command
//! may take long.

use crate::session::{gate::Gate, link::Link};
use cuda_abi::CuResult;
use cuda_driver::LinkLost;
use cuda_wire::ReplyHeader;
use std::sync::Arc;

pub(crate) struct Replies {
    gate: Arc<Gate>,
    link: Arc<Link>,
}

impl Replies {
    pub(crate) fn new(gate: Arc<Gate>, link: Arc<Link>) -> Self {
        Self { gate, link }
    }

    /// Sends a reply. Small transfers whose streams got there go ahead of it in the same piece.
    pub(crate) fn send(&self, call: u32, result: CuResult<()>, body: &[u8]) -> Result<(), LinkLost> {
        let piece = self.link.outgoing.begin();
        // Under the lock of the piece: so each error is in one reply only, and counts never go back from a reply to the
        // next.
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
        piece.send(&header, body)
    }

    /// The same for a thread that is not the command loop. If it fails, the connection closes, which the loop notices.
    pub(crate) fn send_or_close(&self, call: u32, result: CuResult<()>, body: &[u8]) {
        if self.send(call, result, body).is_err() {
            self.link.outgoing.close();
        }
    }
}
