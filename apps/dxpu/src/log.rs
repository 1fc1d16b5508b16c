//! Logging to standard error.

use tracing_subscriber::EnvFilter;

/// `DXPU_LOG` chooses what is written, in the form of `info` or `cuda_worker=debug`.
pub(crate) fn start(default: &str) {
    let filter = EnvFilter::try_from_env("DXPU_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_target(false).with_ansi(colours);
    // Fails only when somebody has begun to log already.
    let _ = subscriber.with_writer(std::io::stderr).try_init();
}
