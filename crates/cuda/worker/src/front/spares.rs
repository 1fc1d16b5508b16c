//! When the next session process is started. Pure.

use std::time::{Duration, Instant};

/// What there is, and what is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spares {
    /// Processes that are ready, or are being started.
    pub(super) ready: usize,
    pub(super) starting: usize,
    /// As many as should be ready; never fewer than are wanted, if there is room.
    pub(super) target: usize,
    /// Clients that wait for one.
    pub(super) wanted: usize,
    /// Processes that may be started at a time.
    pub(super) starting_max: usize,
    /// Not before: a process could not prepare itself.
    pub(super) pause_until: Option<Instant>,
    /// Not before, unless a client waits: a client has just come, and needs the cores.
    pub(super) rest_until: Option<Instant>,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Start,
    /// So long, unless something changes before.
    Wait(Duration),
    /// Until something changes.
    WaitForChange,
}

impl Spares {
    pub(super) fn next(self, now: Instant) -> Next {
        if self.ready >= self.target || self.starting >= self.starting_max {
            return Next::WaitForChange;
        }
        let rest_until = self.rest_until.filter(|_| self.ready > self.wanted);
        let not_before = self.pause_until.max(rest_until);
        match not_before.map(|until| until.saturating_duration_since(now)) {
            Some(left) if !left.is_zero() => Next::Wait(left),
            _ => Next::Start,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn one_is_missing() -> Spares {
        Spares {
            ready: 1,
            starting: 0,
            target: 2,
            wanted: 0,
            starting_max: 8,
            pause_until: None,
            rest_until: None,
        }
    }

    #[test]
    fn a_process_is_started_when_one_is_missing() {
        let now = Instant::now();
        assert_eq!(one_is_missing().next(now), Next::Start);
        assert_eq!(Spares { ready: 2, ..one_is_missing() }.next(now), Next::WaitForChange);
        assert_eq!(Spares { starting: 8, ..one_is_missing() }.next(now), Next::WaitForChange);
    }

    #[test]
    fn after_a_failure_the_next_one_is_started_when_the_pause_is_over_and_not_later() {
        let now = Instant::now();
        let paused = Spares { pause_until: Some(now + 200 * MS), ..one_is_missing() };
        assert_eq!(paused.next(now), Next::Wait(200 * MS));
        assert_eq!(Spares { wanted: 5, ..paused }.next(now + 150 * MS), Next::Wait(50 * MS));
        assert_eq!(paused.next(now + 200 * MS), Next::Start);
    }

    #[test]
    fn a_spare_is_replaced_later_unless_a_client_waits_for_it() {
        let now = Instant::now();
        let resting = Spares { rest_until: Some(now + 1000 * MS), ..one_is_missing() };
        assert_eq!(resting.next(now), Next::Wait(1000 * MS));
        assert_eq!(Spares { wanted: 1, ..resting }.next(now), Next::Start);
        let both = Spares { pause_until: Some(now + 200 * MS), ..resting };
        assert_eq!(both.next(now), Next::Wait(1000 * MS));
        assert_eq!(Spares { wanted: 1, ..both }.next(now), Next::Wait(200 * MS));
    }
}
