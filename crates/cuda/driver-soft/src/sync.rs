//! Locks without poison.
//!
//! A panic in one stream's work is turned into an error of its context; the tables it may have held are changed in
//! single steps, so the others can go on with them.

pub(crate) use locks::{lock, wait};
use std::sync::{Mutex, MutexGuard};

pub(crate) type Lock<T> = Mutex<T>;
pub(crate) type Guard<'a, T> = MutexGuard<'a, T>;
