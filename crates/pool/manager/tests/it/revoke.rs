//! What is revoked opens nothing any more: not by what it bought, not by what it made, not for waiting requests.

use std::time::{Duration, Instant};

use pool_api::{
    AccessKind, BoxDetail, BoxState, ErrorCode, Event, EventKind, Lease, LeaseRequest, LeaseState, NewToken,
    Page, RevocationDone, RevocationInfo, RevocationRequest, TokenInfo, TokenRequest, WhoAmI,
};
use pool_auth::{CertificateRequest, Credential, Identity, NewKey, Secret};
use pool_client::{Client, ClientError, Patience, idempotency_key};
use pool_manager::Manager;
use rustls::pki_types::pem::PemObject;

use crate::bed::{Bed, SimulatedBox, settings};

fn no_wait() -> Duration {
    Duration::ZERO
}

fn code<T: std::fmt::Debug>(result: Result<T, ClientError>) -> ErrorCode {
    let error = result.unwrap_err();
    error.code().unwrap_or_else(|| panic!("a manager refused: {error}"))
}

fn make(by: &Client, kind: AccessKind, identity: &str) -> Result<NewToken, ClientError> {
    let request =
        TokenRequest { kind, identity: identity.to_owned(), ttl_ms: 3_600_000, note: String::new() };
    by.post("/v1/tokens", &request, None, no_wait())
}

/// A client with a token that `by` has made for it, and the token's name.
fn made_by(bed: &Bed, by: &Client, identity: &str) -> (Client, String) {
    let made = make(by, AccessKind::User, identity).unwrap();
    (bed.with_token(identity, Secret::new(made.token)), made.info.id)
}

fn revoke(by: &Client, request: &RevocationRequest) -> Result<RevocationDone, ClientError> {
    by.post("/v1/revocations", request, None, no_wait())
}

fn who(client: &Client) -> Result<WhoAmI, ClientError> {
    client.get("/v1/whoami", no_wait())
}

fn lease(bed: &Bed, id: pool_api::LeaseId) -> Lease {
    bed.admin.get(&format!("/v1/leases/{id}"), no_wait()).unwrap()
}

fn events(bed: &Bed, kind: EventKind) -> Vec<Event> {
    let page: Page<Event> = bed.admin.get("/v1/events?limit=1000", no_wait()).unwrap();
    page.items.into_iter().filter(|event| event.kind == kind).collect()
}

/// The attack: a token of a minute bought a certificate of a year, which outlived the token's revocation.
#[test]
fn a_bearer_token_buys_nothing_that_outlives_it() {
    let bed = Bed::make();
    let made = make(&bed.admin, AccessKind::User, "spiffe://dxpu/admin/mallory").unwrap();
    let mallory = bed.with_token("spiffe://dxpu/admin/mallory", pool_auth::Secret::new(made.token));
    let key = NewKey::make().unwrap();
    let bought = mallory.renew_certificate(&key.request_pem);
    let _: serde_json::Value = bed.admin.delete(&format!("/v1/tokens/{}", made.info.id)).unwrap();
    assert!(mallory.get::<WhoAmI>("/v1/whoami", no_wait()).is_err());
    if let Ok(answer) = &bought {
        let credential = Credential {
            token: None,
            certificate: Some(answer.certificate.clone()),
            key: Some(key.key_pem.clone()),
            ..mallory.credential().clone()
        };
        let copy = Client::new(credential, Patience::ONCE).unwrap();
        assert!(copy.get::<WhoAmI>("/v1/whoami", no_wait()).is_err(), "it goes on as admin");
        assert!(make(&copy, AccessKind::User, "spiffe://dxpu/admin/oscar").is_err(), "and lets others in");
    }
    assert_eq!(code(bought), ErrorCode::Forbidden, "nobody who has a token needs a certificate");
    // Nor can anything but a machine join.
    for person in ["admin/a", "operator/o", "viewer/v", "tenant/vision/ada"] {
        let asked = make(&bed.admin, AccessKind::Join, &format!("spiffe://dxpu/{person}"));
        assert_eq!(code(asked), ErrorCode::Forbidden, "{person}");
    }
}

