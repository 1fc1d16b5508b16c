//! What was sent, read strictly; what is wrong with it is told as every other problem is.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use pool_api::ErrorCode;
use pool_auth::BearerToken;
use serde::de::DeserializeOwned;

use crate::claim::{Claim, ShownToken};
use crate::problem::Problem;
use crate::server::Peer;

/// A JSON body.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            let too_large = rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE;
            let code = if too_large { ErrorCode::TooLarge } else { ErrorCode::BadRequest };
            Problem::new(code, "the body cannot be read", "send less than a megabyte, and all of it")
        })?;
        if !is_json {
            return Err(Problem::bad_request("the body must be JSON, with content-type application/json"));
        }
        // A list would be read as the fields in their order, which nobody means.
        if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            return Err(Problem::bad_request("the body must be a JSON object"));
        }
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|error| Problem::bad_request(format!("the body is not what it should be: {error}")))
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
        Ok(Self { certificate: peer.identity, bearer: shown, address: peer.address })
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
