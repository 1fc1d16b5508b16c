//! A thread for each GPU: it asks for the lease, keeps it alive and notices when the GPU behind it is not the same any more.

use super::sweep::Swept;
use super::{AGAIN_AFTER, ATTACH_WITHIN, LABEL, LOOK_EVERY, News, PATIENCE, Place, part_tokens, write};
use crate::borrower::borrow::attach;
use crate::support::pool_access::PoolAccess;
use functions::SlotId;
use functions_gateway::GpuNews;
use pool_api::{ErrorCode, Lease, LeaseId, LeaseRequest, LeaseState};
use pool_client::Client;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// How long the pool is asked for one GPU; then the invocation that waits is told why there is none.
const GRANT_WITHIN: Duration = Duration::from_secs(60);
/// The same for one that would only spread the load: a free GPU is granted within a moment.
const SPARE_WITHIN: Duration = Duration::from_secs(2);
/// A GPU that was lost under programs that survive is waited for as long as they wait themselves.
const AGAIN_WITHIN: Duration = Duration::from_secs(60);
/// How long the manager holds a question back if nothing has changed. It also renews the lease.
const ASK_FOR: Duration = Duration::from_secs(1);
/// Tokens last for a day.
const NEW_TOKENS_EVERY: Duration = Duration::from_secs(3600);

/// Holds one lease, in a thread of its own.
pub(super) struct Holder {
    pub(super) access: PoolAccess,
    pub(super) news: News,
    pub(super) slot: SlotId,
    pub(super) tenant: String,
    pub(super) declared_mb: u32,
    /// It is only wanted if the pool has one free now.
    pub(super) is_spare: bool,
    pub(super) place: Arc<Place>,
    pub(super) swept: Swept,
    /// Those that are being given back: there are never more leases than the service may have.
    pub(super) returning: Vec<Arc<Place>>,
}

impl Holder {
    /// Returns when the GPU was given back; fails when it is lost.
    pub(super) fn hold(&self, stopped: &Receiver<()>) -> anyhow::Result<()> {
        if !self.swept.wait(stopped) || !self.wait_for_returned(stopped) {
            return Ok(());
        }
        let client = self.access.patient(PATIENCE)?;
        let request = LeaseRequest {
            memory_bytes: Some(u64::from(self.declared_mb) << 20),
            note: format!("functions of {}", self.tenant),
            label: LABEL.to_owned(),
            ..LeaseRequest::default()
        };
        let lease = client.create_lease(&request, &pool_client::idempotency_key())?;
        let id = lease.id;
        let held = self.use_lease(&client, lease, stopped);
        let _ = client.release_lease(id);
        held
    }

