//! What travels, and when it arrives.

use crate::{Answer, Command};
use pool_api::{ErrorCode, GpuId, LeaseId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A party that talks to managers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Party {
    Box(usize),
    Host(usize),
    Borrower(usize),
    Operator,
}

/// Something that happens at a moment.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    /// A request arrives at a manager.
    Ask { manager: usize, from: Party, request: u64, command: Command },
    /// An answer arrives, to what was done at this moment.
    Told { to: Party, request: u64, done_ms: u64, answer: Result<Answer, ErrorCode> },
    /// A borrower shows its token to a box.
    Knock { borrower: usize, life: u64, gpu: GpuId, lease: LeaseId, epoch: u64 },
    /// A box lets a borrower in, or not.
    Opened { borrower: usize, life: u64, gpu: GpuId, epoch: u64, admitted: bool },
    /// A box has ended a session.
    Closed { borrower: usize, life: u64, gpu: GpuId, epoch: u64 },
    /// A manager commits what it has collected.
    Flush { manager: usize },
    /// A party looks what there is to do.
    Wake(Party),
    /// A manager looks what there is to do.
    WakeManager(usize),
    /// A slot has done what takes time, unless its box restarted in between.
    Done { rack: usize, run: u64, slot: usize, work: u64 },
    /// Something goes wrong.
    Chaos,
}

#[derive(Debug)]
struct Entry {
    at_ms: u64,
    number: u64,
    what: Happening,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ms, self.number).cmp(&(other.at_ms, other.number))
    }
}

/// What is going to happen, in order.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<Entry>>,
    count: u64,
}

impl Agenda {
    pub(super) fn put(&mut self, at_ms: u64, what: Happening) {
        self.count += 1;
        self.heap.push(Reverse(Entry { at_ms, number: self.count, what }));
    }

    pub(super) fn next(&mut self) -> Option<(u64, Happening)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at_ms, entry.what))
    }
}
