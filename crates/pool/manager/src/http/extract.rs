//! What was sent, read strictly; what is wrong with it is told as every other problem is.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use pool_api::ErrorCode;
use pool_auth::BearerToken;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::unique;
use crate::claim::{Claim, ShownToken};
use crate::clock::system_now_ms;
use crate::problem::Problem;
use crate::server::Peer;
use crate::session::{CSRF_HEADER, Sent, Session};

/// A body is at most a megabyte. A caller that takes longer than this to send it keeps a stream open for nothing.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(20);
pub(super) const LATE_BODY: &str = "the body did not come in time: send all of it at once";

/// A JSON body.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let read = tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, state)).await;
        let Ok(read) = read else {
            return Err(Problem::bad_request(LATE_BODY));
        };
        let bytes = read.map_err(|rejection| {
            let too_large = rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE;
            let code = if too_large { ErrorCode::TooLarge } else { ErrorCode::BadRequest };
            Problem::new(code, "the body cannot be read", "send less than a megabyte, and all of it")
        })?;
        if !is_json {
            return Err(Problem::bad_request("the body must be JSON, with content-type application/json"));
        }
        // A list would be read as the fields in their order, which no caller means.
        if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            return Err(Problem::bad_request("the body must be a JSON object"));
        }
        parse(&bytes).map(Self)
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    unique::check(bytes)
        .map_err(|error| Problem::bad_request(format!("the body cannot be read: {error}")))?;
    serde_json::from_slice(bytes).or_else(|error| {
        // To JSON 5.0 is a whole number; to Rust it is not. Few write it so, and only they pay for the second reading.
        let whole = serde_json::from_slice(bytes).map(wholes_as_integers);
        let read = whole.ok().and_then(|value| serde_json::from_value(value).ok());
        read.ok_or_else(|| Problem::bad_request(format!("the body is not what it should be: {error}")))
    })
}

fn wholes_as_integers(value: Value) -> Value {
    /// Beyond this a float is not one number but several.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && (0.0..=EXACT_MAX).contains(&float) => {
                Value::from(float as u64)
            }
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(wholes_as_integers).collect(),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, wholes_as_integers(value))).collect())
        }
        other => other,
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

/// The part of an address behind the question mark.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        axum::extract::Query::try_from_uri(&parts.uri)
            .map(|axum::extract::Query(query)| Self(query))
            .map_err(|rejection| Problem::bad_request(rejection.body_text()))
    }
}

/// The variable parts of a path.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(path)| Self(path))
            .map_err(|rejection| Problem::bad_request(rejection.body_text()))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Claim {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let peer = parts.extensions.get::<Peer>();
        let peer = peer.ok_or_else(|| Problem::internal("a connection without a peer"))?.clone();
        let shown = parts.headers.get(header::AUTHORIZATION).map(|value| {
            let text = value.to_str().ok();
            let token = text
                .and_then(|text| text.strip_prefix("Bearer "))
                .and_then(|text| BearerToken::parse(text.trim()));
            token.map_or(ShownToken::Nonsense, ShownToken::Token)
        });
        let shown = match shown {
            Some(shown) => Some(shown),
            None => session_of(parts)?,
        };
        // The handshake has checked it; a connection may live longer than the certificate it began with.
        let is_over = |certified: &pool_auth::Certified| system_now_ms() >= certified.not_after_ms;
        if shown.is_none() && peer.certificate.as_ref().is_some_and(is_over) {
            return Err(Problem::new(
                ErrorCode::Unauthenticated,
                "the time of this certificate is over",
                "connect again with a new one",
            ));
        }
        Ok(Self { certificate: peer.certificate, bearer: shown, address: peer.address, guest: peer.guest })
    }
}

/// The token of a browser's session, if the request carries one and our own page sent it.
fn session_of(parts: &Parts) -> Result<Option<ShownToken>, Problem> {
    let mut cookies = parts.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let Some(session) = cookies.find_map(Session::in_cookies) else { return Ok(None) };
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let sent = Sent {
        changes: !parts.method.is_safe(),
        host: parts.uri.authority().map(|authority| authority.as_str()).or_else(|| text("host")),
        origin: text("origin"),
        fetch_site: text("sec-fetch-site"),
        csrf: text(CSRF_HEADER),
    };
    match session.check(&sent) {
        Ok(()) => Ok(Some(ShownToken::Token(session.into_token()))),
        Err(forged) => {
            let path = parts.uri.path();
            tracing::warn!(%forged, path, "a request with a session's cookie did not come from the dashboard");
            Err(Problem::new(
                ErrorCode::Forbidden,
                format!("this request did not come from the dashboard: {forged}"),
                "open the dashboard of this manager, and do it there; programs show a token as `Authorization: Bearer …`",
            ))
        }
    }
}

/// The key by which a request that is sent twice is done once.
pub(crate) struct IdempotencyKey(pub(crate) Option<String>);

/// Long enough for anything random.
const KEY_BYTES_MAX: usize = 128;

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Some(value) = parts.headers.get("idempotency-key") else { return Ok(Self(None)) };
        let bytes = value.as_bytes();
        let is_fine = (1..=KEY_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic);
        if !is_fine {
            let problem =
                format!("an idempotency key is 1 to {KEY_BYTES_MAX} printable characters without spaces");
            return Err(Problem::bad_request(problem));
        }
        Ok(Self(Some(String::from_utf8_lossy(bytes).into_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool_api::{LeaseRequest, SparePlanRequest};

    #[test]
    fn a_whole_number_may_be_written_as_a_float() {
        let request: LeaseRequest = parse(br#"{"gpus": 2.0, "share": null, "ttl_ms": 5e3}"#).unwrap();
        assert_eq!((request.gpus, request.ttl_ms), (2, 5000));
        let plan: SparePlanRequest =
            parse(br#"{"gpus":1.0,"failures_pct_per_year":6,"repair_days":5.5,"cover_pct":99.9}"#).unwrap();
        assert_eq!((plan.gpus, plan.repair_days), (1, 5.5));
        for twice in [
            r#"{"gpus": 1, "gpus": 2}"#,
            r#"{"gpus": 1, "gpus": 2.0}"#,
            r#"{"gpus": 1, "g\u0070us": 2}"#,
            r#"{"share": {"milli": 1, "milli": 1000, "memory_bytes": 1}}"#,
        ] {
            let problem = parse::<LeaseRequest>(twice.as_bytes()).unwrap_err();
            assert!(problem.message.contains("is there twice"), "{twice}: {}", problem.message);
        }
        let quotas = r#"{"quotas": {"H200": {"guaranteed": 1}, "H200": {"guaranteed": 1000}}}"#;
        assert!(parse::<pool_api::TenantRequest>(quotas.as_bytes()).is_err());
        for bad in [r#"{"gpus": 2.5}"#, r#"{"gpus": -1.0}"#, r#"{"gpus": 1e300}"#, r#"{"gpus": "2"}"#] {
            assert!(parse::<LeaseRequest>(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
