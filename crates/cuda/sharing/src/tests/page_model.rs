//! Processes that share a page and are killed, frozen, thawed and replaced at any time, with sentries that look.
//!
//! Rules: the bit of an owner that lives and beats is never cleared by others; a process that is thawed has its bit again
//! with its next beat; at rest the gate is open if and only if no live process is busy, within 1.2 s; the dead whose
//! number is in use again are found as fast as others.

use super::{Dice, first_failure, is_found};
use crate::{Class, Life, Owner, PAGE_WORDS, Page, Sentry, SlotOwner, Ticket, mutant::Mutant};
use std::sync::atomic::AtomicU64;

const MS: u64 = 1_000_000;
/// How often a live owner beats.
const BEAT_NS: u64 = 50 * MS;

struct Process {
    owner: Owner,
    ticket: Option<Ticket>,
    is_busy: bool,
    is_frozen: bool,
    beat_at: u64,
}

struct World<'a> {
    page: Page<'a>,
    now: u64,
    processes: Vec<Process>,
    /// Tickets of processes that are dead and whose front has not noticed.
    dead: Vec<(Ticket, Owner)>,
    /// Tickets whose slots were reclaimed.
    stale: Vec<(Ticket, Owner)>,
    sentries: [Sentry; 2],
    next_start: u64,
}

impl World<'_> {
    /// The machine's process table. A number may be another's by now.
    fn life(processes: &[Process], owner: Owner) -> Life {
        let found = processes.iter().find(|process| process.owner.pid() == owner.pid());
        owner.life(found.map(|process| process.owner.start_ticks()))
    }

    fn begin(&mut self, dice: &mut Dice) {
        if self.processes.len() >= 6 {
            return;
        }
        // Few numbers, so that they are used again soon.
        let pid = 1 + dice.below(8) as u32;
        if self.processes.iter().any(|process| process.owner.pid() == pid) {
            return;
        }
        self.next_start += 1;
        let owner = Owner::new(pid, self.next_start).unwrap();
        let ticket = self.page.claim(owner, Class::Online, self.now);
        self.processes.push(Process { owner, ticket, is_busy: false, is_frozen: false, beat_at: self.now });
    }

    /// Time passes: live processes beat, sentries look.
    fn pass(&mut self, ns: u64, dice: &mut Dice) -> Result<(), String> {
        let until = self.now + ns;
        while self.now < until {
            self.now += 1 + dice.below(20 * MS);
            for process in &mut self.processes {
                if !process.is_frozen && self.now - process.beat_at >= BEAT_NS {
                    process.beat_at = self.now;
                    if let Some(ticket) = process.ticket {
                        self.page.beat_and_hold(ticket, process.is_busy);
                    }
                }
            }
            let processes = &self.processes;
            let look = &mut self.sentries[dice.below(2) as usize];
            look.look(self.page, self.now, |owner| Self::life(processes, owner));
            self.check_the_living()?;
        }
        Ok(())
    }

    /// The whole machine stands still.
    fn stall(&mut self, ns: u64, dice: &mut Dice) -> Result<(), String> {
        self.now += ns;
        let processes = &self.processes;
        let look = &mut self.sentries[dice.below(2) as usize];
        look.look(self.page, self.now, |owner| Self::life(processes, owner));
        self.check_the_living()
    }

    fn check_the_living(&self) -> Result<(), String> {
        for process in self.processes.iter().filter(|process| process.is_busy && !process.is_frozen) {
            let Some(ticket) = process.ticket else { continue };
            if !self.page.is_held(ticket) {
                return Err(format!("the gate is open at {}, and {:?} is busy", self.now, process.owner));
            }
        }
        Ok(())
    }

    fn check_slots(&self) -> Result<(), String> {
        let owners = (0..crate::SLOTS).map(|slot| self.page.owner(slot));
        let set = owners.enumerate().filter(|(_, owner)| *owner == SlotOwner::Nobody);
        match set.into_iter().find(|(slot, _)| self.page.closers() & 1 << slot != 0) {
            Some((slot, _)) => Err(format!("the free slot {slot} closes the gate")),
            None => Ok(()),
        }
    }

    fn step(&mut self, dice: &mut Dice) -> Result<(), String> {
        let count = self.processes.len().max(1) as u64;
        let chosen = dice.below(count) as usize;
        match dice.below(12) {
            0 | 1 => self.begin(dice),
            2 | 3 => {
                if let Some(process) = self.processes.get_mut(chosen)
                    && let (false, Some(ticket)) = (process.is_frozen, process.ticket)
                {
                    process.is_busy = self.page.close(ticket, self.now);
                }
            }
            4 | 5 => {
                if let Some(process) = self.processes.get_mut(chosen)
                    && let (false, Some(ticket)) = (process.is_frozen, process.ticket)
                {
                    self.page.open_gate(ticket, self.now);
                    process.is_busy = false;
                }
            }
            6 => {
                if let Some(process) = self.processes.get_mut(chosen) {
                    process.is_frozen = true;
                }
            }
            7 => {
                if let Some(process) = self.processes.get_mut(chosen)
                    && std::mem::take(&mut process.is_frozen)
                    && let Some(ticket) = process.ticket
                {
                    // Its beating thread is the first to run, or its command loop; both set the bit.
                    process.beat_at = self.now;
                    self.page.beat_and_hold(ticket, process.is_busy);
                }
            }
            8 if !self.processes.is_empty() => {
                let process = self.processes.swap_remove(chosen);
                self.dead.extend(process.ticket.map(|ticket| (ticket, process.owner)));
            }
            9 => {
                // A front notices late, or never: some of the dead are left for the sentries.
                if let Some((ticket, owner)) = self.dead.pop()
                    && self.page.owner(ticket.slot()) == SlotOwner::Process(owner)
                {
                    self.page.reclaim(ticket.slot());
                    self.stale.push((ticket, owner));
                    self.check_slots()?;
                }
            }
            10 => {
                // A thread of a dead or replaced session that had not noticed. It must not close for another.
                if let Some((ticket, owner)) = self.stale.last().copied()
                    && self.page.owner(ticket.slot()) != SlotOwner::Process(owner)
                {
                    let before = self.page.closers();
                    self.page.close(ticket, self.now);
                    if self.page.closers() != before {
                        return Err("a slot was closed for another".to_owned());
                    }
                }
            }
            _ if dice.below(4) == 0 => self.stall(5_000 * MS, dice)?,
            _ if dice.below(6) == 0 => self.pass(2_500 * MS, dice)?,
            _ => self.pass(dice.below(300 * MS), dice)?,
        }
        self.check_the_living()
    }
}

