//! One leader at a time, and the writes of all earlier ones refused.

use std::time::Duration;

use pool_store::{Campaign, Candidacy, Leadership, Outcome, Store, StoreError, Transaction};

use super::{Subject, commit, eventually, value};

pub(super) fn run(subject: &Subject<'_>) {
    one_leads_and_all_know_where(subject);
    a_leader_that_resigns_is_followed_at_once(subject);
    a_silent_leader_is_replaced_and_fenced(subject);
    a_leader_that_is_heard_stays(subject);
    fencing_refuses_what_was_sent_before(subject);
    a_new_leader_sees_all_its_predecessor_wrote(subject);
    elections_are_apart(subject);
}

/// The shortest that etcd can do.
pub(super) const TTL: Duration = Duration::from_secs(2);

pub(super) fn candidacy(name: &str, address: &str) -> Candidacy {
    Candidacy { name: name.into(), address: address.into(), ttl: TTL }
}

pub(super) fn win(store: &dyn Store, name: &str, address: &str) -> Leadership {
    match store.campaign(&candidacy(name, address)).unwrap() {
        Campaign::Won(leadership) => leadership,
        Campaign::Led(leader) => panic!("{leader:?} leads"),
    }
}

/// Lets time pass until the office is free, and takes it.
fn win_later(subject: &Subject<'_>, store: &dyn Store, name: &str, address: &str) -> Leadership {
    eventually("the old leader's time is over", || match store.campaign(&candidacy(name, address)).unwrap() {
        Campaign::Won(leadership) => Some(leadership),
        Campaign::Led(_) => {
            (subject.pass)(TTL / 20);
            None
        }
    })
}

fn write(store: &dyn Store, leadership: &Leadership, key: &str, text: &str) -> Outcome {
    store.commit(&Transaction::new().when(leadership.condition()).put(key, text)).unwrap()
}

fn assert_lost<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    assert!(matches!(result, Err(StoreError::LeadershipLost { .. })), "{result:?}");
}

fn one_leads_and_all_know_where(subject: &Subject<'_>) {
    let (one, other) = (subject.client(), subject.client());
    assert_eq!(other.leader("first").unwrap(), None);
    let leadership = win(&*one, "first", "host-1:7070");
    assert!(leadership.ttl >= TTL);

    let leader = other.leader("first").unwrap().expect("one leads");
    assert_eq!((leader.address.as_str(), leader.tenure), ("host-1:7070", leadership.tenure));
    assert_eq!(other.campaign(&candidacy("first", "host-2:7070")).unwrap(), Campaign::Led(leader.clone()));
    assert_eq!(one.campaign(&candidacy("first", "host-1:7070")).unwrap(), Campaign::Led(leader));
    assert_eq!(value(&*other, &leadership.key).as_deref(), Some("host-1:7070"));
    assert!(write(&*one, &leadership, "first/a", "1").committed().is_some());
    one.resign(&leadership).unwrap();
}

fn a_leader_that_resigns_is_followed_at_once(subject: &Subject<'_>) {
    let (one, other) = (subject.client(), subject.client());
    let old = win(&*one, "resign", "host-1");
    one.resign(&old).unwrap();
    assert_eq!(other.leader("resign").unwrap(), None);
    let new = win(&*other, "resign", "host-2");
    assert!(new.tenure > old.tenure);

    assert_lost(one.keep_alive(&old));
    assert_lost(one.fence(&old));
    one.resign(&old).expect("resigning again is no error, and touches nobody else");
    assert_eq!(one.leader("resign").unwrap().unwrap().address, "host-2");
    assert!(matches!(write(&*one, &old, "resign/a", "old"), Outcome::Conflict { condition: 0, .. }));
    assert!(write(&*other, &new, "resign/a", "new").committed().is_some());
    other.resign(&new).unwrap();
}

fn a_silent_leader_is_replaced_and_fenced(subject: &Subject<'_>) {
    let (one, other) = (subject.client(), subject.client());
    let old = win(&*one, "silent", "host-1");
    assert!(write(&*one, &old, "silent/a", "old").committed().is_some());
    (subject.pass)(TTL / 2);
    assert!(matches!(other.campaign(&candidacy("silent", "host-2")).unwrap(), Campaign::Led(_)));

    let new = win_later(subject, &*other, "silent", "host-2");
    assert!(new.tenure > old.tenure);
    assert!(write(&*other, &new, "silent/a", "new").committed().is_some());
    let late = write(&*one, &old, "silent/a", "late");
    assert!(matches!(late, Outcome::Conflict { condition: 0, .. }), "{late:?}");
    assert_eq!(value(&*one, "silent/a").as_deref(), Some("new"));
    assert_lost(one.keep_alive(&old));
    assert_lost(one.fence(&old));
    other.keep_alive(&new).unwrap();
    other.resign(&new).unwrap();
}

fn a_leader_that_is_heard_stays(subject: &Subject<'_>) {
    let (one, other) = (subject.client(), subject.client());
    let leadership = win(&*one, "heard", "host-1");
    for _ in 0..6 {
        (subject.pass)(TTL / 3);
        one.keep_alive(&leadership).unwrap();
        assert!(matches!(other.campaign(&candidacy("heard", "host-2")).unwrap(), Campaign::Led(_)));
    }
    assert!(write(&*one, &leadership, "heard/a", "1").committed().is_some());
    one.resign(&leadership).unwrap();
}

fn fencing_refuses_what_was_sent_before(subject: &Subject<'_>) {
    let store = subject.client();
    let before = win(&*store, "fence", "host-1");
    let after = store.fence(&before).unwrap();
    assert_eq!(after.tenure, before.tenure);
    assert!(after.revision > before.revision);
    assert!(matches!(write(&*store, &before, "fence/a", "old"), Outcome::Conflict { condition: 0, .. }));
    assert!(write(&*store, &after, "fence/a", "new").committed().is_some());
    assert_eq!(store.leader("fence").unwrap().unwrap().address, "host-1");

    // Fencing with what one knew before is as good, and both are kept alive by their tenure.
    let again = store.fence(&before).unwrap();
    assert!(again.revision > after.revision);
    store.keep_alive(&before).unwrap();
    store.keep_alive(&again).unwrap();
    // A fenced leadership still ends with its time.
    let next = win_later(subject, &*store, "fence", "host-2");
    assert_lost(store.fence(&again));
    store.resign(&next).unwrap();
}

fn a_new_leader_sees_all_its_predecessor_wrote(subject: &Subject<'_>) {
    let (one, other) = (subject.client(), subject.client());
    let old = win(&*one, "heir", "host-1");
    let mut last = old.revision;
    for number in 0..20 {
        let transaction = Transaction::new().when(old.condition()).put("heir/count", number.to_string());
        last = commit(&*one, transaction);
    }
    let new = win_later(subject, &*other, "heir", "host-2");
    assert!(new.tenure > last, "a tenure is younger than all that was written before it");
    assert_eq!(value(&*other, "heir/count").as_deref(), Some("19"));
    other.resign(&new).unwrap();
}

fn elections_are_apart(subject: &Subject<'_>) {
    let store = subject.client();
    let one = win(&*store, "apart", "host-1");
    let other = win(&*store, "apart/2", "host-2");
    store.resign(&one).unwrap();
    assert_eq!(store.leader("apart").unwrap(), None);
    assert_eq!(store.leader("apart/2").unwrap().unwrap().address, "host-2");
    store.keep_alive(&other).unwrap();
    store.resign(&other).unwrap();
}
