//! The audit trail: each entry carries the hash of the one before, so that none can be changed or left out unseen.

use pool_api::{AuditEntry, AuditOutcome};

/// The hash before the first entry.
const BEGINNING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// What somebody did, before it is part of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditDraft {
    /// Who.
    pub actor: String,
    /// From where.
    pub address: String,
    /// What.
    pub action: String,
    /// To what.
    pub target: String,
    /// Whether it happened.
    pub outcome: AuditOutcome,
    /// Why not, or what exactly.
    pub detail: String,
}

/// The end of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditChain {
    next: u64,
    last_hash: String,
}

impl AuditChain {
    /// Goes on after this entry; after none at the beginning.
    pub fn after(last: Option<&AuditEntry>) -> Self {
        match last {
            Some(entry) => Self { next: entry.seq + 1, last_hash: entry.hash.clone() },
            None => Self { next: 1, last_hash: BEGINNING.to_owned() },
        }
    }

    /// Adds an entry, and tells under which key it is stored.
    pub fn append(&mut self, draft: AuditDraft, at_ms: u64) -> (String, AuditEntry) {
        let AuditDraft { actor, address, action, target, outcome, detail } = draft;
        let mut entry = AuditEntry {
            seq: self.next,
            at_ms,
            actor,
            address,
            action,
            target,
            outcome,
            detail,
            previous: self.last_hash.clone(),
            hash: String::new(),
        };
        entry.hash = hash(&entry);
        self.next += 1;
        self.last_hash.clone_from(&entry.hash);
        (format!("audit/{:020}", entry.seq), entry)
    }
}

fn hash(entry: &AuditEntry) -> String {
    let bare = AuditEntry { hash: String::new(), ..entry.clone() };
    let text = serde_json::to_vec(&bare).expect("an entry has text keys and whole numbers");
    blake3::hash(&text).to_hex().to_string()
}

/// Where a chain is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("audit entry {seq} does not belong where it is: {problem}")]
pub struct BrokenChain {
    /// The first entry that does not fit.
    pub seq: u64,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// Checks entries that follow each other. The first may have others before it that are no longer kept.
pub fn verify_audit<'a>(entries: impl IntoIterator<Item = &'a AuditEntry>) -> Result<u64, BrokenChain> {
    let mut before: Option<&AuditEntry> = None;
    let mut count = 0;
    for entry in entries {
        let broken = |problem| Err(BrokenChain { seq: entry.seq, problem });
        if entry.hash != hash(entry) {
            return broken("it was changed");
        }
        if entry.seq == 1 && entry.previous != BEGINNING {
            return broken("it is the first, but another was before it");
        }
        if let Some(before) = before {
            if entry.seq != before.seq + 1 {
                return broken("one before it is missing");
            }
            if entry.previous != before.hash {
                return broken("the one before it was changed");
            }
        }
        before = Some(entry);
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain() -> Vec<AuditEntry> {
        let mut chain = AuditChain::after(None);
        let draft = |action: &str| AuditDraft {
            actor: "operator/ann".into(),
            address: "192.0.2.7".into(),
            action: action.into(),
            target: "gpu/a/1".into(),
            outcome: AuditOutcome::Done,
            detail: String::new(),
        };
        ["gpu.taint", "gpu.untaint", "gpu.break"].map(|action| chain.append(draft(action), 5).1).to_vec()
    }

    #[test]
    fn nothing_can_be_changed_or_left_out_unseen() {
        let entries = chain();
        assert_eq!(verify_audit(&entries), Ok(3));
        assert_eq!(verify_audit(&entries[1..]), Ok(2));
        let mut changed = entries.clone();
        changed[1].actor = "operator/bob".into();
        assert_eq!(verify_audit(&changed).unwrap_err().seq, 2);
        changed[1].hash = hash(&changed[1]);
        assert_eq!(verify_audit(&changed).unwrap_err().seq, 3);
        assert_eq!(verify_audit([&entries[0], &entries[2]]).unwrap_err().problem, "one before it is missing");
    }

    #[test]
    fn a_chain_goes_on_where_it_was() {
        let entries = chain();
        let mut rest = AuditChain::after(entries.get(1));
        let draft = AuditDraft {
            actor: entries[2].actor.clone(),
            address: entries[2].address.clone(),
            action: entries[2].action.clone(),
            target: entries[2].target.clone(),
            outcome: AuditOutcome::Done,
            detail: String::new(),
        };
        let (key, entry) = rest.append(draft, 5);
        assert_eq!((key.as_str(), &entry), ("audit/00000000000000000003", &entries[2]));
    }
}
