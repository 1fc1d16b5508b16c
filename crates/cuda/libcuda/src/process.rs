//! What belongs to the process as a whole: whether it has a driver, what becomes of that in a forked child, and what
//! goes to the log.

#![allow(unsafe_code)]

use crate::{log, state::Client};
use cuda_abi::{CuResult, CudaError};
use locks::lock;
use std::sync::{
    Mutex, Once,
    atomic::{AtomicU32, Ordering},
};

/// cuInit has not succeeded.
const COLD: u32 = 0;
/// Calls are served.
const READY: u32 = 1;
/// This is a child of the process that called cuInit: its GPUs are the parent's.
const FORKED: u32 = 2;
/// The process ends: exit handlers run.
const ENDING: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(COLD);

/// Success once cuInit succeeded. A lost worker changes nothing here: as on a machine whose GPU fails, calls that need
/// the GPU fail, and those that do not go on to answer (PyTorch ends the process where they fail).
#[inline]
pub(crate) fn check() -> CuResult<()> {
    match STATE.load(Ordering::Acquire) {
        READY => Ok(()),
        state => Err(why_not(state)),
    }
}

#[cold]
fn why_not(state: u32) -> CudaError {
    match state {
        ENDING => CudaError::DEINITIALIZED,
        _ => CudaError::NOT_INITIALIZED,
    }
}

/// cuInit. Later calls return at once; after a failure the next one tries again.
pub(crate) fn init() -> CuResult<()> {
    static STARTING: Mutex<()> = Mutex::new(());
    match STATE.load(Ordering::Acquire) {
        COLD => {}
        READY => return Ok(()),
        state => return Err(why_not(state)),
    }
    let _starting = lock(&STARTING);
    if STATE.load(Ordering::Acquire) != COLD {
        return check();
    }
    watch_forks();
    match Client::start() {
        Ok(client) => {
            STATE.store(READY, Ordering::Release);
            // SAFETY: the handler is a function of this library, which is never unloaded.
            unsafe { libc::atexit(at_exit) };
            for device in &client.devices {
                log::info(&format!("device {}: {}", device.ordinal, device.info.name));
            }
            Ok(())
        }
        Err(error) => {
            log::error(&error.to_string());
            Err(error.code())
        }
    }
}

/// Whether the process is on its way out.
pub(crate) fn is_ending() -> bool {
    STATE.load(Ordering::Relaxed) == ENDING
}

/// Says goodbye to the workers. Exit handlers that run later get the error that NVIDIA's driver gives them too.
extern "C" fn at_exit() {
    if STATE.compare_exchange(READY, ENDING, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return;
    }
    // A panic here would cross into C; there is nothing left to save anyway.
    let _ = std::panic::catch_unwind(|| {
        if let Ok(client) = crate::state::client() {
            crate::timeline::flush(client.links().into_iter().map(|link| &**link));
            client.links().iter().for_each(|link| link.say_goodbye());
            crate::timeline::finish();
        }
    });
}

/// Registers `forked`, so that the child of a fork forgets the parent's GPUs.
fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only stores an atomic and closes descriptors, which is allowed after a fork.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
}

/// In the child only. Nothing is locked here: another thread of the parent may have held any lock.
unsafe extern "C" fn forked() {
    crate::paging::forked();
    match STATE.swap(FORKED, Ordering::SeqCst) {
        // cuInit never succeeded: the child may call it itself.
        COLD => return STATE.store(COLD, Ordering::SeqCst),
        // A child of a child: our descriptors are closed already, and the program may have files under their numbers.
        FORKED => return,
        _ => {}
    }
    let Ok(client) = crate::state::client() else { return };
    for device in &client.devices {
        for descriptor in device.link.descriptors() {
            // Otherwise the worker would not see the parent's death while the child lives.
            // SAFETY: the child owns its copy of the table of descriptors, and no thread of the child uses them.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// A program called what we refuse; told once for each symbol.
#[cold]
pub(crate) fn refused(symbol: &'static str, reason: &'static str) {
    log::info(&format!("{symbol} is refused: {reason}"));
}

/// A body panicked: our fault, never the program's.
#[cold]
pub(crate) fn panicked(symbol: &'static str) -> CudaError {
    log::error(&format!("{symbol} failed inside dxpu's client library; please report this"));
    CudaError::UNKNOWN
}

/// The kernel's number of the calling thread.
pub(crate) fn thread_number() -> i32 {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::gettid() }
}

/// The name of this machine; empty if it has none.
pub(crate) fn host_name() -> String {
    let mut name = [0_u8; 256];
    // SAFETY: the buffer is as long as is said, and its last byte stays zero.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}
