//! Tokens, certificates, joining and returning.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use pool_api::{
    AccessKind, JoinAnswer, JoinRequest, LeaseKeys, Name, NewToken, Page, RenewRequest, ReturnRequest,
    RevocationRequest, TokenInfo, TokenRequest, WhoAmI,
};
use pool_auth::{CertificateRequest, Identity, Lifetime, Permission, Subject, TokenKind, TokenRecord};

use super::Api;
use super::errors::{OfOneThing, Refusals};
use super::extract::{Body, Path, Query};
use super::list::{PageQuery, page};
use crate::access::{Certifiable, NewToken as Order, Proof};
use crate::books::Books;
use crate::claim::{Caller, Claim};
use crate::clock::system_now_ms;
use crate::desk::{Asked, Audited, Needs};
use crate::problem::Problem;
use crate::revocation;

fn request_of(pem: &str) -> Result<CertificateRequest, Problem> {
    CertificateRequest::from_pem(pem)
        .map_err(|error| Problem::bad_request(format!("certificate_request: {error}")))
}

/// Certifies a key, off the thread that owns the books: signing takes a while.
async fn certify(
    api: &Api,
    request: CertificateRequest,
    certifiable: Certifiable,
) -> Result<Json<JoinAnswer>, Problem> {
    let now_ms = api.clock.now_ms();
    let Certifiable { identity, until_ms } = certifiable;
    let lasting = Duration::from_millis(until_ms.saturating_sub(now_ms));
    let lifetime = Lifetime::starting(system_now_ms(), lasting);
    let signed = api.authority.certify(&request, &identity, lifetime);
    let certificate = signed.map_err(|error| Problem::bad_request(error.to_string()))?;
    Ok(Json(JoinAnswer {
        certificate,
        ca_certificate: api.authority.certificate_pem().to_owned(),
        expires_ms: until_ms,
        now_ms,
    }))
}

/// Join the pool with a one-time token
///
/// Whom the token is for is whom the certificate names. Sent again with the same key, it is answered again.
#[utoipa::path(post, path = "/v1/join", tag = "access", request_body = JoinRequest, security(()),
    responses((status = 200, body = JoinAnswer), Refusals))]
pub(super) async fn join(
    State(api): State<Api>,
    claim: Claim,
    Body(request): Body<JoinRequest>,
) -> Result<Json<JoinAnswer>, Problem> {
    let asked = Asked {
        claim,
        action: "access.join",
        target: request.name.to_string(),
        needs: Needs::JoinToken,
        audited: Audited::Always,
    };
    let certificate_request = request_of(&request.certificate_request)?;
    let life_ms = api.certificate_life_ms();
    let join = move |books: &mut Books, _: &Caller| {
        let times = (books.now_ms, life_ms);
        let Books { access, staged, .. } = books;
        let certifiable =
            access.join(&request.token, request.name.as_str(), &certificate_request, times, staged)?;
        Ok((certificate_request, certifiable))
    };
    let (certificate_request, certifiable) = api.desk.change(asked, join).await?;
    certify(&api, certificate_request, certifiable).await
}

/// Come back after the certificate has ended
///
/// A box or host that was off for longer than its certificate lasts proves who it is by the key it joined with: the
/// request is signed with it. Not after it was revoked, and not for ever.
#[utoipa::path(post, path = "/v1/certificate/return", tag = "access", request_body = ReturnRequest, security(()),
    responses((status = 200, body = JoinAnswer), Refusals))]