/// A stolen admin's token has made others, which have let in a box and borrow: all of it goes with the one token.
#[test]
fn what_was_made_with_a_token_is_revoked_with_it() {
    let bed = Bed::make();
    let mut honest = bed.join("rack1-a", 2);
    honest.turn();
    let (mallory, stolen) = made_by(&bed, &bed.admin, "spiffe://dxpu/admin/mallory");
    let (oscar, oscars) = made_by(&bed, &mallory, "spiffe://dxpu/admin/oscar");
    let (eve, _) = made_by(&bed, &oscar, "spiffe://dxpu/tenant/vision/eve");
    let (ada, _) = made_by(&bed, &bed.admin, "spiffe://dxpu/tenant/vision/ada");
    let joins = make(&oscar, AccessKind::Join, "spiffe://dxpu/box/evil").unwrap();
    let client = bed.join_with("evil", &Secret::new(joins.token)).unwrap();
    let mut evil = SimulatedBox::new("evil", client, 1);
    let stolen_lease = eve.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    let honest_lease = ada.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    assert_eq!((stolen_lease.state, honest_lease.state), (LeaseState::Granted, LeaseState::Granted));
    evil.turn();
    let known: Page<TokenInfo> = bed.admin.get("/v1/tokens", no_wait()).unwrap();
    let lineage = |id: &str| known.items.iter().find(|token| token.id == id).unwrap().lineage.clone();
    assert_eq!(lineage(&oscars).last(), Some(&stolen));

    let done = revoke(&bed.admin, &RevocationRequest::of(format!("token/{stolen}"))).unwrap();
    // Mallory's, Oscar's, Eve's and the join token that was used.
    assert_eq!((done.tokens, done.machines, done.leases, done.gpus), (4, 1, 1, 1), "{done:?}");
    for client in [&mallory, &oscar, &eve] {
        assert!(matches!(code(who(client)), ErrorCode::Revoked | ErrorCode::Unauthenticated));
    }
    assert_eq!(code(evil.try_report()), ErrorCode::Revoked);
    assert!(!lease(&bed, stolen_lease.id).state.is_live(), "{:?}", lease(&bed, stolen_lease.id));
    assert_eq!(lease(&bed, honest_lease.id).state, LeaseState::Granted, "others go on");
    assert!(who(&ada).is_ok() && who(&bed.admin).is_ok());
    // Its box refuses the lease's tokens before it has cleaned.
    let orders = honest.try_report().unwrap();
    assert_eq!(orders.denied_leases.iter().map(|denied| denied.lease).collect::<Vec<_>>(), [stolen_lease.id]);
    let told = events(&bed, EventKind::AccessRevoked);
    assert!(told[0].message.contains("4 tokens, 1 machines and 1 leases with 1 GPUs end"), "{told:?}");
    bed.audited(|entry| entry.action == "access.revoke" && entry.target == format!("token/{stolen}"));
    let listed: Page<RevocationInfo> = bed.admin.get("/v1/revocations", no_wait()).unwrap();
    assert!(listed.items.iter().any(|entry| entry.subject == format!("token/{stolen}")), "{listed:?}");
}

