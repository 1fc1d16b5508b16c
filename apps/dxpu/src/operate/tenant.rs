//! `dxpu tenant`: the tenants that GPUs are for, and how many each may have.

use super::lease::long_duration;
use super::list::{Format, Look, changed};
use super::revoke::Terms;
use super::words::or_dash;
use super::{ask, models};
use crate::support::exit::Outcome;
use crate::support::paint::Paper;
use crate::support::pool_access::{PoolAccess, failure};
use crate::support::table::{self, Column};
use pool_api::{ErrorCode, Model, Name, Quota, TenantRecord, TenantRequest, TenantStatus};
use pool_auth::Identity;
use pool_client::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  dxpu tenant ls
  dxpu tenant show vision
  dxpu tenant usage                               GPU hours of each tenant
  dxpu tenant set vision --weight 200 --guarantee H200=8 --limit H200=32
  dxpu tenant set vision --limit H200=none        no limit any more; what is not named stays as it is
  dxpu tenant set vision --priority-max 500 --ttl-max 7d
  dxpu tenant set vision --time-limit-default 8h --time-limit-max 2d --idle-limit 30m
  dxpu tenant revoke vision --user ada            her tokens open nothing any more, her leases end";

/// Look at tenants, and set what they may have
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Tenant {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List tenants
    Ls {
        #[command(flatten)]
        look: Look,
    },
    /// Show one tenant and what it has
    Show {
        /// Its name
        name: Name,
        #[command(flatten)]
        look: Look,
    },
    /// Show how much GPU time tenants have used; tenants see their own
    Usage {
        #[command(flatten)]
        look: Look,
    },
    /// Set weight, quotas and ceilings; what is not named stays as it is
    Set(Set),
    /// Take back what users of a tenant were given: their tokens, and the tenant's leases with them
    Revoke {
        /// Its name
        name: Name,
        /// Only of this user
        #[arg(long)]
        user: Option<Name>,
        #[command(flatten)]
        terms: Terms,
    },
}

#[derive(clap::Args)]
struct Set {
    /// Its name
    name: Name,
    /// Its part of what is beyond all guarantees, relative to other tenants (100 if nobody says)
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
    /// So many GPUs of a model come before anything others have beyond their own guarantee, whatever their priority
    #[arg(long, value_name = "MODEL=N", value_parser = guarantee)]
    guarantee: Vec<(Model, u32)>,
    /// Never more GPUs of a model than this
    #[arg(long, value_name = "MODEL=N", value_parser = limit)]
    limit: Vec<(Model, Option<u32>)>,
    /// The highest priority its leases may have, 0 to 1000 (100 if nobody says); a request above it is refused
    #[arg(long, value_name = "N")]
    priority_max: Option<u32>,
    /// The longest its leases may live without being renewed, up to 7d (24h if nobody says)
    #[arg(long, value_name = "TIME", value_parser = long_duration)]
    ttl_max: Option<Duration>,
    /// Its leases end so long after they got their GPUs, unless they ask for another limit, such as 8h; `none`: no limit
    #[arg(long, value_name = "TIME", value_parser = limit_time)]
    time_limit_default: Option<LimitTime>,
    /// The longest time limit its leases may ask for, such as 2d; `none`: no limit
    #[arg(long, value_name = "TIME", value_parser = limit_time)]
    time_limit_max: Option<LimitTime>,
    /// Leases whose GPUs compute nothing for so long are ended, or suspended if they can be; at least 1m; `none`: never
    #[arg(long, value_name = "TIME", value_parser = limit_time)]
    idle_limit: Option<LimitTime>,
    #[command(flatten)]
    access: PoolAccess,
    /// How to show the tenant afterwards
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: Format,
}

/// A limit, or that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LimitTime(Option<u64>);

fn limit_time(text: &str) -> Result<LimitTime, String> {
    match text {
        "none" => Ok(LimitTime(None)),
        _ => long_duration(text)
            .map(|limit| LimitTime(Some(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)))),
    }
}

