//! Looking for another session when the last one is over, and bringing it to where the program is.
//!
//! ```text
//!   hold the wire ▸ a place ▸ open ▸ Guard ▸ expect everything again ▸ replay (manifest, image, commands) ▸ live, release
//!                     └── fails: the next place, the same one again, or what the keeper says (`places`)
//! ```

mod session;

use super::{
    Link,
    connect::{Opened, Parts, open_timed_session, take_apart},
    end::LinkEnd,
    events,
    keeper_line::Answer,
    places::{Failure, Next, Place, Search},
    queue::HeldWire,
    reply_reader::ReplyReader,
    survival::Shared,
    wires::SessionNumber,
};
use crate::log;
use cuda_abi::CudaError;
use cuda_wire::{GuardInfo, Welcome};
use keeper::FromProgram;
use session::{NewSession, Spent};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use transport::{Address, Tx};
use worker_link::CONNECT_TIMEOUT;

/// The pause after a failed round, doubled up to a second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a place may take for each answer, if there are others. A machine that is gone says nothing at all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts the thread. False: it cannot be started.
pub(super) fn start(link: &Link, shared: &Arc<Shared>) -> bool {
    let Some(link) = link.shared().upgrade() else { return false };
    let shared = Arc::clone(shared);
    let resume = move || {
        // The last writer leaves as soon as it sees the closed connection.
        let wire = link.queue.hold();
        let mut search = shared.search(None);
        let _ = go_on(&link, &shared, wire, &mut search);
    };
    crate::threads::spawn("dxpu-resume", resume).is_ok()
}

/// Looks for a session until the program goes on in one, and says where. The error says why there is none; the link is
/// lost then.
pub(super) fn go_on(
    link: &Arc<Link>,
    shared: &Arc<Shared>,
    wire: HeldWire<'_>,
    search: &mut Search,
) -> Result<Address, String> {
    let began = Instant::now();
    // Later than that if the keeper says that the program waits whatever its patience.
    let mut patient_since = began;
    link.credit.suspend();
    let patience = shared.core().place.config.patience;
    let mut pause = FIRST_PAUSE;
    let mut rest = || {
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    };
    let why = loop {
        if shared.core().own_fault.is_some() {
            break String::new();
        }
        match search.next(patient_since.elapsed(), patience) {
            Next::Try(place) => match attempt(link, shared, &place, search.has_others()) {
                Ok(went_on) => {
                    // With a keeper of frames no write fails.
                    settle(shared, &place.address, &went_on, began.elapsed());
                    let _ = wire.release(went_on.tx, went_on.number);
                    return Ok(place.address);
                }
                Err(Failure::Final(why)) => break why,
                Err(failure) => {
                    log::info(&format!("worker {}: {}", place.address, failure.why()));
                    search.failed(&failure);
                }
            },
            Next::Pause => rest(),
            Next::AskKeeper => {
                rest();
                match ask_keeper(shared, search, patience.saturating_sub(patient_since.elapsed())) {
                    Ok(told_to_wait) => patient_since = told_to_wait.unwrap_or(patient_since),
                    Err(why) => break why,
                }
            }
            Next::GiveUp(why) => break why,
        }
    };
    // Before anything else says that the link is lost: threads of the last session may notice its end only now.
    let own_fault = shared.core().own_fault;
    link.lose(
        &own_fault.map_or_else(|| LinkEnd::NotResumed(why.clone()), |error| LinkEnd::OwnFault(error.code())),
    );
    drop(wire);
    Err(why)
}

/// Asks the keeper for a place, and says when it last had the program wait whatever its patience. The error: it says that there
/// is none.
fn ask_keeper(shared: &Shared, search: &mut Search, patience: Duration) -> Result<Option<Instant>, String> {
    let Some(line) = shared.keeper() else {
        search.keeper_is_gone();
        return Ok(None);
    };
    let (lost, config) = {
        let core = shared.core();
        let worker = core.place.address.to_string();
        let why = search.last_why().to_owned();
        (FromProgram::Lost { worker, why, is_device: core.is_device_lost }, core.place.config.clone())
    };
    match line.ask(&lost, Some(patience)) {
        Some(Answer::Place(place)) => match Place::named(&place, &config) {
            Ok(place) => search.give(place),
            Err(why) => log::warn(&format!("`dxpu run` names a place that cannot be used: {why}")),
        },
        Some(Answer::Nowhere(why)) => return Err(why),
        None if line.is_gone() => search.keeper_is_gone(),
        None => {}
    }
    Ok(line.told_to_wait())
}

/// A session in which the program goes on.
struct WentOn {
    tx: Tx,
    number: SessionNumber,
    replayed_bytes: u64,
    spent: Spent,
}

