//! `dxpu sim sharing`: online and offline programs of a recorded cluster on the same GPUs.

use crate::support::exit::{Exit, Failure, Outcome};
use sim::replay::read_classes;
use sim::sharing::{Cluster, Supply, table};
use std::path::PathBuf;

const EXAMPLES: &str = "\
The trace is the public cluster-trace-gpu-v2023 of Alibaba (openb_pod_list_NAME.csv). Its latency-sensitive pods (LS) are online \
programs, one on each GPU; its best-effort pods (BE) are offline programs that look for a seat. How busy they are is not \
recorded: it is drawn so that utilisation and memory before sharing are those published for MuxFlow's clusters.

Examples:
  A day of 10,000 GPUs, all policies:
      dxpu sim sharing --trace traces/openb
  With as many offline programs as recorded, instead of a queue that never runs empty:
      dxpu sim sharing --trace traces/openb --recorded-supply";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Sharing {
    /// The folder with the recorded cluster
    #[arg(long, value_name = "DIR")]
    trace: PathBuf,
    /// The list of pods: NAME of openb_pod_list_NAME.csv
    #[arg(long, value_name = "NAME", default_value = "default")]
    list: String,
    /// How many GPUs
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    gpus: u32,
    /// As many offline programs for each online one as recorded, instead of one for each GPU
    #[arg(long)]
    recorded_supply: bool,
    /// What is drawn is drawn from this
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

impl Sharing {
    pub(crate) fn run(self) -> Outcome {
        let pods = read_classes(&self.trace, &self.list).map_err(|error| {
            let hint = "check the folder and the files in it; `dxpu sim sharing --help` says what they are";
            Failure::new(Exit::Failure, "cannot use this trace", hint).because(error)
        })?;
        for qos in ["LS", "BE"] {
            if !pods.iter().any(|pod| pod.qos == qos) {
                let what = format!("the list {} has no pod of class {qos} with a GPU", self.list);
                return Err(Failure::new(Exit::Failure, what, "use the list `default`").into());
            }
        }
        let supply = if self.recorded_supply { Supply::Recorded } else { Supply::Plenty };
        let cluster = Cluster::draw(&pods, self.gpus as usize, supply, self.seed);
        outln!("{}", table(&cluster, processor_ms));
        Ok(Exit::Success)
    }
}

/// Processor time of this thread: what else the machine does is not in it.
fn processor_ms() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds / 1e6)
}
