//! Who did what: every change and every refusal, chained by hash.
//!
//! Each entry holds the hash of the one before ([`AuditChain`]), so none can be changed or taken out unseen; which one
//! is the newest is kept beside the entries, in the same transaction. A report that changes nothing, a renewal and a
//! read are no entries. Refusals are limited for each who causes them: a stranger who tries tokens in a loop costs a
//! few entries a second, and the next one counts the others.

use std::collections::HashMap;

use pool::{AuditChain, AuditDraft};
use pool_api::{AuditEntry, AuditOutcome};
use serde::{Deserialize, Serialize};

use crate::staged::Staged;

const PREFIX: &str = "audit/";
pub(crate) const HEAD_KEY: &str = "audit-head";

/// Refusals of one actor that are written in full within [`WINDOW_MS`].
const REFUSALS_IN_FULL: u32 = 5;
const WINDOW_MS: u64 = 1_000;

/// Actors whose refusals are counted apart.
const ACTORS_MAX: usize = 10_000;

/// Entries removed with one new entry, until as few are left as are to be kept.
const TRIM_STEP: u64 = 8;

/// Digits of a sequence number in a key: they sort as they count.
const DIGITS: usize = 20;

/// Which entries there are, as it is stored.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The newest; zero before the first.
    pub(crate) seq: u64,
    /// The oldest that is kept.
    pub(crate) oldest: u64,
}

impl Head {
    pub(crate) fn read(bytes: Option<&[u8]>) -> Result<Self, String> {
        let Some(bytes) = bytes else { return Ok(Self { seq: 0, oldest: 1 }) };
        serde_json::from_slice(bytes).map_err(|error| format!("{HEAD_KEY} is damaged: {error}"))
    }
}

/// The book of deeds.
#[derive(Debug)]
pub(crate) struct Audit {
    head: Head,
    chain: AuditChain,
    keep: u64,
    refusals: HashMap<String, Window>,
}

#[derive(Debug)]
struct Window {
    began_ms: u64,
    count: u32,
}

impl Audit {
    /// Goes on after the newest entry.
    pub(crate) fn load(head: Head, newest: Option<&AuditEntry>, keep: u64) -> Result<Self, String> {
        if newest.map_or(0, |entry| entry.seq) != head.seq {
            return Err(format!(
                "the newest entry of the audit trail should be {}, and is not there",
                head.seq
            ));
        }
        Ok(Self { head, chain: AuditChain::after(newest), keep, refusals: HashMap::new() })
    }

    /// Writes it down, unless its actor has been refused too often just now.
    pub(crate) fn write(&mut self, mut deed: AuditDraft, now_ms: u64, staged: &mut Staged) {
        if deed.outcome != AuditOutcome::Done {
            match self.count_refusal(&deed.actor, &deed.address, now_ms) {
                Some(0) => {}
                Some(unwritten) => {
                    deed.detail = format!("{} (and {unwritten} more refusals just before)", deed.detail);
                }
                None => return,
            }
        }
        let (key, entry) = self.chain.append(deed, now_ms);
        self.head.seq = entry.seq;
        staged.put_json(key, &entry);
        for _ in 0..TRIM_STEP {
            if self.head.seq - self.head.oldest >= self.keep {
                staged.delete(self::key(self.head.oldest));
                self.head.oldest += 1;
            }
        }
        staged.put_json(HEAD_KEY.to_owned(), &self.head);
    }

    /// None: do not write it. Otherwise how many were not written before it.
    fn count_refusal(&mut self, actor: &str, address: &str, now_ms: u64) -> Option<u32> {
        if self.refusals.len() >= ACTORS_MAX {
            self.refusals.retain(|_, window| now_ms.saturating_sub(window.began_ms) < WINDOW_MS);
        }
        // Strangers are told apart by their machine, not by their port.
        let machine = address.rsplit_once(':').map_or(address, |(machine, _)| machine);
        let who =
            if self.refusals.len() >= ACTORS_MAX { String::new() } else { format!("{actor} {machine}") };
        let window = self.refusals.entry(who).or_insert(Window { began_ms: now_ms, count: 0 });
        let mut unwritten = 0;
        if now_ms.saturating_sub(window.began_ms) >= WINDOW_MS {
            unwritten = window.count.saturating_sub(REFUSALS_IN_FULL);
            *window = Window { began_ms: now_ms, count: 0 };
        }
        window.count += 1;
        (window.count <= REFUSALS_IN_FULL).then_some(unwritten)
    }
}

/// The key of an entry.
pub(crate) fn key(seq: u64) -> String {
    format!("{PREFIX}{seq:0DIGITS$}")
}

/// Prefixes of keys, of a hundred entries each, that hold the entries from one to another.
pub(crate) fn prefixes(from: u64, to: u64) -> impl Iterator<Item = String> {
    (from / 100..=to / 100).map(|hundred| format!("{PREFIX}{hundred:0width$}", width = DIGITS - 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool::verify_audit;

    fn deed(actor: &str, outcome: AuditOutcome) -> AuditDraft {
        AuditDraft {
            actor: actor.into(),
            address: "10.0.0.1:1234".into(),
            action: "lease.create".into(),
            target: "lease/l-1".into(),
            outcome,
            detail: String::new(),
        }
    }

    fn begin(keep: u64) -> (Audit, Staged) {
        (Audit::load(Head::read(None).unwrap(), None, keep).unwrap(), Staged::default())
    }

    fn entries(staged: &Staged) -> Vec<AuditEntry> {
        let transaction = staged.transaction(pool_store::Condition::present("x"));
        let mut entries = Vec::new();
        for write in transaction.writes {
            if let pool_store::Write::Put { key, value } = write
                && key.starts_with(PREFIX)
            {
                entries.push(serde_json::from_slice(&value).unwrap());
            }
        }
        entries
    }

    #[test]
    fn the_chain_goes_on_after_a_restart_and_forgets_what_is_old() {
        let (mut audit, mut staged) = begin(3);
        for now_ms in 0..5 {
            audit.write(deed("ada", AuditOutcome::Done), now_ms, &mut staged);
        }
        let last = entries(&staged).pop().unwrap();
        assert!(Audit::load(audit.head, None, 3).is_err(), "an end without its entry is no end");
        let mut again = Audit::load(audit.head, Some(&last), 3).unwrap();
        again.write(deed("ada", AuditOutcome::Done), 6, &mut staged);
        let kept = entries(&staged);
        assert_eq!(kept.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [4, 5, 6]);
        assert_eq!(verify_audit(&kept), Ok(3));
    }

    #[test]
    fn who_is_refused_in_a_loop_does_not_fill_the_trail() {
        let (mut audit, mut staged) = begin(1000);
        for attempt in 0..1000 {
            audit.write(deed("anonymous", AuditOutcome::Denied), attempt, &mut staged);
        }
        audit.write(deed("ada", AuditOutcome::Denied), 999, &mut staged);
        audit.write(deed("anonymous", AuditOutcome::Denied), 1000, &mut staged);
        let written = entries(&staged);
        assert_eq!(written.len(), 7);
        assert!(written[6].detail.contains("995 more"), "{}", written[6].detail);
    }

    #[test]
    fn pages_are_found_by_prefix() {
        assert_eq!(prefixes(5, 99).collect::<Vec<_>>(), [format!("audit/{}", "0".repeat(18))]);
        assert_eq!(prefixes(99, 250).count(), 3);
        assert!(prefixes(99, 250).all(|prefix| prefix.len() == key(1).len() - 2));
    }
}
