//! Digests one block many times: `cargo run --release -p snapshot --example digest [MIB]`. Under callgrind it says how
//! many instructions a byte costs.

use snapshot::{BLOCK_BYTES, Key};

fn main() {
    let mib: usize = std::env::args().nth(1).and_then(|mib| mib.parse().ok()).unwrap_or(1024);
    let key = Key::from_seed(&[1; 32]);
    let mut block = vec![7; BLOCK_BYTES];
    let rounds = (mib << 20) / BLOCK_BYTES;
    let start = std::time::Instant::now();
    let mut all = 0;
    for round in 0..rounds {
        block[0] = round as u8;
        all = key.digest(&block).0.wrapping_add(all);
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{mib} MiB, {:.2} GB/s, {all:x}", (rounds * BLOCK_BYTES) as f64 / 1e9 / seconds);
}
