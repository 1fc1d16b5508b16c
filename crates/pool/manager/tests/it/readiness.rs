//! `/readyz` tells what is, not what was.

use std::time::{Duration, Instant};

use pool_auth::Credential;
use pool_client::{Client, Patience};
use pool_manager::{ELECTION, Manager};
use pool_store::{Campaign, Candidacy};

use crate::bed::{Bed, settings};

fn asks(manager: &Manager, credential: &Credential) -> Result<serde_json::Value, String> {
    let credential = Credential { managers: vec![manager.advertised().to_owned()], ..credential.clone() };
    let client = Client::new(credential, Patience::ONCE).unwrap();
    client.get("/readyz", Duration::ZERO).map_err(|error| error.to_string())
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(15), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A leader that was killed says nothing of it: the store names it until its time is over.
#[test]
fn nobody_is_ready_while_the_leader_is_dead_and_not_replaced() {
    let Bed { manager, store, folder, admin, .. } = Bed::make();
    let credential = admin.credential().clone();
    until("the leader is ready", || asks(&manager, &credential).is_ok());
    let second = Manager::start(settings(store.clone(), folder.path().join("unused.json"), "m2")).unwrap();
    until("a follower of one that lives is ready", || {
        asks(&second, &credential).is_ok_and(|health| health["standing"] == "following")
    });
    manager.stop();
    until("the second leads", || second.is_leading());
    second.stop();

    // As a killed manager leaves it: the record names a leader whose process is gone.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = Candidacy {
        name: ELECTION.to_owned(),
        address: format!("https://{}", gone.local_addr().unwrap()),
        ttl: Duration::from_secs(6),
    };
    drop(gone);
    let Campaign::Won(_) = store.campaign(&dead).unwrap() else { panic!("the office is free") };
    let third = Manager::start(settings(store.clone(), folder.path().join("unused.json"), "m3")).unwrap();
    let began = Instant::now();
    while !third.is_leading() {
        if let Ok(health) = asks(&third, &credential) {
            assert!(third.is_leading(), "ready after {:?}, and nobody leads: {health}", began.elapsed());
        }
        assert!(began.elapsed() < Duration::from_secs(20));
    }
    until("the third is ready", || asks(&third, &credential).is_ok());
    drop((third, store, folder));
}

/// A manager that was killed and is here again is named as leader itself, and sends its clients in a circle.
#[test]
fn a_manager_that_was_killed_is_ready_again_when_it_leads_again() {
    let Bed { manager, store, folder, admin, .. } = Bed::make();
    let credential = admin.credential().clone();
    let listen = manager.address();
    let own = Candidacy {
        name: ELECTION.to_owned(),
        address: manager.advertised().to_owned(),
        ttl: Duration::from_secs(4),
    };
    manager.stop();
    let Campaign::Won(_) = store.campaign(&own).unwrap() else { panic!("the office is free") };
    let mut again = settings(store, folder.path().join("unused.json"), "m1");
    again.listen = listen;
    let again = Manager::start(again).unwrap();
    let mut refusals = 0;
    while !again.is_leading() {
        match asks(&again, &credential) {
            Ok(health) => assert!(again.is_leading(), "it says {health}"),
            Err(_) => refusals += 1,
        }
    }
    assert!(refusals > 0);
    until("it is ready", || asks(&again, &credential).is_ok());
}

/// A leader whose store is gone is not ready, long before it stops to lead.
#[test]
fn a_leader_without_its_store_is_not_ready() {
    use pool_store::{Fault, Memory, Store};
    let folder = tempfile::tempdir().unwrap();
    let memory = std::sync::Arc::new(Memory::new());
    let store: std::sync::Arc<dyn Store> = memory.clone();
    let admin_file = folder.path().join("admin.json");
    let mut wanted = settings(store, admin_file.clone(), "m1");
    wanted.leader_ttl = Duration::from_secs(60);
    let manager = Manager::start(wanted).unwrap();
    let credential: Credential = serde_json::from_slice(&std::fs::read(&admin_file).unwrap()).unwrap();
    until("it is ready", || asks(&manager, &credential).is_ok());
    memory.set_hook(|_| Fault::Before);
    let began = Instant::now();
    // It has to notice; a write does, at the latest.
    let client = Client::new(
        Credential { managers: vec![manager.advertised().to_owned()], ..credential.clone() },
        Patience::ONCE,
    )
    .unwrap();
    let asked = std::thread::spawn(move || {
        let _ = client.create_lease(&pool_api::LeaseRequest::default(), "k");
    });
    until("it says so", || asks(&manager, &credential).is_err());
    println!("not ready {:?} after the store was gone", began.elapsed());
    memory.clear_hook();
    asked.join().unwrap();
    until("it is ready again", || asks(&manager, &credential).is_ok());
}
