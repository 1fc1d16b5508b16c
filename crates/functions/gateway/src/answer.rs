//! What clients are told: Lambda's codes, headers and bodies.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::json;

/// An answer that is not a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Problem {
    pub(crate) status: u16,
    /// Lambda's name for it, by which clients choose what they raise.
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl Problem {
    pub(crate) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(400, "InvalidParameterValueException", message)
    }

    pub(crate) fn no_function(name: &str) -> Self {
        let message = format!("Function not found: {name}");
        Self::new(404, "ResourceNotFoundException", message)
    }

    pub(crate) fn service(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceException", message)
    }

    pub(crate) fn response(&self) -> Response {
        let who = if self.status < 500 { "User" } else { "Service" };
        let mut response = json_response(
            self.status,
            &json!({"Type": who, "Message": self.message, "message": self.message}),
        );
        set(&mut response, "x-amzn-errortype", self.code);
        response
    }
}

impl From<functions::Invalid> for Problem {
    fn from(invalid: functions::Invalid) -> Self {
        Self::invalid(invalid.what)
    }
}

impl From<crate::keeper::KeepError> for Problem {
    fn from(error: crate::keeper::KeepError) -> Self {
        tracing::warn!(%error, "a request fails because of the store");
        Self::service("the service's store does not answer; try again")
    }
}

pub(crate) fn json_response(status: u16, body: &serde_json::Value) -> Response {
    let mut response = bytes_response(status, body.to_string());
    set(&mut response, "content-type", "application/json");
    response
}

pub(crate) fn bytes_response(status: u16, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// Sets a header; a value that cannot be one is left out.
pub(crate) fn set(response: &mut Response, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
}