pub(super) async fn return_member(
    State(api): State<Api>,
    claim: Claim,
    Body(request): Body<ReturnRequest>,
) -> Result<Json<JoinAnswer>, Problem> {
    let identity: Identity = request
        .identity
        .parse()
        .map_err(|error: pool_auth::NameError| Problem::bad_request(error.to_string()))?;
    if !matches!(identity, Identity::Box(_) | Identity::Host(_)) {
        return Err(Problem::bad_request("identity: only boxes and hosts are members"));
    }
    let certificate_request = request_of(&request.certificate_request)?;
    let asked = Asked {
        claim,
        action: "access.return",
        target: identity.to_string(),
        needs: Needs::JoinToken,
        audited: Audited::Always,
    };
    let life_ms = api.certificate_life_ms();
    let come_back = move |books: &mut Books, _: &Caller| {
        let times = (books.now_ms, life_ms);
        let Books { access, staged, .. } = books;
        let certifiable = access.renew(&identity, &certificate_request, Proof::KeyAlone, times, staged)?;
        Ok((certificate_request, certifiable))
    };
    let (certificate_request, certifiable) = api.desk.change(asked, come_back).await?;
    certify(&api, certificate_request, certifiable).await
}

/// Get a new certificate for the same name and the same key
///
/// Only boxes and hosts have certificates. Everybody else shows a token, and what a token buys never outlives it.
#[utoipa::path(post, path = "/v1/certificate", tag = "access", request_body = RenewRequest,
    responses((status = 200, body = JoinAnswer), Refusals))]
pub(super) async fn renew_certificate(
    State(api): State<Api>,
    claim: Claim,
    Body(request): Body<RenewRequest>,
) -> Result<Json<JoinAnswer>, Problem> {
    let certificate_request = request_of(&request.certificate_request)?;
    let asked = Asked {
        claim,
        action: "access.renew",
        target: "certificate".to_owned(),
        needs: Needs::Permission(Permission::RenewOwnCertificate),
        audited: Audited::Always,
    };
    let life_ms = api.certificate_life_ms();
    let renew = move |books: &mut Books, caller: &Caller| {
        let times = (books.now_ms, life_ms);
        let Books { access, staged, .. } = books;
        let certifiable =
            access.renew(&caller.identity, &certificate_request, Proof::Certificate, times, staged)?;
        Ok((certificate_request, certifiable))
    };
    let (certificate_request, certifiable) = api.desk.change(asked, renew).await?;
    certify(&api, certificate_request, certifiable).await
}

fn info(record: &TokenRecord) -> TokenInfo {
    TokenInfo {
        id: record.id.clone(),
        kind: match record.kind {
            TokenKind::Join => AccessKind::Join,
            TokenKind::User => AccessKind::User,
        },
        identity: record.identity.to_string(),
        created_by: record.created_by.clone(),
        lineage: record.lineage.clone(),
        created_ms: record.created_ms,
        expires_ms: record.expires_ms,
        used: record.used_for.is_some(),
        note: record.note.clone(),
    }
}

fn asked(claim: Claim, action: &'static str, target: String, audited: Audited) -> Asked {
    Asked { claim, action, target, needs: Needs::Permission(Permission::ManageAccess), audited }
}

/// Make a token
///
/// It is shown once. If the answer is lost, revoke it and make another.
#[utoipa::path(post, path = "/v1/tokens", tag = "access", request_body = TokenRequest,
    responses((status = 201, body = NewToken), Refusals))]
pub(super) async fn make_token(
    State(api): State<Api>,
    claim: Claim,
    Body(request): Body<TokenRequest>,
) -> Result<(StatusCode, Json<NewToken>), Problem> {
    request.check()?;
    let identity: Identity = request
        .identity
        .parse()
        .map_err(|error: pool_auth::NameError| Problem::bad_request(error.to_string()))?;
    if matches!(identity, Identity::Manager(_)) {
        return Err(Problem::bad_request("identity: managers certify themselves"));
    }
    let kind = match request.kind {
        AccessKind::Join => TokenKind::Join,
        AccessKind::User => TokenKind::User,
    };
    if kind == TokenKind::User && matches!(identity, Identity::Box(_) | Identity::Host(_)) {
        return Err(Problem::forbidden(
            "boxes and hosts prove who they are by certificate; make a join token",
        ));
    }
    if kind == TokenKind::Join && !matches!(identity, Identity::Box(_) | Identity::Host(_)) {
        return Err(Problem::forbidden(
            "only boxes and hosts join and have certificates; make a token of kind user",
        ));
    }
    let asked = asked(claim, "token.make", identity.to_string(), Audited::Always);
    let make = move |books: &mut Books, caller: &Caller| {
        let order = Order {
            kind,
            identity,
            created_by: caller.identity.to_string(),
            made_with: caller.token.clone(),
            ttl_ms: request.ttl_ms,
            note: request.note,
        };
        let (token, record) = books.access.make_token(order, books.now_ms, &mut books.staged)?;
        Ok(NewToken {
            info: info(&record),
            token: token.reveal().reveal().to_owned(),
            ca_certificate: books.access.authority().certificate_pem().to_owned(),
        })
    };
    let made = api.desk.change(asked, make).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// List tokens, without their secrets
#[utoipa::path(get, path = "/v1/tokens", tag = "access", params(PageQuery),
    responses((status = 200, body = Page<TokenInfo>), Refusals))]
