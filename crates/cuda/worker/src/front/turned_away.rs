//! How many clients were turned away, by reason: counted, and told now and then, so that strangers fill no log.
//!
//! Knows no clock: time is an argument.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// How long a reason that was told is only counted.
const TOLD_EVERY: Duration = Duration::from_secs(5);

/// Why a client was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It left before it had said what it wants.
    Left,
    /// It did not say what it wants in time.
    Slow,
    /// It had to make room for connections that came after it.
    Crowded,
    /// It does not begin, or go on, as a client of this version does.
    Malformed,
    /// Its TLS handshake failed.
    Tls,
    /// Its token does not open this worker.
    Token,
    /// It wanted a session or the devices' status and had no ticket for that.
    NoTicket,
    /// It wanted to join a session that is not there.
    NoSession,
    /// It was let in, and there was no session for it yet: it is to come again.
    Busy,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Left => "left before it said what it wants",
            Self::Slow => "did not say in time what it wants",
            Self::Crowded => "made room for others at a crowded door",
            Self::Malformed => "does not speak as a client does",
            Self::Tls => "its TLS handshake failed",
            Self::Token => "its token does not open this worker",
            Self::NoTicket => "had no ticket",
            Self::NoSession => "wanted to join a session that is not there",
            Self::Busy => "found no session free and is to come again",
        })
    }
}

/// The counts of a worker.
#[derive(Default)]
pub(crate) struct TurnedAway {
    reasons: BTreeMap<Reason, Count>,
}

#[derive(Default)]
struct Count {
    untold: u64,
    total: u64,
    told: Option<Instant>,
}

impl TurnedAway {
    /// One more.
    pub(crate) fn note(&mut self, reason: Reason) {
        let count = self.reasons.entry(reason).or_default();
        count.untold += 1;
        count.total += 1;
    }

    /// What is to be told now.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<(Reason, u64)> {
        let mut due = Vec::new();
        for (reason, count) in &mut self.reasons {
            if count.untold > 0 && count.told.is_none_or(|told| now >= told + TOLD_EVERY) {
                count.told = Some(now);
                due.push((*reason, std::mem::take(&mut count.untold)));
            }
        }
        due
    }

    /// When something will be due, if no further connection comes.
    pub(crate) fn next(&self) -> Option<Instant> {
        let untold = self.reasons.values().filter(|count| count.untold > 0);
        untold.filter_map(|count| count.told).map(|told| told + TOLD_EVERY).min()
    }

    /// All that were ever counted.
    pub(crate) fn totals(&self) -> Vec<(Reason, u64)> {
        self.reasons.iter().map(|(reason, count)| (*reason, count.total)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_at_once_and_a_thousand_more_as_one() {
        let (mut turned_away, start) = (TurnedAway::default(), Instant::now());
        turned_away.note(Reason::Token);
        assert_eq!(turned_away.due(start), [(Reason::Token, 1)]);
        for _ in 0..1000 {
            turned_away.note(Reason::Token);
            assert!(turned_away.due(start + Duration::from_secs(4)).is_empty());
        }
        turned_away.note(Reason::Left);
        assert_eq!(turned_away.due(start + Duration::from_secs(4)), [(Reason::Left, 1)]);
        assert_eq!(turned_away.next(), Some(start + TOLD_EVERY));
        assert_eq!(turned_away.due(start + TOLD_EVERY), [(Reason::Token, 1000)]);
        assert_eq!(turned_away.next(), None);
        assert_eq!(turned_away.totals(), [(Reason::Left, 1), (Reason::Token, 1001)]);
    }
}
