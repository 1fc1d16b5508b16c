//! The paths of a link: which one is used, and when another takes its place.
//!
//! ```text
//!           several timeouts in a row, and another path is up
//!      up ────────────────────────────────────────────────────▶ down
//!       ▲                                                        │ pinged now and then
//!       └────────────────────────── answered ────────────────────┘
//! ```

use std::time::Duration;
use units::{PathId, Time};

/// Timeouts, and what follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    pub(crate) timeout_min: Duration,
    pub(crate) timeout_max: Duration,
    pub(crate) failover_after: u32,
    pub(crate) ping_every: Duration,
}

#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) id: PathId,
    pub(crate) is_up: bool,
    smoothed: Option<Duration>,
    variation: Duration,
    timeout: Duration,
    /// In a row.
    timeouts: u32,
    next_ping: Time,
}

impl Path {
    /// How long to wait for an answer.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Is asked for far more often than it changes.
    fn set_timeout(&mut self, patience: &Patience) {
        let base = match self.smoothed {
            Some(smoothed) => smoothed + 4 * self.variation,
            None => 4 * patience.timeout_min,
        };
        let patient = base.max(patience.timeout_min) * (1 << self.timeouts.min(16));
        self.timeout = patient.min(patience.timeout_max);
    }

    fn sample(&mut self, took: Duration) {
        match self.smoothed {
            None => (self.smoothed, self.variation) = (Some(took), took / 2),
            Some(smoothed) => {
                self.variation = (3 * self.variation + smoothed.abs_diff(took)) / 4;
                self.smoothed = Some((7 * smoothed + took) / 8);
            }
        }
    }
}

/// What a look at the paths found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Up(PathId),
    Down(PathId),
}

#[derive(Debug)]
pub(crate) struct Paths {
    all: Vec<Path>,
    active: usize,
    has_down: bool,
}

impl Paths {
    /// At least one.
    pub(crate) fn new(ids: &[PathId], patience: &Patience) -> Self {
        let path = |id: &PathId| {
            let mut path = Path {
                id: *id,
                is_up: true,
                smoothed: None,
                variation: Duration::ZERO,
                timeout: Duration::ZERO,
                timeouts: 0,
                next_ping: Time(0),
            };
            path.set_timeout(patience);
            path
        };
        Self { all: ids.iter().map(path).collect(), active: 0, has_down: false }
    }

    pub(crate) fn contains(&self, id: PathId) -> bool {
        self.all.iter().any(|path| path.id == id)
    }

    pub(crate) fn active(&self) -> &Path {
        &self.all[self.active]
    }

    /// The next one in turn, for greetings, which do not know yet which works.
    pub(crate) fn nth(&self, turn: u32) -> PathId {
        self.all[turn as usize % self.all.len()].id
    }

    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.active().smoothed
    }

    /// Something that went out over `id` was answered after `took`.
    pub(crate) fn on_answer(&mut self, id: PathId, took: Duration, patience: &Patience) -> Option<Change> {
        let path = self.all.iter_mut().find(|path| path.id == id)?;
        path.sample(took);
        path.timeouts = 0;
        path.set_timeout(patience);
        let was_up = std::mem::replace(&mut path.is_up, true);
        self.has_down = self.all.iter().any(|path| !path.is_up);
        (!was_up).then_some(Change::Up(id))
    }

    /// Nothing was heard for a timeout.
    pub(crate) fn on_timeout(&mut self, now: Time, patience: &Patience) -> Option<Change> {
        let path = &mut self.all[self.active];
        path.timeouts += 1;
        path.set_timeout(patience);
        if path.timeouts < patience.failover_after {
            return None;
        }
        let id = path.id;
        let count = self.all.len();
        // The next one that is up; where none is, the next one at all: one of them may have come back.
        let others = (1..count).map(|step| (self.active + step) % count);
        let next = others.clone().find(|other| self.all[*other].is_up).or(others.clone().next())?;
        let was_up = std::mem::replace(&mut self.all[self.active].is_up, false);
        self.has_down = true;
        self.all[self.active].next_ping = now.after(patience.ping_every);
        self.active = next;
        self.all[next].timeouts = 0;
        self.all[next].set_timeout(patience);
        was_up.then_some(Change::Down(id))
    }

    pub(crate) fn has_down(&self) -> bool {
        self.has_down
    }

    /// When a path that is down should be asked again.
    pub(crate) fn next_ping(&self) -> Option<Time> {
        if !self.has_down {
            return None;
        }
        let is_waiting = |(at, path): &(usize, &Path)| !path.is_up && *at != self.active;
        self.all.iter().enumerate().filter(is_waiting).map(|(_, path)| path.next_ping).min()
    }

    /// A path whose time for a ping has come.
    pub(crate) fn take_ping(&mut self, now: Time, patience: &Patience) -> Option<PathId> {
        if !self.has_down {
            return None;
        }
        let active = self.active;
        let mut waiting = self.all.iter_mut().enumerate();
        let (_, path) = waiting.find(|(at, path)| !path.is_up && *at != active && path.next_ping <= now)?;
        path.next_ping = now.after(patience.ping_every);
        Some(path.id)
    }
}
