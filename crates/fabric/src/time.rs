//! Time as an argument: nanoseconds since whatever the caller began to count at.

use std::time::Duration;

/// A moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// This much later.
    pub const fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait.as_nanos() as u64))
    }

    /// How long ago `earlier` was; zero when it was not.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
