//! What a box and the worker of a slot tell each other, through files in the slot's directory.
//!
//! The worker (`dxpu worker --by-lease DIR`) reads which leases it admits, and leaves word of itself with a [`Teller`].
//!
//! ```text
//! DIR/admission.json   which leases it admits (written by the box before the worker starts)
//! DIR/worker.json      what the worker has to say (written by the worker, read by the box)
//! DIR/images           module images of the lease (removed with it)
//! ```

use crate::complaint::Complaint;
use anyhow::Context;
use lease_fence::LeaseAdmission;
use machine::files::{self, FileError};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use transport::Address;

/// What a worker says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerWord {
    /// Its process.
    pub(crate) pid: u32,
    /// Where it listens.
    pub(crate) addresses: Vec<String>,
    /// A session with its driver made waits, or has waited.
    pub(crate) ready: bool,
    /// How many session processes in a row could not prepare themselves.
    pub(crate) failures: u32,
    /// Why the last of them could not.
    pub(crate) failure: Option<String>,
    /// What a GPU in software measures: percent of the time at work, and bytes in use. Real ones are asked by NVML.
    #[serde(default)]
    pub(crate) use_of_soft: Option<(u32, u64)>,
}

/// Where the box says which leases the worker admits.
fn admission_file(directory: &Path) -> PathBuf {
    directory.join("admission.json")
}

fn word_file(directory: &Path) -> PathBuf {
    directory.join("worker.json")
}

/// Where module images of the slot's tenants are. They end with their lease: the box removes them when it scrubs the GPU.
fn image_directory(directory: &Path) -> PathBuf {
    directory.join("images")
}

/// Removes the module images of the slot's last tenant.
pub(crate) fn remove_images(directory: &Path) -> Result<(), FileError> {
    files::remove_directory(&image_directory(directory))
}

/// For the worker: the directory for module images of this slot's tenants, empty. A worker that was killed may have left
/// something in it.
pub fn new_image_directory(directory: &Path) -> Result<PathBuf, FileError> {
    remove_images(directory)?;
    Ok(image_directory(directory))
}

/// For the box: writes which leases the worker of this slot admits.
pub(crate) fn write_admission(directory: &Path, admission: &LeaseAdmission) -> anyhow::Result<()> {
    let text = serde_json::to_vec(admission)?;
    Ok(files::replace(&admission_file(directory), 0o600, &text)?)
}

/// For the worker: reads which leases it admits.
pub fn admission(directory: &Path) -> anyhow::Result<LeaseAdmission> {
    let path = admission_file(directory);
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))
}

/// What the worker of a slot last said, if it is from that process.
pub(crate) fn word_of(directory: &Path, pid: u32) -> Option<WorkerWord> {
    let text = std::fs::read(word_file(directory)).ok()?;
    serde_json::from_slice::<WorkerWord>(&text).ok().filter(|word| word.pid == pid)
}

/// What a GPU in software measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UseOfSoft {
    /// Percent of the time at work, if it is known.
    pub percent: Option<u32>,
    /// Bytes in use.
    pub used_bytes: u64,
}

/// Keeps what the worker says up to date, whatever the disk does: a thread of its own writes, and tries again until it
/// could. No other thread waits for the disk.
pub struct Teller {
    told: Arc<Told>,
}

#[derive(Default)]
struct Told {
    saying: Mutex<Saying>,
    changed: Condvar,
}

#[derive(Default)]
struct Saying {
    word: WorkerWord,
    /// Grows with each change.
    version: u64,
}

/// A word that is written is looked after this often: without its file no borrower finds the worker.
const LOOK_AFTER_FILE: Duration = Duration::from_secs(2);
/// Between attempts to write, at first and at most. A disk that has room again is used soon.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(50);
const TRY_AGAIN_MAX: Duration = Duration::from_secs(2);

/// How long to wait after so many attempts have failed in a row.
fn pause_after(failures: u32) -> Duration {
    TRY_AGAIN_AFTER.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(TRY_AGAIN_MAX)
}

/// Where the thread writes the worker's word.
trait Place: Send + 'static {
    /// Writes it.
    fn leave(&self, text: &[u8]) -> anyhow::Result<()>;
    /// Whether the word is still there.
    fn is_kept(&self) -> bool;
}

struct WordFile(PathBuf);

impl Place for WordFile {
    fn leave(&self, text: &[u8]) -> anyhow::Result<()> {
        Ok(files::replace(&self.0, 0o600, text)?)
    }

    fn is_kept(&self) -> bool {
        self.0.exists()
    }
}

impl Told {
    /// Writes every change, as long as this process lives.
    fn keep_written(&self, place: &impl Place) {
        let (mut written, mut failures) = (0, 0u32);
        let mut complaint = Complaint::default();
        loop {
            let patience = if failures > 0 { Duration::ZERO } else { LOOK_AFTER_FILE };
            let (text, version) = self.next(written, patience);
            if version == written && failures == 0 && place.is_kept() {
                continue;
            }
            match place.leave(&text) {
                Ok(()) => {
                    (written, failures) = (version, 0);
                    if let Some(attempts) = complaint.right() {
                        tracing::info!(attempts, "the word for the box is written after all");
                    }
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let error = format!("{error:#}");
                    if let Some(attempts) = complaint.wrong(&error, Instant::now()) {
                        tracing::error!(error, attempts, "cannot leave word for the box; trying again");
                    }
                    // Also if the word changes meanwhile: that does not free the disk.
                    std::thread::sleep(pause_after(failures));
                }
            }
        }
    }

