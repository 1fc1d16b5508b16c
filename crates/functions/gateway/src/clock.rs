//! Milliseconds since 1970 that never go back.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Started once; later changes of the machine's clock do not reach it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    began: Instant,
    began_ms: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { began: Instant::now(), began_ms: wall_ms() }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.began_ms + u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX / 2)
    }
}

/// What the machine's clock says now: signatures are checked against it.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX / 2)
}
