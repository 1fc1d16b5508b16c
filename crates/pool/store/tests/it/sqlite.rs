//! The store in a file: the suite, and what is special about files.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pool_store::{OpenError, Sqlite, Store, StoreError, Transaction};

use crate::conformance::{self, Subject};
use crate::crashes;

#[test]
fn sqlite_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool.db");
    let client = || -> Arc<dyn Store> { Arc::new(Sqlite::open(&path).unwrap()) };
    conformance::run(&Subject { client: &client, pass: &std::thread::sleep, is_live: true });
}

#[test]
fn sqlite_survives_its_processes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool.db");
    let store = Sqlite::open(&path).unwrap();
    crashes::run(&format!("sqlite:{}", path.display()), &store);
}

/// The worst moment to freeze in: a process that stops in the middle of a transaction keeps SQLite's lock.
#[test]
fn a_process_frozen_in_a_transaction_holds_up_writers_but_not_readers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool.db");
    let store = Sqlite::open(&path).unwrap();
    let revision = conformance::commit(&store, Transaction::new().put("a", "1"));
    let frozen = rusqlite::Connection::open(&path).unwrap();
    frozen.execute_batch("BEGIN IMMEDIATE; DELETE FROM records").unwrap();

    let began = Instant::now();
    let write = Transaction::new().put("a", "2");
    assert!(matches!(store.commit(&write), Err(StoreError::Unavailable { .. })));
    assert!(began.elapsed() < Duration::from_secs(5), "an answer within seconds");
    assert_eq!(store.read("a").unwrap().unwrap().modified, revision);
    assert_eq!(store.leader("work").unwrap(), None);

    drop(frozen);
    assert!(conformance::commit(&store, write) > revision);
}

#[test]
fn only_the_owner_can_read_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool.db");
    let mode = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    let store = Sqlite::open(&path).unwrap();
    conformance::commit(&store, Transaction::new().put("a", "secret"));
    for name in ["pool.db", "pool.db-wal", "pool.db-shm", "pool.db-newest"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    drop(store);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let store = Sqlite::open(&path).unwrap();
    assert_eq!(mode("pool.db"), 0o600, "one that was open to others is closed");
    assert!(store.read("a").unwrap().is_some());
}

#[test]
fn a_newer_file_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool.db");
    drop(Sqlite::open(&path).unwrap());
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.pragma_update(None, "user_version", 2).unwrap();
    drop(raw);
    let before = std::fs::read(&path).unwrap();
    let error = Sqlite::open(&path).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 2, known: 1, .. }), "{error:?}");
    assert!(error.to_string().contains("use a newer dxpu"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// What was committed last is in the log alone. Without it SQLite opens an older state and says nothing.
#[test]
fn a_store_whose_log_was_deleted_or_cut_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool.db");
    for part in ["deleted", "cut"] {
        let _ = std::fs::remove_dir_all(folder.path());
        std::fs::create_dir(folder.path()).unwrap();
        drop(Sqlite::open(&path).unwrap());
        let running = Sqlite::open(&path).unwrap();
        for number in 0..20 {
            conformance::commit(&running, Transaction::new().put(format!("key/{number}"), "granted"));
        }
        // As a killed process leaves its files: nothing is written back from the log.
        let left = folder.path().join("left");
        std::fs::create_dir(&left).unwrap();
        for name in ["pool.db", "pool.db-wal", "pool.db-newest"] {
            std::fs::copy(folder.path().join(name), left.join(name)).unwrap();
        }
        drop(running);
        let (database, log) = (left.join("pool.db"), left.join("pool.db-wal"));
        let whole = std::fs::read(&log).unwrap();
        match part {
            "deleted" => std::fs::remove_file(&log).unwrap(),
            _ => std::fs::write(&log, &whole[..whole.len() / 2]).unwrap(),
        }
        let error = Sqlite::open(&database).unwrap_err();
        assert!(matches!(error, OpenError::Older { expected, .. } if expected.0 == 20), "{part}: {error:?}");
        assert!(error.to_string().contains("write-ahead log was deleted"), "{error}");
        // A caller that accepts it can have it, here in a copy.
        let meant = left.join("meant.db");
        std::fs::copy(&database, &meant).unwrap();
        std::fs::copy(left.join("pool.db-newest"), left.join("meant.db-newest")).unwrap();
        let older = Sqlite::open_or(&meant, pool_store::Older::Accept).unwrap();
        assert!(older.read("key/19").unwrap().is_none());
        drop(older);
        drop(Sqlite::open(&meant).unwrap());
        // Nothing was lost by looking: with its log the store is whole again.
        std::fs::write(&log, &whole).unwrap();
        let again = Sqlite::open(&database).unwrap();
        assert!(again.read("key/19").unwrap().is_some(), "{part}");
    }
}

#[test]
fn a_killed_process_leaves_a_store_that_opens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool.db");
    let running = Sqlite::open(&path).unwrap();
    for number in 0..20 {
        conformance::commit(&running, Transaction::new().put(format!("key/{number}"), "granted"));
    }
    let left = tempfile::tempdir().unwrap();
    for name in ["pool.db", "pool.db-wal", "pool.db-newest"] {
        std::fs::copy(folder.path().join(name), left.path().join(name)).unwrap();
    }
    let again = Sqlite::open(left.path().join("pool.db")).unwrap();
    assert!(again.read("key/19").unwrap().is_some());
    // An empty mark says nothing, and is written anew.
    drop(again);
    std::fs::write(left.path().join("pool.db-newest"), "").unwrap();
    let again = Sqlite::open(left.path().join("pool.db")).unwrap();
    assert_eq!(conformance::commit(&again, Transaction::new().put("a", "1")).0, 21);
}

#[test]
fn other_programs_files_are_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "not a database, but long enough to look like one ".repeat(20)).unwrap();
    let other = folder.path().join("other.db");
    rusqlite::Connection::open(&other).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    for path in [text, other] {
        let before = std::fs::read(&path).unwrap();
        let error = Sqlite::open(&path).unwrap_err();
        assert!(matches!(error, OpenError::NotAStore { .. }), "{error:?}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
    let nowhere = Sqlite::open(folder.path().join("none/pool.db")).unwrap_err();
    assert!(matches!(nowhere, OpenError::File { .. }), "{nowhere:?}");
}
