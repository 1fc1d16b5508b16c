//! What was revoked, and revoking.

use axum::Json;
use axum::extract::State;
use pool_api::{Page, RevocationDone, RevocationInfo, RevocationRequest};
use pool_auth::{Permission, Subject, SubjectError};

use super::Api;
use super::errors::{OfOneThing, Refusals};
use super::extract::{Body, Query};
use super::list::{PageQuery, page};
use crate::books::Books;
use crate::claim::{Caller, Claim};
use crate::desk::{Asked, Audited, Needs};
use crate::problem::Problem;
use crate::revocation;

/// Revoke a token, a machine, a borrower, a tenant, a lease or a certificate
///
/// What it opened is refused from the answer on, by every manager, and boxes are told. Leases that were asked for with it
/// end, and with them the programs that use them; tokens and machines that were let in with a token go with it. Operators
/// revoke boxes and hosts; the rest is for admins.
#[utoipa::path(post, path = "/v1/revocations", tag = "access", request_body = RevocationRequest,
    responses((status = 200, body = RevocationDone), OfOneThing, Refusals))]
pub(super) async fn revoke(
    State(api): State<Api>,
    claim: Claim,
    Body(request): Body<RevocationRequest>,
) -> Result<Json<RevocationDone>, Problem> {
    request.check()?;
    let subject: Subject =
        request.subject.parse().map_err(|error: SubjectError| Problem::bad_request(error.to_string()))?;
    let asked = Asked {
        claim,
        action: "access.revoke",
        target: subject.to_string(),
        needs: Needs::Either(Permission::ManageAccess, Permission::OperateGpus),
        audited: Audited::Always,
    };
    let act = move |books: &mut Books, caller: &Caller| revocation::revoke(books, caller, subject, &request);
    api.desk.change(asked, act).await.map(Json)
}

/// List what was revoked and would still count otherwise
#[utoipa::path(get, path = "/v1/revocations", tag = "access", params(PageQuery),
    responses((status = 200, body = Page<RevocationInfo>), Refusals))]
pub(super) async fn list(
    State(api): State<Api>,
    claim: Claim,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<RevocationInfo>>, Problem> {
    query.check()?;
    let asked = Asked {
        claim,
        action: "access.revocations",
        target: "revocation".to_owned(),
        needs: Needs::Permission(Permission::ReadAudit),
        audited: Audited::Denials,
    };
    let list = move |books: &mut Books, _: &Caller| {
        let mut entries: Vec<RevocationInfo> = books
            .access
            .denied()
            .iter()
            .map(|denial| RevocationInfo {
                subject: denial.subject.to_string(),
                since_ms: denial.since_ms,
                until_ms: denial.until_ms,
                by: denial.by.clone(),
                reason: denial.reason.clone(),
            })
            .filter(|entry| entry.subject > query.after)
            .collect();
        entries.sort_by(|a, b| a.subject.cmp(&b.subject));
        Ok(page(entries.into_iter(), query.limit, books.ledger.version(), |entry| entry.subject.clone()))
    };
    api.desk.read(asked, list).await.map(Json)
}
