//! What a link that survives remembers, and what of a session it gives to the program.
//!
//! ```text
//!   live ──broke──▶ resuming ──all that the program saw has happened again──▶ live
//!                      └──nothing to resume in, or it happened differently──▶ lost
//!   live ──the journal is over its budget──▶ unprotected ──broke──▶ lost
//! ```
//!
//! The journal has what was sent and what the program was given. Nothing reaches the program but through here, with the
//! number of the session that it came from: what a lost session still had under way comes again from the next one.
//!
//! Locks: the queue's wire before the core, and the core before nothing.

use super::{
    Link, content,
    cuts::Cuts,
    end::LinkEnd,
    events::{Events, Helpers},
    expected::{Expectations, OnLanded},
    faults::{Fault, Faults},
    keeper_line::KeeperLine,
    places::Place,
    queue::Keeper,
    reply_reader::Reply,
    resume,
    wires::{FIRST_SESSION, SessionNumber, Wires},
};
use crate::{host::HostRegion, log};
use cuda_abi::CudaError;
use cuda_wire::{ContextId, FIRST_INCARNATION, ImageRestored, Notice, TransferId, Welcome};
use journal::{
    Difference, Digest, HostCallHeard, HostCallVerdict, Journal, Observation, PullVerdict, Replay, Serving,
};
use locks::lock;
use std::{
    collections::HashMap,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak},
    time::{Duration, Instant},
};

mod protection;
pub(super) use protection::{Protection, Truncation};

/// Bytes of commands and host data that are kept before the protection ends.
const JOURNAL_BYTES_MAX: u64 = 2 << 30;

/// Whether a host function that the worker asks for runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It runs.
    Now,
    /// It ran already, for an earlier session: the worker is told so.
    Before,
    /// The session that asked is lost.
    Stale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Live,
    Resuming,
    /// The journal was given up. The program goes on, and a loss is an error.
    Unprotected,
    Lost,
}

/// The part of a link that outlives its sessions.
pub(super) struct Survival {
    shared: Arc<Shared>,
}

/// What the threads of a link share about its survival.
pub(super) struct Shared {
    core: Mutex<Core>,
    changed: Condvar,
    expectations: Arc<Expectations>,
    on_landed: OnceLock<OnLanded>,
    helpers: OnceLock<Helpers>,
    link: Arc<OnceLock<Weak<Link>>>,
    protection: Protection,
    keeper: OnceLock<Arc<KeeperLine>>,
    /// The thread that takes cuts sleeps here.
    guard_wake: Condvar,
    /// Times of cuts are those since then.
    started: Instant,
    /// What the first session's worker said of itself; another one must say the same.
    pub(super) welcome: Welcome,
}

pub(super) struct Core {
    pub(super) journal: Journal,
    /// Of the present session, until all that the lost one asked for has been asked for again.
    pub(super) replay: Option<Replay>,
    pub(super) phase: Phase,
    /// The present session, or the one that is about to be opened.
    pub(super) number: SessionNumber,
    /// What happened differently this time.
    pub(super) difference: Option<Difference>,
    /// How many differences of results were accepted in this resume.
    pub(super) accepted: u64,
    /// Pushes that were announced and not made.
    announced: HashMap<TransferId, u64>,
    /// Pushes that the program made while no session could take them.
    pub(super) late_pushes: Vec<(TransferId, Arc<[u8]>)>,
    /// Transfers that have landed, and their lengths: another session sends them again.
    pub(super) landed: HashMap<TransferId, u64>,
    /// The worker of the present session, or of the lost one.
    pub(super) place: Place,
    /// How often a worker was asked to protect a session.
    pub(super) incarnation: u64,
    pub(super) cuts: Cuts,
    /// A guardian that has the image of the last safe cut; empty: none that another worker could reach.
    pub(super) guardian: String,
    /// The device of the lost session failed: its worker will not do.
    pub(super) is_device_lost: bool,
    /// Faults that ended sessions with merged contexts.
    faults: Faults,
    /// How much the program was given.
    given: u64,
    /// When the present session took over; `None` before that.
    live_since: Option<Instant>,
    /// How long the last session was live; `None`: it never took over.
    lived: Option<Duration>,
    /// The error that is the program's own.
    pub(super) own_fault: Option<CudaError>,
    /// Why there is no protection any more.
    pub(super) why_unprotected: &'static str,
    /// Why the last session was lost.
    pub(super) why_lost: String,
    /// What the present session said to the restore of the image.
    pub(super) restored: Option<Result<ImageRestored, String>>,
    /// Images of modules that the present session will ask for: more than it takes unasked.
    pub(super) image_pulls: HashMap<TransferId, Arc<[u8]>>,
}

