//! A forked child keeps NVML initialised, with connections of its own.
//!
//! The parent's connections are its dialogue with the workers; a child that wrote into them would disturb it. So the
//! child lets go of them and connects anew when it first asks something.

#![allow(unsafe_code)]

use super::library::{self, Library};
use std::{
    cell::UnsafeCell,
    sync::{Arc, MutexGuard, Once},
};

/// Where the lock is kept while the process forks.
struct Held(UnsafeCell<Option<MutexGuard<'static, Library>>>);

// SAFETY: only a thread that holds the library's lock touches it: `prepare` stores the lock right after taking it, and
// `in_parent` and `in_child` take it out right before they give the lock back. All three run on the thread that forks.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Has forks handled from now on.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    });
}

/// Takes the lock, so that no other thread holds it in the moment of the fork: in the child that thread is gone.
unsafe extern "C" fn prepare() {
    let lock = library::lock();
    // SAFETY: this thread holds the lock; see `Held`.
    unsafe { *HELD.0.get() = Some(lock) };
}

unsafe extern "C" fn in_parent() {
    // SAFETY: this thread holds the lock since `prepare`; see `Held`.
    drop(unsafe { (*HELD.0.get()).take() });
}

unsafe extern "C" fn in_child() {
    // SAFETY: this thread holds the lock since `prepare`; see `Held`.
    let lock = unsafe { (*HELD.0.get()).take() };
    let Some(mut library) = lock else { return };
    // A panic here would cross into C; without its session the child is merely not initialised.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        if let Some(parents) = library.session.take() {
            library.session = Some(Arc::new(parents.for_child()));
            // Threads that are gone may hold parts of it for ever.
            std::mem::forget(parents);
        }
    }));
}
