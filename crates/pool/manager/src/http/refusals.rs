//! Borrowers that boxes turned away: boxes decide alone, and the trail tells of it all the same.

use axum::Json;
use axum::extract::State;
use pool::AuditDraft;
use pool_api::{AuditOutcome, Name, RefusalReport, RefusalsHeard};
use pool_auth::{Identity, Permission};

use super::Api;
use super::errors::{OfOneThing, Refusals};
use super::extract::{Body, Path};
use crate::books::Books;
use crate::claim::{Caller, Claim};
use crate::desk::{Asked, Audited, Needs};
use crate::problem::Problem;

/// Tell whom a box has turned away
///
/// Only the box itself may. Each becomes an entry of the audit trail, until there are too many of them.
#[utoipa::path(post, path = "/v1/boxes/{name}/refusals", tag = "boxes", request_body = RefusalReport,
    params(("name" = Name, Path)), responses((status = 200, body = RefusalsHeard), OfOneThing, Refusals))]
pub(super) async fn tell(
    State(api): State<Api>,
    claim: Claim,
    Path(name): Path<Name>,
    Body(report): Body<RefusalReport>,
) -> Result<Json<RefusalsHeard>, Problem> {
    report.check()?;
    let asked = Asked {
        claim,
        action: "box.refusals",
        target: format!("box/{name}"),
        needs: Needs::Permission(Permission::ReportOwnBox),
        audited: Audited::Refusals,
    };
    let write = move |books: &mut Books, caller: &Caller| {
        caller.require_is(&Identity::Box(name.to_string()))?;
        let count = u32::try_from(report.refusals.len()).unwrap_or(u32::MAX);
        for refusal in report.refusals {
            let deed = AuditDraft {
                actor: "anonymous".to_owned(),
                address: format!("box {name}"),
                action: "gpu.attach".to_owned(),
                target: format!("gpu/{name}/{}", refusal.slot),
                outcome: AuditOutcome::Denied,
                detail: refusal.reason,
            };
            books.audit.write(deed, books.now_ms, &mut books.staged);
        }
        Ok(RefusalsHeard { count })
    };
    api.desk.change(asked, write).await.map(Json)
}