#[test]
fn who_replaces_a_token_spares_what_it_made_and_nobody_locks_himself_out_by_mistake() {
    let bed = Bed::make();
    let all: Page<TokenInfo> = bed.admin.get("/v1/tokens", no_wait()).unwrap();
    let first = all.items[0].id.clone();
    let mut gpu_box = bed.join("rack1-a", 1);
    gpu_box.turn();
    let (second, _) = made_by(&bed, &bed.admin, "spiffe://dxpu/admin/second");
    let subject = format!("token/{first}");
    let refused = revoke(&second, &RevocationRequest::of(&subject));
    assert_eq!(code(refused), ErrorCode::Conflict, "its own token descends from it");
    assert!(who(&bed.admin).is_ok(), "nothing happened");
    let alone = RevocationRequest { alone: true, ..RevocationRequest::of(&subject) };
    let done = revoke(&second, &alone).unwrap();
    assert_eq!((done.tokens, done.machines, done.leases), (1, 0, 0));
    assert!(who(&bed.admin).is_err() && who(&second).is_ok());
    assert!(gpu_box.try_report().is_ok());
    // It was stolen after all.
    let all = RevocationRequest { include_own: true, ..RevocationRequest::of(&subject) };
    let done = revoke(&second, &all).unwrap();
    assert_eq!(done.machines, 1, "{done:?}");
    assert!(who(&second).is_err());
    assert_eq!(code(gpu_box.try_report()), ErrorCode::Revoked);
}

#[test]
fn operators_expel_machines_and_nobody_else() {
    let bed = Bed::make();
    bed.join("rack1-a", 1).turn();
    let operator = bed.user("spiffe://dxpu/operator/night");
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let of_box = RevocationRequest::of("spiffe://dxpu/box/rack1-a");
    let of_ada = RevocationRequest::of("spiffe://dxpu/tenant/vision/ada");
    assert_eq!(code(revoke(&ada, &of_box)), ErrorCode::Forbidden);
    assert_eq!(code(revoke(&ada, &of_ada)), ErrorCode::Forbidden);
    assert_eq!(code(revoke(&operator, &of_ada)), ErrorCode::Forbidden);
    assert_eq!(revoke(&operator, &of_box).unwrap().machines, 1);
    for nobody in
        ["spiffe://dxpu/box/other", "token/0000000000000000", "tenant/other", "lease/l-0000000000000000"]
    {
        assert_eq!(code(revoke(&bed.admin, &RevocationRequest::of(nobody))), ErrorCode::NotFound, "{nobody}");
    }
    assert_eq!(code(revoke(&bed.admin, &RevocationRequest::of("box/rack1-a"))), ErrorCode::BadRequest);
}

/// Every request that waits for news is authenticated again at once.
#[test]
fn those_who_wait_are_sent_away_when_they_are_revoked() {
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 1);
    gpu_box.turn();
    let (wall, token) = made_by(&bed, &bed.admin, "spiffe://dxpu/viewer/wall");
    let (ada, _) = made_by(&bed, &bed.admin, "spiffe://dxpu/tenant/vision/ada");
    // The only GPU is taken, so that the second one waits.
    let request = LeaseRequest { gpus: 1, ttl_ms: 600_000, ..LeaseRequest::default() };
    ada.create_lease(&request, &idempotency_key()).unwrap();
    let pending = ada.create_lease(&request, &idempotency_key()).unwrap();
    let seen: Page<Event> = wall.get("/v1/events?limit=1", no_wait()).unwrap();
    let wait = Duration::from_secs(25);
    let path = format!("/v1/events?version={}&wait_ms={}", seen.version, wait.as_millis());
    let watching = std::thread::spawn(move || wall.get::<Page<Event>>(&path, wait));
    let path = format!("/v1/leases/{}?version={}&wait_ms={}", pending.id, pending.version, wait.as_millis());
    let waiting = std::thread::spawn(move || ada.get::<Lease>(&path, wait));
    gpu_box.report.sequence += 1;
    let (client, name, report) = (gpu_box.client, gpu_box.name.clone(), gpu_box.report.clone());
    let reporting = std::thread::spawn(move || client.report(&name, &report, wait));
    std::thread::sleep(Duration::from_millis(500));
    revoke(&bed.admin, &RevocationRequest::of(format!("token/{token}"))).unwrap();
    assert!(matches!(code(watching.join().unwrap()), ErrorCode::Revoked | ErrorCode::Unauthenticated));
    let done = revoke(&bed.admin, &RevocationRequest::of("tenant/vision")).unwrap();
    assert_eq!((done.tokens, done.leases), (1, 2));
    assert!(matches!(code(waiting.join().unwrap()), ErrorCode::Revoked | ErrorCode::Unauthenticated));
    revoke(&bed.admin, &RevocationRequest::of("spiffe://dxpu/box/rack1-a")).unwrap();
    // It was woken by what came before, too, and may have had its answer then.
    if let Err(refused) = reporting.join().unwrap() {
        assert_eq!(refused.code(), Some(ErrorCode::Revoked));
    }
    assert_eq!(lease(&bed, pending.id).state, LeaseState::Ended);
}

