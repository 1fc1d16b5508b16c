//! Time as an argument: nanoseconds since whatever the caller began to count at.

use std::time::Duration;

/// A moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
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
}
