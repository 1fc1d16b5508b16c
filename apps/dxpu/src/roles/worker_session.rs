//! `dxpu worker-session`: one session of a worker, started by it and told everything through standard input.

use crate::roles::worker::devices::{self, nvidia};
use crate::support::exit::{Exit, Outcome};
use crate::support::log;
use cuda_driver::{ImageStore, StoreError};
use cuda_worker::NoDevices;
use guardian::GuardianStore;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

#[derive(clap::Args)]
pub(crate) struct WorkerSession {
    /// Drive the GPUs of this machine
    #[arg(long)]
    nvidia: bool,
}

impl WorkerSession {
    pub(crate) fn run(self) -> Outcome {
        log::start("warn");
        let control = std::io::stdin().as_fd().try_clone_to_owned()?;
        if !is_socket(&control) {
            errln!("dxpu: worker-session is started by `dxpu worker`, not by hand");
            return Ok(Exit::Usage);
        }
        if self.nvidia {
            nvidia::move_away_from_programs();
        }
        let end = cuda_worker::run_session_process_with_store(
            control,
            &|granted, fds| devices::make_driver(granted, fds).map_err(NoDevices::because),
            &|granted, fds| devices::make_status(granted, fds).map_err(NoDevices::because),
            open_guardian,
        );
        // Threads may still be in a kernel or a system call: nothing of theirs is worth waiting for.
        std::process::exit(end.kind.exit_code().into());
    }
}

/// The guardian at a socket, for images of a lease if there is one.
fn open_guardian(path: &Path, lease: Option<&str>) -> Result<Arc<dyn ImageStore>, StoreError> {
    Ok(Arc::new(GuardianStore::connect(path)?.for_lease(lease.unwrap_or_default())))
}

fn is_socket(fd: &std::os::fd::OwnedFd) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let file = fd.try_clone().map(std::fs::File::from);
    file.and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.file_type().is_socket())
}
