//! `dxpu borrower`: users with leases.

use super::ask;
use super::list::Look;
use super::words::{or_dash, who};
use crate::support::exit::Outcome;
use crate::support::paint::Paper;
use crate::support::table::{self, Column};
use pool_api::{Borrower as Record, ErrorCode, ErrorDetail, Lease};
use pool_client::{Client, ClientError};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  dxpu borrower ls                 everybody who has leases now
  dxpu borrower show vision/ada    one, with its leases";

/// Look at those who borrow
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Borrower {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List everybody who has or wants GPUs now
    Ls {
        #[command(flatten)]
        look: Look,
    },
    /// Show one with its leases
    Show {
        /// Who: an identity, or its end such as vision/ada
        owner: String,
        #[command(flatten)]
        look: Look,
    },
}

#[derive(Serialize)]
struct Detail {
    #[serde(flatten)]
    borrower: Record,
    leases: Vec<Lease>,
}

impl Borrower {
    pub(crate) fn run(self) -> Outcome {
        match self.verb {
            Verb::Ls { look } => look.table(
                &[
                    Column::Whole("BORROWER"),
                    Column::Cut("TENANTS"),
                    Column::Number("GPUS"),
                    Column::Number("GRANTED"),
                    Column::Number("PENDING"),
                ],
                |client| ask::all::<Record>(client, "/v1/borrowers").map(|(borrowers, _)| borrowers),
                |borrower| {
                    vec![
                        who(&borrower.owner).into(),
                        tenants(borrower).into(),
                        borrower.gpus.to_string().into(),
                        borrower.leases_granted.to_string().into(),
                        borrower.leases_pending.to_string().into(),
                    ]
                },
                "nobody borrows. `dxpu run --gpus 1 -- PROGRAM` would",
            ),
            Verb::Show { owner, look } => look.show(|client| find(client, &owner), detail),
        }
    }
}

fn tenants(borrower: &Record) -> String {
    borrower.tenants.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn find(client: &Client, owner: &str) -> Result<Detail, ClientError> {
    let (borrowers, _) = ask::all::<Record>(client, "/v1/borrowers")?;
    let is_it = |borrower: &Record| borrower.owner == owner || who(&borrower.owner) == owner;
    let borrower = borrowers.into_iter().find(is_it).ok_or_else(|| {
        ClientError::Refused(ErrorDetail {
            code: ErrorCode::NotFound,
            message: format!("{owner} has no leases at the moment"),
            hint: "`dxpu borrower ls` shows everybody who has".to_owned(),
        })
    })?;
    let (mut leases, _) = ask::all::<Lease>(client, "/v1/leases")?;
    leases.retain(|lease| lease.owner == borrower.owner && lease.state.is_live());
    Ok(Detail { borrower, leases })
}

fn detail(detail: &Detail, paper: Paper) -> Vec<String> {
    let borrower = &detail.borrower;
    let mut lines = table::pairs(
        &[
            ("borrower", borrower.owner.clone()),
            ("tenants", or_dash(tenants(borrower))),
            ("gpus", borrower.gpus.to_string()),
            ("leases", format!("{} granted, {} pending", borrower.leases_granted, borrower.leases_pending)),
        ],
        paper,
    );
    lines.push(String::new());
    lines.extend(super::lease::short_table(&detail.leases, paper));
    lines
}
