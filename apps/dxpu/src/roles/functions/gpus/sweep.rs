//! Leases of a service that was killed are returned before the next one asks for GPUs: they may be all that the pool has.

use super::{LABEL, LOOK_EVERY, PATIENCE};
use crate::support::pool_access::PoolAccess;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};

/// A manager that is away for longer has forgotten the leases by itself.
const TRIES: u32 = 3;

/// Whether the leases of a former service are returned.
///
/// They are known by their label, which the leases of this service have as well: so none is asked for before.
#[derive(Clone, Default)]
pub(super) struct Swept(Arc<AtomicBool>);

impl Swept {
    /// Returns them, in a thread of its own.
    pub(super) fn start(access: &PoolAccess) -> Self {
        let swept = Self::default();
        let (access, done) = (access.clone(), swept.clone());
        std::thread::spawn(move || {
            for _ in 0..TRIES {
                match sweep(&access) {
                    Ok(count) => {
                        tracing::debug!(count, "leases of a former service are returned");
                        break;
                    }
                    Err(error) => tracing::warn!(%error, "leases of a former service cannot be returned"),
                }
            }
            done.0.store(true, Ordering::SeqCst);
        });
        swept
    }

    /// Waits for it. False if it is not wanted any more.
    pub(super) fn wait(&self, stopped: &Receiver<()>) -> bool {
        while !self.0.load(Ordering::SeqCst) {
            if stopped.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
                return false;
            }
        }
        true
    }
}

fn sweep(access: &PoolAccess) -> anyhow::Result<usize> {
    let client = access.patient(PATIENCE)?;
    // An admin sees those of other services as well.
    let own = access.find()?.identity.to_string();
    let mut count = 0;
    for lease in client.leases_labelled(LABEL)? {
        if lease.state.is_live() && lease.owner == own {
            client.release_lease(lease.id)?;
            count += 1;
        }
    }
    Ok(count)
}