impl Tenant {
    pub(crate) fn run(self) -> Outcome {
        match self.verb {
            Verb::Ls { look } => look.table(
                &[
                    Column::Whole("TENANT"),
                    Column::Number("WEIGHT"),
                    Column::Cut("HAS"),
                    Column::Cut("QUOTAS"),
                    Column::Number("GRANTED"),
                    Column::Number("PENDING"),
                ],
                |client| ask::all::<TenantStatus>(client, "/v1/tenants").map(|(tenants, _)| tenants),
                |tenant| {
                    vec![
                        tenant.name.to_string().into(),
                        tenant.weight.to_string().into(),
                        or_dash(used(tenant)).into(),
                        or_dash(quotas(&tenant.quotas)).into(),
                        tenant.leases_granted.to_string().into(),
                        tenant.leases_pending.to_string().into(),
                    ]
                },
                "no tenants. One appears with its first lease, or by `dxpu tenant set NAME`",
            ),
            Verb::Show { name, look } => look.show(
                |client| client.get::<TenantStatus>(&format!("/v1/tenants/{name}"), Duration::ZERO),
                detail,
            ),
            Verb::Usage { look } => super::usage::list(&look),
            Verb::Set(set) => set.run(),
            Verb::Revoke { name, user, terms } => match user {
                None => {
                    terms.revoke(format!("tenant/{name}"), false, &format!("what tenant {name} was given"))
                }
                Some(user) => {
                    let identity = Identity::User { tenant: name.to_string(), user: user.to_string() };
                    terms.revoke(identity.to_string(), false, &format!("what {name}/{user} was given"))
                }
            },
        }
    }
}

impl Set {
    fn run(self) -> Outcome {
        let client = self.access.client()?;
        let mut request = current(&client, &self.name)?;
        if let Some(weight) = self.weight {
            request.weight = weight;
        }
        // Taking a quota away needs no GPU.
        let limited = self.limit.iter().filter(|(_, limit)| limit.is_some()).map(|(model, _)| model);
        let guaranteed = self.guarantee.iter().filter(|(_, count)| *count > 0).map(|(model, _)| model);
        let named: BTreeSet<Model> = limited.chain(guaranteed).cloned().collect();
        for (model, guaranteed) in self.guarantee {
            request.quotas.entry(model).or_default().guaranteed = guaranteed;
        }
        for (model, limit) in self.limit {
            request.quotas.entry(model).or_default().limit = limit;
        }
        if let Some(priority_max) = self.priority_max {
            request.priority_max = priority_max;
        }
        if let Some(ttl_max) = self.ttl_max {
            request.ttl_max_ms = u64::try_from(ttl_max.as_millis()).unwrap_or(u64::MAX);
        }
        for (asked, limit) in [
            (self.time_limit_default, &mut request.times.limit_default_ms),
            (self.time_limit_max, &mut request.times.limit_max_ms),
            (self.idle_limit, &mut request.times.idle_limit_ms),
        ] {
            if let Some(LimitTime(ms)) = asked {
                *limit = ms;
            }
        }
        request.quotas.retain(|_, quota| *quota != Quota::default());
        let record: TenantRecord =
            client.put(&format!("/v1/tenants/{}", self.name), &request).map_err(failure)?;
        models::tell_unknown(&client, &named);
        let said = format!(
            "tenant {}: weight {}, quotas {}, {}, {}",
            record.name,
            record.weight,
            or_dash(quotas(&record.quotas)),
            ceilings(record.priority_max, record.ttl_max_ms),
            times(&record.times)
        );
        changed(self.output, &record, &said)
    }
}

/// What is set now; a tenant that was never set has the defaults.
fn current(client: &Client, name: &Name) -> anyhow::Result<TenantRequest> {
    match client.get::<TenantStatus>(&format!("/v1/tenants/{name}"), Duration::ZERO) {
        Ok(tenant) => Ok(TenantRequest {
            weight: tenant.weight,
            quotas: tenant.quotas,
            priority_max: tenant.priority_max,
            ttl_max_ms: tenant.ttl_max_ms,
            times: tenant.times,
        }),
        Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(TenantRequest::default()),
        Err(error) => Err(failure(error).into()),
    }
}

