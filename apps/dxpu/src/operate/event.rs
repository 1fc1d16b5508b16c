//! `dxpu event`: what happened.

use super::ask;
use super::list::{Format, Look, print};
use super::words::{name_of, or_dash, time};
use crate::support::exit::{Exit, Outcome};
use crate::support::paint::{Paper, Tone};
use crate::support::pool_access::failure;
use crate::support::table::{self, Cell, Column};
use pool_api::{ErrorCode, ErrorDetail, Event as Record, EventKind, Page};
use pool_client::{Client, ClientError};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  dxpu event ls                              the last 50
  dxpu event ls --last 1000 --about rack1-a  of them those about a box, a GPU, a lease or a tenant
  dxpu event ls --watch                      and whatever comes, until Ctrl-C
  dxpu event ls --watch -o json | jq .       one object a line";

/// Look at what happened
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Event {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List events, oldest first
    Ls(Ls),
    /// Show one event
    Show {
        /// Its number
        seq: u64,
        #[command(flatten)]
        look: Look,
    },
}

#[derive(clap::Args)]
struct Ls {
    /// How many of the latest
    #[arg(long, value_name = "N", default_value = "50")]
    last: usize,
    /// Only those about this box, GPU, lease or tenant
    #[arg(long, value_name = "NAME")]
    about: Option<String>,
    #[command(flatten)]
    look: Look,
}

impl Event {
    pub(crate) fn run(self) -> Outcome {
        match self.verb {
            Verb::Ls(ls) => ls.run(),
            Verb::Show { seq, look } => look.show(|client| find(client, seq), detail),
        }
    }
}

const COLUMNS: [Column; 4] =
    [Column::Whole("TIME"), Column::Whole("EVENT"), Column::Cut("ABOUT"), Column::Cut("WHAT")];

impl Ls {
    /// Events only ever come: a watching user is shown each once, as `tail -f` does.
    fn run(self) -> Outcome {
        let client = self.look.access.client()?;
        let paper = Paper::stdout();
        let (mut events, mut version) = ask::all::<Record>(&client, "/v1/events").map_err(failure)?;
        let mut seen = events.last().map_or(0, |event| event.seq);
        events.retain(|event| self.is_asked(event));
        events.drain(..events.len().saturating_sub(self.last));
        if events.is_empty() && !self.look.watch && matches!(self.look.output, Format::Table | Format::Wide) {
            print("nothing has happened yet\n")?;
            return Ok(Exit::Success);
        }
        let mut is_first = true;
        loop {
            if !self.print(&events, paper, is_first)? || !self.look.watch {
                return Ok(Exit::Success);
            }
            is_first = false;
            version = ask::wait_for_change(&client, version, Duration::from_secs(20)).map_err(failure)?;
            (events, _) =
                ask::all::<Record>(&client, &format!("/v1/events?after={seen}")).map_err(failure)?;
            seen = events.last().map_or(seen, |event| event.seq);
            events.retain(|event| self.is_asked(event));
        }
    }

    fn print(&self, events: &[Record], paper: Paper, is_first: bool) -> anyhow::Result<bool> {
        let text = match self.look.output {
            Format::Json if self.look.watch => {
                let lines: Result<Vec<String>, _> = events.iter().map(serde_json::to_string).collect();
                lines?.iter().map(|line| format!("{line}\n")).collect()
            }
            Format::Table | Format::Wide => {
                let rows: Vec<Vec<Cell>> = events.iter().map(row).collect();
                let lines = table::lines(&COLUMNS, &rows, paper);
                lines.iter().skip(usize::from(!is_first)).map(|line| format!("{line}\n")).collect()
            }
            _ if events.is_empty() && self.look.watch => String::new(),
            other => other.of(&events, self.look.watch)?.unwrap_or_default(),
        };
        print(&text)
    }

    fn is_asked(&self, event: &Record) -> bool {
        self.about.as_ref().is_none_or(|about| {
            let names = [
                event.gpu.as_ref().map(ToString::to_string),
                event.gpu.as_ref().map(|gpu| gpu.box_name.to_string()),
                event.box_name.as_ref().map(ToString::to_string),
                event.host.as_ref().map(ToString::to_string),
                event.lease.as_ref().map(ToString::to_string),
                event.tenant.as_ref().map(ToString::to_string),
            ];
            names.into_iter().flatten().any(|name| name == *about)
        })
    }
}

fn about(event: &Record) -> String {
    let gpu = event.gpu.as_ref().map(ToString::to_string);
    let owner = event.box_name.as_ref().filter(|_| event.gpu.is_none()).map(ToString::to_string);
    let host = event.host.as_ref().map(ToString::to_string);
    let lease = event.lease.as_ref().map(ToString::to_string);
    let tenant = event.tenant.as_ref().filter(|_| event.lease.is_none()).map(ToString::to_string);
    [gpu, owner, host, lease, tenant].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn row(event: &Record) -> Vec<Cell> {
    vec![
        Cell::toned(time(event.at_ms), Tone::Faint),
        Cell::toned(name_of(&event.kind), tone(event.kind)),
        or_dash(about(event)).into(),
        event.message.clone().into(),
    ]
}

fn tone(kind: EventKind) -> Tone {
    use EventKind as K;
    match kind {
        K::BoxJoined
        | K::BoxReturned
        | K::HostJoined
        | K::HostReturned
        | K::HostMonitorBack
        | K::GpuPlugged
        | K::BoxUndrained
        | K::GpuAdded
        | K::GpuUntainted
        | K::GpuBurnInPassed => Tone::Good,
        K::LeaseGranted => Tone::Busy,
        K::BoxDead
        | K::BoxRevoked
        | K::HostDead
        | K::HostRevoked
        | K::IdentityCopied
        | K::HostMonitorSilent
        | K::GpuBad
        | K::GpuBurnInFailed
        | K::LeaseReclaimed
        | K::LeaseRequeued => Tone::Wrong,
        K::BoxDrained
        | K::GpuTainted
        | K::GpuAbsent
        | K::LeaseMoved
        | K::LeaseMoving
        | K::LeaseParked
        | K::LeaseUnparked
        | K::LeasePending
        | K::LeaseExpired => Tone::Passing,
        K::GpuRepaired
        | K::GpuUnplugged
        | K::HostChanged
        | K::LeaseReleased
        | K::LeaseStayed
        | K::LeaseDrill
        | K::TenantChanged
        | K::SparesChanged
        | K::AccessRevoked
        | K::LeaderChanged => Tone::Plain,
    }
}

fn find(client: &Client, seq: u64) -> Result<Record, ClientError> {
    let after = seq.saturating_sub(1);
    let page: Page<Record> = client.get(&format!("/v1/events?limit=1&after={after}"), Duration::ZERO)?;
    page.items.into_iter().find(|event| event.seq == seq).ok_or_else(|| {
        ClientError::Refused(ErrorDetail {
            code: ErrorCode::NotFound,
            message: format!("there is no event {seq}, or it is no longer kept"),
            hint: "`dxpu event ls -o json` shows their numbers".to_owned(),
        })
    })
}

fn detail(event: &Record, paper: Paper) -> Vec<String> {
    let pairs = [
        ("event", event.seq.to_string()),
        ("time", time(event.at_ms)),
        ("kind", name_of(&event.kind)),
        ("about", or_dash(about(event))),
        ("what", event.message.clone()),
    ];
    table::pairs(&pairs, paper)
}
