//! One claim at a time: asks `kube_claims::decide`, and does what it says.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};
use kube_claims::{
    Action, ClaimView, Devices, Memory, Terms, Word, add_finalizer, create_key, decide, lease_key,
    remove_finalizer, write_word,
};
use pool_api::{ErrorCode, Lease, LeaseId, LeaseRequest, LeaseState};
use pool_client::ClientError;

use crate::claims::Claims;
use crate::error::{StepError, is_conflict, is_not_found};
use crate::pool::Pool;

/// Rounds for one claim: finalizer, lease and conditions are one; conflicts with other writers take more.
const ROUNDS_MAX: usize = 8;
/// Keys that are tried when earlier leases of the same allocation are over and forgotten.
const KEYS_MAX: usize = 4;

/// What reconciling needs.
pub(crate) struct Reconciler<'a> {
    pub(crate) client: &'a Client,
    pub(crate) claims: &'a Claims,
    pub(crate) pool: &'a Pool,
    pub(crate) terms: &'a Terms,
    /// The GPUs of the pool, as of the last poll.
    pub(crate) devices: RwLock<Devices>,
    memories: Mutex<BTreeMap<String, Attempts>>,
}

/// What the controller knows of its attempts for a claim.
#[derive(Clone, Debug, Default)]
struct Attempts {
    waiting_since: Option<Instant>,
    /// The allocation that was refused, and the manager's words.
    refused: Option<(String, String)>,
    renewed: Option<(LeaseId, Instant)>,
}

impl<'a> Reconciler<'a> {
    pub(crate) fn new(client: &'a Client, claims: &'a Claims, pool: &'a Pool, terms: &'a Terms) -> Self {
        let devices = RwLock::new(Devices::default());
        Self { client, claims, pool, terms, devices, memories: Mutex::default() }
    }

    fn memories(&self) -> MutexGuard<'_, BTreeMap<String, Attempts>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn api(&self, namespace: &str) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Asks the manager again for what it has refused.
    pub(crate) fn forget_refusals(&self) {
        self.memories().values_mut().for_each(|attempts| attempts.refused = None);
    }

