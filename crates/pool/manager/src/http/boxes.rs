//! Boxes.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use pool::{Answer, Command};
use pool_api::{BoxDetail, BoxOrders, BoxRecord, BoxReport, GpuId, Name, Page, SlotPass, TaintRequest, Want};
use pool_auth::{Identity, LeaseClaims, Permission};

use super::Api;
use super::errors::{OfOneThing, Refusals};
use super::extract::{Body, Path, Query};
use super::list::{ListQuery, page, until_new};
use super::reports::{self, Heard, ReportQuery};
use crate::access::LEASE_TOKEN_MS;
use crate::books::Books;
use crate::claim::{Caller, Claim};
use crate::copies;
use crate::desk::{Asked, Audited, Needs};
use crate::problem::Problem;
use crate::waiters::Topic;

/// List boxes, by name
#[utoipa::path(get, path = "/v1/boxes", tag = "boxes", params(ListQuery),
    responses((status = 200, body = Page<BoxRecord>), Refusals))]
pub(super) async fn list(
    State(api): State<Api>,
    claim: Claim,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<BoxRecord>>, Problem> {
    query.check()?;
    let after: Option<Name> = query.after()?;
    let asked = Asked {
        claim,
        action: "box.list",
        target: "box".to_owned(),
        needs: Needs::Permission(Permission::ReadPool),
        audited: Audited::Denials,
    };
    let (seen, wait) = (query.version, Duration::from_millis(query.wait_ms));
    let look = move |books: &mut Books, _: &Caller| {
        let version = books.ledger.version();
        let boxes = books.ledger.boxes(after.as_ref());
        Ok((version, page(boxes, query.limit, version, |record| record.name.to_string())))
    };
    until_new(&api, asked, Topic::Anything, seen, wait, look).await.map(Json)
}

/// Show a box with its GPUs
#[utoipa::path(get, path = "/v1/boxes/{name}", tag = "boxes", params(("name" = Name, Path)),
    responses((status = 200, body = BoxDetail), OfOneThing, Refusals))]
pub(super) async fn show(
    State(api): State<Api>,
    claim: Claim,
    Path(name): Path<Name>,
) -> Result<Json<BoxDetail>, Problem> {
    let asked = Asked {
        claim,
        action: "box.show",
        target: format!("box/{name}"),
        needs: Needs::Permission(Permission::ReadPool),
        audited: Audited::Denials,
    };
    let show = move |books: &mut Books, _: &Caller| {
        books.ledger.box_detail(&name).ok_or_else(|| Problem::not_found(format!("box {name}")))
    };
    api.desk.read(asked, show).await.map(Json)
}

/// Tell how a box is, and be told what should be
///
/// Only the box itself may. All of it may be lost or repeated.
#[utoipa::path(post, path = "/v1/boxes/{name}/report", tag = "boxes", request_body = BoxReport,
    params(("name" = Name, Path), ReportQuery), responses((status = 200, body = BoxOrders), OfOneThing, Refusals))]
pub(super) async fn report(
    State(api): State<Api>,
    claim: Claim,
    Path(name): Path<Name>,
    Query(query): Query<ReportQuery>,
    Body(report): Body<BoxReport>,
) -> Result<Json<BoxOrders>, Problem> {
    report.check()?;
    let asked = Asked {
        claim,
        action: "box.report",
        target: format!("box/{name}"),
        needs: Needs::Permission(Permission::ReportOwnBox),
        audited: Audited::Refusals,
    };
    let topic = Topic::Box(name.clone());
    let take = move |books: &mut Books, caller: &Caller| {
        caller.require_is(&Identity::Box(name.to_string()))?;
        copies::watch(books, caller, &report.agent, report.sequence);
        let agent = report.agent.clone();
        let command = Command::Report { box_name: name.clone(), report };
        let Answer::Orders(mut orders) = books.apply(&command)? else {
            return Err(Problem::internal("the ledger answered a report with something else"));
        };
        seal(&mut orders, &name, books)?;
        orders.tenure = books.tenure;
        orders.lease_keys = books.access.public_keys().map(|key| key.to_string()).collect();
        orders.denied_leases = books.access.denied_leases(name.as_str());
        let is_known = books.told.is_known(&name, &agent, &orders);
        Ok(Heard { report_after_ms: orders.report_after_ms, is_known, orders })
    };
    reports::answer(&api, asked, query, topic, take).await
}

