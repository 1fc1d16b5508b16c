//! Time as an argument: nanoseconds since a beginning that only the caller knows.

use std::ops::{Add, AddAssign};
use std::time::Duration;

/// A moment. All moments that one value is told must have the same beginning; cores never look at a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The beginning.
    pub const ZERO: Self = Self(0);

    /// This long after the beginning. At the end of the range, 584 years later, time stands still.
    pub const fn at(since_beginning: Duration) -> Self {
        Self(0).after(since_beginning)
    }

    /// This much later.
    pub const fn after(self, wait: Duration) -> Self {
        // In 64 bits: half a thousand years are enough, and this is asked for every packet.
        let nanos = wait.as_secs().saturating_mul(1_000_000_000).saturating_add(wait.subsec_nanos() as u64);
        Self(self.0.saturating_add(nanos))
    }

    /// How long ago `earlier` was; zero when it was not.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This many milliseconds after the beginning.
    pub const fn from_millis(millis: u64) -> Self {
        Self::at(Duration::from_millis(millis))
    }

    /// This many seconds after the beginning.
    pub const fn from_secs(secs: u64) -> Self {
        Self::at(Duration::from_secs(secs))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        self.after(wait)
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, wait: Duration) {
        *self = self.after(wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_spans_add_up_and_never_wrap() {
        let moment = Time::from_millis(20) + Duration::from_micros(5);
        assert_eq!(moment, Time(20_005_000));
        assert_eq!(moment.since(Time::from_millis(20)), Duration::from_micros(5));
        assert_eq!(Time::from_secs(1).since(Time::from_secs(2)), Duration::ZERO);
        assert_eq!(Time(u64::MAX) + Duration::from_secs(1), Time(u64::MAX));
        assert_eq!(Time::at(Duration::MAX), Time(u64::MAX));
        let mut now = Time::ZERO;
        now += Duration::from_nanos(3);
        assert_eq!(now, Time(3));
    }
}
