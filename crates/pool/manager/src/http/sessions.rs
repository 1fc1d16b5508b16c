//! Logging in with a browser.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use locks::lock;
use pool_api::{ErrorAnswer, ErrorCode, Name};
use pool_auth::{Permission, Role};
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::errors::Refusals;
use crate::books::Books;
use crate::claim::{Caller, Claim, ShownToken};
use crate::desk::{Asked, Audited, Needs};
use crate::problem::Problem;
use crate::session::{self, Session};

/// A browser's session.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct SessionAnswer {
    /// Who is logged in.
    identity: String,
    /// What they are.
    role: &'static str,
    /// The tenant they borrow for.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<Name>,
    /// What they may do to what they see.
    may: May,
    /// To be shown as `X-Dxpu-Csrf` with every request that changes something, where the session's cookie is what
    /// authenticates.
    csrf: String,
    /// The manager's clock.
    now_ms: u64,
}

/// What is left of a browser's session.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct SessionEnded {
    /// False: the browser is told to forget its cookie.
    logged_in: bool,
}

/// What a page offers to its user. The manager refuses whatever else is asked for.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct May {
    /// End leases of their own tenant.
    release_own: bool,
    /// End any lease.
    release_any: bool,
    /// Cordon and drain boxes, drain and repair GPUs.
    operate: bool,
    /// See all tenants.
    read_everything: bool,
}

impl May {
    fn of(role: Role) -> Self {
        Self {
            release_own: role.may(Permission::BorrowForOwnTenant),
            release_any: role.may(Permission::BorrowForAnybody),
            operate: role.may(Permission::OperateGpus),
            read_everything: role.may(Permission::ReadEverything),
        }
    }
}

async fn describe(api: &Api, claim: Claim, session: &Session) -> Result<SessionAnswer, Problem> {
    let csrf = session.csrf();
    let asked = Asked {
        claim,
        action: "session.begin",
        target: "dashboard".to_owned(),
        needs: Needs::Anybody,
        audited: Audited::Denials,
    };
    let show = move |books: &mut Books, caller: &Caller| {
        Ok(SessionAnswer {
            identity: caller.identity.to_string(),
            role: caller.role().as_str(),
            tenant: caller.identity.tenant().map(Name::new).transpose()?,
            may: May::of(caller.role()),
            csrf,
            now_ms: books.now_ms,
        })
    };
    api.desk.read(asked, show).await
}

fn no_session() -> Problem {
    Problem::new(ErrorCode::Unauthenticated, "nobody is logged in with this browser", "log in")
}

fn with_cookie(answer: impl IntoResponse, cookie: &str) -> Response {
    let mut response = answer.into_response();
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Log in with a browser
///
/// Shown a token as `Authorization: Bearer …`, answers with a cookie that stands for it. Ten failures within a minute
/// close the login for the rest of that minute, for the address they came from.
#[utoipa::path(post, path = "/v1/session", tag = "access",
    responses((status = 200, body = SessionAnswer), Refusals))]
pub(super) async fn log_in(
    State(api): State<Api>,
    claim: Claim,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (address, now_ms) = (claim.address.ip(), api.clock.now_ms());
    if let Err(wait_ms) = lock(&api.tries).may(address, now_ms) {
        let message = format!("too many logins from {address} have failed");
        let hint = format!("wait {} s, then log in with the right token", wait_ms.div_ceil(1000));
        return Err(Problem::new(ErrorCode::TooMany, message, hint));
    }
    let foreign = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok()).is_some_and(|origin| {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        host.is_some() && session::check_origin(origin, host).is_err()
    });
    if foreign {
        return Err(Problem::forbidden("a page of another address cannot log in here"));
    }
    let token = match &claim.bearer {
        Some(ShownToken::Token(token)) => Some(token.clone()),
        _ => None,
    };
    let has_tried = claim.bearer.is_some();
    // Without a token there is no session, but the refusal is the same as everywhere.
    let session = token.map(Session::begin);
    let described = match &session {
        Some(session) => describe(&api, claim, session).await,
        None => Err(refusal(&api, claim).await),
    };
    match (described, session) {
        (Ok(answer), Some(session)) => {
            lock(&api.tries).succeeded(address);
            Ok(with_cookie(Json(answer), &session.cookie()))
        }
        (Err(problem), _) => {
            let is_wrong = matches!(problem.code, ErrorCode::Unauthenticated | ErrorCode::Revoked);
            if has_tried && is_wrong {
                lock(&api.tries).failed(address, now_ms);
            }
            Err(problem)
        }
        (Ok(_), None) => Err(no_session()),
    }
}

/// How a claim without a token is refused; a machine's certificate is no login.
async fn refusal(api: &Api, claim: Claim) -> Problem {
    if claim.bearer.is_none() && claim.certificate.is_some() {
        return no_session();
    }
    let nobody = Session::begin(pool_auth::BearerToken::make(pool_auth::TokenKind::User));
    describe(api, claim, &nobody).await.err().unwrap_or_else(no_session)
}

/// Show who is logged in with this browser
#[utoipa::path(get, path = "/v1/session", tag = "access",
    responses((status = 200, body = SessionAnswer), Refusals))]
pub(super) async fn show(
    State(api): State<Api>,
    claim: Claim,
    headers: HeaderMap,
) -> Result<Json<SessionAnswer>, Problem> {
    let mut cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let session = cookies.find_map(Session::in_cookies);
    let token = match &claim.bearer {
        Some(ShownToken::Token(token)) => Some(token.clone()),
        _ => None,
    };
    match session.or_else(|| token.map(Session::begin)) {
        Some(session) => describe(&api, claim, &session).await.map(Json),
        None => Err(refusal(&api, claim).await),
    }
}

/// Log out with this browser
///
/// The token stays valid elsewhere; `dxpu token revoke` ends it.
#[utoipa::path(delete, path = "/v1/session", tag = "access", security(()),
    responses((status = 200, body = SessionEnded),
        (status = 403, body = ErrorAnswer, description = "Another page has asked for it")))]
pub(super) async fn log_out(_: Claim) -> Response {
    with_cookie(Json(SessionEnded { logged_in: false }), &Session::end_cookie())
}
