//! A session that takes turns with those of other leases on its GPU.
//!
//! ```text
//!   command loop   begin ─▶ the session wants the turn, and has it if it is free ─▶ driver told ─▶ end
//!   keeper thread  looks at the page every 50 us: opens and closes the session's gate, hands the turn on, takes it from the dead; beats
//!   asker thread   asks the driver of a session that has the turn whether its work is done
//! ```
//!
//! The keeper never calls the driver: calls block while a queue is full, and a full queue may wait for the very turn that the keeper
//! is to get. So a session that is stuck in the driver still takes its turns, and that is what frees it.
//!
//! When the work is done the session keeps the turn for the *linger* that it has learned from its pauses, as an online one keeps the
//! gate: a program that waits for each kernel would lose a whole turn of the others at every wait.

use crate::{
    end::{EndKind, Ending},
    session::spawn,
};
use cuda_driver::{Driver, PageHandle, Ticket};
use cuda_wire::{DriverCommand, Op};
use locks::{lock, wait_for};
use shared_words::process;
use sharing::{Field, Presence, Standing, Turns};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

/// How often a session shows that it lives. Others take one for frozen that has not for a second.
const BEAT: Duration = Duration::from_millis(50);
/// How often keeper and asker look while there is work.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// What the client of a session hears that cannot take turns any more.
const LOST: &str =
    "this program shares its GPU with others and has lost its place among them; start it again";

/// A session's place among those that take turns. Dropping it gives the place back.
pub(crate) struct TurnTaker {
    driver: Arc<dyn Driver>,
    page: PageHandle,
    ticket: Ticket,
    state: Mutex<State>,
    /// Told when the session has work, and when it ends.
    changed: Condvar,
    is_over: AtomicBool,
}

struct State {
    presence: Presence,
    turns: Turns,
}

/// The driver is being told of work, until this ends.
pub(crate) struct Telling<'a>(&'a TurnTaker);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).presence.end();
    }
}

impl TurnTaker {
    /// The place of a session that has this slot. `None` if the slot is for no turns.
    pub(crate) fn new(driver: &Arc<dyn Driver>, page: PageHandle, ticket: Ticket) -> Option<Arc<Self>> {
        let turns = Turns::new(page.page(), ticket)?;
        let state = Mutex::new(State { presence: Presence::new(process::now_ns()), turns });
        let (changed, is_over) = (Condvar::new(), AtomicBool::new(false));
        Some(Arc::new(Self { driver: driver.clone(), page, ticket, state, changed, is_over }))
    }

    /// Starts the threads. A session that cannot take turns any more is ended.
    pub(crate) fn start(self: &Arc<Self>, ending: &Arc<Ending>) {
        let (kept, ending) = (Arc::downgrade(self), ending.clone());
        spawn("dxpu-turns", move || keep(&kept, &ending));
        let asked = Arc::downgrade(self);
        spawn("dxpu-asker", move || ask(&asked));
    }

    /// The driver is about to be told of `command`. The session wants the turn if that puts work into a stream that waits for it.
    pub(crate) fn tell(&self, command: &DriverCommand<'_>) -> Option<Telling<'_>> {
        needs_turn(command).then(|| {
            self.begin();
            Telling(self)
        })
    }

    fn begin(&self) {
        let now_ns = process::now_ns();
        let mut state = lock(&self.state);
        if state.presence.begin(now_ns) {
            state.turns.begin(self.page.page(), now_ns);
            self.changed.notify_all();
        }
    }

    /// One look of the keeper.
    fn look(&self) -> Standing {
        let (page, now_ns) = (self.page.page(), process::now_ns());
        let mut state = lock(&self.state);
        if state.presence.is_due(now_ns) {
            // Under the lock: a command that begins now wants the turn again after this.
            state.turns.end(page, now_ns);
        }
        state.turns.look(page, now_ns, process::life, || self.driver.rests())
    }

    /// Asks the driver whether all work is done, if that is a question: while the session has work and the turn.
    fn ask(&self) {
        let state = lock(&self.state);
        let question = state.presence.question().filter(|_| state.turns.holds());
        drop(state);
        let Some(question) = question else { return };
        // A context that died has no work any more.
        if self.driver.quiet().unwrap_or(true) {
            lock(&self.state).presence.quiet(question, process::now_ns());
        }
    }

    /// Work that did not come as a command, say of a session that goes on from a snapshot, would wait for a turn that it never
    /// asked for.
    fn ask_of_other_work(&self) {
        if !lock(&self.state).presence.is_closed() && self.driver.waits_at_gate() {
            self.begin();
            lock(&self.state).presence.end();
        }
    }

    fn is_idle(&self) -> bool {
        !lock(&self.state).presence.is_closed()
    }

    /// Rests until there is work, at most for a beat; for a moment while there is.
    fn rest(&self) {
        let state = lock(&self.state);
        if self.is_over.load(SeqCst) {
            return;
        }
        if state.presence.is_closed() {
            drop(state);
            std::thread::sleep(LOOK_EVERY);
        } else {
            drop(wait_for(&self.changed, state, BEAT));
        }
    }

    /// The session is over: the turn is handed on, and its place given back.
    pub(crate) fn leave(&self) {
        if self.is_over.swap(true, SeqCst) {
            return;
        }
        let (page, slot) = (self.page.page(), self.ticket.slot());
        lock(&self.state).turns.end(page, process::now_ns());
        self.changed.notify_all();
        tracing::info!(
            part = %self.ticket.part(),
            turns = page.get(slot, Field::BusyPeriods),
            used_ms = page.get(slot, Field::BusyTotalNs) / 1_000_000,
            "a session has taken turns on its GPU"
        );
        page.release(self.ticket);
    }
}

impl Drop for TurnTaker {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Whether a command puts work into a stream that drivers hold back until the session has the turn. Copies between host and device
/// need none.
fn needs_turn(command: &DriverCommand<'_>) -> bool {
    let op = match command {
        DriverCommand::GraphLaunch { .. } => return true,
        DriverCommand::Enqueue { op, .. } => op,
        _ => return false,
    };
    matches!(op, Op::Launch { .. } | Op::Fill { .. } | Op::CopyDevice { .. })
}

/// Looks and beats until the session is over.
fn keep(taker: &Weak<TurnTaker>, ending: &Ending) {
    process::sleep_on_time();
    let mut beat_at_ns = 0;
    while let Some(taker) = taker.upgrade().filter(|taker| !taker.is_over.load(SeqCst)) {
        let now_ns = process::now_ns();
        if now_ns >= beat_at_ns {
            taker.page.page().beat_and_hold(taker.ticket, false);
            beat_at_ns = now_ns + BEAT.as_nanos() as u64;
        }
        if taker.look() == Standing::Lost {
            return ending.end(EndKind::Stopped, LOST);
        }
        taker.rest();
    }
}

/// Asks the driver until the session is over.
fn ask(taker: &Weak<TurnTaker>) {
    process::sleep_on_time();
    while let Some(taker) = taker.upgrade().filter(|taker| !taker.is_over.load(SeqCst)) {
        taker.ask();
        taker.rest();
        if taker.is_idle() {
            taker.ask_of_other_work();
        }
    }
}
