//! The manager itself: whether it lives, what it counts, what it can be asked.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use pool_auth::Permission;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::errors::Refusals;
use crate::claim::Claim;
use crate::desk::{Asked, Audited, Needs};
use crate::metrics;
use crate::problem::Problem;
use crate::readiness::Ready;

/// How a manager is.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ManagerHealth {
    /// `leading`, `following` or `waiting`.
    standing: &'static str,
    /// Who leads, if it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<String>,
}

fn health(api: &Api) -> ManagerHealth {
    let leader = api.status.leader();
    match (api.status.is_leading(), leader) {
        (true, _) => ManagerHealth { standing: "leading", leader: None },
        (false, Some(leader)) => ManagerHealth { standing: "following", leader: Some(leader) },
        (false, None) => ManagerHealth { standing: "waiting", leader: None },
    }
}

/// Whether the process lives
#[utoipa::path(get, path = "/healthz", tag = "manager", security(()), responses((status = 200, body = ManagerHealth)))]
pub(super) async fn healthz(State(api): State<Api>) -> Json<ManagerHealth> {
    Json(health(&api))
}

/// Whether requests can be served, here or where this manager sends them
///
/// Looked at when it is asked: a leader by its store, another by whether the leader answers it.
#[utoipa::path(get, path = "/readyz", tag = "manager", security(()),
    responses((status = 200, body = ManagerHealth), (status = 503, body = pool_api::ErrorAnswer)))]
pub(super) async fn readyz(State(api): State<Api>) -> Result<Json<ManagerHealth>, Problem> {
    match api.readiness.look(&api.status).await {
        Ready::Leading => Ok(Json(ManagerHealth { standing: "leading", leader: None })),
        Ready::Following(leader) => Ok(Json(ManagerHealth { standing: "following", leader: Some(leader) })),
        Ready::No(why) => Err(Problem::unavailable(why)),
    }
}

/// Metrics for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "manager",
    responses((status = 200, body = String, content_type = "text/plain; version=0.0.4; charset=utf-8"), Refusals))]
pub(super) async fn metrics(State(api): State<Api>, claim: Claim) -> Result<Response, Problem> {
    let asked = Asked {
        claim,
        action: "metrics.read",
        target: "metrics".to_owned(),
        needs: Needs::Permission(Permission::ReadMetrics),
        audited: Audited::Denials,
    };
    let text = metrics::gather(&api, asked).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

/// This document
#[utoipa::path(get, path = "/openapi.json", tag = "manager", security(()),
    responses((status = 200, body = serde_json::Value, content_type = "application/json")))]
pub(super) async fn openapi(State(api): State<Api>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], api.document.to_string()).into_response()
}
