//! `dxpu guardian`: keeps images of device memory in host memory. Started by `dxpu worker` and `dxpu box`.

use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::{log, quantity};
use anyhow::Context;
use guardian::{Guardian, GuardianConfig, PeerAddress, PeerFiles, PeerListen, PeerSecurity};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use transport::HostPort;

#[derive(clap::Args)]
pub(crate) struct GuardianRole {
    /// The Unix socket for the workers of this machine
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Memory for all images together
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    memory: u64,
    /// How long an image stays whose session is gone
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    keep: Option<Duration>,
    /// End when standard input ends
    #[arg(long)]
    ends_with_stdin: bool,
    /// Where guardians of other boxes reach this one
    #[arg(long, value_name = "HOST:PORT")]
    peer_listen: Option<HostPort>,
    /// The host by which they reach it [default: that of --peer-listen]
    #[arg(long, value_name = "HOST", requires = "peer_listen")]
    peer_host: Option<String>,
    /// The name that --peer-cert is for, if it is not the host
    #[arg(long, value_name = "NAME", requires = "peer_listen")]
    peer_name: Option<String>,
    /// The pool's authority (PEM)
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_authority: Option<PathBuf>,
    /// This box's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "peer_key")]
    peer_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "peer_authority")]
    peer_key: Option<PathBuf>,
    /// Speak with other guardians in the clear: only for tests on one machine
    #[arg(long, conflicts_with = "peer_cert")]
    peer_plain: bool,
    /// The guardian that keeps a second copy of each image: tls:HOST:PORT/NAME
    #[arg(long, value_name = "ADDR")]
    copy_to: Option<PeerAddress>,
    /// How long a commit waits for the second copy before it says that there is one
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = quantity::duration)]
    copy_wait: Duration,
    /// A private directory for suspended images
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// How long a program is suspended before its image goes there; it goes sooner when memory is short [default: 2m]
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, requires = "disk")]
    disk_after: Option<Duration>,
}

impl GuardianRole {
    pub(crate) fn run(self) -> Outcome {
        log::start("info");
        let mut signals =
            signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals")?;
        let is_kept = guardian::keep_out_of_swap();
        let ends_with_stdin = self.ends_with_stdin;
        let config = self.config();
        let (socket, bytes) = (config.socket.display().to_string(), config.bytes_max);
        let started = Guardian::start(&config).map_err(|error| {
            let hint = "choose a shorter path for the state directory, or stop the guardian that is there";
            Failure::new(Exit::Failure, "the guardian cannot start", hint).because(error)
        })?;
        tracing::info!(socket, bytes, is_kept, address = started.address(), "the guardian keeps images");
        // Beside the first sessions: they need it only with their first images.
        std::thread::Builder::new().name("guardian-ready".to_owned()).spawn(move || {
            let began = Instant::now();
            let ready = guardian::make_ready(bytes);
            tracing::info!(ready, took = ?began.elapsed(), "guard memory is ready");
        })?;
        if ends_with_stdin {
            let stopper = signals.handle();
            std::thread::Builder::new().name("guardian-stdin".to_owned()).spawn(move || {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                stopper.close();
            })?;
        }
        // Ends with a signal, or with the handle that the thread above closes.
        let signal = signals.forever().next();
        tracing::info!(signal, "stopping: all images are zeroed");
        started.stop();
        Ok(Exit::Success)
    }

    fn config(self) -> GuardianConfig {
        let mut config = GuardianConfig::new(self.socket, self.memory);
        config.keep = self.keep.unwrap_or(config.keep);
        config.security = match (self.peer_authority, self.peer_cert, self.peer_key) {
            (Some(authority), Some(certificate), Some(key)) => {
                PeerSecurity::Mutual(PeerFiles { authority, certificate, key })
            }
            _ if self.peer_plain => PeerSecurity::Plain,
            _ => PeerSecurity::Alone,
        };
        config.listen = self.peer_listen.map(|at| PeerListen {
            host: self.peer_host.unwrap_or_else(|| at.host.clone()),
            at,
            name: self.peer_name,
        });
        config.copy_to = self.copy_to;
        config.copy_wait = self.copy_wait;
        config.disk = self.disk;
        config.park_after = self.disk_after.unwrap_or(config.park_after);
        config
    }
}