/// Bytes that a lane sends out of the journal.
pub(super) struct Kept(pub(super) Arc<[u8]>);

impl bulk::Source for Kept {
    fn fill(&self, offset: u64, target: &mut [u8]) {
        let start = offset as usize;
        target.copy_from_slice(&self.0[start..start + target.len()]);
    }

    fn view(&self, offset: u64, bytes: usize, send: &mut dyn FnMut(&[u8])) -> bool {
        let start = offset as usize;
        send(&self.0[start..start + bytes]);
        true
    }
}

impl Core {
    /// The journal's part of what the program is given; nothing if there is no protection any more.
    fn observe(&mut self, what: Observation) {
        self.given += 1;
        if self.phase != Phase::Unprotected {
            self.journal.observed(what);
        }
    }

    /// Ends the protection if the journal is too large.
    fn check_budget(&mut self) {
        if self.phase == Phase::Live && self.journal.is_full() {
            log::warn(&format!(
                "this program is no longer protected against the loss of its GPU: its commands and data since {} take more \
                 than {} MiB{}",
                if self.journal.base().is_some() { "the last image" } else { "the start" },
                self.journal.budget_bytes() >> 20,
                if self.cuts.why_given_up.is_empty() { "" } else { ", and no newer image could be taken" },
            ));
            self.give_up_protection("the journal is over its budget");
        }
    }

    /// The program goes on without protection.
    fn give_up_protection(&mut self, why: &'static str) {
        self.phase = Phase::Unprotected;
        self.why_unprotected = why;
        self.journal = Journal::new(0);
        self.replay = None;
        self.landed.clear();
        self.cuts.under_way = None;
    }

    fn drop_spent_replay(&mut self) {
        if self.phase == Phase::Live && self.replay.as_ref().is_some_and(Replay::is_spent) {
            self.replay = None;
        }
    }

    /// Something happened differently this time. The program cannot go on, unless its user accepts other results.
    pub(super) fn differs(&mut self, difference: Difference) {
        let is_of_results = self.replay.as_ref().is_some_and(|replay| replay.is_of_results(&difference));
        if !(is_of_results && self.place.config.accept) {
            self.difference.get_or_insert(difference);
            return;
        }
        self.accepted += 1;
        if self.accepted == 1 {
            log::warn(&format!(
                "{difference}; the program goes on with what it got then and with what the GPU has now, because \
                 DXPU_SURVIVE_ACCEPT says so"
            ));
        }
    }

    /// The present session is over, and another one is looked for. What was under way in it is given up.
    pub(super) fn end_session(&mut self) {
        self.number += 1;
        self.phase = Phase::Resuming;
        self.lived = self.live_since.take().map(|since| since.elapsed());
        if let Some(cut) = self.cuts.session_lost() {
            self.journal.cut_abandoned(cut);
        }
    }

    /// The session has taken over.
    pub(super) fn begin_to_live(&mut self) {
        self.phase = Phase::Live;
        self.live_since = Some(Instant::now());
    }

    /// All work so far has ended well.
    fn all_is_well(&mut self) {
        if self.phase == Phase::Live {
            self.faults.all_is_well();
        }
    }

    /// A fault has ended the session. Finds out whether it was the program's own.
    fn met_fault(&mut self, number: SessionNumber, code: u32) {
        // The closed connection may have been noticed first; then another session is looked for already.
        let is_present = number == self.number;
        let after = if is_present { self.live_since.map(|since| since.elapsed()) } else { self.lived };
        let fault = Fault { code, given: self.given, after };
        if self.faults.is_own(fault) {
            self.own_fault = CudaError::from_code(code);
        }
    }

