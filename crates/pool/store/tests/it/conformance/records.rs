//! Reading, listing and committing.

use std::sync::atomic::{AtomicUsize, Ordering};

use pool_store::{
    Condition, Listing, Outcome, Refusal, Revision, Store, StoreError, Transaction, Want, trim,
};

use super::{Subject, commit, delete, put, value};

pub(super) fn run(subject: &Subject<'_>) {
    what_is_put_is_read_everywhere(subject);
    revisions_grow_and_records_remember_theirs(subject);
    a_condition_that_fails_stops_everything(subject);
    the_first_failing_condition_is_named(subject);
    a_transaction_that_changes_nothing_makes_no_revision(subject);
    bad_transactions_are_refused(subject);
    a_transaction_as_large_as_allowed_is_one(subject);
    a_listing_is_one_moment(subject);
    prefixes_do_not_bleed(subject);
    racing_clients_never_both_win(subject);
    trimming_removes_the_oldest(subject);
}

fn what_is_put_is_read_everywhere(subject: &Subject<'_>) {
    let (one, other) = (subject.client(), subject.client());
    assert_eq!(one.read("read/a").unwrap(), None);
    let revision = put(&*one, "read/a", "1");
    let record = other.read("read/a").unwrap().expect("there now");
    assert_eq!((record.key.as_str(), record.value.as_slice()), ("read/a", b"1".as_slice()));
    assert_eq!((record.created, record.modified), (revision, revision));

    let binary: Vec<u8> = (0..=255).collect();
    commit(&*other, Transaction::new().put("read/größe", binary.clone()).put("read/empty", ""));
    assert_eq!(one.read("read/größe").unwrap().unwrap().value, binary);
    assert_eq!(value(&*one, "read/empty").as_deref(), Some(""));
}

fn revisions_grow_and_records_remember_theirs(subject: &Subject<'_>) {
    let store = subject.client();
    let made = put(&*store, "rev/a", "1");
    let changed = put(&*store, "rev/a", "2");
    assert!(made < changed);
    let record = store.read("rev/a").unwrap().unwrap();
    assert_eq!((record.created, record.modified), (made, changed));

    let deleted = delete(&*store, "rev/a");
    assert!(changed < deleted);
    assert_eq!(store.read("rev/a").unwrap(), None);
    let again = put(&*store, "rev/a", "3");
    let record = store.read("rev/a").unwrap().unwrap();
    assert_eq!((record.created, record.modified), (again, again), "a key put again is a new one");

    let both = commit(&*store, Transaction::new().put("rev/b", "1").put("rev/c", "1"));
    for key in ["rev/b", "rev/c"] {
        assert_eq!(store.read(key).unwrap().unwrap().modified, both, "one transaction, one revision");
    }
}

fn a_condition_that_fails_stops_everything(subject: &Subject<'_>) {
    let store = subject.client();
    let first = put(&*store, "cas/a", "1");
    let second = commit(
        &*store,
        Transaction::new().when(Condition::modified_at("cas/a", first)).put("cas/a", "2").put("cas/b", "2"),
    );
    let stale = Transaction::new()
        .when(Condition::modified_at("cas/a", first))
        .put("cas/a", "3")
        .delete("cas/b")
        .put("cas/c", "3");
    assert_eq!(store.commit(&stale).unwrap(), Outcome::Conflict { condition: 0, found: Some(second) });
    assert_eq!(value(&*store, "cas/a").as_deref(), Some("2"));
    assert_eq!(value(&*store, "cas/b").as_deref(), Some("2"));
    assert_eq!(value(&*store, "cas/c"), None);
}

fn the_first_failing_condition_is_named(subject: &Subject<'_>) {
    let store = subject.client();
    let revision = put(&*store, "name/a", "1");
    let conflict = |conditions: Vec<Condition>| {
        let writes = Transaction::new().put("name/x", "1").writes;
        store.commit(&Transaction { conditions, writes }).unwrap()
    };
    assert_eq!(
        conflict(vec![
            Condition::present("name/a"),
            Condition::modified_at("name/a", revision),
            Condition::absent("name/none"),
            Condition::absent("name/a"),
            Condition::present("name/none"),
        ]),
        Outcome::Conflict { condition: 3, found: Some(revision) }
    );
    assert_eq!(
        conflict(vec![Condition::present("name/none")]),
        Outcome::Conflict { condition: 0, found: None }
    );
    assert_eq!(
        conflict(vec![Condition::modified_at("name/none", revision)]),
        Outcome::Conflict { condition: 0, found: None }
    );
    assert_eq!(value(&*store, "name/x"), None);
}

fn a_transaction_that_changes_nothing_makes_no_revision(subject: &Subject<'_>) {
    let store = subject.client();
    let revision = put(&*store, "noop/a", "1");
    assert_eq!(commit(&*store, Transaction::new()), revision);
    assert_eq!(delete(&*store, "noop/none"), revision);
    assert_eq!(commit(&*store, Transaction::new().when(Condition::present("noop/a"))), revision);
    assert!(put(&*store, "noop/a", "1") > revision, "a put of the same value is a change");
}

