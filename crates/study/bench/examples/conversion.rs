//! Prints what the conversion of a TLP costs, in nanoseconds of processor time: TLP to packet and back, both ends.
//!
//! `conversion [ROUNDS [plain|encrypted PAYLOAD BATCH]]`; with all arguments one line only, for a profiler.

use bench_harness::link::{Conversion, conversion};
use fabric::Protection;
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Processor time of this thread: on a busy machine the clock on the wall tells of others.
fn clock() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock").into()
}

fn measure(protection: Protection, payload_bytes: u32, batch: u32, rounds: u32) {
    let rounds = (rounds / batch).max(1);
    let what = Conversion { protection, payload_bytes, batch, rounds, datagram_bytes: 8952 };
    // The best of three: whatever disturbs only ever adds.
    let best = (0..3).map(|_| conversion(what, clock)).min().unwrap_or_default();
    println!("{:>10} {payload_bytes:>8} {batch:>6} {:>8}", format!("{protection:?}"), best.as_nanos());
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u32>().ok());
    let rounds = number(0).unwrap_or(200_000);
    println!("{:>10} {:>8} {:>6} {:>8}", "protection", "payload", "batch", "ns/TLP");
    if let (Some(protection), Some(payload), Some(batch)) = (arguments.get(1), number(2), number(3)) {
        let protection = if protection == "plain" { Protection::Plain } else { Protection::Encrypted };
        return measure(protection, payload, batch, rounds);
    }
    for protection in [Protection::Plain, Protection::Encrypted] {
        for payload in [4, 64, 128, 256, 4096] {
            for batch in [1, 8] {
                measure(protection, payload, batch, rounds);
            }
        }
    }
}
