//! Which leases can be seated at once, in the order of the line: kinds of guests, and groups of seats that take the same guests.
//!
//! Each lease in turn is admitted if there is a seat for it beside all that were admitted before; they may change seats for that
//! (augmenting paths). So a lease is left out only for leases ahead of it.

use std::collections::VecDeque;

/// The seats of the leases that are admitted so far.
#[derive(Debug)]
pub(super) struct Admission {
    /// Seats of each group that are not taken.
    free: Vec<u64>,
    /// The groups that take each kind of guest.
    groups: Vec<Vec<usize>>,
    /// Of each kind of guest, how many of its groups are known to be full. A group that is full stays full.
    full: Vec<usize>,
    /// `taken[guest][group]`.
    taken: Vec<Vec<u64>>,
}

impl Admission {
    /// No lease is admitted yet.
    pub(super) fn new(seats: Vec<u64>) -> Self {
        Self { free: seats, groups: Vec::new(), full: Vec::new(), taken: Vec::new() }
    }

    /// A kind of guest that these groups take.
    pub(super) fn add_kind(&mut self, groups: Vec<usize>) -> usize {
        self.groups.push(groups);
        self.full.push(0);
        self.taken.push(vec![0; self.free.len()]);
        self.groups.len() - 1
    }

    /// How many of a kind are admitted.
    pub(super) fn admitted(&self, guest: usize) -> u64 {
        self.taken[guest].iter().sum()
    }

    /// Admits one more of a kind, if all others keep a seat.
    pub(super) fn admit(&mut self, guest: usize) -> bool {
        let mut reached = vec![false; self.groups.len()];
        let mut is_seen = vec![false; self.free.len()];
        // How each kind was reached: which one displaces it, and in which group.
        let mut from: Vec<Option<(usize, usize)>> = vec![None; self.groups.len()];
        let mut next = VecDeque::from([guest]);
        reached[guest] = true;
        while let Some(kind) = next.pop_front() {
            if let Some(group) = self.room(kind) {
                self.move_up(kind, group, &from);
                return true;
            }
            for &group in &self.groups[kind] {
                if std::mem::replace(&mut is_seen[group], true) {
                    continue;
                }
                for other in 0..self.groups.len() {
                    if self.taken[other][group] > 0 && !std::mem::replace(&mut reached[other], true) {
                        from[other] = Some((kind, group));
                        next.push_back(other);
                    }
                }
            }
        }
        false
    }

    fn room(&mut self, guest: usize) -> Option<usize> {
        while let Some(&group) = self.groups[guest].get(self.full[guest]) {
            if self.free[group] > 0 {
                return Some(group);
            }
            self.full[guest] += 1;
        }
        None
    }

    /// The last kind takes a free seat; each kind before it on the way takes the one that was left for it.
    fn move_up(&mut self, last: usize, room: usize, from: &[Option<(usize, usize)>]) {
        self.free[room] -= 1;
        self.taken[last][room] += 1;
        let mut kind = last;
        while let Some((displacer, group)) = from[kind] {
            self.taken[kind][group] -= 1;
            self.taken[displacer][group] += 1;
            kind = displacer;
        }
    }
}
