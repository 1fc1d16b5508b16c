//! Transfers to this program that have not landed yet, in a link that survives.
//!
//! The lanes of a lost session call off all that they expected. The program must not hear of that: the next session
//! sends the same transfers again, so its lanes are told to expect them, into the same memory.
//!
//! ```text
//!              expect                            done(Ok), and its session is the present one
//!   (nothing) ───────▶ in lanes n ────────────────────────────────────────────────────▶ landed (runs once)
//!                        │   ▲
//!           done(Err)    ▼   │ session n + 1 begins                 give_up
//!                      waiting ────────────────────────────────────────────────────────▶ landed (runs once)
//! ```

use super::{digest::Digest, wires::Wires};
use bulk::{LinkLost, Sink};
use cuda_wire::TransferId;
use locks::lock;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
};

/// Runs when the last byte is in the program's memory, or never will be.
pub(super) type Landed = Box<dyn FnOnce() + Send>;

type SharedSink = Arc<dyn Sink + Send + Sync>;

/// Is told of a transfer that came whole: its session, name, length and digest. True: the program may know.
pub(super) type OnLanded = Arc<dyn Fn(&Wires, TransferId, u64, u128) -> bool + Send + Sync>;

#[derive(Default)]
pub(super) struct Expectations {
    table: Mutex<HashMap<TransferId, Expected>>,
}

struct Expected {
    bytes: u64,
    sink: SharedSink,
    landed: Landed,
    place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The lanes of a session have it.
    InLanes,
    /// The lanes that had it are gone; those of the next session will get it.
    Waiting,
    /// The program wants it no more; the lanes let go of its memory soon.
    GivenUp,
    /// The program has let go of it, and no session has said that it landed: the next one may send it again.
    Void,
}

/// Takes bytes of a transfer that the program has let go of.
struct Nowhere;

impl Sink for Nowhere {
    fn take(&self, _: u64, _: &[u8]) {}
}

impl Expected {
    /// The program's memory is its own again. What comes later goes nowhere.
    fn let_go(&mut self) -> Landed {
        self.place = Place::Void;
        self.sink = Arc::new(Nowhere);
        std::mem::replace(&mut self.landed, Box::new(|| {}))
    }
}

/// Takes pieces for `sink` and keeps their digest.
struct Watched {
    sink: SharedSink,
    digest: Arc<Digest>,
}

impl Sink for Watched {
    fn take(&self, offset: u64, bytes: &[u8]) {
        self.digest.add(offset, bytes);
        self.sink.take(offset, bytes);
    }

    fn target(&self, offset: u64, bytes: usize, read: &mut dyn FnMut(&mut [u8])) -> bool {
        let mut at = offset;
        self.sink.target(offset, bytes, &mut |piece| {
            read(piece);
            self.digest.add(at, piece);
            at += piece.len() as u64;
        })
    }
}

impl Expectations {
    /// Expects a transfer in the lanes of the present session, which `wires` names. `on_landed` decides whether the
    /// program may know; if not, the next session sends it again.
    pub(super) fn expect(
        self: &Arc<Self>,
        wires: impl FnOnce() -> Arc<Wires>,
        transfer: TransferId,
        bytes: u64,
        sink: SharedSink,
        landed: Landed,
        on_landed: &OnLanded,
    ) {
        // The session is read under the lock: a new one takes over all that is in the table, under the same lock.
        let wires = {
            let mut table = lock(&self.table);
            let expected = Expected { bytes, sink: Arc::clone(&sink), landed, place: Place::InLanes };
            table.insert(transfer, expected);
            wires()
        };
        self.hand_to_lanes(&wires, transfer, bytes, sink, on_landed);
    }

