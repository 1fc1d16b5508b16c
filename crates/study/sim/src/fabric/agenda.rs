//! What happens next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Picoseconds since the start: an integer, so that equal runs are equal to the last digit.
pub(super) type Instant = u64;

/// Picoseconds in a microsecond.
pub(super) const PS_PER_US: f64 = 1e6;

pub(super) fn ps(us: f64) -> Instant {
    (us * PS_PER_US).round() as Instant
}

/// Events by time; those of one time in the order in which they were put down.
#[derive(Debug)]
pub(super) struct Agenda<E> {
    heap: BinaryHeap<Reverse<(Instant, u64, Slot<E>)>>,
    next: u64,
}

/// An event that takes no part in the order.
#[derive(Debug)]
struct Slot<E>(E);

impl<E> PartialEq for Slot<E> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl<E> Eq for Slot<E> {}
impl<E> PartialOrd for Slot<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Slot<E> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl<E> Agenda<E> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), next: 0 }
    }

    pub(super) fn put(&mut self, at: Instant, event: E) {
        self.heap.push(Reverse((at, self.next, Slot(event))));
        self.next += 1;
    }

    pub(super) fn take(&mut self) -> Option<(Instant, E)> {
        self.heap.pop().map(|Reverse((at, _, Slot(event)))| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_age() {
        let mut agenda = Agenda::new();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b')] {
            agenda.put(at, event);
        }
        let order: String = std::iter::from_fn(|| agenda.take()).map(|(_, event)| event).collect();
        assert_eq!(order, "abcd");
    }
}
