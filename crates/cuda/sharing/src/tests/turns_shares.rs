//! Time in proportion to shares, without faults: within 5 points over 10 s while all have work, nothing idle, nothing saved up.

use super::{
    first_failure, is_found,
    turns_world::{MS, Program, Session, US, World},
};
use crate::mutant::Mutant;
use std::rc::Rc;

/// What each session has used in the next 10 s, of the whole.
fn parts(world: &World, sessions: &[Rc<Session>], ns: u64) -> Vec<f64> {
    let before: Vec<u64> = sessions.iter().map(|session| session.used_ns.get()).collect();
    world.pass(ns);
    let used: Vec<u64> =
        sessions.iter().zip(&before).map(|(session, it)| session.used_ns.get() - it).collect();
    let sum = used.iter().sum::<u64>().max(1) as f64;
    used.into_iter().map(|used| used as f64 / sum).collect()
}

fn check(parts: &[f64], wanted: &[f64], points: f64) -> Result<(), String> {
    let is_near = |(part, wanted): (&f64, &f64)| (part - wanted).abs() <= points / 100.0;
    match parts.iter().zip(wanted).all(is_near) {
        true => Ok(()),
        false => Err(format!("{parts:.3?} in place of {wanted:.3?}")),
    }
}

/// Programs that always have work, with kernels of 20 us to 30 ms.
fn proportions(seed: u64) -> Result<(), String> {
    let world = World::new(seed);
    let mixes: [&[u16]; 5] = [&[500, 500], &[250, 750], &[100, 300, 600], &[50, 50, 900], &[200; 5]];
    let mix = mixes[world.below(5) as usize];
    let kernels = [20 * US, 100 * US, 2 * MS, 12 * MS, 30 * MS];
    let join = |(at, milli): (usize, &u16)| {
        let kernel_ns = kernels[world.below(5) as usize];
        world.join(at as u32 + 1, *milli, at as u64, Program::endless(kernel_ns))
    };
    let sessions: Vec<_> = mix.iter().enumerate().map(join).collect();
    let parts = parts(&world, &sessions, 10_000 * MS);
    let sum: f64 = mix.iter().map(|milli| f64::from(*milli)).sum();
    let wanted: Vec<f64> = mix.iter().map(|milli| f64::from(*milli) / sum).collect();
    check(&parts, &wanted, 5.0)?;
    for session in &sessions {
        let (used, accounted) = (session.used_ns.get() as f64, world.accounted_ns(session) as f64);
        if (used - accounted).abs() > 0.06 * used + 10e6 {
            return Err(format!("the page accounts for {accounted} of {used}"));
        }
    }
    if world.idle_ns.get() > 200 * MS {
        return Err(format!("idle for {} ms of 10 s", world.idle_ns.get() / MS));
    }
    world.outcome()
}

#[test]
fn time_is_in_proportion_to_shares_whatever_the_kernels() {
    assert_eq!(first_failure(0..8, proportions), None);
}

/// A program that pauses leaves its time to the others at once, and a lone program has the whole device.
fn conserves(seed: u64) -> Result<(), String> {
    let world = World::new(seed);
    let steady = world.join(1, 100, 1, Program::endless(100 * US));
    let burst_ns = (1 + world.below(20)) * MS;
    let pauses = Program { kernel_ns: 200 * US, burst_ns, pause_ns: (5 + world.below(50)) * MS };
    let pausing = world.join(2, 900, 2, pauses);
    world.pass(3_000 * MS);
    let idle_milli = 1000 * world.idle_ns.get() / (3_000 * MS);
    if idle_milli > 30 {
        return Err(format!("the device was idle for {idle_milli} thousandths of the time"));
    }
    world.kill(&pausing);
    world.reclaim(&pausing);
    let before = steady.used_ns.get();
    world.pass(1_000 * MS);
    let alone = steady.used_ns.get() - before;
    match alone >= 995 * MS {
        true => world.outcome(),
        false => Err(format!("alone it had {} ms of a second", alone / MS)),
    }
}

#[test]
fn the_device_is_never_idle_while_a_session_wants_it() {
    assert_eq!(first_failure(0..10, conserves), None);
}