    /// Guardians that may have the image, with commas in between: the one of the last safe cut, and the one with its copy.
    pub(super) fn guardians(&self) -> String {
        let copy_at = self.cuts.guard.as_ref().map_or("", |guard| guard.copy_at.as_str());
        [self.guardian.as_str(), copy_at]
            .iter()
            .filter(|at| !at.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(",")
    }

    /// Bytes of pushes that were announced and not made.
    pub(super) fn announced_bytes(&self) -> u64 {
        self.announced.values().sum()
    }
}

impl Survival {
    /// The survival of a link whose first session is at `place`.
    pub(super) fn new(
        place: Place,
        protection: Protection,
        welcome: &Welcome,
        link: &Arc<OnceLock<Weak<Link>>>,
    ) -> Self {
        let guard = protection.first_guard();
        let (every, way) = (place.config.cut_every, place.config.survive.unwrap_or_default());
        let mut cuts = Cuts::new(guard.clone(), every);
        if way.is_careful {
            cuts.policy.be_careful();
        }
        let core = Core {
            journal: Journal::new(JOURNAL_BYTES_MAX),
            replay: None,
            phase: Phase::Live,
            number: FIRST_SESSION,
            difference: None,
            accepted: 0,
            announced: HashMap::new(),
            late_pushes: Vec::new(),
            landed: HashMap::new(),
            place,
            incarnation: FIRST_INCARNATION,
            guardian: guard.as_ref().map_or_else(String::new, |guard| guard.guardian.clone()),
            cuts,
            is_device_lost: false,
            faults: Faults::default(),
            given: 0,
            live_since: Some(Instant::now()),
            lived: None,
            own_fault: None,
            why_unprotected: "",
            why_lost: String::new(),
            restored: None,
            image_pulls: HashMap::new(),
        };
        let shared = Arc::new(Shared {
            core: Mutex::new(core),
            changed: Condvar::new(),
            expectations: Arc::default(),
            on_landed: OnceLock::new(),
            helpers: OnceLock::new(),
            link: Arc::clone(link),
            protection,
            keeper: OnceLock::new(),
            guard_wake: Condvar::new(),
            started: Instant::now(),
            welcome: welcome.clone(),
        });
        let weak = Arc::downgrade(&shared);
        let on_landed: OnLanded = Arc::new(move |wires, transfer, bytes, digest| {
            weak.upgrade().is_some_and(|shared| shared.landed(wires.number, transfer, bytes, digest))
        });
        let _ = shared.on_landed.set(on_landed);
        Self { shared }
    }

    /// What keeps sent commands.
    pub(super) fn keeper(&self) -> Arc<dyn Keeper> {
        Arc::clone(&self.shared) as Arc<dyn Keeper>
    }

    /// Keeps the threads that serve all sessions.
    pub(super) fn keep_helpers(&self, helpers: Helpers) {
        let _ = self.shared.helpers.set(helpers);
    }

    /// Transfers that have not landed.
    pub(super) fn expectations(&self) -> &Expectations {
        &self.shared.expectations
    }

    /// Expects a transfer, from this session or a later one.
    pub(super) fn expect(
        &self,
        link: &Link,
        transfer: TransferId,
        bytes: u64,
        sink: Box<dyn bulk::Sink + Send + Sync>,
        landed: Box<dyn FnOnce() + Send>,
    ) {
        let Some(on_landed) = self.shared.on_landed.get() else { return };
        self.shared.expectations.expect(|| link.wires(), transfer, bytes, sink.into(), landed, on_landed);
    }

