//! An MPS daemon that one worker, or one GPU of a box, has for itself.
//!
//! ```text
//!   folder (0700) ◀── CUDA_MPS_PIPE_DIRECTORY, CUDA_MPS_LOG_DIRECTORY ──▶ session processes: contexts of one server
//!      ▲                                                                   all other processes: contexts of their own
//!   nvidia-cuda-mps-control -f ─▶ nvidia-cuda-mps-server (started by the first client)
//! ```
//!
//! A daemon reads the folder from its environment, and so does a client. A process without these variables reaches none of it.

#![forbid(unsafe_code)]

mod daemon;
mod processes;

pub use daemon::{Daemon, MakeControl, MpsError};

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// NVIDIA's program that starts and ends MPS servers.
pub const CONTROL: &str = "nvidia-cuda-mps-control";

/// The variables by which a process reaches the daemon of a folder.
pub fn environment(folder: &Path) -> [(&'static str, PathBuf); 2] {
    [("CUDA_MPS_PIPE_DIRECTORY", folder.to_owned()), ("CUDA_MPS_LOG_DIRECTORY", folder.to_owned())]
}

/// Whether the daemon of a folder takes clients.
pub fn is_ready(folder: &Path) -> bool {
    folder.join(READY).exists()
}

/// The socket that the daemon makes when it takes clients.
const READY: &str = "control";

/// Whether a directory of `path` (the value of `PATH`) has [`CONTROL`].
pub fn is_installed(path: &std::ffi::OsStr) -> bool {
    let is_program = |directory: PathBuf| {
        let found = std::fs::metadata(directory.join(CONTROL));
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path).any(is_program)
}

/// Which GPUs a daemon serves, by the `CUDA_VISIBLE_DEVICES` of its clients.
///
/// Numbers mean something else to a client than to a daemon that has some of the GPUs alone: a client counts those of its daemon. So
/// only identities are handed on. `None`: all GPUs of the machine, of which the clients choose theirs.
pub fn visible_to_daemon(of_clients: Option<&str>) -> Option<&str> {
    let is_identity = |word: &str| word.trim().starts_with("GPU-") || word.trim().starts_with("MIG-");
    of_clients.filter(|text| text.split(',').all(is_identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_identities_are_handed_on_to_a_daemon() {
        assert_eq!(visible_to_daemon(Some("GPU-1a,GPU-2b")), Some("GPU-1a,GPU-2b"));
        for numbers in ["0", "1,0", "GPU-1a,1", ""] {
            assert_eq!(visible_to_daemon(Some(numbers)), None, "{numbers:?}");
        }
        assert_eq!(visible_to_daemon(None), None);
    }

    #[test]
    fn a_program_that_cannot_be_executed_is_not_installed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().as_os_str();
        assert!(!is_installed(path));
        std::fs::write(folder.path().join(CONTROL), "").unwrap();
        assert!(!is_installed(path));
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path().join(CONTROL), executable).unwrap();
        assert!(is_installed(path));
        assert!(!is_installed(std::ffi::OsStr::new("")));
    }
}
