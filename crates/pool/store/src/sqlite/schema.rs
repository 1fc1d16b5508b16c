//! The file: how it is made, recognised and opened.
//!
//! ```text
//! meta     one row: revision, oldest (watches may begin there)
//! records  key -> value, created, modified
//! history  (revision, position) -> key, created, and the value put; none when deleted
//! tenures  leadership key -> until when it lasts, on which boot's clock
//! ```

use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use crate::error::{Cause, OpenError};

/// Says which program's file it is: "dxPU".
const APPLICATION: i64 = 0x6478_5055;

/// Grows when an older program could no longer use the file.
const FORMAT: i64 = 1;

/// How long to wait for another process's transaction, which takes milliseconds unless that process was frozen.
const BUSY: Duration = Duration::from_secs(2);

/// Keys are blobs, so that they compare by bytes.
const TABLES: &str = "
    CREATE TABLE meta (
        id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL, oldest INTEGER NOT NULL
    ) STRICT;
    INSERT INTO meta VALUES (1, 0, 0);
    CREATE TABLE records (
        key BLOB PRIMARY KEY, value BLOB NOT NULL, created INTEGER NOT NULL, modified INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE history (
        revision INTEGER NOT NULL, position INTEGER NOT NULL, key BLOB NOT NULL, value BLOB,
        created INTEGER NOT NULL, PRIMARY KEY (revision, position)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE tenures (
        key BLOB PRIMARY KEY, boot TEXT NOT NULL, ends_ms INTEGER NOT NULL, ttl_ms INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
";

/// Opens the file for writing; makes it if it is not there.
pub(super) fn open(path: &Path) -> Result<Connection, OpenError> {
    let failed = |source: Cause| OpenError::File { path: path.to_path_buf(), source };
    let refused = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => OpenError::NotAStore { path: path.to_path_buf() },
        _ => failed(error.into()),
    };
    make(path).map_err(|error| failed(error.into()))?;
    let mut connection = connect(path).map_err(refused)?;
    let (application, format) = identify(&mut connection).map_err(refused)?;
    if application != APPLICATION {
        return Err(OpenError::NotAStore { path: path.to_path_buf() });
    }
    if format > FORMAT {
        return Err(OpenError::Newer { path: path.to_path_buf(), found: format, known: FORMAT });
    }

    // From here on it is ours to change.
    keep_private(path).map_err(|error| failed(error.into()))?;
    let mode: String =
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(refused)?;
    if mode != "wal" {
        return Err(failed(format!("its file system does not allow a write-ahead log (mode {mode})").into()));
    }
    // The names of new files are on disk as well.
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| failed(error.into()))?;
    }
    Ok(connection)
}

/// One more connection to a file that [`open`] has seen.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // After a burst of writes the log shrinks again.
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// Makes the file for its owner alone, since records may hold secrets; SQLite gives its log the same mode.
///
/// A file that exists is not opened: closing it would drop the locks this process holds on it through SQLite.
fn make(path: &Path) -> io::Result<()> {
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _made_or_there => Ok(()),
    }
}

/// Takes a file's permissions away from its group and others.
fn keep_private(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 == 0 { Ok(()) } else { fs::set_permissions(path, fs::Permissions::from_mode(0o600)) }
}

/// Which program's file it is, and in which format. An empty one becomes ours.
fn identify(connection: &mut Connection) -> rusqlite::Result<(i64, i64)> {
    if is_empty(connection)? {
        create(connection)?;
    }
    Ok((number(connection, "PRAGMA application_id")?, number(connection, "PRAGMA user_version")?))
}

fn is_empty(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(number(connection, "SELECT count(*) FROM sqlite_schema")? == 0
        && number(connection, "PRAGMA application_id")? == 0)
}

fn number(connection: &Connection, sql: &str) -> rusqlite::Result<i64> {
    connection.query_row(sql, [], |row| row.get(0))
}

/// Two processes may come here at once: the second finds the first one's tables.
fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if is_empty(&transaction)? {
        transaction.execute_batch(TABLES)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", FORMAT)?;
    }
    transaction.commit()
}