    /// Session `number` broke. True: another one takes over, and its calls get their answers there.
    pub(super) fn broke(&self, link: &Link, number: SessionNumber, why: &LinkEnd) -> bool {
        let mut core = lock(&self.shared.core);
        if matches!(core.phase, Phase::Lost | Phase::Unprotected) {
            return false;
        }
        // The closed connection may be noticed before the notice that says why.
        let is_last = number == core.number || number + 1 == core.number && core.phase == Phase::Resuming;
        core.is_device_lost |= is_last && matches!(why, LinkEnd::DeviceLost(_));
        if let LinkEnd::Fault { code, .. } = why
            && is_last
        {
            core.met_fault(number, *code);
            if core.own_fault.is_some() && core.phase == Phase::Live {
                return false;
            }
        }
        if number != core.number {
            return true;
        }
        // A worker that breaks the protocol would break it again.
        if matches!(why, LinkEnd::Protocol(_) | LinkEnd::ThreadEnded(_)) || crate::process::is_ending() {
            return false;
        }
        let is_resuming = core.phase == Phase::Resuming;
        core.end_session();
        core.why_lost = why.to_string();
        let address = core.place.address.clone();
        drop(core);
        self.shared.tell();
        log::warn(&format!("worker {address} is lost: {why}; looking for another session"));
        link.leave_session(number);
        is_resuming || resume::start(link, &self.shared)
    }

    /// The error of the program itself, if that is why there is no further session.
    pub(super) fn own_fault(&self) -> Option<CudaError> {
        lock(&self.shared.core).own_fault
    }

    /// Waits until a session after `number` is live. False: there will be none.
    pub(super) fn wait_for_next(&self, number: SessionNumber) -> bool {
        let mut core = lock(&self.shared.core);
        loop {
            match core.phase {
                Phase::Lost | Phase::Unprotected => return false,
                Phase::Live if core.number > number => return true,
                Phase::Live | Phase::Resuming => core = locks::wait(&self.shared.changed, core),
            }
        }
    }

    /// Gives the protection up, once a session is live.
    pub(super) fn unprotect(&self, why: &'static str) {
        let mut core = lock(&self.shared.core);
        while core.phase == Phase::Resuming {
            core = locks::wait(&self.shared.changed, core);
        }
        if core.phase != Phase::Live {
            return;
        }
        log::warn(&format!("this program is no longer protected against the loss of its GPU: {why}"));
        core.give_up_protection(why);
        drop(core);
        self.shared.tell();
    }

    /// Whether a session takes commands right now.
    pub(super) fn is_live(&self) -> bool {
        matches!(lock(&self.shared.core).phase, Phase::Live | Phase::Unprotected)
    }

    /// The link is lost for good.
    pub(super) fn end(&self, wires: &Wires) {
        lock(&self.shared.core).phase = Phase::Lost;
        self.shared.changed.notify_all();
        self.shared.expectations.give_up_all(wires);
    }

    /// The program is about to be given a reply of session `number`. False: the session is lost, the next one answers.
    pub(super) fn answered(&self, number: SessionNumber, opcode: u16, reply: &Reply) -> bool {
        let mut core = lock(&self.shared.core);
        if core.number != number || core.phase == Phase::Lost {
            return false;
        }
        let (header, body) = reply;
        core.observe(Observation::reply(header.call, opcode, header.status, body));
        if core.cuts.policy.is_careful() {
            self.shared.guard_wake.notify_one();
        }
        if header.deferred != 0 {
            let context = ContextId(header.deferred_context);
            core.observe(Observation::Deferred { context, status: header.deferred });
        }
        true
    }

    /// The worker asks for a host function that may have run in an earlier session. The thread that runs host functions may be
    /// in one that waits for this session, so those that ran do not wait for it.
    pub(super) fn host_call_heard(&self, number: SessionNumber, token: u64) -> HostCallHeard {
        let mut core = lock(&self.shared.core);
        if core.number != number {
            return HostCallHeard::Queue;
        }
        let heard = core.replay.as_mut().map_or(HostCallHeard::Queue, |replay| replay.host_call_heard(token));
        self.shared.changed.notify_all();
        core.drop_spent_replay();
        heard
    }

