//! Whether two agents speak as one machine: then its identity was copied.
//!
//! An agent that is started again speaks under a new name of its run. Of the run before, at most what was on its way
//! still arrives. When a run that was replaced goes on to say new things, in turns with the other, both are alive.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use pool::{About, AuditDraft, Command};
use pool_api::{AuditOutcome, EventKind, Name};
use pool_auth::Identity;

use crate::books::Books;
use crate::claim::Caller;

/// Turns that show that both runs are alive. An agent has two requests on their way at most, so a restart shows four.
const TURNS: usize = 6;

/// Within so long. Two agents that report once a second show it in a few seconds.
const WITHIN_MS: u64 = 60_000;

/// While it goes on, operators are told again after so long.
const AGAIN_AFTER_MS: u64 = 600_000;

/// Runs of one machine that are told apart.
const RUNS_MAX: usize = 4;

/// The agents that were heard last, of each machine.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    machines: HashMap<Identity, Machine>,
}

#[derive(Debug, Default)]
struct Machine {
    /// The latest at the end.
    runs: VecDeque<Run>,
    /// When a run spoke that had been replaced.
    turns: VecDeque<u64>,
    told_ms: Option<u64>,
}

#[derive(Debug)]
struct Run {
    name: String,
    sequence: u64,
    from: IpAddr,
}

impl Copies {
    /// Takes note of a report. Tells from where the other agent speaks when it is clear that there are two.
    pub(crate) fn hear(
        &mut self,
        who: &Identity,
        run: &str,
        sequence: u64,
        from: IpAddr,
        now_ms: u64,
    ) -> Option<IpAddr> {
        let machine = self.machines.entry(who.clone()).or_default();
        let known = machine.runs.iter().position(|known| known.name == run);
        let is_latest = known.is_some_and(|at| at + 1 == machine.runs.len());
        let before = known.and_then(|at| machine.runs.remove(at));
        let is_news = before.as_ref().is_none_or(|before| sequence > before.sequence);
        if let Some(before) = before.filter(|_| !is_news) {
            // Something old that came late, or the same once more, does not show that its agent is alive.
            machine.runs.insert(known.unwrap_or_default(), before);
            return None;
        }
        let other = machine.runs.back().map(|other| other.from);
        machine.runs.push_back(Run { name: run.to_owned(), sequence, from });
        if machine.runs.len() > RUNS_MAX {
            machine.runs.pop_front();
        }
        if known.is_none() || is_latest {
            return None;
        }
        machine.turns.push_back(now_ms);
        while machine.turns.front().is_some_and(|at| now_ms.saturating_sub(*at) > WITHIN_MS) {
            machine.turns.pop_front();
        }
        machine.turns.truncate(TURNS);
        let was_told = machine.told_ms.is_some_and(|at| now_ms.saturating_sub(at) < AGAIN_AFTER_MS);
        if machine.turns.len() < TURNS || was_told {
            return None;
        }
        machine.told_ms = Some(now_ms);
        machine.turns.clear();
        other
    }
}

/// Takes note of a report of a box or host, and tells operators and the audit trail when its identity was copied.
pub(crate) fn watch(books: &mut Books, caller: &Caller, run: &str, sequence: u64) {
    let (now_ms, here) = (books.now_ms, caller.address.ip());
    let Some(there) = books.copies.hear(&caller.identity, run, sequence, here, now_ms) else { return };
    let Ok(name) = Name::new(caller.identity.short_name()) else { return };
    let (kind, about) = match caller.identity {
        Identity::Host(_) => ("host", About::Host(name.clone())),
        _ => ("box", About::Box(name.clone())),
    };
    let message = format!(
        "two agents report in turns as {kind} {name}, from {there} and {here}: its identity was copied; \
         `dxpu {kind} revoke {name}`, then let the right one join again"
    );
    tracing::warn!(%message, "two agents report as one machine");
    let deed = AuditDraft {
        actor: caller.identity.to_string(),
        address: caller.address.to_string(),
        action: "access.copied".to_owned(),
        target: format!("{kind}/{name}"),
        outcome: AuditOutcome::Done,
        detail: message.clone(),
    };
    books.audit.write(deed, now_ms, &mut books.staged);
    // Never refused.
    let _ = books.apply(&Command::Tell { kind: EventKind::IdentityCopied, about, message });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn rack() -> Identity {
        Identity::Box("rack1-a".into())
    }

    #[test]
    fn two_that_speak_in_turns_are_seen_and_told_once() {
        let mut copies = Copies::default();
        let mut told = Vec::new();
        for sequence in 1..40 {
            let now_ms = sequence * 1000;
            told.extend(copies.hear(&rack(), "one", sequence, at(1), now_ms));
            told.extend(copies.hear(&rack(), "other", sequence, at(2), now_ms + 500));
        }
        assert_eq!(told.len(), 1, "{told:?}");
        let later_ms = 40_000 + AGAIN_AFTER_MS;
        for sequence in 40..80 {
            told.extend(copies.hear(&rack(), "one", sequence, at(1), later_ms + sequence));
            told.extend(copies.hear(&rack(), "other", sequence, at(2), later_ms + sequence));
        }
        assert_eq!(told.len(), 2, "told again while it goes on");
    }

    #[test]
    fn restarts_are_no_copies_however_late_the_last_words_come() {
        let mut copies = Copies::default();
        for restart in 0..20u64 {
            let (old, new) = (format!("run-{restart}"), format!("run-{}", restart + 1));
            let now_ms = restart * 100_000;
            let mut said = |run: &str, sequence| copies.hear(&rack(), run, sequence, at(1), now_ms);
            assert_eq!(said(&old, 50), None);
            // Both requests of the one that was killed arrive late, each after one of the new run, and twice.
            for (run, sequence) in
                [(&new, 1), (&old, 51), (&new, 2), (&old, 52), (&new, 3), (&old, 52), (&new, 3)]
            {
                assert_eq!(said(run, sequence), None, "{run} {sequence}");
            }
        }
    }

    #[test]
    fn machines_are_told_apart() {
        let mut copies = Copies::default();
        for sequence in 1..50 {
            assert_eq!(copies.hear(&rack(), "one", sequence, at(1), sequence), None);
            assert_eq!(
                copies.hear(&Identity::Host("rack1-a".into()), "other", sequence, at(2), sequence),
                None
            );
        }
    }
}
