//! Leases.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use pool::{Answer, Command};
use pool_api::{
    Explanation, Grant, Invalid, Lease, LeaseId, LeaseRequest, LeaseState, LeaseTokens, Name, Page,
    SignedGrant, check_label,
};
use pool_auth::{LeaseClaims, Permission};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use super::errors::{OfOneThing, Refusals};
use super::extract::{Body, IdempotencyKey, Path, Query};
use super::list::{ListQuery, check_wait, page, until_new};
use crate::access::LEASE_TOKEN_MS;
use crate::books::Books;
use crate::claim::{Caller, Claim};
use crate::desk::{Asked, Audited, Needs};
use crate::problem::Problem;
use crate::waiters::Topic;

const READ: Needs = Needs::Either(Permission::ReadOwnLeases, Permission::ReadEverything);
const BORROW: Needs = Needs::Either(Permission::BorrowForOwnTenant, Permission::BorrowForAnybody);

pub(super) fn asked(
    claim: Claim,
    action: &'static str,
    id: LeaseId,
    needs: Needs,
    audited: Audited,
) -> Asked {
    Asked { claim, action, target: format!("lease/{id}"), needs, audited }
}

/// A lease that the caller may see.
fn seen<'a>(books: &'a Books, caller: &Caller, id: LeaseId) -> Result<&'a Lease, Problem> {
    let lease = books.ledger.lease(id).ok_or_else(|| Problem::not_found(format!("lease {id}")))?;
    if caller.role().may(Permission::ReadEverything)
        || caller.identity.tenant() == Some(lease.tenant.as_str())
    {
        Ok(lease)
    } else {
        Err(Problem::forbidden("this lease belongs to another tenant"))
    }
}

/// A lease that the caller may use and end.
fn own(books: &Books, caller: &Caller, id: LeaseId) -> Result<(), Problem> {
    let lease = books.ledger.lease(id).ok_or_else(|| Problem::not_found(format!("lease {id}")))?;
    if caller.role().may(Permission::BorrowForAnybody)
        || caller.identity.tenant() == Some(lease.tenant.as_str())
    {
        Ok(())
    } else {
        Err(Problem::forbidden("this lease belongs to another tenant"))
    }
}

pub(super) fn lease_of(answer: Answer) -> Result<Lease, Problem> {
    match answer {
        Answer::Lease(lease) => Ok(*lease),
        other => Err(Problem::internal(format!("the ledger answered {other:?}"))),
    }
}

/// Which leases.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LeaseFilter {
    /// Only of this tenant.
    #[param(value_type = Option<Name>)]
    tenant: Option<Name>,
    /// Only in this state.
    #[param(value_type = Option<LeaseState>)]
    state: Option<LeaseState>,
    /// Only with this label.
    #[param(min_length = 1, max_length = 128, pattern = "^[!-~]+$")]
    label: Option<String>,
}

/// List leases, in the order of their names
///
/// Tenants see their own.
#[utoipa::path(get, path = "/v1/leases", tag = "leases", params(LeaseFilter, ListQuery),
    responses((status = 200, body = Page<Lease>), Refusals))]
pub(super) async fn list(
    State(api): State<Api>,
    claim: Claim,
    Query(query): Query<LeaseListQuery>,
) -> Result<Json<Page<Lease>>, Problem> {
    let (filter, query) = query.split();
    query.check()?;
    match filter.label.as_deref() {
        Some("") => return Err(Invalid::new("label", "must not be empty").into()),
        Some(label) => check_label(label)?,
        None => {}
    }
    let after: Option<LeaseId> = query.after()?;
    let asked = Asked {
        claim,
        action: "lease.list",
        target: "lease".to_owned(),
        needs: READ,
        audited: Audited::Denials,
    };
    let (seen, wait) = (query.version, Duration::from_millis(query.wait_ms));
    let look = move |books: &mut Books, caller: &Caller| {
        let everybody = caller.role().may(Permission::ReadEverything);
        let version = books.ledger.version();
        let is_shown = |lease: &&Lease| {
            (everybody || caller.identity.tenant() == Some(lease.tenant.as_str()))
                && filter.tenant.as_ref().is_none_or(|tenant| *tenant == lease.tenant)
                && filter.state.is_none_or(|state| state == lease.state)
                && filter.label.as_ref().is_none_or(|label| *label == lease.request.label)
        };
        let leases = books.ledger.leases(after).filter(is_shown).cloned();
        Ok((version, page(leases, query.limit, version, |lease| lease.id.to_string())))
    };
    until_new(&api, asked, Topic::Anything, seen, wait, look).await.map(Json)
}

