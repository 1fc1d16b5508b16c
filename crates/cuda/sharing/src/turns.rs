//! Sessions of leases with a share of a GPU take turns: each has the device for a while, in proportion to its share.
//!
//! ```text
//!   no work ── begin ──▶ waits ── it is free, or given, or its holder is dead ──▶ holds
//!                          ▲                                                        │ its work is done: to the next, or free
//!                          └── the work that runs is done ◀── ending ◀──────────────┘ its time is over and another is behind
//! ```
//!
//! Each session counts its time as holder, divided by its share: its *virtual time*. The turn goes to the session that wants it and
//! has the least. A session that had no work begins where the turn was last given (the *floor*), less one turn at most, unless it is
//! further already: it has saved nothing that counts, and repays what it took. The sessions of a lease have its share together: the time of each counts as many
//! times as there are of them with work.
//!
//! All of it is in the page, and each session writes its own part. A session that stopped in the middle is found by those that
//! wait, as the owner of a closed gate is. One that goes on finds that the turn is not its own any more.

use crate::{
    mutant::{Mutant, is_planted},
    page::{Field, Owner, Page, SLOTS, SlotOwner, Ticket},
    part::{Share, WHOLE_MILLI},
    sentry::{Cleared, Life, Sentry, Watched, passed_ns},
    turn_words::Holding,
};

/// How long a turn lasts while others want it. A switch between contexts takes about 0.13 ms on an H200, so this loses 1.6 percent, or
/// twice as much where the device comes back to the rest of a group.
const QUANTUM_NS: u64 = 8_000_000;
/// A turn is over sooner, though not before this, when a session that wants it is behind by a whole [`QUANTUM_NS`]: one that pauses
/// longer than its linger comes back to find the turn with another, and would have little of its share if it waited for 8 ms each time.
const TURN_MIN_NS: u64 = 4_000_000;
/// How far behind the others a session may be that had no work: as much as it can lose to one turn, and nothing that counts over seconds.
const CREDIT_NS: u64 = QUANTUM_NS;
/// How long a session whose time is over waits for the end of the work that runs. All of it counts as its time. A kernel that takes
/// longer shares the device with the next session from then on, by the device's own slices.
const DRAIN_MAX_NS: u64 = 1_000_000_000;
/// The most that counts between two looks. A process that stood still for longer gave the device nothing new, and what it had
/// given before ends sooner or later: it does not owe all that time.
const CHARGE_MAX_NS: u64 = 100_000_000;
/// Virtual time is counted in parts of a nanosecond, so that a look after 50 us loses nothing by rounding.
const PARTS_OF_NS: u128 = 64;

/// Where a session stands after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has no work.
    Idle,
    /// It has the turn.
    Holds,
    /// It has work, and another session has the turn.
    Waits,
    /// The page is damaged. Its gate is open: the device's own slices divide the time from now on.
    Alone,
    /// It cannot go on: its slot is another's, or the page is damaged and had an online session. It is to be ended.
    Lost,
}

/// A turn, as its holder knows it.
#[derive(Clone, Copy, Debug)]
struct Mine {
    holding: Holding,
    /// Since when it, or its last renewal, lasts.
    since_ns: u64,
    /// Until when it is accounted for.
    charged_ns: u64,
    /// How many sessions of the lease have work.
    together: u64,
    /// An online session has work: the time is not the holder's.
    is_held_back: bool,
    /// Since when its time is over and its work runs on.
    ending_ns: Option<u64>,
}

/// One session's part in the turns. Its calls come one after another, from threads of one process.
#[derive(Debug)]
pub struct Turns {
    ticket: Ticket,
    share: Share,
    /// Its own count; what the page says of it is for the others.
    virtual_time: u64,
    has_work: bool,
    mine: Option<Mine>,
    watch: HolderWatch,
    online_sentry: Sentry,
    /// An online session was there when the page was last whole.
    had_online: bool,
}

impl Turns {
    /// A session with this slot. `None` for one that takes no turns.
    pub fn new(page: Page<'_>, ticket: Ticket) -> Option<Self> {
        let share = ticket.part().share()?;
        let virtual_time = page.floor();
        page.set(ticket, Field::Virtual, virtual_time);
        Some(Self {
            ticket,
            share,
            virtual_time,
            has_work: false,
            mine: None,
            watch: HolderWatch::default(),
            online_sentry: Sentry::default(),
            had_online: false,
        })
    }

