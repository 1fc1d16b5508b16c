//! `dxpu host`: who borrows.

use super::ask;
use super::columns::{self, Column};
use super::list::Look;
use super::paint::Paper;
use super::words::{or_dash, who};
use crate::exit::Outcome;
use pool_api::{ErrorCode, ErrorDetail, Host as Record, Lease};
use pool_client::{Client, ClientError};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  dxpu host ls                 everybody who has leases now
  dxpu host show vision/ada    one, with its leases";

/// Look at those who borrow
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Host {
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
    host: Record,
    leases: Vec<Lease>,
}

impl Host {
    pub(crate) fn run(self) -> Outcome {
        match self.verb {
            Verb::Ls { look } => look.table(
                &[
                    Column::Whole("HOST"),
                    Column::Cut("TENANTS"),
                    Column::Number("GPUS"),
                    Column::Number("GRANTED"),
                    Column::Number("PENDING"),
                ],
                |client| ask::all::<Record>(client, "/v1/hosts").map(|(hosts, _)| hosts),
                |host| {
                    vec![
                        who(&host.owner).into(),
                        tenants(host).into(),
                        host.gpus.to_string().into(),
                        host.leases_granted.to_string().into(),
                        host.leases_pending.to_string().into(),
                    ]
                },
                "nobody borrows. `dxpu run --gpus 1 -- PROGRAM` would",
            ),
            Verb::Show { owner, look } => look.show(|client| find(client, &owner), detail),
        }
    }
}

fn tenants(host: &Record) -> String {
    host.tenants.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn find(client: &Client, owner: &str) -> Result<Detail, ClientError> {
    let (hosts, _) = ask::all::<Record>(client, "/v1/hosts")?;
    let is_it = |host: &Record| host.owner == owner || who(&host.owner) == owner;
    let host = hosts.into_iter().find(is_it).ok_or_else(|| {
        ClientError::Refused(ErrorDetail {
            code: ErrorCode::NotFound,
            message: format!("{owner} has no leases at the moment"),
            hint: "`dxpu host ls` shows everybody who has".to_owned(),
        })
    })?;
    let (mut leases, _) = ask::all::<Lease>(client, "/v1/leases")?;
    leases.retain(|lease| lease.owner == host.owner && lease.state.is_live());
    Ok(Detail { host, leases })
}

fn detail(detail: &Detail, paper: Paper) -> Vec<String> {
    let host = &detail.host;
    let mut lines = columns::pairs(
        &[
            ("host", host.owner.clone()),
            ("tenants", or_dash(tenants(host))),
            ("gpus", host.gpus.to_string()),
            ("leases", format!("{} granted, {} pending", host.leases_granted, host.leases_pending)),
        ],
        paper,
    );
    lines.push(String::new());
    lines.extend(super::lease::short_table(&detail.leases, paper));
    lines
}