/// Says that the program goes on.
fn settle(shared: &Shared, address: &Address, went_on: &WentOn, gap: Duration) {
    let (worker, gap_ms) = (address.to_string(), gap.as_millis() as u64);
    let WentOn { replayed_bytes, spent, .. } = went_on;
    log::warn(&format!(
        "worker {worker}: the program goes on in another session after {gap_ms} ms ({spent})"
    ));
    let replayed_bytes = *replayed_bytes;
    shared.tell_keeper(&FromProgram::Resumed { worker, gap_ms, replayed_bytes });
}

/// Opens a session at `place` and brings it to where the program is. Gives back the way for commands.
fn attempt(
    link: &Arc<Link>,
    shared: &Arc<Shared>,
    place: &Place,
    has_others: bool,
) -> Result<WentOn, Failure> {
    let began = Instant::now();
    let number = shared.core().number;
    let config = &place.config;
    let timeout = if has_others { ANSWER_TIMEOUT } else { CONNECT_TIMEOUT };
    let ranges = vec![shared.welcome.va];
    let timeline = link.timeline.is_some();
    let mut opened =
        open_timed_session(&place.address, config, ranges, timeout, timeline).map_err(of_worker)?;
    check_same(&shared.welcome, &opened.welcome)?;
    let guard = guard(shared, &mut opened, timeout)?;
    let opened_after = began.elapsed();
    let welcome = opened.welcome.clone();
    let Parts { command_tx, command_rx, events_rx, wires } = take_apart(opened, number, shared.link());
    let mut session = NewSession::new(link, shared, Arc::new(wires), command_tx, place);
    let bring = || {
        session.begin(&welcome)?;
        let (Some(on_landed), Some(helpers)) = (shared.on_landed(), shared.helpers()) else {
            return Err(Failure::Final("the link is not complete".to_owned()));
        };
        let wires = session.wires();
        shared.expectations().begin_session(wires, || link.install(Arc::clone(wires)), on_landed);
        session.expect_again();
        events::listen(link, session.wires(), events_rx, config.stall_timeout, helpers).map_err(again)?;
        let reader = session.read_replies(ReplyReader::new(command_rx, config.reply_spin()))?;
        session.replay()?;
        session.send_fence()?;
        let reader = reader.recv().map_err(|_| again("the new session was lost, too"))?;
        session.go_live(guard)?;
        link.replies.adopt(reader);
        Ok(())
    };
    match bring() {
        Ok(()) => {
            let (tx, replayed_bytes, spent) = session.into_parts();
            Ok(WentOn { tx, number, replayed_bytes, spent: Spent { session: opened_after, ..spent } })
        }
        Err(failure) => {
            session.give_up();
            Err(failure)
        }
    }
}

fn again(error: impl ToString) -> Failure {
    Failure::Again(error.to_string())
}

/// A worker that is not ready, or cannot be reached, is asked again; one that refuses is not.
fn of_worker(failure: worker_link::Failure) -> Failure {
    match &failure {
        worker_link::Failure::Refused { code, .. } if *code != CudaError::SYSTEM_NOT_READY => {
            Failure::Elsewhere(failure.to_string())
        }
        _ => again(failure),
    }
}

/// Another GPU would give other answers than the program has.
pub(super) fn check_same(before: &Welcome, now: &Welcome) -> Result<(), Failure> {
    let kind = |welcome: &Welcome| {
        let devices = welcome.devices.iter();
        let devices =
            devices.map(|device| (device.name.clone(), device.memory_bytes, device.attributes.clone()));
        (welcome.cuda_version, devices.collect::<Vec<_>>())
    };
    if kind(before) == kind(now) {
        return Ok(());
    }
    let why = "the worker's GPUs are of another kind, or its driver is another one".to_owned();
    Err(Failure::Elsewhere(why))
}

/// Has the new session protected, and checks that it can take the image, if there is one.
fn guard(shared: &Shared, opened: &mut Opened, timeout: Duration) -> Result<Option<GuardInfo>, Failure> {
    let guarded = shared.guard(&mut opened.command, timeout).map_err(again)?;
    let core = shared.core();
    let elsewhere = |why: &str| Err(Failure::Elsewhere(why.to_owned()));
    let Some(guarded) = guarded else {
        return match core.journal.base() {
            Some(_) => elsewhere("the worker keeps no images, so it cannot restore this program's"),
            None => Ok(None),
        };
    };
    let before = core.cuts.guard.as_ref();
    if before.is_some_and(|before| before.driver_build != guarded.info.driver_build) {
        return elsewhere("the worker's driver is another build");
    }
    let credit = &mut opened.welcome.memory_credit_bytes;
    *credit = credit.saturating_add(guarded.memory_credit_bytes);
    Ok(Some(guarded.info))
}