/// Fills in what only managers know.
fn seal(orders: &mut BoxOrders, name: &Name, books: &Books) -> Result<(), Problem> {
    for order in &mut orders.slots {
        let Want::Serve { lease, epoch, memory_bytes, share_milli, tenant, pcie: Some(pairing), .. } =
            &mut order.want
        else {
            continue;
        };
        let gpu = GpuId { box_name: name.clone(), slot: order.slot };
        pairing.secret = books.access.link_secret(&gpu, *epoch, *lease);
        let claims = LeaseClaims {
            lease: lease.to_string(),
            tenant: tenant.to_string(),
            box_name: name.to_string(),
            slot: u16::from(order.slot),
            epoch: *epoch,
            memory_bytes: *memory_bytes,
            share_milli: u16::try_from(*share_milli).unwrap_or(1000),
            // Devices that are plugged are not shared.
            class: pool_api::Class::Dedicated,
            slack_percent: None,
            part: None,
            issued_ms: books.now_ms,
            expires_ms: books.now_ms + LEASE_TOKEN_MS,
        };
        pairing.pass = SlotPass::new(books.access.sign(&claims, books.now_ms)?.reveal());
    }
    Ok(())
}

async fn change(
    api: &Api,
    claim: Claim,
    action: &'static str,
    name: Name,
    command: impl FnOnce(Name, &Caller) -> Command + Send + 'static,
) -> Result<Json<BoxRecord>, Problem> {
    let asked = Asked {
        claim,
        action,
        target: format!("box/{name}"),
        needs: Needs::Permission(Permission::OperateGpus),
        audited: Audited::Changes,
    };
    let act = move |books: &mut Books, caller: &Caller| match books.apply(&command(name, caller))? {
        Answer::Box(record) => Ok(record),
        other => Err(Problem::internal(format!("the ledger answered {other:?}"))),
    };
    api.desk.change(asked, act).await.map(Json)
}

/// Empty a box: nothing new goes there, and its leases move away
#[utoipa::path(post, path = "/v1/boxes/{name}/drain", tag = "boxes", request_body = TaintRequest,
    params(("name" = Name, Path)), responses((status = 200, body = BoxRecord), OfOneThing, Refusals))]
pub(super) async fn drain(
    State(api): State<Api>,
    claim: Claim,
    Path(name): Path<Name>,
    Body(request): Body<TaintRequest>,
) -> Result<Json<BoxRecord>, Problem> {
    request.check()?;
    let command = move |box_name, caller: &Caller| Command::DrainBox {
        box_name,
        reason: request.reason,
        by: caller.identity.to_string(),
    };
    change(&api, claim, "box.drain", name, command).await
}

/// Let leases have a box again
#[utoipa::path(post, path = "/v1/boxes/{name}/undrain", tag = "boxes", params(("name" = Name, Path)),
    responses((status = 200, body = BoxRecord), OfOneThing, Refusals))]
pub(super) async fn undrain(
    State(api): State<Api>,
    claim: Claim,
    Path(name): Path<Name>,
) -> Result<Json<BoxRecord>, Problem> {
    change(&api, claim, "box.undrain", name, |box_name, _| Command::UndrainBox { box_name }).await
}

/// Keep new leases from a box; those it has stay
#[utoipa::path(post, path = "/v1/boxes/{name}/cordon", tag = "boxes", request_body = TaintRequest,
    params(("name" = Name, Path)), responses((status = 200, body = BoxRecord), OfOneThing, Refusals))]
pub(super) async fn cordon(
    State(api): State<Api>,
    claim: Claim,
    Path(name): Path<Name>,
    Body(request): Body<TaintRequest>,
) -> Result<Json<BoxRecord>, Problem> {
    request.check()?;
    let command = move |box_name, caller: &Caller| Command::CordonBox {
        box_name,
        reason: request.reason,
        by: caller.identity.to_string(),
    };
    change(&api, claim, "box.cordon", name, command).await
}

/// Take a box off the list that is dead and has nothing of any lease
///
/// It is still a member: revoke it if it must not come back. Should it report again, it is a new box.
#[utoipa::path(delete, path = "/v1/boxes/{name}", tag = "boxes", params(("name" = Name, Path)),
    responses((status = 200, body = BoxRecord), OfOneThing, Refusals))]
pub(super) async fn remove(
    State(api): State<Api>,
    claim: Claim,
    Path(name): Path<Name>,
) -> Result<Json<BoxRecord>, Problem> {
    change(&api, claim, "box.remove", name, |box_name, _| Command::RemoveBox { box_name }).await
}
