//! A private folder of files that may be lost at any time: a cache on the disk.
//!
//! Several processes use one folder at once. A file appears whole or not at all, because its writer renames it when it is
//! complete. The files longest unused go first when the folder is full. A disk that is full or read-only costs what would
//! have been kept, nothing else: every error of [`KeptFiles::put`] may be ignored.
//!
//! Whether a file is what its name says, its user checks.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// A bounded folder.
#[derive(Debug)]
pub struct KeptFiles {
    folder: PathBuf,
    bytes_max: u64,
    /// Bytes that this process has put since it last looked through the folder.
    unseen_bytes: AtomicU64,
}

/// Looking through the folder costs a system call for each file, so a process does it once for so many new bytes: the
/// folder may be larger than it should by this part for each process, and putting thousands of small files takes the same
/// time for each of them.
const UNSEEN_PART: u64 = 64;

/// Makes the names of unfinished files differ within a process; the process number makes them differ between.
static UNFINISHED: AtomicU64 = AtomicU64::new(0);

const UNFINISHED_PREFIX: &str = "unfinished-";

impl KeptFiles {
    /// Opens or makes the folder, for its owner alone.
    pub fn open(folder: &Path, bytes_max: u64) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        Ok(Self { folder: folder.to_owned(), bytes_max, unseen_bytes: AtomicU64::new(0) })
    }

    /// Where a file lies.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The bytes of a file, if `is_good` says that they are what they should be. A file that is not is removed.
    pub fn get(&self, name: &str, is_good: impl FnOnce(&[u8]) -> bool) -> Option<Vec<u8>> {
        let path = self.path(name);
        let bytes = fs::read(&path).ok()?;
        if !is_good(&bytes) {
            self.remove(name);
            return None;
        }
        // The time of last use decides which files stay. Failing to write it down costs an eviction too early, no more.
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(bytes)
    }

    /// Keeps a file, and lets go of those longest unused. A file larger than the folder may be is not kept.
    pub fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let count = bytes.len() as u64;
        if count > self.bytes_max {
            return Ok(());
        }
        let unique = UNFINISHED.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.folder.join(format!("{UNFINISHED_PREFIX}{}-{unique}", std::process::id()));
        let written = (|| {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?;
            file.write_all(bytes)?;
            fs::rename(&unfinished, self.path(name))
        })();
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        if self.unseen_bytes.fetch_add(count, Ordering::Relaxed) + count > self.bytes_max / UNSEEN_PART {
            self.unseen_bytes.store(0, Ordering::Relaxed);
            self.evict()?;
        }
        written
    }

    /// Lets go of a file.
    pub fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.path(name));
    }

    fn evict(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // Another process may have removed it meanwhile.
            let Ok(metadata) = entry.metadata() else { continue };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if is_abandoned(&entry.file_name().to_string_lossy(), used) {
                let _ = fs::remove_file(entry.path());
                continue;
            }
            files.push((used, metadata.len(), entry.path()));
        }
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, size, path) in files {
            if bytes <= self.bytes_max {
                break;
            }
            let _ = fs::remove_file(path);
            bytes -= size;
        }
        Ok(())
    }
}

/// An unfinished file whose writer must have died: no write takes that long.
fn is_abandoned(name: &str, modified: SystemTime) -> bool {
    const ABANDONED_AFTER_S: u64 = 3600;
    let age = SystemTime::now().duration_since(modified).unwrap_or_default();
    name.starts_with(UNFINISHED_PREFIX) && age.as_secs() > ABANDONED_AFTER_S
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    const GOOD: fn(&[u8]) -> bool = |_| true;

    #[test]
    fn a_file_comes_back_and_its_folder_is_private() {
        let above = tempfile::tempdir().unwrap();
        let files = KeptFiles::open(&above.path().join("files"), 1000).unwrap();
        files.put("one", b"bytes").unwrap();
        assert_eq!(files.get("one", GOOD).as_deref(), Some(&b"bytes"[..]));
        assert_eq!(files.get("other", GOOD), None);
        let mode = fs::metadata(above.path().join("files")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_damaged_file_is_none_and_goes() {
        let folder = tempfile::tempdir().unwrap();
        let files = KeptFiles::open(folder.path(), 1000).unwrap();
        files.put("one", b"bytes").unwrap();
        assert_eq!(files.get("one", |_| false), None);
        assert!(!files.path("one").exists());
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let files = KeptFiles::open(folder.path(), 250).unwrap();
        for (at, name) in ["a", "b"].into_iter().enumerate() {
            files.put(name, &[0; 100]).unwrap();
            let used = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + at as u64);
            File::open(files.path(name)).unwrap().set_modified(used).unwrap();
        }
        files.get("a", GOOD).unwrap();
        files.put("c", &[0; 100]).unwrap();
        let kept = ["a", "b", "c"].map(|name| files.get(name, GOOD).is_some());
        assert_eq!(kept, [true, false, true]);
    }

    #[test]
    fn what_cannot_be_kept_is_an_error_or_nothing_and_leaves_no_rest() {
        let folder = tempfile::tempdir().unwrap();
        let files = KeptFiles::open(folder.path(), 10).unwrap();
        files.put("large", &[0; 11]).unwrap();
        assert_eq!(files.get("large", GOOD), None);
        // A folder in the place of a file: the rename fails, as any write may.
        fs::create_dir_all(folder.path().join("taken/inside")).unwrap();
        assert!(files.put("taken", b"x").is_err());
        let rest = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(rest, 1, "the unfinished file is gone");
    }
}