/// All that can be asked of the list; one struct, because a query is read once.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseListQuery {
    tenant: Option<Name>,
    state: Option<LeaseState>,
    label: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
    #[serde(default)]
    wait_ms: u64,
    version: Option<u64>,
}

impl LeaseListQuery {
    fn split(self) -> (LeaseFilter, ListQuery) {
        let Self { tenant, state, label, limit, after, wait_ms, version } = self;
        (
            LeaseFilter { tenant, state, label },
            ListQuery { limit: limit.unwrap_or(100), after, wait_ms, version },
        )
    }
}

/// Ask for GPUs
///
/// The lease is granted at once or waits. Send an idempotency key, and send the same again when no answer came.
#[utoipa::path(post, path = "/v1/leases", tag = "leases", request_body = LeaseRequest,
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 128, pattern = "^[!-~]+$",
        description = "The same key by the same caller gives the same lease, for a day")),
    responses((status = 201, body = Lease),
        (status = 409, body = pool_api::ErrorAnswer, description = "No GPU of this pool can ever serve it"), (status = 410, body = pool_api::ErrorAnswer, description = "The lease this key made is over"),
        (status = 422, body = pool_api::ErrorAnswer, description = "The key was used for another request"), Refusals))]
pub(super) async fn create(
    State(api): State<Api>,
    claim: Claim,
    IdempotencyKey(idempotency_key): IdempotencyKey,
    Body(request): Body<LeaseRequest>,
) -> Result<(StatusCode, Json<Lease>), Problem> {
    let target =
        request.tenant.as_ref().map_or_else(|| "tenant".to_owned(), |tenant| format!("tenant/{tenant}"));
    let asked = Asked { claim, action: "lease.create", target, needs: BORROW, audited: Audited::Changes };
    let lease = api
        .desk
        .change(asked, move |books, caller| {
            let tenant = tenant_for(caller, request.tenant.as_ref())?;
            let owner = caller.identity.to_string();
            let token = caller.token.clone();
            lease_of(books.apply(&Command::CreateLease { owner, token, tenant, request, idempotency_key })?)
        })
        .await?;
    Ok((StatusCode::CREATED, Json(lease)))
}

/// The tenant of a lease: users borrow for their own tenant; an admin for any that it names, or in its own name.
fn tenant_for(caller: &Caller, asked: Option<&Name>) -> Result<Name, Problem> {
    if caller.role().may(Permission::BorrowForAnybody) {
        return match asked {
            Some(tenant) => Ok(tenant.clone()),
            None => Ok(Name::new(caller.identity.short_name())?),
        };
    }
    let own = caller.identity.tenant().ok_or_else(|| Problem::forbidden("only tenants borrow"))?;
    match asked {
        Some(tenant) if tenant.as_str() != own => {
            Err(Problem::forbidden(format!("{} cannot borrow for tenant {tenant}", caller.identity)))
        }
        _ => Ok(Name::new(own)?),
    }
}

/// Whether to wait.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitQuery {
    /// Wait for so long for the lease to change from `version`; at most half its time to live.
    #[serde(default)]
    #[param(maximum = 30_000, default = 0)]
    wait_ms: u64,
    /// The version that was seen last.
    version: Option<u64>,
}

/// Show a lease, or wait until it changes
///
/// When the borrower asks, this also renews the lease.
#[utoipa::path(get, path = "/v1/leases/{id}", tag = "leases", params(("id" = LeaseId, Path), WaitQuery),
    responses((status = 200, body = Lease), OfOneThing, Refusals))]
