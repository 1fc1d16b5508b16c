//! Posted writes of 4 KiB from link to link, both ends on one thread, so that instructions can be counted:
//!
//! `valgrind --tool=callgrind writes udp|memory COUNT [encrypted] [apart]`, then the same with twice the count; the difference is
//! what the writes themselves cost. With `apart` each end is a thread, as in `networks`, for a profiler that samples.

use bench_harness::network::{udp_pair, write_throughput, writes_in_turn};
use fabric::Protection;
use fabric_net::MemoryPort;
use std::io;
use std::time::Duration;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = arguments.get(1).and_then(|count| count.parse().ok()).unwrap_or(10_000);
    let is_encrypted = arguments.iter().any(|argument| argument == "encrypted");
    let protection = if is_encrypted { Protection::Encrypted } else { Protection::Plain };
    if arguments.iter().any(|argument| argument == "apart") {
        let rate = write_throughput(udp_pair(Duration::from_micros(50))?, protection, 8952, 4096, count)?;
        println!("{:.2} GB/s", rate / 1e9);
        return Ok(());
    }
    let rate = match arguments.first().map(String::as_str) {
        Some("memory") => writes_in_turn(MemoryPort::pair(Duration::ZERO), protection, 32_768, 4096, count)?,
        _ => writes_in_turn(udp_pair(Duration::ZERO)?, protection, 8952, 4096, count)?,
    };
    println!("{:.2} GB/s", rate / 1e9);
    Ok(())
}
