//! One of several controllers leads: the one whose name is in a Lease object of `coordination.k8s.io`.
//!
//! The leader writes the object every third of its time. Another controller takes it when it has seen the same object for
//! all of that time, by its own clock: clocks of different machines are never compared. A leader that cannot write for two
//! thirds of the time stops before another one can begin. Even if both lead for a moment, the claims' resource versions and
//! the leases' idempotency keys keep them from doing harm.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};

use crate::error::is_conflict;

/// How controllers agree on the one that leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    /// The namespace of the Lease object.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// This controller's name in it; no other has the same.
    pub identity: String,
    /// How long a leader may be silent.
    pub ttl: Duration,
}

impl Election {
    fn api(&self, client: &Client) -> Api<Lease> {
        Api::namespaced(client.clone(), &self.namespace)
    }

    /// Returns when this controller leads.
    pub(crate) async fn acquire(&self, client: &Client) {
        let api = self.api(client);
        let mut watched: Option<(Lease, Instant)> = None;
        loop {
            match self.try_take(&api, &mut watched).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "cannot read or write the leader's Lease; trying again"),
            }
            tokio::time::sleep(self.ttl / 6).await;
        }
    }

    async fn try_take(
        &self,
        api: &Api<Lease>,
        watched: &mut Option<(Lease, Instant)>,
    ) -> Result<bool, kube::Error> {
        let Some(found) = api.get_opt(&self.name).await? else {
            let created = api.create(&PostParams::default(), &self.mine(None)).await;
            return won(created);
        };
        let holder = found.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        let is_same = watched.as_ref().is_some_and(|(before, _)| before.spec == found.spec);
        let since = watched.as_ref().filter(|_| is_same).map_or_else(Instant::now, |(_, since)| *since);
        let is_over = since.elapsed() >= ttl_of(&found).unwrap_or(self.ttl);
        if !holder.is_empty() && holder != self.identity && !is_over {
            *watched = Some((found, since));
            return Ok(false);
        }
        won(api.replace(&self.name, &PostParams::default(), &self.mine(Some(&found))).await)
    }

    /// Leads until it cannot any more.
    pub(crate) async fn hold(&self, client: &Client) {
        let api = self.api(client);
        let mut written = Instant::now();
        loop {
            tokio::time::sleep(self.ttl / 3).await;
            let began = Instant::now();
            match tokio::time::timeout(self.ttl / 3, self.renew(&api)).await {
                Ok(Ok(true)) => written = began,
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::warn!(%error, "cannot write the leader's Lease"),
                Err(_) => tracing::warn!("the API server does not answer; the leader's Lease is not written"),
            }
            if written.elapsed() >= self.ttl * 2 / 3 {
                return;
            }
        }
    }

    async fn renew(&self, api: &Api<Lease>) -> Result<bool, kube::Error> {
        let found = api.get(&self.name).await?;
        let holder = found.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        if holder != Some(self.identity.as_str()) {
            return Ok(false);
        }
        won(api.replace(&self.name, &PostParams::default(), &self.mine(Some(&found))).await)
    }

    /// Lets another controller lead at once.
    pub(crate) async fn resign(&self, client: &Client) {
        let api = self.api(client);
        let Ok(mut found) = api.get(&self.name).await else { return };
        let Some(spec) = &mut found.spec else { return };
        if spec.holder_identity.as_deref() == Some(self.identity.as_str()) {
            spec.holder_identity = None;
            let _ = api.replace(&self.name, &PostParams::default(), &found).await;
        }
    }

    fn mine(&self, before: Option<&Lease>) -> Lease {
        let now = MicroTime(Timestamp::now());
        let spec = before.and_then(|before| before.spec.as_ref());
        let is_mine = spec.is_some_and(|spec| spec.holder_identity.as_ref() == Some(&self.identity));
        let acquired = spec.and_then(|spec| spec.acquire_time.clone()).filter(|_| is_mine);
        let transitions = spec.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        let metadata = before.map_or_else(
            || ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            |before| before.metadata.clone(),
        );
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: Some(self.ttl.as_secs().max(1) as i32),
                acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
                renew_time: Some(now),
                lease_transitions: Some(if is_mine { transitions } else { transitions.saturating_add(1) }),
                ..LeaseSpec::default()
            }),
        }
    }
}

fn ttl_of(lease: &Lease) -> Option<Duration> {
    let seconds = lease.spec.as_ref()?.lease_duration_seconds?;
    Some(Duration::from_secs(u64::try_from(seconds).ok()?))
}

/// A write that another controller was quicker with is no error.
fn won(written: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match written {
        Ok(_) => Ok(true),
        Err(error) if is_conflict(&error) => Ok(false),
        Err(error) => Err(error),
    }
}
