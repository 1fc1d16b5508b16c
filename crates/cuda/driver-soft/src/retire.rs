//! Memory that is freed when work that was there before is done.
//!
//! CUDA's cuMemFree waits for the device. Here the command returns at once and the block stays until every line has passed
//! the point where the free was called. Until then it counts as free when the program asks, and an allocation that needs
//! the bytes, or the same addresses, waits for it.

use crate::{
    gate::Gate,
    line::Place,
    session::Session,
    sync::{Guard, Lock, lock},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

/// What goes.
pub(crate) enum What {
    /// The block that starts here.
    Block { address: u64, turn: u64, device: u32, bytes: u64 },
    /// Addresses of the driver's own, with the block there.
    Internal { address: u64, bytes: u64 },
    /// A texture or surface object, by its handle.
    Sampler(u64),
    /// All blocks of a context's life.
    Life(u64),
}

struct Entry {
    what: What,
    after: Vec<Place>,
    /// The cut that it comes after: what the cut saves must not go under it.
    gate: Option<Arc<Gate>>,
}

impl Entry {
    fn is_ripe(&self) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate.is_open()) && self.after.iter().all(Place::is_reached)
    }
}

/// All that waits to go.
#[derive(Default)]
pub(crate) struct Retiring {
    entries: Lock<Vec<Entry>>,
    any: AtomicBool,
    /// Held while ripe entries go, so that no thread finds an entry neither waiting nor gone.
    going: Lock<()>,
}

impl Retiring {
    /// Bytes of a device that will be free when the lines get to the places that the entries wait for.
    pub(crate) fn bytes(&self, device: u32) -> u64 {
        let entries = lock(&self.entries);
        let of_device = entries.iter().filter_map(|entry| match entry.what {
            What::Block { device: of, bytes, .. } if of == device => Some(bytes),
            _ => None,
        });
        of_device.sum()
    }

    /// Keeps entries from going while the guard is held; what was about to go has gone.
    pub(crate) fn settled(&self) -> Guard<'_, ()> {
        lock(&self.going)
    }

    /// The places that all of it waits for.
    pub(crate) fn places(&self) -> Vec<Place> {
        lock(&self.entries).iter().flat_map(|entry| entry.after.clone()).collect()
    }

    /// The cuts that some of it waits for.
    pub(crate) fn gates(&self) -> Vec<Arc<Gate>> {
        lock(&self.entries).iter().filter_map(|entry| entry.gate.clone()).collect()
    }

    /// Drops everything undone: the session is over.
    pub(crate) fn forget(&self) {
        let entries = std::mem::take(&mut *lock(&self.entries));
        drop(entries);
    }
}

impl Session {
    /// Lets something go when the lines have come to these places.
    pub(crate) fn retire(&self, what: What, after: Vec<Place>) {
        let gate = self.gate();
        if after.is_empty() && gate.is_none() {
            self.let_go(&what);
            return;
        }
        lock(&self.retiring.entries).push(Entry { what, after, gate });
        self.retiring.any.store(true, SeqCst);
        // The places may have been reached while the entry was made.
        self.sweep();
    }

    /// Lets go of whatever waits for nothing any more. Called after every task.
    pub(crate) fn sweep(&self) {
        if !self.retiring.any.load(SeqCst) {
            return;
        }
        let _going = lock(&self.retiring.going);
        let mut ripe = Vec::new();
        {
            let mut entries = lock(&self.retiring.entries);
            let mut index = 0;
            while index < entries.len() {
                if entries[index].is_ripe() {
                    ripe.push(entries.remove(index));
                } else {
                    index += 1;
                }
            }
            self.retiring.any.store(!entries.is_empty(), SeqCst);
        }
        ripe.iter().for_each(|entry| self.let_go(&entry.what));
    }

    fn let_go(&self, what: &What) {
        match *what {
            What::Block { address, turn, .. } => self.space.remove(address, turn),
            What::Internal { address, bytes } => {
                self.space.remove_at(address);
                self.give_internal(address, bytes);
            }
            What::Sampler(handle) => drop(lock(&self.samplers).remove(&handle)),
            What::Life(life) => self.space.remove_life(life),
        }
    }
}
