//! Refused borrowers: written by workers, taken by the box, which tells the pool for its audit trail.
//!
//! ```text
//! PATH        one line a refusal, appended by the worker that refuses
//! PATH.taken  what the box is telling; it stays until the pool has heard of it
//! ```

use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A borrower that tries again and again fills no disk: more is not written down until the box has told of it.
const BYTES_MAX: u64 = 16 << 10;

/// A line is for people, and shorter than any of them makes it.
const REASON_CHARS_MAX: usize = 250;

/// The refusals of one slot.
#[derive(Clone, Debug)]
pub struct Refusals {
    path: PathBuf,
}

impl Refusals {
    /// Those in this file, which need not be there.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Those of the slot that has this fence file.
    pub fn beside(fence_file: &Path) -> Self {
        Self::new(fence_file.with_file_name("refusals"))
    }

    /// Writes one down. If the file is full or locked, it is lost: a refusal must not hold the worker up.
    pub fn note(&self, reason: &str) {
        let clean: String = reason.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect();
        let write = || -> io::Result<()> {
            let mut file = File::options().append(true).create(true).mode(0o600).open(&self.path)?;
            // Not while the box takes the file.
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)?;
            if file.metadata()?.len() < BYTES_MAX {
                file.write_all(format!("{clean}\n").as_bytes())?;
            }
            Ok(())
        };
        let _ = write();
    }

    /// What was written down and not told yet, the oldest first. The same again until [`Refusals::told`].
    pub fn take(&self) -> io::Result<Vec<String>> {
        let taken = self.taken();
        if !taken.exists() && !self.rename(&taken)? {
            return Ok(Vec::new());
        }
        let mut text = String::new();
        File::open(&taken)?.take(2 * BYTES_MAX).read_to_string(&mut text)?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The pool knows of what was taken.
    pub fn told(&self) -> io::Result<()> {
        match std::fs::remove_file(self.taken()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Puts the file aside. False if there is none, or a worker is writing.
    fn rename(&self, taken: &Path) -> io::Result<bool> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        std::fs::rename(&self.path, taken)?;
        Ok(true)
    }

    fn taken(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".taken");
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_once_and_kept_until_then() {
        let directory = tempfile::tempdir().unwrap();
        let refusals = Refusals::new(directory.path().join("refusals"));
        assert!(refusals.take().unwrap().is_empty());
        refusals.note("the lease is over\nand so is this line");
        refusals.note("forged");
        let expected = ["the lease is overand so is this line", "forged"];
        assert_eq!(refusals.take().unwrap(), expected);
        refusals.note("later");
        assert_eq!(refusals.take().unwrap(), expected, "the pool has not heard of them");
        refusals.told().unwrap();
        assert_eq!(refusals.take().unwrap(), ["later"]);
        refusals.told().unwrap();
        refusals.told().unwrap();
        assert!(refusals.take().unwrap().is_empty());
    }

    #[test]
    fn a_stubborn_stranger_fills_no_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("refusals");
        for _ in 0..1000 {
            Refusals::new(&path).note(&"x".repeat(1000));
        }
        assert!(std::fs::metadata(&path).unwrap().len() < 2 * BYTES_MAX);
    }
}
