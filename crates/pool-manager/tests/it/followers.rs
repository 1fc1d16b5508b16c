//! Several managers on one store: one leads, the others send clients there, and one of them takes over.

use std::time::{Duration, Instant};

use pool_api::{LeaseRequest, LeaseState};
use pool_auth::Credential;
use pool_client::{Client, Patience, idempotency_key};
use pool_manager::Manager;

use crate::bed::{Bed, settings};

#[test]
fn a_follower_sends_clients_to_the_leader_and_takes_over() {
    let bed = Bed::make();
    let second =
        Manager::start(settings(bed.store.clone(), bed.folder.path().join("unused.json"), "m2")).unwrap();
    let mut gpu_box = bed.join("rack1-a", 1);
    gpu_box.turn();
    let began = Instant::now();
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
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop((second, store, folder));
}
