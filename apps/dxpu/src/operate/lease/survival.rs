//! `dxpu lease move`, `suspend`, `resume` and `drill`, and how well a lease's program is protected.

use crate::operate::list::{Format, changed};
use crate::operate::words::{age, bytes, name_of, time};
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::pool_access::{PoolAccess, failure};
use pool_api::{Drill, GpuId, Lease, LeaseId, LeaseState, LinkProtection, MoveRequest, Name, Protection};
use pool_client::Client;
use std::time::{Duration, Instant};

/// How long one question waits at the manager.
const ASK_FOR: Duration = Duration::from_secs(5);
/// How long a program may take to be kept as an image before the command says that it goes on waiting.
const SUSPEND_WITHIN: Duration = Duration::from_secs(120);

/// A lease, and how its program is asked.
#[derive(clap::Args)]
pub(super) struct One {
    /// l- and 16 digits
    lease: LeaseId,
    #[command(flatten)]
    access: PoolAccess,
    /// How to show the lease afterwards
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: Format,
}

#[derive(clap::Args)]
pub(super) struct Move {
    #[command(flatten)]
    one: One,
    /// Which of its GPUs, as BOX/SLOT; the first, if left out
    #[arg(long, value_name = "GPU")]
    gpu: Option<GpuId>,
    /// Into this box; any, if left out
    #[arg(long, value_name = "BOX")]
    to: Option<Name>,
}

impl Move {
    /// Asks for a second place and waits until the program goes on there, or stays.
    pub(super) fn run(self) -> Outcome {
        let (client, id) = (self.one.access.client()?, self.one.lease);
        let request = MoveRequest { gpu: self.gpu, to_box: self.to };
        let asked = client.move_lease(id, &request).map_err(failure)?;
        let Some(way) = asked.moving.clone() else {
            return changed(self.one.output, &asked, &format!("lease {id} is where it shall be"));
        };
        let lease = until(&client, asked, |lease| lease.moving.as_ref() != Some(&way))?;
        let has_arrived =
            lease.grants.iter().any(|grant| grant.gpu == way.to.gpu && grant.epoch == way.to.epoch);
        if !has_arrived {
            let what =
                format!("lease {id} stays on {}: its program did not go on at {}", way.from, way.to.gpu);
            let hint =
                format!("`dxpu event ls` says why; `dxpu lease show {id}` says how well it is protected");
            return Err(Failure::new(Exit::Refused, what, hint).into());
        }
        changed(self.one.output, &lease, &format!("lease {id} went from {} to {}", way.from, way.to.gpu))
    }
}

impl One {
    /// Has the program kept as an image, and waits until it is.
    pub(super) fn suspend(self) -> Outcome {
        let (client, id) = (self.access.client()?, self.lease);
        let asked = client.suspend_lease(id).map_err(failure)?;
        let began = Instant::now();
        let is_done = |lease: &Lease| {
            !lease.suspend_wanted || began.elapsed() >= SUSPEND_WITHIN || !lease.state.is_live()
        };
        let lease = until(&client, asked, is_done)?;
        if lease.state == LeaseState::Parked {
            let kept = lease.parking.map_or(0, |parking| parking.image_bytes);
            let said = format!(
                "lease {id} is parked: its program is an image of {}, its GPUs are given back",
                bytes(kept)
            );
            return changed(self.output, &lease, &said);
        }
        let (what, hint) = if lease.suspend_wanted {
            let what = format!("the program of lease {id} has not answered within {SUSPEND_WITHIN:?}");
            (what, format!("it may still do so; `dxpu lease resume {id}` takes the wish back"))
        } else {
            let what = format!("the program of lease {id} cannot be kept as an image now, and goes on");
            (what, "`dxpu event ls` says why".to_owned())
        };
        Err(Failure::new(Exit::Refused, what, hint).into())
    }

