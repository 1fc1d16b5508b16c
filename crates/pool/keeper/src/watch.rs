//! Follows the lease: what it wants of the program is told to the program, and the program's answers to the manager.

use crate::decide::Spot;
use crate::links::Asked;
use crate::recover::{arrived, is_final, second_place};
use crate::serve::{Shared, tell};
use keeper::{ToProgram, What};
use locks::lock;
use pool_api::{
    DrilledRequest, Lease, LeaseState, MovedRequest, ParkedRequest, ProtectionReport, Purpose, as_note,
};
use std::sync::Arc;
use std::time::Duration;

/// How long one question about the lease waits at the manager.
const ASK_FOR: Duration = Duration::from_secs(5);
/// How soon a manager that did not answer is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How often it is looked whether there is something to report: no oftener than programs say it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A manager that has just begun to lead knows nothing: so it is told again, also without news.
const TELL_AGAIN_AFTER_MS: u64 = 15_000;

/// A program that has not called CUDA yet, or whose library is another, has nothing that could go on elsewhere.
const NO_LINK: &str = "the program has no protected link to this GPU now";

/// Until the keeper is over: waits for changes of the lease, which also renews it.
pub(crate) fn follow(shared: &Arc<Shared>) {
    while !shared.is_over() {
        let version = lock(&shared.state).lease.version;
        match shared.client.wait_for_lease(shared.id, version, ASK_FOR) {
            Ok(lease) => {
                shared.learn(&lease);
                if !lease.state.is_live() {
                    return;
                }
                act(shared);
            }
            Err(_) => std::thread::sleep(ASK_AGAIN_AFTER),
        }
    }
}

/// Asks the program for what the lease wants and it has not been asked for.
pub(crate) fn act(shared: &Arc<Shared>) {
    let mut state = lock(&shared.state);
    if state.lease.state != LeaseState::Granted {
        state.asked = None;
        return;
    }
    if let Some(moving) = state.lease.moving.clone() {
        let to: Spot = (moving.to.gpu.clone(), moving.to.epoch);
        let asked = Asked::Second { to: to.clone(), purpose: moving.purpose };
        let Some(index) = state.moving_index(&moving) else { return };
        let links = state.links_of(index);
        if state.asked.as_ref() == Some(&asked) {
            return;
        }
        if links.is_empty() {
            drop(state);
            return stay(shared, &to, moving.purpose, NO_LINK);
        }
        state.asked = Some(asked);
        drop(state);
        // Finding a way takes a while, and the program's other words are heard meanwhile.
        let of = shared.clone();
        let lead = move || lead_there(&of, index, &links, &to, moving.purpose);
        let _ = std::thread::Builder::new().name("dxpu-second-place".to_owned()).spawn(lead);
        return;
    }
    if matches!(state.asked, Some(Asked::Second { .. })) {
        state.asked = None;
    }
    if state.lease.suspend_wanted {
        drop(state);
        suspend(shared);
    }
}

fn lead_there(shared: &Shared, index: usize, links: &[u64], to: &Spot, purpose: Purpose) {
    let place = match second_place(shared, index) {
        Ok((place, spot)) if spot == *to => place,
        Ok(_) => return,
        Err(why) => return stay(shared, to, purpose, &why),
    };
    // A drill needs one link; the whole program moves or none of it.
    let told = if purpose == Purpose::Drill { &links[..1] } else { links };
    let word = || match purpose {
        Purpose::Drill => ToProgram::Drill { place: place.clone() },
        Purpose::Asked | Purpose::Drain => ToProgram::Move { place: place.clone() },
    };
    for id in told {
        if let Some(link) = lock(&shared.state).links.get_mut(id) {
            link.has_moved = false;
        }
        tell(shared, *id, &word());
    }
}

fn stay(shared: &Shared, to: &Spot, purpose: Purpose, why: &str) {
    let (gpu, epoch, refused) = (to.0.clone(), to.1, Some(as_note(why)));
    let answer = match purpose {
        Purpose::Drill => {
            let request = DrilledRequest { gpu, epoch, took_ms: 0, difference: None, refused };
            shared.client.drilled(shared.id, &request)
        }
        Purpose::Asked | Purpose::Drain => {
            shared.client.moved(shared.id, &MovedRequest { gpu, epoch, refused })
        }
    };
    lock(&shared.state).asked = None;
    if let Ok(lease) = answer {
        shared.learn(&lease);
    }
}

/// Has every link end its session. Links that are parked already stay so.
fn suspend(shared: &Shared) {
    let mut state = lock(&shared.state);
    if state.asked.is_some() || (state.links.is_empty() && !state.lease.suspend_wanted) {
        return;
    }
    state.asked = Some(Asked::Suspend);
    if state.links.is_empty() {
        drop(state);
        return refused(shared, What::Suspend, NO_LINK);
    }
    let links: Vec<u64> =
        state.links.iter().filter(|(_, link)| link.parked.is_none()).map(|(id, _)| *id).collect();
    drop(state);
    if links.is_empty() {
        // It has not called CUDA since it was suspended: no link has to be asked.
        return answered(shared);
    }
    for id in links {
        tell(shared, id, &ToProgram::Suspend {});
    }
}

