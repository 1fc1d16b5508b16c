//! The manager's clock.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The system's time now, which may jump: certificates are judged by it in handshakes, so they are dated by it. A machine
/// that was asleep for days has a [`Clock`] that is days behind.
pub(crate) fn system_now_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX / 2)
}

/// Milliseconds since 1970 that only go forward: read from the system's clock once, and never corrected afterwards.
///
/// A manager whose machine's clock is corrected by hours while it leads thus expires nothing early or late.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
    began_ms: u64,
}

impl Clock {
    /// Begins at the system's time.
    pub fn start() -> Self {
        Self { began: Instant::now(), began_ms: system_now_ms() }
    }

    /// Begins somewhere else: as on a machine whose clock is set wrong.
    pub fn starting_at(began_ms: u64) -> Self {
        Self { began: Instant::now(), began_ms }
    }

    /// Now.
    pub fn now_ms(&self) -> u64 {
        self.began_ms + u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX / 2)
    }
}
