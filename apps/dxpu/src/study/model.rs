//! `dxpu model`: what a workload keeps when its GPU is somewhere else.

mod check;
mod fit;
mod predict;

use crate::support::exit::{Exit, Failure, Outcome};
use model::paper::{Row, paper_rows, parse};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
One formula with nine constants explains the measurements of the DxPU paper; a replay of a recorded program says what that \
program would keep.

Examples:
  The constants, and how far each row of the paper lets them move:
      dxpu model fit
  Every row against the formula; exit code 1 if a target is missed:
      dxpu model check --json
  What a recorded program keeps at 8 us on the pcie plane, with the curve of both planes:
      dxpu model predict --profile train.profile --plane pcie --rtt 8us --plot train.svg
  The same on the api plane over 25 Gbit/s:
      dxpu model predict --profile train.profile --plane api --rtt 50us --bandwidth 25Gbit";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Model {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Fit the formula's constants to measured rows
    Fit(fit::Fit),
    /// Compare the formula with every measured row; exit code 1 if a target is missed
    Check(check::Check),
    /// Predict what a recorded program keeps at a distance, why, and what would help
    Predict(predict::Predict),
}

impl Model {
    pub(crate) fn run(self) -> Outcome {
        match self.what {
            What::Fit(fit) => fit.run(),
            What::Check(check) => check.run(),
            What::Predict(predict) => predict.run(),
        }
    }
}

/// Where measured rows come from.
#[derive(clap::Args)]
struct Rows {
    /// Measured rows instead of the paper's: a CSV file with the same columns (crates/study/model/data/dxpu-paper.csv)
    #[arg(long, value_name = "FILE.csv")]
    rows: Option<PathBuf>,
}

impl Rows {
    fn read(&self) -> anyhow::Result<Vec<Row>> {
        let Some(path) = &self.rows else { return Ok(paper_rows()) };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::new(Exit::Failure, format!("cannot read {}", path.display()), "check the file's name")
                .because(error)
        })?;
        parse(&text).map_err(|error| {
            unusable(path, error, "give it the columns of crates/study/model/data/dxpu-paper.csv").into()
        })
    }
}

/// A file that was read and is not what it should be.
fn unusable(path: &Path, error: impl std::error::Error, hint: &str) -> Failure {
    Failure::new(Exit::Failure, format!("{}: {error}", path.display()), hint)
}
