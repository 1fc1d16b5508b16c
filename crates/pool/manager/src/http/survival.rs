//! Leases whose programs outlive losses: the words of their keepers, and what people ask of them.
//!
//! The holder of a lease, which is any user of its tenant, and operators may say all of it; each of these is in the audit
//! trail. A box admits a borrower by its token and epoch, whatever is said here.

use axum::Json;
use axum::extract::State;
use pool::{Answer, Command};
use pool_api::{
    Drill, DrilledRequest, Lease, LeaseId, LossAnswer, LostRequest, MoveRequest, MovedRequest, ParkedRequest,
    Protection, ProtectionReport,
};
use pool_auth::Permission;

use super::Api;
use super::errors::{OfOneThing, Refusals};
use super::extract::{Body, Path};
use super::leases::{asked, lease_of};
use crate::books::Books;
use crate::claim::{Caller, Claim};
use crate::desk::{Audited, Needs};
use crate::problem::Problem;

const SPEAK: Needs = Needs::Either(Permission::BorrowForOwnTenant, Permission::OperateGpus);
const LOOK: Needs = Needs::Either(Permission::ReadOwnLeases, Permission::ReadEverything);

/// A lease that the caller holds or looks after.
fn in_care(books: &Books, caller: &Caller, id: LeaseId, permission: Permission) -> Result<(), Problem> {
    let lease = books.ledger.lease(id).ok_or_else(|| Problem::not_found(format!("lease {id}")))?;
    if caller.role().may(permission) || caller.identity.tenant() == Some(lease.tenant.as_str()) {
        Ok(())
    } else {
        Err(Problem::forbidden("this lease belongs to another tenant"))
    }
}

/// Does something to a lease that the caller holds or looks after.
async fn say(
    api: &Api,
    claim: Claim,
    action: &'static str,
    id: LeaseId,
    command: impl FnOnce(&Caller) -> Command + Send + 'static,
) -> Result<Json<Lease>, Problem> {
    let asked = asked(claim, action, id, SPEAK, Audited::Changes);
    let act = move |books: &mut Books, caller: &Caller| {
        in_care(books, caller, id, Permission::OperateGpus)?;
        lease_of(books.apply(&command(caller))?)
    };
    api.desk.change(asked, act).await.map(Json)
}

/// Say that a GPU of a lease is lost
///
/// The lease moves at once, if its programs outlive that; its old GPU is cleaned. Send it again when no answer came: the
/// epoch decides. Two words an hour are followed before a box has confirmed one.
#[utoipa::path(post, path = "/v1/leases/{id}/lost", tag = "survival", request_body = LostRequest,
    params(("id" = LeaseId, Path)), responses((status = 200, body = LossAnswer), OfOneThing, Refusals))]
pub(super) async fn lost(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
    Body(request): Body<LostRequest>,
) -> Result<Json<LossAnswer>, Problem> {
    request.check()?;
    let asked = asked(claim, "lease.lost", id, SPEAK, Audited::Changes);
    let act = move |books: &mut Books, caller: &Caller| {
        in_care(books, caller, id, Permission::OperateGpus)?;
        let LostRequest { gpu, epoch, why } = request;
        match books.apply(&Command::Lost { lease: id, gpu, epoch, why })? {
            Answer::Loss(loss) => Ok(*loss),
            other => Err(Problem::internal(format!("the ledger answered {other:?}"))),
        }
    };
    api.desk.change(asked, act).await.map(Json)
}

/// Give a lease a second place, which its program is to go on at
#[utoipa::path(post, path = "/v1/leases/{id}/move", tag = "survival", request_body = MoveRequest,
    params(("id" = LeaseId, Path)), responses((status = 200, body = Lease), OfOneThing, Refusals))]
pub(super) async fn move_lease(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
    Body(request): Body<MoveRequest>,
) -> Result<Json<Lease>, Problem> {
    let MoveRequest { gpu, to_box } = request;
    let command = move |caller: &Caller| {
        let by = caller.identity.to_string();
        Command::Move { lease: id, gpu, to_box, by }
    };
    say(&api, claim, "lease.move", id, command).await
}

/// Say that a program goes on at its second place, or stays where it was
#[utoipa::path(post, path = "/v1/leases/{id}/moved", tag = "survival", request_body = MovedRequest,
    params(("id" = LeaseId, Path)), responses((status = 200, body = Lease), OfOneThing, Refusals))]
pub(super) async fn moved(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
    Body(request): Body<MovedRequest>,
) -> Result<Json<Lease>, Problem> {
    request.check()?;
    let MovedRequest { gpu, epoch, refused } = request;
    let command = move |_: &Caller| match refused {
        None => Command::Moved { lease: id, gpu, epoch },
        Some(why) => Command::Stay { lease: id, gpu, epoch, why },
    };
    say(&api, claim, "lease.moved", id, command).await
}

