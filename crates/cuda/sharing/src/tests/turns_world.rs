//! Sessions that take turns on one device, in simulated time: programs with kernels of any length, keepers that look, processes that
//! are killed, frozen and replaced, and fronts that notice late or never.

use super::Dice;
use crate::{Class, Field, Life, Owner, PAGE_WORDS, Page, Share, SlotOwner, Standing, Ticket, Turns};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

pub(super) const US: u64 = 1_000;
pub(super) const MS: u64 = 1_000_000;
/// How far time goes at once.
pub(super) const TICK_NS: u64 = 50 * US;
const BEAT_NS: u64 = 50 * MS;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Process {
    Live,
    Frozen,
    Dead,
}

/// What a program does: kernels of one length, and pauses between bursts of them.
#[derive(Clone, Copy)]
pub(super) struct Program {
    pub(super) kernel_ns: u64,
    pub(super) burst_ns: u64,
    pub(super) pause_ns: u64,
}

impl Program {
    /// One that always has work.
    pub(super) fn endless(kernel_ns: u64) -> Self {
        Self { kernel_ns, burst_ns: u64::MAX, pause_ns: 0 }
    }
}

pub(super) struct Session {
    pub(super) owner: Owner,
    pub(super) ticket: Ticket,
    turns: RefCell<Turns>,
    pub(super) process: Cell<Process>,
    pub(super) program: Cell<Program>,
    /// Work that the device has not done, and how much of it is the kernel that runs.
    pub(super) pending_ns: Cell<u64>,
    running_ns: Cell<u64>,
    pauses_until: Cell<u64>,
    /// What the device has done for it.
    pub(super) used_ns: Cell<u64>,
    /// Since when it lives, has work and gets nothing.
    starves_ns: Cell<u64>,
    told: Cell<bool>,
    look_at: Cell<u64>,
    beat_at: Cell<u64>,
}

pub(super) struct World {
    words: Vec<AtomicU64>,
    pub(super) now: Cell<u64>,
    pub(super) sessions: RefCell<Vec<Rc<Session>>>,
    pub(super) dice: RefCell<Dice>,
    starts: Cell<u64>,
    /// Processes that live and take no turns.
    others: RefCell<Vec<Owner>>,
    /// Time in which the device did nothing although a live session had work.
    pub(super) idle_ns: Cell<u64>,
    /// How many calls of sessions stand still in the middle.
    pub(super) depth: Cell<u32>,
    /// The first rule that was broken.
    pub(super) broken: RefCell<Option<String>>,
}

impl World {
    pub(super) fn new(seed: u64) -> Rc<Self> {
        let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
        Page::create(&words, 1).unwrap();
        Rc::new(Self {
            words,
            now: Cell::new(1),
            sessions: RefCell::default(),
            dice: RefCell::new(Dice::new(seed)),
            starts: Cell::new(0),
            others: RefCell::default(),
            idle_ns: Cell::new(0),
            depth: Cell::new(0),
            broken: RefCell::new(None),
        })
    }

