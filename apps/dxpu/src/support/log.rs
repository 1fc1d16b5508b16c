//! Logging to standard error.

use std::io::Write;
use tracing_subscriber::EnvFilter;

/// `DXPU_LOG` chooses what is written, in the form of `info` or `cuda_worker=debug`.
pub(crate) fn start(default: &str) {
    let filter = EnvFilter::try_from_env("DXPU_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_target(false).with_ansi(colours);
    // A line that cannot be written (its file lies on a full disk) is lost. To complain of it on standard error would fail
    // as well, and end the thread that had something to say.
    let subscriber = subscriber.log_internal_errors(false);
    // Fails only when a subscriber is installed already.
    let _ = subscriber.with_writer(std::io::stderr).try_init();
}

/// Says something to the user on standard error. Unlike `eprintln` it goes on where the write fails: a lease is renewed
/// although the log of the program lies on a full disk.
pub(crate) fn say(text: std::fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// The same on standard output, for processes that serve on whether it has a reader or not.
pub(crate) fn announce(text: std::fmt::Arguments<'_>) {
    let _ = std::io::stdout().write_all(format!("{text}\n").as_bytes());
}
