//! A session's part in sharing its GPU: an online session closes the gate before the driver hears of work, and opens it
//! when all work is done; an offline one has the driver wait at the gate.
//!
//! ```text
//!   command loop   begin ─▶ gate closed ─▶ driver told ─▶ end
//!   any thread     a wait of the program has ended: its request is over; once the answer is out, asks whether all is done, and opens
//!                  the gate if the linger is short
//!   keeper thread  asks the driver whether all is done ─▶ lingers ─▶ opens the gate; beats twenty times a second; once a second
//!                  says in the page what offline sessions may do, by what they have cost this one
//!   judge thread   of an offline session: ends it when a kernel of it runs on at a closed gate
//!   both threads   tell the driver the session's time slice, which follows from the others that are there
//! ```
//!
//! While a protected program's session is brought to where the lost one was, the gate stays closed, whether or not there is work at the
//! moment: the program waits, and a fault in the replay cannot be that of offline work.
//!
//! Where contexts are merged, an offline session waits before its first work for as long as faults say ([`FaultBackoff`]), if an online
//! session is there or is expected back, and in any case until one that is expected back is there. A context without work faults nothing.
//!
//! A dedicated session has none of this.

use crate::{
    end::{EndKind, Ending},
    session::spawn,
};
use cuda_driver::{Driver, PageHandle, Part, Ticket};
use cuda_wire::{DriverCommand, HostData, Op};
use locks::{lock, wait_for};
use shared_words::process;
use sharing::{Contexts, FaultBackoff, Field, Linger, Overstay, Presence, Regulator, slice_us};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How often a session shows that it lives. Others take one for frozen that has not for a second.
const BEAT: Duration = Duration::from_millis(50);
/// How often the keeper asks the driver of a busy session whether all work is done.
const ASK_EVERY: Duration = Duration::from_micros(50);
/// How often an offline session looks whether the online one that is expected is back.
const BACK_EVERY: Duration = Duration::from_millis(5);
/// A linger may be shorter than [`ASK_EVERY`]; a shorter sleep than this costs more than it waits.
const SLEEP_MIN: Duration = Duration::from_micros(5);
/// A linger that the thread which has answered the program waits for itself. The keeper comes up to [`ASK_EVERY`] later, and no thread
/// sleeps for so short a time.
const SOON: Duration = Duration::from_micros(30);
/// How often an offline session is asked what it runs while online ones wait.
const JUDGE_EVERY: Duration = Duration::from_millis(10);
/// What the client of a session hears that was ended by its judge.
const OVERSTAYED: &str = "a kernel of this offline program kept the GPU from an online program for half a second; make its \
                          kernels shorter, or run it without --class";
/// A larger copy to the device alone does not close the gate: it loads weights, and needs no part of the device that
/// kernels use.
const COPY_BYTES_MAX: u64 = 4 << 20;

/// A session's place among those that share its GPU. Dropping it gives the place back.
pub(crate) struct Sharer {
    driver: Arc<dyn Driver>,
    page: PageHandle,
    ticket: Ticket,
    online: Mutex<Online>,
    offline_slice_us: Option<u64>,
    /// Told when the session becomes busy, and when it ends.
    changed: Condvar,
    /// Where contexts are merged.
    fault_wait_max_ns: u64,
    /// The first work of an offline session may begin.
    may_work: AtomicBool,
    /// How the client hears that its work waits.
    tell_client: OnceLock<TellClient>,
    /// The gate stays closed until a replay has ended.
    is_replaying: AtomicBool,
    /// After a replay, until all work has ended well.
    when_rested: Mutex<Option<WhenRested>>,
    is_over: AtomicBool,
}

/// Called once, when all work of a session has ended well after a replay.
pub(crate) type WhenRested = Box<dyn FnOnce() + Send>;

/// Tells the client something, in words for its user.
pub(crate) type TellClient = Box<dyn Fn(&str) + Send + Sync>;

/// What holds between an online session and offline ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The share of an online program's time that offline ones may cost it.
    pub(crate) slack: f64,
    /// How long an offline session may have the device at a stretch while an online one waits. `None`: as long as the driver gives.
    pub(crate) offline_slice_us: Option<u64>,
    /// How long an offline session waits at most, after a fault, before it begins to work beside an online one.
    pub(crate) fault_wait_max: Duration,
    /// What lies between online and offline work.
    pub(crate) contexts: Contexts,
}

/// What an online session knows of its own work.
struct Online {
    presence: Presence,
    regulator: Regulator,
    /// How long the longest group of offline work takes, and until when one may run that began before the gate was closed last.
    longest_group_ns: u64,
    disturbed_until_ns: u64,
}

