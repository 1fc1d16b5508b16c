//! `dxpu status` and `dxpu whoami`: the pool in a few lines, and who one is there.

use super::list::Look;
use super::words::{counted, name_of, time, who};
use crate::support::exit::Outcome;
use crate::support::paint::Paper;
use crate::support::table::{self, Cell, Column};
use pool_api::{BoxRecord, BoxState, Capacity, Lease, LeaseState, WhoAmI};
use pool_client::{Client, ClientError};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Show the pool in a few lines: what there is, what is free, what you may have
#[derive(clap::Args)]
pub(crate) struct Status {
    #[command(flatten)]
    look: Look,
}

/// Show who you are in the pool, and which manager was asked
#[derive(clap::Args)]
pub(crate) struct Whoami {
    #[command(flatten)]
    look: Look,
}

#[derive(Debug, Serialize)]
struct Picture {
    managers: Vec<String>,
    identity: WhoAmI,
    capacity: Vec<Capacity>,
    leases: BTreeMap<String, u64>,
    /// By state; nothing for a tenant, which does not see boxes.
    boxes: Option<BTreeMap<String, u64>>,
}

impl Status {
    pub(crate) fn run(self) -> Outcome {
        self.look.show(fetch, lines)
    }
}

impl Whoami {
    pub(crate) fn run(self) -> Outcome {
        let managers = self.look.access.find()?.managers;
        self.look.show(
            |client| client.get::<WhoAmI>("/v1/whoami", Duration::ZERO),
            |me, paper| {
                let tenant = me.tenant.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
                let pairs = [
                    ("identity", me.identity.clone()),
                    ("role", me.role.clone()),
                    ("tenant", tenant),
                    ("managers", managers.join(" ")),
                    ("their clock", time(me.now_ms)),
                ];
                table::pairs(&pairs, paper)
            },
        )
    }
}

fn fetch(client: &Client) -> Result<Picture, ClientError> {
    let identity: WhoAmI = client.get("/v1/whoami", Duration::ZERO)?;
    let capacity = client.get("/v1/capacity", Duration::ZERO)?;
    let mut leases = BTreeMap::new();
    for lease in super::ask::all::<Lease>(client, "/v1/leases")?.0 {
        if lease.state != LeaseState::Ended {
            *leases.entry(name_of(&lease.state)).or_default() += 1;
        }
    }
    let boxes = match super::ask::all::<BoxRecord>(client, "/v1/boxes") {
        Ok((boxes, _)) => {
            let mut states: BTreeMap<String, u64> = BTreeMap::new();
            boxes.iter().for_each(|one| *states.entry(state(one)).or_default() += 1);
            Some(states)
        }
        // A tenant does not see boxes.
        Err(error) if error.code() == Some(pool_api::ErrorCode::Forbidden) => None,
        Err(error) => return Err(error),
    };
    Ok(Picture { managers: client.credential().managers.clone(), identity, capacity, leases, boxes })
}

fn state(record: &BoxRecord) -> String {
    match (record.state, &record.drain) {
        (BoxState::Draining, Some(drain)) if !drain.drain => "cordoned".to_owned(),
        (state, _) => name_of(&state),
    }
}

fn lines(picture: &Picture, paper: Paper) -> Vec<String> {
    let counts = |counts: &BTreeMap<String, u64>| {
        let each: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
        if each.is_empty() { "none".to_owned() } else { each.join(", ") }
    };
    let me = &picture.identity;
    let mut pairs = vec![
        ("manager", picture.managers.join(" ")),
        ("you", format!("{} ({})", who(&me.identity), me.role)),
    ];
    if let Some(boxes) = &picture.boxes {
        pairs.push(("boxes", counts(boxes)));
    }
    let whose = if me.tenant.is_some() { "your leases" } else { "leases" };
    pairs.push((whose, counts(&picture.leases)));
    let mut lines = table::pairs(&pairs, paper);
    lines.push(String::new());
    if picture.capacity.is_empty() {
        lines.push(
            "no GPUs yet. A box brings them: `dxpu box --help`, or `dxpu up` for a pool on this machine"
                .to_owned(),
        );
        return lines;
    }
    let mut columns = vec![
        Column::Cut("MODEL"),
        Column::Number("WORKING"),
        Column::Number("FREE"),
        Column::Number("SPARES"),
    ];
    if me.tenant.is_some() {
        columns.extend([
            Column::Number("YOURS"),
            Column::Number("LIMIT"),
            Column::Number("YOU MAY HAVE NOW"),
        ]);
    }
    let rows: Vec<Vec<Cell>> = picture.capacity.iter().map(|of| row(of, me.tenant.is_some())).collect();
    lines.extend(table::lines(&columns, &rows, paper));
    let free: u64 = picture.capacity.iter().map(|of| of.free).sum();
    lines.push(String::new());
    for of in picture.capacity.iter().filter(|of| of.parts_milli > 0) {
        let (free, all) = (of.parts_free_milli as f64 / 1000.0, of.parts_milli as f64 / 1000.0);
        lines.push(format!(
            "{free} of {all} {} free in parts: dxpu run --gpus 1 --share MILLI,SIZE -- PROGRAM",
            of.model
        ));
    }
    lines.push(format!("{} free: dxpu run --gpus 1 -- PROGRAM", counted(free, "GPU")));
    lines
}

fn row(of: &Capacity, is_tenant: bool) -> Vec<Cell> {
    let mut row: Vec<Cell> = vec![
        of.model.to_string().into(),
        of.working.to_string().into(),
        of.free.to_string().into(),
        of.spares.to_string().into(),
    ];
    if is_tenant {
        let used = of.used_milli as f64 / 1000.0;
        row.extend([
            Cell::from(format!("{used}")),
            of.limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string()).into(),
            of.available.to_string().into(),
        ]);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool_api::{Model, Name};

    fn picture(tenant: Option<&str>) -> Picture {
        Picture {
            managers: vec!["https://m:7500".to_owned()],
            identity: WhoAmI {
                identity: "spiffe://dxpu/tenant/vision/ada".to_owned(),
                role: "tenant".to_owned(),
                tenant: tenant.map(|name| Name::new(name).unwrap()),
                now_ms: 0,
            },
            capacity: vec![Capacity {
                model: Model::new("H200").unwrap(),
                working: 8,
                free: 3,
                spares: 1,
                used_milli: 2500,
                guaranteed: 0,
                limit: Some(4),
                parts_milli: 2000,
                parts_free_milli: 250,
                available: 1,
            }],
            leases: [("granted".to_owned(), 2)].into(),
            boxes: None,
        }
    }

    #[test]
    fn a_tenant_sees_what_there_is_and_what_it_may_have() {
        let paper = Paper { width: None, height: None, is_colourful: false };
        let text = lines(&picture(Some("vision")), paper).join("\n");
        assert!(
            text.contains("you          vision/ada (tenant)") && text.contains("your leases  2 granted"),
            "{text}"
        );
        let row = text.lines().find(|line| line.starts_with("H200")).unwrap();
        assert!(text.contains("0.25 of 2 H200 free in parts"), "{text}");
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["H200", "8", "3", "1", "2.5", "4", "1"]);
        let text = lines(&picture(None), paper).join("\n");
        assert!(!text.contains("YOU MAY HAVE") && text.contains("3 GPUs free"), "{text}");
    }
}
