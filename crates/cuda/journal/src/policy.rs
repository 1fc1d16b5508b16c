//! When to ask for the next cut. Times are those since some start, as arguments.
//!
//! A cut holds the program's work back for its pause, and its image keeps the network busy until it is safe. So the time
//! from a cut to the next grows with both. On the other side, all that came after the last safe cut is executed again at
//! a loss, and must be kept until then.

use std::time::Duration;

/// No two cuts are nearer to each other, however cheap they are: a resume takes about as long anyway.
const INTERVAL_MIN: Duration = Duration::from_millis(500);
/// A cut may hold work back for one part of this many of the time from it to the next: two per cent.
const PAUSES_PER_INTERVAL: u32 = 50;
/// Tenths of the last cut's time until it was safe: a little room is left between two of them.
const TENTHS_OF_TIME_TO_SAFE: u32 = 11;
/// How near to each other cuts may be when the journal is half full and should be emptied.
const HASTY_INTERVAL_MIN: Duration = Duration::from_millis(50);
/// After cuts that were given up, the interval is doubled this often at most: a program that lets its streams meet only
/// now and then is asked again, and one that never does is not disturbed for long.
const DOUBLINGS_MAX: u32 = 6;

/// What the policy must know about the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Where the stream of commands is.
    pub position: u64,
    /// Bytes that the journal holds.
    pub held_bytes: u64,
    /// Bytes that it may hold.
    pub budget_bytes: u64,
    /// How often the program has observed something, since the start.
    pub observations: u64,
}

impl Filled {
    fn is_half_full(&self) -> bool {
        self.held_bytes >= self.budget_bytes / 2
    }
}

/// What to do about the next cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutTurn {
    /// Ask for it now.
    Now,
    /// Its time has come: ask for it at the next good moment.
    Due,
    /// Ask for it after this time, if nothing changes.
    In(Duration),
    /// One is under way, or nothing was sent since the last one.
    Rest,
}

/// When to ask for the next cut.
#[derive(Clone, Debug)]
pub struct CutPolicy {
    interval_min: Duration,
    /// When the last cut was sent, and where in the stream of commands.
    last: Option<(Duration, u64)>,
    /// The program's results differ from run to run: what it observed is saved as soon as possible.
    is_careful: bool,
    /// Observations before the last cut.
    observed: u64,
    is_under_way: bool,
    pause: Duration,
    time_to_safe: Duration,
    /// Cuts that were given up since the last one that was not.
    given_up: u32,
    /// The next cut comes as soon as there is something to save.
    is_wanted: bool,
}

impl Default for CutPolicy {
    fn default() -> Self {
        Self {
            interval_min: INTERVAL_MIN,
            last: None,
            is_careful: false,
            observed: 0,
            is_under_way: false,
            pause: Duration::ZERO,
            time_to_safe: Duration::ZERO,
            given_up: 0,
            is_wanted: false,
        }
    }
}

impl CutPolicy {
    /// A policy with another shortest time from a cut to the next.
    pub fn with_interval(interval_min: Duration) -> Self {
        Self { interval_min, ..Self::default() }
    }

    /// What to do now.
    pub fn turn(&self, now: Duration, filled: Filled) -> CutTurn {
        let (last, position) = self.last.unwrap_or_default();
        if self.is_under_way || (filled.position == position && !self.is_wanted) {
            return CutTurn::Rest;
        }
        if self.is_wanted {
            return CutTurn::Now;
        }
        let due = last + self.interval(filled);
        match now >= due {
            true if filled.is_half_full() => CutTurn::Now,
            true => CutTurn::Due,
            false => CutTurn::In(due - now),
        }
    }

