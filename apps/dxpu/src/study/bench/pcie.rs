//! `dxpu bench pcie`: what the PCIe plane costs beside the bare network it runs on.
//!
//! Absolute times say little on a busy machine. So bare and served are measured in turn, in short runs of which the best
//! counts: whatever disturbs only ever adds. Distance is made up, since the machine has none; the code that runs over it
//! is the product's.

mod measure;
mod report;

use crate::support::exit::{Exit, Outcome};
use crate::support::log;
use report::Report;
use std::time::Duration;

const DETAILS: &str = "\
What is measured:
  conversion  a TLP of 128 bytes into packets and back, both ends, with its acknowledgements and
              without a network: alone in its datagram, and with seven others
  shells      udp (loopback), shm (a ring), memory (two threads): the round trip of a read of 64
              bytes through both links beside that of a bare datagram; writes of 4 KiB beside
              bare datagrams; and what a device's copy engines move
  reads       tags x read size x added delay, beside Eq. 1 of the DxPU paper: tags x read size /
              round trip, or the link if that is less. Clock real: over shm, no delay. Clock
              virtual: the same devices, ports and links in made-up time, over a link of
              12.5 GB/s; push is what read avoidance gets in place of reads
  fairness    Jain's index of 512 leases through one pair of proxies

Examples:
  A table, on a machine that does nothing else:
      dxpu bench pcie
  For a program to read:
      dxpu bench pcie --json > pcie.json
  On a busy machine, where threads that spin only get in each other's way:
      dxpu bench pcie --spin-us 0 --repeat 9";

#[derive(clap::Args)]
#[command(after_help = DETAILS)]
pub(super) struct Pcie {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Short runs of each measurement; the best counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Round trips in each run
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    rounds: u32,
    /// Megabytes that each copy moves, if there is time
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    megabytes: u32,
    /// How long threads look for datagrams before they sleep, in microseconds
    #[arg(long, default_value_t = 200)]
    spin_us: u64,
    /// Fail if a mark is missed. Needs a machine that does nothing else
    #[arg(long)]
    check: bool,
}

impl Pcie {
    pub(super) fn run(self) -> Outcome {
        log::start("warn");
        let bed = measure::Bed {
            repeat: self.repeat,
            rounds: self.rounds as usize,
            bytes: u64::from(self.megabytes) << 20,
            spin: Duration::from_micros(self.spin_us),
        };
        let report = Report {
            conversion: bed.conversion(),
            shells: bed.shells()?,
            reads: bed.reads()?,
            fairness: bed.fairness(),
        };
        if self.json {
            outln!("{}", serde_json::to_string_pretty(&report.object())?);
        } else {
            report.print();
        }
        let missed = report.missed();
        for missed in &missed {
            errln!("missed: {missed}");
        }
        Ok(if self.check && !missed.is_empty() { Exit::Failure } else { Exit::Success })
    }
}
