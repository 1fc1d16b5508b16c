//! The box, the host or the network is paused at every moment of plugging, using and unplugging a disk: a pause that the
//! pool forgives costs time, and nothing else.

#![allow(missing_docs, reason = "tests")]

mod guest;

use guest::{End, PATIENCE, Pause, Who, World};
use std::time::Duration;

/// Datagrams of a story without any pause: so many moments there are.
fn moments() -> u64 {
    let mut world = World::new(None);
    assert_eq!(world.story(), End::Whole);
    world.datagrams
}

fn told_with(pause: Pause) -> World {
    let mut world = World::new(Some(pause));
    let end = world.story();
    assert_eq!(end, End::Whole, "{pause:?}");
    world
}

#[test]
fn a_pause_at_any_moment_costs_a_delay_and_nothing_else() {
    let moments = moments();
    assert!(moments > 60, "{moments} datagrams");
    let mut stories = 0;
    for who in [Who::Box, Who::Host, Who::Network] {
        // Every moment for the pauses that were fatal once: a hiccup, and one of seconds; some moments for the others.
        for (lasts_ms, every) in [(5, 7), (40, 1), (600, 5), (2_000, 1), (10_000, 11), (14_500, 13)] {
            let lasts = Duration::from_millis(lasts_ms);
            for after_datagrams in (0..moments).step_by(every) {
                told_with(Pause { who, after_datagrams, lasts });
                stories += 1;
            }
        }
    }
    println!("{stories} stories of {moments} datagrams");
}

/// A box that is away for longer than the pool forgives is given up while something is owed, and the guest gets errors for
/// its configuration space, never a list that leads to itself. What it had written stays on the medium.
#[test]
fn a_longer_pause_loses_the_device_and_no_data() {
    let moments = moments();
    let mut lost = 0;
    for who in [Who::Box, Who::Network] {
        for after_datagrams in (0..moments).step_by(5) {
            let lasts = PATIENCE + Duration::from_secs(5);
            let mut world = World::new(Some(Pause { who, after_datagrams, lasts }));
            match world.story() {
                End::Whole => {}
                End::Lost => {
                    lost += 1;
                    assert_eq!(world.config_read(0, 4096), Ok(None), "nobody is there");
                }
            }
            let medium = world.blocks.0.lock().unwrap();
            assert!(medium.iter().any(|byte| *byte != 0), "emptied");
        }
    }
    assert!(lost > 10, "{lost} lost");
}

/// A host that was paused itself has heard nothing for that long, and its box has not been silent.
#[test]
fn a_host_is_patient_with_its_own_pauses() {
    for after_datagrams in (0..moments()).step_by(9) {
        let lasts = PATIENCE - Duration::from_millis(100);
        let world = told_with(Pause { who: Who::Host, after_datagrams, lasts });
        assert!(world.now.0 > lasts.as_nanos() as u64);
    }
}
