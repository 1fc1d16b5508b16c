//! Leases that leave their GPUs unused.

use axum::Json;
use axum::extract::State;
use pool_api::IdleLease;
use pool_auth::Permission;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use super::errors::Refusals;
use super::extract::Query;
use crate::books::Books;
use crate::claim::{Caller, Claim};
use crate::desk::{Asked, Audited, Needs};
use crate::problem::Problem;

/// How long they must have been idle.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct IdleQuery {
    /// Only those that have been idle for at least so long.
    #[serde(default)]
    #[param(default = 0)]
    at_least_ms: u64,
}

/// List leases whose GPUs compute nothing, those that are idle for longest first
///
/// Tenants see their own. It is known from the reports of boxes to the manager that leads now: after a change of leader the
/// times begin anew.
#[utoipa::path(get, path = "/v1/idle", tag = "leases", params(IdleQuery),
    responses((status = 200, body = Vec<IdleLease>), Refusals))]
pub(super) async fn idle(
    State(api): State<Api>,
    claim: Claim,
    Query(query): Query<IdleQuery>,
) -> Result<Json<Vec<IdleLease>>, Problem> {
    let asked = Asked {
        claim,
        action: "lease.idle",
        target: "pool".to_owned(),
        needs: Needs::Either(Permission::ReadOwnLeases, Permission::ReadEverything),
        audited: Audited::Denials,
    };
    let look = move |books: &mut Books, caller: &Caller| {
        let everybody = caller.role().may(Permission::ReadEverything);
        let mut idle = books.ledger.idle_leases(query.at_least_ms);
        idle.retain(|idle| everybody || caller.identity.tenant() == Some(idle.tenant.as_str()));
        Ok(idle)
    };
    api.desk.read(asked, look).await.map(Json)
}