    /// Session `wires` begins: its lanes expect all that has not landed. `install` makes the session the present one.
    pub(super) fn begin_session(
        self: &Arc<Self>,
        wires: &Arc<Wires>,
        install: impl FnOnce(),
        on_landed: &OnLanded,
    ) {
        let again: Vec<_> = {
            let mut table = lock(&self.table);
            install();
            let wanted = table.iter_mut().filter(|(_, expected)| expected.place != Place::GivenUp);
            let again = wanted.map(|(transfer, expected)| {
                if expected.place == Place::Waiting {
                    expected.place = Place::InLanes;
                }
                (*transfer, expected.bytes, Arc::clone(&expected.sink))
            });
            again.collect()
        };
        for (transfer, bytes, sink) in again {
            self.hand_to_lanes(wires, transfer, bytes, sink, on_landed);
        }
    }

    fn hand_to_lanes(
        self: &Arc<Self>,
        wires: &Arc<Wires>,
        transfer: TransferId,
        bytes: u64,
        sink: SharedSink,
        on_landed: &OnLanded,
    ) {
        let digest = Arc::new(Digest::default());
        let watched = Watched { sink, digest: Arc::clone(&digest) };
        let (all, on_landed, weak) = (Arc::clone(self), Arc::clone(on_landed), Arc::downgrade(wires));
        let done = move |result: Result<(), LinkLost>| {
            let wires = weak.upgrade();
            let landed = match (result, &wires) {
                (Ok(()), Some(wires)) => on_landed(wires, transfer, bytes, digest.value()),
                _ => false,
            };
            all.over(transfer, landed);
        };
        wires.lanes.expect_later(transfer, bytes, Box::new(watched), Box::new(done));
    }

    /// The lanes have let go of a transfer.
    fn over(&self, transfer: TransferId, has_landed: bool) {
        let mut table = lock(&self.table);
        let Some(expected) = table.get_mut(&transfer) else { return };
        let landed = match (has_landed, expected.place) {
            (true, _) => table.remove(&transfer).map(|expected| expected.landed),
            (false, Place::InLanes) => {
                expected.place = Place::Waiting;
                None
            }
            (false, Place::GivenUp) => Some(expected.let_go()),
            (false, Place::Waiting | Place::Void) => None,
        };
        drop(table);
        landed.into_iter().for_each(|landed| landed());
    }

    /// The program wants a transfer no more. Its `landed` runs when no lane writes its memory.
    pub(super) fn give_up(&self, wires: &Wires, transfer: TransferId) {
        let mut table = lock(&self.table);
        let Some(expected) = table.get_mut(&transfer) else { return };
        match expected.place {
            Place::InLanes => {
                expected.place = Place::GivenUp;
                drop(table);
                wires.lanes.cancel(transfer);
            }
            Place::Waiting => {
                let landed = expected.let_go();
                drop(table);
                landed();
            }
            Place::GivenUp | Place::Void => {}
        }
    }

    /// All transfers that the program waits for.
    pub(super) fn names(&self) -> HashSet<TransferId> {
        self.those(|place| place != Place::Void)
    }

    /// All transfers that a session of now on would send and that have not landed, with their lengths.
    pub(super) fn lengths(&self) -> HashMap<TransferId, u64> {
        lock(&self.table).iter().map(|(name, expected)| (*name, expected.bytes)).collect()
    }

    /// Transfers that the program has let go of, and that another session may send.
    pub(super) fn void(&self) -> HashSet<TransferId> {
        self.those(|place| place == Place::Void)
    }

    fn those(&self, are_meant: impl Fn(Place) -> bool) -> HashSet<TransferId> {
        let table = lock(&self.table);
        table.iter().filter(|(_, expected)| are_meant(expected.place)).map(|(name, _)| *name).collect()
    }

    /// No session sends these any more.
    pub(super) fn forget_void(&self, names: &HashSet<TransferId>) {
        lock(&self.table).retain(|name, expected| expected.place != Place::Void || !names.contains(name));
    }

    /// No session follows: nothing lands any more.
    pub(super) fn give_up_all(&self, wires: &Wires) {
        let names: Vec<_> = lock(&self.table).keys().copied().collect();
        names.into_iter().for_each(|transfer| self.give_up(wires, transfer));
    }
}
