//! How the manager says no: a code for programs, a sentence for people, and what to do about it.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pool_api::{ErrorAnswer, ErrorCode, Invalid};

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Problem {
    /// For programs.
    pub(crate) code: ErrorCode,
    /// For people.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) hint: String,
    /// Where to ask instead.
    pub(crate) leader: Option<String>,
}

impl Problem {
    /// This is wrong; this may help.
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: hint.into(), leader: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadRequest, message, "the document at /openapi.json says what can be sent")
    }

    pub(crate) fn not_found(what: impl std::fmt::Display) -> Self {
        Self::new(
            ErrorCode::NotFound,
            format!("there is no {what}"),
            "check the name against the list of what there is",
        )
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(
            ErrorCode::Forbidden,
            message,
            "use a credential whose role allows it, or ask an admin of the pool",
        )
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unavailable, message, "try again, with the same idempotency key")
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Internal, message, "the manager's log says more; please report it")
    }

    /// Another manager leads, or none does.
    pub(crate) fn not_leading(leader: Option<String>) -> Self {
        match leader {
            Some(address) => Self {
                leader: Some(address.clone()),
                ..Self::new(ErrorCode::NotLeader, "another manager leads", address)
            },
            None => {
                Self::new(ErrorCode::Unavailable, "no manager leads at the moment", "try again in a second")
            }
        }
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::bad_request(invalid.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = ErrorAnswer::new(self.code, self.message, self.hint);
        let mut response = (status, axum::Json(body)).into_response();
        let headers = response.headers_mut();
        match self.code {
            ErrorCode::Unauthenticated => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"dxpu\""));
            }
            ErrorCode::Unavailable | ErrorCode::TooMany => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        // The address alone; the path is added where the request is known.
        response.extensions_mut().insert(RedirectTo(self.leader));
        response
    }
}

/// Tells the outermost layer to send the client elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct RedirectTo(pub(crate) Option<String>);
