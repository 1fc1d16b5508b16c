//! A clock that all processes of this machine share and that no program can set: time since boot, sleep included.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since boot, and which boot.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// Differs after a restart, when times from before mean nothing. Empty where the kernel does not tell.
    pub(super) boot: String,
}

impl Clock {
    pub(super) fn of_this_machine() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { boot: boot.trim().to_owned() }
    }

    pub(super) fn now_ms(&self) -> i64 {
        let now = clock_gettime(ClockId::Boottime);
        now.tv_sec * 1000 + now.tv_nsec / 1_000_000
    }
}

pub(super) fn as_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 2)
}
