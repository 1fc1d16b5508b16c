//! When an online session closes the gate, and when it opens it.
//!
//! ```text
//!   Idle ── begin: a command that puts work into a stream ──▶ Busy          the gate closes before the driver is called
//!   Busy ── quiet: all work is done ──▶ Lingering ── the linger is over ──▶ Idle          the gate opens
//!                                       Lingering ── begin ──▶ Busy
//! ```
//!
//! The thread that asks the driver whether all work is done is another one than the thread that hands it work. So an
//! answer counts only if no command began since the question, and no question is asked while the driver is being told.

use crate::{
    linger::Linger,
    mutant::{Mutant, is_planted},
};

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PresenceState {
    /// It has no work; the gate is open as far as it is concerned.
    Idle,
    /// It has work.
    Busy,
    /// Its work was done at `since_ns`; the gate opens at `until_ns`.
    Lingering {
        /// When its work was done.
        since_ns: u64,
        /// When the gate opens.
        until_ns: u64,
    },
}

/// An online session's state.
#[derive(Clone, Debug)]
pub struct Presence {
    state: PresenceState,
    linger: Linger,
    /// Further time before the gate opens, by order of the governor.
    guard_ns: u64,
    /// How many commands the driver is being told right now.
    telling: u32,
    /// Counts commands that began.
    begun: u64,
    idle_since_ns: u64,
    /// How long there was no work before the last command.
    paused_ns: u64,
}

impl Presence {
    /// A session that has no work yet, between contexts of their own.
    pub fn new(now_ns: u64) -> Self {
        Self::with_linger(Linger::default(), now_ns)
    }

    /// A session that has no work yet, and learns its pauses with this.
    pub fn with_linger(linger: Linger, now_ns: u64) -> Self {
        Self {
            state: PresenceState::Idle,
            linger,
            guard_ns: 0,
            telling: 0,
            begun: 0,
            idle_since_ns: now_ns,
            paused_ns: 0,
        }
    }

    /// Where it stands.
    pub fn state(&self) -> PresenceState {
        self.state
    }

    /// Whether the gate is closed for it.
    pub fn is_closed(&self) -> bool {
        self.state != PresenceState::Idle
    }

    /// The governor's further time before the gate opens.
    pub fn set_guard(&mut self, guard_ns: u64) {
        self.guard_ns = guard_ns;
    }

    /// How long the longest group of offline work takes; 0: that is not known.
    pub fn set_longest_group(&mut self, ns: u64) {
        self.linger.set_longest_group(ns);
    }

    /// What it has learned of its pauses.
    pub fn linger(&self) -> &Linger {
        &self.linger
    }

    /// The driver is about to be told of work. True: close the gate first.
    pub fn begin(&mut self, now_ns: u64) -> bool {
        self.telling += 1;
        self.begun += 1;
        self.paused_ns = 0;
        let before = std::mem::replace(&mut self.state, PresenceState::Busy);
        let (since_ns, is_open) = match before {
            PresenceState::Busy => return false,
            PresenceState::Lingering { since_ns, .. } => (since_ns, false),
            PresenceState::Idle => (self.idle_since_ns, true),
        };
        self.paused_ns = now_ns.saturating_sub(since_ns);
        self.linger.pause(self.paused_ns);
        is_open
    }

    /// How long there was no work before the last command. Zero while there was some.
    pub fn paused_ns(&self) -> u64 {
        self.paused_ns
    }

    /// The driver was told.
    pub fn end(&mut self) {
        self.telling = self.telling.saturating_sub(1);
    }

    /// The number of a question to the driver whether all work is done. `None`: there is nothing to ask.
    pub fn question(&self) -> Option<u64> {
        let is_telling = self.telling > 0 && !is_planted(Mutant::AsksWhileTelling);
        (self.state == PresenceState::Busy && !is_telling).then_some(self.begun)
    }

    /// The driver's answer to that question was yes. True when it counts.
    pub fn quiet(&mut self, question: u64, now_ns: u64) -> bool {
        let is_current = question == self.begun || is_planted(Mutant::OldAnswerCounts);
        if !is_current || self.state != PresenceState::Busy {
            return false;
        }
        let linger_ns = if is_planted(Mutant::OpenWithoutLinger) { 0 } else { self.linger.ns() };
        let until_ns = now_ns.saturating_add(linger_ns).saturating_add(self.guard_ns);
        self.state = PresenceState::Lingering { since_ns: now_ns, until_ns };
        true
    }

    /// When [`Presence::is_due`] will be true, if nothing happens before.
    pub fn opens_at_ns(&self) -> Option<u64> {
        match self.state {
            PresenceState::Lingering { until_ns, .. } => Some(until_ns),
            _ => None,
        }
    }

    /// True, once, when the gate is to be opened.
    pub fn is_due(&mut self, now_ns: u64) -> bool {
        match self.state {
            PresenceState::Lingering { since_ns, until_ns } if now_ns >= until_ns => {
                self.state = PresenceState::Idle;
                self.idle_since_ns = since_ns;
                true
            }
            _ => false,
        }
    }
}
