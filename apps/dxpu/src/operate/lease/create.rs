//! `dxpu lease create`.

use crate::operate::list::{Format, changed};
use crate::operate::words::name_of;
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::pool_access::{PoolAccess, failure};
use crate::support::quantity;
use pool_api::{
    BoxKind, Class, Lease, LeaseRequest, LeaseState, Model, Name, PRIORITY_DEFAULT, Phase, Plane, Share,
    Survive, Topology,
};
use pool_client::{Client, idempotency_key};
use std::time::Duration;

/// What is asked for, as flags.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Wanted {
    /// How many GPUs: all of them or none
    #[arg(long, value_name = "N", default_value = "1")]
    gpus: u32,
    /// Of which model, such as H200; any, if left out
    #[arg(long)]
    model: Option<Model>,
    /// Memory that each must have at least, such as 80GiB
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    memory: Option<u64>,
    /// Only from boxes of this kind: nvlink or pcie
    #[arg(long, value_parser = kind)]
    kind: Option<BoxKind>,
    /// How close together: any, same-box or nvlink
    #[arg(long, default_value = "any", value_parser = topology)]
    topology: Topology,
    /// A part of one GPU: thousandths and memory, such as 500,40GiB
    #[arg(long, value_name = "MILLI,SIZE", value_parser = share)]
    share: Option<Share>,
    /// 0 to 1000; higher is served first
    #[arg(long, value_name = "N", default_value_t = PRIORITY_DEFAULT)]
    priority: u32,
    /// For which tenant; only admins may ask for others
    #[arg(long, value_name = "NAME")]
    tenant: Option<Name>,
    /// For programs that outlive the loss of a GPU: they can be moved and suspended (`dxpu run --lease ID --survive`)
    #[arg(long)]
    survive: bool,
    /// What its programs are to others on the same GPU: dedicated (alone), online (protected from a guest beside it) or
    /// offline (a guest; with --survive it is suspended when its seat is needed)
    #[arg(long, value_name = "CLASS", default_value = "dedicated")]
    class: Class,
    /// What a guest beside an online lease may add to the time of its requests, in percent [default: as its box has it]
    #[arg(long, value_name = "PERCENT")]
    slack: Option<u16>,
    /// The manager ends it so long after it got its GPUs, however it is renewed, such as 2h
    #[arg(long, value_name = "TIME", value_parser = long_duration)]
    time_limit: Option<Duration>,
    /// What it is for; shown to people
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,
}

#[derive(clap::Args)]
pub(super) struct Create {
    #[command(flatten)]
    wanted: Wanted,
    /// How it is reached: api (CUDA calls travel) or pcie (plugged into a guest of --host)
    #[arg(long, value_parser = plane)]
    plane: Option<Plane>,
    /// Into which host the GPUs are plugged, on the PCIe plane
    #[arg(long, value_name = "NAME")]
    host: Option<Name>,
    /// How long it lives without being renewed, such as 30s or 8h; what this command makes is renewed by nobody but you
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = long_duration)]
    ttl: Duration,
    /// Wait until it has its GPUs, and they are plugged
    #[arg(long)]
    wait: bool,
    /// The same key gives the same lease, for a day
    #[arg(long, value_name = "TEXT")]
    key: Option<String>,
    #[command(flatten)]
    access: PoolAccess,
    /// How to show the lease
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: Format,
}

impl Wanted {
    pub(crate) fn request(self, ttl: Duration) -> LeaseRequest {
        LeaseRequest {
            tenant: self.tenant,
            gpus: self.gpus,
            model: self.model,
            memory_bytes: self.memory,
            kind: self.kind,
            topology: self.topology,
            share: self.share,
            priority: self.priority,
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            survive: if self.survive { Survive::Gpu } else { Survive::None },
            class: self.class,
            slack_percent: self.slack,
            time_limit_ms: self.time_limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
            note: self.note,
            ..LeaseRequest::default()
        }
    }
}