pub(super) async fn list_tokens(
    State(api): State<Api>,
    claim: Claim,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<TokenInfo>>, Problem> {
    query.check()?;
    let asked = asked(claim, "token.list", "token".to_owned(), Audited::Denials);
    let list = move |books: &mut Books, _: &Caller| {
        let tokens = books.access.tokens().into_iter().filter(|record| record.id > query.after).map(info);
        Ok(page(tokens, query.limit, books.ledger.version(), |token| token.id.clone()))
    };
    api.desk.read(asked, list).await.map(Json)
}

/// Revoke a token, and with it what was made with it
///
/// `POST /v1/revocations` does the same, says what it ended, and can spare some of it.
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "access",
    params(("id" = String, Path, pattern = "^[0-9a-f]{16}$")),
    responses((status = 200, body = TokenInfo), OfOneThing, Refusals))]
pub(super) async fn revoke_token(
    State(api): State<Api>,
    claim: Claim,
    Path(id): Path<String>,
) -> Result<Json<TokenInfo>, Problem> {
    let asked = asked(claim, "token.revoke", format!("token/{id}"), Audited::Always);
    let revoke = move |books: &mut Books, caller: &Caller| {
        let known =
            books.access.token(&id).map(info).ok_or_else(|| Problem::not_found(format!("token {id}")))?;
        let request = RevocationRequest::of(format!("token/{id}"));
        revocation::revoke(books, caller, Subject::Token(id), &request)?;
        Ok(known)
    };
    api.desk.change(asked, revoke).await.map(Json)
}

/// Make a new key for lease tokens
///
/// Boxes learn of it with their next report; it signs half a minute later. Older keys stay valid for a day.
#[utoipa::path(post, path = "/v1/lease-keys", tag = "access",
    responses((status = 200, body = LeaseKeys), Refusals))]
pub(super) async fn rotate_lease_key(
    State(api): State<Api>,
    claim: Claim,
) -> Result<Json<LeaseKeys>, Problem> {
    let asked = asked(claim, "lease-key.rotate", "lease-key".to_owned(), Audited::Always);
    let rotate = |books: &mut Books, _: &Caller| {
        let _ = books.access.rotate(books.now_ms, &mut books.staged)?;
        Ok(LeaseKeys { lease_keys: books.access.public_keys().map(|key| key.to_string()).collect() })
    };
    api.desk.change(asked, rotate).await.map(Json)
}

/// Show who asks
#[utoipa::path(get, path = "/v1/whoami", tag = "access",
    responses((status = 200, body = WhoAmI), Refusals))]
pub(super) async fn whoami(State(api): State<Api>, claim: Claim) -> Result<Json<WhoAmI>, Problem> {
    let asked = Asked {
        claim,
        action: "access.whoami",
        target: String::new(),
        needs: Needs::Anybody,
        audited: Audited::Denials,
    };
    let show = |books: &mut Books, caller: &Caller| {
        Ok(WhoAmI {
            identity: caller.identity.to_string(),
            role: caller.role().as_str().to_owned(),
            tenant: caller.identity.tenant().map(Name::new).transpose()?,
            now_ms: books.now_ms,
        })
    };
    api.desk.read(asked, show).await.map(Json)
}