fn run(seed: u64) -> Result<(), String> {
    let mut dice = Dice::new(seed);
    let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
    let page = Page::create(&words, 1).unwrap();
    let mut world = World {
        page,
        now: 1,
        processes: Vec::new(),
        dead: Vec::new(),
        stale: Vec::new(),
        sentries: Default::default(),
        next_start: 0,
    };
    for _ in 0..80 {
        world.step(&mut dice)?;
    }
    // Numbers of the dead are used again by processes that live on: found by their start time, not by beats.
    let dead: Vec<Owner> = world.dead.iter().map(|(_, owner)| *owner).collect();
    for owner in dead {
        let is_free = world.processes.iter().all(|process| process.owner.pid() != owner.pid());
        if is_free {
            world.next_start += 1;
            let owner = Owner::new(owner.pid(), world.next_start).unwrap();
            let beat_at = world.now;
            world.processes.push(Process { owner, ticket: None, is_busy: false, is_frozen: false, beat_at });
        }
    }
    world.processes.iter_mut().for_each(|process| process.beat_at = process.beat_at.min(world.now));
    let frozen = world.processes.iter().filter(|process| process.is_frozen && process.is_busy).count();
    // Either sentry may be the one that looks; each needs 100 ms of its own looks, and no longer.
    world.pass(500 * MS, &mut dice)?;
    let held_by_dead = world.dead.iter().find(|(ticket, owner)| {
        world.page.owner(ticket.slot()) == SlotOwner::Process(*owner) && world.page.is_held(*ticket)
    });
    if let Some((_, owner)) = held_by_dead {
        return Err(format!("{owner:?} is dead and closes the gate after 500 ms"));
    }
    world.pass(2_000 * MS, &mut dice)?;
    let live = world
        .processes
        .iter()
        .any(|process| process.is_busy && !process.is_frozen && process.ticket.is_some());
    match world.page.gate().is_open() != live {
        true => Ok(()),
        false => Err(format!("at rest: live {live}, {frozen} frozen, closers {:#x}", world.page.closers())),
    }
}

