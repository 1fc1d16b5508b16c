//! What the leading controller does, again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Client;
use kube::api::{Api, ListParams};
use kube_claims::{Bind, ClaimView, Devices, PoolView, devices, orphans, uid_of_key};
use pool_api::{Lease, LeaseId, LeaseState};

use crate::claims::{self, Claims};
use crate::error::{ControllerError, StepError, is_not_found};
use crate::pool::Pool;
use crate::publish::Publisher;
use crate::reconcile::Reconciler;
use crate::{Pace, Settings};

/// Claims that are worked on at the same time: each waits for the network most of the time.
const AT_ONCE: usize = 8;

/// Leads whenever it is elected, for ever.
pub(crate) async fn run(
    settings: &Settings,
    client: &Client,
    leads: &(dyn Fn() + Sync),
) -> Result<(), ControllerError> {
    let claims: Api<ResourceClaim> = Api::all(client.clone());
    // Of all errors only this one will not pass by itself.
    if let Err(error) = claims.list(&ListParams::default().limit(1)).await {
        if is_not_found(&error) {
            return Err(ControllerError::NotServed(Box::new(error)));
        }
        tracing::warn!(%error, "the API server does not answer yet");
    }
    loop {
        if let Some(election) = &settings.election {
            election.acquire(client).await;
        }
        tracing::info!("this controller leads");
        leads();
        match &settings.election {
            None => lead(settings, client).await,
            Some(election) => {
                tokio::select! {
                    () = lead(settings, client) => {}
                    () = election.hold(client) => tracing::warn!("this controller leads no more"),
                }
            }
        }
    }
}

async fn lead(settings: &Settings, client: &Client) {
    let claims = Claims::default();
    let api: Api<ResourceClaim> = Api::all(client.clone());
    let pool = Pool::new(&settings.borrower, &settings.viewer);
    let mut work = Work {
        api: &api,
        claims: &claims,
        pool: &pool,
        reconciler: Reconciler::new(client, &claims, &pool, &settings.terms),
        publisher: Publisher::new(client, &settings.nodes),
        seen: BTreeMap::new(),
        leased: BTreeSet::new(),
        later: BTreeSet::new(),
        knows_gpus: false,
        bind: settings.bind,
    };
    // A lease is renewed when a quarter of its time is over, and only a sweep looks at all of them.
    let sweep = settings.pace.sweep.min(Duration::from_millis(settings.terms.ttl_ms / 8));
    let pace = Pace { sweep, ..settings.pace };
    tokio::select! {
        () = claims::watch(&api, &claims) => {}
        () = work.go_on(pace) => {}
    }
}

struct Work<'a> {
    api: &'a Api<ResourceClaim>,
    claims: &'a Claims,
    pool: &'a Pool,
    reconciler: Reconciler<'a>,
    publisher: Publisher<'a>,
    /// The leases of claims, as of the last poll.
    seen: BTreeMap<LeaseId, (LeaseState, u64)>,
    /// The claims that have a live one.
    leased: BTreeSet<String>,
    /// Claims for which something failed; they are looked at again with the next poll.
    later: BTreeSet<String>,
    knows_gpus: bool,
    bind: Bind,
}

impl Work<'_> {
    async fn go_on(&mut self, pace: Pace) {
        let mut poll_due = tokio::time::interval(pace.poll);
        poll_due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut swept: Option<Instant> = None;
        // Slices depend on claims, too: without them the taint of a lost GPU would evict a pod that is to survive.
        while !self.claims.is_listed() {
            self.claims.changed().await;
        }
        loop {
            tokio::select! {
                _ = poll_due.tick() => {
                    told("look at the pool", self.poll().await);
                    if swept.is_none_or(|at| at.elapsed() >= pace.sweep) {
                        swept = Some(Instant::now());
                        told("sweep", self.sweep().await);
                    }
                }
                () = self.claims.changed() => {}
            }
            // A claim is judged by the GPUs that the pool has, so the first poll comes first.
            if self.knows_gpus {
                self.settle().await;
            }
        }
    }

    /// Looks at the pool: publishes its GPUs, and finds the claims whose leases have changed.
    async fn poll(&mut self) -> Result<(), StepError> {
        for uid in std::mem::take(&mut self.later) {
            self.claims.touch(&uid);
        }
        let leases = self.pool.leases().await?;
        let (gpus, boxes) = (self.pool.gpus().await?, self.pool.boxes().await?);
        *self.reconciler.devices.write().unwrap_or_else(PoisonError::into_inner) = Devices::of(&gpus);
        self.knows_gpus = true;
        self.compare(&leases);
        let survivors = self.claims.survivors();
        let (owner, bind) = (self.pool.owner(), self.bind);
        let view =
            PoolView { gpus: &gpus, boxes: &boxes, leases: &leases, owner, survivors: &survivors, bind };
        self.publisher.publish(devices(&view)).await
    }

    fn compare(&mut self, leases: &[Lease]) {
        let mut now = BTreeMap::new();
        self.leased.clear();
        for lease in leases.iter().filter(|lease| lease.owner == self.pool.owner()) {
            let Some(uid) = uid_of_key(&lease.request.label) else { continue };
            let state = (lease.state, lease.version);
            // A lease that waits is looked at with every poll: its patience ends without an event.
            let waits = lease.state == LeaseState::Pending;
            if self.seen.get(&lease.id) != Some(&state) || waits {
                self.claims.touch(uid);
            }
            now.insert(lease.id, state);
            if lease.state.is_live() {
                self.leased.insert(uid.to_owned());
            }
        }
        self.seen = now;
    }

    /// Looks at everything: leases without a claim, claims without a lease, slices that another client of the API server changed.
    async fn sweep(&mut self) -> Result<(), StepError> {
        self.publisher.doubt();
        self.reconciler.forget_refusals();
        // In this order: a claim is there before its lease, and stays until its lease is returned.
        let leases = self.pool.leases().await?;
        let (list, _) = claims::list(self.api).await?;
        let uids: BTreeSet<String> = list.iter().filter_map(|claim| claim.metadata.uid.clone()).collect();
        self.reconciler.retain(|uid| uids.contains(uid));
        self.claims.replace(list);
        for lease in orphans(&leases, self.pool.owner(), |uid| uids.contains(uid)) {
            tracing::info!(%lease, "returning a lease whose claim is not there");
            self.pool.release(lease).await?;
        }
        self.claims.touch_all();
        Ok(())
    }

    /// Works on every claim that has changed.
    async fn settle(&mut self) {
        let dirty: Vec<String> = self.claims.take_dirty().into_iter().collect();
        let concerns = |uid: &String| {
            // Most claims of a cluster are of other drivers.
            let view = self.claims.get(uid).as_ref().and_then(ClaimView::of);
            view.is_some_and(|view| view.allocation.is_some() || view.has_finalizer)
                || self.leased.contains(uid)
        };
        let dirty: Vec<String> = dirty.into_iter().filter(concerns).collect();
        let reconciler = &self.reconciler;
        let failed: Vec<Option<String>> = futures_util::stream::iter(dirty)
            .map(|uid| async move {
                let done = reconciler.reconcile(&uid).await;
                done.err().map(|error| {
                    tracing::warn!(claim = %uid, %error, "cannot settle a claim now; trying again");
                    uid
                })
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        self.later.extend(failed.into_iter().flatten());
    }
}

fn told(what: &str, done: Result<(), StepError>) {
    if let Err(error) = done {
        tracing::warn!(%error, "cannot {what}; trying again");
    }
}
