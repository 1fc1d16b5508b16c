//! What is asked of a store at once: conditions, and the writes that happen if all of them hold.

use std::collections::BTreeSet;

use crate::error::Refusal;
use crate::leadership::LEADER_PREFIX;
use crate::record::{Revision, check_key};

/// Something that must be true of a key at the moment of the transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The key it is about.
    pub key: String,
    /// What must be true of it.
    pub expect: Expect,
}

/// What a [`Condition`] says about its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// There is no such key.
    Absent,
    /// There is one, whatever its value.
    Present,
    /// There is one, last put by this transaction and not since.
    ModifiedAt(Revision),
}

impl Condition {
    /// The key does not exist.
    pub fn absent(key: impl Into<String>) -> Self {
        Self { key: key.into(), expect: Expect::Absent }
    }

    /// The key exists.
    pub fn present(key: impl Into<String>) -> Self {
        Self { key: key.into(), expect: Expect::Present }
    }

    /// The key is as it was at `revision`.
    pub fn modified_at(key: impl Into<String>, revision: Revision) -> Self {
        Self { key: key.into(), expect: Expect::ModifiedAt(revision) }
    }

    /// Whether it holds for a key last put at `found`.
    pub(crate) fn holds(&self, found: Option<Revision>) -> bool {
        match self.expect {
            Expect::Absent => found.is_none(),
            Expect::Present => found.is_some(),
            Expect::ModifiedAt(revision) => found == Some(revision),
        }
    }
}

/// One change to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Makes the key, or gives it another value.
    Put {
        /// The key.
        key: String,
        /// Its new value.
        value: Vec<u8>,
    },
    /// Removes the key; nothing happens if there is none.
    Delete {
        /// The key.
        key: String,
    },
}

impl Write {
    /// The key it changes.
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Put { key, value } => key.len() + value.len(),
            Self::Delete { key } => key.len(),
        }
    }
}

/// All of it happens, or nothing does.
///
/// No key may be written twice in one transaction (etcd would refuse it, so all engines do), and keys below
/// [`LEADER_PREFIX`] are written by elections alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must hold.
    pub conditions: Vec<Condition>,
    /// What changes then.
    pub writes: Vec<Write>,
}

impl Transaction {
    /// An empty one: commits without effect, and tells the store's revision.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition.
    #[must_use]
    pub fn when(mut self, condition: Condition) -> Self {
        self.conditions.push(condition);
        self
    }

    /// Adds a put.
    #[must_use]
    pub fn put(mut self, key: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.writes.push(Write::Put { key: key.into(), value: value.into() });
        self
    }

    /// Adds a delete.
    #[must_use]
    pub fn delete(mut self, key: impl Into<String>) -> Self {
        self.writes.push(Write::Delete { key: key.into() });
        self
    }

    /// The same answer from every engine to what none could do.
    pub(crate) fn check(&self, limits: Limits) -> Result<(), Refusal> {
        let longest = self.writes.len().max(self.conditions.len());
        if longest > limits.writes {
            return Err(Refusal::TooManyWrites { asked: longest, limit: limits.writes });
        }
        let bytes: usize = self.writes.iter().map(Write::bytes).sum();
        if bytes > limits.bytes {
            return Err(Refusal::TooManyBytes { asked: bytes, limit: limits.bytes });
        }
        for condition in &self.conditions {
            check_key(&condition.key)?;
        }
        let mut seen = BTreeSet::new();
        for write in &self.writes {
            check_key(write.key())?;
            if write.key().starts_with(LEADER_PREFIX) {
                return Err(Refusal::ReservedKey { key: write.key().to_owned() });
            }
            if !seen.insert(write.key()) {
                return Err(Refusal::WrittenTwice { key: write.key().to_owned() });
            }
        }
        Ok(())
    }
}

/// What one transaction may hold. Splitting a larger one would break its promise, so callers size their batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most writes, and the most conditions.
    pub writes: usize,
    /// The most bytes of keys and values together.
    pub bytes: usize,
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// It happened, durably. A transaction that changed nothing is told the store's revision and makes none.
    Committed {
        /// Its revision: that of every record it put.
        revision: Revision,
    },
    /// A condition did not hold, and nothing changed.
    Conflict {
        /// The first such condition, by its place in [`Transaction::conditions`].
        condition: usize,
        /// What its key was last modified at; none when there is no such key.
        found: Option<Revision>,
    },
}

impl Outcome {
    /// The revision, if it was committed.
    pub fn committed(self) -> Option<Revision> {
        match self {
            Self::Committed { revision } => Some(revision),
            Self::Conflict { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { writes: 2, bytes: 16 };

    #[test]
    fn what_no_engine_could_do_is_refused_by_name() {
        let three = Transaction::new().put("a", "1").put("b", "1").put("c", "1");
        assert_eq!(three.check(LIMITS), Err(Refusal::TooManyWrites { asked: 3, limit: 2 }));
        let large = Transaction::new().put("a", "0123456789abcdef");
        assert_eq!(large.check(LIMITS), Err(Refusal::TooManyBytes { asked: 17, limit: 16 }));
        let twice = Transaction::new().put("a", "1").delete("a");
        assert_eq!(twice.check(LIMITS), Err(Refusal::WrittenTwice { key: "a".into() }));
        let usurper = Transaction::new().put("leader/x", "me");
        assert_eq!(usurper.check(LIMITS), Err(Refusal::ReservedKey { key: "leader/x".into() }));
        let follower = Transaction::new().when(Condition::present("leader/x")).put("a", "1");
        assert_eq!(follower.check(LIMITS), Ok(()));
    }
}
