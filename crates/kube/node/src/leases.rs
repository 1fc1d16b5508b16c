//! The claim's lease, as the pool's manager has it.

use crate::error::PrepareError;
use crate::prepared::Worker;
use kube_claims::lease_key;
use pool_api::{Lease, LeaseState, LeaseTokens, SignedGrant};
use pool_client::{Client, ClientError};
use std::time::{Duration, Instant};

/// Between two looks for a lease that is not there yet, or a worker that is not ready.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long one question waits for a change of a lease.
const ASK_FOR: Duration = Duration::from_millis(500);

/// A way to a GPU that works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The worker's address, as containers on this node reach it.
    pub address: String,
    /// The name in its certificate.
    pub name: String,
    /// It lends GPUs in software.
    pub is_soft: bool,
}

/// Finds ways to GPUs.
pub trait Ways: Send + Sync {
    /// The best way to a GPU, tried; or why there is none now.
    fn way_to(&self, grant: &SignedGrant, authority: &str) -> Result<Way, String>;
}

/// A lease that a program can use now.
pub(crate) struct Usable {
    pub(crate) lease: Lease,
    pub(crate) tokens: LeaseTokens,
    pub(crate) workers: Vec<Worker>,
    pub(crate) is_soft: bool,
}

/// Waits until the claim's lease has its GPUs and their workers let this node in. After `patience` it says what is missing.
pub(crate) fn until_usable(
    client: &Client,
    ways: &dyn Ways,
    uid: &str,
    patience: Duration,
) -> Result<Usable, PrepareError> {
    let deadline = Instant::now() + patience;
    loop {
        let tried = look(client, uid).and_then(|lease| use_now(client, ways, lease));
        let error = match tried {
            Ok(usable) => return Ok(usable),
            Err(error) => error,
        };
        if Instant::now() >= deadline {
            return Err(error);
        }
        match &error {
            // The manager answers as soon as the lease is another than it was.
            PrepareError::Waits { lease } => {
                let version = client.wait_for_lease(*lease, 0, Duration::ZERO).map(|lease| lease.version);
                let _ = version.and_then(|version| client.wait_for_lease(*lease, version, ASK_FOR));
            }
            // No later try is answered otherwise.
            PrepareError::Manager(ClientError::Refused(detail)) if !detail.code.is_retryable() => {
                return Err(error);
            }
            _ => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// The claim's lease: the live one if there is one, else the last.
pub(crate) fn find(client: &Client, uid: &str) -> Result<Option<Lease>, ClientError> {
    let found = client.leases_labelled(&lease_key(uid))?;
    Ok(found.into_iter().max_by_key(|lease| (lease.state.is_live(), lease.id)))
}

fn look(client: &Client, uid: &str) -> Result<Lease, PrepareError> {
    let lease = find(client, uid)?.ok_or_else(|| PrepareError::NoLease(lease_key(uid)))?;
    match lease.state {
        LeaseState::Granted => Ok(lease),
        LeaseState::Pending | LeaseState::Parked => Err(PrepareError::Waits { lease: lease.id }),
        LeaseState::Releasing | LeaseState::Ended => {
            let reason = lease.ended.map_or_else(String::new, |ended| ended.reason);
            Err(PrepareError::Over { lease: lease.id, reason })
        }
    }
}

/// Tokens of a granted lease, and the ways to its GPUs.
pub(crate) fn use_now(client: &Client, ways: &dyn Ways, lease: Lease) -> Result<Usable, PrepareError> {
    let tokens = client.lease_tokens(lease.id)?;
    let mut is_soft = false;
    let mut workers = Vec::new();
    for grant in &tokens.grants {
        let way = ways
            .way_to(grant, &tokens.ca_certificate)
            .map_err(|why| PrepareError::NoWay { lease: lease.id, why })?;
        is_soft |= way.is_soft;
        let (gpu, epoch) = (grant.gpu.clone(), grant.epoch);
        workers.push(Worker { gpu, epoch, address: way.address, name: way.name });
    }
    Ok(Usable { lease, tokens, workers, is_soft })
}
