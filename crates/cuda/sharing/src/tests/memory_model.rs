//! Sessions that share the memory of a GPU which is promised twice: they take and give, die, stand still between two steps, and wait.

use super::{Dice, first_failure, is_found};
use crate::{
    Class, Field, Life, MEMORY_PATIENCE_NS, MemoryWait, Owner, PAGE_WORDS, Page, Ticket, WantWatch,
    mutant::{Mutant, interrupt_with},
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

const MS: u64 = 1_000_000;
const CAPACITY: u64 = 1000;

fn words() -> Vec<AtomicU64> {
    (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect()
}

fn owner(pid: u32) -> Owner {
    Owner::new(pid, 1).unwrap()
}

/// A session, what it believes to have, and whether it is in the middle of a step.
#[derive(Clone, Copy)]
struct Session {
    ticket: Ticket,
    bytes: u64,
    is_amid: bool,
}

struct World {
    words: Vec<AtomicU64>,
    sessions: RefCell<Vec<Session>>,
    dice: RefCell<Dice>,
    depth: Cell<u32>,
    next_pid: Cell<u32>,
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

impl World {
    fn page(&self) -> Page<'_> {
        Page::open(&self.words).unwrap()
    }

    fn below(&self, bound: u64) -> u64 {
        self.dice.borrow_mut().below(bound)
    }

    fn change(&self, ticket: Ticket, change: impl FnOnce(&mut Session)) {
        let mut sessions = self.sessions.borrow_mut();
        change(sessions.iter_mut().find(|session| session.ticket == ticket).expect("it lives"));
    }

    fn step(&self) {
        let count = self.sessions.borrow().len() as u64;
        let chosen = self.below(count.max(1)) as usize;
        let chosen = self.sessions.borrow().get(chosen).copied().filter(|session| !session.is_amid);
        match (self.below(8), chosen) {
            (0, _) if count < 5 => {
                let pid = self.next_pid.replace(self.next_pid.get() + 1);
                let class = [Class::Online, Class::Offline][self.below(2) as usize];
                let ticket = self.page().claim(owner(pid), class, 0).unwrap();
                self.sessions.borrow_mut().push(Session { ticket, bytes: 0, is_amid: false });
            }
            (1, Some(session)) => {
                self.sessions.borrow_mut().retain(|other| other.ticket != session.ticket);
                self.page().reclaim(session.ticket.slot());
            }
            (2 | 3, Some(Session { ticket, bytes, .. })) => {
                let part = self.below(bytes + 1);
                self.page().give_memory(ticket, part);
                self.change(ticket, |session| session.bytes -= part);
            }
            (_, Some(Session { ticket, .. })) => {
                let bytes = 1 + self.below(700);
                self.change(ticket, |session| session.is_amid = true);
                let has_taken = self.page().take_memory(ticket, bytes);
                self.change(ticket, |session| {
                    session.is_amid = false;
                    session.bytes += if has_taken { bytes } else { 0 };
                });
            }
            (_, None) => {}
        }
    }

    fn check(&self) -> Result<(), String> {
        let used: u64 = self.sessions.borrow().iter().map(|session| session.bytes).sum();
        if used > CAPACITY {
            return Err(format!("sessions have {used} of {CAPACITY}"));
        }
        let is_amid = self.sessions.borrow().iter().any(|session| session.is_amid);
        match self.page().used_bytes() {
            counted if counted != used && !is_amid => Err(format!("{used} are used, {counted} counted")),
            _ => Ok(()),
        }
    }
}

/// Between two steps of a session others go on.
fn interrupt() {
    let Some(world) = WORLD.with_borrow(Clone::clone) else { return };
    if world.depth.get() < 2 {
        world.depth.set(world.depth.get() + 1);
        (0..world.below(4)).for_each(|_| world.step());
        world.depth.set(world.depth.get() - 1);
    }
}

fn run(seed: u64) -> Result<(), String> {
    let world = Rc::new(World {
        words: words(),
        sessions: RefCell::default(),
        dice: RefCell::new(Dice::new(seed)),
        depth: Cell::new(0),
        next_pid: Cell::new(1),
    });
    Page::create(&world.words, 1).unwrap().set_capacity(Some(CAPACITY));
    WORLD.set(Some(world.clone()));
    interrupt_with(Some(interrupt));
    let outcome = (0..200).try_for_each(|_| {
        world.step();
        world.check()
    });
    interrupt_with(None);
    WORLD.set(None);
    outcome
}

#[test]
fn sessions_together_never_have_more_than_there_is_and_the_dead_have_nothing() {
    assert_eq!(first_failure(0..2000, run), None);
}

#[test]
fn mistakes_in_counting_memory_are_found() {
    for mutant in [Mutant::TakesWithoutASum, Mutant::ReclaimKeepsMemory] {
        assert!(is_found(mutant, 0..200, run), "{mutant:?}");
    }
}

/// One wait of an online session beside a guest, in simulated time. The guest may leave, die with its memory counted for a while, stay,
/// or not be there; the box may look for empty memory.
fn wait(seed: u64) -> Result<(), String> {
    let mut dice = Dice::new(seed);
    let words = words();
    let page = Page::create(&words, 1).unwrap();
    page.set_capacity(Some(CAPACITY));
    let online = page.claim(owner(1), Class::Online, 0).unwrap();
    let has_guest = dice.below(4) != 0;
    let guest = has_guest.then(|| page.claim(owner(2), Class::Offline, 0).unwrap());
    let mut now = 1 + dice.below(1000 * MS);
    let is_looked_at = dice.below(4) == 0;
    if is_looked_at {
        page.memory_returns(now);
    }
    let leaves_at = now + dice.below(25_000) * MS;
    let frees_after = dice.below(1_500) * MS;
    let began = now;
    if let Some(guest) = guest {
        assert!(page.take_memory(guest, 600));
    }
    // What another online session has is never waited for.
    let Some(mut waiting) = MemoryWait::begin(page, online, 500, now) else {
        return if has_guest || is_looked_at {
            Err("it did not wait for its guest".to_owned())
        } else {
            Ok(())
        };
    };
    if !has_guest && !is_looked_at {
        return Err("it waits, and no guest is there".to_owned());
    }
    let (mut got, mut is_gone) = (!has_guest && dice.below(2) == 0, false);
    let never_comes = !has_guest && !got;
    while !got && waiting.goes_on(page, now) {
        let mut watch = WantWatch::default();
        if watch.look(page, now, |_| Life::Alive) != 500 {
            return Err("its want is not there".to_owned());
        }
        now += 1 + dice.below(20 * MS);
        if let Some(guest) = guest.filter(|_| now >= leaves_at && !is_gone) {
            page.release(guest);
            is_gone = true;
        }
        got = is_gone && now >= leaves_at + frees_after && !never_comes;
        if now > began + 40_000 * MS {
            return Err("it waits for ever".to_owned());
        }
    }
    waiting.end(page);
    if page.get(online.slot(), Field::WantBytes) != 0 {
        return Err("its want stays".to_owned());
    }
    let waited = now - began;
    if waited > MEMORY_PATIENCE_NS + 20 * MS {
        return Err(format!("it waited for {} ms", waited / MS));
    }
    let comes_in_time = has_guest && leaves_at + frees_after + 40 * MS < began + MEMORY_PATIENCE_NS;
    if comes_in_time && !got {
        return Err(format!("the guest left after {} ms, and it had given up", (leaves_at - began) / MS));
    }
    if never_comes && waited > 6_000 * MS {
        return Err("it waited on when nothing could come any more".to_owned());
    }
    Ok(())
}

#[test]
fn an_online_session_waits_for_its_guest_and_no_longer() {
    assert_eq!(first_failure(0..3000, wait), None);
}

#[test]
fn mistakes_in_waiting_are_found() {
    for mutant in [Mutant::WantStays, Mutant::WaitsForNoGuest, Mutant::WaitsForEver] {
        assert!(is_found(mutant, 0..300, wait), "{mutant:?}");
    }
}

/// The box looks five times a second at a want whose owner lives, dies or stands still.
fn watched(seed: u64) -> Result<(), String> {
    let mut dice = Dice::new(seed);
    let words = words();
    let page = Page::create(&words, 1).unwrap();
    page.set_capacity(Some(CAPACITY));
    let online = page.claim(owner(7), Class::Online, 0).unwrap();
    let _guest = page.claim(owner(8), Class::Offline, 0).unwrap();
    assert!(MemoryWait::begin(page, online, 300, 1).is_some());
    let (fate, at) = (dice.below(3), dice.below(3_000) * MS);
    let mut watch = WantWatch::default();
    let (mut now, mut beat_at, mut last_heeded) = (1, 0, 0);
    while now < 10_000 * MS {
        let is_over = now >= at;
        if now >= beat_at && !(fate != 0 && is_over) {
            page.beat_and_hold(online, false);
            beat_at = now + 50 * MS;
        }
        now += 50 * MS;
        if now % (200 * MS) != 1 {
            continue;
        }
        let is_dead = fate == 1 && now > at + 50 * MS;
        let want = watch.look(page, now, |_| if is_dead { Life::Dead } else { Life::Alive });
        if want != 0 {
            last_heeded = now;
        }
        match fate {
            0 if want != 300 => return Err("the want of a living session is not heeded".to_owned()),
            1 if is_dead && want != 0 => return Err("the want of a dead session is heeded".to_owned()),
            _ => {}
        }
    }
    match fate {
        2 if last_heeded > at + 2_000 * MS => {
            Err("the want of a frozen session is heeded for good".to_owned())
        }
        _ => Ok(()),
    }
}

#[test]
fn a_want_counts_as_long_as_its_session_shows_that_it_lives() {
    assert_eq!(first_failure(0..200, watched), None);
    for mutant in [Mutant::WantOfTheDead, Mutant::WantOfTheFrozen] {
        assert!(is_found(mutant, 0..50, watched), "{mutant:?}");
    }
}

#[test]
fn only_an_online_session_of_a_gpu_that_is_promised_twice_waits() {
    let words = words();
    let page = Page::create(&words, 1).unwrap();
    let online = page.claim(owner(1), Class::Online, 0).unwrap();
    let guest = page.claim(owner(2), Class::Offline, 0).unwrap();
    let waits = |ticket| MemoryWait::begin(page, ticket, 1, 1).is_some();
    assert!(!waits(online), "no memory is promised twice");
    assert!(page.take_memory(guest, u64::MAX / 2), "nor does the page bound it");
    page.set_capacity(Some(CAPACITY));
    assert!(waits(online) && !waits(guest), "a guest's memory is its own problem");
    assert!(!page.take_memory(online, 1), "nothing is free");
    assert_eq!(
        (page.free_for(crate::Part::Offline), page.free_for(crate::Part::Online)),
        (Some(0), Some(u64::MAX / 2))
    );
    page.release(online);
    assert!(!waits(online), "the slot is not its own any more");
    page.set_capacity(None);
    assert_eq!((page.capacity(), page.free_bytes()), (None, None));
}
