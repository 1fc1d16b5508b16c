//! A caller that lies about its identity or asks for what is not its own: a clear refusal, an entry in the
//! trail, no effect.

use std::time::Duration;

use pool_api::{
    AccessKind, AuditOutcome, ErrorCode, GpuState, LeaseRequest, LeaseState, Name, Page, TaintRequest,
    TenantRequest,
};
use pool_auth::{
    Authority, BearerToken, CertificateRequest, Credential, Identity, Lifetime, NewKey, TokenKind,
};
use pool_client::{Client, ClientError, Patience, idempotency_key};

use crate::bed::Bed;

fn code<T: std::fmt::Debug>(result: Result<T, ClientError>) -> ErrorCode {
    result.unwrap_err().code().expect("the manager has answered")
}

fn leases(bed: &Bed) -> usize {
    let page: Page<pool_api::Lease> = bed.admin.get("/v1/leases", Duration::ZERO).unwrap();
    page.items.len()
}

#[test]
fn tokens_that_were_never_made_open_nothing() {
    let bed = Bed::make();
    let stranger = bed.with_token("spiffe://dxpu/admin/eve", BearerToken::make(TokenKind::User).reveal());
    assert_eq!(code(stranger.create_lease(&LeaseRequest::default(), "k")), ErrorCode::Unauthenticated);
    let nonsense = bed.with_token("spiffe://dxpu/admin/eve", pool_auth::Secret::new("letmein"));
    assert_eq!(code(nonsense.create_lease(&LeaseRequest::default(), "k")), ErrorCode::Unauthenticated);
    let base = bed.admin.credential();
    let silent = Client::new(Credential { token: None, ..base.clone() }, Patience::ONCE).unwrap();
    assert_eq!(code(silent.create_lease(&LeaseRequest::default(), "k")), ErrorCode::Unauthenticated);
    let entry = bed.audited(|entry| entry.action == "lease.create");
    assert_eq!((entry.actor.as_str(), entry.outcome), ("anonymous", AuditOutcome::Denied));
    assert_eq!(leases(&bed), 0);
}

#[test]
fn tokens_end_when_they_expire_or_are_revoked() {
    let bed = Bed::make();
    let short = bed.token(AccessKind::User, "spiffe://dxpu/tenant/vision/ada", 1000);
    let ada = bed.with_token("spiffe://dxpu/tenant/vision/ada", short);
    assert!(ada.get::<pool_api::WhoAmI>("/v1/whoami", Duration::ZERO).is_ok());
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(code(ada.create_lease(&LeaseRequest::default(), "k")), ErrorCode::Unauthenticated);

    let token = bed.token(AccessKind::User, "spiffe://dxpu/tenant/vision/bob", 60_000);
    let id = BearerToken::parse(token.reveal()).unwrap().id().to_owned();
    let bob = bed.with_token("spiffe://dxpu/tenant/vision/bob", token);
    assert!(bob.get::<pool_api::WhoAmI>("/v1/whoami", Duration::ZERO).is_ok());
    bed.admin.delete::<pool_api::TokenInfo>(&format!("/v1/tokens/{id}")).unwrap();
    assert_eq!(
        code(bob.create_lease(&LeaseRequest::default(), "k")),
        ErrorCode::Revoked,
        "the manager has forgotten the record, and still says what became of it"
    );
    assert_eq!(leases(&bed), 0);
}

#[test]
fn a_join_token_joins_one_box_once() {
    let bed = Bed::make();
    let token = bed.token(AccessKind::Join, "spiffe://dxpu/box/rack1-a", 60_000);
    let forged = bed.join_with("rack1-b", &token).map(drop);
    assert_eq!(code(forged), ErrorCode::Forbidden, "the token is for another name");
    assert!(bed.join_with("rack1-a", &token).is_ok());
    assert_eq!(code(bed.join_with("rack1-a", &token).map(drop)), ErrorCode::Unauthenticated, "another key");
    let user = bed.token(AccessKind::User, "spiffe://dxpu/tenant/vision/ada", 60_000);
    assert_eq!(code(bed.join_with("ada", &user).map(drop)), ErrorCode::Unauthenticated, "not for joining");
    bed.audited(|entry| entry.action == "access.join" && entry.outcome == AuditOutcome::Denied);
}

