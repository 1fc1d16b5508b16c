//! Prints what each network costs, bare and under a link: round trips in microseconds (median), writes in GB/s.
//!
//! `networks [ROUNDS [SPIN_US]]`. Two threads that spin need two cores of their own; on a busy machine spin for 0.

use fabric::Protection;
use fabric_net::measure::{raw_round_trips, read_round_trips, shm_pair, udp_pair, write_throughput};
use std::io;
use std::time::Duration;

fn median(sorted: &[Duration]) -> f64 {
    sorted.get(sorted.len() / 2).map_or(0.0, |time| time.as_nanos() as f64 / 1000.0)
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().unwrap_or(0));
    let rounds = arguments.next().unwrap_or(5000) as usize;
    let spin = Duration::from_micros(arguments.next().unwrap_or(200));
    let writes = 10 * rounds as u64;
    let folder = tempfile::tempdir()?;
    let shm = || shm_pair(tempfile::tempdir_in(&folder)?.path(), spin);
    println!(
        "{:5} {:>10} {:>12} {:>14} {:>18}",
        "", "raw us", "read 64 B us", "encrypted us", "writes 4 KiB GB/s"
    );
    let row = |name: &str, raw: f64, plain: f64, sealed: f64, writes: f64| {
        println!("{name:5} {raw:>10.2} {plain:>12.2} {sealed:>14.2} {writes:>18.2}");
    };
    let (plain, sealed) = (Protection::Plain, Protection::Encrypted);
    row(
        "udp",
        median(&raw_round_trips(udp_pair(spin)?, 144, rounds)?),
        median(&read_round_trips(udp_pair(spin)?, plain, 64, rounds)?),
        median(&read_round_trips(udp_pair(spin)?, sealed, 64, rounds)?),
        write_throughput(udp_pair(spin)?, plain, 8952, 4096, writes)? / 1e9,
    );
    row(
        "shm",
        median(&raw_round_trips(shm()?, 144, rounds)?),
        median(&read_round_trips(shm()?, plain, 64, rounds)?),
        median(&read_round_trips(shm()?, sealed, 64, rounds)?),
        write_throughput(shm()?, plain, 32_768, 4096, writes)? / 1e9,
    );
    Ok(())
}
