//! `dxpu spare`: GPUs held back for leases whose GPU breaks.

use super::list::{Format, Look, changed};
use super::words::{counted, or_dash};
use super::{ask, models};
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::paint::{Paper, Tone};
use crate::support::pool_access::{PoolAccess, failure};
use crate::support::table::{self, Cell, Column};
use pool_api::{ErrorCode, ErrorDetail, Model, SparePlanRequest, SpareRecord, SpareRequest, SpareStatus};
use pool_client::{Client, ClientError};

const EXAMPLES: &str = "\
Examples:
  dxpu spare ls
  dxpu spare plan --gpus 512 --rate 9 --repair-days 5    how many are needed; asks nobody
  dxpu spare set H200 4

A rate of 9 means that 9 of 100 GPUs fail in a year. Public numbers of large clusters lie between 6 and 11.";

/// Look at spares, size them and set them
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Spare {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List the spares of every model
    Ls {
        #[command(flatten)]
        look: Look,
    },
    /// Show the spares of one model
    Show {
        /// The model
        model: Model,
        #[command(flatten)]
        look: Look,
    },
    /// Set how many spares of a model there shall be
    Set {
        /// The model
        model: Model,
        /// How many
        count: u32,
        #[command(flatten)]
        access: PoolAccess,
        /// How to show it
        #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
        output: Format,
    },
    /// Work out how many spares a pool needs; asks nobody
    Plan(Plan),
}

#[derive(clap::Args)]
struct Plan {
    /// How many GPUs are in use
    #[arg(long, value_name = "N")]
    gpus: u64,
    /// How many of a hundred GPUs fail in a year
    #[arg(long, value_name = "PERCENT", default_value = "9")]
    rate: f64,
    /// How long a repair takes, burn-in included
    #[arg(long, value_name = "DAYS", default_value = "5")]
    repair_days: f64,
    /// Share of the time in which spares must suffice
    #[arg(long, value_name = "PERCENT", default_value = "99.9")]
    cover: f64,
    /// How to show it
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: Format,
}

impl Spare {
    pub(crate) fn run(self) -> Outcome {
        match self.verb {
            Verb::Ls { look } => look.table(
                &[
                    Column::Whole("MODEL"),
                    Column::Number("GPUS"),
                    Column::Number("BROKEN"),
                    Column::Number("WANTED"),
                    Column::Number("HELD"),
                    Column::Cut("SPARES"),
                ],
                |client| ask::all::<SpareStatus>(client, "/v1/spares").map(|(spares, _)| spares),
                row,
                "no spares, and no GPUs to hold back",
            ),
            Verb::Show { model, look } => look.show(|client| find(client, &model), detail),
            Verb::Set { model, count, access, output } => {
                let path = format!("/v1/spares/{}", ask::encoded(model.as_str()));
                let client = access.client()?;
                let record: SpareRecord = client.put(&path, &SpareRequest { count }).map_err(failure)?;
                if count > 0 {
                    models::tell_unknown(&client, [&model]);
                }
                let said = format!(
                    "of model {}, {} held back when free",
                    record.model,
                    counted(u64::from(record.count), "GPU") + if record.count == 1 { " is" } else { " are" }
                );
                changed(output, &record, &said)
            }
            Verb::Plan(plan) => plan.run(),
        }
    }
}

impl Plan {
    fn run(self) -> Outcome {
        let request = SparePlanRequest {
            gpus: self.gpus,
            failures_pct_per_year: self.rate,
            repair_days: self.repair_days,
            cover_pct: self.cover,
        };
        let plan = pool::plan_spares(&request)
            .map_err(|error| Failure::new(Exit::Usage, error.to_string(), "see `dxpu spare plan --help`"))?;
        let said = format!(
            "{}: {:.2} GPUs are in repair on average, and so many spares suffice {:.3} % of the time",
            counted(plan.spares, "spare"),
            plan.in_repair_mean,
            plan.covered_pct
        );
        changed(self.output, &plan, &said)
    }
}

fn row(status: &SpareStatus) -> Vec<Cell> {
    let held = status.held.len();
    let tone = if held < status.wanted as usize { Tone::Passing } else { Tone::Plain };
    let names: Vec<String> = status.held.iter().map(ToString::to_string).collect();
    vec![
        status.model.to_string().into(),
        status.gpus.to_string().into(),
        status.broken.to_string().into(),
        status.wanted.to_string().into(),
        Cell::toned(held.to_string(), tone),
        or_dash(names.join(" ")).into(),
    ]
}

fn find(client: &Client, model: &Model) -> Result<SpareStatus, ClientError> {
    let (spares, _) = ask::all::<SpareStatus>(client, "/v1/spares")?;
    spares.into_iter().find(|status| status.model == *model).ok_or_else(|| {
        ClientError::Refused(ErrorDetail {
            code: ErrorCode::NotFound,
            message: format!("the pool has no GPU of model {model}"),
            hint: "`dxpu spare ls` shows its models".to_owned(),
        })
    })
}

fn detail(status: &SpareStatus, paper: Paper) -> Vec<String> {
    let names: Vec<String> = status.held.iter().map(ToString::to_string).collect();
    let pairs = [
        ("model", status.model.to_string()),
        ("gpus", status.gpus.to_string()),
        ("broken", status.broken.to_string()),
        ("spares wanted", status.wanted.to_string()),
        ("spares held", or_dash(names.join(" "))),
    ];
    table::pairs(&pairs, paper)
}