    /// The session has work, and the driver is about to hear of it. Takes the turn if it is free.
    pub fn begin(&mut self, page: Page<'_>, now_ns: u64) {
        let had_work = std::mem::replace(&mut self.has_work, true);
        if had_work || !page.is_whole() || !page.is_owned(self.ticket) {
            return;
        }
        self.want(page);
        let holding = page.holding();
        if holding.is_free() {
            self.take(page, holding, now_ns);
        }
    }

    /// The session has no work any more. Hands the turn on if it has it.
    pub fn end(&mut self, page: Page<'_>, now_ns: u64) {
        self.has_work = false;
        if !page.is_whole() || !page.is_owned(self.ticket) || is_planted(Mutant::IdleKeepsTurn) {
            return;
        }
        page.want_no_more(self.ticket.slot());
        let holding = page.holding();
        if holding.slot == Some(self.ticket.slot()) {
            self.notice(page, holding, now_ns);
            self.charge(page, now_ns);
            self.hand_on(page, now_ns);
        }
    }

    /// One look, to be called about every 50 us while the session has work, and now and then while it has none. `rests`: whether
    /// none of its work that has passed the gate is on the device.
    pub fn look(
        &mut self,
        page: Page<'_>,
        now_ns: u64,
        mut life: impl FnMut(Owner) -> Life,
        rests: impl FnOnce() -> bool,
    ) -> Standing {
        if !page.is_whole() {
            self.mine = None;
            if self.had_online {
                return Standing::Lost;
            }
            page.open_in_doubt(self.ticket);
            return Standing::Alone;
        }
        if !page.is_owned(self.ticket) || page.part(self.ticket.slot()) != Some(self.ticket.part()) {
            return Standing::Lost;
        }
        self.had_online = page.present() != 0;
        if page.is_online_busy() {
            self.online_sentry.look(page, now_ns, &mut life);
        }
        let holding = page.holding();
        if holding.slot == Some(self.ticket.slot()) {
            return self.hold(page, holding, now_ns, rests);
        }
        if self.mine.take().is_some() {
            page.set(self.ticket, Field::BusySince, 0);
        }
        self.close_without_turn(page);
        match self.has_work {
            true => self.wait(page, holding, now_ns, life),
            false => Standing::Idle,
        }
    }

    /// Its slot.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Whether it has the turn, as of its last look.
    pub fn holds(&self) -> bool {
        self.mine.is_some()
    }

    /// A look of the session that has the turn.
    fn hold(
        &mut self,
        page: Page<'_>,
        holding: Holding,
        now_ns: u64,
        rests: impl FnOnce() -> bool,
    ) -> Standing {
        self.notice(page, holding, now_ns);
        self.charge(page, now_ns);
        let ticket = self.ticket;
        let Some(mine) = &mut self.mine else { return Standing::Waits };
        if !self.has_work && !is_planted(Mutant::IdleKeepsTurn) {
            self.hand_on(page, now_ns);
            return Standing::Idle;
        }
        mine.is_held_back = page.is_online_busy();
        if mine.is_held_back {
            page.shut(ticket.slot(), holding);
            return Standing::Holds;
        }
        self.want(page);
        let Some(mine) = &mut self.mine else { return Standing::Waits };
        let lasts_ns = now_ns.saturating_sub(mine.since_ns);
        if lasts_ns < TURN_MIN_NS && mine.ending_ns.is_none() || is_planted(Mutant::NeverPasses) {
            page.open_own(ticket, holding);
            return Standing::Holds;
        }
        let own = self.virtual_time;
        let lead_min = if lasts_ns < QUANTUM_NS { parts(QUANTUM_NS, self.share, 1) } else { 0 };
        let is_ahead = next(page, ticket).is_some_and(|(behind, _)| behind.saturating_add(lead_min) <= own);
        if !is_ahead {
            if lasts_ns >= QUANTUM_NS || mine.ending_ns.is_some() {
                self.renew(page, now_ns);
            }
            page.open_own(ticket, holding);
            return Standing::Holds;
        }
        if !is_planted(Mutant::PassKeepsGateOpen) {
            page.shut(ticket.slot(), holding);
        }
        let since_ns = *mine.ending_ns.get_or_insert(now_ns);
        let is_late = now_ns.saturating_sub(since_ns) >= DRAIN_MAX_NS;
        if !is_planted(Mutant::PassesWhileItRuns) && !rests() && !is_late {
            return Standing::Holds;
        }
        self.hand_on(page, now_ns);
        Standing::Waits
    }

