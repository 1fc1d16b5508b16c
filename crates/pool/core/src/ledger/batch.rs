//! Many outcomes in one transaction: a disk is flushed once for all of them.

use super::Outcome;
use std::collections::BTreeMap;

/// Writes of outcomes that follow each other, later ones in place of earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    writes: BTreeMap<String, Option<Vec<u8>>>,
    bytes: usize,
}

impl Batch {
    /// Adds the writes of an outcome, if there is room for all of them. An empty batch takes any outcome.
    ///
    /// An outcome that finds no room goes into the next batch, and so do all after it: their order counts.
    pub fn add(&mut self, outcome: &Outcome, writes_max: usize, bytes_max: usize) -> bool {
        let size = |key: &str, value: &Option<Vec<u8>>| key.len() + value.as_ref().map_or(0, Vec::len);
        let (mut new, mut bytes) = (0, self.bytes);
        for (key, value) in &outcome.writes {
            match self.writes.get(key) {
                Some(old) => bytes -= size(key, old),
                None => new += 1,
            }
            bytes += size(key, value);
        }
        if !self.writes.is_empty() && (self.writes.len() + new > writes_max || bytes > bytes_max) {
            return false;
        }
        self.bytes = bytes;
        self.writes.extend(outcome.writes.iter().cloned());
        true
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Each key once, with its last value; no value deletes the key.
    pub fn into_writes(self) -> impl Iterator<Item = (String, Option<Vec<u8>>)> {
        self.writes.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Answer;

    fn outcome(keys: &[&str], value: &str) -> Outcome {
        let writes = keys.iter().map(|key| ((*key).to_owned(), Some(value.as_bytes().to_vec()))).collect();
        Outcome { answer: Answer::Work, writes, events: Vec::new() }
    }

    #[test]
    fn the_last_value_counts_and_an_outcome_is_never_split() {
        let mut batch = Batch::default();
        assert!(batch.add(&outcome(&["a", "b"], "1"), 3, 100));
        assert!(batch.add(&outcome(&["b", "c"], "22"), 3, 100));
        assert!(!batch.add(&outcome(&["a", "d"], "3"), 3, 100));
        assert!(!batch.add(&outcome(&["a"], &"3".repeat(100)), 3, 100));
        let writes: Vec<_> = batch.into_writes().map(|(key, value)| (key, value.unwrap())).collect();
        let expect = [("a", "1"), ("b", "22"), ("c", "22")];
        assert_eq!(writes, expect.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec())));
        assert!(Batch::default().add(&outcome(&["a", "b"], "1"), 1, 1), "the first is the caller's problem");
    }
}