fn bad_transactions_are_refused(subject: &Subject<'_>) {
    let store = subject.client();
    let refused = |transaction: Transaction| match store.commit(&transaction) {
        Err(StoreError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let limits = store.limits();
    let mut many = Transaction::new();
    for number in 0..=limits.writes {
        many = many.put(format!("bad/{number}"), "");
    }
    assert_eq!(refused(many), Refusal::TooManyWrites { asked: limits.writes + 1, limit: limits.writes });
    let large = Transaction::new().put("bad/large", vec![0; limits.bytes]);
    assert!(matches!(refused(large), Refusal::TooManyBytes { .. }));
    assert_eq!(
        refused(Transaction::new().put("bad/a", "1").delete("bad/a")),
        Refusal::WrittenTwice { key: "bad/a".into() }
    );
    assert!(matches!(refused(Transaction::new().put("leader/bad", "me")), Refusal::ReservedKey { .. }));
    assert!(matches!(refused(Transaction::new().put("bad/\n", "1")), Refusal::BadKey { .. }));
    assert!(store.list("bad/", Want::Keys).unwrap().records().unwrap().is_empty());
}

fn a_transaction_as_large_as_allowed_is_one(subject: &Subject<'_>) {
    let store = subject.client();
    let count = store.limits().writes.min(20_000);
    let mut transaction = Transaction::new();
    for number in 0..count {
        transaction = transaction.when(Condition::absent(format!("large/{number:06}")));
        transaction = transaction.put(format!("large/{number:06}"), "x");
    }
    let revision = commit(&*store, transaction.clone());
    let records = store.list("large/", Want::Records).unwrap().records().unwrap();
    assert_eq!(records.len(), count);
    assert!(records.iter().all(|record| record.modified == revision && record.value == b"x"));
    assert_eq!(
        store.commit(&transaction).unwrap(),
        Outcome::Conflict { condition: 0, found: Some(revision) }
    );
}

fn a_listing_is_one_moment(subject: &Subject<'_>) {
    const COUNT: usize = 10_000;
    let store = subject.client();
    let mut revision = Revision::default();
    for batch in (0..COUNT).collect::<Vec<_>>().chunks(store.limits().writes.min(1000)) {
        let mut transaction = Transaction::new();
        for number in batch {
            transaction = transaction.put(format!("list/{number:06}"), format!("{number}"));
        }
        revision = commit(&*store, transaction);
    }

    let mut listing = store.list("list/", Want::Records).unwrap();
    assert_eq!(listing.revision(), revision);
    let mut records = listing.next().expect("a first page").unwrap();
    assert!(records.len() < COUNT, "so many records are more than a page");
    // What happens after the first page is not part of it, before or behind the place reached.
    commit(
        &*store,
        Transaction::new()
            .put("list/000000", "late")
            .put("list/009999", "late")
            .delete("list/009998")
            .put("list/010000", "late"),
    );
    for page in listing {
        records.extend(page.unwrap());
    }
    assert_eq!(records.len(), COUNT);
    for (number, record) in records.iter().enumerate() {
        assert_eq!(
            (record.key.clone(), record.value.clone()),
            (format!("list/{number:06}"), format!("{number}").into())
        );
        assert!(record.modified <= revision);
    }

    let keys = store.list("list/", Want::Keys).unwrap();
    assert!(keys.revision() > revision);
    let keys = keys.records().unwrap();
    assert_eq!(keys.len(), COUNT, "one more, one less");
    assert!(keys.iter().all(|record| record.value.is_empty()));
    assert_eq!(keys.last().unwrap().key, "list/010000");
}

fn prefixes_do_not_bleed(subject: &Subject<'_>) {
    let store = subject.client();
    for key in ["pre/a", "pre/a/1", "pre/a0", "pre/aé", "pre/b", "pre", "prf/"] {
        put(&*store, key, "1");
    }
    let keys = |listing: Listing| -> Vec<String> {
        listing.records().unwrap().into_iter().map(|record| record.key).collect()
    };
    assert_eq!(keys(store.list("pre/a", Want::Keys).unwrap()), ["pre/a", "pre/a/1", "pre/a0", "pre/aé"]);
    assert_eq!(keys(store.list("pre/a/", Want::Keys).unwrap()), ["pre/a/1"]);
    assert_eq!(keys(store.list("pre/none", Want::Keys).unwrap()), [""; 0]);
    let all = keys(store.list("", Want::Keys).unwrap());
    assert!(all.is_sorted_by(|one, other| one.as_bytes() < other.as_bytes()));
    assert!(["pre", "prf/", "pre/aé"].iter().all(|key| all.iter().any(|found| found == key)));
}

/// Many clients count one number up; every increment must be there at the end.
fn racing_clients_never_both_win(subject: &Subject<'_>) {
    const CLIENTS: usize = 4;
    const EACH: usize = 25;
    put(&*subject.client(), "race/count", "0");
    let conflicts = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let store = subject.client();
            let conflicts = &conflicts;
            scope.spawn(move || {
                for _ in 0..EACH {
                    while !try_to_count(&*store) {
                        conflicts.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let count = value(&*subject.client(), "race/count").unwrap();
    assert_eq!(count, (CLIENTS * EACH).to_string(), "{conflicts:?} conflicts");
}

fn try_to_count(store: &dyn Store) -> bool {
    let record = store.read("race/count").unwrap().unwrap();
    let count: usize = std::str::from_utf8(&record.value).unwrap().parse().unwrap();
    let transaction = Transaction::new()
        .when(Condition::modified_at("race/count", record.modified))
        .put("race/count", (count + 1).to_string());
    store.commit(&transaction).unwrap().committed().is_some()
}

fn trimming_removes_the_oldest(subject: &Subject<'_>) {
    let store = subject.client();
    for number in 0..700 {
        put(&*store, &format!("log/{number:05}"), "entry");
    }
    put(&*store, "log0", "not part of it");
    assert_eq!(trim(&*store, "log/", 40, &[Condition::present("log/none")]).unwrap(), 0, "not ours to trim");
    assert_eq!(trim(&*store, "log/", 40, &[]).unwrap(), 660);
    assert_eq!(trim(&*store, "log/", 40, &[]).unwrap(), 0);
    let left = store.list("log/", Want::Keys).unwrap().records().unwrap();
    assert_eq!((left.len(), left[0].key.as_str()), (40, "log/00660"));
    assert!(value(&*store, "log0").is_some());
}
