//! Beginning and end: initialisation, how programs find functions, streams and contexts that come and go, marked ranges.

#![allow(unsafe_code)]

use crate::context;
use crate::real;
use crate::state;
use crate::streams::Flavour;
use std::ffi::c_char;
use trace_log::entry::{Entry, Kind, flag};

hooks! {
    cuInit @ Legacy => init(flags: u32);
    cuGetProcAddress @ Legacy => find_1(name: *const c_char, function: *mut usize, version: i32, flags: u64);
    cuGetProcAddress_v2 @ Legacy => find_2(name: *const c_char, function: *mut usize, version: i32, flags: u64, status: usize);
    cuProfilerStart @ Legacy => range_begins();
    cuProfilerStop @ Legacy => range_ends();
    cuStreamCreate @ Legacy => stream_made(stream: *mut u64, flags: u32);
    cuStreamCreateWithPriority @ Legacy => stream_made_with(stream: *mut u64, flags: u32, priority: i32);
    cuCtxDestroy_v2 @ Legacy => context_goes(context: usize);
    cuDevicePrimaryCtxRelease_v2 @ Legacy => primary_goes(device: i32);
    cuDevicePrimaryCtxReset_v2 @ Legacy => primary_goes(device: i32);
}

fn init(real: impl FnOnce() -> u32, _flavour: Flavour, _flags: u32) -> u32 {
    let answer = real();
    if answer == 0 {
        state::start();
    }
    answer
}

/// The real answer, or our function where it is more than the real one.
fn find(real: impl FnOnce() -> u32, function: *mut usize) -> u32 {
    let answer = real();
    if answer == 0 && !function.is_null() {
        // SAFETY: the call succeeded, so the place is good to read and to write.
        unsafe {
            if let Some(ours) = real::ours(*function) {
                *function = ours;
            }
        }
    }
    answer
}

fn find_1(
    real: impl FnOnce() -> u32,
    _flavour: Flavour,
    _name: *const c_char,
    function: *mut usize,
    _version: i32,
    _flags: u64,
) -> u32 {
    find(real, function)
}

fn find_2(
    real: impl FnOnce() -> u32,
    _flavour: Flavour,
    _name: *const c_char,
    function: *mut usize,
    _version: i32,
    _flags: u64,
    _status: usize,
) -> u32 {
    find(real, function)
}

fn range_begins(real: impl FnOnce() -> u32, _flavour: Flavour) -> u32 {
    let answer = real();
    state::range(true);
    answer
}

fn range_ends(real: impl FnOnce() -> u32, _flavour: Flavour) -> u32 {
    state::range(false);
    real()
}

/// CU_STREAM_NON_BLOCKING
const NON_BLOCKING: u32 = 1;

fn stream_made(real: impl FnOnce() -> u32, _flavour: Flavour, stream: *mut u64, flags: u32) -> u32 {
    let answer = real();
    if answer == 0 && !stream.is_null() && state::mode().traces() && !state::is_inside() {
        let flags = if flags & NON_BLOCKING != 0 { flag::NON_BLOCKING } else { 0 };
        // SAFETY: the call succeeded, so the place holds a handle.
        let stream = unsafe { *stream };
        state::record(Entry { flags, stream, at: crate::clock::ticks(), ..Entry::new(Kind::StreamMade) });
    }
    answer
}

fn stream_made_with(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    stream: *mut u64,
    flags: u32,
    _priority: i32,
) -> u32 {
    stream_made(real, flavour, stream, flags)
}

fn context_goes(real: impl FnOnce() -> u32, _flavour: Flavour, context: usize) -> u32 {
    context::goes(Some(context));
    real()
}

fn primary_goes(real: impl FnOnce() -> u32, _flavour: Flavour, _device: i32) -> u32 {
    // Only the driver knows whether this is the last reference. So settle now; if the context stays, it is made anew.
    context::goes(None);
    real()
}