impl Create {
    pub(super) fn run(self) -> Outcome {
        // A host is only ever named for this plane.
        let plane = self.plane.unwrap_or(if self.host.is_some() { Plane::Pcie } else { Plane::Api });
        let request = LeaseRequest { plane, host: self.host, ..self.wanted.request(self.ttl) };
        request.check().map_err(|error| {
            Failure::new(Exit::Usage, error.to_string(), "see `dxpu lease create --help`")
        })?;
        let client = self.access.client()?;
        let key = self.key.unwrap_or_else(idempotency_key);
        let mut lease = client.create_lease(&request, &key).map_err(failure)?;
        if self.wait {
            lease = wait(&client, lease)?;
        }
        changed(self.output, &lease, &said(&lease))
    }
}

fn wait(client: &Client, mut lease: Lease) -> Result<Lease, Failure> {
    let is_plugged = |lease: &Lease| {
        let mut attachments = lease.grants.iter().filter_map(|grant| grant.attachment.as_ref());
        attachments.all(|attachment| attachment.phase == Phase::Plugged)
    };
    while lease.state == LeaseState::Pending || (lease.state == LeaseState::Granted && !is_plugged(&lease)) {
        lease = client.wait_for_lease(lease.id, lease.version, Duration::from_secs(20)).map_err(failure)?;
    }
    Ok(lease)
}

fn said(lease: &Lease) -> String {
    let what = match lease.state {
        LeaseState::Granted => format!("has {}", super::gpus(lease)),
        LeaseState::Pending => format!("waits; `dxpu lease explain {}` says why", lease.id),
        other => format!("is {}", name_of(&other)),
    };
    let id = lease.id;
    let life = crate::operate::words::duration(lease.request.ttl_ms);
    let renewed = match lease.state.is_live() {
        true => format!(
            "\n  it ends {life} from now unless it is renewed: dxpu lease renew {id} (or ask with a longer --ttl)"
        ),
        false => String::new(),
    };
    format!("lease {id} {what}{renewed}")
}

fn plane(text: &str) -> Result<Plane, String> {
    serde_json::from_value(text.into()).map_err(|_| "write api or pcie".to_owned())
}

fn kind(text: &str) -> Result<BoxKind, String> {
    serde_json::from_value(text.into()).map_err(|_| "write nvlink or pcie".to_owned())
}

fn topology(text: &str) -> Result<Topology, String> {
    let text = text.replace('-', "_");
    serde_json::from_value(text.into()).map_err(|_| "write any, same-box or nvlink".to_owned())
}

fn share(text: &str) -> Result<Share, String> {
    let (milli, memory) = text.split_once(',').ok_or("write thousandths and memory, such as 500,40GiB")?;
    let milli = milli.trim().parse().map_err(|_| "write thousandths as a number from 1 to 1000")?;
    Ok(Share { milli, memory_bytes: quantity::bytes(memory.trim())? })
}

/// `90s`, `5m`, `8h`, `2d`.
pub(crate) fn long_duration(text: &str) -> Result<Duration, String> {
    for (unit, seconds) in [("m", 60), ("h", 3600), ("d", 86_400)] {
        let number = text.strip_suffix(unit).and_then(|number| number.trim().parse::<u64>().ok());
        if let Some(number) = number {
            let whole = number.checked_mul(seconds).ok_or("that is too long")?;
            return Ok(Duration::from_secs(whole));
        }
    }
    quantity::duration(text).map_err(|_| "write a number and ms, s, m, h or d, like 30s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_read_as_people_write_them() {
        assert_eq!(share("500,40GiB").unwrap(), Share { milli: 500, memory_bytes: 40 << 30 });
        assert!(share("500").is_err() && share("x,1GiB").is_err());
        assert_eq!(topology("same-box"), Ok(Topology::SameBox));
        assert_eq!(topology("same_box"), Ok(Topology::SameBox), "as the API spells it");
        assert_eq!((kind("pcie"), kind("PCI").is_err()), (Ok(BoxKind::Pcie), true));
        assert_eq!((plane("pcie"), plane("udp").is_err()), (Ok(Plane::Pcie), true));
        assert_eq!(long_duration("8h"), Ok(Duration::from_secs(28_800)));
        assert_eq!(long_duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(long_duration("soon").is_err() && long_duration("99999999999999999999d").is_err());
    }
}
