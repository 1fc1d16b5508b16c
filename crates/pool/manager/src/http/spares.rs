//! Spares.

use axum::Json;
use axum::extract::State;
use pool::{Answer, Command, plan_spares};
use pool_api::{Model, Page, SparePlan, SparePlanRequest, SpareRecord, SpareRequest, SpareStatus};
use pool_auth::Permission;

use super::Api;
use super::errors::Refusals;
use super::extract::{Body, Path};
use crate::books::Books;
use crate::claim::{Caller, Claim};
use crate::desk::{Asked, Audited, Needs};
use crate::problem::Problem;

/// List the spares of every model
#[utoipa::path(get, path = "/v1/spares", tag = "spares",
    responses((status = 200, body = Page<SpareStatus>), Refusals))]
pub(super) async fn list(State(api): State<Api>, claim: Claim) -> Result<Json<Page<SpareStatus>>, Problem> {
    let asked = Asked {
        claim,
        action: "spare.list",
        target: "spare".to_owned(),
        needs: Needs::Permission(Permission::ReadPool),
        audited: Audited::Denials,
    };
    let list = |books: &mut Books, _: &Caller| {
        Ok(Page { items: books.ledger.spares(), next: None, version: books.ledger.version() })
    };
    api.desk.read(asked, list).await.map(Json)
}

/// Set how many spares of a model there shall be
#[utoipa::path(put, path = "/v1/spares/{model}", tag = "spares", request_body = SpareRequest,
    params(("model" = Model, Path)), responses((status = 200, body = SpareRecord), Refusals))]
pub(super) async fn set(
    State(api): State<Api>,
    claim: Claim,
    Path(model): Path<Model>,
    Body(request): Body<SpareRequest>,
) -> Result<Json<SpareRecord>, Problem> {
    let asked = Asked {
        claim,
        action: "spare.set",
        target: format!("spare/{model}"),
        needs: Needs::Permission(Permission::OperateGpus),
        audited: Audited::Changes,
    };
    let set =
        move |books: &mut Books, _: &Caller| match books.apply(&Command::SetSpares { model, request })? {
            Answer::Spare(record) => Ok(record),
            other => Err(Problem::internal(format!("the ledger answered {other:?}"))),
        };
    api.desk.change(asked, set).await.map(Json)
}

/// Work out how many spares a pool needs
#[utoipa::path(post, path = "/v1/spares/plan", tag = "spares", request_body = SparePlanRequest,
    responses((status = 200, body = SparePlan), Refusals))]
pub(super) async fn plan(
    State(api): State<Api>,
    claim: Claim,
    Body(request): Body<SparePlanRequest>,
) -> Result<Json<SparePlan>, Problem> {
    let asked = Asked {
        claim,
        action: "spare.plan",
        target: "spare".to_owned(),
        needs: Needs::Permission(Permission::ReadPool),
        audited: Audited::Denials,
    };
    // The thread with the books checks the permission; the sum itself would only hold it up.
    api.desk.read(asked, |_, _| Ok(())).await?;
    let planned = tokio::task::spawn_blocking(move || plan_spares(&request)).await;
    Ok(Json(planned.map_err(|_| Problem::internal("working it out failed"))??))
}
