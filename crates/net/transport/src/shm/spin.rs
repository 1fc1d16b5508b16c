//! How long to look before sleeping.

use std::io;
use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

/// With two cores, the thread we wait for may need the core we burn: a few microseconds, less than one sleep costs.
const SPIN_MAX_TWO_CORES: Duration = Duration::from_micros(8);
/// A sleep and its wake-up cost 5 to 50 us; looking for longer than that would not pay.
const SPIN_MAX_MANY_CORES: Duration = Duration::from_micros(50);
/// Looks between two questions to the clock.
const LOOKS_PER_CLOCK: u32 = 32;

static SPIN_MAX: LazyLock<Duration> = LazyLock::new(|| spin_max(thread::available_parallelism()));

fn spin_max(cores: io::Result<NonZeroUsize>) -> Duration {
    match cores.map_or(1, usize::from) {
        // Nothing can happen while we look.
        1 => Duration::ZERO,
        2 => SPIN_MAX_TWO_CORES,
        _ => SPIN_MAX_MANY_CORES,
    }
}

/// One wait in so many spins in full although the last ones found nothing, to learn when it begins to pay again.
const WAITS_PER_PROBE: u32 = 64;

/// Spins while spinning succeeds, and hardly while it does not: two threads on one core only delay each other by it. A
/// spinner made by `constant` spins for that time at every wait.
#[derive(Debug)]
pub(crate) struct Spinner {
    max: Duration,
    budget: Duration,
    waits: u32,
    is_constant: bool,
}

impl Spinner {
    pub(crate) fn new() -> Self {
        Self { max: *SPIN_MAX, budget: *SPIN_MAX, waits: 0, is_constant: false }
    }

    /// Spins for `spin` at every wait, whatever comes of it.
    pub(crate) fn constant(spin: Duration) -> Self {
        Self { max: spin, budget: spin, waits: 0, is_constant: true }
    }

    /// Polls until `found`; if the budget is over before that, calls `sleep`.
    pub(crate) fn wait<T>(
        &mut self,
        found: impl Fn() -> bool,
        as_found: T,
        sleep: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let budget = self.next_budget();
        let started = Instant::now();
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if found() {
                    self.budget = self.max;
                    return Ok(as_found);
                }
                std::hint::spin_loop();
            }
            if started.elapsed() >= budget {
                break;
            }
        }
        if !self.is_constant {
            self.budget /= 4;
        }
        sleep()
    }

    fn next_budget(&mut self) -> Duration {
        self.waits = self.waits.wrapping_add(1);
        if self.waits.is_multiple_of(WAITS_PER_PROBE) { self.max } else { self.budget }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_ends_the_spinning_and_success_brings_it_back() {
        let max = Duration::from_micros(8);
        let mut spinner = Spinner { max, budget: max, waits: 0, is_constant: false };
        for _ in 0..20 {
            spinner.wait(|| false, (), || Ok(())).unwrap();
        }
        assert_eq!(spinner.budget, Duration::ZERO);
        let budgets: Vec<_> = (0..WAITS_PER_PROBE).map(|_| spinner.next_budget()).collect();
        assert_eq!(budgets.iter().filter(|budget| **budget == max).count(), 1, "it probes now and then");
        spinner.wait(|| true, (), || Ok(())).unwrap();
        assert_eq!(spinner.budget, max);
    }

    #[test]
    fn who_was_told_how_long_to_spin_does_so_every_time() {
        let spin = Duration::from_micros(200);
        let mut spinner = Spinner::constant(spin);
        for _ in 0..5 {
            let started = Instant::now();
            spinner.wait(|| false, (), || Ok(())).unwrap();
            assert!(started.elapsed() >= spin);
        }
    }

    #[test]
    fn one_core_never_spins() {
        assert_eq!(spin_max(Ok(NonZeroUsize::MIN)), Duration::ZERO);
        assert!(spin_max(Ok(NonZeroUsize::new(2).unwrap())) <= Duration::from_micros(10));
    }

    #[test]
    fn what_is_found_is_found_without_a_sleep() {
        let mut spinner = Spinner::new();
        assert!(spinner.wait(|| true, true, || Ok(false)).unwrap());
        assert!(!spinner.wait(|| false, true, || Ok(false)).unwrap());
    }
}
