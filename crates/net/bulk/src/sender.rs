//! Sending one chunk on one lane, and the thread that does so.

use crate::{
    buffer::{Buffer, PIECE_BYTES},
    fault::Fault,
    lanes::Shared,
    outgoing::{Job, Outgoing},
};
use cuda_wire::{ChunkHeader, Source, TransferId, Wire};
use locks::lock;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use transport::Tx;

/// The sending half of a lane. Any thread may send; one chunk at a time.
pub(crate) struct LaneTx {
    pub(crate) half: Mutex<Half>,
    /// Chunks handed to the kernel, wrapping.
    pub(crate) sent: AtomicU32,
}

pub(crate) struct Half {
    tx: Tx,
    /// Made with the first chunk that needs it.
    scratch: Option<Buffer>,
}

impl LaneTx {
    pub(crate) fn new(tx: Tx) -> Self {
        Self { half: Mutex::new(Half { tx, scratch: None }), sent: AtomicU32::new(0) }
    }

    /// Sends a chunk and counts it.
    pub(crate) fn send(&self, half: &mut Half, chunk: Chunk<'_>) -> Result<(), SendError> {
        let mut header = Vec::with_capacity(ChunkHeader::BYTES);
        let Chunk { transfer, offset, bytes, payload } = chunk;
        ChunkHeader { transfer, offset, bytes, reserved: 0 }.put(&mut header);
        match payload {
            Payload::Bytes(payload) => half.tx.send(&[&header, payload])?,
            Payload::Source(source) => half.send_from(&header, offset, bytes as usize, source)?,
        }
        self.sent.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// One chunk to send.
pub(crate) struct Chunk<'a> {
    pub(crate) transfer: TransferId,
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
    pub(crate) payload: Payload<'a>,
}

pub(crate) enum Payload<'a> {
    Bytes(&'a [u8]),
    Source(&'a dyn Source),
}

pub(crate) enum SendError {
    Io(std::io::Error),
    /// A source showed more or fewer bytes than it was asked for.
    View,
}

impl From<std::io::Error> for SendError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl SendError {
    pub(crate) fn into_fault(self, lane: usize) -> Fault {
        match self {
            Self::Io(error) => Fault::connection(lane, &error),
            Self::View => Fault::Internal { text: "a source showed memory of another size".to_owned() },
        }
    }
}

impl Half {
    fn send_from(
        &mut self,
        header: &[u8],
        offset: u64,
        bytes: usize,
        source: &dyn Source,
    ) -> Result<(), SendError> {
        let (mut seen, mut result) = (0, Ok(()));
        let tx = &mut self.tx;
        let direct = source.view(offset, bytes, &mut |part| {
            if result.is_ok() && seen + part.len() <= bytes {
                result = if seen == 0 { tx.send(&[header, part]) } else { tx.send(&[part]) };
            }
            seen += part.len();
        });
        if direct {
            result?;
            return if seen == bytes { Ok(()) } else { Err(SendError::View) };
        }
        let scratch = self.scratch.get_or_insert_with(|| Buffer::new(PIECE_BYTES));
        let mut header = header;
        for at in (0..bytes).step_by(PIECE_BYTES) {
            let piece = &mut scratch.bytes_mut()[..PIECE_BYTES.min(bytes - at)];
            source.fill(offset + at as u64, piece);
            self.tx.send(&[header, piece])?;
            header = &[];
        }
        Ok(())
    }
}

/// The thread of one lane: sends whatever is next until the queue is closed.
pub(crate) fn run(shared: &Arc<Shared>, lane: usize) -> Result<(), Fault> {
    while let Some(job) = shared.queue.pop() {
        match job {
            Job::Transfer(outgoing) => send_next(shared, lane, outgoing)?,
            Job::Filled { transfer, offset, bytes, buffer, batch } => {
                let payload = Payload::Bytes(&buffer.bytes()[..bytes]);
                let chunk = Chunk { transfer, offset, bytes: bytes as u32, payload };
                let tx = &shared.lanes[lane].tx;
                let result = tx.send(&mut lock(&tx.half), chunk);
                shared.send_pool.put(buffer);
                batch.end(result.is_ok());
                result.map_err(|error| error.into_fault(lane))?;
            }
        }
    }
    Ok(())
}

fn send_next(shared: &Arc<Shared>, lane: usize, outgoing: Arc<Outgoing>) -> Result<(), Fault> {
    let Some((offset, bytes, more)) = outgoing.claim() else { return Ok(()) };
    let mut user = InUse { outgoing: &outgoing, sent: None };
    if more {
        // Others may help from now on, and other transfers get their turn.
        shared.enqueue(Job::Transfer(outgoing.clone()));
    }
    let payload = Payload::Source(&*outgoing.source);
    let chunk = Chunk { transfer: outgoing.transfer, offset, bytes, payload };
    let tx = &shared.lanes[lane].tx;
    let result = tx.send(&mut lock(&tx.half), chunk);
    if result.is_ok() {
        user.sent = Some(bytes);
    }
    drop(user);
    result.map_err(|error| error.into_fault(lane))
}

/// A lane that is using a source; also when the source panics, `done` hears of it after the source was left.
struct InUse<'a> {
    outgoing: &'a Outgoing,
    sent: Option<u32>,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.outgoing.release(self.sent);
    }
}
