//! A worker of a pool's box: it lets programs in by lease, and leaves word of itself in its slot's directory.
//!
//! ```text
//! DIR/admission.json   who may come in (written by the box before the worker starts)
//! DIR/worker.json      what the worker has to say (written by the worker, read by the box)
//! DIR/images           module images of the lease (removed with it)
//! ```

use crate::files;
use anyhow::Context;
use cuda_driver::StatusSource;
use cuda_worker::SessionEvent;
use lease_fence::LeaseAdmission;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
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

/// Where the box says who may come in.
pub(crate) fn admission_file(directory: &Path) -> PathBuf {
    directory.join("admission.json")
}

fn word_file(directory: &Path) -> PathBuf {
    directory.join("worker.json")
}

/// Where module images of the slot's tenants are. They end with their lease: the box removes them when it scrubs the GPU.
pub(crate) fn image_directory(directory: &Path) -> PathBuf {
    directory.join("images")
}

/// The same, empty: a worker that was killed may have left something.
pub(super) fn new_image_directory(directory: &Path) -> anyhow::Result<PathBuf> {
    let images = image_directory(directory);
    files::remove_directory(&images)?;
    Ok(images)
}

/// Reads who may come in.
pub(super) fn admission(directory: &Path) -> anyhow::Result<LeaseAdmission> {
    let path = admission_file(directory);
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))
}

/// What the worker of a slot last said, if it is from that process.
pub(crate) fn word_of(directory: &Path, pid: u32) -> Option<WorkerWord> {
    let text = std::fs::read(word_file(directory)).ok()?;
    serde_json::from_slice::<WorkerWord>(&text).ok().filter(|word| word.pid == pid)
}

/// Keeps what the worker says up to date.
pub(super) struct Teller {
    directory: PathBuf,
    word: Mutex<WorkerWord>,
}

impl Teller {
    pub(super) fn new(directory: &Path) -> Self {
        let word = WorkerWord { pid: std::process::id(), ..WorkerWord::default() };
        Self { directory: directory.to_owned(), word: Mutex::new(word) }
    }

    pub(super) fn listens_at(&self, addresses: &[Address]) {
        self.change(|word| word.addresses = addresses.iter().map(ToString::to_string).collect());
    }

    /// Looks at a GPU in software again and again, as long as this process lives.
    pub(super) fn watch(self: &Arc<Self>, source: Box<dyn StatusSource>) {
        const LOOK_EVERY: Duration = Duration::from_secs(1);
        let teller = self.clone();
        let watch = move || loop {
            std::thread::sleep(LOOK_EVERY);
            if let Ok(status) = source.device_status(0) {
                let used = status.memory_used_bytes;
                teller.change(|word| {
                    word.use_of_soft = status.utilization_gpu_percent.map(|percent| (percent, used))
                });
            }
        };
        // Without the thread nobody sees how busy the GPU is; it works all the same.
        let _ = std::thread::Builder::new().name("dxpu-meter".to_owned()).spawn(watch);
    }

    pub(super) fn hear(&self, event: &SessionEvent) {
        match event {
            SessionEvent::Ready { .. } => self.change(|word| {
                word.ready = true;
                word.failures = 0;
                word.failure = None;
            }),
            SessionEvent::Broken { reason } => self.change(|word| {
                word.failures += 1;
                word.failure = Some(reason.clone());
            }),
            SessionEvent::Began { .. }
            | SessionEvent::Ended { .. }
            | SessionEvent::Reaped { .. }
            | SessionEvent::TurnedAway { .. } => {}
        }
    }

    fn change(&self, change: impl FnOnce(&mut WorkerWord)) {
        let mut word = self.word.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = word.clone();
        change(&mut word);
        if *word == before {
            return;
        }
        let text = serde_json::to_vec(&*word).unwrap_or_default();
        if let Err(error) = files::replace(&word_file(&self.directory), 0o600, &text) {
            tracing::error!(error = format!("{error:#}"), "cannot leave word for the box");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_box_hears_what_the_worker_says_and_only_that_worker() {
        let directory = tempfile::tempdir().unwrap();
        let teller = Teller::new(directory.path());
        let pid = std::process::id();
        teller.listens_at(&["unix:/run/a".parse().unwrap()]);
        teller.hear(&SessionEvent::Broken { reason: "no driver".to_owned() });
        teller.hear(&SessionEvent::Broken { reason: "no driver".to_owned() });
        let word = word_of(directory.path(), pid).unwrap();
        assert_eq!((word.failures, word.ready), (2, false));
        teller.hear(&SessionEvent::Ready { pid: 1 });
        let word = word_of(directory.path(), pid).unwrap();
        assert_eq!((word.failures, word.failure, word.ready), (0, None, true));
        assert_eq!(word.addresses, ["unix:/run/a"]);
        assert_eq!(word_of(directory.path(), pid + 1), None, "that was another process");
    }
}
