//! What must hold when processes are killed or frozen; the same for every engine that has processes.

use std::time::{Duration, Instant};

use pool_store::{Campaign, Leadership, Outcome, Revision, Store, Transaction, Want};
use rustix::process::Signal;

use crate::conformance::eventually;
use crate::peer::{Peer, candidacy};

pub(crate) fn run(location: &str, store: &dyn Store) {
    for round in 0..3 {
        a_killed_leader_loses_nothing_it_was_told(location, store, round);
    }
    let mut peer = Peer::start_to_freeze(location, 20);
    let tenure = peer.leading();
    peer.done(20);
    a_frozen_leader_wakes_up_to_a_refusal(&mut peer, tenure, store);
}

/// For engines whose other clients do not depend on what a frozen one was doing.
pub(crate) fn run_frozen_at_any_moment(location: &str, store: &dyn Store) {
    for _ in 0..3 {
        let mut peer = Peer::start(location);
        let tenure = peer.leading();
        peer.done(20);
        peer.signal(Signal::STOP);
        a_frozen_leader_wakes_up_to_a_refusal(&mut peer, tenure, store);
    }
}

fn take_over(store: &dyn Store) -> Leadership {
    eventually("the office is free", || match store.campaign(&candidacy("test")).unwrap() {
        Campaign::Won(leadership) => Some(leadership),
        Campaign::Led(_) => None,
    })
}

/// What the leader of one tenure wrote: when, in the order of its numbers.
fn work(store: &dyn Store, tenure: Revision) -> Vec<Revision> {
    let prefix = format!("work/{:020}/", tenure.0);
    let records = store.list(&prefix, Want::Records).unwrap().records().unwrap();
    for (number, record) in records.iter().enumerate() {
        assert_eq!(record.key, format!("{prefix}{number:08}"), "none is missing in between");
        assert_eq!(record.value.len(), 200);
    }
    records.into_iter().map(|record| record.modified).collect()
}

fn a_killed_leader_loses_nothing_it_was_told(location: &str, store: &dyn Store, round: u64) {
    let mut peer = Peer::start(location);
    let tenure = peer.leading();
    assert_eq!(store.leader("work").unwrap().unwrap().address, "peer");
    let at_least = 20 + 13 * round;
    peer.done(at_least);
    std::thread::sleep(Duration::from_micros(777 * round));
    let told = peer.kill().map_or(at_least, |last| last + 1);
    let killed_at = Instant::now();

    let leadership = take_over(store);
    let took = killed_at.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    let found = work(store, tenure);
    let count = found.len() as u64;
    assert!(count == told || count == told + 1, "told {told}, found {count}");
    assert!(found.iter().all(|revision| *revision < leadership.tenure));
    println!("leader killed after {told} writes, replaced after {took:?}");
    store.resign(&leadership).unwrap();
}

fn a_frozen_leader_wakes_up_to_a_refusal(peer: &mut Peer, tenure: Revision, store: &dyn Store) {
    let frozen_at = Instant::now();
    let leadership = take_over(store);
    let took = frozen_at.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    let before = work(store, tenure);
    let ours = Transaction::new().when(leadership.condition()).put("work/ours", "1");
    assert!(matches!(store.commit(&ours).unwrap(), Outcome::Committed { .. }));

    peer.signal(Signal::CONT);
    let told = peer.refused();
    let after = work(store, tenure);
    assert_eq!(after, before, "nothing of the old leader came after the new one began");
    assert!(after.iter().all(|revision| *revision < leadership.tenure));
    assert!(told.is_none_or(|last| last < after.len() as u64), "it was told {told:?} of {}", after.len());
    assert_eq!(store.leader("work").unwrap().unwrap().address, "test");
    println!("leader frozen, replaced after {took:?}, refused when it woke up");
    store.resign(&leadership).unwrap();
}
