//! The API: every route, and the document that describes them all.
//!
//! A handler reads what was sent, hands one job to the thread that owns the books, and writes what comes back. Routes
//! and their description are one thing: a handler that is not described cannot be routed.

mod access;
mod audit;
mod boxes;
mod capacity;
mod document;
mod errors;
mod events;
mod extract;
mod gpus;
mod history;
mod hosts;
mod idle;
mod layers;
mod leases;
mod list;
mod pages;
mod probes;
mod refusals;
mod reports;
mod revocations;
mod sessions;
mod spares;
mod survival;
mod tenants;
mod unique;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use pool_auth::Authority;
use pool_store::Store;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::clock::Clock;
use crate::desk::Desk;
use crate::door::Door;
use crate::history::History;
use crate::readiness::Readiness;
use crate::status::Status;
use crate::tries::Tries;

/// What handlers share.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) desk: Desk,
    pub(crate) status: Arc<Status>,
    pub(crate) door: Door,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) certificate_life: Duration,
    pub(crate) authority: Arc<Authority>,
    pub(crate) document: Arc<str>,
    pub(crate) history: Arc<Mutex<History>>,
    pub(crate) tries: Arc<Mutex<Tries>>,
}

impl Api {
    /// How long a machine's certificate lasts.
    fn certificate_life_ms(&self) -> u64 {
        u64::try_from(self.certificate_life.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The largest request: a report of 64 GPUs with everything in it is a tenth of that.
const BODY_BYTES_MAX: usize = 1 << 20;

fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(document::head())
        .routes(routes!(leases::list, leases::create))
        .routes(routes!(leases::show, leases::release))
        .routes(routes!(leases::renew))
        .routes(routes!(leases::explain))
        .routes(routes!(leases::tokens))
        .routes(routes!(survival::lost))
        .routes(routes!(survival::move_lease))
        .routes(routes!(survival::moved))
        .routes(routes!(survival::drill))
        .routes(routes!(survival::drilled))
        .routes(routes!(survival::suspend))
        .routes(routes!(survival::parked))
        .routes(routes!(survival::resume))
        .routes(routes!(survival::show_protection, survival::set_protection))
        .routes(routes!(gpus::list))
        .routes(routes!(gpus::show))
        .routes(routes!(gpus::taint))
        .routes(routes!(gpus::untaint))
        .routes(routes!(gpus::drain))
        .routes(routes!(gpus::repair))
        .routes(routes!(gpus::break_gpu))
        .routes(routes!(boxes::list))
        .routes(routes!(boxes::show, boxes::remove))
        .routes(routes!(boxes::report))
        .routes(routes!(refusals::tell))
        .routes(routes!(boxes::drain))
        .routes(routes!(boxes::undrain))
        .routes(routes!(boxes::cordon))
        .routes(routes!(hosts::list))
        .routes(routes!(hosts::show, hosts::set))
        .routes(routes!(hosts::report))
        .routes(routes!(tenants::list))
        .routes(routes!(tenants::show, tenants::set))
        .routes(routes!(tenants::borrowers))
        .routes(routes!(capacity::capacity))
        .routes(routes!(capacity::usage))
        .routes(routes!(idle::idle))
        .routes(routes!(spares::list))
        .routes(routes!(spares::set))
        .routes(routes!(spares::plan))
        .routes(routes!(events::list))
        .routes(routes!(audit::list))
        .routes(routes!(audit::books))
        .routes(routes!(access::join))
        .routes(routes!(access::renew_certificate))
        .routes(routes!(access::return_member))
        .routes(routes!(revocations::list, revocations::revoke))
        .routes(routes!(access::list_tokens, access::make_token))
        .routes(routes!(access::revoke_token))
        .routes(routes!(access::rotate_lease_key))
        .routes(routes!(access::whoami))
        .routes(routes!(sessions::show, sessions::log_in, sessions::log_out))
        .routes(routes!(history::history))
        .routes(routes!(probes::healthz))
        .routes(routes!(probes::readyz))
        .routes(routes!(probes::metrics))
        .routes(routes!(probes::openapi))
}

/// The document alone, as JSON.
pub fn openapi() -> serde_json::Value {
    document::finished(&routes().into_openapi())
}

pub(crate) fn router(api: Api) -> axum::Router {
    let (router, _) = routes().split_for_parts();
    let status = api.status.clone();
    router
        .merge(pages::routes())
        .fallback(errors::no_such_path)
        .method_not_allowed_fallback(errors::no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(api)
        .layer(axum::middleware::from_fn_with_state(status, layers::around))
}
