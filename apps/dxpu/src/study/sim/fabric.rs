//! `dxpu sim fabric`: PCIe packets through proxies and a network.

mod output;

use crate::support::exit::{Exit, Outcome};
use anyhow::Context;
use sim::fabric::{Constants, compare, core_knee, report};
use std::path::PathBuf;

const DETAILS: &str = "\
Every packet of a transfer is followed by discrete events through the product's own devices, ports and links, in made-up time: \
read tags, wires, the slots of a proxy, receivers' credits. The \
figures of the DxPU paper that the fabric decides are simulated with the paper's constants (where it publishes them; the others \
are named as assumed or chosen) and compared. Exit code 1 if a promised figure is missed. Each figure says what it rests \
on: by how many percent it moves for one percent of a constant, asked of a model that is faster and whose own figures stand beside.

Examples:
  The paper's figures:
      dxpu sim fabric
  For a program to read, with plots of Fig. 3, reads over distance and the knee:
      dxpu sim fabric --json --plot fabric.svg
  Other hardware: what larger read requests and more slots would do (nothing is judged then):
      dxpu sim fabric --mrs 512 --slots 512
  16 training GPUs behind 2 pairs of proxies:
      dxpu sim fabric --gpus 16 --proxies 2";

#[derive(clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Fabric {
    /// Reads that a GPU may have in flight
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=768))]
    tags: Option<u32>,
    /// Largest read request in bytes: 128, 256, 512, 1024, 2048 or 4096
    #[arg(long, value_parser = read_size)]
    mrs: Option<u32>,
    /// Packets that a proxy can have unacknowledged
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    slots: Option<u32>,
    /// The network's part of the round trip
    #[arg(long, value_name = "TIME", value_parser = crate::support::quantity::duration)]
    network_rtt: Option<std::time::Duration>,
    /// The conversions' part of the round trip
    #[arg(long, value_name = "TIME", value_parser = crate::support::quantity::duration)]
    conversion_rtt: Option<std::time::Duration>,
    /// Simulate only this many training GPUs
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    gpus: Option<u32>,
    /// Pairs of proxies that --gpus share
    #[arg(long, default_value_t = 1, requires = "gpus", value_parser = clap::value_parser!(u32).range(1..=256))]
    proxies: u32,
    /// Where the GPUs' starting times come from, with --gpus
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave out what the figures rest on, which takes most of the time
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Plot Fig. 3, reads over distance and the knee into this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

impl Fabric {
    pub(crate) fn run(self) -> Outcome {
        let constants = self.constants();
        if let Some(path) = &self.plot {
            std::fs::write(path, output::figure(&constants))
                .with_context(|| format!("cannot write the plot to {}", path.display()))?;
        }
        if let Some(gpus) = self.gpus {
            let rate = core_knee(&constants, gpus as usize, self.proxies as usize, self.seed);
            output::print_load(gpus, self.proxies, &rate, self.json)?;
            return Ok(Exit::Success);
        }
        let report = if self.quick { compare(&constants) } else { report(&constants) };
        let is_paper = constants == Constants::paper();
        if self.json {
            outln!("{}", serde_json::to_string_pretty(&output::object(&report, is_paper))?);
        } else {
            output::print(&report, is_paper);
        }
        if !is_paper {
            return Ok(Exit::Success);
        }
        for missed in &report.missed {
            errln!("missed: {missed}");
        }
        Ok(if report.missed.is_empty() { Exit::Success } else { Exit::Failure })
    }

    fn constants(&self) -> Constants {
        let paper = Constants::paper();
        let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
        Constants {
            tags: self.tags.map_or(paper.tags, f64::from),
            read_request_bytes: self.mrs.map_or(paper.read_request_bytes, f64::from),
            proxy_slots: self.slots.map_or(paper.proxy_slots, f64::from),
            network_rtt_us: self.network_rtt.map_or(paper.network_rtt_us, us),
            conversion_rtt_us: self.conversion_rtt.map_or(paper.conversion_rtt_us, us),
            ..paper
        }
    }
}

/// A size that PCIe knows.
fn read_size(text: &str) -> Result<u32, String> {
    let is_known = |size: &u32| [128, 256, 512, 1024, 2048, 4096].contains(size);
    text.parse().ok().filter(is_known).ok_or_else(|| "give 128, 256, 512, 1024, 2048 or 4096".to_owned())
}
