//! Bytes of the host that a worker got, kept because the program may change its memory afterwards.

use cuda_wire::TransferId;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// One serving of a pull. A graph pulls the same transfer at each of its launches; its servings are kept in the order in
/// which the worker asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Serving {
    transfer: TransferId,
    /// Counts all servings of a journal.
    number: u64,
}

impl Serving {
    /// The transfer that is served.
    pub fn transfer(&self) -> TransferId {
        self.transfer
    }
}

/// What became of a serving.
#[derive(Clone, Debug)]
pub(crate) enum Served {
    /// It began, and not all bytes are kept: the memory is still the transfer's.
    Begun,
    /// All bytes went out, or are about to.
    Bytes(Arc<[u8]>),
    /// The worker was told that the memory is gone.
    Refused,
}

/// A serving that is kept.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    number: u64,
    /// How many cuts had been taken when it began.
    epoch: u64,
    pub(crate) served: Served,
}

impl Kept {
    pub(crate) fn name(&self, transfer: TransferId) -> Serving {
        Serving { transfer, number: self.number }
    }
}

/// All kept bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostBytes {
    pub(crate) pushed: HashMap<TransferId, Arc<[u8]>>,
    pub(crate) pulled: HashMap<TransferId, VecDeque<Kept>>,
    bytes: u64,
    /// Servings so far.
    count: u64,
}

impl HostBytes {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn push(&mut self, transfer: TransferId, bytes: Arc<[u8]>) {
        self.bytes += bytes.len() as u64;
        if let Some(before) = self.pushed.insert(transfer, bytes) {
            self.bytes -= before.len() as u64;
        }
    }

    pub(crate) fn begin(&mut self, transfer: TransferId, epoch: u64) -> Serving {
        let kept = Kept { number: self.count, epoch, served: Served::Begun };
        self.count += 1;
        let serving = kept.name(transfer);
        self.pulled.entry(transfer).or_default().push_back(kept);
        serving
    }

    /// Says what became of a serving. One from before a truncation is not needed any more.
    pub(crate) fn end(&mut self, serving: Serving, served: Served) {
        let mut kept = self.pulled.get_mut(&serving.transfer).into_iter().flatten();
        let Some(place) = kept.find(|kept| kept.number == serving.number) else { return };
        self.bytes += length(&served);
        self.bytes -= length(&place.served);
        place.served = served;
    }

    /// The bytes of a transfer that is used once, pushed or pulled.
    pub(crate) fn only(&self, transfer: TransferId) -> Option<&Arc<[u8]>> {
        if let Some(bytes) = self.pushed.get(&transfer) {
            return Some(bytes);
        }
        match &self.pulled.get(&transfer)?.front()?.served {
            Served::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The bytes of a push are not needed any more.
    pub(crate) fn drop_pushed(&mut self, transfer: TransferId) {
        if let Some(bytes) = self.pushed.remove(&transfer) {
            self.bytes -= bytes.len() as u64;
        }
    }

    /// Drops all servings that began before the cut that was taken as number `epoch`.
    pub(crate) fn drop_served_before(&mut self, epoch: u64) {
        let freed = &mut self.bytes;
        self.pulled.retain(|_, servings| {
            while servings.front().is_some_and(|kept| kept.epoch < epoch) {
                *freed -= servings.pop_front().map_or(0, |kept| length(&kept.served));
            }
            !servings.is_empty()
        });
    }
}

fn length(served: &Served) -> u64 {
    match served {
        Served::Bytes(bytes) => bytes.len() as u64,
        Served::Begun | Served::Refused => 0,
    }
}