    fn interval(&self, filled: Filled) -> Duration {
        let of_safe = self.time_to_safe * TENTHS_OF_TIME_TO_SAFE / 10;
        let of_pause = self.pause * PAUSES_PER_INTERVAL;
        let doublings = 1 << self.given_up.min(DOUBLINGS_MAX);
        let hasty = HASTY_INTERVAL_MIN.min(self.interval_min).max(of_safe);
        let interval = match filled.is_half_full() {
            true => hasty,
            // What the program has observed and no image has may come differently the next time.
            false if self.is_careful && filled.observations > self.observed => hasty.max(of_pause),
            false => self.interval_min.max(of_pause).max(of_safe),
        };
        interval * doublings
    }

    /// The program's results differ from run to run: from now on a cut follows soon on what it observes. False: that is not
    /// new.
    pub fn be_careful(&mut self) -> bool {
        !std::mem::replace(&mut self.is_careful, true)
    }

    /// Whether a cut follows soon on what the program observes.
    pub fn is_careful(&self) -> bool {
        self.is_careful
    }

    /// A cut was sent; the stream of commands goes on behind it, and the journal is as `filled` says.
    pub fn sent(&mut self, now: Duration, filled: Filled) {
        self.last = Some((now, filled.position));
        self.observed = filled.observations;
        self.is_under_way = true;
        self.is_wanted = false;
    }

    /// It was taken, and held work back for `pause`.
    pub fn taken(&mut self, pause: Duration) {
        self.pause = pause;
    }

    /// Its image is safe.
    pub fn safe(&mut self, now: Duration) {
        self.time_to_safe = now.saturating_sub(self.last.map_or(now, |(at, _)| at));
        self.given_up = 0;
    }

    /// Its part of the journal is gone: the next one may come.
    pub fn truncated(&mut self) {
        self.is_under_way = false;
    }

    /// It was given up. What it would have saved waits for the next one.
    pub fn abandoned(&mut self) {
        self.is_under_way = false;
        self.given_up = self.given_up.saturating_add(1);
        self.observed = 0;
        if let Some((_, position)) = &mut self.last {
            *position = 0;
        }
    }

    /// Another session took over: what was under way is not any more, and the next cut comes soon.
    pub fn resumed(&mut self) {
        self.is_under_way = false;
        self.given_up = 0;
        self.observed = 0;
        self.is_wanted = true;
    }

    /// A cut is wanted before its time.
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    /// How often in a row a cut was given up.
    pub fn given_up(&self) -> u32 {
        self.given_up
    }