/// Give a lease a second place for a moment, which its program is to try a recovery on
#[utoipa::path(post, path = "/v1/leases/{id}/drill", tag = "survival", params(("id" = LeaseId, Path)),
    responses((status = 200, body = Lease), OfOneThing, Refusals))]
pub(super) async fn drill(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
) -> Result<Json<Lease>, Problem> {
    say(&api, claim, "lease.drill", id, move |_| Command::Drill { lease: id }).await
}

/// Say how a drill ended
#[utoipa::path(post, path = "/v1/leases/{id}/drilled", tag = "survival", request_body = DrilledRequest,
    params(("id" = LeaseId, Path)), responses((status = 200, body = Lease), OfOneThing, Refusals))]
pub(super) async fn drilled(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
    Body(request): Body<DrilledRequest>,
) -> Result<Json<Lease>, Problem> {
    request.check()?;
    let asked = asked(claim, "lease.drilled", id, SPEAK, Audited::Changes);
    let act = move |books: &mut Books, caller: &Caller| {
        in_care(books, caller, id, Permission::OperateGpus)?;
        let DrilledRequest { gpu, epoch, took_ms, difference, refused } = request;
        let why = match (&refused, &difference) {
            (Some(why), _) => format!("there was no drill: {why}"),
            (None, Some(difference)) => format!("the copy differed: {difference}"),
            (None, None) => format!("the recovery took {took_ms} ms, and the copy was the same"),
        };
        let lease = lease_of(books.apply(&Command::Stay { lease: id, gpu: gpu.clone(), epoch, why })?)?;
        let drill = Drill { at_ms: books.now_ms, gpu, epoch, took_ms, difference, refused };
        books.protections.drilled(id, drill, &books.ledger);
        Ok(lease)
    };
    api.desk.change(asked, act).await.map(Json)
}

/// Want the program of a lease to be kept as an image, without a GPU
#[utoipa::path(post, path = "/v1/leases/{id}/suspend", tag = "survival", params(("id" = LeaseId, Path)),
    responses((status = 200, body = Lease), OfOneThing, Refusals))]
pub(super) async fn suspend(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
) -> Result<Json<Lease>, Problem> {
    say(&api, claim, "lease.suspend", id, move |_| Command::Suspend { lease: id }).await
}

/// Say that the program of a lease is kept as an image, or cannot be
#[utoipa::path(post, path = "/v1/leases/{id}/parked", tag = "survival", request_body = ParkedRequest,
    params(("id" = LeaseId, Path)), responses((status = 200, body = Lease), OfOneThing, Refusals))]
pub(super) async fn parked(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
    Body(request): Body<ParkedRequest>,
) -> Result<Json<Lease>, Problem> {
    request.check()?;
    let ParkedRequest { gpu, epoch, image_bytes, refused } = request;
    let command = move |_: &Caller| match refused {
        None => Command::Park { lease: id, gpu, epoch, image_bytes },
        Some(why) => Command::KeepRunning { lease: id, why },
    };
    say(&api, claim, "lease.parked", id, command).await
}

/// Ask for GPUs for a parked lease again
#[utoipa::path(post, path = "/v1/leases/{id}/resume", tag = "survival", params(("id" = LeaseId, Path)),
    responses((status = 200, body = Lease), OfOneThing, Refusals))]
pub(super) async fn resume(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
) -> Result<Json<Lease>, Problem> {
    say(&api, claim, "lease.resume", id, move |_| Command::Resume { lease: id }).await
}

/// Say how well the program of a lease is protected
///
/// The manager that leads keeps it in memory.
#[utoipa::path(put, path = "/v1/leases/{id}/protection", tag = "survival", request_body = ProtectionReport,
    params(("id" = LeaseId, Path)), responses((status = 200, body = Protection), OfOneThing, Refusals))]
pub(super) async fn set_protection(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
    Body(report): Body<ProtectionReport>,
) -> Result<Json<Protection>, Problem> {
    report.check()?;
    let asked = asked(claim, "lease.protection", id, SPEAK, Audited::Refusals);
    let act = move |books: &mut Books, caller: &Caller| {
        in_care(books, caller, id, Permission::OperateGpus)?;
        books.protections.report(id, report.links, books.now_ms, &books.ledger);
        Ok(books.protections.of(id, books.now_ms))
    };
    api.desk.change(asked, act).await.map(Json)
}

/// Show how well the program of a lease is protected
#[utoipa::path(get, path = "/v1/leases/{id}/protection", tag = "survival", params(("id" = LeaseId, Path)),
    responses((status = 200, body = Protection), OfOneThing, Refusals))]
pub(super) async fn show_protection(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<LeaseId>,
) -> Result<Json<Protection>, Problem> {
    let asked = asked(claim, "lease.protection", id, LOOK, Audited::Denials);
    let look = move |books: &mut Books, caller: &Caller| {
        in_care(books, caller, id, Permission::ReadEverything)?;
        Ok(books.protections.of(id, books.now_ms))
    };
    api.desk.read(asked, look).await.map(Json)
}
