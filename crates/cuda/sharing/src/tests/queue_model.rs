//! An online program whose requests queue up, beside a guest that always has work: presence, regulator and governor together.
//!
//! Requests come at random and take equally long. Each is pieces of work with pauses of the host in between, as a program has that
//! launches kernel by kernel and looks at results. The pauses are longer than any linger, so the guest works in them too, and each next
//! piece waits for a switch and for the rest of a group. That makes each request longer by the same part, which near full load makes
//! all of them wait for each other.

use super::Dice;
use crate::{
    Class, Owner, PAGE_WORDS, Page, Presence, Regulator,
    linger::{Contexts, Linger},
};
use std::sync::atomic::AtomicU64;

const PIECES: u64 = 4;
const PIECE_NS: u64 = 600_000;
const PAUSE_NS: u64 = 400_000;
const SERVICE_NS: u64 = PIECES * PIECE_NS + (PIECES - 1) * PAUSE_NS;
const SWITCH_NS: u64 = 130_000;
const REQUESTS: usize = 60_000;
/// The governor has found its orders by then.
const SETTLED: usize = REQUESTS / 4;

/// What a run has shown.
#[derive(Debug)]
struct Outcome {
    /// The 99th percentile of latency, in requests' own time.
    p99: f64,
    /// The part of the time in which the gate was open.
    open: f64,
    /// The part of it in which it would have been with neither linger nor guard.
    idle: f64,
}

/// `guest`: with one. `noise`: a piece takes up to this part longer or shorter by itself.
fn run(load: f64, guest: bool, noise: f64) -> Outcome {
    let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
    let page = Page::create(&words, 1).unwrap();
    let ticket = page.claim(Owner::new(1, 1).unwrap(), Class::Online, 1).unwrap();
    if guest {
        page.claim(Owner::new(2, 1).unwrap(), Class::Offline, 1).unwrap();
    }
    let mut presence = Presence::with_linger(Linger::new(Contexts::Apart), 0);
    let mut regulator = Regulator::new(0.25);
    let mut dice = Dice::new(7);
    let (mut arrives_ns, mut now_ns) = (0.0f64, 0u64);
    let mut latencies = Vec::with_capacity(REQUESTS);
    let (mut open_ns, mut idle_ns, mut idle_since_ns, mut settled_at_ns) = (0, 0, 0, 0);
    for request in 0..REQUESTS {
        arrives_ns += -(1.0 - dice.share()).ln() * SERVICE_NS as f64 / load;
        now_ns = now_ns.max(arrives_ns as u64);
        if request == SETTLED {
            (open_ns, idle_ns, settled_at_ns) = (0, 0, idle_since_ns);
        }
        for piece in 0..PIECES {
            idle_ns += now_ns - idle_since_ns;
            let opened_ns = presence.opens_at_ns();
            if presence.opens_at_ns().is_some_and(|at_ns| at_ns <= now_ns) {
                presence.is_due(now_ns);
                page.open_gate(ticket, now_ns);
            }
            let found_open = presence.begin(now_ns);
            if found_open {
                page.close(ticket, now_ns);
                open_ns += now_ns - opened_ns.unwrap_or(now_ns);
            }
            regulator.command(piece, found_open && page.has_guests(), presence.paused_ns(), now_ns);
            if found_open && guest {
                now_ns += SWITCH_NS + page.group_budget_us().unwrap_or(50) * 1000 / 2;
            }
            presence.end();
            now_ns += (PIECE_NS as f64 * (1.0 + noise * (2.0 * dice.share() - 1.0))) as u64;
            idle_since_ns = now_ns;
            let question = presence.question().expect("it is busy");
            presence.quiet(question, now_ns);
            if piece + 1 < PIECES {
                now_ns += PAUSE_NS;
            }
        }
        regulator.waited(now_ns);
        if let Some(orders) = regulator.second(page, ticket, now_ns) {
            presence.set_guard((orders.guard_us * 1000.0) as u64);
        }
        if request >= SETTLED {
            latencies.push(now_ns - arrives_ns as u64);
        }
    }
    latencies.sort_unstable();
    let part = |ns: u64| ns as f64 / (idle_since_ns - settled_at_ns) as f64;
    Outcome {
        p99: latencies[latencies.len() * 99 / 100] as f64 / SERVICE_NS as f64,
        open: part(open_ns),
        idle: part(idle_ns),
    }
}

/// Beside a guest: p99 of that alone is at most `most`, and the guest has at least this part of what the program leaves.
fn holds(load: f64, noise: f64, most: f64, least: f64) {
    let (alone, beside) = (run(load, false, noise), run(load, true, noise));
    let (longer, part) = (beside.p99 / alone.p99, beside.open / beside.idle);
    println!(
        "load {load}: p99 of {:.2} requests alone, {:.2} beside a guest: {longer:.2}; it has {part:.2} of the pauses",
        alone.p99, beside.p99
    );
    assert!(longer < most && part > least, "load {load}: {alone:?} {beside:?}");
}

#[test]
fn beside_a_guest_a_program_near_full_load_does_not_fall_behind() {
    for (load, most, least) in [(0.2, 1.45, 0.9), (0.5, 1.55, 0.8), (0.8, 1.1, 0.1), (0.9, 1.1, 0.0)] {
        holds(load, 0.0, most, least);
    }
}

#[test]
fn a_guest_keeps_its_pauses_beside_a_program_whose_requests_vary_by_themselves() {
    for (load, most, least) in [(0.2, 1.5, 0.8), (0.5, 1.55, 0.7)] {
        holds(load, 0.9, most, least);
    }
}