    /// Forgets claims that are gone.
    pub(crate) fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.memories().retain(|uid, _| is_there(uid));
    }

    /// Brings one claim and its leases together.
    pub(crate) async fn reconcile(&self, uid: &str) -> Result<(), StepError> {
        for _ in 0..ROUNDS_MAX {
            let leases = self.pool.leases_labelled(lease_key(uid)).await?;
            let Some(claim) = self.claims.get(uid) else {
                self.memories().remove(uid);
                return self.return_all(&leases).await;
            };
            let Some(view) = ClaimView::of(&claim) else { return Ok(()) };
            self.renew(&view, &leases).await?;
            let memory = self.memory(&view, &leases);
            let actions = {
                let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
                decide(&view, &leases, &devices, &memory, self.terms)
            };
            if actions.is_empty() {
                return Ok(());
            }
            for action in actions {
                if !self.act(&view, action).await? {
                    break;
                }
            }
        }
        Err(StepError::Restless)
    }

    /// The claim is gone. Its finalizer was taken off by hand, or its lease was asked for too late.
    async fn return_all(&self, leases: &[Lease]) -> Result<(), StepError> {
        for lease in leases.iter().filter(|lease| lease.state.is_live() && lease.owner == self.pool.owner()) {
            tracing::info!(lease = %lease.id, "returning the lease of a claim that is gone");
            self.release(lease.id).await?;
        }
        Ok(())
    }

    /// Renews the claim's lease when a quarter of its time is over.
    async fn renew(&self, view: &ClaimView, leases: &[Lease]) -> Result<(), StepError> {
        let Some(lease) = leases.iter().find(|lease| lease.state.is_live()) else { return Ok(()) };
        if view.wanted().is_none() {
            return Ok(());
        }
        let before = self.memories().get(&view.uid).and_then(|attempts| attempts.renewed);
        let is_fresh = before.is_some_and(|(id, at)| {
            id == lease.id && at.elapsed().as_millis() < u128::from(lease.request.ttl_ms / 4)
        });
        if is_fresh {
            return Ok(());
        }
        let began = Instant::now();
        match self.pool.renew(lease.id).await {
            Ok(_) => {}
            // It is over: the next look at the leases says so.
            Err(StepError::Pool(ClientError::Refused(detail)))
                if matches!(detail.code, ErrorCode::Gone | ErrorCode::NotFound | ErrorCode::Conflict) => {}
            Err(error) => return Err(error),
        }
        self.memories().entry(view.uid.clone()).or_default().renewed = Some((lease.id, began));
        Ok(())
    }

    fn memory(&self, view: &ClaimView, leases: &[Lease]) -> Memory {
        let mut memories = self.memories();
        let attempts = memories.entry(view.uid.clone()).or_default();
        let waits = |lease: &Lease| lease.state == LeaseState::Pending && lease.granted_ms.is_none();
        if !leases.iter().any(waits) {
            attempts.waiting_since = None;
        } else {
            attempts.waiting_since.get_or_insert_with(Instant::now);
        }
        let waited = attempts.waiting_since.map_or(0, |since| since.elapsed().as_millis());
        let allocation = view.allocation.as_ref().map(|allocation| create_key(view, allocation, 0));
        let refused = attempts.refused.as_ref().filter(|(refused, _)| Some(refused) == allocation.as_ref());
        Memory {
            waited_ms: u64::try_from(waited).unwrap_or(u64::MAX),
            refusal: refused.map(|(_, words)| words.clone()),
        }
    }

    /// Does it. Tells whether what follows still makes sense.
    async fn act(&self, view: &ClaimView, action: Action) -> Result<bool, StepError> {
        match action {
            Action::AddFinalizer => self.write(view, Write::AddFinalizer).await,
            Action::RemoveFinalizer => self.write(view, Write::RemoveFinalizer).await,
            Action::Say(word) => self.write(view, Write::Say(&word)).await,
            Action::ReturnLease { lease } => {
                tracing::info!(claim = %view.uid, %lease, "returning the lease of a claim");
                self.release(lease).await?;
                Ok(true)
            }
            Action::CreateLease { key, request } => self.create(view, key, *request).await,
        }
    }

    async fn release(&self, lease: LeaseId) -> Result<(), StepError> {
        match self.pool.release(lease).await {
            Ok(_) => Ok(()),
            Err(StepError::Pool(ClientError::Refused(detail))) if detail.code == ErrorCode::NotFound => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn create(&self, view: &ClaimView, key: String, request: LeaseRequest) -> Result<bool, StepError> {
        for attempt in 0..KEYS_MAX {
            let key = if attempt == 0 { key.clone() } else { format!("{key}-{attempt}") };
            match self.pool.create(request.clone(), key).await {
                Ok(lease) if lease.state.is_live() => {
                    tracing::info!(claim = %view.uid, lease = %lease.id, state = ?lease.state, "lease of a claim");
                    return Ok(true);
                }
                // The lease that this key made is over.
                Ok(_) => {}
                Err(StepError::Pool(ClientError::Refused(detail))) => match detail.code {
                    ErrorCode::Gone | ErrorCode::IdempotencyConflict => {}
                    ErrorCode::BadRequest
                    | ErrorCode::Forbidden
                    | ErrorCode::Conflict
                    | ErrorCode::TooMany
                    | ErrorCode::NotFound => {
                        tracing::warn!(claim = %view.uid, reason = detail.message, "the pool refuses a claim");
                        self.refused(view, detail.message);
                        return Ok(true);
                    }
                    _ => return Err(StepError::Pool(ClientError::Refused(detail))),
                },
                Err(error) => return Err(error),
            }
        }
        Err(StepError::Restless)
    }

    fn refused(&self, view: &ClaimView, words: String) {
        if let Some(allocation) = &view.allocation {
            let key = create_key(view, allocation, 0);
            self.memories().entry(view.uid.clone()).or_default().refused = Some((key, words));
        }
    }

    /// Writes into a claim as it was seen. If it has changed meanwhile, it is read again and everything decided anew.
    async fn write(&self, view: &ClaimView, what: Write<'_>) -> Result<bool, StepError> {
        let Some(mut claim) = self.claims.get(&view.uid) else { return Ok(false) };
        let api = self.api(&view.namespace);
        let params = PostParams::default();
        let written = match what {
            Write::AddFinalizer => {
                add_finalizer(&mut claim);
                api.replace(&view.name, &params, &claim).await
            }
            Write::RemoveFinalizer => {
                remove_finalizer(&mut claim);
                api.replace(&view.name, &params, &claim).await
            }
            Write::Say(word) => {
                write_word(&mut claim, word, &Time(Timestamp::now()));
                api.replace_status(&view.name, &params, &claim).await
            }
        };
        match written {
            Ok(claim) => {
                self.claims.put(claim);
                Ok(true)
            }
            Err(error) if is_conflict(&error) || is_not_found(&error) => {
                match api.get_opt(&view.name).await? {
                    Some(found) if found.metadata.uid.as_ref() == Some(&view.uid) => self.claims.put(found),
                    _ => self.claims.forget(&view.uid),
                }
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}

enum Write<'a> {
    AddFinalizer,
    RemoveFinalizer,
    Say(&'a Word),
}
