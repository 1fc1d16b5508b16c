//! Images: what a link that survives does about its cuts, and whom it tells.

use super::{
    super::{
        Link,
        connect::Opened,
        cuts::KeptBy,
        drill::Copied,
        guard::{Guarded, Identity},
        guard_thread,
        keeper_line::KeeperLine,
        places::{Place, Search},
        wires::SessionNumber,
    },
    Phase, Shared, Survival,
};
use crate::log;
use cuda_wire::{FIRST_INCARNATION, GuardInfo, ImageName};
use journal::{CutRefused, CutTurn, Filled, Journal};
use keeper::{FromProgram, State};
use locks::lock;
use std::{
    io,
    sync::{Arc, MutexGuard},
    time::Duration,
};
use transport::Connection;
use worker_link::{CONNECT_TIMEOUT, Survive};

/// The image of a link, and what its first worker said to it.
pub(in super::super) struct Protection {
    identity: Option<Identity>,
    first: Option<GuardInfo>,
}

impl Protection {
    /// Has the first session of a link protected, if its worker can. An error: the session was lost before it began.
    pub(in super::super) fn first(opened: &mut Opened) -> io::Result<Self> {
        let identity = Identity::draw();
        let guarded = match &identity {
            Some(identity) => identity.guard(&mut opened.command, FIRST_INCARNATION, CONNECT_TIMEOUT)?,
            None => None,
        };
        let credit = guarded.as_ref().map_or(0, |guarded| guarded.memory_credit_bytes);
        opened.welcome.memory_credit_bytes = opened.welcome.memory_credit_bytes.saturating_add(credit);
        Ok(Self { identity, first: guarded.map(|guarded| guarded.info) })
    }

    /// Whether the first worker keeps images.
    pub(in super::super) fn has_images(&self) -> bool {
        self.first.is_some()
    }

    pub(super) fn first_guard(&self) -> Option<GuardInfo> {
        self.first.clone()
    }

    fn name(&self) -> String {
        let is_used = self.identity.as_ref().filter(|_| self.first.is_some());
        is_used.map_or_else(String::new, Identity::hex)
    }
}

/// What became of a cut whose image is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Truncation {
    /// The journal begins with it now.
    Done,
    /// An answer to a call before it has not reached the program yet.
    Unanswered,
    /// A transfer that was asked for before it has not landed yet.
    NotLanded,
    /// There is none.
    Nothing,
}

impl Survival {
    /// Opens the line to the keeper, and starts the thread that takes cuts.
    pub(in super::super) fn start(&self, link: &Arc<Link>) -> io::Result<()> {
        self.shared.open_keeper_line();
        // The line's descriptor is one that a forked child closes.
        link.install(link.wires());
        guard_thread::start(link, &self.shared)
    }

    /// The worker of the present session, or of the last one.
    pub(in super::super) fn address(&self) -> String {
        self.shared.core().place.address.to_string()
    }

    /// What a forked child must close beside the connections of the session.
    pub(in super::super) fn keeper_descriptor(&self) -> Option<i32> {
        self.shared.keeper.get().map(|line| line.descriptor())
    }

    /// Keeps the image of a module.
    pub(in super::super) fn keep_image(&self, hash: [u8; 32], bytes: &[u8]) {
        let mut core = lock(&self.shared.core);
        if core.phase != Phase::Unprotected && !core.journal.has_image(&hash) {
            core.journal.image(hash, bytes.into());
        }
    }

    /// All streams stood still at a cut: what comes from now on happened behind it.
    pub(in super::super) fn cut_taken(
        &self,
        session: SessionNumber,
        number: u64,
        live: u64,
        pause: Duration,
    ) {
        let mut core = lock(&self.shared.core);
        if core.number != session || !core.cuts.taken(session, number, live, pause) {
            return;
        }
        core.journal.cut_taken(number);
        core.all_is_well();
        // What the lost session had done beyond what the program saw lies before this cut.
        if core.phase == Phase::Live {
            core.replay = None;
        }
    }

    /// The image of a cut is safe.
    pub(in super::super) fn cut_safe(&self, session: SessionNumber, number: u64, kept: KeptBy) {
        let now = self.shared.now();
        lock(&self.shared.core).cuts.safe(session, number, kept, now);
        self.shared.tell();
    }

    /// The guardian of a session is lost, and its images with it.
    pub(in super::super) fn guardian_lost(&self, session: SessionNumber, why: &str) {
        let mut core = lock(&self.shared.core);
        if core.number != session || core.phase != Phase::Live {
            return;
        }
        let base = core.journal.base().unwrap_or(0);
        let words = core.cuts.guardian_lost(why, base);
        drop(core);
        if let Some(words) = words {
            log::warn(&words);
        }
        self.shared.tell();
    }

    /// All work of a session that took over has ended well, as its worker says.
    pub(in super::super) fn rested(&self, session: SessionNumber) {
        let mut core = lock(&self.shared.core);
        if core.number == session {
            core.faults.all_is_well();
            log::debug(|| "all work since another session took over has ended well".to_owned());
        }
    }

