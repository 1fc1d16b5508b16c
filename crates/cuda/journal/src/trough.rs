//! When the live bytes of a program are few: the place for a cut of live memory alone.
//!
//! ```text
//!   live │   ╭─╮      ╭─╮      ╭─╮             the curve of a training program: a step is a hill
//!        │ ╭─╯ │    ╭─╯ │    ╭─╯ │
//!        │─╯   ╰────╯   ╰────╯   ╰──  ≤ 1.1 × lowest
//!        └───────┼───────▲───────────▶
//!               due     cut
//! ```
//!
//! What the program allocates for good raises the curve, and then it never comes down to where it was. So after one period
//! of the curve the lowest of that period counts, and after a second the cut is taken wherever the curve is.

use std::time::Duration;

/// The longest wait for a trough: a cut that is late costs as much at a loss.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Tenths of the lowest count that are low enough.
const LOW_TENTHS: u64 = 11;

/// A wait for a trough. Times are those since some start, as arguments.
#[derive(Clone, Debug)]
pub struct Trough {
    since: Duration,
    /// The lowest that counts.
    lowest: u64,
    /// The lowest and the highest that was seen in this wait.
    seen: (u64, u64),
    hill: Hill,
}

/// Where the curve is on its way through a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hill {
    /// It has not been in its upper half yet.
    Before,
    /// It is in its upper half.
    Up,
    /// It has come down again.
    Down,
}

impl Trough {
    /// A cut is due. `lowest` is the lowest count since the last one.
    pub fn begin(now: Duration, lowest: u64) -> Self {
        Self { since: now, lowest, seen: (u64::MAX, 0), hill: Hill::Before }
    }

    /// Whether the cut is taken now, when so many bytes are live.
    pub fn is_here(&mut self, now: Duration, live: u64) -> bool {
        let (low, high) = (self.seen.0.min(live), self.seen.1.max(live));
        self.seen = (low, high);
        let is_up = live - low > (high - low) / 2;
        self.hill = match (self.hill, is_up) {
            (Hill::Before, true) => Hill::Up,
            (Hill::Up, false) => Hill::Down,
            // The second rise: the curve was everywhere once.
            (Hill::Down, true) => {
                self.lowest = self.lowest.max(low);
                Hill::Up
            }
            (hill, _) => hill,
        };
        live <= self.lowest.saturating_mul(LOW_TENTHS) / 10 || now.saturating_sub(self.since) >= WAIT_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// When a wait that begins at `due` is over, on a curve that is looked at every millisecond.
    fn taken(due: u64, lowest: u64, curve: impl Fn(u64) -> u64) -> u64 {
        let mut trough = Trough::begin(ms(due), lowest);
        (due..).find(|at| trough.is_here(ms(*at), curve(*at))).unwrap()
    }

    /// Steps of 60 ms: a hill of 50 ms on a floor.
    fn steps(floor: u64) -> impl Fn(u64) -> u64 {
        move |at| floor + if at % 60 < 50 { 100 * (at % 60).min(50 - at % 60) } else { 0 }
    }

    #[test]
    fn a_cut_waits_for_the_foot_of_the_hill() {
        assert_eq!(taken(600, 1000, steps(1000)), 600, "it is there");
        assert_eq!(taken(605, 1000, steps(1000)), 649, "within a tenth of the lowest");
        assert_eq!(taken(652, 1000, steps(1000)), 652);
        assert_eq!(taken(600, 1000, |_| 1000), 600, "a flat curve costs no wait");
    }

    #[test]
    fn what_was_allocated_for_good_costs_one_period() {
        let at = taken(615, 10, steps(1000));
        assert!((660..=720).contains(&at), "{at}: after the second rise, and before the third");
        assert!(steps(1000)(at) <= 1100);
    }

    #[test]
    fn a_curve_that_only_rises_is_cut_all_the_same() {
        assert_eq!(taken(500, 10, |at| at * 1000), 500 + WAIT_MAX.as_millis() as u64);
        assert_eq!(taken(500, 0, |_| 1), 1500, "nothing lived once");
    }

    #[test]
    fn a_trough_is_found_again_and_again_and_no_wait_is_too_long() {
        for due in 0..200 {
            for (period, floor) in [(7, 50), (60, 3000), (400, 1), (1700, 900)] {
                let curve = |at: u64| floor + if at % period < period / 2 { 10_000 } else { 0 };
                let at = taken(due, floor, curve);
                assert!(at - due <= WAIT_MAX.as_millis() as u64);
                assert!(period > 1000 || curve(at) == floor, "{due} {period}: cut on the hill at {at}");
            }
        }
    }
}
