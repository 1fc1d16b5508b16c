//! A driver that does nothing: what a program's own processor time needs, and no way to a GPU can be faster than.
//!
//! While it is switched on, orders to the GPU are answered with success and not given, and a thread that waits for the GPU goes
//! on at once. Copies to the host are still made, of what the GPU had before, and waited for: programs look at them and decide by
//! them what to do next. While a graph is captured everything is handed on, because a graph of nothing could not be made.
//!
//! What the program computes is worthless from then on.

#![allow(unsafe_code)]

use crate::driver;
use crate::state::{self, NOT_PERMITTED};
use crate::streams::{self, Stream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Switches the driver that does nothing on or off, so that a program that is warm can be compared with itself. The program
/// waits for the GPU before it switches. Fails with CUDA's "not permitted" outside of `dxpu inject`.
#[unsafe(no_mangle)]
extern "C" fn dxpuNothing(is_on: u32) -> u32 {
    if !state::mode().injects() {
        return NOT_PERMITTED;
    }
    IS_ON.store(is_on != 0, Relaxed);
    0
}

/// Whether the program's orders and waits are answered and not handed on. The driver's own calls are.
#[inline]
pub(crate) fn is_done() -> bool {
    IS_ON.load(Relaxed) && !state::is_inside() && !streams::is_any_capturing()
}

/// A copy that the program may look at: made, and waited for, because the program's own wait is not handed on.
pub(crate) fn make(stream: Stream, real: impl FnOnce() -> u32) -> u32 {
    let _inside = state::Inside::enter();
    match real() {
        // SAFETY: the program gave the stream to the call that has just succeeded.
        0 => unsafe { driver::stream_synchronize(stream.handle()) },
        error => error,
    }
}
