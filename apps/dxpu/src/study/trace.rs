//! `dxpu trace`: runs a program on this machine's own GPU and records what it asks of it.

mod output;

use crate::study::pass_through;
use crate::support::exit::{Exit, Failure, Outcome};
use anyhow::Context;
use model::profile::{Profile, encode, summarise};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use trace_log::log::Log;
use trace_log::recording::recording;

const DETAILS: &str = "\
Every call that costs time at a distance is recorded: launches with their duration on the GPU and the time between them, copies by
size, direction and pinning, memsets, waits and questions; calls that only ask for state are counted. Durations come from pairs of events
around a sample of the operations, at most 1.5 % of the program's time; the profile says so. The program's results do not change.

Examples:
  Record a whole run, and look at it:
      dxpu trace --plot train.svg -- python train.py
  Record only what lies between torch.cuda.profiler.start() and stop(), each such range as a profile of its own:
      dxpu trace --range profiler --out steps.profile -- python train.py
  What it would keep elsewhere:
      dxpu model predict --profile steps.profile --plane pcie --rtt 8us";

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Range {
    /// Everything from the driver's initialisation to the end
    Whole,
    /// What lies between cuProfilerStart and cuProfilerStop
    Profiler,
}

#[derive(clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Trace {
    /// Where the profile goes; a second one is named FILE-2, and so on
    #[arg(long, value_name = "FILE", default_value = "dxpu.profile")]
    out: PathBuf,
    /// What is recorded
    #[arg(long, value_enum, default_value = "whole")]
    range: Range,
    /// Plot how long kernels last and how far apart they are into this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Write the summary to this file, too
    #[arg(long, value_name = "FILE.json")]
    report: Option<PathBuf>,
    /// The machine's libcuda.so.1, if it is not where the loader finds it
    #[arg(long, value_name = "FILE", env = "DXPU_DRIVER_LIBRARY")]
    driver: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Trace {
    pub(crate) fn run(self) -> Outcome {
        let range = if self.range == Range::Profiler { "profiler" } else { "whole" };
        let variables = [("DXPU_TRACE_MODE", "trace".to_owned()), ("DXPU_TRACE_RANGE", range.to_owned())];
        let ended = pass_through::run(&self.program, self.driver.as_deref(), &variables)?;
        for process in &ended.unfinished {
            errln!("dxpu: not recorded: {process}");
        }
        let profiles = profiles(&ended.logs, &self.program);
        let mut reports = Vec::new();
        for (profile, path) in profiles.iter().zip(1..).map(|(p, number)| (p, numbered(&self.out, number))) {
            keep(profile, &path)?;
            let summary = summarise(profile);
            errln!();
            eprint!("{}", output::text(&path, profile, &summary));
            if reports.is_empty()
                && let Some(plot) = &self.plot
            {
                std::fs::write(plot, output::figure(profile, &summary))
                    .with_context(|| format!("cannot write the plot to {}", plot.display()))?;
            }
            reports.push(output::object(&path, profile, &summary));
        }
        if let Some(path) = &self.report {
            std::fs::write(path, serde_json::to_string_pretty(&reports)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if ended.code() != 0 {
            std::process::exit(ended.code());
        }
        if reports.is_empty() {
            let (what, hint) = if ended.unfinished.is_empty() {
                (
                    "nothing was recorded",
                    match self.range {
                        Range::Whole => "the program did not use the GPU through libcuda.so.1",
                        Range::Profiler => {
                            "the program never called cuProfilerStart, or did nothing after it"
                        }
                    },
                )
            } else {
                ("nothing was recorded", "let the program end by itself: a part of a recording is not used")
            };
            return Err(Failure::new(Exit::Failure, what, hint).into());
        }
        Ok(Exit::Success)
    }
}

/// What was recorded. Of a program of several processes, the one that used the GPU most comes first.
fn profiles(logs: &[Log], program: &[OsString]) -> Vec<Profile> {
    let words: Vec<_> = program.iter().map(|word| word.to_string_lossy()).collect();
    let mut recordings: Vec<_> = logs.iter().map(|log| recording(log, &words.join(" "))).collect();
    let operations = |profile: &Profile| profile.measured.as_ref().map_or(0, |measured| measured.operations);
    recordings
        .sort_by_key(|recording| std::cmp::Reverse(recording.profiles.iter().map(operations).sum::<u64>()));
    recordings.into_iter().flat_map(|recording| recording.profiles).collect()
}

fn keep(profile: &Profile, path: &Path) -> anyhow::Result<()> {
    std::fs::write(path, encode(profile))
        .with_context(|| format!("cannot write the profile to {}", path.display()))
}

/// Writes what was recorded beside something else that was done; what there is to say about each.
pub(crate) fn keep_all(
    logs: &[Log],
    program: &[OsString],
    out: &Path,
) -> anyhow::Result<Vec<serde_json::Value>> {
    let mut reports = Vec::new();
    for (profile, number) in profiles(logs, program).iter().zip(1..) {
        let path = numbered(out, number);
        keep(profile, &path)?;
        reports.push(output::object(&path, profile, &summarise(profile)));
    }
    Ok(reports)
}

/// The first profile has the name itself, the others a number before the extension.
fn numbered(path: &Path, number: usize) -> PathBuf {
    if number == 1 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_profiles_are_numbered() {
        assert_eq!(numbered(Path::new("a/b.profile"), 1), Path::new("a/b.profile"));
        assert_eq!(numbered(Path::new("a/b.profile"), 2), Path::new("a/b-2.profile"));
        assert_eq!(numbered(Path::new("b"), 3), Path::new("b-3"));
    }
}
