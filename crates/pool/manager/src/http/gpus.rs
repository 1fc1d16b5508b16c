//! GPUs.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use pool::{Answer, Command};
use pool_api::{Gpu, GpuId, Name, Page, SLOTS_PER_BOX_MAX, TaintRequest};
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

/// List GPUs, by box and slot
#[utoipa::path(get, path = "/v1/gpus", tag = "gpus", params(ListQuery),
    responses((status = 200, body = Page<Gpu>), Refusals))]
pub(super) async fn list(
    State(api): State<Api>,
    claim: Claim,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<Gpu>>, Problem> {
    query.check()?;
    let after: Option<GpuId> = query.after()?;
    let asked = Asked {
        claim,
        action: "gpu.list",
        target: "gpu".to_owned(),
        needs: Needs::Permission(Permission::ReadPool),
        audited: Audited::Denials,
    };
    let (seen, wait) = (query.version, Duration::from_millis(query.wait_ms));
    let look = move |books: &mut Books, _: &Caller| {
        let version = books.ledger.version();
        let gpus = books.ledger.gpus(after.as_ref());
        Ok((version, page(gpus, query.limit, version, |gpu| gpu.id.to_string())))
    };
    until_new(&api, asked, Topic::Anything, seen, wait, look).await.map(Json)
}

fn id_of((box_name, slot): (Name, u8)) -> Result<GpuId, Problem> {
    if slot >= SLOTS_PER_BOX_MAX {
        return Err(Problem::bad_request(format!("a slot is a number below {SLOTS_PER_BOX_MAX}")));
    }
    Ok(GpuId { box_name, slot })
}

/// Show a GPU
#[utoipa::path(get, path = "/v1/gpus/{box}/{slot}", tag = "gpus",
    params(("box" = Name, Path), ("slot" = u8, Path, maximum = 63)),
    responses((status = 200, body = Gpu), OfOneThing, Refusals))]
pub(super) async fn show(
    State(api): State<Api>,
    claim: Claim,
    Path(place): Path<(Name, u8)>,
) -> Result<Json<Gpu>, Problem> {
    let id = id_of(place)?;
    let asked = Asked {
        claim,
        action: "gpu.show",
        target: format!("gpu/{id}"),
        needs: Needs::Permission(Permission::ReadPool),
        audited: Audited::Denials,
    };
    let show = move |books: &mut Books, _: &Caller| {
        books.ledger.gpu(&id).ok_or_else(|| Problem::not_found(format!("GPU {id}")))
    };
    api.desk.read(asked, show).await.map(Json)
}

/// Does one thing to one GPU.
async fn change(
    api: &Api,
    claim: Claim,
    action: &'static str,
    permission: Permission,
    place: (Name, u8),
    command: impl FnOnce(GpuId, &Caller) -> Command + Send + 'static,
) -> Result<Json<Gpu>, Problem> {
    let id = id_of(place)?;
    let asked = Asked {
        claim,
        action,
        target: format!("gpu/{id}"),
        needs: Needs::Permission(permission),
        audited: Audited::Changes,
    };
    let act = move |books: &mut Books, caller: &Caller| match books.apply(&command(id, caller))? {
        Answer::Gpu(gpu) => Ok(*gpu),
        other => Err(Problem::internal(format!("the ledger answered {other:?}"))),
    };
    api.desk.change(asked, act).await.map(Json)
}

/// Keep a GPU from new leases
#[utoipa::path(post, path = "/v1/gpus/{box}/{slot}/taint", tag = "gpus", request_body = TaintRequest,
    params(("box" = Name, Path), ("slot" = u8, Path, maximum = 63)),
    responses((status = 200, body = Gpu), OfOneThing, Refusals))]
pub(super) async fn taint(
    State(api): State<Api>,
    claim: Claim,
    Path(place): Path<(Name, u8)>,
    Body(request): Body<TaintRequest>,
) -> Result<Json<Gpu>, Problem> {
    keep_back(&api, claim, "gpu.taint", place, request, false).await
}

/// Keeps a GPU from new leases; with `drain` it moves those away that it has.
async fn keep_back(
    api: &Api,
    claim: Claim,
    action: &'static str,
    place: (Name, u8),
    request: TaintRequest,
    drain: bool,
) -> Result<Json<Gpu>, Problem> {
    request.check()?;
    let command = move |gpu, caller: &Caller| Command::Taint {
        gpu,
        reason: request.reason,
        by: caller.identity.to_string(),
        drain,
    };
    change(api, claim, action, Permission::OperateGpus, place, command).await
}

/// Let new leases have a GPU again
#[utoipa::path(post, path = "/v1/gpus/{box}/{slot}/untaint", tag = "gpus",
    params(("box" = Name, Path), ("slot" = u8, Path, maximum = 63)),
    responses((status = 200, body = Gpu), OfOneThing, Refusals))]
pub(super) async fn untaint(
    State(api): State<Api>,
    claim: Claim,
    Path(place): Path<(Name, u8)>,
) -> Result<Json<Gpu>, Problem> {
    let command = |gpu, _: &Caller| Command::Untaint { gpu };
    change(&api, claim, "gpu.untaint", Permission::OperateGpus, place, command).await
}

/// Keep a GPU from new leases, and move those it has away
#[utoipa::path(post, path = "/v1/gpus/{box}/{slot}/drain", tag = "gpus", request_body = TaintRequest,
    params(("box" = Name, Path), ("slot" = u8, Path, maximum = 63)),
    responses((status = 200, body = Gpu), OfOneThing, Refusals))]
pub(super) async fn drain(
    State(api): State<Api>,
    claim: Claim,
    Path(place): Path<(Name, u8)>,
    Body(request): Body<TaintRequest>,
) -> Result<Json<Gpu>, Problem> {
    keep_back(&api, claim, "gpu.drain", place, request, true).await
}

/// Say that a bad GPU is repaired
///
/// It comes back after a burn-in test.
#[utoipa::path(post, path = "/v1/gpus/{box}/{slot}/repair", tag = "gpus",
    params(("box" = Name, Path), ("slot" = u8, Path, maximum = 63)),
    responses((status = 200, body = Gpu), OfOneThing, Refusals))]
pub(super) async fn repair(
    State(api): State<Api>,
    claim: Claim,
    Path(place): Path<(Name, u8)>,
) -> Result<Json<Gpu>, Problem> {
    let command = |gpu, _: &Caller| Command::Repair { gpu };
    change(&api, claim, "gpu.repair", Permission::OperateGpus, place, command).await
}

/// Declare a GPU bad, to see what happens
#[utoipa::path(post, path = "/v1/gpus/{box}/{slot}/break", tag = "gpus", request_body = TaintRequest,
    params(("box" = Name, Path), ("slot" = u8, Path, maximum = 63)),
    responses((status = 200, body = Gpu), OfOneThing, Refusals))]
pub(super) async fn break_gpu(
    State(api): State<Api>,
    claim: Claim,
    Path(place): Path<(Name, u8)>,
    Body(TaintRequest { reason }): Body<TaintRequest>,
) -> Result<Json<Gpu>, Problem> {
    TaintRequest { reason: reason.clone() }.check()?;
    let command = move |gpu, caller: &Caller| {
        let reason =
            if reason.is_empty() { format!("broken on purpose by {}", caller.identity) } else { reason };
        Command::Break { gpu, reason }
    };
    change(&api, claim, "gpu.break", Permission::BreakGpus, place, command).await
}