/// A session that did nothing for seconds has its share afterwards, and no more.
fn saves_nothing(seed: u64) -> Result<(), String> {
    let world = World::new(seed);
    let steady = world.join(1, 500, 1, Program::endless(100 * US));
    let rare = Program { kernel_ns: 100 * US, burst_ns: 1, pause_ns: 4_000 * MS };
    let sleeper = world.join(2, 500, 2, rare);
    world.pass(3_000 * MS);
    sleeper.program.set(Program::endless(100 * US));
    world.pass(1_100 * MS);
    let parts = parts(&world, &[steady, sleeper], 500 * MS);
    check(&parts, &[0.5, 0.5], 5.0)?;
    world.outcome()
}

#[test]
fn an_idle_session_saves_no_time_up() {
    assert_eq!(first_failure(0..5, saves_nothing), None);
}

/// A program whose pauses are short against its work, and longer than any linger, has its share beside one without pauses, within 5 points.
fn pauses_cost_little(seed: u64) -> Result<(), String> {
    let world = World::new(seed);
    let steady = world.join(1, 500, 1, Program::endless(100 * US));
    let steps = Program { kernel_ns: 100 * US, burst_ns: 5 * MS, pause_ns: 500 * US };
    let stepping = world.join(2, 500, 2, steps);
    let parts = parts(&world, &[steady, stepping], 5_000 * MS);
    match parts[1] >= 0.45 {
        true => world.outcome(),
        false => Err(format!("it had {:.3} of the time", parts[1])),
    }
}

#[test]
fn a_program_with_short_pauses_has_its_share() {
    assert_eq!(first_failure(0..5, pauses_cost_little), None);
}

/// Two programs of one lease have its share together.
fn programs_of_a_lease(seed: u64) -> Result<(), String> {
    let world = World::new(seed);
    let join = |pid, lease| world.join(pid, 500, lease, Program::endless(100 * US));
    let sessions = [join(1, 7), join(2, 7), join(3, 8)];
    let parts = parts(&world, &sessions, 5_000 * MS);
    check(&parts, &[0.25, 0.25, 0.5], 5.0)?;
    world.outcome()
}

#[test]
fn programs_of_one_lease_have_its_share_together() {
    assert_eq!(first_failure(0..3, programs_of_a_lease), None);
}

/// While an online session has work no equal one starts any, and their time does not pass.
fn online_comes_first(seed: u64) -> Result<(), String> {
    let world = World::new(seed);
    let sessions = [1, 2].map(|pid| world.join(pid, 500, pid.into(), Program::endless(100 * US)));
    let online = world.online(9);
    world.pass(100 * MS);
    let mut disturbed_ns = 0;
    for _ in 0..40 {
        let used = || sessions.iter().map(|session| session.used_ns.get()).sum::<u64>();
        world.page().close(online, world.now.get());
        let before = used();
        world.pass(20 * MS);
        disturbed_ns += used() - before;
        world.page().open_gate(online, world.now.get());
        world.pass(20 * MS);
    }
    if disturbed_ns > 40 * 400 * US {
        return Err(format!("{disturbed_ns} ns of work while an online session had some"));
    }
    check(&parts(&world, &sessions, 1_000 * MS), &[0.5, 0.5], 5.0)?;
    world.outcome()
}

#[test]
fn equal_sessions_make_way_for_online_ones() {
    assert_eq!(first_failure(0..3, online_comes_first), None);
}

#[test]
fn mistakes_with_shares_are_found() {
    for mutant in [Mutant::IgnoresShares, Mutant::NeverPasses, Mutant::PassesWhileItRuns] {
        assert!(is_found(mutant, 0..6, proportions), "{mutant:?} was not found");
    }
    assert!(is_found(Mutant::IdleKeepsTurn, 0..5, conserves));
    assert!(is_found(Mutant::PauseForfeits, 0..3, pauses_cost_little));
    assert!(is_found(Mutant::IdleSavesTime, 0..5, saves_nothing));
    assert!(is_found(Mutant::SharePerProgram, 0..3, programs_of_a_lease));
}