    /// A look of a session that has work and not the turn.
    fn wait(
        &mut self,
        page: Page<'_>,
        holding: Holding,
        now_ns: u64,
        life: impl FnMut(Owner) -> Life,
    ) -> Standing {
        if !is_planted(Mutant::ForgetsToWantAgain) {
            // Another session may have taken this one for frozen.
            self.want(page);
        }
        page.set(self.ticket, Field::Virtual, self.virtual_time);
        let is_left = holding.is_free()
            || self.watch.look(page, holding, now_ns, life).is_some() && !is_planted(Mutant::NeverSeizes);
        if is_left {
            self.take(page, holding, now_ns);
        }
        if self.mine.is_some() { Standing::Holds } else { Standing::Waits }
    }

    /// Says that it wants the turn, unless it has said so. What it did not use before it did is not saved up.
    fn want(&mut self, page: Page<'_>) {
        if page.wants() & self.ticket.bit() != 0 {
            return;
        }
        // Never behind all others, as it would be by a floor that is damaged.
        let most = wanting(page, self.ticket).map(|(virtual_time, _)| virtual_time).max();
        let floor = page.floor().min(most.unwrap_or(u64::MAX));
        let credit = if is_planted(Mutant::PauseForfeits) { 0 } else { parts(CREDIT_NS, self.share, 1) };
        let floor = floor.saturating_sub(credit);
        if !is_planted(Mutant::IdleSavesTime) {
            self.virtual_time = self.virtual_time.max(floor);
        }
        page.set(self.ticket, Field::Virtual, self.virtual_time);
        page.want(self.ticket);
    }

    fn take(&mut self, page: Page<'_>, seen: Holding, now_ns: u64) {
        let Some(holding) = page.take(self.ticket, seen) else { return };
        self.notice(page, holding, now_ns);
        if !page.is_online_busy() {
            page.open_own(self.ticket, holding);
        }
    }

    /// The session has the turn, perhaps since a moment ago.
    fn notice(&mut self, page: Page<'_>, holding: Holding, now_ns: u64) {
        if self.mine.is_some_and(|mine| mine.holding == holding) {
            return;
        }
        self.mine = Some(Mine {
            holding,
            since_ns: now_ns,
            charged_ns: now_ns,
            together: 1,
            is_held_back: page.is_online_busy(),
            ending_ns: None,
        });
        self.renew(page, now_ns);
        let slot = self.ticket.slot();
        page.set(self.ticket, Field::BusySince, now_ns.max(1));
        page.set(self.ticket, Field::BusyPeriods, page.get(slot, Field::BusyPeriods).wrapping_add(1));
    }

    /// Its time begins anew.
    fn renew(&mut self, page: Page<'_>, now_ns: u64) {
        page.raise_floor(self.virtual_time);
        let together = together(page, self.ticket, self.share);
        if let Some(mine) = &mut self.mine {
            (mine.since_ns, mine.ending_ns, mine.together) = (now_ns, None, together);
        }
    }

    /// Counts the time since the last look.
    fn charge(&mut self, page: Page<'_>, now_ns: u64) {
        let Some(mine) = &mut self.mine else { return };
        let ns = now_ns.saturating_sub(mine.charged_ns).min(CHARGE_MAX_NS);
        mine.charged_ns = now_ns;
        if mine.is_held_back {
            return;
        }
        self.virtual_time = self.virtual_time.saturating_add(parts(ns, self.share, mine.together));
        page.set(self.ticket, Field::Virtual, self.virtual_time);
        let used_ns = page.get(self.ticket.slot(), Field::BusyTotalNs);
        page.set(self.ticket, Field::BusyTotalNs, used_ns.saturating_add(ns));
    }

