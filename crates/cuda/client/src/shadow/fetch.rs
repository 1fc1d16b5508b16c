//! One fetch under way, and which of its bytes would be no news.

use std::collections::BTreeMap;

/// A fetch of one shadow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FetchId(pub(super) u64);

/// Bytes of one fetch for which single values are remembered. As many as the largest shadow that is sent while kernels
/// run has; other shadows rarely change twice during a fetch. Beyond it, a byte is left to the next fetch.
const REMEMBERED_BYTES_MAX: usize = super::SIGNAL_BYTES_MAX as usize;

/// A set of values of one byte.
type Values = [u64; 4];

#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) id: FetchId,
    /// The stream it is read in.
    pub(super) stream: u64,
    /// What the shadow held when the fetch was enqueued, but for kernels that had not been fetched.
    before: Vec<u8>,
    /// Further values that a byte had since. `before` and the latest value are not among them.
    passed: BTreeMap<usize, Values>,
    /// A bit for each byte that this fetch cannot bring news for; empty while there is none.
    settled: Vec<u64>,
}

impl Fetch {
    pub(super) fn new(id: FetchId, stream: u64, before: Vec<u8>) -> Self {
        Self { id, stream, before, passed: BTreeMap::new(), settled: Vec::new() }
    }

    /// The bytes that arrived at `at` are what they were when the fetch began.
    pub(super) fn is_unchanged(&self, at: usize, after: &[u8]) -> bool {
        self.before[at..at + after.len()] == *after
    }

    /// Whether a kernel must have written `value`, as far as this fetch knows.
    pub(super) fn is_news(&self, at: usize, value: u8) -> bool {
        let has_passed = || {
            self.passed
                .get(&at)
                .is_some_and(|values| values[usize::from(value >> 6)] >> (value & 63) & 1 == 1)
        };
        value != self.before[at] && !self.is_settled(at) && !has_passed()
    }

    fn is_settled(&self, at: usize) -> bool {
        self.settled.get(at / 64).is_some_and(|bits| bits >> (at % 64) & 1 == 1)
    }

    /// Says that this fetch brings no news for a byte.
    pub(super) fn settle(&mut self, at: usize) {
        if self.settled.is_empty() {
            self.settled = vec![0; self.before.len().div_ceil(64)];
        }
        self.settled[at / 64] |= 1 << (at % 64);
    }

    /// Says that a byte had this value, which is being replaced.
    pub(super) fn pass(&mut self, at: usize, value: u8) {
        if value == self.before[at] || self.is_settled(at) {
            return;
        }
        if self.passed.len() == REMEMBERED_BYTES_MAX && !self.passed.contains_key(&at) {
            return self.settle(at);
        }
        self.passed.entry(at).or_default()[usize::from(value >> 6)] |= 1 << (value & 63);
    }

    /// Says that an earlier fetch of the same stream found this value: later kernels of the stream started from it.
    pub(super) fn start_from(&mut self, at: usize, value: u8) {
        self.before[at] = value;
        self.passed.remove(&at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_the_byte_had_is_no_news() {
        let mut fetch = Fetch::new(FetchId(1), 1, vec![5; 100]);
        fetch.pass(70, 5);
        assert!(fetch.passed.is_empty(), "the first value is known anyway");
        fetch.pass(70, 0);
        fetch.pass(70, 255);
        assert!([5, 0, 255].into_iter().all(|value| !fetch.is_news(70, value)));
        assert!(fetch.is_news(70, 64) && fetch.is_news(69, 0));
        fetch.start_from(70, 9);
        assert!(fetch.is_news(70, 5) && fetch.is_news(70, 0) && !fetch.is_news(70, 9));
        fetch.settle(70);
        assert!(!fetch.is_news(70, 5) && fetch.is_news(69, 0) && fetch.is_news(71, 0));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut fetch = Fetch::new(FetchId(1), 1, vec![0; REMEMBERED_BYTES_MAX + 10]);
        (0..REMEMBERED_BYTES_MAX + 10).for_each(|at| fetch.pass(at, 1));
        assert_eq!(fetch.passed.len(), REMEMBERED_BYTES_MAX);
        assert!(!fetch.is_news(REMEMBERED_BYTES_MAX + 5, 2), "left to the next fetch");
        fetch.pass(0, 2);
        assert!(!fetch.is_news(0, 2) && fetch.is_news(0, 3));
    }
}
