//! Sessions that take turns while processes come, go, die, freeze, and stand still between any two steps on the page.
//!
//! Rules: no gate is open but the holder's, whenever no process stands still in the middle; a live session with work does not wait
//! for ever; a session that goes on finds out that it lost the turn; at the end every live session gets its share again.

use super::{
    first_failure, is_found,
    turns_world::{MS, Process, Program, US, World},
};
use crate::{
    Owner, Share, Turns,
    mutant::{Mutant, interrupt_with},
};
use std::cell::RefCell;
use std::rc::Rc;

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// Between two steps of a process: now and then it stands still for seconds, and the others go on.
fn interrupt() {
    let Some(world) = WORLD.with_borrow(Clone::clone) else { return };
    if world.depth.get() >= 2 || world.below(60) != 0 {
        return;
    }
    world.depth.set(world.depth.get() + 1);
    world.pass([200 * US, 20 * MS, 1_300 * MS][world.below(3) as usize]);
    world.depth.set(world.depth.get() - 1);
}

fn program(world: &World) -> Program {
    let kernel_ns = [50 * US, 500 * US, 12 * MS][world.below(3) as usize];
    match world.below(2) {
        0 => Program::endless(kernel_ns),
        _ => {
            let (burst_ns, pause_ns) = (1 + world.below(30 * MS), 1 + world.below(20 * MS));
            Program { kernel_ns, burst_ns, pause_ns }
        }
    }
}

fn step(world: &World) {
    let sessions = world.sessions.borrow().clone();
    let chosen = sessions.get(world.below(sessions.len().max(1) as u64) as usize);
    match (world.below(12), chosen) {
        (0 | 1, _) if sessions.len() < 5 => {
            let pid = 1 + world.below(8) as u32;
            let is_taken =
                |pid| sessions.iter().any(|it| it.owner.pid() == pid && it.process.get() != Process::Dead);
            if !is_taken(pid) {
                let (milli, program) = (100 + world.below(800) as u16, program(world));
                world.join(pid, milli, pid.into(), program);
            }
        }
        (2, Some(session)) if session.process.get() == Process::Live => session.process.set(Process::Frozen),
        (3 | 4, Some(session)) if session.process.get() == Process::Frozen => {
            session.process.set(Process::Live);
        }
        (5, Some(session)) => {
            world.kill(session);
            // Some fronts never notice.
            if world.below(3) != 0 {
                world.pass(world.below(30) * MS);
                world.reclaim(session);
            }
            world.sessions.borrow_mut().retain(|it| it.process.get() != Process::Dead);
        }
        (6, _) => world.pass(1_500 * MS),
        _ => world.pass(world.below(60) * MS),
    }
}

fn run(seed: u64) -> Result<(), String> {
    let world = World::new(seed);
    WORLD.set(Some(world.clone()));
    interrupt_with(Some(interrupt));
    for _ in 0..50 {
        step(&world);
    }
    interrupt_with(None);
    let outcome = at_the_end(&world);
    WORLD.set(None);
    outcome
}

/// The frozen go on, what the dead left is found, and then all is as without faults.
fn at_the_end(world: &World) -> Result<(), String> {
    let sessions = world.sessions.borrow().clone();
    for session in &sessions {
        session.process.set(Process::Live);
        session.program.set(Program::endless(100 * US));
    }
    world.pass(1_500 * MS);
    let before: Vec<u64> = sessions.iter().map(|session| session.used_ns.get()).collect();
    let idle_ns = world.idle_ns.get();
    world.pass(500 * MS);
    world.outcome()?;
    for (session, before) in sessions.iter().zip(before) {
        if session.used_ns.get() == before {
            return Err(format!("slot {} got nothing in 500 ms", session.ticket.slot()));
        }
    }
    match world.idle_ns.get() - idle_ns {
        idle_ns if idle_ns > 25 * MS => Err(format!("idle for {} us of 500 ms", idle_ns / US)),
        _ => Ok(()),
    }
}

#[test]
fn one_session_runs_at_a_time_and_none_waits_for_ever_whatever_dies_or_freezes() {
    assert_eq!(first_failure(0..60, run), None);
}

#[test]
fn mistakes_with_the_turn_are_found() {
    for mutant in [
        Mutant::SeizedGateStaysOpen,
        Mutant::OpensWithoutTheTurn,
        Mutant::OpensWhatWasClosedMeanwhile,
        Mutant::PassKeepsGateOpen,
        Mutant::NeverSeizes,
        Mutant::ForgetsToWantAgain,
    ] {
        assert!(is_found(mutant, 0..120, run), "{mutant:?} was not found");
    }
}

/// How long it takes until the next session has the turn of one that is gone.
fn left_behind_ns(is_reclaimed: bool) -> u64 {
    let world = World::new(1);
    let [gone, next] = [1, 2].map(|pid| world.join(pid, 500, pid.into(), Program::endless(100 * US)));
    while world.page().holding().slot != Some(gone.ticket.slot()) {
        world.pass(MS);
    }
    world.kill(&gone);
    if is_reclaimed {
        world.reclaim(&gone);
    }
    let since = world.now.get();
    while world.page().holding().slot != Some(next.ticket.slot()) {
        world.pass(50 * US);
    }
    world.now.get() - since
}

#[test]
fn the_turn_of_the_dead_is_free_when_their_front_notices_and_else_after_100_ms() {
    let at_once = |_| if left_behind_ns(true) <= MS { Ok(()) } else { Err("it was kept".to_owned()) };
    assert_eq!(at_once(0), Ok(()));
    assert!(is_found(Mutant::ReclaimKeepsTurn, 0..1, at_once));
    assert!((99 * MS..105 * MS).contains(&left_behind_ns(false)), "{}", left_behind_ns(false));
}

thread_local! {
    static RECIPIENT: RefCell<Option<(Rc<World>, Turns)>> = const { RefCell::new(None) };
}

/// The work of a session ends right before it is given the turn. It may not look for 50 ms.
fn gives_to_the_idle(_: u64) -> Result<(), String> {
    let world = World::new(1);
    let claim = |pid: u32| {
        let (owner, share) = (Owner::new(pid, 1).unwrap(), Share::new(500, pid.into()));
        Turns::new(world.page(), world.page().claim_share(owner, share, 1).unwrap()).unwrap()
    };
    let (mut giver, mut recipient) = (claim(1), claim(2));
    giver.begin(world.page(), 1);
    recipient.begin(world.page(), 2);
    RECIPIENT.set(Some((world.clone(), recipient)));
    interrupt_with(Some(|| {
        // What ends in the middle had looked at the turn before it was given.
        let Some((world, recipient)) = RECIPIENT.take() else { return };
        world.page().want_no_more(recipient.ticket().slot());
    }));
    giver.end(world.page(), 3);
    interrupt_with(None);
    match world.page().holding().slot {
        None => Ok(()),
        Some(slot) => Err(format!("slot {slot} has the turn and no work")),
    }
}

#[test]
fn a_session_whose_work_ended_meanwhile_is_not_left_with_the_turn() {
    assert_eq!(gives_to_the_idle(0), Ok(()));
    assert!(is_found(Mutant::GivesToTheIdle, 0..1, gives_to_the_idle));
}