#[test]
fn leases_go_on_where_the_operator_says_so() {
    let bed = Bed::make();
    bed.join("rack1-a", 2).turn();
    let (ada, first) = made_by(&bed, &bed.admin, "spiffe://dxpu/tenant/vision/ada");
    let (again, second) = made_by(&bed, &bed.admin, "spiffe://dxpu/tenant/vision/ada");
    let one = ada.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    let other = again.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    let spare = RevocationRequest { keep_leases: true, ..RevocationRequest::of(format!("token/{first}")) };
    assert_eq!(revoke(&bed.admin, &spare).unwrap().leases, 0);
    assert!(who(&ada).is_err());
    assert_eq!(again.renew_lease(one.id).unwrap().state, LeaseState::Granted);
    let done = revoke(&bed.admin, &RevocationRequest::of(format!("token/{second}"))).unwrap();
    assert_eq!((done.tokens, done.leases), (1, 1), "only what was asked for with this one");
    assert_eq!(lease(&bed, one.id).state, LeaseState::Granted);
    assert!(!lease(&bed, other.id).state.is_live());
    let done = revoke(&bed.admin, &RevocationRequest::of(format!("lease/{}", one.id))).unwrap();
    assert_eq!((done.leases, done.gpus), (1, 1));
    assert!(!lease(&bed, one.id).state.is_live());
}

/// A box that was expelled does not come back by its certificate, its key or an old token; its leases have moved.
#[test]
fn a_box_that_was_expelled_comes_back_by_a_new_token_and_a_new_key_alone() {
    let bed = Bed::make();
    let key = NewKey::make().unwrap();
    let again = || NewKey::again(&key.key_pem).unwrap();
    let token = |bed: &Bed| bed.token(AccessKind::Join, "spiffe://dxpu/box/rack1-a", 3_600_000);
    let (used, unused) = (token(&bed), token(&bed));
    let mut gpu_box = SimulatedBox::new("rack1-a", bed.join_key("rack1-a", &used, again()).unwrap(), 1);
    gpu_box.turn();
    let lent = bed.admin.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    let mut other = bed.join("rack1-b", 1);
    other.turn();
    let stolen = RevocationRequest {
        reason: "stolen".to_owned(),
        ..RevocationRequest::of("spiffe://dxpu/box/rack1-a")
    };
    let done = revoke(&bed.admin, &stolen).unwrap();
    assert_eq!((done.machines, done.tokens), (1, 2));
    let refused = gpu_box.try_report().unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Revoked));
    assert!(refused.to_string().contains("was revoked by spiffe://dxpu/admin/first: stolen"), "{refused}");
    assert_eq!(code(gpu_box.client.renew_certificate(&key.request_pem)), ErrorCode::Revoked);
    let returning =
        Client::to_join(bed.admin.credential().managers.clone(), bed.admin.credential().authority.clone());
    let identity = Identity::Box("rack1-a".into());
    assert_eq!(code(returning.unwrap().return_member(&identity, &key.request_pem)), ErrorCode::Revoked);
    for token in [&used, &unused] {
        assert_eq!(code(bed.join_key("rack1-a", token, again()).map(drop)), ErrorCode::Unauthenticated);
    }
    let began = Instant::now();
    while lease(&bed, lent.id).grants.first().is_none_or(|grant| grant.gpu.box_name.as_str() != "rack1-b") {
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", lease(&bed, lent.id));
        other.turn();
    }
    let shown: BoxDetail = bed.admin.get("/v1/boxes/rack1-a", no_wait()).unwrap();
    assert_eq!(
        (shown.record.state, shown.record.revoked.unwrap().reason.as_str()),
        (BoxState::Dead, "stolen")
    );
    assert_eq!(events(&bed, EventKind::BoxRevoked).len(), 1);

    let client = bed.join_key("rack1-a", &token(&bed), NewKey::make().unwrap()).unwrap();
    let mut back = SimulatedBox::new("rack1-a", client, 1);
    back.report.agent = "another".to_owned();
    back.turn();
    let shown: BoxDetail = bed.admin.get("/v1/boxes/rack1-a", no_wait()).unwrap();
    assert_eq!((shown.record.state, shown.record.revoked), (BoxState::Ready, None));
    assert_eq!(code(gpu_box.try_report()), ErrorCode::Revoked, "the thief stays out");
}

