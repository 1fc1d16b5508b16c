//! The page of a GPU that several workers use: words in memory by which their sessions see each other. A GPU with a seat for
//! guests has two workers, one in parts as many as parts.
//!
//! It belongs to the agent, because neither worker may take it along when it ends. It is a file in memory (`/dev/shm`): a
//! driver maps it for the device, which it may refuse for files on a disk. The name is made of the box's state directory, so
//! the next agent finds it again.

use super::check;
use super::gpu::Gpu;
use super::process::{self, Process};
use std::path::{Path, PathBuf};

/// Where files in memory are.
const MEMORY: &str = "/dev/shm";

/// Where the page of a slot's GPU is.
pub(crate) fn path(state: &Path, slot: u8) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let text = state.as_os_str().as_encoded_bytes();
    // FNV-1a: the same in every release.
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    Path::new(MEMORY).join(format!("dxpu-{user}-{hash:016x}-{slot}"))
}

/// Has the page there. One that cannot be used is made anew, unless a worker has it: sessions of that worker and of the next
/// would not see each other. `capacity` is what its sessions may have together, if they are promised more.
pub(crate) fn provide(path: &Path, is_in_use: bool, capacity: Option<u64>) -> anyhow::Result<()> {
    if shared_words::page::open_at(path).is_err() {
        anyhow::ensure!(
            !is_in_use,
            "the page of sharing at {} cannot be opened, and a worker uses it; end the box's workers with SIGINT",
            path.display()
        );
        shared_words::page::make_at(path)?;
    }
    let (_words, page) = shared_words::page::open_at(path)?;
    page.page().set_capacity(capacity);
    Ok(())
}

/// Whether a worker that is left from before was started for what its slot has now: a slot may be a GPU in one run of the agent
/// and a part, or a part of another GPU, in the next.
pub(crate) fn was_started_for(worker: &Process, gpu: &Gpu, page: &Path, is_merged: bool) -> bool {
    let words = process::words_of(worker);
    // A context that is merged and one that is not, on one GPU, would be neither.
    process::is_merged(&words) == (is_merged && gpu.has_page()) && is_for(&words, gpu, page)
}

fn is_for(words: &[String], gpu: &Gpu, page: &Path) -> bool {
    let of = |words: &[String]| after(words, "--memory").map(str::to_owned);
    let is_same_memory = of(words) == of(&check::driver_arguments(gpu));
    let is_same_gpu =
        gpu.part.is_none() || after(words, "--page").is_some_and(|word| Path::new(word) == page);
    is_same_memory && is_same_gpu
}

fn after<'a>(words: &'a [String], option: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == option)?;
    words.get(at + 1).map(String::as_str)
}

/// Whether a worker that is left from before was started with this page.
pub(crate) fn is_used_by(worker: &Process, path: &Path) -> bool {
    after(&process::words_of(worker), "--page").is_some_and(|word| Path::new(word) == path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_box::gpu;

    #[test]
    fn what_sessions_may_have_together_is_as_the_agent_was_started_last() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let capacity = || shared_words::page::open_at(&path).unwrap().1.page().capacity();
        for bytes in [None, Some(8 << 30), Some(16 << 30), None] {
            provide(&path, bytes.is_some(), bytes).unwrap();
            assert_eq!(capacity(), bytes);
        }
    }

    #[test]
    fn a_worker_of_a_slot_that_became_something_else_is_not_kept() {
        let model = pool_api::Model::new("soft").unwrap();
        let gpus = || gpu::soft("a", 2, 8 << 30, &model);
        let (whole, halves) = (gpus(), gpu::in_parts(gpus(), 2).unwrap());
        let quarters = gpu::in_parts(gpus(), 4).unwrap();
        let page = |gpu: &Gpu| path(Path::new("/state"), gpu.host_slot());
        let words = |gpu: &Gpu| {
            let mut words = check::driver_arguments(gpu);
            if gpu.has_page() {
                words.extend(["--page".to_owned(), page(gpu).display().to_string()]);
            }
            words
        };
        let is_kept = |before: &Gpu, now: &Gpu| is_for(&words(before), now, &page(now));
        assert!(is_kept(&whole[0], &whole[0]) && is_kept(&halves[2], &halves[2]), "a restart as before");
        assert!(!is_kept(&whole[0], &halves[0]) && !is_kept(&halves[0], &whole[0]));
        assert!(!is_kept(&halves[1], &quarters[1]), "less memory");
        let larger = gpu::in_parts(gpu::soft("a", 2, 16 << 30, &model), 4).unwrap();
        assert!(!is_kept(&halves[2], &larger[2]), "as much memory, of another GPU");
    }
}
