//! `dxpu model predict`: what a recorded program keeps at a distance.

mod output;

use super::unusable;
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::quantity;
use anyhow::Context;
use model::equation::{PciePath, V100};
use model::fitting::{fit, samples};
use model::paper::paper_rows;
use model::predict::{PcieCosts, PlaneKind, Question, curve_csv, predict};
use model::profile::{Filler, read};
use model::replay::{Api, Machine};
use std::path::PathBuf;
use std::time::Duration;

const DETAILS: &str = "\
A profile is a file of JSON lines: launches with their time on the GPU, copies by size and direction, waits. The program is \
replayed with the clocks of the client, the link and the GPU: native, and on the plane asked for. Performance kept is the \
one time over the other. Terms are what the program would gain if that cost did not exist; they overlap. Advice is only given \
with the figure that a replay of the changed program shows.

On the pcie plane the round trip is that of a PCIe read (1.2 us in a server; 6.8 us in the paper's build), and each operation \
loses what the formula of `dxpu model fit` says. `--pcie-cost injected` charges instead what latency injection into a local GPU \
does: a filler kernel per operation, on the GPU's time only.";

#[derive(Clone, Copy, clap::ValueEnum)]
enum Plane {
    /// PCIe packets travel
    Pcie,
    /// CUDA calls travel
    Api,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum PcieCost {
    /// As the paper's builds behaved
    Measured,
    /// As latency injected into a local GPU behaves
    Injected,
}

#[derive(clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Predict {
    /// The recorded program
    #[arg(long, value_name = "FILE")]
    profile: PathBuf,
    /// How the GPU is reached
    #[arg(long, value_enum)]
    plane: Plane,
    /// Round trip: of a PCIe read (pcie) or of a small message (api)
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    rtt: Duration,
    /// What the network carries each way: 100Gbit or 12.5GB
    #[arg(long, value_name = "RATE", default_value = "100Gbit", value_parser = gigabytes_a_second)]
    bandwidth: f64,
    /// Where the curve ends [default: 50us, or twice the round trip]
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    rtt_max: Option<Duration>,
    /// Write the curve of both planes to this file
    #[arg(long, value_name = "FILE.csv")]
    csv: Option<PathBuf>,
    /// Plot the curve of both planes into this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The program runs only forward passes or fused graphs, whose long kernels hide the distance (pcie)
    #[arg(long)]
    forward: bool,
    /// What an operation loses (pcie)
    #[arg(long, value_enum, default_value = "measured")]
    pcie_cost: PcieCost,
    /// What even the shortest filler kernel costs the GPU (pcie, injected) [default: as the profile says, or 2us]
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    filler: Option<Duration>,
    /// What its launch costs the program (pcie, injected) [default: as the profile says, or nothing]
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    filler_launch: Option<Duration>,
    /// Reads that the GPU may have in flight (pcie)
    #[arg(long, default_value_t = V100.tags, value_parser = quantity::from_one_up)]
    tags: f64,
    /// Largest read request in bytes (pcie)
    #[arg(long, default_value_t = V100.read_request_bytes, value_parser = quantity::from_one_up)]
    mrs: f64,
    /// Round trip of a PCIe read in the server (pcie)
    #[arg(long, value_name = "TIME", default_value = "1.2us", value_parser = quantity::duration)]
    native_rtt: Duration,
    /// What a one-way call costs the program (api)
    #[arg(long, value_name = "TIME", default_value = "0.4us", value_parser = quantity::duration)]
    call: Duration,
    /// What a call that only asks for state costs the program (api)
    #[arg(long, value_name = "TIME", default_value = "0.009us", value_parser = quantity::duration)]
    local_call: Duration,
    /// What it costs the worker to issue a call (api) [default: as long as it took the program itself]
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    dispatch: Option<Duration>,
}

/// What a kernel of no length costs a busy queue, roughly, where it was not measured.
const FILLER_US: f64 = 2.0;
/// Points of the curve.
const CURVE_POINTS: u32 = 50;

impl Predict {
    pub(crate) fn run(self) -> Outcome {
        let bytes = std::fs::read(&self.profile).map_err(|error| {
            let what = format!("cannot read {}", self.profile.display());
            Failure::new(Exit::Failure, what, "check the file's name").because(error)
        })?;
        let profile = read(&bytes).map_err(|error| {
            unusable(&self.profile, error, "record the program again: a part of a profile is not used")
        })?;
        let filler = profile.measured.as_ref().and_then(|measured| measured.filler);
        let question = self.question(filler);
        let prediction = predict(&profile, &question);
        if let Some(path) = &self.csv {
            std::fs::write(path, curve_csv(&prediction.curve))
                .with_context(|| format!("cannot write the curve to {}", path.display()))?;
        }
        if let Some(path) = &self.plot {
            std::fs::write(path, output::figure(&profile, &question, &prediction))
                .with_context(|| format!("cannot write the plot to {}", path.display()))?;
        }
        if self.json {
            outln!("{}", serde_json::to_string_pretty(&output::object(&profile, &question, &prediction))?);
        } else {
            output::print(&profile, &question, &prediction);
        }
        Ok(Exit::Success)
    }

    fn question(&self, filler: Option<Filler>) -> Question {
        let path = PciePath {
            tags: self.tags,
            read_request_bytes: self.mrs,
            native_rtt_us: us(self.native_rtt),
            ..V100
        };
        let rtt_us = us(self.rtt);
        let rtt_max_us = self.rtt_max.map_or((2.0 * rtt_us).max(50.0), us);
        let step_us = rtt_max_us / f64::from(CURVE_POINTS);
        let mut curve_rtts_us: Vec<f64> =
            (1..=CURVE_POINTS).map(|point| f64::from(point) * step_us).collect();
        if rtt_us <= rtt_max_us && !curve_rtts_us.contains(&rtt_us) {
            curve_rtts_us.push(rtt_us);
            curve_rtts_us.sort_by(f64::total_cmp);
        }
        Question {
            plane: match self.plane {
                Plane::Pcie => PlaneKind::Pcie,
                Plane::Api => PlaneKind::Api,
            },
            rtt_us,
            bandwidth_gbps: self.bandwidth,
            curve_rtts_us,
            path,
            parameters: fit(&V100, &samples(&paper_rows()).0),
            pcie_costs: match self.pcie_cost {
                PcieCost::Measured => PcieCosts::Measured,
                PcieCost::Injected => PcieCosts::Injected {
                    filler_us: self.filler.map_or(filler.map_or(FILLER_US, |filler| filler.gpu_us), us),
                    host_us: self.filler_launch.map_or(filler.map_or(0.0, |filler| filler.host_us), us),
                },
            },
            long_kernels_only: self.forward,
            api: Api {
                call_us: us(self.call),
                local_call_us: us(self.local_call),
                dispatch_us: self.dispatch.map(us),
                ..Api::as_measured(rtt_us, self.bandwidth)
            },
            machine: Machine::default(),
        }
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// `100Gbit`, `12.5GB`, `900MB`, each with or without `/s`.
fn gigabytes_a_second(text: &str) -> Result<f64, String> {
    let text = text.strip_suffix("/s").unwrap_or(text);
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = (text[..at].trim(), &text[at..]);
    let gigabytes = match unit {
        "Gbit" => 1.0 / 8.0,
        "Mbit" => 1e-3 / 8.0,
        "GB" => 1.0,
        "MB" => 1e-3,
        _ => return Err("write a number and Gbit, Mbit, GB or MB, like 100Gbit".to_owned()),
    };
    let rate = number.parse::<f64>().ok().map(|number| number * gigabytes);
    let rate = rate.filter(|rate| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "write a rate above 0, like 100Gbit".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_written_as_people_do() {
        for (text, expected) in [("100Gbit", 12.5), ("12.5GB/s", 12.5), ("800 Mbit/s", 0.1), ("900MB", 0.9)] {
            assert_eq!(gigabytes_a_second(text), Ok(expected), "{text}");
        }
        for text in ["", "100", "0Gbit", "-1GB", "1GiB", "nanGB"] {
            assert!(gigabytes_a_second(text).is_err(), "{text}");
        }
    }
}
