//! What a guest costs an online program's slowest requests, by a queue that is played through.
//!
//! Requests come at random and take the same time each (M/D/1). A request that finds the program idle also waits until the
//! guest's running group of kernels is over and the GPU has switched: once for each busy period. The model leaves out what
//! the first trial on a GPU also showed and that is not explained yet, so it is a lower bound.

use pool::SplitMix;

/// A switch between two programs' contexts, as measured on an H200.
pub const SWITCH_US: f64 = 130.0;

/// Requests that are played: the 99th percentile of so many is steady to about a percent.
const REQUESTS: usize = 40_000;

/// The 99th percentile of the latency beside a guest whose groups cost so much, as a multiple of the one without.
///
/// `load` below 1, `service_s` and the delay in seconds.
pub fn p99_ratio(load: f64, service_s: f64, delay_s: f64) -> f64 {
    p99(load, service_s, delay_s) / p99(load, service_s, 0.0)
}

fn p99(load: f64, service_s: f64, delay_s: f64) -> f64 {
    // The same arrivals in each run: what differs is the guest alone.
    let mut dice = SplitMix::new(7);
    let mut latencies = Vec::with_capacity(REQUESTS);
    let (mut now, mut free_at) = (0.0f64, 0.0f64);
    for _ in 0..REQUESTS {
        now += dice.exponential(service_s / load);
        let begins = if now >= free_at { now + delay_s } else { free_at };
        free_at = begins + service_s;
        latencies.push(free_at - now);
    }
    latencies.sort_unstable_by(f64::total_cmp);
    latencies[REQUESTS * 99 / 100]
}