#[test]
fn a_box_speaks_for_itself_alone() {
    let bed = Bed::make();
    let mut honest = bed.join("rack1-a", 1);
    honest.turn();
    let mut forger = bed.join("rack1-b", 1);
    forger.name = Name::new("rack1-a").unwrap();
    forger.report.gpus[0].cleaned_epoch = 99;
    assert_eq!(code(forger.try_report()), ErrorCode::Forbidden);
    let entry = bed.audited(|entry| entry.action == "box.report" && entry.outcome == AuditOutcome::Denied);
    assert_eq!(entry.actor, "spiffe://dxpu/box/rack1-b");
    // Not even an admin does.
    let body = &forger.report;
    let by_admin = bed.admin.report(&forger.name, body, Duration::ZERO);
    assert_eq!(code(by_admin), ErrorCode::Forbidden);
    let gpu: pool_api::Gpu = bed.admin.get("/v1/gpus/rack1-a/0", Duration::ZERO).unwrap();
    assert_eq!((gpu.cleaned_epoch, gpu.state), (0, GpuState::Free));
}

/// A box whose certificate is past its time, or of another pool's authority, is refused by TLS itself.
#[test]
fn certificates_must_be_ours_and_in_time() {
    let bed = Bed::make();
    let key = NewKey::make().unwrap();
    let request = CertificateRequest::from_pem(&key.request_pem).unwrap();
    let identity = Identity::Manager("m9".into());
    let base = bed.admin.credential();
    let connect = |certificate: String| {
        let credential = Credential {
            token: None,
            certificate: Some(certificate),
            key: Some(key.key_pem.clone()),
            ..base.clone()
        };
        let client = Client::new(credential, Patience::ONCE).unwrap();
        client.get::<pool_api::WhoAmI>("/v1/whoami", Duration::ZERO)
    };
    let now_ms = pool_manager::Clock::start().now_ms();
    let day = Duration::from_secs(24 * 3600);
    // The very authority of the pool, as any process that reads the store has it.
    let ours = pool_manager::begin(&*bed.store, &[], &bed.folder.path().join("unused"), now_ms).unwrap();
    let good = ours.certify(&request, &identity, Lifetime::starting(now_ms, day)).unwrap();
    assert_eq!(connect(good).unwrap().role, "manager");
    let past = Lifetime { not_before_ms: now_ms - 2 * 86_400_000, not_after_ms: now_ms - 86_400_000 };
    let expired = ours.certify(&request, &identity, past).unwrap();
    assert_refused(connect(expired));
    let entry = bed.audited(|entry| entry.action == "connect");
    assert!(entry.detail.contains("Expired"), "{entry:?}");
    let later = Lifetime { not_before_ms: now_ms + 86_400_000, not_after_ms: now_ms + 2 * 86_400_000 };
    assert_refused(connect(ours.certify(&request, &identity, later).unwrap()));
    bed.audited(|entry| entry.action == "connect" && entry.detail.contains("NotValidYet"));
    let theirs = Authority::make(now_ms).unwrap();
    let foreign = theirs.certify(&request, &identity, Lifetime::starting(now_ms, day)).unwrap();
    assert_refused(connect(foreign));
    let entry = bed.audited(|entry| {
        entry.action == "connect"
            && !entry.detail.contains("Expired")
            && !entry.detail.contains("NotValidYet")
    });
    assert_eq!((entry.actor.as_str(), entry.outcome), ("anonymous", AuditOutcome::Denied));
    // Earlier versions gave certificates to people; those count no more.
    for person in ["admin/first", "operator/o", "viewer/v", "tenant/vision/ada"] {
        let person: Identity = format!("spiffe://dxpu/{person}").parse().unwrap();
        let bought = ours.certify(&request, &person, Lifetime::starting(now_ms, day)).unwrap();
        assert_eq!(code(connect(bought)), ErrorCode::Unauthenticated, "{person}");
    }
    // Nor do those of machines that have not joined.
    let stranger =
        ours.certify(&request, &Identity::Box("b".into()), Lifetime::starting(now_ms, day)).unwrap();
    assert_eq!(code(connect(stranger)), ErrorCode::Unauthenticated);
}

