//! The clock that all processes of a machine share, and the thread's number.

#![allow(unsafe_code)]

/// Nanoseconds since the machine started.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The number that the system has for this thread.
pub(crate) fn thread() -> u64 {
    thread_local! {
        // SAFETY: no arguments, no conditions.
        static THREAD: u64 = unsafe { libc::gettid() } as u64;
    }
    // Exit handlers run when the thread's own variables may be gone.
    THREAD.try_with(|thread| *thread).unwrap_or(0)
}
