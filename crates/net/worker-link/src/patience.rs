//! Trying again when a worker says that it is not ready yet, and giving up in words.
//!
//! Pauses grow, and each is cut by chance: three hundred programs that start at once do not come back at once.

use crate::{Config, Failure, log};
use cuda_abi::CudaError;
use std::thread;
use std::time::{Duration, Instant};

/// How long to try, unless the configuration says otherwise. Longer than a worker takes to start a session, or than a
/// burst of short programs takes to pass; shorter than a user waits without asking why.
pub const PATIENCE_DEFAULT: Duration = Duration::from_secs(60);
/// How long a worker of a pool's box may be away: the box puts another in its place.
const AWAY_MAX: Duration = Duration::from_secs(15);
/// The first pause. A session process is ready soon after.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// No pause is longer, so that a place that comes free is soon taken.
const PAUSE_MAX: Duration = Duration::from_millis(1000);
/// A user that waits longer than this is told why.
const TOLD_AFTER: Duration = Duration::from_secs(3);

/// How long to pause before the next try.
#[derive(Debug)]
pub struct BackOff {
    pause: Duration,
}

impl Default for BackOff {
    fn default() -> Self {
        Self { pause: PAUSE_FIRST }
    }
}

impl BackOff {
    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        self.next(chance())
    }

    /// Between half of what it has grown to and all of it. `chance` is any number.
    fn next(&mut self, chance: u32) -> Duration {
        let half = self.pause / 2;
        self.pause = (2 * self.pause).min(PAUSE_MAX);
        half + half * (chance >> 16) / (1 << 16)
    }
}

/// Tries again for a while when the worker says that it is not ready yet. A worker of a pool's box may also be away for
/// a moment. Everything else is final.
pub fn patiently<T>(config: &Config, mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let (start, mut back_off, mut tries, mut is_told) = (Instant::now(), BackOff::default(), 0u32, false);
    loop {
        tries += 1;
        let failure = match attempt() {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        let patience = match failure.code() {
            CudaError::SYSTEM_NOT_READY => config.patience,
            CudaError::DEVICE_UNAVAILABLE if config.is_leased() => AWAY_MAX.min(config.patience),
            _ => return Err(failure),
        };
        let waited = start.elapsed();
        if waited >= patience {
            return Err(Failure::GivenUp { last: Box::new(failure), tries, waited });
        }
        if waited >= TOLD_AFTER && !std::mem::replace(&mut is_told, true) {
            log::warn(&format!("{failure}; trying again for {:.0} s at most", patience.as_secs_f64()));
        }
        let left = patience.saturating_sub(start.elapsed());
        thread::sleep(back_off.pause().min(left));
    }
}

/// Some number. Without a random source, the process and the clock.
fn chance() -> u32 {
    let mut bytes = [0; 4];
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(4) => u32::from_ne_bytes(bytes),
        _ => std::process::id().wrapping_mul(0x9e37_79b9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone() -> Config {
        crate::call::tests::config(&"tcp:127.0.0.1:1".parse().unwrap())
    }

    fn refused(code: CudaError, text: &str) -> Failure {
        Failure::Refused { address: "tcp:127.0.0.1:1".parse().unwrap(), code, text: text.to_owned() }
    }

    #[test]
    fn a_worker_that_is_not_ready_is_asked_again_and_one_that_refuses_is_not() {
        let alone = alone();
        let leased = Config { names: vec!["a.box.dxpu".to_owned()], ..alone.clone() };
        // How often a worker is asked that answers so, the third time well.
        let asked = |config: &Config, code| {
            let mut asked = 0;
            let answer = patiently(config, || {
                asked += 1;
                if asked < 3 { Err(refused(code, "")) } else { Ok(()) }
            });
            (asked, answer.is_ok())
        };
        assert_eq!(asked(&alone, CudaError::SYSTEM_NOT_READY), (3, true));
        assert_eq!(asked(&leased, CudaError::DEVICE_UNAVAILABLE), (3, true));
        assert_eq!(asked(&alone, CudaError::DEVICE_UNAVAILABLE), (1, false));
        assert_eq!(asked(&leased, CudaError::NOT_PERMITTED), (1, false));
    }

    #[test]
    fn giving_up_says_so() {
        let hasty = Config { patience: Duration::from_millis(200), ..alone() };
        let mut asked = 0;
        let never = patiently(&hasty, || -> Result<(), Failure> {
            asked += 1;
            Err(refused(CudaError::SYSTEM_NOT_READY, "all sessions are in use"))
        });
        let failure = never.unwrap_err();
        let text = failure.to_string();
        assert_eq!(failure.code(), CudaError::SYSTEM_NOT_READY);
        assert!(text.contains("all sessions are in use; given up after"), "{text}");
        assert!(text.contains("DXPU_PATIENCE") && asked > 1, "{text}");
    }

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        let (mut least, mut most) = (BackOff::default(), BackOff::default());
        let (mut low, mut high) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..12 {
            (low, high) = (least.next(0), most.next(u32::MAX));
            assert!(low < high && high <= PAUSE_MAX);
        }
        assert_eq!(low, PAUSE_MAX / 2);
        assert!(high > PAUSE_MAX - Duration::from_millis(10));
    }
}
