//! The dashboard's place.
//!
//! Replaced by the dashboard: until it is built in, this page says where the API is. [`routes`] is the hook: the files
//! of the dashboard are served from here, below `/`, without authentication; what they show they ask of the API.

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::Api;

const PLACEHOLDER: &str = include_str!("placeholder.html");

pub(super) fn routes() -> Router<Api> {
    Router::new().route("/", get(index))
}

async fn index() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'self'; style-src 'self' 'unsafe-inline'"),
    ];
    (headers, PLACEHOLDER).into_response()
}
