//! Whether a slot's directory can be written now.
//!
//! Everything that a slot promises goes through its directory: the fence, the worker's word. On a disk that is full or
//! read-only no borrower could be admitted, so nothing is lent there until it takes files again.

use machine::files;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often `look` tries a disk that works. A broken one is tried more often, to lend again soon.
const TRY_EVERY: Duration = Duration::from_secs(5);
const TRY_BROKEN_EVERY: Duration = Duration::from_millis(500);

pub(crate) struct Disk {
    directory: PathBuf,
    tried: Option<Instant>,
    trouble: Option<String>,
}

impl Disk {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory, tried: None, trouble: None }
    }

    /// Tries it, when it is time.
    pub(crate) fn look(&mut self) {
        let every = if self.trouble.is_some() { TRY_BROKEN_EVERY } else { TRY_EVERY };
        if self.tried.is_none_or(|at| at.elapsed() >= every) {
            self.look_now();
        }
    }

    /// Tries it. Says what is wrong.
    pub(crate) fn look_now(&mut self) -> Option<&str> {
        let tried = files::probe(&self.directory);
        self.tried = Some(Instant::now());
        match tried {
            Ok(()) if self.trouble.take().is_some() => {
                tracing::info!(directory = %self.directory.display(), "files can be written again");
            }
            Ok(()) => {}
            Err(error) => {
                let error = anyhow::Error::from(error);
                let cause = error.root_cause();
                let why = format!("its files cannot be written: {cause} ({})", self.directory.display());
                if self.trouble.is_none() {
                    tracing::error!(directory = %self.directory.display(), why, "nothing is lent from here meanwhile");
                }
                self.trouble = Some(why);
            }
        }
        self.trouble()
    }

    /// What was wrong when it was last tried.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_takes_no_files_is_noticed_and_so_is_its_return() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("slot-0");
        let mut disk = Disk::new(directory.clone());
        assert!(disk.look_now().is_some_and(|why| why.contains("cannot be written")));
        std::fs::create_dir(&directory).unwrap();
        assert!(disk.trouble().is_some(), "it was not tried again");
        assert_eq!(disk.look_now(), None);
    }
}
