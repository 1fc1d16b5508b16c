//! `dxpu box drain`: at once, or with grace and progress.
//!
//! ```text
//!   drain --grace 30m    cordon ──▶ leases end by themselves ──▶ drain: the rest moves ──▶ empty
//! ```
//!
//! The grace is this command's: should it be killed, the box stays cordoned and no lease is moved.

use super::gpu_box::Act;
use crate::operate::words::{counted, duration};
use crate::support::exit::{Exit, Outcome};
use crate::support::pool_access::failure;
use pool_api::{BoxDetail, LeaseId, Name};
use pool_client::{Client, ClientError};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How often the box is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) fn run(act: Act, grace: Option<Duration>, wait: bool) -> Outcome {
    if grace.is_none() && !wait {
        return act.run("drain", "is being emptied");
    }
    let client = act.client()?;
    let mut told = None;
    if let Some(grace) = grace {
        act.ask(&client, "cordon")?;
        let until = Instant::now() + grace;
        while Instant::now() < until {
            let left = leases(&client, act.name()).map_err(failure)?;
            if left.is_empty() {
                break;
            }
            let left_ms = u64::try_from(until.saturating_duration_since(Instant::now()).as_millis());
            let then = format!("they are moved in {}", duration(left_ms.unwrap_or(u64::MAX)));
            tell(&mut told, act.name(), &left, &then);
            std::thread::sleep(LOOK_EVERY);
        }
    }
    act.ask(&client, "drain")?;
    loop {
        let left = leases(&client, act.name()).map_err(failure)?;
        if left.is_empty() {
            outln!("box {} is empty", act.name());
            return Ok(Exit::Success);
        }
        tell(&mut told, act.name(), &left, "they move as soon as there are other GPUs for them");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The leases that have GPUs of the box.
fn leases(client: &Client, name: &Name) -> Result<BTreeSet<LeaseId>, ClientError> {
    let detail: BoxDetail = client.get(&format!("/v1/boxes/{name}"), Duration::ZERO)?;
    Ok(detail.gpus.iter().flat_map(|gpu| &gpu.holders).map(|holder| holder.lease).collect())
}

/// Says how many are left, whenever that changes.
fn tell(told: &mut Option<BTreeSet<LeaseId>>, name: &Name, left: &BTreeSet<LeaseId>, then: &str) {
    if told.as_ref() != Some(left) {
        let names: Vec<String> = left.iter().map(ToString::to_string).collect();
        outln!("box {name}: {} left; {then} ({})", counted(left.len() as u64, "lease"), names.join(" "));
        *told = Some(left.clone());
    }
}