/// A certificate ends with the token that bought it; renewed, it lasts a day; after that the key brings it back.
#[test]
fn machines_renew_and_return_by_the_key_they_joined_with() {
    let bed = Bed::make();
    let key = NewKey::make().unwrap();
    let token = bed.token(AccessKind::Join, "spiffe://dxpu/box/rack1-a", 60_000);
    let joining =
        Client::to_join(bed.admin.credential().managers.clone(), bed.admin.credential().authority.clone())
            .unwrap();
    let name = pool_api::Name::new("rack1-a").unwrap();
    let answer = joining.join(&name, &token, &key.request_pem).unwrap();
    assert!(answer.expires_ms <= answer.now_ms + 60_000, "{answer:?}");
    let client = bed.join_key("rack1-a", &token, NewKey::again(&key.key_pem).unwrap()).unwrap();
    let renewed = client.renew_certificate(&key.request_pem).unwrap();
    let day_ms = pool_manager::CERTIFICATE_LIFE.as_millis() as u64;
    assert!((renewed.expires_ms - renewed.now_ms).abs_diff(day_ms) < 5_000, "{renewed:?}");
    let other = NewKey::make().unwrap();
    assert_eq!(code(client.renew_certificate(&other.request_pem)), ErrorCode::Revoked, "another key");
    // Its certificate has ended: the key alone, without any certificate.
    let identity = Identity::Box("rack1-a".into());
    assert!(joining.return_member(&identity, &key.request_pem).is_ok());
    assert_eq!(code(joining.return_member(&identity, &other.request_pem)), ErrorCode::Revoked);
    let nobody = Identity::Box("rack1-b".into());
    assert_eq!(code(joining.return_member(&nobody, &key.request_pem)), ErrorCode::Unauthenticated);
    let admin = Identity::Admin("first".into());
    assert_eq!(code(joining.return_member(&admin, &key.request_pem)), ErrorCode::BadRequest);
    // A machine that joins anew under the name puts the old key out.
    let token = bed.token(AccessKind::Join, "spiffe://dxpu/box/rack1-a", 3_600_000);
    bed.join_key("rack1-a", &token, other).unwrap();
    assert_eq!(code(who(&client)), ErrorCode::Revoked);
    assert_eq!(code(joining.return_member(&identity, &key.request_pem)), ErrorCode::Revoked);
}

