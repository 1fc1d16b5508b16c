//! The thread that receives on one lane.

use crate::{
    buffer::{Buffer, PIECE_BYTES},
    expectation::{Expected, Piece},
    fault::Fault,
    incoming::Claim,
    landed::Landing,
    lanes::Shared,
};
use cuda_wire::{ChunkHeader, header};
use std::sync::Arc;
use transport::Rx;

/// Receives until the lane breaks, and says why.
pub(crate) fn run(shared: &Arc<Shared>, lane: usize, rx: Rx) -> Fault {
    let mut receiver = Receiver { shared, lane, rx, scratch: None };
    loop {
        if let Err(fault) = receiver.chunk() {
            return fault;
        }
    }
}

struct Receiver<'a> {
    shared: &'a Arc<Shared>,
    lane: usize,
    rx: Rx,
    /// Made with the first chunk that needs it.
    scratch: Option<Buffer>,
}

impl Receiver<'_> {
    fn chunk(&mut self) -> Result<(), Fault> {
        let mut bytes = [0; ChunkHeader::BYTES];
        read(&mut self.rx, self.lane, &mut bytes)?;
        let chunk: ChunkHeader = header(&bytes).map_err(|error| Fault::protocol(error.to_string()))?;
        if chunk.bytes == 0 || chunk.bytes > ChunkHeader::PAYLOAD_MAX || chunk.reserved != 0 {
            return Err(Fault::protocol(format!("a chunk header of {} bytes is malformed", chunk.bytes)));
        }
        let claim = self.shared.incoming.claim(chunk.transfer, chunk.offset, chunk.bytes)?;
        let landing = self.shared.landed.begin(self.lane);
        match claim {
            Claim::Expected(expected) if expected.sink.is_some() => {
                self.feed_sink(&chunk, &expected, landing)
            }
            Claim::Expected(expected) => {
                self.feed_mailbox(&chunk, &expected, landing)?;
                self.shared.release(&expected, 0);
                Ok(())
            }
            Claim::Early => self.early(&chunk, landing),
        }
    }

    /// Straight to where it belongs, or through a buffer that stays in the cache.
    fn feed_sink(
        &mut self,
        chunk: &ChunkHeader,
        expected: &Arc<Expected>,
        landing: Landing,
    ) -> Result<(), Fault> {
        let mut user = InUse { shared: self.shared, expected, bytes: 0 };
        let Some(sink) = &expected.sink else { return Ok(()) };
        let (bytes, lane) = (chunk.bytes as usize, self.lane);
        let rx = &mut self.rx;
        let (mut fault, mut filled) = (None, 0);
        let direct = sink.target(chunk.offset, bytes, &mut |target| {
            filled += target.len();
            if fault.is_none() && filled <= bytes {
                fault = read(rx, lane, target).err();
            }
        });
        match (direct, fault) {
            (_, Some(fault)) => return Err(fault),
            (true, None) if filled != bytes => {
                return Err(Fault::Internal { text: "a sink gave memory of another size".to_owned() });
            }
            (true, None) => {}
            (false, None) => {
                let scratch = self.scratch.get_or_insert_with(|| Buffer::new(PIECE_BYTES));
                for (offset, count) in pieces(chunk) {
                    let piece = &mut scratch.bytes_mut()[..count];
                    read(&mut self.rx, lane, piece)?;
                    sink.take(offset, piece);
                }
            }
        }
        user.bytes = u64::from(chunk.bytes);
        // Before `user` reports the end of the transfer: a thread that then waits for it to land need not wait.
        self.shared.landed.end(landing);
        drop(user);
        Ok(())
    }

    fn feed_mailbox(
        &mut self,
        chunk: &ChunkHeader,
        expected: &Expected,
        landing: Landing,
    ) -> Result<(), Fault> {
        let mut left = chunk.bytes as usize;
        for (offset, bytes) in pieces(chunk) {
            let Some(mut buffer) = self.shared.pool.get() else { return Err(Fault::Closed) };
            if let Err(fault) = read(&mut self.rx, self.lane, &mut buffer.bytes_mut()[..bytes]) {
                self.shared.pool.put(buffer);
                return Err(fault);
            }
            left -= bytes;
            expected.mail(Piece {
                offset,
                buffer,
                bytes,
                pooled: true,
                landing: (left == 0).then_some(landing),
            });
        }
        Ok(())
    }

    fn early(&mut self, chunk: &ChunkHeader, landing: Landing) -> Result<(), Fault> {
        let mut kept = Vec::new();
        for (offset, bytes) in pieces(chunk) {
            let mut buffer = self.shared.incoming.spares.get(bytes);
            read(&mut self.rx, self.lane, &mut buffer.bytes_mut()[..bytes])?;
            kept.push(Piece { offset, buffer, bytes, pooled: false, landing: None });
        }
        // No thread expects the transfer yet, so none waits for it to land: being kept is enough.
        self.shared.landed.end(landing);
        if let Some((expected, pieces)) = self.shared.incoming.keep(chunk.transfer, kept) {
            self.shared.deliver(&expected, pieces);
        }
        Ok(())
    }
}

/// A lane that is using a sink; also when the sink panics, `done` hears of it after the sink was left.
struct InUse<'a> {
    shared: &'a Shared,
    expected: &'a Arc<Expected>,
    bytes: u64,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.shared.release(self.expected, self.bytes);
    }
}

/// The parts of a chunk that pass through one buffer: place and length.
fn pieces(chunk: &ChunkHeader) -> impl Iterator<Item = (u64, usize)> + use<> {
    let (start, bytes) = (chunk.offset, chunk.bytes as usize);
    (0..bytes).step_by(PIECE_BYTES).map(move |at| (start + at as u64, PIECE_BYTES.min(bytes - at)))
}

fn read(rx: &mut Rx, lane: usize, target: &mut [u8]) -> Result<(), Fault> {
    rx.recv_exact(target).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            Fault::Connection { lane, text: "the peer closed the connection".to_owned() }
        }
        _ => Fault::connection(lane, &error),
    })
}
