//! A command thread that hands work to a driver, and another thread that asks the driver whether it is done, in any order.
//!
//! Rules: while the driver has work, or is being told of it, the gate is closed; it opens when there is none for as long
//! as the linger, and then stays open.

use super::{Dice, first_failure, is_found};
use crate::{Presence, mutant::Mutant};

/// What the two threads are about to do.
#[derive(Default)]
struct Threads {
    /// The command thread has told presence and not the driver yet.
    before_driver: bool,
    /// The driver has the work; presence has not heard that it was told.
    after_driver: bool,
    /// The asking thread has its question, and the driver's answer if it has asked already.
    question: Option<(u64, Option<bool>)>,
}

fn run(seed: u64) -> Result<(), String> {
    let mut dice = Dice::new(seed);
    let (mut presence, mut threads) = (Presence::new(0), Threads::default());
    let (mut now, mut is_closed, mut work_until, mut quiet_at) = (0u64, false, 0u64, 0u64);
    for _ in 0..300 {
        now += dice.below(20_000);
        match dice.below(6) {
            0 | 1 => {
                // The command thread takes one step.
                if threads.after_driver {
                    presence.end();
                    threads.after_driver = false;
                } else if threads.before_driver {
                    work_until = now + dice.below(30_000);
                    (threads.before_driver, threads.after_driver) = (false, true);
                } else {
                    is_closed |= presence.begin(now);
                    threads.before_driver = true;
                }
            }
            2..=4 => {
                // The asking thread takes one step.
                match threads.question.take() {
                    None => threads.question = presence.question().map(|question| (question, None)),
                    Some((question, None)) => threads.question = Some((question, Some(now >= work_until))),
                    Some((question, Some(true))) => {
                        if presence.quiet(question, now) {
                            quiet_at = now;
                        }
                    }
                    Some((_, Some(false))) => {}
                }
            }
            _ => {
                if presence.is_due(now) {
                    if now < quiet_at + 10_000 {
                        return Err(format!("opened at {now}, the work was done at {quiet_at}"));
                    }
                    is_closed = false;
                }
            }
        }
        let has_work = threads.before_driver || now < work_until;
        if has_work && !is_closed {
            return Err(format!("work at {now} beside an open gate"));
        }
        if is_closed != presence.is_closed() {
            return Err("presence and the gate differ".to_owned());
        }
    }
    // Everything that was begun ends, and the gate opens.
    if threads.before_driver || threads.after_driver {
        presence.end();
    }
    now = now.max(work_until) + 1;
    if let Some(question) = presence.question() {
        presence.quiet(question, now);
    }
    now = presence.opens_at_ns().unwrap_or(now);
    presence.is_due(now);
    if presence.is_closed() { Err("it never opens".to_owned()) } else { Ok(()) }
}

#[test]
fn the_gate_is_closed_while_the_driver_has_work_and_opens_afterwards() {
    assert_eq!(first_failure(0..10_000, run), None);
}

#[test]
fn mistakes_of_presence_are_found() {
    for mutant in [Mutant::OpenWithoutLinger, Mutant::AsksWhileTelling, Mutant::OldAnswerCounts] {
        assert!(is_found(mutant, 0..2_000, run), "{mutant:?} was not found");
    }
}

#[test]
fn a_guard_keeps_the_gate_closed_for_longer() {
    let mut presence = Presence::new(0);
    presence.set_guard(1_000_000);
    assert!(presence.begin(10));
    presence.end();
    let question = presence.question().unwrap();
    assert!(presence.quiet(question, 20));
    assert!(!presence.is_due(1_000_019 + 50_000));
    assert!(presence.is_due(1_000_020 + 50_000));
    assert!(!presence.is_due(2_000_000), "once");
}
