//! Beside the database: how new it was when it was last written.
//!
//! What was committed last lies in SQLite's write-ahead log. When that file is deleted or cut, SQLite opens what is in
//! the database file alone, an older state, without a word: leases that were granted since are forgotten and epochs are
//! given a second time. So the newest revision is kept in a third file. A database that is older than it says is
//! refused.
//!
//! The mark is written after each commit and not synced each time: it survives a killed process, and after a lost
//! machine it may be some commits behind, never ahead. Two processes that commit at the same moment may leave the
//! smaller number there until the next commit.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::record::Revision;

/// What begins the file, for people that open it in an editor.
const TITLE: &str = "newest revision of this dxpu store: ";

/// Digits of the number; with the title it is always written as one piece of the same length.
const DIGITS: usize = 20;

/// The mark of an open store.
#[derive(Debug)]
pub(super) struct Mark {
    file: File,
    /// What was written last by this process.
    written: AtomicU64,
}

/// Where the mark of a database is.
pub(super) fn path_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-newest");
    name.into()
}

/// What is marked; none if there is no mark, or nothing that can be read as one.
pub(super) fn read(database: &Path) -> io::Result<Option<Revision>> {
    let text = match fs::read_to_string(path_of(database)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let number = text.strip_prefix(TITLE).and_then(|rest| rest.trim_end().parse().ok());
    if number.is_none() {
        let path = path_of(database);
        tracing::warn!(path = %path.display(), "this file holds no revision, so the store cannot check that it is the newest; the next commit writes it again");
    }
    Ok(number.map(Revision))
}

impl Mark {
    /// Opens the mark of a database that is at this revision, or makes it.
    pub(super) fn open(database: &Path, revision: Revision) -> io::Result<Self> {
        let path = path_of(database);
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        let mark = Self { file, written: AtomicU64::new(0) };
        mark.write(revision)?;
        mark.file.sync_all()?;
        Ok(mark)
    }

    /// A commit with this revision is on disk. That the mark cannot be written is no reason to take it back.
    pub(super) fn raise(&self, revision: Revision) {
        if revision.0 <= self.written.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.write(revision) {
            tracing::debug!(%error, "cannot write the newest revision beside the store");
        }
    }

    fn write(&self, revision: Revision) -> io::Result<()> {
        let text = format!("{TITLE}{:0DIGITS$}\n", revision.0);
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.written.store(revision.0, Ordering::Relaxed);
        Ok(())
    }
}
