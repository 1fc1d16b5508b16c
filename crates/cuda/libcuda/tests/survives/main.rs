//! A program over the real library and real sessions of the software GPU, whose connections are cut after every frame.
//!
//! ```text
//!   this test ── starts ──▶ program (this executable again: test `program`) ── libcuda ──▶ proxy, which cuts ──▶ worker
//!             └─ guardian: images, in the test's process                                        its sessions: test `session_process`
//! ```
//!
//! What the program saw must be what it sees undisturbed: bytes of copies of all kinds, order and number of host functions,
//! text of the device, results of a graph, and those of a second thread.

mod conditional;
#[path = "../../../worker/tests/support/guardian.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "this test uses its part")]
mod guardian;
mod keeping;
mod parts;
mod program;
mod proxy;
mod stage;
mod ways;

use proxy::Cut;
use stage::{Run, Stage};
use std::sync::atomic::{AtomicU64, Ordering};

/// Not a test: what the program is.
#[test]
#[ignore = "the program that the tests run"]
fn program() {
    program::main();
}

/// Not a test: what the session processes run, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    stage::serve_session();
}

/// Not a test: the same with a driver that places variables elsewhere.
#[test]
#[ignore = "the entry of session processes"]
fn session_process_elsewhere() {
    stage::serve_session_elsewhere();
}

/// Not a test: the same with a driver that does so in the first sessions.
#[test]
#[ignore = "the entry of session processes"]
fn session_process_elsewhere_at_first() {
    stage::serve_session_elsewhere_at_first();
}

/// Runs that go on at the same time.
const AT_ONCE: u64 = 3;

fn check(undisturbed: &Run, run: &Run, what: &str) {
    assert!(run.succeeded, "{what}: the program failed:\n{}", run.log);
    assert_eq!(undisturbed.saw, run.saw, "{what}: the program saw something else; its log:\n{}", run.log);
}

#[test]
fn a_program_sees_nothing_of_a_connection_that_is_cut_after_any_frame() {
    let stage = Stage::new();
    let undisturbed = stage.run(&[]);
    assert!(undisturbed.succeeded, "{}", undisturbed.log);
    assert!(!undisturbed.saw.is_empty() && undisturbed.saw.contains("says"), "{}", undisturbed.saw);
    let frames = undisturbed.frames[0];
    assert!(frames > 100, "{frames} frames are too few to say anything");
    let restored_before = stage.restored();
    let next = AtomicU64::new(1);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    if nth > frames {
                        return;
                    }
                    let run = stage.run(&[Cut::After(nth)]);
                    check(&undisturbed, &run, &format!("cut after frame {nth}"));
                }
            });
        }
    });
    assert!(stage.restored() > restored_before, "no run came back from an image");
}

#[test]
fn nor_of_a_second_cut_while_it_comes_back() {
    let stage = Stage::new();
    let undisturbed = stage.run(&[]);
    let frames = undisturbed.frames[0];
    for (first, second) in [(3, 2), (2, 30), (4, 5), (4, 17), (4, 41), (5, 60), (6, 90)] {
        let plan = [Cut::After(frames * first / 7), Cut::After(second), Cut::After(second + 3)];
        let run = stage.run(&plan);
        check(&undisturbed, &run, &format!("{plan:?}"));
    }
}

#[test]
fn a_program_whose_worker_is_gone_goes_on_at_a_standby() {
    let stage = Stage::new();
    let undisturbed = stage.run(&[]);
    for nth in [1, 2, 4] {
        let run = stage.run_with_standby(&[Cut::ForGood(undisturbed.frames[0] * nth / 5)]);
        check(&undisturbed, &run, &format!("own worker gone after {nth} fifths"));
        assert!(run.log.contains("the program goes on"), "{}", run.log);
    }
}

#[test]
fn a_worker_that_refuses_for_good_is_an_error_at_once() {
    let stage = Stage::new();
    let run = stage.run_refused();
    assert!(!run.succeeded, "it cannot go on:\n{}", run.log);
    assert!(run.log.contains("the token is not the one of this worker"), "{}", run.log);
    assert_eq!(run.knocks_after, 1, "one question is enough:\n{}", run.log);
}