/// One certificate of a box, and the certificate of a manager, by its number and by its name.
#[test]
fn single_certificates_and_managers_are_refused_too() {
    let bed = Bed::make();
    let now_ms = pool_manager::Clock::start().now_ms();
    let ours = pool_manager::begin(&*bed.store, &[], &bed.folder.path().join("unused"), now_ms).unwrap();
    let life = pool_auth::Lifetime::starting(now_ms, Duration::from_secs(3600));
    let connect = |identity: Identity| {
        let key = NewKey::make().unwrap();
        let request = CertificateRequest::from_pem(&key.request_pem).unwrap();
        let certificate = ours.certify(&request, &identity, life).unwrap();
        let credential = Credential {
            token: None,
            certificate: Some(certificate),
            key: Some(key.key_pem),
            ..bed.admin.credential().clone()
        };
        Client::new(credential, Patience::ONCE).unwrap()
    };
    let (one, other) = (connect(Identity::Manager("m7".into())), connect(Identity::Manager("m8".into())));
    assert!(who(&one).is_ok() && who(&other).is_ok());
    let der = rustls::pki_types::CertificateDer::from_pem_slice(
        one.credential().certificate.as_ref().unwrap().as_bytes(),
    );
    let serial = pool_auth::certified(&der.unwrap()).unwrap().serial;
    revoke(&bed.admin, &RevocationRequest::of(format!("serial/{serial}"))).unwrap();
    assert_eq!(code(who(&one)), ErrorCode::Revoked);
    assert!(who(&connect(Identity::Manager("m7".into()))).is_ok(), "only that one");
    revoke(&bed.admin, &RevocationRequest::of("spiffe://dxpu/manager/m8")).unwrap();
    assert_eq!(code(who(&other)), ErrorCode::Revoked);
}

/// The deny list is in the store: the next leader refuses the same, and followers send requests on to it.
#[test]
fn every_manager_refuses_what_was_revoked() {
    let bed = Bed::make();
    let second =
        Manager::start(settings(bed.store.clone(), bed.folder.path().join("unused.json"), "m2")).unwrap();
    let mut gpu_box = bed.join("rack1-a", 1);
    gpu_box.turn();
    let (mallory, stolen) = made_by(&bed, &bed.admin, "spiffe://dxpu/admin/mallory");
    let (oscar, _) = made_by(&bed, &mallory, "spiffe://dxpu/admin/oscar");
    let at_second = |client: &Client| {
        let managers = vec![second.advertised().to_owned()];
        Client::new(Credential { managers, ..client.credential().clone() }, Patience::default()).unwrap()
    };
    let (admin, oscar, old_box) = (at_second(&bed.admin), at_second(&oscar), at_second(&gpu_box.client));
    assert!(who(&oscar).is_ok());
    // Asked of the one that follows.
    revoke(&admin, &RevocationRequest::of(format!("token/{stolen}"))).unwrap();
    revoke(&admin, &RevocationRequest::of("spiffe://dxpu/box/rack1-a")).unwrap();
    assert!(who(&oscar).is_err() && code(who(&old_box)) == ErrorCode::Revoked);
    let Bed { manager, store, folder, .. } = bed;
    manager.stop();
    assert!(matches!(code(who(&oscar)), ErrorCode::Revoked | ErrorCode::Unauthenticated));
    assert!(second.is_leading());
    assert_eq!(code(who(&old_box)), ErrorCode::Revoked);
    drop((second, store, folder));
}

