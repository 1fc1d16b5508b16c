//! Several managers on one store: one leads, the others send clients there, and one of them takes over.

use std::time::{Duration, Instant};

use pool_api::{Event, EventKind, LeaseRequest, LeaseState, Page};
use pool_auth::Credential;
use pool_client::{Client, Patience, idempotency_key};
use pool_manager::Manager;

use crate::bed::{Bed, HANG, settings};

/// Longer than any test runs.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

#[test]
fn a_follower_sends_clients_to_the_leader_and_takes_over() {
    // The test would not live to see the leadership run out: only by resigning does the first make way.
    let bed = Bed::with(|settings| settings.leader_ttl = FOR_EVER);
    let mut second = settings(bed.store.clone(), bed.folder.path().join("unused.json"), "m2");
    second.leader_ttl = FOR_EVER;
    let second = Manager::start(second).unwrap();
    let mut gpu_box = bed.join("rack1-a", 1);
    gpu_box.turn();
    let credential =
        Credential { managers: vec![second.advertised().to_owned()], ..bed.admin.credential().clone() };
    // It knows only the follower, and is sent on.
    let client = Client::new(credential, Patience::default()).unwrap();
    let lease = client.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    assert_eq!(lease.state, LeaseState::Granted);
    assert!(!second.is_leading());

    let Bed { manager, store, folder, .. } = bed;
    manager.stop();
    let kept = client.renew_lease(lease.id).unwrap();
    assert_eq!((kept.state, kept.grants), (LeaseState::Granted, lease.grants));
    assert!(second.is_leading());
    drop((second, store, folder));
}

/// That another leads is an event like any other; that the same one does after a restart is none.
#[test]
fn events_tell_who_leads_when_it_is_another() {
    let told = |client: &Client| -> Vec<String> {
        let page: Page<Event> = client.get("/v1/events", Duration::ZERO).unwrap();
        let changes = page.items.into_iter().filter(|event| event.kind == EventKind::LeaderChanged);
        changes.map(|event| event.message).collect()
    };
    let Bed { manager, store, folder, admin, .. } = Bed::make();
    assert_eq!(told(&admin), ["m1 leads"]);
    let listen = manager.address();
    manager.stop();
    for (name, expected) in [
        ("m1", &["m1 leads"][..]),
        ("m2", &["m1 leads", "m2 leads"]),
        ("m1", &["m1 leads", "m2 leads", "m1 leads"]),
    ] {
        let mut settings = settings(store.clone(), folder.path().join("unused.json"), name);
        settings.listen = listen;
        let manager = Manager::start(settings).unwrap();
        assert_eq!(told(&admin), expected);
        manager.stop();
    }
}

/// Leaders whose clocks are hours apart: nothing expires at once, nothing lives for hours, tokens open.
#[test]
fn clocks_that_differ_by_hours_do_not_matter() {
    const HOURS_MS: u64 = 6 * 3600 * 1000;
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 2);
    gpu_box.turn();
    let kept = bed.admin.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    let short = LeaseRequest { ttl_ms: 2000, ..LeaseRequest::default() };
    let Bed { manager, store, folder, admin, .. } = bed;
    let listen = manager.address();
    manager.stop();
    let now_ms = pool_manager::Clock::start().now_ms();
    for began_ms in [now_ms + HOURS_MS, now_ms - HOURS_MS] {
        let mut settings = settings(store.clone(), folder.path().join("unused.json"), "m1");
        (settings.listen, settings.clock) = (listen, pool_manager::Clock::starting_at(began_ms));
        let manager = Manager::start(settings).unwrap();
        let renewed = admin.renew_lease(kept.id).unwrap();
        assert_eq!((renewed.state, &renewed.grants), (LeaseState::Granted, &kept.grants));
        assert!(renewed.expires_ms.abs_diff(began_ms) < HOURS_MS / 2, "by the clock of who leads now");
        let orders = gpu_box.turn();
        let keys: Vec<_> = orders.lease_keys.iter().map(|key| key.parse().unwrap()).collect();
        let tokens = admin.lease_tokens(kept.id).unwrap();
        let grant = &tokens.grants[0];
        let slot = u16::from(grant.gpu.slot);
        pool_auth::lease_token::verify(&grant.token, &keys, "rack1-a", slot, orders.now_ms).unwrap();
        // A borrower that is gone is noticed after its time to live, not hours later.
        let gone = admin.create_lease(&short, &idempotency_key()).unwrap();
        assert_eq!(gone.state, LeaseState::Granted);
        let began = Instant::now();
        let is_over = || {
            admin.renew_lease(kept.id).unwrap();
            let all: pool_api::Page<pool_api::Lease> = admin.get("/v1/leases", Duration::ZERO).unwrap();
            all.items.iter().any(|lease| lease.id == gone.id && !lease.state.is_live())
        };
        while !is_over() {
            assert!(began.elapsed() < HANG, "a lease outlives its borrower");
            std::thread::sleep(Duration::from_millis(200));
        }
        gpu_box.turn();
        manager.stop();
    }
}

/// A frozen manager takes connections and says nothing. A client that knows another goes there, and stays
/// there, though it was the frozen one that led.
#[test]
fn a_manager_that_says_nothing_is_left_for_one_that_answers() {
    let bed = Bed::make();
    let frozen = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("https://{}", frozen.local_addr().unwrap());
    let mut credential = bed.admin.credential().clone();
    credential.managers.insert(0, silent);
    let client = Client::new(credential, Patience::default()).unwrap();
    // What the frozen one is asked lies in its queue of connections.
    frozen.set_nonblocking(true).unwrap();
    let was_asked = || std::iter::from_fn(|| frozen.accept().ok()).count();
    client.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    assert!(was_asked() > 0, "the first on its list is asked first");
    client.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    assert_eq!(was_asked(), 0, "the client stays with the one that answered");
}
