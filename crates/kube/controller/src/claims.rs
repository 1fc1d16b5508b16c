//! The claims of the cluster, as far as events have told.
//!
//! `watch` lists all claims, then follows their changes. A watch that ends is taken up where it was; one whose place the
//! server has forgotten (410) begins with a new list. An event that comes twice changes nothing, and one that never comes
//! is found by the sweep.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube_claims::{ClaimView, survives};
use tokio::sync::Notify;

/// How long a watch lasts at most. Less than the five minutes after which some load balancers drop a silent connection.
const WATCH_SECONDS: u32 = 240;
/// A watch that has said nothing for so long beyond its end is dead.
const SILENCE_MAX: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 15);
/// How long to wait before the API server is asked again.
const PAUSE: Duration = Duration::from_secs(1);
/// Claims in one page of a list.
const PAGE: u32 = 500;

/// The claims, by UID, and those that the controller's loop has to look at.
#[derive(Default)]
pub(crate) struct Claims {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    known: BTreeMap<String, ResourceClaim>,
    dirty: BTreeSet<String>,
    is_listed: bool,
}

fn uid(claim: &ResourceClaim) -> Option<String> {
    claim.metadata.uid.clone()
}

impl Claims {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is one assignment to a map.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, uid: &str) -> Option<ResourceClaim> {
        self.state().known.get(uid).cloned()
    }

    /// The whole list has been read once.
    pub(crate) fn is_listed(&self) -> bool {
        self.state().is_listed
    }

    /// A claim as the server last showed it.
    pub(crate) fn put(&self, claim: ResourceClaim) {
        if let Some(uid) = uid(&claim) {
            self.state().known.insert(uid, claim);
        }
    }

    /// The claims whose pods go on after a loss.
    pub(crate) fn survivors(&self) -> BTreeSet<String> {
        let state = self.state();
        let views = state.known.values().filter_map(ClaimView::of);
        views.filter(survives).map(|view| view.uid).collect()
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.state().known.remove(uid);
    }

    pub(crate) fn touch(&self, uid: &str) {
        self.state().dirty.insert(uid.to_owned());
        self.changed.notify_one();
    }

    pub(crate) fn touch_all(&self) {
        let mut state = self.state();
        let all: Vec<String> = state.known.keys().cloned().collect();
        state.dirty.extend(all);
        self.changed.notify_one();
    }

    pub(crate) fn take_dirty(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.state().dirty)
    }

    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes a fresh list over: what differs is looked at, and what is gone too.
    pub(crate) fn replace(&self, list: Vec<ResourceClaim>) {
        let mut state = self.state();
        let fresh: BTreeMap<String, ResourceClaim> =
            list.into_iter().filter_map(|claim| Some((uid(&claim)?, claim))).collect();
        let version =
            |claim: Option<&ResourceClaim>| claim.map(|claim| claim.metadata.resource_version.clone());
        let all: BTreeSet<String> = fresh.keys().chain(state.known.keys()).cloned().collect();
        let differs = |uid: &String| version(fresh.get(uid)) != version(state.known.get(uid));
        let changed: Vec<String> = all.into_iter().filter(differs).collect();
        state.dirty.extend(changed);
        state.known = fresh;
        state.is_listed = true;
        self.changed.notify_one();
    }

    fn event(&self, event: WatchEvent<ResourceClaim>) -> Seen {
        let (claim, is_gone) = match event {
            WatchEvent::Added(claim) | WatchEvent::Modified(claim) => (claim, false),
            WatchEvent::Deleted(claim) => (claim, true),
            WatchEvent::Bookmark(bookmark) => return Seen::At(bookmark.metadata.resource_version),
            WatchEvent::Error(status) => {
                return if status.code == 410 { Seen::Forgotten } else { Seen::Failed(status.message) };
            }
        };
        let version = claim.metadata.resource_version.clone().unwrap_or_default();
        if let Some(uid) = uid(&claim) {
            let mut state = self.state();
            if is_gone {
                state.known.remove(&uid);
            } else {
                state.known.insert(uid.clone(), claim);
            }
            state.dirty.insert(uid);
            self.changed.notify_one();
        }
        Seen::At(version)
    }
}

enum Seen {
    At(String),
    Forgotten,
    Failed(String),
}

/// All claims, and the moment of the list.
pub(crate) async fn list(api: &Api<ResourceClaim>) -> Result<(Vec<ResourceClaim>, String), kube::Error> {
    let mut all = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = api.list(&page).await?;
        let version = list.metadata.resource_version.clone().unwrap_or_default();
        all.extend(list.items);
        match list.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => page = page.continue_token(&next),
            None => return Ok((all, version)),
        }
    }
}

/// Keeps `claims` up to date for ever.
pub(crate) async fn watch(api: &Api<ResourceClaim>, claims: &Claims) {
    let mut version: Option<String> = None;
    loop {
        let from = match version.take() {
            Some(version) => version,
            None => match list(api).await {
                Ok((all, listed)) => {
                    claims.replace(all);
                    listed
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot list the claims; trying again");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        version = follow(api, claims, from).await;
    }
}

/// Follows changes from a moment on. Returns where to go on, or nothing if only a new list helps.
async fn follow(api: &Api<ResourceClaim>, claims: &Claims, from: String) -> Option<String> {
    let params = WatchParams::default().timeout(WATCH_SECONDS);
    let mut version = from;
    let events = match api.watch(&params, &version).await {
        Ok(events) => events,
        Err(error) => {
            tracing::warn!(%error, "cannot watch the claims; listing them again");
            tokio::time::sleep(PAUSE).await;
            return None;
        }
    };
    let mut events = std::pin::pin!(events);
    loop {
        let next = match tokio::time::timeout(SILENCE_MAX, events.next()).await {
            Ok(Some(Ok(event))) => claims.event(event),
            Ok(Some(Err(error))) => {
                tracing::info!(%error, "the watch of claims broke; taking it up again");
                tokio::time::sleep(PAUSE).await;
                return Some(version);
            }
            // A watch ends after a while; that is no fault. A server that ends it at once must not be asked in a loop.
            Ok(None) | Err(_) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                return Some(version);
            }
        };
        match next {
            Seen::At(seen) if !seen.is_empty() => version = seen,
            Seen::At(_) => {}
            Seen::Forgotten => {
                tracing::info!("the server has forgotten where the watch of claims was; listing them again");
                return None;
            }
            Seen::Failed(message) => {
                tracing::warn!(message, "the watch of claims failed; listing them again");
                tokio::time::sleep(PAUSE).await;
                return None;
            }
        }
    }
}
