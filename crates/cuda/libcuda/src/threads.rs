//! Threads of our own inside the program's process.

#![allow(unsafe_code)]

use std::{io, thread};

/// Our threads keep little on their stacks; the program may have many processes.
const STACK_BYTES: usize = 512 << 10;

/// Starts a thread that no signal of the program is delivered to, and that ends quietly if it panics.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let run = move || {
        block_signals();
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    };
    thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(run).map(drop)
}

/// Signal handlers of the program expect to run on the program's threads.
fn block_signals() {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` is a place for one signal set, which sigfillset initialises.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // A blocked fault ends the process. Host functions of the program run on our threads and may touch managed memory.
    for fault in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: `all` was initialised above.
        unsafe { libc::sigdelset(all.as_mut_ptr(), fault) };
    }
    // SAFETY: `all` was initialised above; no old set is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut()) };
}
