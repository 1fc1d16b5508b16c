//! A link that has lost its place, or has been parked, gets another.

use crate::decide::{Spot, Step, step, waits_for_a_seat};
use crate::serve::{Shared, tell};
use keeper::{Place, ToProgram};
use locks::lock;
use pool_api::{ErrorCode, Lease, LostRequest, SignedGrant, Verdict, as_note};
use pool_client::ClientError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How soon a manager, or a worker that is not there yet, is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// How often a program is told that it waits on. Its patience is longer.
const TELL_TO_WAIT_AFTER: Duration = Duration::from_millis(500);

/// A link has lost its place: the manager hears of it, and the link hears where to go on.
///
/// This runs in the thread of the link's connection, which has nothing else to hear meanwhile.
pub(crate) fn lost(shared: &Shared, id: u64, why: &str, is_device: bool) {
    let Some((index, at)) = whereabouts(shared, id) else { return };
    let mut deadline = Instant::now() + shared.settings.patience;
    let mut told_to_wait: Option<Instant> = None;
    let mut last = "no manager of the pool answers".to_owned();
    let mut has_said = false;
    while Instant::now() < deadline && !shared.is_over() {
        let request = LostRequest { gpu: at.0.clone(), epoch: at.1, why: as_note(why) };
        let lease = match shared.client.lost(shared.id, &request) {
            Ok(loss) => {
                if loss.verdict == Verdict::BoxDecides {
                    last.clone_from(&loss.message);
                }
                loss.lease
            }
            Err(error) if is_final(&error) => return nowhere(shared, id, error.to_string()),
            Err(error) => {
                last = error.to_string();
                pause(shared);
                continue;
            }
        };
        shared.learn(&lease);
        if !std::mem::replace(&mut has_said, true) {
            shared.say(format!("GPU {} is lost to the program ({why}); it waits for another", at.0));
        }
        if waits_for_a_seat(&lease) {
            deadline = Instant::now() + shared.settings.patience;
            if told_to_wait.is_none_or(|at| at.elapsed() >= TELL_TO_WAIT_AFTER) {
                tell(shared, id, &ToProgram::Wait {});
                told_to_wait = Some(Instant::now());
            }
        }
        let tried = match step(&lease, index, &at) {
            Step::Over(why) => return nowhere(shared, id, why),
            Step::Wait => Err("the lease waits for a GPU".to_owned()),
            Step::Same if is_device => Err(last.clone()),
            Step::Same | Step::Go => place(shared, index),
        };
        match tried {
            Ok((place, spot)) => return go_on(shared, id, place, index, spot),
            Err(problem) => last = problem,
        }
        pause(shared);
    }
    nowhere(shared, id, format!("there was no other GPU within {:?}: {last}", shared.settings.patience));
}

/// A parked program calls CUDA: the lease asks for GPUs again, and the link waits as long as the lease lives.
pub(crate) fn unpark(shared: &Shared, id: u64) {
    let Some((index, at)) = whereabouts(shared, id) else { return };
    let mut has_said = false;
    while !shared.is_over() {
        let lease = match shared.client.resume_lease(shared.id) {
            Ok(lease) => lease,
            Err(error) if is_final(&error) => return nowhere(shared, id, error.to_string()),
            Err(_) => {
                pause(shared);
                continue;
            }
        };
        shared.learn(&lease);
        match step(&lease, index, &at) {
            Step::Over(why) => return nowhere(shared, id, why),
            Step::Wait => {
                if !std::mem::replace(&mut has_said, true) {
                    shared.say(format!(
                        "the program waits for a GPU again (`dxpu lease explain {}`)",
                        lease.id
                    ));
                }
            }
            Step::Go | Step::Same => {
                if let Ok((place, spot)) = place(shared, index) {
                    return go_on(shared, id, place, index, spot);
                }
            }
        }
        pause(shared);
    }
}

fn whereabouts(shared: &Shared, id: u64) -> Option<(usize, Spot)> {
    lock(&shared.state).links.get(&id).map(|link| (link.index, link.at.clone()))
}

/// Whether asking again would change nothing.
pub(crate) fn is_final(error: &ClientError) -> bool {
    matches!(error.code(), Some(code) if !matches!(code, ErrorCode::Unavailable | ErrorCode::NotLeader | ErrorCode::TooMany))
}

/// Waits for news of the lease, for a moment.
fn pause(shared: &Shared) {
    let state = lock(&shared.state);
    drop(shared.changed.wait_timeout(state, ASK_AGAIN_AFTER));
}

/// A way to the GPU of this number, with its token in a file.
fn place(shared: &Shared, index: usize) -> Result<(Place, Spot), String> {
    let tokens = shared.client.lease_tokens(shared.id).map_err(|error| error.to_string())?;
    let grant = tokens.grants.get(index).ok_or_else(|| "the lease has fewer GPUs than before".to_owned())?;
    way(shared, grant, &tokens.ca_certificate, index)
}

/// The same for the second place of the lease.
pub(crate) fn second_place(shared: &Shared, index: usize) -> Result<(Place, Spot), String> {
    let tokens = shared.client.lease_tokens(shared.id).map_err(|error| error.to_string())?;
    let grant = tokens.moving.as_ref().ok_or_else(|| "the lease has given it back".to_owned())?;
    way(shared, grant, &tokens.ca_certificate, index)
}

fn way(shared: &Shared, grant: &SignedGrant, authority: &str, index: usize) -> Result<(Place, Spot), String> {
    let way = shared.ways.way_to(grant, authority)?;
    let number = shared.files.fetch_add(1, Ordering::SeqCst);
    let token_file = shared.settings.directory.join(format!("place-{number}.token"));
    let ca_file = shared.settings.directory.join(format!("place-{number}.pem"));
    let write = |path: &std::path::Path, text: &str| {
        machine::files::write_new(path, 0o600, text.as_bytes()).map_err(|error| error.to_string())
    };
    write(&token_file, &format!("{}\n", grant.token))?;
    write(&ca_file, authority)?;
    lock(&shared.state).addresses.insert(way.address.clone(), index);
    let place = Place {
        address: way.address,
        name: way.name,
        token_file: token_file.display().to_string(),
        ca_file: Some(ca_file.display().to_string()),
        fingerprint: None,
        // The library remembers where its images are.
        guardian: String::new(),
    };
    Ok((place, (grant.gpu.clone(), grant.epoch)))
}

fn go_on(shared: &Shared, id: u64, place: Place, index: usize, spot: Spot) {
    let now_ms = shared.now_ms();
    let mut state = lock(&shared.state);
    if let Some(link) = state.links.get_mut(&id) {
        (link.index, link.at, link.parked, link.since_ms) = (index, spot, None, now_ms);
        link.activity = None;
    }
    drop(state);
    tell(shared, id, &ToProgram::Place { place });
}

fn nowhere(shared: &Shared, id: u64, why: String) {
    shared.say(format!("the program cannot go on: {why}"));
    tell(shared, id, &ToProgram::Nowhere { why });
}

/// A lease in which the program's links are elsewhere: they are there from now on.
pub(crate) fn arrived(shared: &Shared, lease: &Lease, links: &[u64], spot: &Spot) {
    shared.learn(lease);
    let mut state = lock(&shared.state);
    for id in links {
        if let Some(link) = state.links.get_mut(id) {
            link.at = spot.clone();
            link.has_moved = false;
        }
    }
}
