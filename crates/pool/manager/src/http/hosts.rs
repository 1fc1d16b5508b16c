//! Hosts of the PCIe plane.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use pool::{Answer, Command};
use pool_api::{HostDetail, HostOrders, HostRecord, HostReport, HostRequest, HostWant, Name, Page};
use pool_auth::{Identity, Permission};

use super::Api;
use super::errors::{OfOneThing, Refusals};
use super::extract::{Body, Path, Query};
use super::list::{ListQuery, page, until_new};
use super::reports::{self, Heard, ReportQuery};
use crate::access::Access;
use crate::books::Books;
use crate::claim::{Caller, Claim};
use crate::copies;
use crate::desk::{Asked, Audited, Needs};
use crate::problem::Problem;
use crate::waiters::Topic;

/// List hosts, by name
#[utoipa::path(get, path = "/v1/hosts", tag = "hosts", params(ListQuery),
    responses((status = 200, body = Page<HostRecord>), Refusals))]
pub(super) async fn list(
    State(api): State<Api>,
    claim: Claim,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<HostRecord>>, Problem> {
    query.check()?;
    let after: Option<Name> = query.after()?;
    let asked = Asked {
        claim,
        action: "host.list",
        target: "host".to_owned(),
        needs: Needs::Permission(Permission::ReadPool),
        audited: Audited::Denials,
    };
    let (seen, wait) = (query.version, Duration::from_millis(query.wait_ms));
    let look = move |books: &mut Books, _: &Caller| {
        let version = books.ledger.version();
        let hosts = books.ledger.hosts(after.as_ref());
        Ok((version, page(hosts, query.limit, version, |record| record.name.to_string())))
    };
    until_new(&api, asked, Topic::Anything, seen, wait, look).await.map(Json)
}

/// Show a host with its slots
///
/// A host sees itself.
#[utoipa::path(get, path = "/v1/hosts/{name}", tag = "hosts", params(("name" = Name, Path)),
    responses((status = 200, body = HostDetail), OfOneThing, Refusals))]
pub(super) async fn show(
    State(api): State<Api>,
    claim: Claim,
    Path(name): Path<Name>,
) -> Result<Json<HostDetail>, Problem> {
    let asked = Asked {
        claim,
        action: "host.show",
        target: format!("host/{name}"),
        needs: Needs::Either(Permission::ReadPool, Permission::ReportOwnHost),
        audited: Audited::Denials,
    };
    let show = move |books: &mut Books, caller: &Caller| {
        if !caller.role().may(Permission::ReadPool) {
            caller.require_is(&Identity::Host(name.to_string()))?;
        }
        books.ledger.host_detail(&name).ok_or_else(|| Problem::not_found(format!("host {name}")))
    };
    api.desk.read(asked, show).await.map(Json)
}

/// Say whose leases may be plugged into a host
///
/// What is plugged there already stays.
#[utoipa::path(put, path = "/v1/hosts/{name}", tag = "hosts", request_body = HostRequest,
    params(("name" = Name, Path)), responses((status = 200, body = HostRecord), OfOneThing, Refusals))]
pub(super) async fn set(
    State(api): State<Api>,
    claim: Claim,
    Path(name): Path<Name>,
    Body(request): Body<HostRequest>,
) -> Result<Json<HostRecord>, Problem> {
    request.check()?;
    let asked = Asked {
        claim,
        action: "host.set",
        target: format!("host/{name}"),
        needs: Needs::Permission(Permission::OperateGpus),
        audited: Audited::Changes,
    };
    let set =
        move |books: &mut Books, _: &Caller| match books.apply(&Command::SetHost { host: name, request })? {
            Answer::Host(record) => Ok(record),
            other => Err(Problem::internal(format!("the ledger answered {other:?}"))),
        };
    api.desk.change(asked, set).await.map(Json)
}

/// Tell how a host is, and be told what should be
///
/// Only the host itself may. All of it may be lost or repeated.
#[utoipa::path(post, path = "/v1/hosts/{name}/report", tag = "hosts", request_body = HostReport,
    params(("name" = Name, Path), ReportQuery),
    responses((status = 200, body = HostOrders), OfOneThing, Refusals))]
pub(super) async fn report(
    State(api): State<Api>,
    claim: Claim,
    Path(name): Path<Name>,
    Query(query): Query<ReportQuery>,
    Body(report): Body<HostReport>,
) -> Result<Json<HostOrders>, Problem> {
    report.check()?;
    let asked = Asked {
        claim,
        action: "host.report",
        target: format!("host/{name}"),
        needs: Needs::Permission(Permission::ReportOwnHost),
        audited: Audited::Refusals,
    };
    let topic = Topic::Host(name.clone());
    let take = move |books: &mut Books, caller: &Caller| {
        caller.require_is(&Identity::Host(name.to_string()))?;
        copies::watch(books, caller, &report.agent, report.sequence);
        let agent = report.agent.clone();
        let command = Command::ReportHost { host: name.clone(), report };
        let Answer::HostOrders(mut orders) = books.apply(&command)? else {
            return Err(Problem::internal("the ledger answered a report with something else"));
        };
        seal(&mut orders, &books.access);
        orders.tenure = books.tenure;
        let is_known = books.told.is_known_to_host(&name, &agent, &orders);
        Ok(Heard { report_after_ms: orders.report_after_ms, is_known, orders })
    };
    reports::answer(&api, asked, query, topic, take).await
}

/// Fills in what only managers know.
fn seal(orders: &mut HostOrders, access: &Access) {
    for order in &mut orders.slots {
        if let HostWant::Plug { lease, gpu, epoch, secret, .. } = &mut order.want {
            *secret = access.link_secret(gpu, *epoch, *lease);
        }
    }
}
