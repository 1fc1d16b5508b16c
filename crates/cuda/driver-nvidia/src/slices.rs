//! Time slices: how long the contexts of this process have the device before the device looks whether others wait.
//!
//! CUDA has no function for it. The kernel's driver has one, for groups of channels and for the process that they belong to;
//! libcuda makes those groups, and does not tell their names. So we look on while libcuda makes them:
//!
//! ```text
//!   libcuda ── ioctl ─▶ hook ─▶ kernel        hook     the word through which libcuda calls `ioctl` leads to us
//!                        │                    call     what a call to the kernel says: a group is born, a group is gone
//!                        ▼                    groups   the groups of this process, and the slice that they should have
//!                      groups ── ioctl ─▶ kernel
//! ```
//!
//! Whether the device heeds what it is told is another matter: some drivers accept a slice and do nothing. [`trial`] finds out by
//! measuring, and without its word no session changes anything.

mod call;
mod groups;
mod hook;
mod trial;

pub use trial::{Trial, TrialError, bear, run as run_trial};

use crate::sys::Api;
use groups::Groups;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The groups of this process. Static, because the hook is a plain function.
static GROUPS: Mutex<Groups> = Mutex::new(Groups::new());

fn groups() -> MutexGuard<'static, Groups> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to change the slices of this process. Made before libcuda makes its first context.
#[derive(Debug)]
pub(crate) struct Slices {
    /// What was set last.
    now_us: Mutex<Option<u64>>,
}

impl Slices {
    /// Looks on from now on. `None`: libcuda does not call `ioctl` where we can look on.
    pub(crate) fn watch(api: &Api) -> Option<Self> {
        let places = api.code_address().map_or(0, hook::install);
        if places == 0 {
            tracing::warn!(
                "the time slices of this GPU cannot be changed: libcuda calls the kernel in another way"
            );
        }
        (places > 0).then(|| Self { now_us: Mutex::new(None) })
    }

    /// Gives all groups, and those to come, this slice; `None`: the one that they had at first. Returns how many were told.
    pub(crate) fn set(&self, slice_us: Option<u64>) -> usize {
        let mut now_us = self.now_us.lock().unwrap_or_else(PoisonError::into_inner);
        if *now_us == slice_us {
            return 0;
        }
        *now_us = slice_us;
        let told = groups().set(slice_us, hook::control);
        let groups = groups().count();
        tracing::debug!(slice_us, groups, told, "the time slice of this session");
        told
    }
}
