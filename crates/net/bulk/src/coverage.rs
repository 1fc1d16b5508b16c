//! Which bytes of a transfer have been claimed by chunks.

use std::collections::BTreeMap;

/// Disjoint runs of bytes, neighbours joined.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    /// Start to end.
    runs: BTreeMap<u64, u64>,
}

/// Why a chunk cannot be part of its transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Its bytes came before.
    Overlap,
    /// It leaves more holes than any honest order of chunks does.
    Scattered,
}

/// Lanes take chunks in order, so at any moment there are about as many holes as lanes. A hostile peer could make
/// a hole of every second byte and have us remember all of them.
const RUNS_MAX: usize = 1024;

impl Coverage {
    /// Claims `start..end`, which is not empty.
    pub(crate) fn claim(&mut self, start: u64, end: u64) -> Result<(), Refused> {
        let before = self.runs.range(..=start).next_back().map(|(start, end)| (*start, *end));
        let after = self.runs.range(start..).next().map(|(start, end)| (*start, *end));
        if before.is_some_and(|(_, before_end)| before_end > start)
            || after.is_some_and(|(after_start, _)| after_start < end)
        {
            return Err(Refused::Overlap);
        }
        let start = match before {
            Some((before_start, before_end)) if before_end == start => before_start,
            _ => start,
        };
        let end = match after {
            Some((after_start, after_end)) if after_start == end => {
                self.runs.remove(&after_start);
                after_end
            }
            _ => end,
        };
        self.runs.insert(start, end);
        if self.runs.len() > RUNS_MAX { Err(Refused::Scattered) } else { Ok(()) }
    }

    /// Whether half of all holes that may be are there. The other half is for the lanes.
    pub(crate) fn is_crowded(&self) -> bool {
        self.runs.len() >= RUNS_MAX / 2
    }

    /// The end of the last run.
    pub(crate) fn end(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(_, end)| *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_of_chunks_ends_in_one_run() {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let mut coverage = Coverage::default();
            for chunk in order {
                assert_eq!(coverage.claim(chunk * 10, chunk * 10 + 10), Ok(()));
            }
            assert_eq!((coverage.runs.len(), coverage.end()), (1, 40));
        }
    }

    #[test]
    fn overlaps_are_refused_on_every_side() {
        let mut coverage = Coverage::default();
        coverage.claim(10, 20).unwrap();
        for (start, end) in [(10, 20), (5, 11), (19, 25), (12, 13), (0, 100), (10, 11), (19, 20)] {
            assert_eq!(coverage.claim(start, end), Err(Refused::Overlap), "{start}..{end}");
        }
        assert_eq!(coverage.claim(20, 21), Ok(()));
        assert_eq!(coverage.claim(9, 10), Ok(()));
    }

    #[test]
    fn holes_are_bounded() {
        let mut coverage = Coverage::default();
        let refused = (0..).map(|at| coverage.claim(at * 2, at * 2 + 1)).take(5000).find(Result::is_err);
        assert_eq!(refused, Some(Err(Refused::Scattered)));
    }
}
