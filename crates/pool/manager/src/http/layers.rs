//! What happens around every request: a time limit, a count, a line in the log, and the way to the leader.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use pool_api::{PROTOCOL, PROTOCOL_HEADER, check_protocol};

use super::extract::{BODY_TIMEOUT, LATE_BODY};
use crate::door::Guest;
use crate::problem::{Problem, RedirectTo};
use crate::server::Peer;
use crate::status::Status;

/// Longer than the longest long poll.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(75);

/// Strangers may send so much before they are refused, and are few.
const SMALL_BODY_BYTES: usize = 16 << 10;

pub(super) async fn around(State(status): State<Arc<Status>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let guest = request.extensions().get::<Peer>().map(|peer| peer.guest.clone());
    let _asking = guest.as_ref().map(Guest::asks);
    let is_http1 = request.version() <= Version::HTTP_11;
    let method = name_of(request.method());
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let mut response = match tokio::time::timeout(REQUEST_TIMEOUT, answer(request, next)).await {
        Ok(response) => response,
        Err(_) => Problem::unavailable("the request took too long").into_response(),
    };
    response.headers_mut().insert(PROTOCOL_HEADER, HeaderValue::from(PROTOCOL));
    if is_http1 && guest.is_some_and(|guest| guest.ends_soon()) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(RedirectTo(Some(leader))) = response.extensions_mut().remove::<RedirectTo>()
        && let Ok(location) = HeaderValue::from_str(&format!("{leader}{path}"))
    {
        // 307 keeps method and body, so any client that follows it asks the same of the leader.
        *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
        response.headers_mut().insert(header::LOCATION, location);
    }
    // What is shown may be about tenants; nothing on the way may keep it.
    response.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let code = response.status().as_u16();
    status.requested(&route, method, code);
    let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    if response.status().is_server_error() && response.status() != StatusCode::SERVICE_UNAVAILABLE {
        tracing::error!(route, method, code, took_us, "a request failed");
    } else {
        tracing::debug!(route, method, code, took_us, "request");
    }
    response
}

async fn answer(request: Request, next: Next) -> Response {
    let request = match with_small_body(request).await {
        Ok(request) => request,
        Err(problem) => return problem.into_response(),
    };
    let said = request.headers().get(PROTOCOL_HEADER).map(|value| value.to_str().unwrap_or("?"));
    match check_protocol(said) {
        Ok(()) => next.run(request).await,
        Err(detail) => Problem::new(detail.code, detail.message, detail.hint).into_response(),
    }
}

/// A request whose body is here, if that is small.
///
/// A refusal needs no body. But a connection of HTTP/1 on which an answer has overtaken a body cannot be used any more: hyper ends it,
/// and a client that has sent its next request meanwhile gets no answer.
async fn with_small_body(request: Request) -> Result<Request, Problem> {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = length.and_then(|length| length.parse::<usize>().ok());
    if length.is_none_or(|length| length > SMALL_BODY_BYTES) {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, SMALL_BODY_BYTES)).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(parts, Body::from(bytes))),
        _ => Err(Problem::bad_request(LATE_BODY)),
    }
}

/// Methods are few; what a client makes up is counted as one.
fn name_of(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        _ => "OTHER",
    }
}
