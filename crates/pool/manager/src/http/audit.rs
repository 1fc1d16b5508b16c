//! The audit trail.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use pool_api::{AuditBooks, AuditEntry, Page};
use pool_auth::Permission;
use pool_store::Store;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use super::errors::Refusals;
use super::extract::Query;
use crate::audit::{self, OpenAuditError};
use crate::claim::Claim;
use crate::desk::{Asked, Audited, Needs};
use crate::leader::chain;
use crate::problem::Problem;

/// Which part of the trail.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    /// Of which book: `operators`, `machines`, `strangers`, `tenant/NAME`; empty for a trail from before there were
    /// books.
    #[serde(default = "book_default")]
    #[param(max_length = 128, default = "operators")]
    book: String,
    /// How many at most.
    #[serde(default = "limit_default")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: u32,
    /// Begin after the entry with this number.
    #[serde(default)]
    after: u64,
}

/// `tenant/` and the longest name of a tenant are shorter.
const BOOK_CHARS_MAX: usize = 128;

fn book_default() -> String {
    "operators".to_owned()
}

fn limit_default() -> u32 {
    100
}

fn asked(claim: Claim) -> Asked {
    Asked {
        claim,
        action: "audit.list",
        target: "audit".to_owned(),
        needs: Needs::Permission(Permission::ReadAudit),
        audited: Audited::Denials,
    }
}

/// The trail is long and never in memory: it is read from the store, beside the thread that owns the books.
async fn beside<T: Send + 'static>(
    store: Arc<dyn Store>,
    read: impl FnOnce(&dyn Store) -> Result<T, OpenAuditError> + Send + 'static,
) -> Result<T, Problem> {
    let read = tokio::task::spawn_blocking(move || read(&*store)).await;
    let read = read.map_err(|_| Problem::internal("reading the audit trail failed"))?;
    read.map_err(|error| match error {
        OpenAuditError::Store(error) => Problem::unavailable(chain(&error)),
        damaged @ OpenAuditError::Damaged { .. } => Problem::internal(chain(&damaged)),
    })
}

/// List the entries of a book of the audit trail, oldest first
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
    if query.book.chars().count() > BOOK_CHARS_MAX {
        return Err(Problem::bad_request(
            "book: no book has such a long name; `GET /v1/audit/books` lists them",
        ));
    }
    api.desk.read(asked(claim), |_, _| Ok(())).await?;
    let read = move |store: &dyn Store| {
        let AuditQuery { book: name, limit, after } = query;
        let Some(book) = audit::ends(store)?.books.into_iter().find(|book| book.name == name) else {
            return Ok(Page { items: Vec::new(), next: None, version: 0 });
        };
        let from = after.saturating_add(1).max(book.first);
        let to = book.last.min(from.saturating_add(u64::from(limit) - 1));
        let items = if from <= to { audit::entries(store, &name, from, to)? } else { Vec::new() };
        let next = items.last().filter(|last| last.seq < book.last).map(|last| last.seq.to_string());
        Ok(Page { items, next, version: book.last })
    };
    beside(api.store.clone(), read).await.map(Json)
}

/// List the books of the audit trail
///
/// With both ends of each, by which `dxpu audit verify` knows that no entry is missing.
#[utoipa::path(get, path = "/v1/audit/books", tag = "audit",
    responses((status = 200, body = AuditBooks), Refusals))]
pub(super) async fn books(State(api): State<Api>, claim: Claim) -> Result<Json<AuditBooks>, Problem> {
    api.desk.read(asked(claim), |_, _| Ok(())).await?;
    beside(api.store.clone(), audit::ends).await.map(Json)
}
