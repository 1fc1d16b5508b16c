//! Transfers that will write host memory, and their order.
//!
//! A stream writes the same bytes twice in order; but its transfers travel on several ways, and the later one may be here first. So
//! what a later transfer has written is noted for as long as an earlier one may still write there, and the earlier one leaves it out.
//!
//! ```text
//!   one writer of its bytes      straight from the network into memory, any number of threads at once
//!   several                      through a buffer, one thread at a time; what a later transfer has written stays
//! ```

use locks::lock;
use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::{
        Mutex, MutexGuard, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Transfers that will write host memory. Several may write the same bytes.
#[derive(Debug, Default)]
pub(super) struct PendingWrites {
    state: Mutex<Pending>,
    count: AtomicUsize,
    /// Threads that read straight into memory have it shared. The others have it alone, so that none of the first can be in the middle
    /// of bytes that are older than theirs.
    landing: RwLock<()>,
}

#[derive(Debug, Default)]
struct Pending {
    /// `(address, transfer)` to bytes.
    by_address: BTreeMap<(u64, u64), u64>,
    /// Transfer to address.
    by_transfer: HashMap<u64, u64>,
    /// No write is longer, so none that starts further below than this can reach up.
    longest: u64,
    /// What transfers have written while earlier ones may still write there.
    written: Vec<Written>,
}

#[derive(Debug)]
struct Written {
    transfer: u64,
    range: Range<u64>,
}

impl PendingWrites {
    pub(super) fn begin(&self, transfer: u64, address: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut state = self.lock();
        state.forget(transfer);
        state.by_address.insert((address, transfer), bytes);
        state.by_transfer.insert(transfer, address);
        state.longest = state.longest.max(bytes);
        self.count.store(state.by_transfer.len(), Ordering::Release);
    }

    pub(super) fn end(&self, transfer: u64) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.lock();
        state.forget(transfer);
        self.count.store(state.by_transfer.len(), Ordering::Release);
    }

    pub(super) fn under_way(&self, address: u64, bytes: u64) -> usize {
        if bytes == 0 || self.count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.lock().meeting(&(address..address.saturating_add(bytes))).count()
    }

    pub(super) fn land_directly(&self, transfer: u64, read: impl FnOnce()) -> bool {
        let _shared = locks::read(&self.landing);
        if !self.lock().is_alone(transfer) {
            return false;
        }
        read();
        true
    }

    pub(super) fn land(&self, transfer: u64, address: u64, bytes: u64, mut write: impl FnMut(u64, u64)) {
        let _alone = locks::write(&self.landing);
        let range = address..address.saturating_add(bytes);
        let parts = self.lock().written_by(transfer, range);
        for part in parts {
            write(part.start, part.end - part.start);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        lock(&self.state)
    }
}

impl Pending {
    /// Transfers under way that share a byte with a range.
    fn meeting<'a>(&'a self, range: &Range<u64>) -> impl Iterator<Item = u64> + use<'a> {
        let Range { start, end } = *range;
        let from = (start.saturating_sub(self.longest), 0);
        let near = self.by_address.range(from..(end, 0));
        near.filter(move |((at, _), bytes)| at.saturating_add(**bytes) > start)
            .map(|((_, transfer), _)| *transfer)
    }

    /// Whether no other transfer has to do with the memory of this one.
    fn is_alone(&self, transfer: u64) -> bool {
        let Some(address) = self.by_transfer.get(&transfer) else { return false };
        let Some(bytes) = self.by_address.get(&(*address, transfer)) else { return false };
        let range = *address..address.saturating_add(*bytes);
        self.meeting(&range).all(|other| other == transfer)
            && !self.written.iter().any(|written| is_met(&written.range, &range))
    }

    /// Notes what a transfer writes now, and says which parts of it no later one has written.
    fn written_by(&mut self, transfer: u64, range: Range<u64>) -> Vec<Range<u64>> {
        let mut parts = vec![range.clone()];
        for later in self.written.iter().filter(|written| written.transfer > transfer) {
            parts = parts.iter().flat_map(|part| without(part, &later.range)).collect();
        }
        if self.meeting(&range).any(|earlier| earlier < transfer) {
            self.written.push(Written { transfer, range });
        }
        parts
    }

    fn forget(&mut self, transfer: u64) {
        if let Some(address) = self.by_transfer.remove(&transfer) {
            self.by_address.remove(&(address, transfer));
        }
        if self.by_transfer.is_empty() {
            self.longest = 0;
        }
        let mut written = std::mem::take(&mut self.written);
        written.retain(|one| self.meeting(&one.range).any(|earlier| earlier < one.transfer));
        self.written = written;
    }
}

fn is_met(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// What is left of a range without another.
fn without(range: &Range<u64>, other: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let before = range.start..range.end.min(other.start);
    let behind = range.start.max(other.end)..range.end;
    [before, behind].into_iter().filter(|part| part.start < part.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: u64 = 24;

    /// Transfers that were begun in the order of their numbers, each with pieces that come in any order, and end in any order.
    #[derive(Clone, Debug)]
    struct Plan {
        transfers: Vec<Range<u64>>,
        order: Vec<(usize, u64)>,
    }

    fn plans() -> impl Strategy<Value = Plan> {
        let range = (0..BYTES - 1, 1..BYTES).prop_map(|(at, n)| at..(at + n).min(BYTES));
        prop::collection::vec(range, 1..6).prop_flat_map(|transfers| {
            let bytes: Vec<_> = transfers
                .iter()
                .enumerate()
                .flat_map(|(n, range)| range.clone().map(move |at| (n, at)))
                .collect();
            Just(bytes).prop_shuffle().prop_map(move |order| Plan { transfers: transfers.clone(), order })
        })
    }

    proptest! {
        /// Whatever comes first, in the end each byte is that of the last transfer, and in between never older than one before.
        #[test]
        fn the_last_transfer_has_the_last_word(plan in plans()) {
            let pending = PendingWrites::default();
            let mut memory = [None; BYTES as usize];
            let mut left: Vec<u64> = plan.transfers.iter().map(|range| range.end - range.start).collect();
            for (number, range) in plan.transfers.iter().enumerate() {
                pending.begin(number as u64, range.start, range.end - range.start);
            }
            for (number, at) in plan.order {
                let before = memory[at as usize];
                let is_direct = pending.land_directly(number as u64, || memory[at as usize] = Some(number));
                if !is_direct {
                    pending.land(number as u64, at, 1, |at, bytes| {
                        assert_eq!(bytes, 1);
                        memory[at as usize] = Some(number);
                    });
                }
                prop_assert!(memory[at as usize] >= before, "an older byte came over a newer one");
                left[number] -= 1;
                if left[number] == 0 {
                    pending.end(number as u64);
                }
            }
            for at in 0..BYTES {
                let last = plan.transfers.iter().rposition(|range| range.contains(&at));
                prop_assert_eq!(memory[at as usize], last);
            }
            prop_assert_eq!(pending.under_way(0, BYTES), 0);
            prop_assert!(pending.lock().written.is_empty(), "nothing is noted for ever");
        }
    }

    #[test]
    fn a_transfer_whose_memory_is_its_own_lands_directly() {
        let pending = PendingWrites::default();
        pending.begin(1, 0, 10);
        pending.begin(2, 10, 10);
        assert!(pending.land_directly(1, || {}) && pending.land_directly(2, || {}));
        pending.begin(3, 9, 2);
        assert!(!pending.land_directly(1, || {}) && !pending.land_directly(2, || {}));
        pending.end(3);
        assert!(pending.land_directly(1, || {}));
        assert!(!pending.land_directly(3, || {}), "it is over");
    }
}
