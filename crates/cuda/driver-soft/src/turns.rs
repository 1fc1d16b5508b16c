//! The order in which memory is put at an address.
//!
//! The client may use an address again as soon as it has freed it in the order of its calls, though the device has not come
//! that far. So everything that is to lie somewhere takes a turn when its command is executed, and is put there after all
//! earlier turns at overlapping addresses were put there and are gone again.

use crate::sync::{Lock, lock};
use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar},
    time::Duration,
};

#[derive(Debug, Default)]
struct Waiting {
    /// Start and bytes of each turn that has not come, by number.
    turns: BTreeMap<u64, (u64, u64)>,
    next: u64,
}

/// The turns of a session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    shared: Arc<(Lock<Waiting>, Condvar)>,
}

/// A place in the order. Later turns wait until this one is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    number: u64,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl Turns {
    /// Takes the next turn for a range.
    pub(crate) fn take(&self, start: u64, bytes: u64) -> Turn {
        let mut waiting = lock(&self.shared.0);
        waiting.next += 1;
        let number = waiting.next;
        waiting.turns.insert(number, (start, bytes));
        drop(waiting);
        Turn { turns: self.clone(), number, start, bytes }
    }

    /// Says that something has gone.
    pub(crate) fn tell(&self) {
        drop(lock(&self.shared.0));
        self.shared.1.notify_all();
    }
}

impl Turn {
    /// Its number, which names what is put there.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether it has come: nothing earlier waits, and nothing is there.
    pub(crate) fn has_come(&self, is_there: impl Fn() -> bool) -> bool {
        !self.is_behind(&lock(&self.turns.shared.0)) && !is_there()
    }

    /// Waits for it, unless `give_up` says otherwise.
    pub(crate) fn wait(&self, is_there: impl Fn() -> bool, give_up: impl Fn() -> bool) -> bool {
        /// How often `give_up` is asked.
        const PATIENCE: Duration = Duration::from_millis(20);
        let mut waiting = lock(&self.turns.shared.0);
        while self.is_behind(&waiting) || is_there() {
            if give_up() {
                return false;
            }
            waiting = locks::wait_for(&self.turns.shared.1, waiting, PATIENCE);
        }
        true
    }

    fn is_behind(&self, waiting: &Waiting) -> bool {
        let overlaps =
            |&(start, bytes): &(u64, u64)| start < self.start + self.bytes && self.start < start + bytes;
        waiting.turns.range(..self.number).any(|(_, range)| overlaps(range))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.turns.shared.0).turns.remove(&self.number);
        self.turns.shared.1.notify_all();
    }
}
