//! The measurements, each a few short runs.

use super::report::{Clock, Conversion, Reads, Shell};
use anyhow::Context;
use bench_harness::copier::Copier;
use bench_harness::link::{self, Fairness};
use bench_harness::network::{
    Copy, copy_throughput, raw_round_trips, raw_throughput, read_round_trips, shm_pair, udp_pair,
    write_throughput,
};
use fabric::Protection;
use fabric_net::{MemoryPort, Port};
use pcie::SizeLimit;
use std::io;
use std::time::{Duration, Instant};

const TAGS: [u16; 5] = [32, 64, 140, 256, 768];
const READ_BYTES: [u32; 4] = [128, 256, 512, 4096];
const DELAYS_US: [f64; 3] = [4.9, 6.8, 20.0];
/// One cable of 100 Gbit/s.
const LINK_GBPS: f64 = 12.5;
/// Of the TLPs that are converted: the paper's GPU writes this much at a time.
const CONVERSION_BYTES: u32 = 128;
/// TLPs of each timed run: some of a millisecond, which a busy machine often leaves undisturbed.
const CONVERSION_TLPS: u32 = 2000;
/// Such runs for each of the caller's.
const CONVERSION_RUNS: u32 = 60;
const LEASES: u32 = 512;
const FAIRNESS_DATAGRAMS: u64 = 40_000;
/// The longest that one copy may take.
const COPY_TIME: Duration = Duration::from_millis(400);

pub(super) struct Bed {
    pub(super) repeat: u32,
    pub(super) rounds: usize,
    pub(super) bytes: u64,
    pub(super) spin: Duration,
}

