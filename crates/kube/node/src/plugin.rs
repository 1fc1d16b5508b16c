//! Prepare and unprepare, for one claim at a time.

use crate::claims::{Claims, FoundClaim};
use crate::error::PrepareError;
use crate::files::{self, Files};
use crate::health;
use crate::leases::{self, Ways};
use crate::prepared::{AllocatedDevice, Book, Prepared};
use crate::proto::{Claim, Device, DeviceHealth};
use kube_claims::{DRIVER, device_name};
use locks::lock;
use machine::files::FileError;
use pool_api::{ErrorCode, Lease};
use pool_client::{Client, ClientError};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// What the sockets and the refresher share. Every method blocks.
pub(crate) struct Plugin {
    pub(crate) pool: Client,
    pub(crate) claims: Box<dyn Claims>,
    pub(crate) ways: Box<dyn Ways>,
    pub(crate) files: Files,
    pub(crate) book: Book,
    /// How long one prepare waits for a lease.
    pub(crate) patience: Duration,
    /// Of each prepared claim, as it was last heard.
    health: watch::Sender<BTreeMap<String, Vec<DeviceHealth>>>,
    /// A claim is prepared, unprepared or refreshed by one thread at a time.
    busy: Mutex<HashMap<String, Arc<Mutex<()>>>>,
}

impl Plugin {
    pub(crate) fn new(
        pool: Client,
        claims: Box<dyn Claims>,
        ways: Box<dyn Ways>,
        files: Files,
        book: Book,
        patience: Duration,
    ) -> Self {
        let (health, _) = watch::channel(BTreeMap::new());
        Self { pool, claims, ways, files, book, patience, health, busy: Mutex::new(HashMap::new()) }
    }

    /// Removes what belongs to no prepared claim.
    pub(crate) fn sweep(&self) {
        let prepared: BTreeSet<String> = self.book.all().into_iter().map(|one| one.uid).collect();
        for uid in self.files.sweep(&prepared) {
            tracing::info!(uid, "removed files of a claim that is not prepared");
        }
    }

    /// Has a claim's containers find their GPUs. Doing it again changes nothing.
    pub(crate) fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, PrepareError> {
        if !files::is_uid(&claim.uid) {
            return Err(PrepareError::BadUid(claim.uid.clone()));
        }
        let one = self.one_at_a_time(&claim.uid);
        let _turn = lock(&one);
        // A pod that runs keeps running while the API server or the manager is away: nothing is asked.
        if let Some(prepared) = self.book.get(&claim.uid).filter(|_| self.files.are_there(&claim.uid)) {
            return Ok(answer(&prepared));
        }
        let found = self.claims.read(&claim.namespace, &claim.name)?;
        let devices = allocated(claim, found)?;
        let usable = leases::until_usable(&self.pool, self.ways.as_ref(), &claim.uid, self.patience)?;
        let has = |device: &AllocatedDevice| {
            usable.workers.iter().any(|worker| device_name(&worker.gpu) == device.device)
        };
        if !devices.iter().all(has) {
            // The lease may have moved since the scheduler chose. What the lease has counts: its box lets no other lease in.
            tracing::warn!(claim = %claim.name, lease = %usable.lease.id, "the lease has other GPUs than the claim names");
        }
        let prepared = Prepared {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            uid: claim.uid.clone(),
            lease: usable.lease.id,
            devices,
            workers: usable.workers,
            survives: !usable.lease.request.survive.is_none(),
            is_soft: usable.is_soft,
        };
        // In the book first: files without an entry would be found by the sweep alone.
        self.book.put(prepared.clone())?;
        self.files.write(&prepared, &usable.tokens)?;
        self.tell_health(&prepared, &usable.lease);
        tracing::info!(claim = %claim.name, namespace = %claim.namespace, uid = %claim.uid, lease = %prepared.lease, "prepared");
        Ok(answer(&prepared))
    }

    /// Removes what prepare made. If the claim is gone, its lease is returned: the controller may be away.
    pub(crate) fn unprepare(&self, claim: &Claim) -> Result<(), PrepareError> {
        if !files::is_uid(&claim.uid) {
            return Err(PrepareError::BadUid(claim.uid.clone()));
        }
        let one = self.one_at_a_time(&claim.uid);
        let _turn = lock(&one);
        self.forget(&claim.uid)?;
        match self.claims.read(&claim.namespace, &claim.name) {
            Ok(Some(found)) if found.metadata.uid == claim.uid => {}
            Ok(_) => self.return_lease(&claim.uid),
            // The pod must be able to go. The controller returns the lease when it sees that the claim is gone.
            Err(error) => tracing::debug!(%error, "whether the claim is gone is not known"),
        }
        let mut busy = lock(&self.busy);
        // The map has one, this thread the other: no thread waits for its turn.
        if Arc::strong_count(&one) == 2 {
            busy.remove(&claim.uid);
        }
        drop(busy);
        tracing::info!(claim = %claim.name, namespace = %claim.namespace, uid = %claim.uid, "unprepared");
        Ok(())
    }

    fn forget(&self, uid: &str) -> Result<(), FileError> {
        self.files.remove(uid)?;
        if self.book.get(uid).is_some() {
            self.book.remove(uid)?;
        }
        self.health.send_if_modified(|all| all.remove(uid).is_some());
        Ok(())
    }

