//! Changes, in order, none left out.

use std::time::Duration;

use pool_store::{Change, Revision, Transaction, Watch, WatchError};

use super::{SOON, Subject, commit, delete, next, put};

pub(super) fn run(subject: &Subject<'_>) {
    changes_come_in_order_with_their_transaction(subject);
    a_watch_can_be_taken_up_again(subject);
    many_changes_arrive_in_order(subject);
    forgotten_changes_are_said_to_be_forgotten(subject);
}

fn text(change: &Change) -> String {
    match change {
        Change::Put(record) => format!("{}={}", record.key, String::from_utf8_lossy(&record.value)),
        Change::Deleted { key } => format!("{key} deleted"),
    }
}

fn next_text(watch: &Watch) -> (Revision, Vec<String>) {
    let changes = next(watch);
    (changes.revision, changes.changes.iter().map(text).collect())
}

fn assert_quiet(watch: &Watch) {
    let more = watch.recv_timeout(Duration::from_millis(50)).expect("the watch lives");
    assert_eq!(more, None, "nothing happened");
}

fn changes_come_in_order_with_their_transaction(subject: &Subject<'_>) {
    let (writer, reader) = (subject.client(), subject.client());
    let before = put(&*writer, "watch/a", "0");
    let watch = reader.watch("watch/", before.next()).unwrap();
    assert_quiet(&watch);

    let first = put(&*writer, "watch/a", "1");
    put(&*writer, "watc", "elsewhere");
    put(&*writer, "watch0", "elsewhere");
    delete(&*writer, "watch/none");
    let second = commit(
        &*writer,
        Transaction::new().put("watch/c", "2").put("elsewhere", "2").delete("watch/a").put("watch/b", "2"),
    );
    let third = put(&*writer, "watch/c", "3");

    assert_eq!(next_text(&watch), (first, vec!["watch/a=1".into()]));
    let expected = vec!["watch/c=2".into(), "watch/a deleted".into(), "watch/b=2".into()];
    assert_eq!(next_text(&watch), (second, expected));
    let changes = next(&watch);
    let Change::Put(record) = &changes.changes[0] else { panic!("{changes:?}") };
    assert_eq!((changes.revision, record.created, record.modified), (third, second, third));
    assert_quiet(&watch);
}

fn a_watch_can_be_taken_up_again(subject: &Subject<'_>) {
    let (writer, reader) = (subject.client(), subject.client());
    let revisions: Vec<Revision> =
        (0..5).map(|number| put(&*writer, "again/a", &number.to_string())).collect();

    let watch = reader.watch("again/", revisions[1]).unwrap();
    assert_eq!(next_text(&watch), (revisions[1], vec!["again/a=1".into()]));
    assert_eq!(next_text(&watch), (revisions[2], vec!["again/a=2".into()]));
    drop(watch);
    let gone = delete(&*writer, "again/a");
    let watch = subject.client().watch("again/", revisions[2].next()).unwrap();
    assert_eq!(next_text(&watch), (revisions[3], vec!["again/a=3".into()]));
    assert_eq!(next_text(&watch), (revisions[4], vec!["again/a=4".into()]));
    assert_eq!(next_text(&watch), (gone, vec!["again/a deleted".into()]));
    assert_quiet(&watch);

    let ahead = reader.watch("again/", gone.next().next()).unwrap();
    put(&*writer, "again/a", "too early");
    let wanted = put(&*writer, "again/a", "wanted");
    assert_eq!(next_text(&ahead), (wanted, vec!["again/a=wanted".into()]));
}

/// More than any engine holds ready, while a writer is at work.
fn many_changes_arrive_in_order(subject: &Subject<'_>) {
    const COUNT: usize = 3000;
    let (writer, reader) = (subject.client(), subject.client());
    let from = put(&*writer, "many", "");
    let live = reader.watch("many/", from).unwrap();
    let mut revisions = Vec::new();
    for number in 0..COUNT {
        revisions.push(put(&*writer, &format!("many/{}", number % 7), &number.to_string()));
    }
    let later = reader.watch("many/", from).unwrap();
    for watch in [live, later] {
        for (number, revision) in revisions.iter().enumerate() {
            assert_eq!(next_text(&watch), (*revision, vec![format!("many/{}={number}", number % 7)]));
        }
        assert_quiet(&watch);
    }
}

fn forgotten_changes_are_said_to_be_forgotten(subject: &Subject<'_>) {
    let store = subject.client();
    let old = put(&*store, "old/a", "1");
    let deleted = delete(&*store, "old/a");
    let kept = put(&*store, "old/b", "2");
    let followed = store.watch("old/", kept).unwrap();
    store.compact(kept).unwrap();

    for forgotten in [old, deleted] {
        let watch = store.watch("old/", forgotten).unwrap();
        match watch.recv_timeout(SOON) {
            Err(WatchError::TooOld { oldest }) => assert!(oldest > forgotten && oldest <= kept),
            other => panic!("{other:?}"),
        }
    }
    let watch = store.watch("old/", kept).unwrap();
    assert_eq!(next_text(&watch), (kept, vec!["old/b=2".into()]));
    let more = put(&*store, "old/c", "3");
    assert_eq!(next_text(&watch), (more, vec!["old/c=3".into()]));
    assert_eq!(next_text(&followed), (kept, vec!["old/b=2".into()]));
    assert!(store.read("old/b").unwrap().is_some(), "records stay");
    store.compact(old).expect("what is forgotten already is no error");
}
