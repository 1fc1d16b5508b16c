//! Who did what.

use axum::Json;
use axum::extract::State;
use pool_api::{AuditEntry, Page};
use pool_auth::Permission;
use pool_store::{Store, Want};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use super::errors::Refusals;
use super::extract::Query;
use crate::audit::{HEAD_KEY, Head, prefixes};
use crate::claim::Claim;
use crate::desk::{Asked, Audited, Needs};
use crate::leader::chain;
use crate::problem::Problem;

/// Which part of the trail.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    /// How many at most.
    #[serde(default = "limit_default")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: u32,
    /// Begin after the entry with this number.
    #[serde(default)]
    after: u64,
}

fn limit_default() -> u32 {
    100
}

/// List the audit trail, oldest first
#[utoipa::path(get, path = "/v1/audit", tag = "audit", params(AuditQuery),
    responses((status = 200, body = Page<AuditEntry>), Refusals))]
pub(super) async fn list(
    State(api): State<Api>,
    claim: Claim,
    Query(query): Query<AuditQuery>,
) -> Result<Json<Page<AuditEntry>>, Problem> {
    if !(1..=1000).contains(&query.limit) {
        return Err(Problem::bad_request("limit must be 1 to 1000"));
    }
    let asked = Asked {
        claim,
        action: "audit.list",
        target: "audit".to_owned(),
        needs: Needs::Permission(Permission::ReadAudit),
        audited: Audited::Denials,
    };
    api.desk.read(asked, |_, _| Ok(())).await?;
    // The trail is long and never in memory: it is read from the store, beside the thread that owns the books.
    let store = api.store.clone();
    let read = tokio::task::spawn_blocking(move || read(&*store, query)).await;
    let page = read.map_err(|_| Problem::internal("reading the audit trail failed"))?;
    page.map(Json)
}

fn read(store: &dyn Store, query: AuditQuery) -> Result<Page<AuditEntry>, Problem> {
    let unavailable = |error: pool_store::StoreError| Problem::unavailable(chain(&error));
    let head = store.read(HEAD_KEY).map_err(unavailable)?;
    let head = Head::read(head.as_ref().map(|record| record.value.as_slice())).map_err(Problem::internal)?;
    let from = query.after.saturating_add(1).max(head.oldest);
    let limit = query.limit as usize;
    let to = head.seq.min(from.saturating_add(u64::from(query.limit) - 1));
    let mut items: Vec<AuditEntry> = Vec::new();
    if from <= to {
        for prefix in prefixes(from, to) {
            for record in
                store.list(&prefix, Want::Records).and_then(|found| found.records()).map_err(unavailable)?
            {
                let entry: AuditEntry = serde_json::from_slice(&record.value)
                    .map_err(|error| Problem::internal(format!("{} is damaged: {error}", record.key)))?;
                if (from..=to).contains(&entry.seq) && items.len() < limit {
                    items.push(entry);
                }
            }
        }
    }
    let next = items.last().filter(|last| last.seq < head.seq).map(|last| last.seq.to_string());
    Ok(Page { items, next, version: head.seq })
}
