//! Replies out of a stream of bytes: many with one receive, where many have come.

use super::end::LinkEnd;
use cuda_wire::{ReplyHeader, header};
use std::time::Duration;
use transport::Rx;

/// The longest reply. Answers are small: bulk bytes take the lanes, and a linked image is a few megabytes.
const BODY_BYTES_MAX: u32 = 256 << 20;
/// Room for the answers of many threads; longer bodies are received where they belong.
const BUFFER_BYTES: usize = 16 << 10;

/// A reply and its body.
pub(super) type Reply = (ReplyHeader, Vec<u8>);

pub(super) struct ReplyReader {
    rx: Rx,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl ReplyReader {
    /// Reads from `rx`; looks for `spin` before it sleeps, if given.
    pub(super) fn new(mut rx: Rx, spin: Option<Duration>) -> Self {
        if let Some(spin) = spin {
            rx.set_spin(spin);
        }
        Self { rx, buffer: vec![0; BUFFER_BYTES].into(), start: 0, end: 0 }
    }

    /// Blocks for the next reply. The error says why the link ended.
    pub(super) fn next(&mut self) -> Result<Reply, LinkEnd> {
        while self.end - self.start < ReplyHeader::BYTES {
            self.receive()?;
        }
        let bytes = &self.buffer[self.start..self.start + ReplyHeader::BYTES];
        let head: ReplyHeader = header(bytes).map_err(LinkEnd::unreadable("a reply"))?;
        self.start += ReplyHeader::BYTES;
        if head.bytes > BODY_BYTES_MAX {
            return Err(LinkEnd::too_long("a reply", head.bytes));
        }
        if head.bytes == 0 {
            return Ok((head, Vec::new()));
        }
        let mut body = vec![0; head.bytes as usize];
        let here = body.len().min(self.end - self.start);
        let (first, rest) = body.split_at_mut(here);
        first.copy_from_slice(&self.buffer[self.start..self.start + here]);
        self.start += here;
        if !rest.is_empty() {
            self.rx.recv_exact(rest)?;
        }
        Ok((head, body))
    }

    fn receive(&mut self) -> Result<(), LinkEnd> {
        // Less than a header is left, so this moves little and makes room.
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        match self.rx.recv(&mut self.buffer[self.end..])? {
            0 => Err(LinkEnd::Closed),
            count => {
                self.end += count;
                Ok(())
            }
        }
    }
}
