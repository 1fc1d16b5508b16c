//! The sending side of the command connection: replies, and ahead of them small transfers that wait for their streams.

use bulk::Lanes;
use cuda_driver::{LinkLost, PendingRead};
use cuda_wire::{ReplyHeader, TransferId, WAYS, Wire};
use locks::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use transport::{Closer, Tx};

/// Small transfers that may wait. A program that reads its results waits for them, so few are enough. Further transfers
/// take the lanes.
const READS_MAX: usize = 16;

pub(crate) struct Outgoing {
    out: Mutex<Out>,
    closer: Closer,
    /// They count what is sent on each way, this one included.
    lanes: Arc<Lanes>,
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

/// Bytes that leave in one piece. Its holder has the connection to itself.
pub(crate) struct Piece<'a> {
    out: MutexGuard<'a, Out>,
}

impl Outgoing {
    pub(crate) fn new(tx: Tx, closer: Closer, lanes: Arc<Lanes>) -> Self {
        let bytes = Vec::with_capacity(ReplyHeader::BYTES);
        let out = Out { tx, bytes, data: Vec::new(), reads: VecDeque::new() };
        Self { out: Mutex::new(out), closer, lanes }
    }

    /// Begins a piece with the transfers whose streams got there: the client reads them before what follows in the
    /// piece.
    pub(crate) fn begin(&self) -> Piece<'_> {
        let mut out = lock(&self.out);
        out.bytes.clear();
        self.put_reads(&mut out);
        Piece { out }
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
        let mut piece = self.begin();
        let Out { tx, bytes, .. } = &mut *piece.out;
        if bytes.is_empty() { Ok(()) } else { tx.send(&[bytes]).map_err(|_| LinkLost) }
    }

    /// Appends the transfers whose streams got there, each as a frame of its own, and counts them.
    fn put_reads(&self, out: &mut Out) {
        let Out { bytes, reads, data, .. } = out;
        reads.retain_mut(|(transfer, read)| {
            data.clear();
            match read.poll(data) {
                Ok(false) => return true,
                // Its stream is dead; the client's next wait returns that error.
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
            self.lanes.note_sent_aside();
            false
        });
    }

    pub(crate) fn close(&self) {
        self.closer.close();
    }
}

impl Piece<'_> {
    /// Ends the piece with a reply and sends it.
    pub(crate) fn send(mut self, header: &ReplyHeader, body: &[u8]) -> Result<(), LinkLost> {
        let Out { tx, bytes, .. } = &mut *self.out;
        header.put(bytes);
        tx.send(&[bytes, body]).map_err(|_| LinkLost)
    }
}
