//! The page of a GPU with a seat for guests: words in memory by which the sessions of its two workers see each other.
//!
//! It belongs to the agent, because neither worker may take it along when it ends. It is a file in memory (`/dev/shm`): a
//! driver maps it for the device, which it may refuse for files on a disk. The name is made of the box's state directory, so
//! the next agent finds it again.

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
/// would not see each other.
pub(crate) fn provide(path: &Path, is_in_use: bool) -> anyhow::Result<()> {
    if shared_words::page::open_at(path).is_ok() {
        return Ok(());
    }
    anyhow::ensure!(
        !is_in_use,
        "the page of sharing at {} cannot be opened, and a worker uses it; end the box's workers with SIGINT",
        path.display()
    );
    Ok(shared_words::page::make_at(path)?)
}

/// Whether a worker that is left from before was started with this page.
pub(crate) fn is_used_by(worker: &Process, path: &Path) -> bool {
    let words = process::words_of(worker);
    let at = words.iter().position(|word| word == "--page");
    at.and_then(|at| words.get(at + 1)).is_some_and(|word| Path::new(word) == path)
}