    fn return_lease(&self, uid: &str) {
        let returned = leases::find(&self.pool, uid).and_then(|found| match found {
            Some(lease) if lease.state.is_live() => self.pool.release_lease(lease.id).map(Some),
            _ => Ok(None),
        });
        match returned {
            Ok(Some(lease)) => {
                tracing::info!(uid, lease = %lease.id, "returned the lease of a claim that is gone")
            }
            Ok(None) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                tracing::warn!(uid, %error, "a lease cannot be returned now; the controller does it later")
            }
        }
    }

    /// Renews the lease of a prepared claim. Where its GPUs or tokens are others now, the files are written anew.
    ///
    /// `wants_tokens`: also if nothing changed.
    pub(crate) fn refresh(&self, uid: &str, wants_tokens: bool) -> Result<(), PrepareError> {
        let one = self.one_at_a_time(uid);
        // A thread that prepares or unprepares the claim does more than this would.
        let Ok(_turn) = one.try_lock() else { return Ok(()) };
        let Some(prepared) = self.book.get(uid) else { return Ok(()) };
        let lease = match self.pool.renew_lease(prepared.lease) {
            Ok(lease) => lease,
            Err(error) if is_gone(&error) => return self.follow(prepared),
            Err(error) => return Err(error.into()),
        };
        if !lease.state.is_live() {
            return self.follow(prepared);
        }
        self.tell_health(&prepared, &lease);
        let is_same = lease.grants.len() == prepared.workers.len()
            && lease
                .grants
                .iter()
                .zip(&prepared.workers)
                .all(|(grant, worker)| grant.gpu == worker.gpu && grant.epoch == worker.epoch);
        if lease.grants.is_empty() || (is_same && !wants_tokens && self.files.are_there(uid)) {
            return Ok(());
        }
        self.rewrite(prepared, lease, is_same)
    }

    /// The lease that was prepared is over: the controller may have made another for the claim.
    fn follow(&self, prepared: Prepared) -> Result<(), PrepareError> {
        let Some(lease) = leases::find(&self.pool, &prepared.uid)? else {
            tracing::debug!(uid = %prepared.uid, "the lease is over, and there is no other");
            return Ok(());
        };
        self.tell_health(&prepared, &lease);
        if lease.state.is_live() && lease.id != prepared.lease && !lease.grants.is_empty() {
            return self.rewrite(prepared, lease, false);
        }
        Ok(())
    }

    fn rewrite(&self, prepared: Prepared, lease: Lease, is_same: bool) -> Result<(), PrepareError> {
        if is_same {
            // The ways are known, and the program uses them: only the tokens are new.
            let tokens = self.pool.lease_tokens(lease.id)?;
            return self.files.write(&prepared, &tokens);
        }
        let usable = leases::use_now(&self.pool, self.ways.as_ref(), lease)?;
        let moved =
            Prepared { lease: usable.lease.id, workers: usable.workers, is_soft: usable.is_soft, ..prepared };
        self.book.put(moved.clone())?;
        self.files.write(&moved, &usable.tokens)?;
        tracing::info!(uid = %moved.uid, lease = %moved.lease, "the lease has other GPUs; containers that start from now on get them");
        Ok(())
    }

    fn tell_health(&self, prepared: &Prepared, lease: &Lease) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let heard = health::of_claim(&prepared.devices, lease, now_s);
        self.health.send_modify(|all| {
            all.insert(prepared.uid.clone(), heard);
        });
    }

    /// Changes of health, with the state of now as the first.
    pub(crate) fn watch_health(&self) -> watch::Receiver<BTreeMap<String, Vec<DeviceHealth>>> {
        self.health.subscribe()
    }

    fn one_at_a_time(&self, uid: &str) -> Arc<Mutex<()>> {
        lock(&self.busy).entry(uid.to_owned()).or_default().clone()
    }
}

fn is_gone(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(detail) if matches!(detail.code, ErrorCode::Gone | ErrorCode::NotFound))
}

/// What the kubelet tells the container runtime.
fn answer(prepared: &Prepared) -> Vec<Device> {
    let one = |allocated: &AllocatedDevice| Device {
        // Containers name requests; an alternative of a request counts as the request.
        request_names: vec![allocated.request.split('/').next().unwrap_or_default().to_owned()],
        pool_name: allocated.pool.clone(),
        device_name: allocated.device.clone(),
        cdi_device_ids: vec![files::device_id(&prepared.uid)],
        share_id: allocated.share.clone(),
    };
    prepared.devices.iter().map(one).collect()
}

/// The devices of our driver that the claim has, if it is the claim that the kubelet means.
fn allocated(claim: &Claim, found: Option<FoundClaim>) -> Result<Vec<AllocatedDevice>, PrepareError> {
    let (namespace, name) = (claim.namespace.clone(), claim.name.clone());
    let Some(found) = found else { return Err(PrepareError::NoClaim { namespace, name }) };
    let uid = found.metadata.uid;
    if uid != claim.uid {
        return Err(PrepareError::OtherClaim { namespace, name, found: uid, wanted: claim.uid.clone() });
    }
    let results = found.status.allocation.unwrap_or_default().devices.results;
    let ours = results.into_iter().filter(|result| result.driver == DRIVER);
    let devices: Vec<AllocatedDevice> = ours
        .map(|result| AllocatedDevice {
            request: result.request,
            pool: result.pool,
            device: result.device,
            share: result.share_id,
        })
        .collect();
    if devices.is_empty() {
        return Err(PrepareError::NotAllocated { namespace, name });
    }
    Ok(devices)
}
