//! What the pool has, and what tenants have used.

use axum::Json;
use axum::extract::State;
use pool_api::{Capacity, Name, Page, TenantUsage};
use pool_auth::Permission;

use super::Api;
use super::errors::Refusals;
use super::extract::Query;
use super::list::{ListQuery, page};
use crate::books::Books;
use crate::claim::{Caller, Claim};
use crate::desk::{Asked, Audited, Needs};
use crate::problem::Problem;

fn asked(claim: Claim, action: &'static str) -> Asked {
    Asked {
        claim,
        action,
        target: "pool".to_owned(),
        needs: Needs::Either(Permission::ReadOwnLeases, Permission::ReadEverything),
        audited: Audited::Denials,
    }
}

fn own_tenant(caller: &Caller) -> Result<Option<Name>, Problem> {
    Ok(caller.identity.tenant().map(Name::new).transpose()?)
}

/// Show what there is of each model, what is free, and what the caller's tenant may have
#[utoipa::path(get, path = "/v1/capacity", tag = "tenants",
    responses((status = 200, body = Vec<Capacity>), Refusals))]
pub(super) async fn capacity(State(api): State<Api>, claim: Claim) -> Result<Json<Vec<Capacity>>, Problem> {
    let look = |books: &mut Books, caller: &Caller| Ok(books.ledger.capacity(own_tenant(caller)?.as_ref()));
    api.desk.read(asked(claim, "capacity.show"), look).await.map(Json)
}

/// List the GPU time of tenants, by name
///
/// Tenants see their own.
#[utoipa::path(get, path = "/v1/usage", tag = "tenants", params(ListQuery),
    responses((status = 200, body = Page<TenantUsage>), Refusals))]
pub(super) async fn usage(
    State(api): State<Api>,
    claim: Claim,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<TenantUsage>>, Problem> {
    query.check()?;
    let after: Option<Name> = query.after()?;
    let look = move |books: &mut Books, caller: &Caller| {
        let own = own_tenant(caller)?;
        let everybody = caller.role().may(Permission::ReadEverything);
        let mut all = books.ledger.usage(after.as_ref());
        all.retain(|usage| everybody || own.as_ref() == Some(&usage.tenant));
        let version = books.ledger.version();
        Ok(page(all.into_iter(), query.limit, version, |usage| usage.tenant.to_string()))
    };
    api.desk.read(asked(claim, "usage.list"), look).await.map(Json)
}
