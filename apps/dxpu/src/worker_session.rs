//! `dxpu worker-session`: one session of a worker, started by it and told everything through standard input.

use crate::exit::{Exit, Outcome};
use crate::{log, soft};
use std::os::fd::AsFd;

pub(crate) fn run() -> Outcome {
    log::start("warn");
    let control = std::io::stdin().as_fd().try_clone_to_owned()?;
    if !is_socket(&control) {
        eprintln!("dxpu: worker-session is started by `dxpu worker`, not by hand");
        return Ok(Exit::Usage);
    }
    let end = cuda_worker::run_session_process(control, &soft::make_driver, &soft::make_status);
    // Threads may still be in a kernel or a system call: nothing of theirs is worth waiting for.
    std::process::exit(end.kind.exit_code().into());
}

fn is_socket(fd: &std::os::fd::OwnedFd) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let file = fd.try_clone().map(std::fs::File::from);
    file.and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.file_type().is_socket())
}
