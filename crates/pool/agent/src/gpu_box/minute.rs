//! What the online programs of a GPU did in the last minute, for the report of its seat.
//!
//! The page says of online sessions how long they had work and how often they began to. Of offline sessions it counts groups, which say
//! nothing about time: how busy a guest would keep the GPU alone is not known, and not reported.

use pool_api::SeatLoad;
use std::collections::VecDeque;

/// As many seconds as the monitor of the seat takes the mean of.
const SECONDS: usize = 60;
/// Fewer say more about the moment than about the program.
const SECONDS_MIN: usize = 10;

/// What one second has shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Second {
    /// Whether an online session is there at all.
    pub(super) has_online: bool,
    /// The share of the busiest of them, in thousandths.
    pub(super) busy_milli: u32,
    /// How often they began to have work, in thousandths of a time.
    pub(super) periods_milli: u32,
}

/// The last seconds.
#[derive(Debug, Default)]
pub(super) struct Minute(VecDeque<Second>);

impl Minute {
    /// A second has passed. An online program that comes after a minute without one begins anew: the empty minute before it says
    /// nothing about it.
    pub(super) fn second(&mut self, second: Second) {
        let was_empty = self.0.iter().all(|before| !before.has_online);
        if second.has_online && was_empty {
            self.0.clear();
        }
        if self.0.len() == SECONDS {
            self.0.pop_front();
        }
        self.0.push_back(second);
    }

    /// The mean, if there are enough seconds for one.
    pub(super) fn load(&self) -> Option<SeatLoad> {
        if self.0.len() < SECONDS_MIN {
            return None;
        }
        let mean = |of: fn(&Second) -> u32| {
            let sum: u64 = self.0.iter().map(|second| u64::from(of(second))).sum();
            u32::try_from(sum / self.0.len() as u64).unwrap_or(u32::MAX)
        };
        Some(SeatLoad {
            online_busy_milli: mean(|second| second.busy_milli).min(1000),
            online_periods_milli: mean(|second| second.periods_milli).min(SeatLoad::PERIODS_MILLI_MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: &[(usize, Second)]) -> Option<(u32, u32)> {
        let mut minute = Minute::default();
        for &(count, second) in seconds {
            (0..count).for_each(|_| minute.second(second));
        }
        minute.load().map(|load| (load.online_busy_milli, load.online_periods_milli))
    }

    #[test]
    fn the_mean_is_of_the_last_minute_and_of_ten_seconds_at_least() {
        let none = Second::default();
        let half = Second { has_online: true, busy_milli: 500, periods_milli: 192_000 };
        let full = Second { busy_milli: 1000, periods_milli: 0, ..half };
        assert_eq!(after(&[(9, none)]), None);
        assert_eq!(after(&[(10, none)]), Some((0, 0)), "no online program is there");
        assert_eq!(after(&[(10, half)]), Some((500, 192_000)));
        assert_eq!(after(&[(30, full), (30, half)]), Some((750, 96_000)));
        assert_eq!(after(&[(600, full), (60, half)]), Some((500, 192_000)));
    }

    #[test]
    fn a_program_that_comes_is_not_measured_by_the_time_before_it() {
        let none = Second::default();
        let half = Second { has_online: true, busy_milli: 500, periods_milli: 100_000 };
        assert_eq!(after(&[(100, none), (9, half)]), None);
        assert_eq!(after(&[(100, none), (10, half)]), Some((500, 100_000)));
        // One that is started again and again, with pauses, is one program.
        assert_eq!(after(&[(30, half), (15, none), (15, half)]), Some((375, 75_000)));
    }
}