    /// The worker asks for a host function.
    pub(super) fn host_call_asked(&self, number: SessionNumber, token: u64) -> Turn {
        let mut core = lock(&self.shared.core);
        if core.number != number {
            return Turn::Stale;
        }
        let verdict = core.replay.as_mut().map(|replay| replay.host_call_asked(token));
        self.shared.changed.notify_all();
        core.drop_spent_replay();
        match verdict {
            // One thread runs all host functions: one that was running when the session was lost has returned.
            Some(HostCallVerdict::AlreadyRan | HostCallVerdict::StillRunning) => Turn::Before,
            Some(HostCallVerdict::Run) | None => {
                let may_send = crate::paging::is_started();
                core.observe(Observation::HostCallBegan { token, may_send });
                Turn::Now
            }
        }
    }

    /// A host function has returned, whatever has become of the session that asked for it.
    pub(super) fn host_call_ran(&self, token: u64) {
        lock(&self.shared.core).observe(Observation::HostCallRan { token });
    }

    /// How many of the first bytes of a text the program has printed already.
    pub(super) fn printed_before(&self, number: SessionNumber, text: &[u8]) -> usize {
        let mut core = lock(&self.shared.core);
        if core.number != number {
            // The next session says it again.
            return text.len();
        }
        let verdict = core.replay.as_mut().map(|replay| replay.printed(text));
        let known = verdict.map_or(0, |verdict| verdict.drop);
        if verdict.is_some_and(|verdict| verdict.differs) {
            log::warn("the device printed another text before the loss of its session than after it");
        }
        if core.phase != Phase::Unprotected {
            core.journal.printed(&text[known..]);
        }
        core.drop_spent_replay();
        known
    }

    /// Calls `act` if session `number` is the present one.
    pub(super) fn if_present(&self, number: SessionNumber, act: impl FnOnce()) {
        let core = lock(&self.shared.core);
        if core.number == number {
            act();
            self.shared.changed.notify_all();
        }
    }

    /// Announces a push, if `take` gives it a name.
    pub(super) fn announce_push(
        &self,
        bytes: u64,
        take: impl FnOnce() -> Option<TransferId>,
    ) -> Option<TransferId> {
        let mut core = lock(&self.shared.core);
        let transfer = take()?;
        core.announced.insert(transfer, bytes);
        Some(transfer)
    }

    /// Keeps and sends the bytes of an announced push. The program's memory is its own again when this returns.
    pub(super) fn push(&self, link: &Link, transfer: TransferId, region: &HostRegion) {
        let bytes: Arc<[u8]> = region.to_vec().into();
        let mut core = lock(&self.shared.core);
        core.announced.remove(&transfer);
        if core.phase == Phase::Unprotected {
            drop(core);
            return send(&link.wires(), transfer, bytes);
        }
        core.journal.pushed(transfer, Arc::clone(&bytes));
        if core.phase == Phase::Resuming {
            core.late_pushes.push((transfer, bytes));
            return;
        }
        core.check_budget();
        // Under the lock, so that no resumer takes the bytes for sent in a session that never got them.
        send(&link.wires(), transfer, bytes);
    }

    /// Serves a pull: with what an earlier session got, or out of the program's memory.
    pub(super) fn serve_pull(
        &self,
        events: &Events,
        wires: &Arc<Wires>,
        transfer: TransferId,
    ) -> io::Result<()> {
        let Some(source) = self.source_of_pull(wires.number, transfer) else { return Ok(()) };
        let serving = match source {
            PullVerdict::Kept(bytes) => {
                send_pulled(wires, transfer, bytes);
                return Ok(());
            }
            PullVerdict::Refused => return wires.send(&Notice::PullFailed { transfer }),
            PullVerdict::Again(serving) => Some(serving),
            PullVerdict::New => self.begin_serving(transfer),
        };
        let Some((region, once)) = events.begin_serving(transfer) else {
            if let Some(serving) = serving {
                lock(&self.shared.core).journal.serving_refused(serving);
            }
            return wires.send(&Notice::PullFailed { transfer });
        };
        let bytes: Arc<[u8]> = region.to_vec().into();
        events.served(transfer, once);
        if let Some(serving) = serving {
            let mut core = lock(&self.shared.core);
            core.journal.host_data(serving, Arc::clone(&bytes));
            core.check_budget();
        }
        send_pulled(wires, transfer, bytes);
        Ok(())
    }

