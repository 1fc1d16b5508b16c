//! How long to look before sleeping.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// With one or two cores, whom we wait for needs the core we would burn.
const SPIN_MAX_FEW_CORES: Duration = Duration::from_micros(3);
/// A sleep and its wake-up cost 5 to 50 us; looking for longer than that would not pay.
const SPIN_MAX_MANY_CORES: Duration = Duration::from_micros(50);
/// Always look a little, to learn when it begins to pay again.
const SPIN_MIN: Duration = Duration::from_nanos(500);
/// Looks between two questions to the clock.
const LOOKS_PER_CLOCK: u32 = 32;

static SPIN_MAX: LazyLock<Duration> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores <= 2 { SPIN_MAX_FEW_CORES } else { SPIN_MAX_MANY_CORES }
});

/// Spins longer while that succeeds and shorter while it does not.
#[derive(Debug)]
pub(crate) struct Spinner {
    budget: Duration,
}

impl Spinner {
    pub(crate) fn new() -> Self {
        Self { budget: *SPIN_MAX }
    }

    /// Looks until `found` or the budget is spent. True when found.
    pub(crate) fn spin(&mut self, mut found: impl FnMut() -> bool) -> bool {
        let deadline = Instant::now() + self.budget;
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if found() {
                    self.budget = (self.budget * 2).min(*SPIN_MAX);
                    return true;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= deadline {
                self.budget = (self.budget / 2).max(SPIN_MIN);
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_falls_with_failure_and_rises_with_success() {
        let mut spinner = Spinner::new();
        let first = spinner.budget;
        for _ in 0..20 {
            assert!(!spinner.spin(|| false));
        }
        assert_eq!(spinner.budget, SPIN_MIN);
        for _ in 0..20 {
            assert!(spinner.spin(|| true));
        }
        assert_eq!(spinner.budget, first);
    }
}
