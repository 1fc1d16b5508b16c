//! The thread that keeps prepared claims fresh: their leases are renewed, their tokens written anew, their health heard.

use crate::plugin::Plugin;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Between two rounds over all prepared claims: how late the health of a device is told. Far less than a lease of the
/// controller lives, so that a node alone keeps its leases alive.
const EVERY: Duration = Duration::from_secs(5);
/// Lease tokens live for a day. So often that a manager may be away for hours.
const TOKENS_EVERY: Duration = Duration::from_secs(600);

/// Refreshes until the other end of `stop` is dropped.
pub(crate) fn run(plugin: &Arc<Plugin>, stop: &Receiver<()>) {
    let mut tokens_at: BTreeMap<String, Instant> = BTreeMap::new();
    let mut is_silent = false;
    loop {
        let prepared = plugin.book.all();
        tokens_at.retain(|uid, _| prepared.iter().any(|one| one.uid == *uid));
        let mut trouble = None;
        for one in prepared {
            let claim = one.claim();
            let wants_tokens = tokens_at.get(&claim.uid).is_none_or(|at| at.elapsed() >= TOKENS_EVERY);
            match plugin.refresh(&claim.uid, wants_tokens) {
                Ok(()) if wants_tokens => {
                    tokens_at.insert(claim.uid, Instant::now());
                }
                Ok(()) => {}
                Err(error) => trouble = Some(format!("claim {}/{}: {error}", claim.namespace, claim.name)),
            }
        }
        match (&trouble, is_silent) {
            (Some(error), false) => {
                tracing::warn!(error, "a prepared claim cannot be refreshed now; its pod goes on")
            }
            (None, true) => tracing::info!("prepared claims are refreshed again"),
            _ => {}
        }
        is_silent = trouble.is_some();
        match stop.recv_timeout(EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