#[test]
fn the_gate_is_open_at_rest_if_and_only_if_no_live_process_is_busy() {
    assert_eq!(first_failure(0..3_000, run), None);
}

#[test]
fn mistakes_with_owners_are_found() {
    for mutant in [
        Mutant::StrangerClears,
        Mutant::SentryTrustsItsPauses,
        Mutant::SentryIgnoresStartTime,
        Mutant::SentryIgnoresBeats,
        Mutant::ReclaimKeepsBit,
        Mutant::CloseWithoutOwning,
        Mutant::ForgetsToCloseAgain,
    ] {
        assert!(is_found(mutant, 0..1_000, run), "{mutant:?} was not found");
    }
}

fn damaged_page_is_closed(_: u64) -> Result<(), String> {
    let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
    let page = Page::create(&words, 1).unwrap();
    words[0].store(77, std::sync::atomic::Ordering::SeqCst);
    if page.gate().is_open() { Err("a damaged page is open".to_owned()) } else { Ok(()) }
}

#[test]
fn doubt_protects_online() {
    assert_eq!(damaged_page_is_closed(0), Ok(()));
    assert!(is_found(Mutant::DamagedIsOpen, 0..1, damaged_page_is_closed));
}

#[test]
fn liars_are_found_by_what_they_do() {
    let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
    let page = Page::create(&words, 1).unwrap();
    // A bit without an owner, one of a number that another process has now, and one that says it lives and never beats.
    words[Page::GATE_WORD].store(1 << 40, std::sync::atomic::Ordering::SeqCst);
    let claim = |pid, start| page.claim(Owner::new(pid, start).unwrap(), Class::Online, 0).unwrap();
    let (dead, silent) = (claim(5, 50), claim(6, 60));
    assert!(page.close(dead, 0) && page.close(silent, 0));
    let mut sentry = Sentry::default();
    let (mut now, mut asked, mut story) = (0, 0, Vec::new());
    while now < 2_000 * MS {
        now += MS;
        let cleared = sentry.look(page, now, |owner| {
            asked += 1;
            owner.life(if owner.pid() == 5 { Some(51) } else { Some(60) })
        });
        story.extend(cleared.into_iter().map(|cleared| (now / MS, cleared)));
    }
    use crate::Cleared;
    let (owner_5, owner_6) = (Owner::new(5, 50).unwrap(), Owner::new(6, 60).unwrap());
    let dead = Cleared::Dead(dead.slot(), owner_5);
    assert_eq!(
        story,
        [(101, dead), (101, Cleared::Orphan(40)), (1001, Cleared::Frozen(silent.slot(), owner_6))]
    );
    assert!(asked <= 11, "the process table is read every 100 ms, not at each look: {asked}");
}

#[test]
fn an_owner_that_closes_again_and_again_does_not_seem_still_to_a_sentry_that_looks_at_closed_gates_alone() {
    let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
    let page = Page::create(&words, 1).unwrap();
    let ticket = page.claim(Owner::new(5, 50).unwrap(), Class::Online, 0).unwrap();
    let mut sentry = Sentry::default();
    for at in 0..200 {
        assert!(page.close(ticket, at * 40 * MS));
        for look in 0..3 {
            let cleared = sentry.look(page, (at * 40 + 10 * look) * MS, |owner| owner.life(Some(50)));
            assert_eq!(cleared, []);
        }
        page.open_gate(ticket, at * 40 * MS);
    }
}

#[test]
fn the_pause_of_a_monitor_that_died_ends() {
    let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
    let page = Page::create(&words, 1).unwrap();
    let mut sentry = Sentry::default();
    page.pause(5_000 * MS);
    assert!(sentry.look(page, 4_999 * MS, |_| Life::Alive).is_empty() && page.is_paused());
    page.pause(6_000 * MS);
    assert!(sentry.look(page, 5_500 * MS, |_| Life::Alive).is_empty(), "it was renewed");
    assert_eq!(sentry.look(page, 6_001 * MS, |_| Life::Alive), [crate::Cleared::OldPause]);
    assert!(page.gate().is_open());
}