fn median_us(sorted: &[Duration]) -> f64 {
    sorted.get(sorted.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
}

fn copier(tags: u16, read_bytes: u32) -> anyhow::Result<Copier> {
    let size = SizeLimit::new(read_bytes)?;
    Ok(Copier { tags, read_bytes: size, payload_bytes: size })
}

impl Bed {
    pub(super) fn conversion(&self) -> Conversion {
        errln!("measuring the conversion …");
        let best_ns = |protection, batch| {
            let what = link::Conversion {
                protection,
                payload_bytes: CONVERSION_BYTES,
                batch,
                rounds: CONVERSION_TLPS / batch,
                datagram_bytes: 8952,
            };
            let began = Instant::now();
            let run = |_| link::conversion(what, || began.elapsed());
            let best = (0..CONVERSION_RUNS * self.repeat).map(run).min();
            best.map_or(f64::NAN, |best| best.as_nanos() as f64)
        };
        Conversion {
            plain_ns: best_ns(Protection::Plain, 1),
            encrypted_ns: best_ns(Protection::Encrypted, 1),
            batched_ns: best_ns(Protection::Plain, 8),
            encrypted_batched_ns: best_ns(Protection::Encrypted, 8),
        }
    }

    pub(super) fn shells(&self) -> anyhow::Result<Vec<Shell>> {
        let folder = tempfile::tempdir().context("cannot make a folder for sockets")?;
        let shm = || shm_pair(tempfile::tempdir_in(&folder)?.path(), self.spin);
        Ok(vec![
            self.shell("udp", 8952, || udp_pair(self.spin))?,
            self.shell("shm", 32_768, shm)?,
            self.shell("memory", 32_768, || Ok(MemoryPort::pair(self.spin)))?,
        ])
    }

    /// Bare and served in turn, so that both meet the same moods of the machine.
    fn shell<P: Port + Send>(
        &self,
        name: &'static str,
        datagram_bytes: usize,
        pair: impl Fn() -> io::Result<(P, P)>,
    ) -> anyhow::Result<Shell> {
        errln!("measuring {name} …");
        let (plain, sealed) = (Protection::Plain, Protection::Encrypted);
        let how = copier(256, 4096)?;
        let copy = |kind| -> anyhow::Result<f64> {
            let rate = copy_throughput(pair()?, plain, datagram_bytes, how, kind, self.bytes, COPY_TIME)?;
            Ok(rate / 1e9)
        };
        let writes = self.bytes / 4096 / 4;
        let mut best: Option<Shell> = None;
        for _ in 0..self.repeat {
            let run = Shell {
                name,
                raw_rtt_us: median_us(&raw_round_trips(pair()?, 144, self.rounds)?),
                rtt_us: median_us(&read_round_trips(pair()?, plain, 64, self.rounds)?),
                rtt_encrypted_us: median_us(&read_round_trips(pair()?, sealed, 64, self.rounds)?),
                raw_gbps: raw_throughput(pair()?, datagram_bytes, self.bytes)? / 1e9,
                write_gbps: write_throughput(pair()?, plain, datagram_bytes, 4096, writes)? / 1e9,
                write_encrypted_gbps: write_throughput(pair()?, sealed, datagram_bytes, 4096, writes)? / 1e9,
                copier_write_gbps: copy(Copy::Write)?,
                copier_read_gbps: copy(Copy::Read)?,
                copier_push_gbps: copy(Copy::Push)?,
            };
            best = Some(best.map_or(run, |best| best.best_of(&run)));
        }
        best.context("no run was asked for")
    }

    pub(super) fn reads(&self) -> anyhow::Result<Vec<Reads>> {
        let mut rows = self.near_reads()?;
        for delay_us in DELAYS_US {
            errln!("measuring reads over {delay_us} us, in made-up time …");
            for read_bytes in READ_BYTES {
                let copies = sim::fabric::distant_reads(&TAGS, read_bytes, delay_us, LINK_GBPS);
                rows.extend(copies.iter().map(|copy| Reads {
                    clock: Clock::Virtual,
                    delay_us,
                    tags: copy.tags,
                    read_bytes,
                    rtt_us: copy.rtt_us,
                    link_gbps: copy.push_gbps,
                    read_gbps: copy.read_gbps,
                    push_gbps: copy.push_gbps,
                    write_gbps: copy.write_gbps,
                }));
            }
        }
        Ok(rows)
    }

    /// Without delay, over shared memory: here the round trip is what the proxies themselves take.
    fn near_reads(&self) -> anyhow::Result<Vec<Reads>> {
        let folder = tempfile::tempdir().context("cannot make a folder for sockets")?;
        let pair = || shm_pair(tempfile::tempdir_in(&folder)?.path(), self.spin);
        let bytes = self.bytes / 8;
        let mut rows = Vec::new();
        for read_bytes in READ_BYTES {
            errln!("measuring reads of {read_bytes} bytes without delay …");
            let copy = |tags, kind| -> anyhow::Result<f64> {
                let (plain, how) = (Protection::Plain, copier(tags, read_bytes)?);
                Ok(copy_throughput(pair()?, plain, 32_768, how, kind, bytes, COPY_TIME)? / 1e9)
            };
            // One tag: bytes of a read per round trip.
            let alone_gbps = copy(1, Copy::Read)?;
            let link_gbps = raw_throughput(pair()?, 32_768, self.bytes)? / 1e9;
            let (push_gbps, write_gbps) = (copy(256, Copy::Push)?, copy(256, Copy::Write)?);
            for tags in TAGS {
                rows.push(Reads {
                    clock: Clock::Real,
                    delay_us: 0.0,
                    tags,
                    read_bytes,
                    rtt_us: f64::from(read_bytes) / (alone_gbps * 1e3),
                    link_gbps,
                    read_gbps: copy(tags, Copy::Read)?,
                    push_gbps,
                    write_gbps,
                });
            }
        }
        Ok(rows)
    }

    pub(super) fn fairness(&self) -> Fairness {
        errln!("measuring fairness …");
        link::fairness(LEASES, FAIRNESS_DATAGRAMS)
    }
}
