//! What the pool looked like over the last hour and the last day.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use locks::lock;
use pool_api::Name;
use pool_auth::Permission;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::errors::Refusals;
use super::extract::Query;
use crate::books::Books;
use crate::claim::{Caller, Claim};
use crate::desk::{Asked, Audited, Needs};
use crate::history::{Point, Reason, Span};
use crate::problem::Problem;

/// How far back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HistorySpan {
    /// In steps of 10 seconds; of 2 minutes for the time before this manager led.
    Hour,
    /// In steps of 2 minutes.
    #[default]
    Day,
}

/// Which history.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryQuery {
    /// How far back.
    #[serde(default)]
    #[param(value_type = Option<HistorySpan>)]
    span: HistorySpan,
    /// Of this tenant; of the whole pool, if left out.
    #[param(value_type = Option<Name>)]
    tenant: Option<Name>,
    /// Only steps that began later.
    #[serde(default)]
    #[param(default = 0)]
    after_ms: u64,
}

/// The history of a pool or of one tenant.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct HistoryAnswer {
    /// The manager's clock.
    now_ms: u64,
    /// The length of the span that was asked for.
    span_ms: u64,
    /// Since when managers of this pool know anything; nothing before the first look.
    #[serde(skip_serializing_if = "Option::is_none")]
    since_ms: Option<u64>,
    /// Tenants that had or wanted a GPU, as far as the caller may see them.
    tenants: Vec<Name>,
    /// Steps, oldest first. The last one is not over yet.
    points: Vec<HistoryPoint>,
}

/// Means over one step. What the caller may not see, and what no GPU has reported, is left out.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct HistoryPoint {
    /// When the step began.
    at_ms: u64,
    /// How long it is.
    span_ms: u64,
    /// GPUs of the pool; left out for a tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpus: Option<f32>,
    /// GPUs that a lease could have had; left out for a tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    free: Option<f32>,
    /// GPUs that leases had. A share counts as its part.
    leased: f32,
    /// Utilisation, of the GPUs that report one.
    #[serde(skip_serializing_if = "Option::is_none")]
    utilization_pct: Option<f32>,
    /// Activity of multiprocessors, of the GPUs that report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    sm_activity_pct: Option<f32>,
    /// Memory in use, of the GPUs that report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_used_bytes: Option<f32>,
    /// Memory that these GPUs have.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<f32>,
    /// Leases that waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<f32>,
    /// The same by reason: `quota`, `queue` (others come first), `leased`, `cleaning`, `out` (broken, tainted, or in a
    /// box that is dead or drained), `spare`, `together` (free, but not enough together), `none_fits`, `not_examined`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    reasons: BTreeMap<&'static str, f32>,
}

/// Two digits behind the point: sums of single precision have no more to say.
fn rounded(value: f32) -> f32 {
    (value * 100.0).round() / 100.0
}

impl HistoryPoint {
    /// Of the pool, as those see it who see all tenants.
    fn of_pool(point: &Point) -> Self {
        let mean = &point.mean;
        Self { gpus: Some(rounded(mean.gpus)), free: Some(rounded(mean.free)), ..Self::of_tenant(point) }
    }

    /// Of the pool, as tenants see it: how many GPUs there are and are free, which `GET /v1/capacity` tells them too.
    fn totals(point: &Point) -> Self {
        Self {
            utilization_pct: None,
            sm_activity_pct: None,
            memory_used_bytes: None,
            memory_bytes: None,
            waiting: None,
            reasons: BTreeMap::new(),
            ..Self::of_pool(point)
        }
    }

    fn of_tenant(point: &Point) -> Self {
        let mean = &point.mean;
        let measured = |value: f32| (mean.memory_of > 0.0).then_some(value.round());
        let by_reason = Reason::ALL.iter().zip(mean.reasons).filter(|(_, count)| *count > 0.0);
        Self {
            at_ms: point.at_ms,
            span_ms: point.span_ms,
            gpus: None,
            free: None,
            leased: rounded(mean.leased),
            utilization_pct: mean.utilisation_pct().map(rounded),
            sm_activity_pct: mean.sm_activity_pct().map(rounded),
            memory_used_bytes: measured(mean.memory_used),
            memory_bytes: measured(mean.memory_of),
            waiting: Some(rounded(mean.waiting)),
            reasons: by_reason.map(|(reason, count)| (reason.as_str(), rounded(count))).collect(),
        }
    }
}

/// Show utilisation, memory, leased and free GPUs and the queue, over the last hour or day
///
/// Tenants see their own, and of the pool how many GPUs there were and were free.
#[utoipa::path(get, path = "/v1/history", tag = "tenants", params(HistoryQuery),
    responses((status = 200, body = HistoryAnswer), Refusals))]
pub(super) async fn history(
    State(api): State<Api>,
    claim: Claim,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<HistoryAnswer>, Problem> {
    let asked = Asked {
        claim,
        action: "history.show",
        target: "pool".to_owned(),
        needs: Needs::Either(Permission::ReadOwnLeases, Permission::ReadEverything),
        audited: Audited::Denials,
    };
    let history = api.history.clone();
    let look = move |books: &mut Books, caller: &Caller| {
        let everybody = caller.role().may(Permission::ReadEverything);
        let is_own = |tenant: &Name| caller.identity.tenant() == Some(tenant.as_str());
        if let Some(tenant) = query.tenant.as_ref().filter(|tenant| !everybody && !is_own(tenant)) {
            return Err(Problem::forbidden(format!("you cannot see tenant {tenant}")));
        }
        let shown = match (&query.tenant, everybody) {
            (Some(_), _) => HistoryPoint::of_tenant,
            (None, true) => HistoryPoint::of_pool,
            (None, false) => HistoryPoint::totals,
        };
        let span = match query.span {
            HistorySpan::Hour => Span::Hour,
            HistorySpan::Day => Span::Day,
        };
        let history = lock(&history);
        let points = history.points(span, query.tenant.as_ref(), books.now_ms, query.after_ms);
        let mut tenants = history.tenants();
        tenants.retain(|tenant| everybody || is_own(tenant));
        Ok(HistoryAnswer {
            now_ms: books.now_ms,
            span_ms: span.ms(),
            since_ms: history.since_ms(),
            tenants,
            points: points.iter().map(shown).collect(),
        })
    };
    api.desk.read(asked, look).await.map(Json)
}
