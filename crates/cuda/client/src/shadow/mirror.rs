//! What one shadow holds, as far as this process knows.

use super::{
    differences::{differences, differing_words},
    fetch::{Fetch, FetchId},
};
use std::ops::Range;

/// The program's memory is compared in pieces of this size, each from a copy: the program may write while it is compared.
const COMPARED_BYTES: usize = 4096;

/// Bytes to be sent to a shadow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where in the shadow.
    pub offset: usize,
    /// What.
    pub bytes: Vec<u8>,
}

/// The client's copy of one shadow, and the fetches of it that are under way.
///
/// See the [module](super) for the protocol.
#[derive(Debug)]
pub struct Mirror {
    /// What the shadow holds once all sends have arrived, but for changes by kernels that have not been fetched.
    known: Vec<u8>,
    /// In the order in which they began.
    fetches: Vec<Fetch>,
    next_fetch: u64,
    /// Streams with kernels that have the shadow, and no fetch behind them.
    lent: Vec<u64>,
    /// The memory is not the program's any more: it must not be touched.
    is_ended: bool,
}

impl Mirror {
    /// A shadow of `bytes` zeros.
    pub fn new(bytes: usize) -> Self {
        Self { known: vec![0; bytes], fetches: Vec::new(), next_fetch: 0, lent: Vec::new(), is_ended: false }
    }

    /// Whether anything but fetches is writing the memory, given how many writes are under way there. Its bytes may change
    /// without the program doing anything.
    pub fn is_written_by_copies(&self, writes_under_way: usize) -> bool {
        writes_under_way > self.fetches.len()
    }

    /// A kernel of `stream` is about to be launched that may write the shadow.
    pub fn note_lent(&mut self, stream: u64) {
        if !self.lent.contains(&stream) {
            self.lent.push(stream);
        }
    }

    /// Compares the program's memory with the shadow and says what to send. That counts as sent from now on.
    ///
    /// `read` copies memory from an offset on.
    pub fn take_changes(&mut self, read: impl Fn(usize, &mut [u8])) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.is_ended {
            return pieces;
        }
        // A kernel may have written what lies between two changes of the program, and that must not be undone.
        let is_quiet = self.lent.is_empty() && self.fetches.is_empty();
        let mut copy = [0; COMPARED_BYTES];
        for start in (0..self.known.len()).step_by(COMPARED_BYTES) {
            let now = &mut copy[..COMPARED_BYTES.min(self.known.len() - start)];
            read(start, now);
            let known = &self.known[start..start + now.len()];
            let found = if is_quiet { differences(now, known) } else { differing_words(now, known) };
            for Range { start: from, end } in found {
                pieces.push(Piece { offset: start + from, bytes: now[from..end].to_vec() });
                self.replace_all(start + from, &now[from..end]);
            }
        }
        pieces
    }

    fn replace_all(&mut self, offset: usize, new: &[u8]) {
        if self.fetches.is_empty() {
            return self.known[offset..offset + new.len()].copy_from_slice(new);
        }
        (offset..).zip(new).for_each(|(at, value)| self.replace(at, *value));
    }

    /// A byte of the shadow gets another value. Fetches under way may still find the one it had.
    fn replace(&mut self, at: usize, value: u8) {
        let old = std::mem::replace(&mut self.known[at], value);
        if old != value {
            self.fetches.iter_mut().for_each(|fetch| fetch.pass(at, old));
        }
    }

    /// Begins a fetch that `stream` reads when it has done what was enqueued before, and when all sends so far have arrived.
    pub fn begin_fetch(&mut self, stream: u64) -> FetchId {
        let id = FetchId(self.next_fetch);
        self.next_fetch += 1;
        self.lent.retain(|lent| *lent != stream);
        self.fetches.push(Fetch::new(id, stream, self.known.clone()));
        id
    }

    /// Bytes of a fetch have arrived. Those that a kernel changed are given to `write`, by offset.
    pub fn arrive(&mut self, id: FetchId, offset: usize, after: &[u8], mut write: impl FnMut(usize, &[u8])) {
        let Some(place) = self.fetches.iter().position(|fetch| fetch.id == id) else { return };
        if self.is_ended {
            return;
        }
        let (earlier, rest) = self.fetches.split_at_mut(place);
        let stream = rest[0].stream;
        // They were read before this one, so from here on they are old.
        for old in earlier.iter_mut().filter(|fetch| fetch.stream == stream) {
            (offset..offset + after.len()).for_each(|at| old.settle(at));
        }
        if rest[0].is_unchanged(offset, after) {
            return;
        }
        for (at, &value) in (offset..).zip(after) {
            self.arrive_byte(place, at, value, &mut write);
        }
    }

    fn arrive_byte(&mut self, place: usize, at: usize, value: u8, write: &mut impl FnMut(usize, &[u8])) {
        let fetch = &self.fetches[place];
        if value == self.known[at] || !fetch.is_news(at, value) {
            return;
        }
        let stream = fetch.stream;
        write(at, &[value]);
        self.replace(at, value);
        let later = self.fetches[place + 1..].iter_mut().filter(|fetch| fetch.stream == stream);
        later.for_each(|fetch| fetch.start_from(at, value));
    }

    /// All bytes of a fetch have arrived, or never will.
    pub fn end_fetch(&mut self, id: FetchId) {
        self.fetches.retain(|fetch| fetch.id != id);
    }

    /// The program gives the memory up. From now on nothing is read or written there.
    pub fn end(&mut self) {
        self.is_ended = true;
    }
}
