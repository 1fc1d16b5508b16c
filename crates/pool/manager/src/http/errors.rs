//! What can go wrong everywhere.

use pool_api::{ErrorAnswer, ErrorCode};
use utoipa::IntoResponses;

use crate::problem::Problem;

/// How every route may refuse.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "it only describes")]
pub(crate) enum Refusals {
    /// What was sent is not what it should be.
    #[response(status = 400)]
    BadRequest(ErrorAnswer),
    /// Nobody knows who asks.
    #[response(status = 401)]
    Unauthenticated(ErrorAnswer),
    /// Who asks may not.
    #[response(status = 403)]
    Forbidden(ErrorAnswer),
    /// Another manager leads: ask there.
    #[response(status = 307)]
    NotLeader(ErrorAnswer),
    /// More than may be sent at once.
    #[response(status = 413)]
    TooLarge(ErrorAnswer),
    /// More than the pool keeps at once.
    #[response(status = 429)]
    TooMany(ErrorAnswer),
    /// Not now. Nothing happened, or the same idempotency key tells later what did.
    #[response(status = 503)]
    Unavailable(ErrorAnswer),
}

/// How routes about one thing may refuse besides.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "it only describes")]
pub(crate) enum OfOneThing {
    /// There is no such thing.
    #[response(status = 404)]
    NotFound(ErrorAnswer),
    /// Not in the state things are in.
    #[response(status = 409)]
    Conflict(ErrorAnswer),
    /// It is over, and will not come back.
    #[response(status = 410)]
    Gone(ErrorAnswer),
}

pub(super) async fn no_such_path() -> Problem {
    Problem::new(
        ErrorCode::NotFound,
        "there is nothing at this path",
        "the document at /openapi.json lists all paths",
    )
}

pub(super) async fn no_such_method() -> Problem {
    Problem::new(
        ErrorCode::MethodNotAllowed,
        "this path does not take this method",
        "the document at /openapi.json lists the methods of each path",
    )
}
