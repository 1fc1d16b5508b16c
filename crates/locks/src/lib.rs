//! std's locks, taken even if a thread panicked with them.
//!
//! std poisons a lock whose holder panicked: every later `lock` fails, so that no thread sees data that is half changed.
//! The functions here take the lock all the same. That is sound for the locks of this workspace, for two reasons:
//!
//! - Each holder leaves the data consistent at every point where it may panic: it checks first and changes last, or
//!   changes in single steps. Code that cannot do so must not use these functions.
//! - A panic is caught at an outer border (a call of the CUDA API, a lane, a session, a request) and fails that one thing.
//!   With a poisoned lock it would fail all others too, for as long as the process lives.
//!
//! They are std's locks and not another crate's, because libcuda lives in programs that call fork(2). In the child, a lock
//! of std that no thread held at the fork works: it is one word. Locks that keep their waiting threads in a table of the
//! process (parking_lot) can find that table locked for ever.

#![forbid(unsafe_code)]

use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};
use std::time::Duration;

/// Locks a mutex. Blocks while another thread holds it.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex if no thread holds it.
#[inline]
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Locks for reading. Blocks while another thread writes.
#[inline]
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing. Blocks while another thread reads or writes.
#[inline]
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Unlocks, sleeps until the condition variable is notified, and locks again. It may also wake for no reason: look again.
#[inline]
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// [`wait`], but for at most `timeout`. The caller looks again either way, so it is not told which it was.
#[inline]
pub fn wait_for<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    /// A mutex and a lock, both poisoned, and a condition variable.
    fn poisoned() -> Arc<(Mutex<u32>, RwLock<u32>, Condvar)> {
        let shared = Arc::new((Mutex::new(1), RwLock::new(2), Condvar::new()));
        let holder = Arc::clone(&shared);
        let panicked = thread::spawn(move || {
            let _guards = (holder.0.lock().unwrap(), holder.1.write().unwrap());
            panic!("with both locks");
        });
        assert!(panicked.join().is_err());
        assert!(shared.0.is_poisoned() && shared.1.is_poisoned());
        shared
    }

    #[test]
    fn locks_are_taken_though_a_thread_panicked_with_them() {
        let shared = poisoned();
        *lock(&shared.0) += 10;
        assert_eq!(*lock(&shared.0), 11);
        assert_eq!(try_lock(&shared.0).as_deref(), Some(&11));
        *write(&shared.1) += 10;
        assert_eq!(*read(&shared.1), 12);
    }

    #[test]
    fn a_held_lock_is_not_taken() {
        let shared = poisoned();
        let held = lock(&shared.0);
        assert!(try_lock(&shared.0).is_none());
        drop(held);
        assert!(try_lock(&shared.0).is_some());
    }

    #[test]
    fn waits_end_with_the_cause_or_with_the_time() {
        let shared = poisoned();
        let guard = wait_for(&shared.2, lock(&shared.0), Duration::from_millis(1));
        assert_eq!(*guard, 1);
        drop(guard);
        let waker = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            *lock(&waker.0) = 5;
            waker.2.notify_all();
        });
        let mut guard = lock(&shared.0);
        while *guard != 5 {
            guard = wait(&shared.2, guard);
        }
        drop(guard);
        thread.join().unwrap();
    }
}
