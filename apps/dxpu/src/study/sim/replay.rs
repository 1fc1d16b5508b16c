//! `dxpu sim replay`: a recorded cluster through the pool's own placement.

mod figures;
mod report;
mod text;

use crate::support::exit::{Exit, Failure, Outcome};
use anyhow::Context;
use pool::Policy;
use sim::replay::{
    Effort, Extras, FailureProcess, PolicyResult, Repairs, SparePlan, SparesNeeded, Trace, map_in_parallel,
    replay_table, spares_needed,
};
use std::path::PathBuf;

/// The first seed of the published runs; further ones count up from it.
const SEED_FIRST: u64 = 42;

/// How long the recorded pods took to arrive. The replay itself knows no time; failures need some.
const TRACE_DAYS: f64 = 149.0;

const EXAMPLES: &str = "\
The trace is the public cluster-trace-gpu-v2023 of Alibaba (openb_node_list_gpu_node.csv and openb_pod_list_NAME.csv). Where \
the folder also has the results published with \"Beware of Fragmentation\" (fgd_published_*.csv), every column of every \
row is compared. All policies but random must come out equal; random draws from threads and can only come out near.

Examples:
  The published table, all policies, ten seeds:
      dxpu sim replay --trace traces/openb
  One policy of another list, for a program to read:
      dxpu sim replay --trace traces/openb --list gpushare40 --policy fgd --json
  What pooling gains, with plots:
      dxpu sim replay --trace traces/openb --pooled --plot replay.svg
  How many spares a pool needs so that a broken GPU is replaced at once 99.9 % of the time:
      dxpu sim replay --trace traces/openb --policy fgd --spares 99.9";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Replay {
    /// The folder with the recorded cluster
    #[arg(long, value_name = "DIR")]
    trace: PathBuf,
    /// The list of pods: NAME of openb_pod_list_NAME.csv
    #[arg(long, value_name = "NAME", default_value = "default")]
    list: String,
    /// random, dotprod, clustering, packing, bestfit, fgd, or all
    #[arg(long, default_value = "all", value_parser = policies)]
    policy: Policies,
    /// How many seeds, from 42 on; the published runs used ten
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Also with the coupling removed: the same GPUs in boxes, the same CPUs and memory in hosts
    #[arg(long)]
    pooled: bool,
    /// Also with spares for PERCENT of the time, while GPUs break; implies --pooled
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, default_missing_value = "99.9", value_parser = percent)]
    spares: Option<f64>,
    /// Failures of one GPU in a year, in percent; the replay with failures uses the highest
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "6.1,11.1", value_parser = rate)]
    failure_rate: Vec<f64>,
    /// Days until a broken GPU is back
    #[arg(long, value_name = "DAYS", default_value = "5", value_parser = days)]
    repair_days: f64,
    /// Sizes of pools, in GPUs, to count spares for
    #[arg(long, value_name = "GPUS", value_delimiter = ',', default_value = "512,6212,100000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pool_sizes: Vec<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Plot allocation and fragments over arrived load into this SVG file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// One policy, or all of them.
#[derive(Clone)]
struct Policies(Vec<Policy>);

fn policies(text: &str) -> Result<Policies, String> {
    match text {
        "all" => Ok(Policies(Policy::ALL.to_vec())),
        one => one
            .parse()
            .map(|policy| Policies(vec![policy]))
            .map_err(|error: pool::UnknownPolicy| error.to_string()),
    }
}

fn number_in(text: &str, from: f64, to: f64, say: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number| (from..=to).contains(number)).ok_or_else(|| say.to_owned())
}

/// A share of time: less than always, which no number of spares can promise. Zero means no spares.
fn percent(text: &str) -> Result<f64, String> {
    number_in(text, 0.0, 99.9999, "write a percentage from 0 to 99.9999, like 99.9")
}

fn rate(text: &str) -> Result<f64, String> {
    number_in(text, 0.01, 1000.0, "write a percentage a year from 0.01 to 1000, like 6.1")
}

fn days(text: &str) -> Result<f64, String> {
    number_in(text, 0.01, 3650.0, "write a number of days from 0.01 to 3650, like 5")
}

/// Spares at one failure rate, for pools of several sizes.
struct SparesAt {
    process: FailureProcess,
    needed: Vec<SparesNeeded>,
}

/// Everything that was found out.
struct Findings {
    trace: Trace,
    seeds: Vec<u64>,
    results: Vec<PolicyResult>,
    spare_plan: Option<SparePlan>,
    spares: Vec<SparesAt>,
}

impl Replay {
    pub(crate) fn run(self) -> Outcome {
        let trace = Trace::read(&self.trace, &self.list).map_err(|error| {
            let hint = "check the folder and the files in it; `dxpu sim replay --help` says what they are";
            Failure::new(Exit::Failure, "cannot replay this trace", hint).because(error)
        })?;
        let findings = self.find_out(trace);
        if let Some(path) = &self.plot {
            std::fs::write(path, figures::draw(&findings))
                .with_context(|| format!("cannot write the plot to {}", path.display()))?;
        }
        if self.json {
            outln!("{}", serde_json::to_string_pretty(&report::report(&findings))?);
        } else {
            text::print(&findings);
        }
        Ok(Exit::Success)
    }

    fn find_out(&self, trace: Trace) -> Findings {
        let seeds: Vec<u64> = (SEED_FIRST..SEED_FIRST + self.seeds).collect();
        let process = |rate: f64| FailureProcess {
            failures_per_gpu_year: rate / 100.0,
            repair_days: self.repair_days,
            repairs: Repairs::Exponential,
        };
        let worst = self.failure_rate.iter().copied().fold(0.0, f64::max);
        let spare_plan = self.spares.map(|cover| SparePlan {
            process: process(worst),
            cover: cover / 100.0,
            days: TRACE_DAYS,
        });
        let extras = Extras { pooled: self.pooled || self.spares.is_some(), failing: spare_plan };
        let results = replay_table(&trace, &self.policy.0, &seeds, extras);
        let processes: Vec<FailureProcess> = self.failure_rate.iter().map(|&rate| process(rate)).collect();
        let spares = self.spares.map_or_else(Vec::new, |cover| self.count_spares(&processes, cover / 100.0));
        Findings { trace, seeds, results, spare_plan, spares }
    }

    fn count_spares(&self, processes: &[FailureProcess], cover: f64) -> Vec<SparesAt> {
        let sizes = self.pool_sizes.iter().map(|&gpus| gpus as usize);
        // The longest work first, so that no processor is left with it at the end.
        let mut jobs: Vec<(usize, FailureProcess)> =
            sizes.flat_map(|gpus| processes.iter().map(move |&process| (gpus, process))).collect();
        jobs.sort_by_key(|&(gpus, _)| std::cmp::Reverse(gpus));
        let found = map_in_parallel(&jobs, |(gpus, process)| {
            spares_needed(process, *gpus, cover, &Effort::THOROUGH, SEED_FIRST)
        });
        let of = |wanted: &FailureProcess| {
            let pairs = jobs.iter().zip(&found).filter(|((_, process), _)| process == wanted);
            let mut needed: Vec<SparesNeeded> = pairs.map(|(_, needed)| *needed).collect();
            needed.sort_by_key(|needed| needed.gpus);
            SparesAt { process: *wanted, needed }
        };
        processes.iter().map(of).collect()
    }
}