/// A link has answered, or is gone: when all have, the manager is told.
pub(crate) fn answered(shared: &Shared) {
    let state = lock(&shared.state);
    match state.asked.clone() {
        Some(Asked::Second { to, purpose: Purpose::Asked | Purpose::Drain }) => {
            let moving = state.lease.moving.as_ref();
            let Some(index) = moving.and_then(|moving| state.moving_index(moving)) else { return };
            let links = state.links_of(index);
            let all = links.iter().all(|id| state.links[id].has_moved);
            drop(state);
            if links.is_empty() {
                stay(shared, &to, Purpose::Asked, NO_LINK);
            } else if all {
                say_moved(shared, &to, &links);
            }
        }
        Some(Asked::Suspend) => {
            let all = !state.links.is_empty() && state.links.values().all(|link| link.parked.is_some());
            let image_bytes = state.links.values().filter_map(|link| link.parked).sum();
            let spot = state.spot(0);
            drop(state);
            if let Some((gpu, epoch)) = spot.filter(|_| all) {
                let request = ParkedRequest { gpu, epoch, image_bytes, refused: None };
                let answer = until_heard(shared, || shared.client.parked(shared.id, &request));
                lock(&shared.state).asked = None;
                match answer {
                    Ok(lease) => {
                        shared.learn(&lease);
                        shared.say(suspended(&lease));
                    }
                    Err(why) => shared.say(format!("the lease keeps its GPUs: {why}")),
                }
            }
        }
        Some(Asked::Second { purpose: Purpose::Drill, .. }) | None => {}
    }
}

/// What the user is told of a program that is kept as an image.
fn suspended(lease: &Lease) -> String {
    match lease.moves.last().filter(|_| lease.is_unseated()) {
        Some(left) => format!("the program is suspended: {}; it waits for another seat", left.reason),
        None => "the program is suspended; its GPUs are given back until it calls CUDA again".to_owned(),
    }
}

fn say_moved(shared: &Shared, to: &Spot, links: &[u64]) {
    let request = MovedRequest { gpu: to.0.clone(), epoch: to.1, refused: None };
    let answer = until_heard(shared, || shared.client.moved(shared.id, &request));
    lock(&shared.state).asked = None;
    match answer {
        Ok(lease) => {
            arrived(shared, &lease, links, to);
            shared.say(format!("the program goes on at {}", to.0));
        }
        // The second place was given back: the program will say that it is lost, and hear where the lease is.
        Err(why) => {
            let mut state = lock(&shared.state);
            for id in links {
                if let Some(link) = state.links.get_mut(id) {
                    link.at = to.clone();
                }
            }
            drop(state);
            shared
                .say(format!("the program went to {}, which its lease does not have any more: {why}", to.0));
        }
    }
}

/// Says something until a manager has heard it, or refuses it.
fn until_heard<T>(
    shared: &Shared,
    say: impl Fn() -> Result<T, pool_client::ClientError>,
) -> Result<T, String> {
    loop {
        match say() {
            Ok(answer) => return Ok(answer),
            Err(error) if is_final(&error) || shared.is_over() => return Err(error.to_string()),
            Err(_) => std::thread::sleep(ASK_AGAIN_AFTER),
        }
    }
}

/// The program goes on where it was.
pub(crate) fn refused(shared: &Shared, what: What, why: &str) {
    let asked = lock(&shared.state).asked.clone();
    match (what, asked) {
        (What::Move | What::Drill, Some(Asked::Second { to, purpose })) => stay(shared, &to, purpose, why),
        (What::Suspend, Some(Asked::Suspend)) => {
            let spot = lock(&shared.state).spot(0);
            if let Some((gpu, epoch)) = spot {
                let request = ParkedRequest { gpu, epoch, image_bytes: 0, refused: Some(as_note(why)) };
                if let Ok(lease) = shared.client.parked(shared.id, &request) {
                    shared.learn(&lease);
                }
            }
            let now_ms = shared.now_ms();
            let mut state = lock(&shared.state);
            state.asked = None;
            state.restart_idleness(now_ms);
        }
        _ => {}
    }
}

/// The program has drilled.
pub(crate) fn drilled(shared: &Shared, took_ms: u64, difference: Option<String>) {
    let asked = lock(&shared.state).asked.clone();
    let Some(Asked::Second { to, purpose: Purpose::Drill }) = asked else { return };
    let difference = difference.map(|text| as_note(&text));
    let request = DrilledRequest { gpu: to.0, epoch: to.1, took_ms, difference, refused: None };
    let answer = until_heard(shared, || shared.client.drilled(shared.id, &request));
    lock(&shared.state).asked = None;
    if let Ok(lease) = answer {
        shared.learn(&lease);
    }
}

/// Until the keeper is over: tells the manager how well the program is protected, and suspends it when it is idle.
pub(crate) fn report(shared: &Arc<Shared>) {
    let mut told_ms = 0;
    let mut has_complained = false;
    while !shared.is_over() {
        std::thread::sleep(LOOK_EVERY);
        let now_ms = shared.now_ms();
        let mut state = lock(&shared.state);
        let is_due = now_ms.saturating_sub(told_ms) >= TELL_AGAIN_AFTER_MS && !state.links.is_empty();
        let is_new = std::mem::take(&mut state.is_protection_new);
        let links = state.report();
        let idle = shared.settings.suspend_when_idle.map(|limit| {
            let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            state.is_idle(limit_ms, now_ms)
        });
        drop(state);
        if is_new || is_due {
            told_ms = now_ms;
            let told = shared.client.set_protection(shared.id, &ProtectionReport { links });
            lock(&shared.state).is_protection_new |= told.is_err();
        }
        match idle {
            Some(Some(true)) => suspend(shared),
            Some(None) if !std::mem::replace(&mut has_complained, true) => shared.say(
                "it is not known yet whether the program is idle: its library has not said how well it is protected",
            ),
            _ => {}
        }
    }
}
