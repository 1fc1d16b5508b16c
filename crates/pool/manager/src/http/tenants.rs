//! Tenants and their borrowers.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use pool::{Answer, Command};
use pool_api::{Borrower, Name, Page, TenantRecord, TenantRequest, TenantStatus};
use pool_auth::Permission;

use super::Api;
use super::errors::{OfOneThing, Refusals};
use super::extract::{Body, Path, Query};
use super::list::{ListQuery, page, until_new};
use crate::books::Books;
use crate::claim::{Caller, Claim};
use crate::desk::{Asked, Audited, Needs};
use crate::problem::Problem;
use crate::waiters::Topic;

/// List tenants, by name
#[utoipa::path(get, path = "/v1/tenants", tag = "tenants", params(ListQuery),
    responses((status = 200, body = Page<TenantStatus>), Refusals))]
pub(super) async fn list(
    State(api): State<Api>,
    claim: Claim,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<TenantStatus>>, Problem> {
    query.check()?;
    let after: Option<Name> = query.after()?;
    let asked = Asked {
        claim,
        action: "tenant.list",
        target: "tenant".to_owned(),
        needs: Needs::Permission(Permission::ReadEverything),
        audited: Audited::Denials,
    };
    let (seen, wait) = (query.version, Duration::from_millis(query.wait_ms));
    let look = move |books: &mut Books, _: &Caller| {
        let version = books.ledger.version();
        let tenants = books.ledger.tenants(after.as_ref());
        Ok((version, page(tenants, query.limit, version, |tenant| tenant.name.to_string())))
    };
    until_new(&api, asked, Topic::Anything, seen, wait, look).await.map(Json)
}

/// Show a tenant and what it has
///
/// Users see their own.
#[utoipa::path(get, path = "/v1/tenants/{name}", tag = "tenants", params(("name" = Name, Path)),
    responses((status = 200, body = TenantStatus), OfOneThing, Refusals))]
pub(super) async fn show(
    State(api): State<Api>,
    claim: Claim,
    Path(name): Path<Name>,
) -> Result<Json<TenantStatus>, Problem> {
    let asked = Asked {
        claim,
        action: "tenant.show",
        target: format!("tenant/{name}"),
        needs: Needs::Either(Permission::ReadOwnLeases, Permission::ReadEverything),
        audited: Audited::Denials,
    };
    let show = move |books: &mut Books, caller: &Caller| {
        if !caller.role().may(Permission::ReadEverything) && caller.identity.tenant() != Some(name.as_str()) {
            return Err(Problem::forbidden("this is another tenant"));
        }
        books.ledger.tenant_status(&name).ok_or_else(|| Problem::not_found(format!("tenant {name}")))
    };
    api.desk.read(asked, show).await.map(Json)
}

/// Set the quotas and the weight of a tenant
#[utoipa::path(put, path = "/v1/tenants/{name}", tag = "tenants", request_body = TenantRequest,
    params(("name" = Name, Path)), responses((status = 200, body = TenantRecord), Refusals))]
pub(super) async fn set(
    State(api): State<Api>,
    claim: Claim,
    Path(name): Path<Name>,
    Body(request): Body<TenantRequest>,
) -> Result<Json<TenantRecord>, Problem> {
    let asked = Asked {
        claim,
        action: "tenant.set",
        target: format!("tenant/{name}"),
        needs: Needs::Permission(Permission::ManageTenants),
        audited: Audited::Changes,
    };
    let set = move |books: &mut Books, _: &Caller| match books.apply(&Command::SetTenant { name, request })? {
        Answer::Tenant(record) => Ok(record),
        other => Err(Problem::internal(format!("the ledger answered {other:?}"))),
    };
    api.desk.change(asked, set).await.map(Json)
}

/// List who borrows
#[utoipa::path(get, path = "/v1/borrowers", tag = "tenants", params(ListQuery),
    responses((status = 200, body = Page<Borrower>), Refusals))]
pub(super) async fn borrowers(
    State(api): State<Api>,
    claim: Claim,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<Borrower>>, Problem> {
    query.check()?;
    let asked = Asked {
        claim,
        action: "borrower.list",
        target: "borrower".to_owned(),
        needs: Needs::Permission(Permission::ReadEverything),
        audited: Audited::Denials,
    };
    let (seen, wait) = (query.version, Duration::from_millis(query.wait_ms));
    let look = move |books: &mut Books, _: &Caller| {
        let version = books.ledger.version();
        let mut borrowers: BTreeMap<&str, Borrower> = BTreeMap::new();
        for lease in books.ledger.leases(None).filter(|lease| lease.state.is_live()) {
            let borrower = borrowers.entry(&lease.owner).or_insert_with(|| Borrower {
                owner: lease.owner.clone(),
                tenants: Vec::new(),
                leases_granted: 0,
                leases_pending: 0,
                gpus: 0,
            });
            if !borrower.tenants.contains(&lease.tenant) {
                borrower.tenants.push(lease.tenant.clone());
            }
            let is_granted = lease.state == pool_api::LeaseState::Granted;
            borrower.leases_granted += u64::from(is_granted);
            borrower.leases_pending += u64::from(!is_granted);
            borrower.gpus += lease.grants.len() as u64;
        }
        let after = query.after.as_deref().unwrap_or_default();
        let borrowers = borrowers.into_values().filter(|borrower| borrower.owner.as_str() > after);
        Ok((version, page(borrowers, query.limit, version, |borrower| borrower.owner.clone())))
    };
    until_new(&api, asked, Topic::Anything, seen, wait, look).await.map(Json)
}