pub(super) async fn show(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
    Query(query): Query<WaitQuery>,
) -> Result<Json<Lease>, Problem> {
    check_wait(query.wait_ms)?;
    let began = tokio::time::Instant::now();
    loop {
        let asked = asked(claim.clone(), "lease.show", id, READ, Audited::Denials);
        let (lease, woken) = api
            .desk
            .change(asked, move |books, caller| {
                seen(books, caller, id)?;
                let lease = if own(books, caller, id).is_ok() {
                    lease_of(books.apply(&Command::Look { lease: id })?)?
                } else {
                    seen(books, caller, id)?.clone()
                };
                let waits = query.version == Some(lease.version) && lease.state != LeaseState::Ended;
                let woken = waits.then(|| books.waiters.add(Topic::Lease(id)));
                Ok((lease, woken))
            })
            .await?;
        // The waiting borrower must look again before the lease runs out.
        let wait = Duration::from_millis(query.wait_ms.min(lease.request.ttl_ms / 2));
        let Some(woken) = woken.filter(|_| began.elapsed() < wait) else { return Ok(Json(lease)) };
        if tokio::time::timeout_at(began + wait, woken).await.is_err() {
            return Ok(Json(lease));
        }
    }
}

/// Say that the borrower lives
#[utoipa::path(post, path = "/v1/leases/{id}/renew", tag = "leases", params(("id" = LeaseId, Path)),
    responses((status = 200, body = Lease), OfOneThing, Refusals))]
pub(super) async fn renew(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
) -> Result<Json<Lease>, Problem> {
    let asked = asked(claim, "lease.renew", id, BORROW, Audited::Refusals);
    let renew = move |books: &mut Books, caller: &Caller| {
        own(books, caller, id)?;
        lease_of(books.apply(&Command::Renew { lease: id })?)
    };
    api.desk.change(asked, renew).await.map(Json)
}

/// Give a lease back, or stop waiting for it
#[utoipa::path(delete, path = "/v1/leases/{id}", tag = "leases", params(("id" = LeaseId, Path)),
    responses((status = 200, body = Lease), OfOneThing, Refusals))]
pub(super) async fn release(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
) -> Result<Json<Lease>, Problem> {
    let asked = asked(claim, "lease.release", id, BORROW, Audited::Changes);
    let release = move |books: &mut Books, caller: &Caller| {
        own(books, caller, id)?;
        let is_owner = books.ledger.lease(id).is_some_and(|lease| lease.owner == caller.identity.to_string());
        let reason =
            if is_owner { "released".to_owned() } else { format!("released by {}", caller.identity) };
        lease_of(books.apply(&Command::Release { lease: id, reason })?)
    };
    api.desk.change(asked, release).await.map(Json)
}

/// Explain why a lease waits, and what would let it run
#[utoipa::path(get, path = "/v1/leases/{id}/explain", tag = "leases", params(("id" = LeaseId, Path)),
    responses((status = 200, body = Explanation), OfOneThing, Refusals))]
pub(super) async fn explain(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
) -> Result<Json<Explanation>, Problem> {
    let asked = asked(claim, "lease.explain", id, READ, Audited::Denials);
    let explain = move |books: &mut Books, caller: &Caller| {
        seen(books, caller, id)?;
        books.ledger.explain(id).map_err(|refusal| {
            let detail = refusal.to_answer().error;
            Problem::new(detail.code, detail.message, detail.hint)
        })
    };
    api.desk.read(asked, explain).await.map(Json)
}

/// Get the tokens that open the lease's GPUs
///
/// One for each GPU, to be shown to its box. They open nothing after a day, or once the lease has another epoch.
///
/// With `part`, they are for one of several programs that share the lease: a session with such a token has at most
/// `memory_bytes` of each GPU, and there is one session at a time for each part.
#[utoipa::path(get, path = "/v1/leases/{id}/tokens", tag = "leases", params(("id" = LeaseId, Path), PartQuery),
    responses((status = 200, body = LeaseTokens), OfOneThing, Refusals))]
