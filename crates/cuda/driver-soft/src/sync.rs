//! Locks without poison.
//!
//! A panic in one stream's work is turned into an error of its context; the tables it may have held are changed in
//! single steps, so the others can go on with them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) type Lock<T> = Mutex<T>;
pub(crate) type Guard<'a, T> = MutexGuard<'a, T>;

/// Locks, even if a thread panicked with the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits, even if a thread panicked with the lock.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