/// TLS tells why, unless the connection is gone before it can.
fn assert_refused(result: Result<pool_api::WhoAmI, ClientError>) {
    match result {
        Err(ClientError::Certificate { what, .. }) => assert!(what.contains("does not accept"), "{what}"),
        Err(ClientError::Unreachable { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tenant_gets_nothing_that_is_anothers() {
    let bed = Bed::make();
    bed.join("rack1-a", 2).turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let eve = bed.user("spiffe://dxpu/tenant/speech/eve");
    let lease = ada.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();

    let for_vision = LeaseRequest { tenant: Some(Name::new("vision").unwrap()), ..LeaseRequest::default() };
    assert_eq!(code(eve.create_lease(&for_vision, "k")), ErrorCode::Forbidden);
    assert_eq!(code(eve.lease_tokens(lease.id)), ErrorCode::Forbidden);
    assert_eq!(code(eve.release_lease(lease.id)), ErrorCode::Forbidden);
    assert_eq!(code(eve.renew_lease(lease.id)), ErrorCode::Forbidden);
    assert_eq!(code(eve.wait_for_lease(lease.id, 0, Duration::ZERO)), ErrorCode::Forbidden);
    let seen: Page<pool_api::Lease> = eve.get("/v1/leases", Duration::ZERO).unwrap();
    assert!(seen.items.is_empty());
    let no = &TaintRequest::default();
    let gpu = lease.grants[0].gpu.clone();
    assert_eq!(
        code(eve.post::<pool_api::Gpu>(&format!("/v1/gpus/{gpu}/break"), no, None, Duration::ZERO)),
        ErrorCode::Forbidden
    );
    assert_eq!(
        code(eve.put::<pool_api::TenantRecord>("/v1/tenants/speech", &TenantRequest::default())),
        ErrorCode::Forbidden
    );
    assert_eq!(code(eve.get::<Page<pool_api::Gpu>>("/v1/gpus", Duration::ZERO)), ErrorCode::Forbidden);
    assert_eq!(
        code(eve.get::<Page<pool_api::AuditEntry>>("/v1/audit", Duration::ZERO)),
        ErrorCode::Forbidden
    );

    let still = ada.renew_lease(lease.id).unwrap();
    assert_eq!((still.state, still.grants.len()), (LeaseState::Granted, 1));
    bed.audited(|entry| entry.action == "lease.release" && entry.outcome == AuditOutcome::Denied);
    bed.audited(|entry| entry.action == "lease.create" && entry.outcome == AuditOutcome::Denied);
}

#[test]
fn an_operator_looks_after_gpus_but_does_not_borrow_or_let_people_in() {
    let bed = Bed::make();
    bed.join("rack1-a", 1).turn();
    let operator = bed.user("spiffe://dxpu/operator/night");
    let reason = TaintRequest { reason: "fan".into() };
    let tainted: pool_api::Gpu =
        operator.post("/v1/gpus/rack1-a/0/taint", &reason, None, Duration::ZERO).unwrap();
    assert_eq!(tainted.taint.unwrap().by, "spiffe://dxpu/operator/night");
    assert_eq!(code(operator.create_lease(&LeaseRequest::default(), "k")), ErrorCode::Forbidden);
    let request = pool_api::TokenRequest {
        kind: AccessKind::User,
        identity: "spiffe://dxpu/admin/night".into(),
        ttl_ms: 60_000,
        note: String::new(),
    };
    let token = operator.post::<pool_api::NewToken>("/v1/tokens", &request, None, Duration::ZERO);
    assert_eq!(code(token), ErrorCode::Forbidden);
}

#[test]
fn stale_reports_change_nothing() {
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 1);
    gpu_box.turn();
    let lease = bed.admin.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    bed.admin.release_lease(lease.id).unwrap();
    let gpu = || bed.admin.get::<pool_api::Gpu>("/v1/gpus/rack1-a/0", Duration::ZERO).unwrap();
    assert_eq!(gpu().state, GpuState::Cleaning);
    // A report from before the grant, late: it says that epoch 0 is clean, which says nothing of epoch 1.
    gpu_box.client.report(&gpu_box.name, &gpu_box.report, Duration::ZERO).unwrap();
    let mut old = gpu_box.report.clone();
    old.sequence = 1;
    gpu_box.client.report(&gpu_box.name, &old, Duration::ZERO).unwrap();
    assert_eq!(gpu().state, GpuState::Cleaning);
    let waiting = bed.admin.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    assert_eq!(waiting.state, LeaseState::Pending);
    // The true report, and then the old one once more: what is clean stays clean.
    gpu_box.report.gpus[0].cleaned_epoch = 1;
    gpu_box.try_report().unwrap();
    let granted = bed.admin.wait_for_lease(waiting.id, waiting.version, Duration::from_secs(5)).unwrap();
    assert_eq!(granted.state, LeaseState::Granted);
    gpu_box.client.report(&gpu_box.name, &old, Duration::ZERO).unwrap();
    assert_eq!((gpu().state, gpu().epoch, gpu().cleaned_epoch), (GpuState::Leased, 2, 1));
}

#[test]
fn what_is_malformed_is_a_bad_request() {
    let bed = Bed::make();
    let post = |path: &str, body: serde_json::Value| {
        code(bed.admin.post::<serde_json::Value>(path, &body, None, Duration::ZERO))
    };
    use serde_json::json;
    assert_eq!(post("/v1/leases", json!({"gpus": 0})), ErrorCode::BadRequest);
    assert_eq!(post("/v1/leases", json!({"gpus": 65})), ErrorCode::BadRequest);
    assert_eq!(post("/v1/leases", json!({"gpu": 1})), ErrorCode::BadRequest);
    assert_eq!(post("/v1/leases", json!({"tenant": "../x"})), ErrorCode::BadRequest);
    assert_eq!(post("/v1/leases", json!([])), ErrorCode::BadRequest);
    assert_eq!(
        post("/v1/tokens", json!({"kind": "user", "identity": "root", "ttl_ms": 5000})),
        ErrorCode::BadRequest
    );
    assert_eq!(post("/v1/gpus/rack1-a/64/taint", json!({})), ErrorCode::BadRequest);
    assert_eq!(post("/v1/nothing", json!({})), ErrorCode::NotFound);
    assert_eq!(post("/v1/events", json!({})), ErrorCode::MethodNotAllowed);
    assert_eq!(post("/v1/leases", json!({"note": "x".repeat(2 << 20)})), ErrorCode::TooLarge);
    let get = |path: &str| code(bed.admin.get::<serde_json::Value>(path, Duration::ZERO));
    assert_eq!(get("/v1/leases/l-1"), ErrorCode::BadRequest);
    assert_eq!(get("/v1/leases/l-00c0ffee00c0ffee"), ErrorCode::NotFound);
    assert_eq!(get("/v1/gpus?limit=0"), ErrorCode::BadRequest);
    assert_eq!(get("/v1/gpus?wait_ms=99999999"), ErrorCode::BadRequest);
    assert_eq!(get("/v1/gpus?surprise=1"), ErrorCode::BadRequest);
    assert_eq!(leases(&bed), 0);
}

/// A peer that checks a certificate uses its own clock. Hours do not matter; an end does.
#[test]
fn certificates_hold_for_clocks_that_are_hours_wrong() {
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    let bed = Bed::make();
    let gpu_box = bed.join("rack1-a", 1);
    let credential = gpu_box.client.credential();
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(der(&credential.authority)).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
    let verifier = verifier.build().unwrap();
    let certificate = der(credential.certificate.as_ref().unwrap());
    let name = ServerName::try_from(Identity::box_server_name("rack1-a")).unwrap();
    let now_s = pool_manager::Clock::start().now_ms() / 1000;
    let check = |hours: i64| {
        let at = Duration::from_secs(now_s.checked_add_signed(hours * 3600).unwrap());
        verifier.verify_server_cert(&certificate, &[], &name, &[], UnixTime::since_unix_epoch(at))
    };
    for hours in [-12, -1, 0, 1, 12] {
        assert!(check(hours).is_ok(), "{hours}: {:?}", check(hours));
    }
    let life_hours = i64::try_from(pool_manager::CERTIFICATE_LIFE.as_secs() / 3600).unwrap();
    for hours in [life_hours + 1, -24 * 30] {
        assert!(matches!(check(hours), Err(rustls::Error::InvalidCertificate(_))), "{hours}");
    }
    let other = ServerName::try_from(Identity::box_server_name("rack1-b")).unwrap();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now_s));
    assert!(verifier.verify_server_cert(&certificate, &[], &other, &[], now).is_err(), "a forged name");
}

#[test]
fn who_asks_for_more_than_there_is_waits_and_who_asks_out_of_bounds_is_refused() {
    let bed = Bed::make();
    bed.join("rack1-a", 2).turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let too_urgent = serde_json::json!({"priority": 1_000_000});
    let asked = ada.post::<pool_api::Lease>("/v1/leases", &too_urgent, Some("k"), Duration::ZERO);
    assert_eq!(code(asked), ErrorCode::BadRequest);
    let absurd = LeaseRequest { gpus: 64, ..LeaseRequest::default() };
    assert_eq!(
        code(ada.create_lease(&absurd, &idempotency_key())),
        ErrorCode::Conflict,
        "there are only two"
    );
    let first = ada.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    assert_eq!(first.state, LeaseState::Granted);
    let more = LeaseRequest { gpus: 2, ..LeaseRequest::default() };
    let waiting = ada.create_lease(&more, &idempotency_key()).unwrap();
    assert_eq!(waiting.state, LeaseState::Pending, "one of two is leased");
    let why: pool_api::Explanation =
        ada.get(&format!("/v1/leases/{}/explain", waiting.id), Duration::ZERO).unwrap();
    assert!(!why.reasons.is_empty());
    // Its own lease under another's name, with a key that was used for something else.
    let key = idempotency_key();
    ada.create_lease(&LeaseRequest::default(), &key).unwrap();
    let other = LeaseRequest { gpus: 2, ..LeaseRequest::default() };
    assert_eq!(code(ada.create_lease(&other, &key)), ErrorCode::IdempotencyConflict);
}

/// A box decides alone which borrowers it admits; the trail tells of those it refused.
#[test]
fn whom_a_box_turned_away_is_in_the_trail() {
    let bed = Bed::make();
    let gpu_box = bed.join("rack1-a", 1);
    let refusal = |slot| pool_api::SlotRefusal { slot, reason: "the lease is over".to_owned() };
    let report = pool_api::RefusalReport { refusals: vec![refusal(0)] };
    assert_eq!(gpu_box.client.tell_refusals(&gpu_box.name, &report).unwrap().count, 1);
    let entry = bed.audited(|entry| entry.action == "gpu.attach");
    assert_eq!((entry.target.as_str(), entry.outcome), ("gpu/rack1-a/0", AuditOutcome::Denied));
    assert_eq!((entry.actor.as_str(), entry.detail.as_str()), ("anonymous", "the lease is over"));
    // No caller can report refusals of another box, or of slots that cannot be.
    let forger = bed.join("rack1-b", 1);
    assert_eq!(code(forger.client.tell_refusals(&gpu_box.name, &report)), ErrorCode::Forbidden);
    assert_eq!(code(bed.admin.tell_refusals(&gpu_box.name, &report)), ErrorCode::Forbidden);
    let nonsense = pool_api::RefusalReport { refusals: vec![refusal(64)] };
    assert_eq!(code(gpu_box.client.tell_refusals(&gpu_box.name, &nonsense)), ErrorCode::BadRequest);
}