/// The driver is being told of work, until this ends.
pub(crate) struct Telling<'a>(&'a Sharer);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        lock(&self.0.online).presence.end();
    }
}

impl Sharer {
    /// The place of an online or offline session, which has this slot.
    pub(crate) fn new(driver: &Arc<dyn Driver>, page: PageHandle, ticket: Ticket, rules: Rules) -> Arc<Self> {
        let sharer = Arc::new(Self {
            driver: driver.clone(),
            page,
            ticket,
            online: Mutex::new(Online {
                presence: Presence::with_linger(Linger::new(rules.contexts), process::now_ns()),
                regulator: Regulator::new(rules.slack),
                longest_group_ns: 0,
                disturbed_until_ns: 0,
            }),
            offline_slice_us: rules.offline_slice_us,
            changed: Condvar::new(),
            fault_wait_max_ns: rules.fault_wait_max.as_nanos() as u64,
            may_work: AtomicBool::new(ticket.part() != Part::Offline || rules.contexts == Contexts::Apart),
            tell_client: OnceLock::new(),
            is_replaying: AtomicBool::new(false),
            when_rested: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        sharer.settle_slice();
        if ticket.part() == Part::Online {
            let kept = Arc::downgrade(&sharer);
            spawn("dxpu-presence", move || keep(&kept));
        }
        sharer
    }

    /// The driver is about to be told of `command`. Closes the gate if that puts work into a stream.
    pub(crate) fn tell(&self, command: &DriverCommand<'_>) -> Option<Telling<'_>> {
        let work = work_of(command)?;
        if !self.may_work.load(Relaxed) {
            self.wait_after_faults();
        }
        self.begin(work)
    }

    /// How the client hears that its work waits.
    pub(crate) fn tell_client_by(&self, tell: TellClient) {
        let _ = self.tell_client.set(tell);
    }

    /// Before the first work of an offline session. This thread is the session's own, so no other session waits.
    fn wait_after_faults(&self) {
        let (mut is_told, began_ns) = (false, process::now_ns());
        while !self.is_over.load(SeqCst) {
            let page = self.page.page();
            let (backoff, now_ns) = (page.fault_backoff(), process::now_ns());
            // Faults of others meanwhile do not count, nor does a word that is damaged.
            let bound_ns = (began_ns + self.fault_wait_max_ns).saturating_sub(now_ns);
            let left = Duration::from_nanos(backoff.wait_ns(now_ns, self.fault_wait_max_ns).min(bound_ns));
            // Only online programs are protected by this.
            let must_wait = !left.is_zero() && page.is_online_near(now_ns);
            if !must_wait && !page.is_online_expected(now_ns) {
                break;
            }
            if must_wait && !std::mem::replace(&mut is_told, true) {
                let words = waits(backoff, left);
                tracing::info!(faults = backoff.in_a_row(), wait_ms = left.as_millis() as u64, "{words}");
                if let Some(tell) = self.tell_client.get() {
                    tell(&words);
                }
            }
            std::thread::sleep(left.clamp(BACK_EVERY, BEAT));
        }
        self.may_work.store(true, Relaxed);
    }

    /// The driver is about to be told of a read of device memory.
    pub(crate) fn tell_of_read(&self) -> Option<Telling<'_>> {
        self.begin(READ)
    }

    /// The driver is about to be told of work; the number is the same for the same work. `None` for an offline session.
    fn begin(&self, work: u64) -> Option<Telling<'_>> {
        if self.ticket.part() != Part::Online {
            return None;
        }
        let now_ns = process::now_ns();
        let mut online = lock(&self.online);
        let page = self.page.page();
        let found_open = online.presence.begin(now_ns);
        if found_open {
            page.close(self.ticket, now_ns);
            online.disturbed_until_ns = now_ns.saturating_add(online.longest_group_ns);
            self.changed.notify_all();
        } else if !page.is_held(self.ticket) {
            // Another session took this one for frozen.
            page.beat_and_hold(self.ticket, true);
        }
        let is_disturbed = (found_open || now_ns < online.disturbed_until_ns) && page.has_guests();
        let paused_ns = online.presence.paused_ns();
        online.regulator.command(work, is_disturbed, paused_ns, now_ns);
        drop(online);
        Some(Telling(self))
    }

    /// What a lost session has done is about to be done again, until [`Sharer::has_replayed`].
    pub(crate) fn replays(&self) {
        if let Some(telling) = self.begin(REPLAY)
            && !self.is_replaying.swap(true, SeqCst)
        {
            std::mem::forget(telling);
            // Behind the closed gate.
            self.page.page().online_is_back();
        }
    }

    /// From here on the program's own commands come.
    pub(crate) fn has_replayed(&self, when_rested: WhenRested) {
        if self.is_replaying.swap(false, SeqCst) {
            *lock(&self.when_rested) = Some(when_rested);
            lock(&self.online).presence.end();
        }
    }

    /// The program has waited for its work, and goes on.
    pub(crate) fn waited(&self) {
        if self.ticket.part() == Part::Online {
            lock(&self.online).regulator.waited(process::now_ns());
        }
    }

    /// The program has its answer. Opens the gate, if all work is done and the linger is short; `is_called`: a command has come.
    pub(crate) fn open_soon(&self, mut is_called: impl FnMut() -> bool) {
        if self.ticket.part() != Part::Online || is_called() {
            return;
        }
        let rest = self.look();
        if rest > SOON {
            return;
        }
        let begun = Instant::now();
        while begun.elapsed() < rest {
            if is_called() {
                return;
            }
            std::hint::spin_loop();
        }
        self.look();
    }

    /// Once a second: what offline sessions may do from now on.
    fn regulate(&self, now_ns: u64) {
        let mut online = lock(&self.online);
        let page = self.page.page();
        if let Some(orders) = online.regulator.second(page, self.ticket, now_ns) {
            online.presence.set_guard((orders.guard_us * 1000.0) as u64);
            online.longest_group_ns = page.longest_group_us().saturating_mul(1000);
            let longest_ns = online.longest_group_ns;
            online.presence.set_longest_group(longest_ns);
            let reading = online.regulator.reading();
            drop(online);
            if reading.cost.is_some() {
                tracing::debug!(?reading, ?orders, "what offline work cost in a second, and what follows");
            }
        }
    }

    /// Tells the driver how long the device may be this session's at a stretch, by which others are there.
    fn settle_slice(&self) {
        if let Some(offline_us) = self.offline_slice_us {
            self.driver.set_slice(slice_us(self.ticket.part(), self.page.page(), offline_us));
        }
    }

    /// One look, of the keeper or of a thread that has answered the program. Returns when to look again.
    fn look(&self) -> Duration {
        let online = lock(&self.online);
        let Some(question) = online.presence.question() else {
            let opens_at_ns = online.presence.opens_at_ns();
            drop(online);
            return self.open_if_due(opens_at_ns);
        };
        drop(online);
        match self.driver.quiet() {
            Ok(false) => return ASK_EVERY,
            Ok(true) => self.has_rested(),
            // A context that died has no work any more.
            Err(_) => {}
        }
        let mut online = lock(&self.online);
        online.presence.quiet(question, process::now_ns());
        let opens_at_ns = online.presence.opens_at_ns();
        drop(online);
        self.open_if_due(opens_at_ns)
    }

    /// All work of the session is over; well, if its context lives.
    fn has_rested(&self) {
        if self.is_replaying.load(SeqCst)
            || lock(&self.when_rested).is_none()
            || self.driver.fault().is_some()
        {
            return;
        }
        let tell = lock(&self.when_rested).take();
        if let Some(tell) = tell {
            tell();
        }
    }

    fn open_if_due(&self, opens_at_ns: Option<u64>) -> Duration {
        let Some(opens_at_ns) = opens_at_ns else { return BEAT };
        let now_ns = process::now_ns();
        let mut online = lock(&self.online);
        if online.presence.is_due(now_ns) {
            // Under the lock: a command that begins now closes the gate after this.
            self.page.page().open_gate(self.ticket, now_ns);
            return BEAT;
        }
        Duration::from_nanos(opens_at_ns.saturating_sub(now_ns)).clamp(SLEEP_MIN, BEAT)
    }

    fn beat(&self) {
        let online = lock(&self.online);
        let is_closed = online.presence.is_closed();
        self.page.page().beat_and_hold(self.ticket, is_closed);
    }

    /// Rests, at most for so long; a session that becomes busy ends an idle session's rest.
    fn rest(&self, at_most: Duration) {
        let online = lock(&self.online);
        if self.is_over.load(SeqCst) {
            return;
        }
        if online.presence.is_closed() || at_most < BEAT {
            drop(online);
            std::thread::sleep(at_most.min(ASK_EVERY));
        } else {
            drop(wait_for(&self.changed, online, at_most));
        }
    }

    /// Ends an offline session whose kernel keeps the device from online ones.
    pub(crate) fn judge(self: &Arc<Self>, ending: &Arc<Ending>) {
        if self.ticket.part() != Part::Offline {
            return;
        }
        let (sharer, ending) = (Arc::downgrade(self), ending.clone());
        spawn("dxpu-judge", move || {
            let mut overstay = Overstay::default();
            while let Some(sharer) = sharer.upgrade().filter(|sharer| !sharer.is_over.load(SeqCst)) {
                sharer.settle_slice();
                let gate = sharer.page.page().gate();
                // While the gate is open the question is of no use, and would disturb the program.
                let before = overstay.offences();
                let running = if gate.is_open() { overstay.work() } else { sharer.driver.running() };
                if overstay.look(gate, running, process::now_ns()) {
                    return ending.end(EndKind::Stopped, OVERSTAYED);
                }
                if overstay.offences() != before {
                    sharer.page.page().set(sharer.ticket, Field::Offences, overstay.offences());
                }
                drop(sharer);
                std::thread::sleep(JUDGE_EVERY);
            }
        });
    }

    /// The session is over, and its slot stays as it is until the process is gone. `comes_back`: its program goes on in another one.
    pub(crate) fn stay(&self, comes_back: bool) {
        if comes_back && self.ticket.part() == Part::Online {
            self.page.page().expect_online(process::now_ns());
        }
        self.is_over.store(true, SeqCst);
        self.changed.notify_all();
    }

    /// The session is over: its place is given back, and the gate opened as far as it is concerned.
    pub(crate) fn leave(&self) {
        if self.is_over.swap(true, SeqCst) {
            return;
        }
        let linger_us = lock(&self.online).presence.linger().ns() / 1000;
        self.changed.notify_all();
        let (page, slot) = (self.page.page(), self.ticket.slot());
        tracing::info!(
            class = %self.ticket.part(),
            busy_periods = page.get(slot, Field::BusyPeriods),
            busy_ms = page.get(slot, Field::BusyTotalNs) / 1_000_000,
            linger_us,
            cost_milli = page.get(slot, Field::CostMilli),
            "a session has shared its GPU"
        );
        self.page.page().release(self.ticket);
        if self.ticket.part() == Part::Offline {
            self.page.page().memory_returns(process::now_ns());
        }
    }
}

impl Drop for Sharer {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Why an offline program's work does not begin, in words for its user.
fn waits(backoff: FaultBackoff, left: Duration) -> String {
    let (count, seconds) = (backoff.in_a_row(), left.as_secs_f64().ceil());
    format!(
        "this offline program waits for {seconds} s before it uses the GPU: {count} fault{} within minutes ended the contexts of all \
         programs there, and an online one has to be restored each time; find the program that fails and stop it",
        if count == 1 { "" } else { "s" }
    )
}

/// Asks, opens and beats for an online session until it is over.
fn keep(sharer: &Weak<Sharer>) {
    process::sleep_on_time();
    let mut beat_at_ns = 0;
    while let Some(sharer) = sharer.upgrade() {
        if sharer.is_over.load(SeqCst) {
            return;
        }
        let now_ns = process::now_ns();
        if now_ns >= beat_at_ns {
            sharer.beat();
            sharer.settle_slice();
            sharer.regulate(now_ns);
            beat_at_ns = now_ns + BEAT.as_nanos() as u64;
        }
        let rest = sharer.look();
        sharer.rest(rest);
    }
}

/// The number of a read of device memory.
const READ: u64 = 1;
/// That of a replay.
const REPLAY: u64 = 7;

/// A number for the work that a command puts into a stream, if that needs the device: the same for the same work.
fn work_of(command: &DriverCommand<'_>) -> Option<u64> {
    match command {
        DriverCommand::GraphLaunch { exec, .. } => Some(2 | u64::from(exec.0) << 8),
        DriverCommand::Enqueue { op, .. } => match op {
            Op::Launch { kernel, grid, .. } => {
                let blocks =
                    grid.iter().fold(0u64, |all, side| all.wrapping_mul(0x1_0001) ^ u64::from(*side));
                Some(3 | u64::from(kernel.module.0) << 8 ^ u64::from(kernel.index) << 24 ^ blocks << 40)
            }
            Op::Fill { .. } => Some(4),
            Op::CopyDevice { .. } => Some(5),
            Op::CopyOut { .. } | Op::CopyOutShared { .. } => Some(READ),
            Op::CopyIn { data: HostData::Inline { .. }, .. } => Some(6),
            Op::CopyIn { shape, .. } | Op::CopyInShared { shape, .. } => {
                shape.bytes().is_some_and(|bytes| bytes <= COPY_BYTES_MAX).then_some(6)
            }
            _ => None,
        },
        _ => None,
    }
}
