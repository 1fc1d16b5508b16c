//! What the ledger costs as the pool grows.
//!
//! ```text
//! cargo run --release --package pool --example ledger_at_scale
//! ```

use std::time::Instant;

fn main() {
    let began = Instant::now();
    let mut clock_ns = || began.elapsed().as_nanos() as u64;
    for gpus in [512, 10_000, 100_000] {
        println!("{:#?}", pool::measure_ledger(gpus, 5_000, &mut clock_ns));
    }
}