    /// False if it is not wanted any more.
    fn wait_for_returned(&self, stopped: &Receiver<()>) -> bool {
        while !self.returning.iter().all(|place| place.is_returned.load(Ordering::SeqCst)) {
            if stopped.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
                return false;
            }
        }
        true
    }

    fn use_lease(&self, client: &Client, mut lease: Lease, stopped: &Receiver<()>) -> anyhow::Result<()> {
        let within = if self.is_spare { SPARE_WITHIN } else { GRANT_WITHIN };
        let until = Instant::now() + within;
        while lease.state == LeaseState::Pending {
            if is_stopped(stopped) {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < until, "the pool had no GPU free for {} s", within.as_secs());
            lease = client.wait_for_lease(lease.id, lease.version, ASK_FOR)?;
        }
        anyhow::ensure!(lease.state == LeaseState::Granted, "the lease ended before it had a GPU");
        let Some(attached) = attach(client, &lease, stopped)? else { return Ok(()) };
        let total_mb = match attached.memory_bytes >> 20 {
            0 => u64::from(self.declared_mb),
            total_mb => total_mb,
        };
        *locks::lock(&self.place.granted) = Some(lease.id);
        (self.news)(GpuNews::Granted { slot: self.slot, total_mb });
        self.watch(client, &lease, attached.version, stopped)
    }

    /// Keeps the lease alive until it is given back, or lost with all sessions. For programs that survive it goes on with the
    /// next worker, or the next GPU that the pool gives the lease.
    ///
    /// The pool gives a lease a new version when its GPU or its worker is another one, also if the next worker is at the same
    /// address. An agent that is started again changes nothing: its workers go on.
    fn watch(
        &self,
        client: &Client,
        lease: &Lease,
        mut version: u64,
        stopped: &Receiver<()>,
    ) -> anyhow::Result<()> {
        let mut without_since: Option<Instant> = None;
        let (mut heard, mut signed) = (Instant::now(), Instant::now());
        while !is_stopped(stopped) {
            anyhow::ensure!(!self.place.is_deaf.load(Ordering::SeqCst), "its worker lets no instance in");
            match client.wait_for_lease(lease.id, version, ASK_FOR) {
                // It is given back: that is no loss.
                Ok(_) if is_stopped(stopped) => return Ok(()),
                Ok(now) => {
                    let is_granted = now.state == LeaseState::Granted;
                    if now.version != version {
                        self.change(&now)?;
                        version = now.version;
                    }
                    without_since = (!is_granted).then(|| without_since.unwrap_or_else(Instant::now));
                    let is_over = without_since.is_some_and(|since| since.elapsed() >= AGAIN_WITHIN);
                    anyhow::ensure!(!is_over, "its GPU was lost, and the pool had no other");
                    heard = Instant::now();
                }
                Err(error) if error.code() == Some(ErrorCode::NotFound) => return Err(error.into()),
                // Sessions go on without a manager until the lease is over.
                Err(error) if heard.elapsed() >= Duration::from_millis(lease.request.ttl_ms) => {
                    return Err(error.into());
                }
                Err(_) => std::thread::sleep(AGAIN_AFTER),
            }
            if signed.elapsed() >= NEW_TOKENS_EVERY {
                signed = Instant::now();
                self.sign_again(client, lease.id);
            }
        }
        Ok(())
    }

    /// The lease has another worker or GPU, or waits for one. Fails if that is the end of all instances.
    fn change(&self, now: &Lease) -> anyhow::Result<()> {
        let is_granted = now.state == LeaseState::Granted;
        let may_come_back = is_granted || now.state == LeaseState::Pending;
        let survives =
            locks::lock(&self.place.parts).iter().any(|part| part.survives && part.folder.is_dir());
        anyhow::ensure!(is_granted || (survives && may_come_back), "its GPU was lost, and the lease with it");
        anyhow::ensure!(survives, "its worker ended, and all sessions with it");
        let why = match is_granted {
            true => "its worker is another one, and all sessions are lost",
            false => "its GPU is lost, and the lease waits for another",
        };
        (self.news)(GpuNews::Changed { slot: self.slot, is_there: is_granted, why: why.to_owned() });
        Ok(())
    }

    /// New tokens for the instances that are still there. One that fails is asked for again in an hour: the old one lasts.
    fn sign_again(&self, client: &Client, lease: LeaseId) {
        let mut parts = locks::lock(&self.place.parts);
        parts.retain(|part| part.folder.is_dir());
        for part in parts.iter() {
            if let Ok(tokens) = part_tokens(client, lease, part) {
                let _ = write(part, &tokens);
            }
        }
    }
}

fn is_stopped(stopped: &Receiver<()>) -> bool {
    stopped.try_recv() != Err(TryRecvError::Empty)
}

/// A worker that lets the lease's bearer in.
struct Attached {
    /// The version of the lease with this worker.
    version: u64,
    memory_bytes: u64,
}

/// Waits until the GPU's worker is there; none if it is not wanted any more.
fn attach(client: &Client, lease: &Lease, stopped: &Receiver<()>) -> anyhow::Result<Option<Attached>> {
    let until = Instant::now() + ATTACH_WITHIN;
    while !is_stopped(stopped) {
        let tokens = client.lease_tokens(lease.id)?;
        let grant = tokens.grants.into_iter().next();
        let Some(grant) = grant else { anyhow::bail!("the lease has no GPU") };
        match attach::way_by_network(&grant, &tokens.ca_certificate) {
            Ok(_) => {
                let (version, memory_bytes) = (tokens.version, grant.memory_bytes);
                return Ok(Some(Attached { version, memory_bytes }));
            }
            Err(error) if Instant::now() >= until => return Err(error.into()),
            Err(_) => std::thread::sleep(AGAIN_AFTER),
        }
    }
    Ok(None)
}
