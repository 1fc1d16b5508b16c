//! The thread that campaigns for its process.

use pool_store::{Elector, Leadership, Standing, Transaction};

use super::elections::{TTL, candidacy, win};
use super::{SOON, Subject, eventually};

pub(super) fn run(subject: &Subject<'_>) {
    electors_pass_the_office_on(subject);
    an_elector_notices_that_it_was_replaced(subject);
}

fn standing(elector: &Elector) -> Standing {
    elector.standings().recv_timeout(SOON).expect("a standing within seconds")
}

fn leading(elector: &Elector) -> Leadership {
    loop {
        if let Standing::Leading(leadership) = standing(elector) {
            return leadership;
        }
    }
}

fn electors_pass_the_office_on(subject: &Subject<'_>) {
    let store = subject.client();
    let one = Elector::start(subject.client(), candidacy("electors", "host-1"));
    let first = leading(&one);
    assert!(one.is_leading());
    let other = Elector::start(subject.client(), candidacy("electors", "host-2"));
    match standing(&other) {
        Standing::Following(Some(leader)) => assert_eq!(leader.address, "host-1"),
        standing => panic!("{standing:?}"),
    }
    // Long enough that only signs of life can have kept it.
    std::thread::sleep(TTL * 2);
    assert!(one.is_leading() && !other.is_leading());
    assert!(one.standings().try_recv().is_err(), "nothing changed");

    drop(one);
    let second = leading(&other);
    assert!(second.tenure > first.tenure);
    assert_eq!(store.leader("electors").unwrap().unwrap().address, "host-2");
    drop(other);
    assert_eq!(store.leader("electors").unwrap(), None);
}

fn an_elector_notices_that_it_was_replaced(subject: &Subject<'_>) {
    let store = subject.client();
    let elector = Elector::start(subject.client(), candidacy("replaced", "host-1"));
    let old = leading(&elector);
    store.resign(&old).unwrap();
    let usurper = win(&*store, "replaced", "host-2");
    assert_eq!(standing(&elector), Standing::Following(None));
    assert!(!elector.is_leading());
    match standing(&elector) {
        Standing::Following(Some(leader)) => assert_eq!(leader.address, "host-2"),
        standing => panic!("{standing:?}"),
    }
    store.resign(&usurper).unwrap();
    let new = leading(&elector);
    let transaction = Transaction::new().when(new.condition()).put("replaced/a", "1");
    assert!(store.commit(&transaction).unwrap().committed().is_some());
    drop(elector);
    eventually("the office is free", || store.leader("replaced").unwrap().is_none().then_some(()));
}
