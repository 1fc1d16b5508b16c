//! Replies: each leaves at once, in one piece. Somebody waits for it, and what the loop does next may take long.

use crate::{
    session::{gate::Gate, link::Link},
    sync::lock,
};
use cuda_abi::CuResult;
use cuda_driver::{LinkLost, PendingRead};
use cuda_wire::{ReplyHeader, TransferId, WAYS, Wire};
use std::collections::VecDeque;
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
    /// What is about to be sent, kept for its memory.
    bytes: Vec<u8>,
    /// The bytes of one transfer, likewise.
    data: Vec<u8>,
    /// Small transfers that wait for their streams, oldest first.
    reads: VecDeque<(TransferId, Box<dyn PendingRead>)>,
}

/// Small transfers that may wait. A program that reads its results waits for them; one that does not has its bytes take
/// the lanes.
const READS_MAX: usize = 16;

impl Replies {
    pub(crate) fn new(tx: Tx, closer: Closer, gate: Arc<Gate>, link: Arc<Link>) -> Self {
        let bytes = Vec::with_capacity(ReplyHeader::BYTES);
        let out = Out { tx, bytes, data: Vec::new(), reads: VecDeque::new() };
        Self { out: Mutex::new(out), closer, gate, link }
    }

    /// Sends a reply.
    pub(crate) fn send(&self, call: u32, result: CuResult<()>, body: &[u8]) -> Result<(), LinkLost> {
        let mut out = lock(&self.out);
        // What this reply is about came after these, so they go ahead of it, in the same piece.
        out.bytes.clear();
        self.put_reads(&mut out);
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
        let Out { tx, bytes, .. } = &mut *out;
        header.put(bytes);
        tx.send(&[bytes, body]).map_err(|_| LinkLost)
    }

    /// Keeps a small transfer until its stream got there and the client hears something. Gives it back when many wait.
    pub(crate) fn take_read(
        &self,
        transfer: TransferId,
        read: Box<dyn PendingRead>,
    ) -> Result<(), Box<dyn PendingRead>> {
        let mut out = lock(&self.out);
        if out.reads.len() >= READS_MAX {
            return Err(read);
        }
        out.reads.push_back((transfer, read));
        Ok(())
    }

    /// Sends the transfers whose streams got there.
    pub(crate) fn send_reads(&self) -> Result<(), LinkLost> {
        let mut out = lock(&self.out);
        out.bytes.clear();
        self.put_reads(&mut out);
        let Out { tx, bytes, .. } = &mut *out;
        if bytes.is_empty() { Ok(()) } else { tx.send(&[bytes]).map_err(|_| LinkLost) }
    }

    /// Appends the transfers whose streams got there, each as a frame of its own, and counts them.
    fn put_reads(&self, out: &mut Out) {
        let Out { bytes, reads, data, .. } = out;
        reads.retain_mut(|(transfer, read)| {
            data.clear();
            match read.poll(data) {
                Ok(false) => return true,
                // Its stream is dead; the client hears that from whatever it waits for.
                Err(_) => return false,
                Ok(true) => {}
            }
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
            header.put(bytes);
            bytes.extend_from_slice(&name);
            bytes.extend_from_slice(data);
            self.link.lanes.note_sent_aside();
            false
        });
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