    /// How long the last cut held work back.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// How long the last cut took until it was safe.
    pub fn time_to_safe(&self) -> Duration {
        self.time_to_safe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u64 = 1000;

    fn at(position: u64, held_bytes: u64) -> Filled {
        Filled { position, held_bytes, budget_bytes: BUDGET, observations: 0 }
    }

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// A cut sent at `sent` that held work back for `pause` and was safe at `safe`, in milliseconds.
    fn cut(policy: &mut CutPolicy, sent: u64, pause: u64, safe: u64) {
        policy.sent(ms(sent), at(10, 0));
        policy.taken(ms(pause));
        policy.safe(ms(safe));
        policy.truncated();
    }

    #[test]
    fn the_first_cut_comes_when_something_was_sent_and_its_time_is_there() {
        let policy = CutPolicy::default();
        assert_eq!(policy.turn(ms(9000), at(0, 0)), CutTurn::Rest, "nothing was sent");
        assert_eq!(policy.turn(ms(100), at(1, 1)), CutTurn::In(ms(400)));
        assert_eq!(policy.turn(ms(500), at(1, 1)), CutTurn::Due);
    }

    #[test]
    fn the_interval_is_the_longest_of_the_three() {
        for (pause, safe, due) in [(1, 10, 500), (20, 10, 1000), (20, 2000, 2200)] {
            let mut policy = CutPolicy::default();
            cut(&mut policy, 1000, pause, 1000 + safe);
            assert_eq!(policy.turn(ms(1000), at(11, 1)), CutTurn::In(ms(due)), "{pause} {safe}");
            assert_eq!(policy.turn(ms(1000 + due), at(11, 1)), CutTurn::Due);
        }
    }

    #[test]
    fn none_is_asked_for_while_one_is_under_way_or_nothing_came_after_it() {
        let mut policy = CutPolicy::default();
        policy.sent(ms(500), at(10, 0));
        assert_eq!(policy.turn(ms(60_000), at(99, BUDGET)), CutTurn::Rest);
        policy.taken(ms(1));
        policy.safe(ms(600));
        assert_eq!(policy.turn(ms(60_000), at(99, BUDGET)), CutTurn::Rest, "safe and not truncated");
        policy.truncated();
        assert_eq!(policy.turn(ms(60_000), at(10, BUDGET)), CutTurn::Rest, "nothing was sent since");
        assert_eq!(policy.turn(ms(60_000), at(11, 0)), CutTurn::Due);
    }

    #[test]
    fn a_half_full_journal_is_cut_sooner_but_not_without_end() {
        let mut policy = CutPolicy::default();
        cut(&mut policy, 1000, 100, 1100);
        assert_eq!(policy.turn(ms(1100), at(11, BUDGET / 2 - 1)), CutTurn::In(ms(4900)));
        assert_eq!(policy.turn(ms(1100), at(11, BUDGET / 2)), CutTurn::In(ms(10)), "1.1 × 100 ms until safe");
        assert_eq!(policy.turn(ms(1110), at(11, BUDGET / 2)), CutTurn::Now);
    }

    #[test]
    fn what_was_given_up_is_tried_again_later_and_later() {
        let mut policy = CutPolicy::default();
        let mut intervals = Vec::new();
        for round in 0..9 {
            policy.sent(ms(1000), at(10, 0));
            policy.abandoned();
            assert_eq!(policy.given_up(), round + 1);
            // Nothing was sent since, and still it is tried: its part of the journal was not saved.
            let CutTurn::In(wait) = policy.turn(ms(1000), at(10, 1)) else { panic!("it is not tried again") };
            intervals.push(wait.as_millis());
        }
        assert_eq!(intervals, [1000, 2000, 4000, 8000, 16_000, 32_000, 32_000, 32_000, 32_000]);
        cut(&mut policy, 2000, 1, 2010);
        assert_eq!(policy.turn(ms(2000), at(11, 1)), CutTurn::In(ms(500)), "one that was taken forgives all");
    }

    #[test]
    fn a_careful_cut_follows_on_what_the_program_observed() {
        let mut policy = CutPolicy::default();
        cut(&mut policy, 1000, 0, 1010);
        let seen = |observations| Filled { observations, ..at(11, 1) };
        assert_eq!(policy.turn(ms(1000), seen(5)), CutTurn::In(ms(500)), "it is not careful yet");
        assert!(policy.be_careful() && !policy.be_careful());
        assert_eq!(policy.turn(ms(1000), seen(0)), CutTurn::In(ms(500)), "nothing was observed");
        assert_eq!(policy.turn(ms(1000), seen(5)), CutTurn::In(ms(50)));
        assert_eq!(policy.turn(ms(1050), seen(5)), CutTurn::Due);
        policy.sent(ms(1050), seen(5));
        policy.taken(ms(3));
        policy.safe(ms(1060));
        policy.truncated();
        assert_eq!(policy.turn(ms(1050), Filled { position: 12, ..seen(5) }), CutTurn::In(ms(500)), "saved");
        assert_eq!(
            policy.turn(ms(1050), Filled { position: 12, ..seen(6) }),
            CutTurn::In(ms(150)),
            "3 ms, 2 %"
        );
    }

    #[test]
    fn a_new_session_is_saved_soon_even_if_it_is_silent() {
        let mut policy = CutPolicy::default();
        policy.sent(ms(1000), at(10, 0));
        policy.resumed();
        assert_eq!(policy.turn(ms(1001), at(10, 1)), CutTurn::Now);
        policy.sent(ms(1001), at(20, 0));
        assert_eq!(policy.turn(ms(9000), at(30, 1)), CutTurn::Rest);
    }
}
