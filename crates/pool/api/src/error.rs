//! How the manager says no.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorAnswer {
    /// What is wrong.
    pub error: ErrorDetail,
}

impl ErrorAnswer {
    /// This is wrong; this may help.
    pub fn new(code: ErrorCode, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { error: ErrorDetail { code, message: message.into(), hint: hint.into() } }
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
    pub message: String,
    /// What to do about it; may be empty.
    pub hint: String,
}

/// What is wrong, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// What was sent is not what it should be.
    BadRequest,
    /// Nobody knows who asks.
    Unauthenticated,
    /// Who asks may not.
    Forbidden,
    /// Who asks was let in once, and has been revoked since.
    Revoked,
    /// There is no such thing.
    NotFound,
    /// There is no such way to ask.
    MethodNotAllowed,
    /// It is not possible in the state things are in.
    Conflict,
    /// The same idempotency key came with another request.
    IdempotencyConflict,
    /// It is over, and will not come back.
    Gone,
    /// More than may be sent at once.
    TooLarge,
    /// More than the pool keeps at once.
    TooMany,
    /// Another manager leads; its address is in the hint.
    NotLeader,
    /// Not now: the manager starts, stops, or its store does not answer. Nothing happened, or the same idempotency key
    /// tells later what did.
    Unavailable,
    /// A mistake in the manager.
    Internal,
}

impl ErrorCode {
    /// Its HTTP status.
    pub fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthenticated => 401,
            Self::Forbidden | Self::Revoked => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::Conflict => 409,
            Self::IdempotencyConflict => 422,
            Self::Gone => 410,
            Self::TooLarge => 413,
            Self::TooMany => 429,
            Self::NotLeader => 421,
            Self::Unavailable => 503,
            Self::Internal => 500,
        }
    }

    /// Whether the same request may succeed later or elsewhere.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::TooMany | Self::NotLeader | Self::Unavailable => true,
            Self::BadRequest
            | Self::Unauthenticated
            | Self::Forbidden
            | Self::Revoked
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::Conflict
            | Self::IdempotencyConflict
            | Self::Gone
            | Self::TooLarge
            | Self::Internal => false,
        }
    }
}
