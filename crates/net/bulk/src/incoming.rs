//! Every transfer that is on its way to this side, expected or early.

use crate::{
    buffer::Spares,
    coverage::Coverage,
    ends::Done,
    expectation::{Expected, Piece, refusal},
    fault::Fault,
};
use cuda_wire::{LinkLost, Sink, TransferId};
use locks::lock;
use std::collections::HashMap;
use std::collections::hash_map;
use std::sync::{Arc, Mutex};

pub(crate) struct Incoming {
    table: Mutex<Table>,
    /// Bytes that may come before they are expected.
    window_bytes: u64,
    pub(crate) spares: Spares,
}

#[derive(Default)]
struct Table {
    transfers: HashMap<TransferId, Entry>,
    early_bytes: u64,
    early_chunks: usize,
    closed: bool,
}

enum Entry {
    Early(Early),
    Expected(Arc<Expected>),
}

#[derive(Default)]
struct Early {
    coverage: Coverage,
    pieces: Vec<Piece>,
    chunks: usize,
    bytes: u64,
}

/// Each early chunk costs some memory beside its bytes; without a bound of their own, tiny ones would cost the most.
const EARLY_CHUNKS_MAX: usize = 1 << 16;

/// Where the bytes of a chunk go.
pub(crate) enum Claim {
    Expected(Arc<Expected>),
    Early,
}

impl Incoming {
    pub(crate) fn new(window_bytes: u64) -> Self {
        Self { table: Mutex::default(), window_bytes, spares: Spares::default() }
    }

    /// Finds out where a chunk goes, before its bytes are read.
    pub(crate) fn claim(&self, transfer: TransferId, offset: u64, bytes: u32) -> Result<Claim, Fault> {
        let mut table = lock(&self.table);
        let table = &mut *table;
        match table.transfers.get_mut(&transfer) {
            Some(Entry::Expected(expected)) => {
                expected.claim(offset, bytes)?;
                return Ok(Claim::Expected(expected.clone()));
            }
            _ if self.window_bytes == 0 => {
                return Err(Fault::protocol(format!("{transfer} came, but this side does not expect it")));
            }
            _ => {}
        }
        table.early_bytes += u64::from(bytes);
        table.early_chunks += 1;
        if table.early_bytes > self.window_bytes || table.early_chunks > EARLY_CHUNKS_MAX {
            let window = self.window_bytes;
            return Err(Fault::protocol(format!(
                "more than the window of {window} bytes came before this side expected them"
            )));
        }
        let end = offset.checked_add(bytes.into());
        let end = end.ok_or_else(|| {
            Fault::protocol(format!("a chunk of {transfer} begins at {offset} and reaches past every length"))
        })?;
        let entry = table.transfers.entry(transfer).or_insert_with(|| Entry::Early(Early::default()));
        if let Entry::Early(early) = entry {
            early.coverage.claim(offset, end).map_err(|refused| refusal(transfer, offset, refused))?;
            early.chunks += 1;
            early.bytes += u64::from(bytes);
        }
        Ok(Claim::Early)
    }

    /// The expectation of a transfer, if it is open.
    pub(crate) fn expected(&self, transfer: TransferId) -> Option<Arc<Expected>> {
        match lock(&self.table).transfers.get(&transfer) {
            Some(Entry::Expected(expected)) => Some(expected.clone()),
            _ => None,
        }
    }

    /// Keeps an early chunk, unless its transfer was expected while the chunk was being read: then the chunk is given
    /// back together with the expectation.
    pub(crate) fn keep(
        &self,
        transfer: TransferId,
        pieces: Vec<Piece>,
    ) -> Option<(Arc<Expected>, Vec<Piece>)> {
        let mut table = lock(&self.table);
        match table.transfers.get_mut(&transfer) {
            Some(Entry::Early(early)) => {
                early.pieces.extend(pieces);
                None
            }
            Some(Entry::Expected(expected)) => {
                expected.adopt();
                Some((expected.clone(), pieces))
            }
            // Given up meanwhile.
            None => None,
        }
    }

    /// Begins to expect a transfer. Returns what came early.
    pub(crate) fn expect(
        &self,
        transfer: TransferId,
        bytes: u64,
        sink: Option<Box<dyn Sink + Send + Sync>>,
        done: Option<Done>,
    ) -> Result<(Arc<Expected>, Vec<Piece>), (Refusal, Option<Done>)> {
        let mut table = lock(&self.table);
        if table.closed {
            return Err((Refusal::Closed, done));
        }
        let early = match table.transfers.entry(transfer) {
            hash_map::Entry::Vacant(_) => Early::default(),
            hash_map::Entry::Occupied(entry) => match entry.get() {
                Entry::Expected(_) => {
                    let fault = Fault::protocol(format!("{transfer} is expected twice"));
                    return Err((Refusal::Fault(fault), done));
                }
                Entry::Early(early) if early.coverage.end() > bytes => {
                    let fault = Fault::protocol(format!("bytes after the end of {transfer}"));
                    return Err((Refusal::Fault(fault), done));
                }
                Entry::Early(_) => match entry.remove() {
                    Entry::Early(early) => early,
                    Entry::Expected(_) => Early::default(),
                },
            },
        };
        table.early_bytes -= early.bytes;
        table.early_chunks -= early.chunks;
        let expected = Arc::new(Expected::new(transfer, bytes, sink, early.coverage, done));
        // A lane that is still reading one of the early chunks looks here for it.
        table.transfers.insert(transfer, Entry::Expected(expected.clone()));
        Ok((expected, early.pieces))
    }

    /// Lets go of an expected transfer: it is complete, or given up.
    pub(crate) fn forget(&self, transfer: TransferId) -> Option<Arc<Expected>> {
        let mut table = lock(&self.table);
        match table.transfers.get(&transfer) {
            Some(Entry::Expected(_)) => match table.transfers.remove(&transfer) {
                Some(Entry::Expected(expected)) => Some(expected),
                _ => None,
            },
            _ => None,
        }
    }

    /// Nothing comes any more. Returns the expectations that are still open.
    pub(crate) fn close(&self) -> Vec<Arc<Expected>> {
        let mut table = lock(&self.table);
        table.closed = true;
        let transfers = std::mem::take(&mut table.transfers);
        let expected = |entry| match entry {
            Entry::Expected(expected) => Some(expected),
            Entry::Early(_) => None,
        };
        transfers.into_values().filter_map(expected).collect()
    }
}

/// Why a transfer cannot be expected.
pub(crate) enum Refusal {
    Closed,
    Fault(Fault),
}

impl From<Refusal> for LinkLost {
    fn from(_: Refusal) -> Self {
        LinkLost
    }
}
