//! Which work is measured. Events around a kernel cost the GPU and the worker some microseconds, which is much for a program
//! that launches thousands of short kernels. So a kernel that has been measured a few times is measured again only if that stays
//! within a small share of the time; how long the others took follows from those. Fills and copies on the device are like kernels:
//! libraries clear a buffer in front of many of theirs.

use crate::book::Work;
use cuda_wire::{KernelRef, timed};
use std::collections::HashMap;

/// What measuring a piece of work costs. On an H200 a kernel of 4 us took 2.2 times as long with events around it.
const COST_NS: i64 = 4_000;
/// The part of the time that may be spent: one of this many.
const SHARE: u64 = 50;
/// What can be saved up while there is little to measure: short programs are measured whole.
const SAVED_MAX_NS: i64 = 1_000_000;
/// The first runs of each kernel are measured in any case. They are paid back later, up to here.
const FIRST_RUNS: u32 = 4;
const DEBT_MAX_NS: i64 = 10_000_000;
/// Kernels that are remembered: with different grids they are different ones.
const KNOWN_MAX: usize = 1 << 16;

/// Work that takes about as long each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Kernel(KernelRef, [u32; 3], [u32; 3]),
    Memory { kind: u8, bytes: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Known {
    runs: u32,
    typical_ns: u64,
}

/// What is known about kernels, and what may be spent.
#[derive(Debug)]
pub(crate) struct Thrift {
    known: HashMap<Key, Known>,
    saved_ns: i64,
    last_ns: u64,
    /// What has to be there before the next one is measured. It varies, or the same kernels of each step would be measured.
    threshold_ns: i64,
    random: u64,
}

impl Default for Thrift {
    fn default() -> Self {
        let known = HashMap::new();
        Self {
            known,
            saved_ns: SAVED_MAX_NS,
            last_ns: 0,
            threshold_ns: COST_NS,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

fn key_of(work: &Work) -> Option<Key> {
    match *work {
        Work::Kernel { kernel, grid, block, .. } => Some(Key::Kernel(kernel, grid, block)),
        Work::Other { kind: kind @ (timed::FILL | timed::COPY_DEVICE), bytes } => {
            Some(Key::Memory { kind, bytes })
        }
        // The network, the program or a whole graph decides how long these take.
        Work::Other { .. } => None,
    }
}

impl Thrift {
    /// Whether this piece of work is measured, now that it comes.
    pub(crate) fn measures(&mut self, work: &Work, now_ns: u64) -> bool {
        let earned = now_ns.saturating_sub(self.last_ns) / SHARE;
        self.last_ns = self.last_ns.max(now_ns);
        self.saved_ns = self.saved_ns.saturating_add_unsigned(earned).min(SAVED_MAX_NS);
        self.typical_ns(work).is_none() || self.saved_ns >= self.threshold_ns
    }

    /// A piece of work gets events.
    pub(crate) fn spends(&mut self) {
        self.saved_ns = (self.saved_ns - COST_NS).max(-DEBT_MAX_NS);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.threshold_ns = COST_NS / 2 + (self.random % COST_NS as u64) as i64;
    }

    /// A piece of work was measured.
    pub(crate) fn learns(&mut self, work: &Work, length_ns: u64) {
        let Some(key) = key_of(work) else { return };
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&key) {
            self.known.clear();
        }
        let known = self.known.entry(key).or_insert(Known { runs: 0, typical_ns: length_ns });
        known.runs = known.runs.saturating_add(1);
        // The first runs of a kernel may take longer; what came last counts most.
        known.typical_ns = known.typical_ns - known.typical_ns / 4 + length_ns / 4;
    }

    /// How long such work takes, if it was measured often enough.
    pub(crate) fn typical_ns(&self, work: &Work) -> Option<u64> {
        self.known.get(&key_of(work)?).filter(|known| known.runs >= FIRST_RUNS).map(|known| known.typical_ns)
    }
}
