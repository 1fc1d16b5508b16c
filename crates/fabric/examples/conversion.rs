//! Prints what the conversion of a TLP costs, in nanoseconds: TLP to packet and back, both ends.

use fabric::{
    Protection,
    measure::{Conversion, conversion},
};
use std::time::Instant;

fn main() {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(200_000);
    println!("{:>10} {:>8} {:>6} {:>8}", "protection", "payload", "batch", "ns/TLP");
    for protection in [Protection::Plain, Protection::Encrypted] {
        for (payload_bytes, batch) in
            [(4, 1), (4, 16), (128, 1), (128, 16), (256, 1), (256, 16), (4096, 1), (4096, 8)]
        {
            let began = Instant::now();
            let what =
                Conversion { protection, payload_bytes, batch, rounds: rounds / batch, datagram_bytes: 8952 };
            let took = conversion(what, || began.elapsed());
            println!(
                "{:>10} {payload_bytes:>8} {batch:>6} {:>8}",
                format!("{protection:?}"),
                took.as_nanos()
            );
        }
    }
}