fn pair(text: &str) -> Result<(Model, &str), String> {
    let (model, number) = text.split_once('=').ok_or("write MODEL=N, such as H200=8")?;
    Ok((Model::new(model).map_err(|error| error.to_string())?, number))
}

fn guarantee(text: &str) -> Result<(Model, u32), String> {
    let (model, number) = pair(text)?;
    Ok((model, number.parse().map_err(|_| "write MODEL=N, such as H200=8")?))
}

fn limit(text: &str) -> Result<(Model, Option<u32>), String> {
    let (model, number) = pair(text)?;
    match number {
        "none" => Ok((model, None)),
        _ => Ok((model, Some(number.parse().map_err(|_| "write MODEL=N or MODEL=none, such as H200=8")?))),
    }
}

fn used(tenant: &TenantStatus) -> String {
    let show = |(model, used): (&Model, &pool_api::TenantUse)| match used.milli % 1000 {
        0 => format!("{} {model}", used.milli / 1000),
        _ => format!("{:.3} {model}", used.milli as f64 / 1000.0),
    };
    tenant.used.iter().map(show).collect::<Vec<_>>().join(", ")
}

fn quotas(quotas: &BTreeMap<Model, Quota>) -> String {
    let show = |(model, quota): (&Model, &Quota)| match quota.limit {
        Some(limit) => format!("{model} {} to {limit}", quota.guaranteed),
        None => format!("{model} from {}", quota.guaranteed),
    };
    quotas.iter().map(show).collect::<Vec<_>>().join(", ")
}

fn ceilings(priority_max: u32, ttl_max_ms: u64) -> String {
    let hours = ttl_max_ms as f64 / 3_600_000.0;
    format!("priority up to {priority_max}, leases of up to {hours:.1} h")
}

fn times(times: &pool_api::TenantTimes) -> String {
    let words = |ms: Option<u64>| ms.map_or("none".to_owned(), pool_api::time_in_words);
    format!(
        "time limit {} (at most {}), idle limit {}",
        words(times.limit_default_ms),
        words(times.limit_max_ms),
        words(times.idle_limit_ms)
    )
}

fn detail(tenant: &TenantStatus, paper: Paper) -> Vec<String> {
    let pairs = [
        ("tenant", tenant.name.to_string()),
        ("weight", tenant.weight.to_string()),
        ("quotas", or_dash(quotas(&tenant.quotas))),
        ("may ask", ceilings(tenant.priority_max, tenant.ttl_max_ms)),
        ("times", times(&tenant.times)),
        ("has", or_dash(used(tenant))),
        ("leases", format!("{} granted, {} pending", tenant.leases_granted, tenant.leases_pending)),
    ];
    table::pairs(&pairs, paper)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_read_as_people_write_them() {
        assert_eq!(guarantee("H200=8").unwrap().1, 8);
        assert_eq!(limit("NVIDIA A100=none").unwrap(), (Model::new("NVIDIA A100").unwrap(), None));
        assert_eq!(limit_time("none"), Ok(LimitTime(None)));
        assert_eq!(limit_time("2h"), Ok(LimitTime(Some(7_200_000))));
        let limits =
            pool_api::TenantTimes { limit_max_ms: Some(7_200_000), ..pool_api::TenantTimes::default() };
        assert_eq!(times(&limits), "time limit none (at most 2h), idle limit none");
        assert!(guarantee("H200").is_err() && guarantee("H200=x").is_err() && limit("=3").is_err());
        let quota = |guaranteed, limit| Quota { guaranteed, limit };
        let h200 = Model::new("H200").unwrap();
        assert_eq!(quotas(&[(h200.clone(), quota(8, Some(32)))].into()), "H200 8 to 32");
        assert_eq!(quotas(&[(h200, quota(8, None))].into()), "H200 from 8");
    }
}
