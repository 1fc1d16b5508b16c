//! The processes of a daemon: itself, and the servers that it has started.

use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::time::{Duration, Instant};

/// The first 15 bytes of the names of NVIDIA's two programs, which is as much as the kernel keeps of a name.
const NAME: &str = "nvidia-cuda-mps";

/// All that live and have this folder in their environment.
pub(crate) fn of_folder(folder: &Path) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter(|pid| is_of(*pid, folder)).filter_map(Pid::from_raw).collect()
}

fn is_of(pid: i32, folder: &Path) -> bool {
    let read = |what: &str| std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    if !read("comm").starts_with(NAME.as_bytes()) {
        return false;
    }
    let wanted = [b"CUDA_MPS_PIPE_DIRECTORY=", folder.as_os_str().as_encoded_bytes()].concat();
    // A process that has ended and was not reaped has no environment any more.
    read("environ").split(|byte| *byte == 0).any(|variable| variable == wanted)
}

/// Waits until they are gone, and kills those that are not within `patience`.
pub(crate) fn end(folder: &Path, patience: Duration) {
    let until = Instant::now() + patience;
    loop {
        let left = of_folder(folder);
        if left.is_empty() {
            return;
        }
        if Instant::now() >= until {
            tracing::warn!(count = left.len(), "processes of the MPS daemon did not end; they are killed");
            left.iter().for_each(|pid| _ = kill_process(*pid, Signal::KILL));
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
