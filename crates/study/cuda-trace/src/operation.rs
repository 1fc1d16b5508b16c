//! What every operation on the GPU goes through: it is handed on, and recorded, timed or delayed on the way.

use crate::clock;
use crate::context;
use crate::counted;
use crate::inject;
use crate::mean::Mean;
use crate::names::{self, Alike};
use crate::nothing;
use crate::state::{self, Inside};
use crate::streams::Stream;
use crate::timing;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use trace_log::entry::{Entry, Kind, flag};
use trace_log::injected::Class;

/// What an operation is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) alike: Alike,
    pub(crate) flags: u8,
    /// Kernels of a launch.
    pub(crate) count: u32,
    pub(crate) bytes: u64,
}

impl Operation {
    /// The class it is delayed by, if it is.
    fn class(&self) -> Option<Class> {
        match self.kind {
            Kind::Launch => Some(Class::Launches),
            Kind::Memset => Some(Class::Memsets),
            Kind::Copy if self.flags & flag::TO_DEVICE != 0 => Some(Class::Uploads),
            Kind::Copy if self.flags & flag::TO_HOST != 0 => Some(Class::Downloads),
            _ => None,
        }
    }
}

/// Numbers operations, so that samples can name them.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Hands an operation on. It is only described where that is needed: describing costs calls of its own.
#[inline]
pub(crate) fn operate(
    stream: Stream,
    describe: impl FnOnce() -> Operation,
    real: impl FnOnce() -> u32,
) -> u32 {
    let mode = state::mode();
    if mode.is_off() || state::is_inside() {
        return real();
    }
    if nothing::is_done() {
        return 0;
    }
    let is_traced = state::is_watching() && !(mode.injects() && inject::is_on());
    if !is_traced && !mode.injects() {
        return real();
    }
    let _inside = Inside::enter();
    if stream.is_capturing() {
        return counted::call(counted::Class::Local, real);
    }
    if is_traced { trace(stream, describe(), real) } else { delayed(stream, describe(), real) }
}

/// Hands an operation on, after the time that a network would add. Times launches, to compare their cost with and
/// without fillers.
fn delayed(stream: Stream, operation: Operation, real: impl FnOnce() -> u32) -> u32 {
    let (Some(class), Some(context)) = (operation.class(), context::current()) else { return real() };
    let is_pinned = operation.flags & flag::PINNED != 0;
    inject::before(context, stream, class, operation.bytes, is_pinned);
    let called = clock::ticks();
    let answer = real();
    if class == Class::Launches {
        context.called(clock::ticks().saturating_sub(called));
    }
    answer
}

/// What recording costs besides the call, in ticks: before it and altogether. Measured for some calls, assumed for all.
static BEFORE: Mean = Mean::new();
static ALTOGETHER: Mean = Mean::new();
/// One in so many is measured: reading the clock is most of what recording costs.
const MEASURED_ONE_IN: u64 = 16;

fn trace(stream: Stream, operation: Operation, real: impl FnOnce() -> u32) -> u32 {
    let Some(config) = state::config() else { return real() };
    let at = clock::ticks();
    let elapsed_us = at.saturating_sub(config.began.ticks) as f64 * 1e3 / state::ticks_per_ms();
    let (alike, is_timed) = names::look(operation.alike, elapsed_us, timing::is_possible());
    let number = NEXT.fetch_add(1, Relaxed);
    let context = if is_timed { context::current() } else { None };
    let begun = context.and_then(|context| Some((context, timing::begin(context, stream)?)));
    let is_measured = begun.is_some() || number.is_multiple_of(MEASURED_ONE_IN);
    let called = if is_measured { clock::ticks() } else { at + BEFORE.get() };
    let answer = real();
    let returned = clock::ticks();
    let is_sampled = begun.is_some();
    if let Some((context, begun)) = begun
        && !timing::end(context, begun, stream, number, operation.kind, alike)
    {
        names::missed(operation.alike);
    }
    if state::is_recording() {
        let ticks = returned.saturating_sub(called);
        let entry = if answer == 0 {
            Entry {
                flags: operation.flags,
                count: operation.count,
                stream: stream.name(),
                object: alike,
                bytes: operation.bytes,
                extra: number,
                ..Entry::new(operation.kind)
            }
        } else {
            // What the driver refused, the GPU never saw.
            Entry::new(Kind::Other)
        };
        let own_ticks = if is_sampled {
            clock::ticks().saturating_sub(at).saturating_sub(ticks)
        } else {
            ALTOGETHER.get()
        };
        state::record(Entry { at, ticks, own_ticks, ..entry });
        if is_measured && !is_sampled {
            BEFORE.add(called.saturating_sub(at));
            ALTOGETHER.add(clock::ticks().saturating_sub(at).saturating_sub(ticks));
        }
    }
    answer
}

/// Hands a call on that waits, asks or orders, and records it as `describe` says from its answer.
#[inline]
pub(crate) fn note(describe: impl FnOnce(u32) -> Entry, real: impl FnOnce() -> u32) -> u32 {
    if nothing::is_done() {
        return 0;
    }
    if !state::is_recording() || state::is_inside() {
        return real();
    }
    let _inside = Inside::enter();
    let at = clock::ticks();
    let answer = real();
    let ticks = clock::ticks().saturating_sub(at);
    state::record(Entry { at, ticks, ..describe(answer) });
    answer
}
