//! `dxpu inject`: the time that a network would add, put into a program on this machine's own GPU.

use crate::study::{pass_through, trace};
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::quantity;
use crate::support::table;
use anyhow::Context;
use model::equation::{PciePath, V100};
use serde_json::json;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use trace_log::injected::{Class, Injected, Share, injected};

const DETAILS: &str = "\
The experiment of the DxPU paper (section 3.4.2). What the network adds to a PCIe round trip, the round trip less that of a GPU in the
server, is added to the program's own work on its own GPU: every kernel, graph and memset waits for a filler kernel of that length on
its stream; a host-to-device copy waits for one of that length, or is slowed to tags x MRS / RTT (Eq. 1) if that takes longer; a
device-to-host copy waits for half of it. Fillers are calibrated so that they cost a busy queue what was asked; a filler cannot cost less
than a kernel of no length, and its launch costs the program a launch. What was asked and what was added is reported at the end, on
standard error. Nothing is added to work that is captured into a graph; the graph's launch waits once.

Examples:
  dxpu inject --rtt 8us -- python train.py
  dxpu inject --rtt 6.8us --tags 140 --mrs 128 --report injected.json -- ./program";

#[derive(clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Inject {
    /// Round trip of a PCIe read over the network
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    rtt: Duration,
    /// Round trip of a PCIe read in the server
    #[arg(long, value_name = "TIME", default_value = "1.2us", value_parser = quantity::duration)]
    native_rtt: Duration,
    /// Reads that the GPU may have in flight
    #[arg(long, default_value_t = V100.tags, value_parser = quantity::from_one_up)]
    tags: f64,
    /// Largest read request in bytes
    #[arg(long, default_value_t = V100.read_request_bytes, value_parser = quantity::from_one_up)]
    mrs: f64,
    /// Write what was injected to this file, too
    #[arg(long, value_name = "FILE.json")]
    report: Option<PathBuf>,
    /// Record what lies between cuProfilerStart and cuProfilerStop too, as `dxpu trace` does. For programs that switch injection
    /// off and on themselves (`dxpuInject`), to be compared with their own recording
    #[arg(long, value_name = "FILE", hide = true)]
    profile: Option<PathBuf>,
    /// The machine's libcuda.so.1, if it is not where the loader finds it
    #[arg(long, value_name = "FILE", env = "DXPU_DRIVER_LIBRARY")]
    driver: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Inject {
    pub(crate) fn run(self) -> Outcome {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let path = PciePath {
            tags: self.tags,
            read_request_bytes: self.mrs,
            native_rtt_us: us(self.native_rtt),
            ..V100
        };
        let rtt_us = us(self.rtt);
        if rtt_us <= 0.0 {
            return Err(
                Failure::new(Exit::Usage, "a round trip of nothing", "give --rtt a time, like 8us").into()
            );
        }
        let added_us = path.added_rtt_us(rtt_us);
        let mode = if self.profile.is_some() { "inject,trace" } else { "inject" };
        let variables = [
            ("DXPU_TRACE_MODE", mode.to_owned()),
            ("DXPU_TRACE_RANGE", "profiler".to_owned()),
            ("DXPU_INJECT_ADDED_NS", format!("{:.0}", added_us * 1e3)),
            ("DXPU_INJECT_READ_RATE", format!("{:.0}", path.tag_limited_gbps(rtt_us) * 1e9)),
        ];
        let ended = pass_through::run(&self.program, self.driver.as_deref(), &variables)?;
        let mut total = Injected::default();
        for log in &ended.logs {
            let one = injected(log);
            for (sum, share) in total.shares.iter_mut().zip(one.shares) {
                *sum = Share {
                    operations: sum.operations + share.operations,
                    asked_us: sum.asked_us + share.asked_us,
                    spent_us: sum.spent_us + share.spent_us,
                };
            }
            (total.filler_gpu_us, total.filler_host_us) = (one.filler_gpu_us, one.filler_host_us);
        }
        for process in &ended.unfinished {
            errln!("dxpu: what was injected is not known: {process}");
        }
        print(rtt_us, added_us, &total);
        let recorded = match &self.profile {
            Some(path) => trace::keep_all(&ended.logs, &self.program, path)?,
            None => Vec::new(),
        };
        if let Some(path) = &self.report {
            let mut said = object(rtt_us, added_us, &total, ended.unfinished.len());
            if self.profile.is_some() {
                said["profiles"] = recorded.into();
            }
            let text = serde_json::to_string_pretty(&said)?;
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        match ended.code() {
            0 => Ok(Exit::Success),
            code => std::process::exit(code),
        }
    }
}

/// Achieved against asked, in percent.
fn achieved_pct(share: &Share) -> f64 {
    100.0 * share.spent_us / share.asked_us.max(f64::MIN_POSITIVE)
}

fn print(rtt_us: f64, added_us: f64, injected: &Injected) {
    errln!("\ninjected for a round trip of {rtt_us} us, {added_us:.2} us more than in the server:");
    let delayed = || Class::ALL.into_iter().filter(|class| injected.shares[*class as usize].operations > 0);
    if delayed().next().is_none() {
        errln!("nothing: the program did nothing on the GPU that a network would delay");
        return;
    }
    let rows: Vec<Vec<String>> = delayed()
        .map(|class| {
            let share = &injected.shares[class as usize];
            vec![
                class.name().to_owned(),
                share.operations.to_string(),
                format!("{:.3}", share.asked_us / 1e3),
                format!("{:.3}", share.spent_us / 1e3),
                format!("{:.1} %", achieved_pct(share)),
            ]
        })
        .collect();
    eprint!("{}", table::figures(&["delayed", "operations", "asked, ms", "added, ms", "achieved"], &rows));
    errln!(
        "a filler of no length costs a busy queue {:.2} us, its launch the calling thread {:.2} us",
        injected.filler_gpu_us,
        injected.filler_host_us
    );
}

fn object(rtt_us: f64, added_us: f64, injected: &Injected, unfinished: usize) -> serde_json::Value {
    let shares = Class::ALL.into_iter().map(|class| {
        let share = &injected.shares[class as usize];
        json!({
            "class": class.name(),
            "operations": share.operations,
            "asked_us": share.asked_us,
            "added_us": share.spent_us,
        })
    });
    json!({
        "rtt_us": rtt_us,
        "added_rtt_us": added_us,
        "filler_gpu_us": injected.filler_gpu_us,
        "filler_host_us": injected.filler_host_us,
        "processes_unknown": unfinished,
        "injected": shares.collect::<Vec<_>>(),
    })
}
