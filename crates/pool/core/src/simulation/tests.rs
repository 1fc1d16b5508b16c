//! Many seeds, and mistakes that must be found.

use super::{Mutation, Report, Scenario, run};
use crate::ledger::watch::{self, Words};
use std::collections::BTreeSet;

fn scenario(seed: u64, mutation: Option<Mutation>) -> Scenario {
    Scenario { seed, chaos_ms: 90_000, rest_ms: 150_000, mutation }
}

/// How many seeds: more when `DXPU_SIMULATION_SEEDS` is set at compile time, for a long night.
fn seeds() -> u64 {
    option_env!("DXPU_SIMULATION_SEEDS").and_then(|text| text.parse().ok()).unwrap_or(60)
}

#[test]
fn whatever_fails_no_gpu_has_two_holders_and_nothing_is_lost_or_leaked() {
    let mut sum = Report::default();
    for seed in 0..seeds() {
        let report = run(scenario(seed, None));
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
        sum.steps += report.steps;
        sum.commits += report.commits;
        sum.leaders += report.leaders;
        sum.grants += report.grants;
        sum.moves += report.moves;
        sum.admissions += report.admissions;
        sum.expiries += report.expiries;
        sum.reclaims += report.reclaims;
        sum.plugs += report.plugs;
        sum.operations += report.operations;
        sum.words += report.words;
        sum.arrivals += report.arrivals;
        sum.parks += report.parks;
        sum.guests += report.guests;
        sum.meetings += report.meetings;
        sum.evictions += report.evictions;
        sum.suspensions += report.suspensions;
        sum.parts += report.parts;
        sum.crowds += report.crowds;
    }
    println!("{sum:?}");
    // A run in which nothing happens proves nothing.
    let seeds = seeds();
    assert!(sum.steps > 4_000 * seeds && sum.commits > 100 * seeds, "{sum:?}");
    assert!(sum.leaders > 4 * seeds && sum.operations > 20 * seeds, "{sum:?}");
    assert!(sum.grants > 30 * seeds && sum.admissions > 20 * seeds, "{sum:?}");
    assert!(sum.plugs > 5 * seeds, "{sum:?}");
    assert!(sum.moves > 3 * seeds && sum.expiries > 3 * seeds, "{sum:?}");
    assert!(sum.reclaims > seeds / 10, "{sum:?}");
    assert!(sum.words > seeds && sum.arrivals > seeds / 10 && sum.parks > seeds / 2, "{sum:?}");
    assert!(sum.guests > seeds && sum.meetings > seeds / 6 && sum.evictions > seeds / 4, "{sum:?}");
    assert!(sum.suspensions > seeds / 10, "{sum:?}");
    assert!(sum.parts > seeds && sum.crowds > seeds / 10, "{sum:?}");
}

/// Arrows that no seed takes: GPUs of the simulation stay in their slots. `ledger/tests/life.rs` takes all of them.
const NEVER_TAKEN: [[&str; 3]; 7] = [
    ["absent", "failed", "bad"],
    ["absent", "returned", "cleaning"],
    ["absent", "swapped", "cleaning"],
    ["cleaning", "missed", "absent"],
    ["free", "missed", "absent"],
    ["free", "swapped", "cleaning"],
    ["leased", "missed", "absent"],
];

#[test]
fn the_simulation_takes_every_arrow_of_the_life_cycles_but_those_of_slots() {
    for seed in 0..seeds() {
        run(scenario(seed, None));
    }
    let taken = watch::taken();
    let never: BTreeSet<Words> =
        watch::listed().into_iter().filter(|arrow| !taken.contains_key(arrow)).collect();
    let expected = NEVER_TAKEN.map(|arrow| arrow.map(str::to_owned).into());
    assert_eq!(never, expected.into(), "{taken:#?}");
}

#[test]
fn a_seed_tells_the_same_story_twice() {
    let (one, two) = (run(scenario(7, None)), run(scenario(7, None)));
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
}

/// Whether some seed shows a mistake in one of these ways.
fn is_found(mutation: Mutation, ways: &[&str]) {
    let mut seen = Vec::new();
    for seed in 0..60 {
        let report = run(scenario(seed, Some(mutation)));
        for violation in report.violations {
            if ways.iter().any(|way| violation.contains(way)) {
                return;
            }
            seen.push(violation);
        }
    }
    panic!("{mutation:?} was never found as {ways:?}, only as {seen:#?}");
}

#[test]
fn granting_before_cleaning_is_found() {
    is_found(Mutation::GrantUncleaned, &["was granted to"]);
}

#[test]
fn reusing_an_epoch_is_found() {
    is_found(Mutation::KeepEpoch, &["'s and l-"]);
}

#[test]
fn never_cleaning_is_found() {
    is_found(Mutation::NeverClean, &["leaked"]);
}

#[test]
fn keeping_both_places_after_a_move_is_found() {
    is_found(Mutation::KeepSource, &["and is no place of it"]);
}

#[test]
fn following_words_about_grants_that_are_over_is_found() {
    is_found(Mutation::FollowOldWords, &["of which no word was said"]);
}

#[test]
fn answering_before_the_commit_is_found() {
    is_found(Mutation::AnswerEarly, &["never committed"]);
}

#[test]
fn keeping_memory_after_a_failed_commit_is_found() {
    is_found(
        Mutation::KeepMemory,
        &["went back", "'s and l-", "never committed", "not granted", "never ended"],
    );
}

#[test]
fn writing_without_leading_is_found() {
    is_found(Mutation::WriteUnfenced, &["back to", "'s and l-"]);
}

#[test]
fn plugging_before_the_box_has_bound_is_found() {
    is_found(Mutation::PlugUnbound, &["before its box had bound"]);
}

#[test]
fn never_unplugging_is_found() {
    is_found(Mutation::NeverUnplug, &["leaked", "still in"]);
}

#[test]
fn cleaning_before_the_host_has_unplugged_is_found() {
    is_found(Mutation::CleanBeforeUnplug, &["is cleaned before"]);
}

#[test]
fn giving_a_slot_away_too_early_is_found() {
    is_found(Mutation::ReuseSlot, &["has two GPUs"]);
}

#[test]
fn scrubbing_between_two_grants_of_one_lease_is_found() {
    is_found(Mutation::ScrubBetween, &["was scrubbed between two grants"]);
}

#[test]
fn a_guest_under_a_lease_that_wants_its_gpu_alone_is_found() {
    is_found(Mutation::GrantBesideGuest, &["beside a lease that wants it alone"]);
}

#[test]
fn a_guest_that_is_still_being_suspended_under_a_lease_that_wants_its_gpu_alone_is_found() {
    is_found(Mutation::GrantBesideLeavingGuest, &["beside a lease that wants it alone"]);
}

#[test]
fn a_guest_beside_a_stranger_is_found() {
    is_found(Mutation::MeetStrangers, &["beside a stranger"]);
}

#[test]
fn a_part_that_is_lent_as_a_gpu_is_found() {
    is_found(Mutation::LendPartsAsGpus, &["is a part, and no place for"]);
}

#[test]
fn a_part_that_is_smaller_than_the_share_is_found() {
    is_found(Mutation::OversellParts, &["is a part, and no place for", "is lent as"]);
}

#[test]
fn a_box_that_forgets_is_found() {
    is_found(Mutation::BoxForgets, &["let in epoch", "two holders"]);
}

#[test]
fn a_box_that_lets_in_before_cleaning_is_harmless_as_long_as_the_ledger_is_right() {
    for seed in 0..5 {
        let report = run(scenario(seed, Some(Mutation::BoxAdmitsUncleaned)));
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
    }
}