    /// Has a parked lease ask for GPUs again.
    pub(super) fn resume(self) -> Outcome {
        let (client, id) = (self.access.client()?, self.lease);
        let lease = client.resume_lease(id).map_err(failure)?;
        let said = match lease.state {
            LeaseState::Pending => {
                format!("lease {id} waits for GPUs; `dxpu lease explain {id}` says for which")
            }
            _ => format!("lease {id} has {}", super::gpus(&lease)),
        };
        changed(self.output, &lease, &said)
    }

    /// Has the program try a recovery on a GPU of its own, and prints how it went.
    pub(super) fn drill(self) -> Outcome {
        let (client, id) = (self.access.client()?, self.lease);
        let asked = client.drill_lease(id).map_err(failure)?;
        let Some(way) = asked.moving.clone() else {
            let what = format!("lease {id} has no second place to drill on");
            return Err(Failure::new(Exit::Refused, what, "try again").into());
        };
        until(&client, asked, |lease| lease.moving.as_ref() != Some(&way))?;
        let known = client.protection(id).map_err(failure)?;
        let is_it = |drill: &Drill| drill.gpu == way.to.gpu && drill.epoch == way.to.epoch;
        let drill = known.last_drill.filter(is_it).ok_or_else(|| {
            let what = format!("the program of lease {id} did not drill on {} in time", way.to.gpu);
            Failure::new(Exit::Refused, what, format!("`dxpu lease show {id}` says how well it is protected"))
        })?;
        if let Some(why) = &drill.refused {
            let what = format!("the program of lease {id} cannot drill now: {why}");
            return Err(Failure::new(Exit::Refused, what, format!("see `dxpu lease show {id}`")).into());
        }
        if let Some(difference) = &drill.difference {
            let what = format!("a copy of the program of lease {id} on {} differed: {difference}", drill.gpu);
            let hint = "do not rely on its protection; report this with the program's DXPU_LOG=debug output";
            return Err(Failure::new(Exit::Failure, what, hint).into());
        }
        changed(self.output, &drill, &format!("lease {id}: {}", drill_in_words(&drill)))
    }
}

fn until(client: &Client, mut lease: Lease, is_done: impl Fn(&Lease) -> bool) -> Result<Lease, Failure> {
    while !is_done(&lease) {
        lease = client.wait_for_lease(lease.id, lease.version, ASK_FOR).map_err(failure)?;
    }
    Ok(lease)
}

fn drill_in_words(drill: &Drill) -> String {
    match (&drill.refused, &drill.difference) {
        (Some(why), _) => format!("no drill on {}: {why}", drill.gpu),
        (None, Some(difference)) => format!("a copy on {} differed: {difference}", drill.gpu),
        (None, None) => {
            format!("a copy on {} went on after {} ms, without a difference", drill.gpu, drill.took_ms)
        }
    }
}

/// How well the program of a lease is protected, and where it waits.
pub(super) fn lines(lease: &Lease, protection: Option<&Protection>) -> Vec<String> {
    let mut lines = Vec::new();
    if lease.request.survive.is_none() {
        return lines;
    }
    if let Some(moving) = &lease.moving {
        lines.push(format!(
            "on its way since {} to {}: {}",
            time(moving.since_ms),
            moving.to.gpu,
            moving.reason
        ));
    }
    if lease.suspend_wanted {
        lines.push("its program is asked to be kept as an image".to_owned());
    }
    if let Some(parking) = &lease.parking {
        let (since, image) = (time(parking.since_ms), bytes(parking.image_bytes));
        lines.push(match lease.moves.last().filter(|_| lease.is_unseated()) {
            Some(left) => format!(
                "suspended since {since}, with an image of {image}: {}; its program waits for another seat and goes on there",
                left.reason
            ),
            None => format!("parked since {since}, with an image of {image}"),
        });
    }
    let Some(protection) = protection else { return lines };
    match protection.reported_ms {
        None => lines.push(
            "protection: unknown, its keeper (`dxpu run --survive`) has said nothing to this manager"
                .to_owned(),
        ),
        Some(at_ms) if protection.links.is_empty() => {
            lines.push(format!(
                "protection: none, its program has no protected link ({} ago)",
                age(at_ms, protection.now_ms)
            ));
        }
        Some(at_ms) => {
            let heard_ms = protection.now_ms.saturating_sub(at_ms);
            lines.extend(protection.links.iter().map(|link| of_link(link, heard_ms)));
        }
    }
    match &protection.last_drill {
        Some(drill) => {
            let ago = age(drill.at_ms, protection.now_ms);
            lines.push(format!("last drill {ago} ago: {}", drill_in_words(drill)));
        }
        None => lines.push(format!(
            "last drill: none that this manager knows of; `dxpu lease drill {}` does one",
            lease.id
        )),
    }
    lines
}

