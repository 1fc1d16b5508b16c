//! Parts of a lease: what one of several programs that share it may have, and nobody twice.
//!
//! ```text
//! parts/NAME   locked by the session that has the part; a process that dies gives it back with its lock
//! ```
//!
//! A part bounds the memory of a session. A program that could open a second session with the same token would have it twice.

use rustix::fs::FlockOperation;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A part that this session has until it drops this.
#[derive(Debug)]
pub struct PartHeld {
    path: PathBuf,
    _file: File,
}

impl Drop for PartHeld {
    fn drop(&mut self) {
        // Before the lock goes: whoever opened the file meanwhile notices that it is gone.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Takes a part of the slot with this fence file; none if another session has it.
pub(crate) fn take(fence_file: &Path, part: &str) -> io::Result<Option<PartHeld>> {
    let folder = fence_file.with_file_name("parts");
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    forget_dead(&folder);
    lock(&folder.join(part))
}

fn lock(path: &Path) -> io::Result<Option<PartHeld>> {
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    // Its last holder may have removed it between the two: then the lock is of a file that nobody finds any more.
    let is_the_one = std::fs::metadata(path).is_ok_and(|found| {
        file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
    });
    Ok(is_the_one.then(|| PartHeld { path: path.to_owned(), _file: file }))
}

/// Removes the files of sessions that were killed.
fn forget_dead(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        // Dropped at once, and the file with it.
        let _ = lock(&entry.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_one_holder_and_is_free_when_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let fence = folder.path().join("fence");
        let held = take(&fence, "ada.1").unwrap().unwrap();
        assert!(take(&fence, "ada.1").unwrap().is_none());
        let other = take(&fence, "ada.2").unwrap().unwrap();
        drop(held);
        assert!(take(&fence, "ada.1").unwrap().is_some());
        drop(other);
        assert_eq!(std::fs::read_dir(folder.path().join("parts")).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_session_left_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let fence = folder.path().join("fence");
        std::fs::create_dir(folder.path().join("parts")).unwrap();
        std::fs::write(folder.path().join("parts/dead"), "").unwrap();
        let _held = take(&fence, "ada.1").unwrap().unwrap();
        assert!(!folder.path().join("parts/dead").exists());
    }
}
