//! Prints what each network costs, bare and under a link: round trips in microseconds (median), throughput in GB/s.
//!
//! `networks [ROUNDS [SPIN_US]]`. Two threads that spin need two cores of their own; on a busy machine spin for 0.

use bench_harness::copier::Copier;
use bench_harness::network::{
    Copy, copy_throughput, raw_round_trips, raw_throughput, read_round_trips, shm_pair, udp_pair,
    write_throughput,
};
use fabric::Protection;
use fabric_net::{MemoryPort, Port};
use pcie::SizeLimit;
use std::io;
use std::time::Duration;

fn median(sorted: &[Duration]) -> f64 {
    sorted.get(sorted.len() / 2).map_or(0.0, |time| time.as_nanos() as f64 / 1000.0)
}

fn row<P: Port + Send>(
    name: &str,
    rounds: usize,
    datagram_bytes: usize,
    pair: impl Fn() -> io::Result<(P, P)>,
) -> io::Result<()> {
    let (plain, sealed) = (Protection::Plain, Protection::Encrypted);
    let size = SizeLimit::new(4096).map_err(io::Error::other)?;
    let how = Copier { tags: 256, read_bytes: size, payload_bytes: size };
    let copy = |kind| {
        let longest = Duration::from_secs(1);
        copy_throughput(pair()?, plain, datagram_bytes, how, kind, 256 << 20, longest).map(|rate| rate / 1e9)
    };
    println!(
        "{name:6} {:>9.2} {:>12.2} {:>12.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2}",
        median(&raw_round_trips(pair()?, 144, rounds)?),
        median(&read_round_trips(pair()?, plain, 64, rounds)?),
        median(&read_round_trips(pair()?, sealed, 64, rounds)?),
        raw_throughput(pair()?, datagram_bytes, 50_000 * rounds as u64)? / 1e9,
        write_throughput(pair()?, plain, datagram_bytes, 4096, 10 * rounds as u64)? / 1e9,
        copy(Copy::Write)?,
        copy(Copy::Read)?,
        copy(Copy::Push)?,
    );
    Ok(())
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().unwrap_or(0));
    let rounds = arguments.next().unwrap_or(5000) as usize;
    let spin = Duration::from_micros(arguments.next().unwrap_or(200));
    let folder = tempfile::tempdir()?;
    println!("       raw us     read 64 B us   encrypted  raw GB/s  writes  copier: writes  reads  pushes");
    row("udp", rounds, 8952, || udp_pair(spin))?;
    row("shm", rounds, 32_768, || shm_pair(tempfile::tempdir_in(&folder)?.path(), spin))?;
    row("memory", rounds, 32_768, || Ok(MemoryPort::pair(spin)))
}