    /// Closes the own gate and gives the turn to the next, or to none.
    fn hand_on(&mut self, page: Page<'_>, now_ns: u64) {
        let Some(mine) = self.mine.take() else { return };
        if !is_planted(Mutant::PassKeepsGateOpen) {
            page.shut(self.ticket.slot(), mine.holding);
        }
        page.set(self.ticket, Field::BusySince, 0);
        page.set(self.ticket, Field::IdleSince, now_ns.max(1));
        page.pass(mine.holding, next(page, self.ticket).map(|(_, slot)| slot));
    }

    /// A gate that is open without the turn is closed: the session was taken for frozen, by one that may have died before it closed
    /// the gate.
    fn close_without_turn(&self, page: Page<'_>) {
        if !page.is_open(self.ticket.slot()) || is_planted(Mutant::OpensWithoutTheTurn) {
            return;
        }
        // Looked at after the gate: a session that hands the turn on opens the gate afterwards.
        let holding = page.holding();
        if holding.slot != Some(self.ticket.slot()) {
            page.shut(self.ticket.slot(), holding);
        }
    }
}

/// The virtual time that a time is for one of so many sessions of a lease with this share.
fn parts(ns: u64, share: Share, together: u64) -> u64 {
    let milli = if is_planted(Mutant::IgnoresShares) { WHOLE_MILLI } else { share.milli() };
    let parts = u128::from(ns) * PARTS_OF_NS * u128::from(together) / u128::from(milli);
    u64::try_from(parts).unwrap_or(u64::MAX)
}

/// The session that is next: of the others that want the turn, the one that has used least. Of several, the first behind this one,
/// so that all come.
fn next(page: Page<'_>, ticket: Ticket) -> Option<(u64, usize)> {
    wanting(page, ticket).min_by_key(|(virtual_time, _)| *virtual_time)
}

/// The virtual times and slots of the others that want the turn.
fn wanting(page: Page<'_>, ticket: Ticket) -> impl Iterator<Item = (u64, usize)> {
    let wants = page.wants() & !ticket.bit();
    let others = if wants == 0 { 0..0 } else { 1..SLOTS };
    let others = others.map(move |step| (ticket.slot() + step) % SLOTS);
    let wanting = others.filter(move |slot| wants & 1 << slot != 0 && page.share(*slot).is_some());
    wanting.map(move |slot| (page.get(slot, Field::Virtual), slot))
}

/// How many sessions of the lease have work, this one included.
fn together(page: Page<'_>, ticket: Ticket, share: Share) -> u64 {
    if is_planted(Mutant::SharePerProgram) {
        return 1;
    }
    let wants = page.wants() & !ticket.bit();
    let is_of_lease = |slot: &usize| page.share(*slot).is_some_and(|other| other.is_of_lease(share));
    1 + (0..SLOTS).filter(|slot| wants & 1 << slot != 0).filter(is_of_lease).count() as u64
}

/// A waiting session's watch over the holder of the turn.
#[derive(Default)]
struct HolderWatch {
    seen: Option<(Holding, Watched)>,
    last_look_ns: Option<u64>,
}

impl HolderWatch {
    /// Why the turn may be taken, if it may.
    fn look(
        &mut self,
        page: Page<'_>,
        holding: Holding,
        now_ns: u64,
        mut life: impl FnMut(Owner) -> Life,
    ) -> Option<Cleared> {
        let passed_ns = passed_ns(&mut self.last_look_ns, now_ns);
        // A damaged word names no slot. It has no owner, so it is taken like the turn of one that is gone.
        let (owner, beats) =
            holding.slot.map_or((SlotOwner::Nobody, 0), |slot| (page.owner(slot), page.beats(slot)));
        let (_, watched) = match &mut self.seen {
            Some(seen) if seen.0 == holding && seen.1.owner() == owner => seen,
            seen => seen.insert((holding, Watched::new(owner, beats))),
        };
        watched.look(holding.slot.unwrap_or(SLOTS), beats, passed_ns, &mut life)
    }
}

impl std::fmt::Debug for HolderWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HolderWatch").field("last_look_ns", &self.last_look_ns).finish_non_exhaustive()
    }
}
