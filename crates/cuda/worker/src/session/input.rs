//! Commands as they come in: one large buffer, frames decoded where they lie.

use cuda_wire::{CommandHeader, DecodeError, header};
use std::io;
use std::time::Duration;
use transport::Rx;

/// Many small commands arrive with one system call.
const BUFFER_BYTES: usize = 256 << 10;

pub(crate) struct Input {
    rx: Rx,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// One command: its header, and where its body lies.
pub(crate) struct Frame<'a> {
    pub(crate) header: CommandHeader,
    pub(crate) body: &'a [u8],
}

impl Input {
    pub(crate) fn new(rx: Rx) -> Self {
        Self { rx, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0 }
    }

    /// How long [`Self::receive`] looks for bytes before it sleeps.
    pub(crate) fn set_spin(&mut self, spin: Duration) {
        self.rx.set_spin(spin);
    }

    /// The next command that is here in full.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, DecodeError> {
        let have = &self.buffer[self.start..self.end];
        let Some(head) = have.get(..CommandHeader::BYTES) else { return Ok(None) };
        let header: CommandHeader = header(head)?;
        header.check()?;
        let whole = CommandHeader::BYTES + header.bytes as usize;
        if have.len() < whole {
            self.make_room(whole);
            return Ok(None);
        }
        let from = self.start + CommandHeader::BYTES;
        self.start += whole;
        Ok(Some(Frame { header, body: &self.buffer[from..self.start] }))
    }

    /// Makes room for a command of `whole` bytes that begins at `start`.
    fn make_room(&mut self, whole: usize) {
        if self.start + whole <= self.buffer.len() {
            return;
        }
        self.compact();
        if whole > self.buffer.len() {
            self.buffer.resize(whole, 0);
        }
    }

    fn compact(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }

    /// Blocks for more bytes. `Ok(0)` is the end.
    pub(crate) fn receive(&mut self) -> io::Result<usize> {
        self.prepare();
        let count = self.rx.recv(&mut self.buffer[self.end..])?;
        self.end += count;
        Ok(count)
    }

    /// Takes what is there; `None` when nothing is.
    pub(crate) fn try_receive(&mut self) -> io::Result<Option<usize>> {
        self.prepare();
        let count = self.rx.try_recv(&mut self.buffer[self.end..])?;
        self.end += count.unwrap_or(0);
        Ok(count)
    }

    /// Room for at least one more byte; a buffer that grew for one large command shrinks again.
    fn prepare(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buffer.len() > BUFFER_BYTES {
                self.buffer.truncate(BUFFER_BYTES);
                self.buffer.shrink_to_fit();
            }
        } else if self.end == self.buffer.len() {
            self.compact();
            if self.end == self.buffer.len() {
                self.buffer.resize(2 * self.end, 0);
            }
        }
    }

    /// Bytes that are here and not executed yet.
    pub(crate) fn held(&self) -> usize {
        self.end - self.start
    }

    /// Whether more commands, or their end, are here.
    pub(crate) fn has_arrived(&mut self) -> bool {
        // An end or an error shows again at the next receive, which reports it.
        self.start != self.end || !matches!(self.try_receive(), Ok(None))
    }
}
