//! Whenever the worker dies, and dies again while it is brought back, the program sees what it would have seen.

use super::world::{Seen, World};
use crate::mutant::{Mutant, plant};

fn undisturbed() -> Seen {
    World::new(1).run(&[]).unwrap()
}

/// Checks one run. The error says what went wrong.
fn check(seed: u64, kills: &[u64], expected: &Seen) -> Result<u64, String> {
    let mut world = World::new(seed);
    let seen = world.run(kills)?;
    match seen == *expected {
        true => Ok(world.truncations),
        false => Err(format!("seen {seen:#?}\nexpected {expected:#?}")),
    }
}

fn events(seed: u64) -> u64 {
    let mut world = World::new(seed);
    world.run(&[]).unwrap();
    world.events
}

#[test]
fn the_program_sees_the_same_whatever_the_order_of_events() {
    let expected = undisturbed();
    let mut truncations = 0;
    for seed in 1..=300 {
        truncations += check(seed, &[], &expected).unwrap();
    }
    assert!(truncations > 1000, "cuts are taken: {truncations}");
}

#[test]
fn a_worker_can_die_after_every_event() {
    let expected = undisturbed();
    for seed in 1..=12 {
        for kill in 0..=events(seed) {
            let survived = check(seed, &[kill], &expected);
            assert!(survived.is_ok(), "seed {seed}, killed after {kill}: {}", survived.unwrap_err());
        }
    }
}

#[test]
fn it_can_die_again_while_it_is_brought_back() {
    let expected = undisturbed();
    for seed in 1..=3 {
        for first in 0..=events(seed) {
            // Each distance is used by some first kill.
            for second in (1 + first % 7..120).step_by(7) {
                let kills = [first, first + second, first + second + 60];
                let survived = check(seed, &kills, &expected);
                assert!(survived.is_ok(), "seed {seed}, killed after {kills:?}: {}", survived.unwrap_err());
            }
        }
    }
}

/// Whether killing after every event finds a defect.
fn is_found(mutant: Mutant) -> bool {
    let expected = undisturbed();
    plant(Some(mutant));
    let found = (1..=40).any(|seed| {
        let mut world = World::new(seed);
        let last = world.run(&[]).map_or(400, |_| world.events);
        (0..=last).any(|kill| check(seed, &[kill], &expected).is_err())
    });
    plant(None);
    found
}

macro_rules! mutants_are_found {
    ($($name:ident: $mutant:ident;)*) => {$(
        #[test]
        fn $name() {
            assert!(is_found(Mutant::$mutant));
        }
    )*};
}

mutants_are_found! {
    a_gate_one_mark_too_late_is_found: GateOneMarkTooLate;
    a_mark_at_the_asking_position_is_found: MarkAtTheAskingPosition;
    a_host_function_that_runs_twice_is_found: HostFunctionTwice;
    a_frame_lost_at_truncation_is_found: FrameLostAtTruncation;
    text_printed_twice_is_found: TextTwice;
    a_pull_from_the_present_is_found: PullFromThePresent;
    servings_kept_at_truncation_are_found: ServingsKeptAtTruncation;
    marks_kept_at_truncation_are_found: MarksKeptAtTruncation;
    a_query_sent_as_a_query_is_found: QueryAsQuery;
    an_announcement_that_is_ignored_is_found: AnnouncementIgnored;
    an_unsent_push_that_is_forgotten_is_found: UnsentPushForgotten;
    a_replay_that_ends_with_its_last_mark_is_found: ReplayForgottenWhenDone;
}
