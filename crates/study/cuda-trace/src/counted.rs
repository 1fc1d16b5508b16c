//! Calls of which only number, class and time are kept. There are thousands in a step of a program, each of a few nanoseconds, so
//! they are counted in one number, one in sixty-one is timed, and the others are taken to be like it.

use crate::clock;
use crate::mean::Mean;
use crate::state;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
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

/// Calls for state so far, of all threads. Two threads that count at once may count one call between them; that is
/// exact enough.
static CALLS: AtomicU32 = AtomicU32::new(0);
/// How many of them are written down.
static WRITTEN: AtomicU32 = AtomicU32::new(0);
/// What one takes, in ticks.
static TICKS: Mean = Mean::new();
/// What counting one takes besides, in sixteenths of a tick.
static OWN: AtomicU32 = AtomicU32::new(0);

/// One in so many is timed: a prime, since programs repeat themselves.
const TIMED_ONE_IN: u32 = 61;

/// Hands a call on and counts it.
#[inline]
pub(crate) fn call(class: Class, real: impl FnOnce() -> u32) -> u32 {
    if !state::is_recording() {
        return real();
    }
    match class {
        Class::Local => local(real),
        Class::OneWay => other(0, real),
        Class::Awaited => other(flag::AWAITED, real),
    }
}

#[inline]
fn local(real: impl FnOnce() -> u32) -> u32 {
    let calls = CALLS.load(Relaxed).wrapping_add(1);
    CALLS.store(calls, Relaxed);
    if calls.is_multiple_of(TIMED_ONE_IN) { timed(real) } else { real() }
}

#[cold]
fn timed(real: impl FnOnce() -> u32) -> u32 {
    let before = clock::ticks();
    let answer = real();
    TICKS.add(clock::ticks().saturating_sub(before).saturating_sub(clock::cost()));
    answer
}

/// The calls for state since this was last asked, as an entry before something that happened at `at`.
pub(crate) fn since_last(at: u64) -> Option<Entry> {
    let calls = CALLS.load(Relaxed);
    let count = calls.wrapping_sub(WRITTEN.swap(calls, Relaxed));
    let own_ticks = u64::from(count) * u64::from(OWN.load(Relaxed)) / 16;
    let ticks = u64::from(count) * TICKS.get();
    let at = at.saturating_sub(ticks + own_ticks);
    (count > 0).then(|| Entry { count, ticks, own_ticks, at, ..Entry::new(Kind::Local) })
}

/// Measures what counting costs. To be called before anything is recorded.
pub(crate) fn calibrate() {
    const ROUNDS: u32 = 4096;
    let time = |body: fn() -> u32| {
        let began = clock::ticks();
        let sum = (0..ROUNDS).fold(0u32, |sum, _| sum.wrapping_add(std::hint::black_box(body)()));
        std::hint::black_box(sum);
        clock::ticks().saturating_sub(began)
    };
    let (with, without) = (time(|| local(nothing)), time(nothing));
    OWN.store((with.saturating_sub(without) * 16 / u64::from(ROUNDS)) as u32, Relaxed);
    [&CALLS, &WRITTEN].into_iter().for_each(|number| number.store(0, Relaxed));
    TICKS.forget();
}

fn nothing() -> u32 {
    0
}

fn other(flags: u8, real: impl FnOnce() -> u32) -> u32 {
    if state::is_inside() {
        return real();
    }
    let _inside = state::Inside::enter();
    let at = clock::ticks();
    let answer = real();
    let ticks = clock::ticks().saturating_sub(at);
    state::record(Entry { flags, at, ticks, ..Entry::new(Kind::Other) });
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_written_down_once_and_before_what_comes_after_them() {
        calibrate();
        assert_eq!(since_last(1_000_000), None);
        (0..130).for_each(|_| assert_eq!(local(nothing), 0));
        let entry = since_last(1_000_000).expect("there were calls");
        assert_eq!(entry.count, 130);
        assert!(entry.at + entry.ticks + entry.own_ticks <= 1_000_000, "{entry:?}");
        assert_eq!(since_last(2_000_000), None);
    }
}
