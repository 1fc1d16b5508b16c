//! A network of bad habits: loses, delays, repeats, reorders and damages, the same way each time for the same seed.
//!
//! One value is one direction. It is a pure value too: datagrams and the time go in, datagrams come out when they are due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;
use units::{PathId, Time};

/// How bad, in thousandths of all datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Never arrive.
    pub lost: u16,
    /// Arrive twice.
    pub repeated: u16,
    /// Arrive with a bit changed.
    pub damaged: u16,
    /// Arrive late by up to [`Faults::late_by`], and so after others.
    pub late: u16,
    /// See [`Faults::late`].
    pub late_by: Duration,
    /// What every datagram takes.
    pub delay: Duration,
}

/// A time during which a path carries nothing.
#[derive(Clone, Copy, Debug)]
struct Cut {
    path: PathId,
    from: Time,
    until: Time,
}

/// One direction of the network.
#[derive(Debug)]
pub struct Scripted {
    faults: Faults,
    random: u64,
    cuts: Vec<Cut>,
    /// By time, then in the order of sending.
    due: BinaryHeap<Reverse<(Time, u64, usize)>>,
    buffers: Vec<Vec<u8>>,
    free: Vec<usize>,
    count: u64,
    taken: Option<usize>,
}

impl Scripted {
    /// The same seed and the same datagrams give the same faults.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self {
            faults,
            random: seed,
            cuts: Vec::new(),
            due: BinaryHeap::new(),
            buffers: Vec::new(),
            free: Vec::new(),
            count: 0,
            taken: None,
        }
    }

    /// Cuts a path for a while.
    pub fn cut(&mut self, path: PathId, from: Time, until: Time) {
        self.cuts.push(Cut { path, from, until });
    }

    /// SplitMix64: good enough to choose victims.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn happens(&mut self, per_mille: u16) -> bool {
        per_mille > 0 && self.random() % 1000 < u64::from(per_mille)
    }

    /// Sends a datagram over a path.
    pub fn send(&mut self, now: Time, path: PathId, datagram: &[u8]) {
        if self.cuts.iter().any(|cut| cut.path == path && (cut.from..cut.until).contains(&now)) {
            return;
        }
        if self.happens(self.faults.lost) {
            return;
        }
        let copies = if self.happens(self.faults.repeated) { 2 } else { 1 };
        for _ in 0..copies {
            let mut at = now.after(self.faults.delay);
            if self.happens(self.faults.late) {
                at.0 += self.random() % (self.faults.late_by.as_nanos() as u64).max(1);
            }
            let index = self.free.pop().unwrap_or_else(|| {
                self.buffers.push(Vec::new());
                self.buffers.len() - 1
            });
            let buffer = &mut self.buffers[index];
            buffer.clear();
            buffer.extend_from_slice(datagram);
            if self.happens(self.faults.damaged) {
                let bit = self.random() as usize % (datagram.len() * 8);
                self.buffers[index][bit / 8] ^= 1 << (bit % 8);
            }
            self.due.push(Reverse((at, self.count, index)));
            self.count += 1;
        }
    }

    /// The next datagram that is there by now.
    pub fn receive(&mut self, now: Time) -> Option<&mut [u8]> {
        self.free.extend(self.taken.take());
        match self.due.peek() {
            Some(Reverse((at, _, index))) if *at <= now => {
                self.taken = Some(*index);
                self.due.pop();
            }
            _ => return None,
        }
        self.taken.map(|index| self.buffers[index].as_mut_slice())
    }

    /// When the next datagram will be there.
    pub fn next_at(&self) -> Option<Time> {
        self.due.peek().map(|Reverse((at, ..))| *at)
    }
}
