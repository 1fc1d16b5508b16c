//! `dxpu bench pool`: what a grant costs as the pool grows.
//!
//! The real ledger, the real leader with its group commits, and SQLite on disk; only the boxes are simulated, and they
//! report all the time. Each size runs in a process of its own, so that its memory is its own.

mod boxes;
mod row;

use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::log;
use anyhow::{Context, bail};
use row::Row;
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[derive(clap::Args)]
pub(super) struct Pool {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// How many GPUs the pool has; one row each
    #[arg(long, value_delimiter = ',', default_values_t = [512, 10_000, 100_000])]
    gpus: Vec<u32>,
    /// How long grants are measured for each row, in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Borrowers that ask at the same time
    #[arg(long, default_value_t = 64)]
    borrowers: usize,
    /// Where the store is made; a disk, not memory [default: the current folder]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Measure one row in this process
    #[arg(long, hide = true)]
    row: bool,
}

#[derive(serde::Serialize)]
struct Report {
    store: &'static str,
    borrowers: usize,
    rows: Vec<serde_json::Value>,
}

impl Pool {
    pub(super) fn run(self) -> Outcome {
        log::start("warn");
        if self.gpus.is_empty() || self.borrowers == 0 || self.gpus.iter().any(|gpus| *gpus < 64) {
            let hint = "give at least 64 GPUs and one borrower";
            return Err(Failure::new(Exit::Usage, "there is nothing to measure", hint).into());
        }
        let folder = self
            .folder
            .clone()
            .map_or_else(std::env::current_dir, Ok)
            .context("there is no current folder")?;
        if self.row {
            let row = Row::measure(self.gpus[0], self.borrowers, self.seconds, &folder)?;
            outln!("{}", serde_json::to_string(&row)?);
            return Ok(Exit::Success);
        }
        let mut rows = Vec::new();
        for gpus in &self.gpus {
            errln!("measuring a pool of {gpus} GPUs …");
            rows.push(self.row_of(*gpus, &folder)?);
        }
        let report =
            Report { store: "sqlite, one durable commit for what waits", borrowers: self.borrowers, rows };
        if self.json {
            outln!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print(&report);
        }
        Ok(Exit::Success)
    }

    fn row_of(&self, gpus: u32, folder: &std::path::Path) -> anyhow::Result<serde_json::Value> {
        let output = Command::new(std::env::current_exe().context("cannot find this executable")?)
            .args(["bench", "pool", "--row", "--gpus", &gpus.to_string()])
            .args(["--seconds", &self.seconds.to_string(), "--borrowers", &self.borrowers.to_string()])
            .arg("--folder")
            .arg(folder)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run this executable")?;
        if !output.status.success() {
            bail!("measuring {gpus} GPUs failed ({})", output.status);
        }
        serde_json::from_slice(&output.stdout).context("the measurement did not print a row")
    }
}

fn print(report: &Report) {
    let columns =
        ["gpus", "place_us_p99", "grant_ms_p50", "grant_ms_p99", "grants_per_s", "rss_mb", "failover_ms_p99"];
    outln!("{}", columns.map(|column| format!("{column:>16}")).join(""));
    for row in &report.rows {
        outln!("{}", columns.map(|column| format!("{:>16}", row[column].to_string())).join(""));
    }
}