    /// The worker has given a cut up.
    pub(in super::super) fn cut_abandoned(&self, session: SessionNumber, number: u64, why: &str) {
        let mut core = lock(&self.shared.core);
        let (was_under_way, words) = core.cuts.abandoned(session, number, why);
        if was_under_way {
            core.journal.cut_abandoned(number);
        }
        drop(core);
        if let Some(words) = words {
            log::warn(&words);
        }
        self.shared.tell();
    }
}

impl Shared {
    /// The time since the link began.
    pub(in super::super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn open_keeper_line(self: &Arc<Self>) {
        let place = self.core().place.clone();
        let Some(path) = &place.config.keeper else { return };
        let attached = FromProgram::Attached {
            worker: place.address.to_string(),
            pid: std::process::id(),
            image: self.protection.name(),
        };
        let weak = Arc::downgrade(self);
        let woken = move || {
            if let Some(shared) = weak.upgrade() {
                // Under the lock, so that the thread that takes cuts does not miss it on its way to sleep.
                drop(shared.core());
                shared.tell();
            }
        };
        match KeeperLine::open(path, &attached, woken) {
            Ok(line) => drop(self.keeper.set(line)),
            Err(error) => log::warn(&format!(
                "cannot reach `dxpu run` at {}: {error}; the program goes on, and knows no other places",
                path.display()
            )),
        }
    }

    /// The line to the keeper, if there is one.
    pub(in super::super) fn keeper(&self) -> Option<&Arc<KeeperLine>> {
        self.keeper.get().filter(|line| !line.is_gone())
    }

    /// Tells the keeper, if there is one.
    pub(in super::super) fn tell_keeper(&self, word: &FromProgram) {
        if let Some(line) = self.keeper() {
            line.tell(word);
        }
    }

    /// Has a fresh session protected, under the next incarnation.
    pub(in super::super) fn guard(
        &self,
        command: &mut Connection,
        timeout: Duration,
    ) -> io::Result<Option<Guarded>> {
        let Some(identity) = &self.protection.identity else { return Ok(None) };
        let incarnation = {
            let mut core = self.core();
            core.incarnation += 1;
            core.incarnation
        };
        identity.guard(command, incarnation, timeout)
    }

    /// Where to look for another session: at `target` first, if there is one.
    pub(in super::super) fn search(&self, target: Option<Place>) -> Search {
        let core = self.core();
        let own = (!core.is_device_lost).then(|| core.place.clone());
        let standbys = Place::standbys(&core.place.config);
        let is_new = |place: &Place| own.as_ref().is_none_or(|own| own.address != place.address);
        let places = target.into_iter().chain(own.clone()).chain(standbys.into_iter().filter(is_new));
        let failed = |place: &Place| core.is_device_lost && place.address == core.place.address;
        let places = places.filter(|place| !failed(place)).collect();
        Search::new(places, self.keeper().is_some(), core.why_lost.clone())
    }

    /// What to do about the next cut.
    pub(in super::super) fn turn(&self) -> CutTurn {
        let now = self.now();
        let core = self.core();
        if core.phase != Phase::Live || core.cuts.guard.is_none() {
            return CutTurn::Rest;
        }
        let filled = filled(&core.journal);
        let is_half_full = filled.held_bytes >= filled.budget_bytes / 2;
        if core.cuts.drill == Some(Copied::No) && !is_half_full {
            return CutTurn::Rest;
        }
        core.cuts.policy.turn(now, filled)
    }

    /// The way in which this program survives.
    pub(in super::super) fn way(&self) -> Survive {
        self.core().place.config.survive.unwrap_or_default()
    }

    /// A drill has found that the program's results differ from run to run.
    pub(in super::super) fn be_careful(&self) {
        if self.core().cuts.policy.be_careful() {
            log::warn(
                "this program's results differ from run to run; from now on an image follows soon on what it reads, and \
                 what it reads before the image is safe may still stop it from going on after a loss",
            );
        }
    }

    /// The image of this link and its secret; `None`: the first worker keeps no images.
    pub(in super::super) fn image_secret(&self) -> Option<(ImageName, [u8; 32])> {
        self.protection.identity.as_ref().map(Identity::parts)
    }

    /// Has the worker of a fresh connection bring the image of the last safe cut into its guardian.
    pub(in super::super) fn fetch_image(
        &self,
        command: &mut Connection,
        from: String,
        timeout: Duration,
    ) -> io::Result<()> {
        let Some(identity) = &self.protection.identity else { return Ok(()) };
        let incarnation = self.core().incarnation;
        identity.fetch(command, incarnation, from, timeout)
    }

    /// The copy of a drill has its image.
    pub(in super::super) fn drill_has_image(&self) {
        self.core().cuts.drill = Some(Copied::Yes);
        self.tell();
    }

    /// The drill is over.
    pub(in super::super) fn end_drill(&self) {
        self.core().cuts.drill = None;
        self.tell();
    }

    /// The number of the next cut.
    pub(in super::super) fn next_cut(&self) -> u64 {
        self.core().cuts.next_number()
    }

    /// A cut is about to be sent to a session. Called under the queue's wire, when all commands before it are announced,
    /// and its own, too. False: the session is over, or another cut is under way.
    pub(in super::super) fn note_cut(&self, number: u64, session: SessionNumber) -> bool {
        let (now, void) = (self.now(), self.expectations.void());
        let mut core = self.core();
        if core.number != session || core.phase != Phase::Live || core.cuts.under_way.is_some() {
            return false;
        }
        core.journal.cut_sent(number);
        let filled = filled(&core.journal);
        core.cuts.sent(number, session, void, (now, filled));
        true
    }

    /// Folds the journal up to a cut whose image is safe. The other threads go on meanwhile. With `awaits_copy` a cut is kept
    /// out until another box has it, too, for a while.
    pub(in super::super) fn truncate(&self, awaits_copy: bool) -> Truncation {
        // A transfer that lands after this is taken for one that has not: the next look finds it landed.
        let (expected, now) = (self.expectations.names(), self.now());
        let core = self.core();
        let Some(cut) = core
            .cuts
            .under_way
            .as_ref()
            .filter(|cut| if awaits_copy { cut.is_due(now) } else { cut.is_safe })
        else {
            return Truncation::Nothing;
        };
        let number = cut.number;
        if cut.waits_for.is_some_and(|transfer| expected.contains(&transfer)) {
            return Truncation::NotLanded;
        }
        let fold = core.journal.begin_fold(number, expected);
        drop(core);
        let folded = fold.and_then(journal::Fold::run);
        let mut core = self.core();
        match core.journal.end_fold(folded) {
            Ok(_) => {
                let void = core.cuts.truncated();
                let kept: std::collections::HashSet<_> = core.journal.landed().collect();
                core.landed.retain(|transfer, _| kept.contains(transfer));
                drop(core);
                self.expectations.forget_void(&void);
                Truncation::Done
            }
            Err(CutRefused::Unanswered { .. }) => Truncation::Unanswered,
            Err(CutRefused::NotLanded { transfer, .. }) => {
                if let Some(cut) = core.cuts.under_way.as_mut() {
                    cut.waits_for = Some(transfer);
                }
                Truncation::NotLanded
            }
            // The session was lost meanwhile.
            Err(CutRefused::Unknown(_) | CutRefused::NotTaken(_)) => Truncation::Nothing,
            Err(CutRefused::Unreadable(error)) => {
                log::warn(&format!(
                    "this program is no longer protected against the loss of its GPU: {error}; please report this"
                ));
                core.phase = Phase::Unprotected;
                core.why_unprotected = "a command could not be read again";
                core.journal = Journal::new(0);
                core.cuts.under_way = None;
                Truncation::Nothing
            }
        }
    }

    /// Sleeps until something changes about cuts, wishes or the phase, for at most `time`.
    pub(in super::super) fn sleep(&self, time: Duration) {
        drop(locks::wait_for(&self.guard_wake, self.core(), time));
    }

    /// [`Shared::sleep`] while `holds`.
    pub(in super::super) fn sleep_while(
        &self,
        time: Duration,
        holds: impl FnOnce(&MutexGuard<'_, super::Core>) -> bool,
    ) {
        let core = self.core();
        if holds(&core) {
            drop(locks::wait_for(&self.guard_wake, core, time));
        }
    }

    /// How well the program is protected.
    pub(in super::super) fn report(&self) -> FromProgram {
        let now = self.now();
        let core = self.core();
        let cut = core.journal.base().unwrap_or(0);
        let (state, why) = match core.phase {
            Phase::Unprotected => (State::Unprotected, core.why_unprotected.to_owned()),
            Phase::Lost => (State::Unprotected, "the worker is lost".to_owned()),
            _ if core.cuts.guard.is_none() => (
                State::Protected,
                "the worker keeps no images: after a loss everything since the start is done again"
                    .to_owned(),
            ),
            _ if cut == 0 => (State::Starting, core.cuts.why_given_up.clone()),
            _ if core.cuts.lost_guardian.is_some() => {
                (State::Degraded, core.cuts.lost_guardian.clone().unwrap_or_default())
            }
            _ => (State::Protected, core.cuts.why_given_up.clone()),
        };
        // What came after the cut is done again, and the image comes back about as fast as it went.
        let since_cut = now.saturating_sub(core.cuts.safe_since.unwrap_or_default());
        let predicted = since_cut + core.cuts.policy.time_to_safe();
        FromProgram::Protection {
            state,
            why,
            cut,
            level: core.cuts.level(cut),
            safe_age_ms: since_cut.as_millis() as u64,
            live_bytes: core.cuts.live_bytes,
            journal_bytes: core.journal.bytes_held(),
            pause_us: core.cuts.policy.pause().as_micros().min(u32::MAX.into()) as u32,
            predicted_ms: predicted.as_millis() as u64,
        }
    }
}

fn filled(journal: &Journal) -> Filled {
    Filled {
        position: journal.position(),
        held_bytes: journal.bytes_held(),
        budget_bytes: journal.budget_bytes(),
        observations: journal.observations(),
    }
}