/// A manager that dies between the entry in the deny list and what follows from it leaves that to the next.
#[test]
fn what_a_dead_manager_left_is_ended_by_the_next() {
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 2);
    gpu_box.turn();
    let (ada, token) = made_by(&bed, &bed.admin, "spiffe://dxpu/tenant/vision/ada");
    let lent = ada.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    let Bed { manager, store, folder, admin, .. } = bed;
    let listen = manager.address();
    manager.stop();
    // All that it had written.
    let denial = pool_auth::Denial {
        subject: format!("token/{token}").parse().unwrap(),
        since_ms: pool_manager::Clock::start().now_ms(),
        until_ms: u64::MAX,
        by: "spiffe://dxpu/admin/first".to_owned(),
        reason: String::new(),
        alone: false,
        keeps_leases: false,
        boxes: Vec::new(),
    };
    let entry = serde_json::to_vec(&denial).unwrap();
    let written = pool_store::Transaction::new().put(format!("auth/denied/token/{token}"), entry);
    assert!(matches!(store.commit(&written), Ok(pool_store::Outcome::Committed { .. })));
    let mut settings = settings(store.clone(), folder.path().join("unused.json"), "m1");
    settings.listen = listen;
    let manager = Manager::start(settings).unwrap();
    // A patient client waits until the manager leads.
    who(&admin).unwrap();
    assert!(matches!(code(who(&ada)), ErrorCode::Revoked | ErrorCode::Unauthenticated));
    let began = Instant::now();
    loop {
        let lease: Lease = admin.get(&format!("/v1/leases/{}", lent.id), no_wait()).unwrap();
        let tokens: Page<TokenInfo> = admin.get("/v1/tokens", no_wait()).unwrap();
        if !lease.state.is_live() && tokens.items.iter().all(|known| known.id != token) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{lease:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    manager.stop();
}

/// A pool from before members were written down: its boxes go on, and can be expelled.
#[test]
fn machines_that_joined_before_members_were_kept_are_members() {
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 1);
    gpu_box.turn();
    let Bed { manager, store, folder, admin, .. } = bed;
    let listen = manager.address();
    manager.stop();
    let mut forget = pool_store::Transaction::new();
    for key in ["auth/members-known", "auth/member/box/rack1-a"] {
        assert!(store.read(key).unwrap().is_some(), "{key}");
        forget = forget.delete(key);
    }
    assert!(matches!(store.commit(&forget), Ok(pool_store::Outcome::Committed { .. })));
    let mut settings = settings(store.clone(), folder.path().join("unused.json"), "m1");
    settings.listen = listen;
    let manager = Manager::start(settings).unwrap();
    let began = Instant::now();
    while let Err(error) = gpu_box.try_report() {
        assert!(began.elapsed() < Duration::from_secs(10), "{error}");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Its key is learned with the first renewal; then no other has a chance.
    let key = NewKey::again(gpu_box.client.credential().key.as_ref().unwrap()).unwrap();
    gpu_box.client.renew_certificate(&key.request_pem).unwrap();
    let other = NewKey::make().unwrap();
    assert_eq!(code(gpu_box.client.renew_certificate(&other.request_pem)), ErrorCode::Revoked);
    revoke(&admin, &RevocationRequest::of("spiffe://dxpu/box/rack1-a")).unwrap();
    assert_eq!(code(gpu_box.try_report()), ErrorCode::Revoked);
    manager.stop();
}

/// Two agents with one identity: an event that operators see, and an entry of the audit trail.
#[test]
fn a_copied_identity_is_told() {
    let bed = Bed::make();
    let mut original = bed.join("rack1-a", 1);
    original.turn();
    let client = Client::new(original.client.credential().clone(), Patience::ONCE).unwrap();
    let mut copy = SimulatedBox::new("rack1-a", client, 1);
    copy.report.agent = "agent-of-a-thief".to_owned();
    // Started once more is no copy.
    original.report.agent = "agent-started-again".to_owned();
    original.turn();
    assert!(events(&bed, EventKind::IdentityCopied).is_empty());
    for _ in 0..8 {
        copy.try_report().unwrap();
        original.try_report().unwrap();
    }
    let told = events(&bed, EventKind::IdentityCopied);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].box_name.as_ref().unwrap().as_str(), "rack1-a");
    assert!(told[0].message.contains("dxpu box revoke rack1-a"), "{told:?}");
    bed.audited(|entry| entry.action == "access.copied" && entry.target == "box/rack1-a");
}

/// A manager whose machine was asleep counts on where it fell asleep. What it certifies is judged by the system's clock,
/// so that it must be dated by it: certificates of a day would have ended before they were made.
#[test]
fn a_manager_that_was_asleep_for_days_certifies_what_holds() {
    const DAYS_MS: u64 = 5 * 24 * 3_600_000;
    let Bed { manager, store, folder, admin, admin_file } = Bed::make();
    let listen = manager.address();
    manager.stop();
    let mut settings = settings(store.clone(), folder.path().join("unused.json"), "m1");
    let behind_ms = pool_manager::Clock::start().now_ms() - DAYS_MS;
    (settings.listen, settings.clock) = (listen, pool_manager::Clock::starting_at(behind_ms));
    let manager = Manager::start(settings).unwrap();
    let bed = Bed { manager, store, folder, admin, admin_file };
    who(&bed.admin).unwrap();
    bed.join("rack1-a", 1).turn();
}