    /// Waits for a change or until `patience` is over, and returns the word to write.
    fn next(&self, written: u64, patience: Duration) -> (Vec<u8>, u64) {
        let saying = self.saying.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(saying, patience, |saying| saying.version == written);
        let (saying, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (serde_json::to_vec(&saying.word).unwrap_or_default(), saying.version)
    }
}

impl Teller {
    /// A worker of the slot with this directory begins.
    pub fn new(directory: &Path) -> anyhow::Result<Self> {
        Self::with(WordFile(word_file(directory)))
    }

    fn with(place: impl Place) -> anyhow::Result<Self> {
        let word = WorkerWord { pid: std::process::id(), ..WorkerWord::default() };
        let told = Arc::new(Told { saying: Mutex::new(Saying { word, version: 0 }), ..Told::default() });
        let writes = told.clone();
        // Without the thread no borrower would find this worker.
        std::thread::Builder::new()
            .name("dxpu-word".to_owned())
            .spawn(move || writes.keep_written(&place))
            .context("cannot start a thread")?;
        Ok(Self { told })
    }

    /// Where the worker listens.
    pub fn listens_at(&self, addresses: &[Address]) {
        self.change(|word| word.addresses = addresses.iter().map(ToString::to_string).collect());
    }

    /// Looks at a GPU in software again and again, as long as this process lives: `look` gives what
    /// it measures, if it answers.
    pub fn watch(self: &Arc<Self>, look: impl Fn() -> Option<UseOfSoft> + Send + 'static) {
        const LOOK_EVERY: Duration = Duration::from_secs(1);
        let teller = self.clone();
        let watch = move || loop {
            std::thread::sleep(LOOK_EVERY);
            if let Some(seen) = look() {
                teller
                    .change(|word| word.use_of_soft = seen.percent.map(|percent| (percent, seen.used_bytes)));
            }
        };
        // Without the thread the pool does not see how busy the GPU is; it works all the same.
        let _ = std::thread::Builder::new().name("dxpu-meter".to_owned()).spawn(watch);
    }

    /// A session process has made its driver and waits for a program.
    pub fn session_is_ready(&self) {
        self.change(|word| {
            word.ready = true;
            word.failures = 0;
            word.failure = None;
        });
    }

    /// A session process could not prepare itself.
    pub fn session_is_broken(&self, reason: &str) {
        self.change(|word| {
            word.failures += 1;
            word.failure = Some(reason.to_owned());
        });
    }

    fn change(&self, change: impl FnOnce(&mut WorkerWord)) {
        let mut saying = self.told.saying.lock().unwrap_or_else(PoisonError::into_inner);
        let before = saying.word.clone();
        change(&mut saying.word);
        if saying.word != before {
            saying.version += 1;
            self.told.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// What the box reads, as soon as it is so.
    fn heard(directory: &Path, pid: u32, holds: impl Fn(&WorkerWord) -> bool) -> WorkerWord {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match word_of(directory, pid) {
                Some(word) if holds(&word) => return word,
                word => assert!(Instant::now() < until, "only {word:?}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn the_box_hears_what_the_worker_says_and_only_that_worker() {
        let directory = tempfile::tempdir().unwrap();
        let teller = Teller::new(directory.path()).unwrap();
        let pid = std::process::id();
        teller.listens_at(&["unix:/run/a".parse().unwrap()]);
        teller.session_is_broken("no driver");
        teller.session_is_broken("no driver");
        let word = heard(directory.path(), pid, |word| word.failures == 2);
        assert!(!word.ready);
        teller.session_is_ready();
        let word = heard(directory.path(), pid, |word| word.ready);
        assert_eq!((word.failures, word.failure), (0, None));
        assert_eq!(word.addresses, ["unix:/run/a"]);
        assert_eq!(word_of(directory.path(), pid + 1), None, "that was another process");
    }

    #[test]
    fn a_word_that_somebody_removed_is_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let teller = Teller::new(directory.path()).unwrap();
        teller.session_is_ready();
        heard(directory.path(), std::process::id(), |word| word.ready);
        std::fs::remove_file(word_file(directory.path())).unwrap();
        heard(directory.path(), std::process::id(), |word| word.ready);
    }

    /// A disk that is full for so many attempts.
    struct FullFor {
        attempts: Arc<AtomicUsize>,
        full_for: usize,
        disk: WordFile,
    }

    impl Place for FullFor {
        fn leave(&self, text: &[u8]) -> anyhow::Result<()> {
            let attempt = self.attempts.fetch_add(1, Ordering::SeqCst);
            anyhow::ensure!(attempt >= self.full_for, "no space left on device");
            self.disk.leave(text)
        }

        fn is_kept(&self) -> bool {
            self.disk.is_kept()
        }
    }

    /// Before, a word that could not be written once was never written again, and no borrower found the worker.
    #[test]
    fn a_disk_that_was_full_for_a_moment_costs_a_moment() {
        let directory = tempfile::tempdir().unwrap();
        let attempts = Arc::new(AtomicUsize::new(0));
        let disk = WordFile(word_file(directory.path()));
        let teller = Teller::with(FullFor { attempts: attempts.clone(), full_for: 5, disk }).unwrap();
        teller.listens_at(&["unix:/run/a".parse().unwrap()]);
        teller.session_is_ready();
        let word = heard(directory.path(), std::process::id(), |word| word.ready);
        assert_eq!(word.addresses, ["unix:/run/a"]);
        assert!(attempts.load(Ordering::SeqCst) > 5);
    }

    #[test]
    fn attempts_become_rarer_and_never_rare() {
        assert_eq!(pause_after(1), TRY_AGAIN_AFTER);
        assert_eq!(pause_after(3), 4 * TRY_AGAIN_AFTER);
        assert_eq!(pause_after(u32::MAX), TRY_AGAIN_MAX);
    }
}
