//! The Kubernetes controller of the pool: publishes GPUs as ResourceSlices, and turns allocated claims into leases.
//!
//! ```text
//!   API server ──list, watch──▶ Claims ──┐
//!                                        ├─▶ reconcile ▸ kube_claims::decide ──▶ leases (manager), conditions (API server)
//!   manager ──poll──▶ GPUs, leases ──────┤
//!                                        └─▶ publish ▸ kube_claims::plan ──▶ ResourceSlices
//! ```
//!
//! Decisions are in `kube-claims`; this crate asks and writes. It keeps nothing on disk: all that counts is in the claims and
//! in the pool, so a controller may be killed at any moment. Several may run; one leads, by a Lease object of
//! `coordination.k8s.io`.

#![forbid(unsafe_code)]

mod claims;
mod cluster;
mod election;
mod error;
mod leading;
mod pool;
mod publish;
mod reconcile;

pub use cluster::Cluster;
pub use election::Election;
pub use error::ControllerError;

use std::sync::Arc;
use std::time::Duration;

use kube_claims::{Bind, Nodes, Terms};
use pool_client::Client;

/// How a controller works.
pub struct Settings {
    /// Where the API server is.
    pub cluster: Cluster,
    /// Borrows: a user of one tenant, and of this cluster alone. The controller returns leases of this identity whose claims
    /// it does not find.
    pub borrower: Arc<Client>,
    /// Reads the pool's GPUs and boxes, which tenants may not: a viewer.
    pub viewer: Arc<Client>,
    /// The nodes that reach the pool.
    pub nodes: Nodes,
    /// When pods are bound.
    pub bind: Bind,
    /// How leases are asked for.
    pub terms: Terms,
    /// How controllers agree on the one that leads; without it this one leads.
    pub election: Option<Election>,
    /// How often it looks.
    pub pace: Pace,
}

/// How often a controller looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// At the pool's GPUs and leases.
    pub poll: Duration,
    /// At everything, for what no event has told.
    pub sweep: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { poll: Duration::from_secs(1), sweep: Duration::from_secs(30) }
    }
}

/// How often `run` asks whether it is to stop.
const STOP_EVERY: Duration = Duration::from_millis(100);
/// How long a controller that stops tries to hand its leadership over.
const FAREWELL: Duration = Duration::from_secs(2);

/// Runs until `stop` says so. `leads` is called whenever this controller begins to lead.
pub fn run(
    settings: Settings,
    leads: &(dyn Fn() + Sync),
    stop: &mut dyn FnMut() -> bool,
) -> Result<(), ControllerError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(ControllerError::Runtime)?;
    let done = runtime.block_on(async {
        let client = settings.cluster.connect().await?;
        let mut stop_due = tokio::time::interval(STOP_EVERY);
        let mut leading = std::pin::pin!(leading::run(&settings, &client, leads));
        loop {
            tokio::select! {
                biased;
                _ = stop_due.tick() => if stop() { break },
                ended = &mut leading => return ended,
            }
        }
        if let Some(election) = &settings.election {
            let _ = tokio::time::timeout(FAREWELL, election.resign(&client)).await;
        }
        Ok(())
    });
    // A request to the manager that is on its way must not hold the process up.
    runtime.shutdown_background();
    done
}