pub(super) async fn tokens(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
    Query(query): Query<PartQuery>,
) -> Result<Json<LeaseTokens>, Problem> {
    let part = query.part()?;
    let asked = asked(claim, "lease.tokens", id, BORROW, Audited::Refusals);
    let tokens = move |books: &mut Books, caller: &Caller| {
        own(books, caller, id)?;
        sign_all(books, id, part.as_ref())
    };
    api.desk.read(asked, tokens).await.map(Json)
}

/// Which part of a lease.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartQuery {
    /// The name of the part. Programs whose parts are the same up to the first dot share what their box keeps for them.
    #[param(value_type = Option<Name>)]
    part: Option<Name>,
    /// What a session of the part may use of each GPU; with `part`, and only then.
    #[param(minimum = 1)]
    memory_bytes: Option<u64>,
}

/// A part of a lease that tokens are asked for.
struct Part {
    name: Name,
    memory_bytes: u64,
}

impl PartQuery {
    fn part(self) -> Result<Option<Part>, Problem> {
        match (self.part, self.memory_bytes) {
            (None, None) => Ok(None),
            (Some(name), Some(memory_bytes @ 1..)) => Ok(Some(Part { name, memory_bytes })),
            _ => Err(pool_api::Invalid::new("memory_bytes", "must be at least 1, and go with part").into()),
        }
    }
}

fn sign(books: &Books, lease: &Lease, grant: &Grant, part: Option<&Part>) -> Result<SignedGrant, Problem> {
    let gpu = books.ledger.gpu(&grant.gpu).ok_or_else(|| Problem::internal("a granted GPU is gone"))?;
    let share = lease.request.share;
    let holder = gpu.holders.iter().find(|holder| holder.lease == lease.id);
    let memory_bytes = holder.map_or(gpu.memory_bytes, |holder| holder.memory_bytes);
    let claims = LeaseClaims {
        lease: lease.id.to_string(),
        tenant: lease.tenant.to_string(),
        box_name: grant.gpu.box_name.to_string(),
        slot: u16::from(grant.gpu.slot),
        epoch: grant.epoch,
        // A part is never more than the whole.
        memory_bytes: part.map_or(memory_bytes, |part| part.memory_bytes.min(memory_bytes)),
        share_milli: share.map_or(1000, |share| u16::try_from(share.milli).unwrap_or(1000)),
        class: lease.request.class,
        slack_percent: lease.request.slack_percent,
        issued_ms: books.now_ms,
        expires_ms: books.now_ms + LEASE_TOKEN_MS,
        part: part.map(|part| part.name.to_string()),
    };
    Ok(SignedGrant {
        gpu: grant.gpu.clone(),
        epoch: grant.epoch,
        endpoints: grant.endpoints.clone(),
        memory_bytes: claims.memory_bytes,
        token: books.access.sign(&claims, books.now_ms)?.reveal().to_owned(),
    })
}

fn sign_all(books: &Books, id: LeaseId, part: Option<&Part>) -> Result<LeaseTokens, Problem> {
    let lease = books.ledger.lease(id).ok_or_else(|| Problem::not_found(format!("lease {id}")))?;
    if lease.state != LeaseState::Granted {
        return Err(Problem::new(
            pool_api::ErrorCode::Conflict,
            format!("lease {id} has no GPUs at the moment"),
            "wait until its state is granted",
        ));
    }
    if let Some(host) = &lease.request.host {
        return Err(Problem::new(
            pool_api::ErrorCode::Conflict,
            format!("lease {id} is plugged into host {host}: there is nothing to open"),
            "use its GPUs in a guest of that host",
        ));
    }
    let grants =
        lease.grants.iter().map(|grant| sign(books, lease, grant, part)).collect::<Result<_, _>>()?;
    let moving = lease.moving.as_ref().map(|moving| sign(books, lease, &moving.to, part)).transpose()?;
    Ok(LeaseTokens {
        lease: id,
        version: lease.version,
        grants,
        moving,
        ca_certificate: books.access.authority().certificate_pem().to_owned(),
    })
}
