//! What every operation on the GPU goes through: it is handed on, and recorded, timed or delayed on the way.

use crate::clock;
use crate::context;
use crate::inject;
use crate::names::{self, Alike};
use crate::state::{self, Inside, Mode};
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
    if mode == Mode::Off || state::is_inside() {
        return real();
    }
    let _inside = Inside::enter();
    let at = clock::ticks();
    if stream.is_capturing() {
        let answer = real();
        if state::is_recording() {
            state::local_call(clock::ticks().saturating_sub(at));
        }
        return answer;
    }
    match mode {
        Mode::Off => real(),
        Mode::Trace => trace(stream, describe(), at, real),
        Mode::Inject => {
            let operation = describe();
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
    }
}

fn trace(stream: Stream, operation: Operation, at: u64, real: impl FnOnce() -> u32) -> u32 {
    let Some(config) = state::config() else { return real() };
    let elapsed_us = config.began.instant.elapsed().as_secs_f64() * 1e6;
    let (alike, is_timed) = names::look(operation.alike, elapsed_us, timing::is_possible());
    let number = NEXT.fetch_add(1, Relaxed);
    let context = if is_timed { context::current() } else { None };
    let begun = context.and_then(|context| Some((context, timing::begin(context, stream)?)));
    let called = clock::ticks();
    let answer = real();
    let returned = clock::ticks();
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
        let own_ticks = clock::ticks().saturating_sub(at).saturating_sub(ticks);
        state::record(Entry { at, ticks, own_ticks, ..entry });
    }
    answer
}

/// Hands a call on that waits, asks or orders, and records it as `describe` says from its answer.
#[inline]
pub(crate) fn note(describe: impl FnOnce(u32) -> Entry, real: impl FnOnce() -> u32) -> u32 {
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