/// How one link is protected; `heard_ms`: how long ago its keeper has said so.
fn of_link(link: &LinkProtection, heard_ms: u64) -> String {
    let mut parts = vec![format!("protection of {}: {}", link.gpu, name_of(&link.state))];
    if !link.why.is_empty() {
        parts.push(link.why.clone());
    }
    if link.cut > 0 {
        let safe_ms = link.safe_age_ms + heard_ms;
        parts.push(format!("last safe image {:.1} s old", safe_ms as f64 / 1000.0));
        match link.level {
            0 => {}
            1 => parts.push("level 1: one box has it".to_owned()),
            level => parts.push(format!("level {level}: {level} boxes have it")),
        }
        parts.push(format!("{} and {} to tell again", bytes(link.image_bytes), bytes(link.journal_bytes)));
        parts.push(format!("a recovery would take {:.1} s", link.predicted_ms as f64 / 1000.0));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool_api::ProtectionState;

    fn lease() -> Lease {
        let text = r#"{"id":"l-00c0ffee00c0ffee","tenant":"t","owner":"o","request":{"survive":"gpu"},"state":"granted",
            "grants":[],"created_ms":0,"expires_ms":0,"version":1}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn protection_reads_as_an_answer() {
        let gpu: GpuId = "a/0".parse().unwrap();
        let link = LinkProtection {
            gpu: gpu.clone(),
            pid: 1,
            state: ProtectionState::Protected,
            why: String::new(),
            cut: 7,
            level: 2,
            safe_age_ms: 400,
            image_bytes: 12 << 30,
            journal_bytes: 1 << 20,
            pause_us: 90,
            predicted_ms: 900,
        };
        let drill = Drill { at_ms: 0, gpu, epoch: 2, took_ms: 640, difference: None, refused: None };
        let mut known = Protection {
            lease: LeaseId(1),
            reported_ms: Some(9_500),
            now_ms: 10_000,
            links: vec![link],
            last_drill: Some(drill),
        };
        let text = lines(&lease(), Some(&known)).join("\n");
        assert!(
            text.contains("a/0: protected, last safe image 0.9 s old, level 2: 2 boxes have it, 12.0 GiB"),
            "{text}"
        );
        assert!(text.contains("a recovery would take 0.9 s"), "{text}");
        assert!(text.contains("last drill 10s ago: a copy on a/0 went on after 640 ms"), "{text}");
        known.links[0].state = ProtectionState::Unprotected;
        known.links[0].why = "the worker has no guardian".into();
        assert!(lines(&lease(), Some(&known))[0].contains("unprotected, the worker has no guardian"));
        known.reported_ms = None;
        assert!(lines(&lease(), Some(&known))[0].contains("has said nothing"));
        let parked = r#"{"since_ms":1000,"image_bytes":1024}"#;
        let left = r#"{"from":"a/32","at_ms":0,"reason":"its GPU is needed","planned":true}"#;
        let mut guest = Lease {
            state: LeaseState::Pending,
            parking: serde_json::from_str(parked).unwrap(),
            moves: vec![serde_json::from_str(left).unwrap()],
            ..lease()
        };
        let text = lines(&guest, None).join("\n");
        assert!(text.contains("its GPU is needed; its program waits for another seat"), "{text}");
        guest.state = LeaseState::Parked;
        assert!(lines(&guest, None)[0].starts_with("parked since"), "a person has suspended it");
        let mut mortal = lease();
        mortal.request.survive = pool_api::Survive::None;
        assert!(lines(&mortal, Some(&known)).is_empty());
    }
}