    /// `None`: the session is lost.
    fn source_of_pull(&self, number: SessionNumber, transfer: TransferId) -> Option<PullVerdict> {
        let mut core = lock(&self.shared.core);
        if core.number != number {
            return None;
        }
        if let Some(image) = core.image_pulls.remove(&transfer) {
            return Some(PullVerdict::Kept(image));
        }
        let verdict = core.replay.as_mut().map_or(PullVerdict::New, |replay| replay.pull_asked(transfer));
        core.drop_spent_replay();
        Some(verdict)
    }

    fn begin_serving(&self, transfer: TransferId) -> Option<Serving> {
        let mut core = lock(&self.shared.core);
        (core.phase != Phase::Unprotected).then(|| core.journal.serving_began(transfer))
    }
}

/// Sends kept bytes that the worker has asked for, those by name that it has.
fn send_pulled(wires: &Arc<Wires>, transfer: TransferId, bytes: Arc<[u8]>) {
    let count = bytes.len() as u64;
    content::send(wires, transfer, count, Box::new(Kept(bytes)), Box::new(|_| {}));
}

/// Sends kept bytes in the lanes of a session.
pub(super) fn send(wires: &Wires, transfer: TransferId, bytes: Arc<[u8]>) {
    let count = bytes.len() as u64;
    wires.lanes.send_later(transfer, count, Box::new(Kept(bytes)), Box::new(|_| {}));
}

impl Shared {
    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// Waits for a change, for at most `time`.
    pub(super) fn wait<'a>(&'a self, core: MutexGuard<'a, Core>, time: Duration) -> MutexGuard<'a, Core> {
        locks::wait_for(&self.changed, core, time)
    }

    /// Tells all threads that wait for a change.
    pub(super) fn tell(&self) {
        self.changed.notify_all();
        self.guard_wake.notify_all();
    }

    pub(super) fn expectations(&self) -> &Arc<Expectations> {
        &self.expectations
    }

    pub(super) fn on_landed(&self) -> Option<&OnLanded> {
        self.on_landed.get()
    }

    pub(super) fn helpers(&self) -> Option<Helpers> {
        self.helpers.get().cloned()
    }

    /// How new lanes find their link.
    pub(super) fn link(&self) -> &Arc<OnceLock<Weak<Link>>> {
        &self.link
    }

    /// A transfer of session `number` is in the program's memory. False: the session is lost, the next one sends it again.
    fn landed(&self, number: SessionNumber, transfer: TransferId, bytes: u64, digest: u128) -> bool {
        let mut core = lock(&self.core);
        if core.number != number {
            return false;
        }
        core.given += 1;
        if core.phase != Phase::Unprotected {
            core.landed.insert(transfer, bytes);
            core.journal.observed(Observation::Landed { transfer, digest: Digest::from(digest) });
        }
        true
    }
}

impl Link {
    /// Closes session `number`, and wakes the threads that wait for it.
    pub(super) fn leave_session(&self, number: SessionNumber) {
        let wires = self.wires();
        if wires.number == number {
            wires.close();
        }
        self.replies.lose();
        self.events.wake();
    }
}

impl Keeper for Shared {
    fn announce(&self, bytes: usize) {
        let mut core = lock(&self.core);
        if core.phase != Phase::Unprotected {
            core.journal.announce(bytes);
        }
    }

    fn keep(&self, mut commands: Vec<u8>) -> Vec<u8> {
        let mut core = lock(&self.core);
        if core.phase == Phase::Unprotected {
            commands.clear();
            return commands;
        }
        let empty = core.journal.sent(commands);
        core.check_budget();
        empty
    }

    fn broke(&self, number: SessionNumber, error: io::Error) {
        if let Some(link) = self.link.get().and_then(Weak::upgrade) {
            link.broke(number, &error.into());
        }
    }
}
