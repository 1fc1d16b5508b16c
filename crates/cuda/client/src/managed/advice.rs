//! What a program said about ranges of managed memory (cuMemAdvise, cuMemPrefetchAsync), so that it can ask.

use std::{collections::BTreeMap, ops::Range};

/// A place for memory: a device's number, or [`HOST`], or [`NOWHERE`].
pub type Place = i32;

/// `CU_DEVICE_CPU`.
pub const HOST: Place = -1;
/// `CU_DEVICE_INVALID`: none was named, or not the same for the whole range.
pub const NOWHERE: Place = -2;

/// What holds for some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// It is mostly read.
    pub read_mostly: bool,
    /// Where it should be.
    pub preferred: Place,
    /// The places that access it, ascending.
    pub accessed_by: Vec<Place>,
    /// Where it was last prefetched to.
    pub prefetched: Place,
}

impl Default for Advice {
    fn default() -> Self {
        Self { read_mostly: false, preferred: NOWHERE, accessed_by: Vec::new(), prefetched: NOWHERE }
    }
}

/// The advice for one allocation.
#[derive(Debug)]
pub struct Advices {
    /// What holds from an offset on, up to the next entry. Offset 0 is always there.
    runs: BTreeMap<u64, Advice>,
}

impl Default for Advices {
    fn default() -> Self {
        Self { runs: BTreeMap::from([(0, Advice::default())]) }
    }
}

impl Advices {
    /// Changes what holds for a range.
    pub fn change(&mut self, range: &Range<u64>, change: impl Fn(&mut Advice)) {
        if range.is_empty() {
            return;
        }
        self.cut(range.start);
        self.cut(range.end);
        self.runs.range_mut(range.clone()).for_each(|(_, advice)| change(advice));
    }

    /// What holds for the whole of a range: an advice that only a part of it has does not count.
    pub fn of(&self, range: &Range<u64>) -> Advice {
        let first = self.runs.range(..=range.start).next_back().map(|(start, _)| *start).unwrap_or(0);
        let mut all = self.runs.range(first..range.end.max(first + 1)).map(|(_, advice)| advice);
        let mut common = all.next().cloned().unwrap_or_default();
        for advice in all {
            common.read_mostly &= advice.read_mostly;
            if common.preferred != advice.preferred {
                common.preferred = NOWHERE;
            }
            if common.prefetched != advice.prefetched {
                common.prefetched = NOWHERE;
            }
            common.accessed_by.retain(|place| advice.accessed_by.contains(place));
        }
        common
    }

    fn cut(&mut self, at: u64) {
        if let Some((start, advice)) = self.runs.range(..=at).next_back()
            && *start != at
        {
            let advice = advice.clone();
            self.runs.insert(at, advice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_whole_range_has_counts() {
        let mut advices = Advices::default();
        assert_eq!(advices.of(&(0..100)), Advice::default());
        advices.change(&(10..20), |advice| advice.read_mostly = true);
        advices.change(&(15..30), |advice| advice.preferred = 1);
        advices.change(&(0..30), |advice| advice.accessed_by.push(HOST));
        assert!(advices.of(&(10..20)).read_mostly);
        assert!(advices.of(&(12..13)).read_mostly);
        assert!(!advices.of(&(9..20)).read_mostly);
        assert!(!advices.of(&(19..21)).read_mostly);
        assert_eq!(advices.of(&(15..30)).preferred, 1);
        assert_eq!(advices.of(&(14..30)).preferred, NOWHERE);
        assert_eq!(advices.of(&(0..30)).accessed_by, [HOST]);
        assert!(advices.of(&(0..31)).accessed_by.is_empty());
        advices.change(&(12..18), |advice| advice.read_mostly = false);
        assert!(!advices.of(&(10..20)).read_mostly && advices.of(&(18..20)).read_mostly);
    }
}