    pub(super) fn page(&self) -> Page<'_> {
        Page::open(&self.words).unwrap()
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        self.dice.borrow_mut().below(bound)
    }

    pub(super) fn fail(&self, rule: impl Into<String>) {
        self.broken.borrow_mut().get_or_insert(rule.into());
    }

    pub(super) fn outcome(&self) -> Result<(), String> {
        self.broken.borrow().clone().map_or(Ok(()), Err)
    }

    fn owner(&self, pid: u32) -> Owner {
        self.starts.set(self.starts.get() + 1);
        Owner::new(pid, self.starts.get()).unwrap()
    }

    /// A session of a lease with this share begins.
    pub(super) fn join(&self, pid: u32, milli: u16, lease: u64, program: Program) -> Rc<Session> {
        let owner = self.owner(pid);
        let ticket = self.page().claim_share(owner, Share::new(milli, lease), self.now.get()).unwrap();
        let session = Rc::new(Session {
            owner,
            ticket,
            turns: RefCell::new(Turns::new(self.page(), ticket).unwrap()),
            process: Cell::new(Process::Live),
            program: Cell::new(program),
            pending_ns: Cell::new(program.burst_ns),
            running_ns: Cell::new(0),
            pauses_until: Cell::new(0),
            used_ns: Cell::new(0),
            starves_ns: Cell::new(0),
            told: Cell::new(false),
            look_at: Cell::new(0),
            beat_at: Cell::new(0),
        });
        self.sessions.borrow_mut().push(session.clone());
        session
    }

    pub(super) fn online(&self, pid: u32) -> Ticket {
        let owner = self.owner(pid);
        self.others.borrow_mut().push(owner);
        self.page().claim(owner, Class::Online, self.now.get()).unwrap()
    }

    fn life(&self, owner: Owner) -> Life {
        if self.others.borrow().contains(&owner) {
            return Life::Alive;
        }
        let sessions = self.sessions.borrow();
        let is_it = |session: &&Rc<Session>| {
            session.owner.pid() == owner.pid() && session.process.get() != Process::Dead
        };
        owner.life(sessions.iter().find(is_it).map(|session| session.owner.start_ticks()))
    }

    /// A process is gone, with its work.
    pub(super) fn kill(&self, session: &Session) {
        session.process.set(Process::Dead);
        session.pending_ns.set(0);
        session.running_ns.set(0);
    }

    /// The front of a dead session empties its slot.
    pub(super) fn reclaim(&self, session: &Session) {
        if self.page().owner(session.ticket.slot()) == SlotOwner::Process(session.owner) {
            self.page().reclaim(session.ticket.slot());
        }
    }

    /// Time passes.
    pub(super) fn pass(&self, ns: u64) {
        let until = self.now.get() + ns;
        while self.now.get() < until && self.broken.borrow().is_none() {
            self.now.set(self.now.get() + TICK_NS);
            let sessions = self.sessions.borrow().clone();
            self.work(&sessions);
            let first = self.below(sessions.len().max(1) as u64) as usize;
            for at in 0..sessions.len() {
                self.keep(&sessions[(first + at) % sessions.len()]);
            }
            if self.depth.get() == 0 {
                self.check_gates(&sessions);
            }
        }
    }

    /// The device works for a tick. Kernels that run share it.
    fn work(&self, sessions: &[Rc<Session>]) {
        let begin = |session: &Session| {
            let may_begin = session.pending_ns.get() > 0 && self.page().is_open(session.ticket.slot());
            if session.running_ns.get() == 0 && may_begin {
                session.running_ns.set(session.program.get().kernel_ns.min(session.pending_ns.get()));
            }
            session.running_ns.get() > 0
        };
        let (mut left_ns, mut has_worked) = (TICK_NS, false);
        while left_ns > 0 {
            let active: Vec<_> = sessions.iter().filter(|session| begin(session)).collect();
            let Some(least) = active.iter().map(|session| session.running_ns.get()).min() else { break };
            let each_ns = least.min((left_ns / active.len() as u64).max(1));
            for session in &active {
                session.running_ns.set(session.running_ns.get() - each_ns);
                session.pending_ns.set(session.pending_ns.get() - each_ns);
                session.used_ns.set(session.used_ns.get() + each_ns);
                session.starves_ns.set(0);
            }
            left_ns = left_ns.saturating_sub(each_ns * active.len() as u64);
            has_worked = true;
        }
        let mut is_wanted = false;
        for session in sessions.iter().filter(|session| session.process.get() == Process::Live) {
            if session.pending_ns.get() > 0 {
                is_wanted = true;
                session.starves_ns.set(session.starves_ns.get() + TICK_NS);
                if session.starves_ns.get() > 8_000 * MS && self.depth.get() == 0 {
                    self.fail(format!("slot {} waits for ever", session.ticket.slot()));
                }
            }
        }
        if is_wanted && !has_worked {
            self.idle_ns.set(self.idle_ns.get() + TICK_NS);
        }
    }

    /// What the threads of a live session do.
    fn keep(&self, session: &Session) {
        let now = self.now.get();
        if session.process.get() != Process::Live || now < session.look_at.get() {
            return;
        }
        // Its own calls come one after another; one that stands still in the middle is not here.
        let Ok(mut turns) = session.turns.try_borrow_mut() else { return };
        session.look_at.set(now + 50 * US + self.below(60) * US);
        let page = self.page();
        if now >= session.beat_at.get() {
            session.beat_at.set(now + BEAT_NS);
            page.beat_and_hold(session.ticket, false);
        }
        let program = session.program.get();
        if session.pending_ns.get() == 0 && now >= session.pauses_until.get() {
            match session.told.get() {
                true => session.pauses_until.set(now + program.pause_ns),
                false => session.pending_ns.set(program.burst_ns),
            }
        }
        let has_work = session.pending_ns.get() > 0;
        if has_work != session.told.replace(has_work) {
            match has_work {
                true => turns.begin(page, now),
                false => turns.end(page, now),
            }
        }
        if !has_work {
            // A keeper without work rests until there is some.
            session.look_at.set(session.pauses_until.get().clamp(now + TICK_NS, now + BEAT_NS));
        }
        let standing = turns.look(page, now, |owner| self.life(owner), || session.running_ns.get() == 0);
        if standing == Standing::Lost {
            self.fail(format!("slot {} is lost", session.ticket.slot()));
        }
    }

    /// No gate is open but the holder's, whenever no process stands still in the middle of a call.
    pub(super) fn check_gates(&self, sessions: &[Rc<Session>]) {
        let (page, holder) = (self.page(), self.page().holding().slot);
        for session in sessions {
            let slot = session.ticket.slot();
            let is_owner = page.owner(slot) == SlotOwner::Process(session.owner);
            if is_owner && page.is_open(slot) && holder != Some(slot) {
                self.fail(format!("slot {slot} runs beside the turn of {holder:?}"));
            }
        }
    }

    /// What the page says that a session has used.
    pub(super) fn accounted_ns(&self, session: &Session) -> u64 {
        self.page().get(session.ticket.slot(), Field::BusyTotalNs)
    }
}
