//! Finds owners that died or froze while they kept the gate closed.
//!
//! Each offline session has a sentry. It trusts no clock but its own and no time that it did not see itself: a beat is
//! old when the count of beats stood still while the sentry looked. A machine that was suspended therefore clears
//! nothing: all processes stood still alike.

use crate::{
    mutant::{Mutant, is_planted},
    page::{Owner, Page, SLOTS, SlotOwner},
};

/// A bit that is set for this long has its owner looked up. A look costs a file of /proc.
const HELD_FOR_LOOK_NS: u64 = 100_000_000;
/// An owner whose beats stand still for this long is frozen. Owners beat ten times as often.
const FROZEN_AFTER_NS: u64 = 1_000_000_000;
/// The most that counts between two looks: longer, and the sentry itself was held up.
const GAP_MAX_NS: u64 = 50_000_000;

/// Whether a process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The same process is there.
    Alive,
    /// It is gone; its number may belong to another by now.
    Dead,
    /// It cannot be told, say in another process namespace. Its beats decide.
    Unknown,
}

impl Owner {
    /// What a look at the process table says: the start time of the process that has this number now, if there is one.
    pub fn life(self, start_ticks_found: Option<u64>) -> Life {
        match start_ticks_found {
            None => Life::Dead,
            Some(start) if start == self.start_ticks() || is_planted(Mutant::SentryIgnoresStartTime) => {
                Life::Alive
            }
            Some(_) => Life::Dead,
        }
    }
}

/// Why a bit was cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleared {
    /// The slot has no owner.
    Orphan(usize),
    /// The owner is gone.
    Dead(usize, Owner),
    /// The owner lives, and does nothing.
    Frozen(usize, Owner),
    /// A pause was not renewed.
    OldPause,
}

/// What was seen of an owner that keeps others waiting.
#[derive(Clone, Copy)]
pub(crate) struct Watched {
    owner: SlotOwner,
    beats: u64,
    /// For how long the bit was seen set.
    held_ns: u64,
    /// For how long the beats were seen standing still.
    still_ns: u64,
    /// When `held_ns` was, the last time the owner was looked up.
    looked_ns: u64,
}

/// One offline session's watch over the gate.
pub struct Sentry {
    watched: [Option<Watched>; SLOTS],
    last_look_ns: Option<u64>,
}

impl Default for Sentry {
    fn default() -> Self {
        Self { watched: [None; SLOTS], last_look_ns: None }
    }
}

impl std::fmt::Debug for Sentry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sentry").field("last_look_ns", &self.last_look_ns).finish_non_exhaustive()
    }
}

impl Sentry {
    /// Looks at the gate, and clears what the dead and the frozen left there. To be called again and again while the
    /// gate is closed; `life` is asked at most every 100 ms for each owner.
    pub fn look(&mut self, page: Page<'_>, now_ns: u64, mut life: impl FnMut(Owner) -> Life) -> Vec<Cleared> {
        let passed = passed_ns(&mut self.last_look_ns, now_ns);
        let mut cleared = Vec::new();
        if page.end_old_pause(now_ns) {
            cleared.push(Cleared::OldPause);
        }
        let closers = page.closers();
        for (slot, watched) in self.watched.iter_mut().enumerate() {
            if closers & 1 << slot == 0 {
                *watched = None;
                continue;
            }
            let (owner, beats) = (page.owner(slot), page.beats(slot));
            let seen = match watched {
                Some(seen) if seen.owner == owner => seen,
                _ => watched.insert(Watched::new(owner, beats)),
            };
            let verdict = seen.look(slot, beats, passed, &mut life);
            if let Some(verdict) = verdict
                && page.clear(slot, owner)
            {
                *watched = None;
                cleared.push(verdict);
            }
        }
        cleared
    }
}

/// What counts of the time between two looks.
pub(crate) fn passed_ns(last_look_ns: &mut Option<u64>, now_ns: u64) -> u64 {
    let passed = now_ns.saturating_sub(last_look_ns.replace(now_ns).unwrap_or(now_ns));
    if is_planted(Mutant::SentryTrustsItsPauses) { passed } else { passed.min(GAP_MAX_NS) }
}

impl Watched {
    pub(crate) fn new(owner: SlotOwner, beats: u64) -> Self {
        Self { owner, beats, held_ns: 0, still_ns: 0, looked_ns: 0 }
    }

    pub(crate) fn owner(&self) -> SlotOwner {
        self.owner
    }

    /// One more look, which found so many beats.
    pub(crate) fn look(
        &mut self,
        slot: usize,
        beats: u64,
        passed_ns: u64,
        life: &mut impl FnMut(Owner) -> Life,
    ) -> Option<Cleared> {
        self.held_ns += passed_ns;
        self.still_ns = if self.beats == beats { self.still_ns + passed_ns } else { 0 };
        self.beats = beats;
        self.verdict(slot, life)
    }

    fn verdict(&mut self, slot: usize, life: &mut impl FnMut(Owner) -> Life) -> Option<Cleared> {
        if self.held_ns < HELD_FOR_LOOK_NS {
            return None;
        }
        let SlotOwner::Process(owner) = self.owner else { return Some(Cleared::Orphan(slot)) };
        if is_planted(Mutant::StrangerClears) {
            return Some(Cleared::Dead(slot, owner));
        }
        if self.still_ns >= FROZEN_AFTER_NS && !is_planted(Mutant::SentryIgnoresBeats) {
            return Some(Cleared::Frozen(slot, owner));
        }
        if self.held_ns - self.looked_ns < HELD_FOR_LOOK_NS {
            return None;
        }
        self.looked_ns = self.held_ns;
        (life(owner) == Life::Dead).then_some(Cleared::Dead(slot, owner))
    }
}
