//! Calls of which only number, class and time are kept. There are thousands in a step of a program, each of a few nanoseconds, so
//! only one in sixteen of each symbol is timed and the others are taken to be alike.

use crate::clock;
use crate::state;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use trace_log::entry::{Entry, Kind, flag};

/// What a call asks for, as the table of the driver API has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Its answer is known without asking the GPU.
    Local,
    /// It has no answer.
    OneWay,
    /// The program needs the answer.
    Awaited,
}

/// What calls of one symbol cost.
pub(crate) struct Cost {
    calls: AtomicU32,
    ticks: AtomicU64,
}

impl Cost {
    pub(crate) const fn new() -> Self {
        Self { calls: AtomicU32::new(0), ticks: AtomicU64::new(0) }
    }
}

/// One in so many local calls is timed.
const TIMED_ONE_IN: u32 = 16;

/// Hands a call on and counts it.
#[inline]
pub(crate) fn call(cost: &Cost, class: Class, real: impl FnOnce() -> u32) -> u32 {
    if !state::is_recording() || state::is_inside() {
        return real();
    }
    match class {
        Class::Local => local(cost, real),
        Class::OneWay => other(0, real),
        Class::Awaited => other(flag::AWAITED, real),
    }
}

#[inline]
fn local(cost: &Cost, real: impl FnOnce() -> u32) -> u32 {
    // Two threads may count one call between them: this is a sample, not an account.
    let calls = cost.calls.load(Relaxed);
    cost.calls.store(calls.wrapping_add(1), Relaxed);
    if !calls.is_multiple_of(TIMED_ONE_IN) {
        let answer = real();
        state::local_call(cost.ticks.load(Relaxed));
        return answer;
    }
    let before = clock::ticks();
    let answer = real();
    let ticks = clock::ticks().saturating_sub(before);
    // The first call of a symbol does more than the others; a running mean forgets it soon.
    let mean = cost.ticks.load(Relaxed);
    cost.ticks.store(if calls == 0 { ticks } else { (3 * mean + ticks) / 4 }, Relaxed);
    state::local_call(ticks);
    answer
}

fn other(flags: u8, real: impl FnOnce() -> u32) -> u32 {
    let _inside = state::Inside::enter();
    let at = clock::ticks();
    let answer = real();
    let ticks = clock::ticks().saturating_sub(at);
    state::record(Entry { flags, at, ticks, ..Entry::new(Kind::Other) });
    answer
}
