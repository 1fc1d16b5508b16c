//! `dxpu manager`: leases GPUs out of boxes.

mod backup;
pub(super) mod store_option;

use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::notify::ServiceManager;
use crate::support::{log, places, quantity};
use anyhow::Context;
use machine::files;
use pool_manager::{AUDIT_KEEP, CERTIFICATE_LIFE, CONNECTIONS_MAX, Manager as Running, Settings, StartError};
use pool_store::Older;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use store_option::{EtcdFiles, StoreOption};

const EXAMPLES: &str = "\
Examples:
  One manager, everything in one file:
      dxpu manager --listen 0.0.0.0:7500
  It says where the first admin's credential is.

  Three managers on an etcd cluster; one leads, clients find it:
      dxpu manager --listen 0.0.0.0:7500 --name m1 --store etcd:http://e1:2379,http://e2:2379,http://e3:2379

  The admin's credential is lost; whoever can write to the store can have a new one:
      dxpu manager new-admin --out admin.json";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Manager {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(clap::Subcommand)]
enum Other {
    /// Make another admin's credential, straight in the store
    NewAdmin(Box<NewAdmin>),
    /// Copy the whole store into one file; managers may run meanwhile
    Backup(Box<backup::Backup>),
    /// Put such a copy into a store
    Restore(Box<backup::Restore>),
    /// Print the API's document (OpenAPI)
    Openapi,
}

#[derive(clap::Args)]
struct Serve {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:7500")]
    listen: SocketAddr,
    /// How others reach this manager, such as `https://gpu-pool.example:7500`
    #[arg(long)]
    advertise: Option<String>,
    /// Its name among managers; this machine's name if left out
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    place: Place,
    /// How long a silent leader leads
    #[arg(long, value_parser = quantity::duration, default_value = LEADER_TTL_TEXT)]
    leader_ttl: Duration,
    /// How often boxes report
    #[arg(long, value_parser = quantity::duration, default_value = "1s")]
    report_every: Duration,
    /// A box that is silent for so long gets nothing new
    #[arg(long, value_parser = quantity::duration, default_value = "3s")]
    suspect_after: Duration,
    /// A box that is silent for so long is given up, and its leases move
    #[arg(long, value_parser = quantity::duration, default_value = "15s")]
    dead_after: Duration,
    /// A lease within its tenant's guarantee that waits for so long gets what others have beyond theirs
    #[arg(long, value_parser = quantity::duration, default_value = "60s")]
    reclaim_after: Duration,
}

const LEADER_TTL_TEXT: &str = "3s";

#[derive(clap::Args)]
struct Place {
    /// Where everything is kept: sqlite:PATH or etcd:URL,URL,... [default: a file in the state directory]
    #[arg(long)]
    store: Option<StoreOption>,
    #[command(flatten)]
    etcd: EtcdFiles,
    /// Open the store's file although it is older than it once was: after restoring a backup
    #[arg(long)]
    accept_older_store: bool,
    /// The folder for the default store and the first admin's credential
    #[arg(long, env = "DXPU_MANAGER_DIR")]
    state_dir: Option<PathBuf>,
}

#[derive(clap::Args)]
struct NewAdmin {
    #[command(flatten)]
    place: Place,
    /// The admin's name
    #[arg(long, default_value = "first")]
    name: String,
    /// Addresses of managers, for the credential
    #[arg(long, default_value = "https://127.0.0.1:7500")]
    manager: Vec<String>,
    /// Where the credential is written, for its owner alone
    #[arg(long)]
    out: PathBuf,
}

impl Place {
    fn directory(&self) -> anyhow::Result<PathBuf> {
        match &self.state_dir {
            Some(directory) => Ok(directory.clone()),
            None => Ok(places::manager_directory()?),
        }
    }

    fn open(&self) -> anyhow::Result<std::sync::Arc<dyn pool_store::Store>> {
        let directory = self.directory()?;
        files::make_private(&directory)?;
        let store = self.store.clone().unwrap_or_else(|| StoreOption::Sqlite(directory.join("pool.db")));
        let older = if self.accept_older_store { Older::Accept } else { Older::Refuse };
        store.open(self.etcd.tls()?, older)
    }
}

impl Manager {
    pub(crate) fn run(self) -> Outcome {
        match self.other {
            Some(Other::NewAdmin(order)) => order.run(),
            Some(Other::Backup(order)) => order.run(),
            Some(Other::Restore(order)) => order.run(),
            Some(Other::Openapi) => {
                outln!("{}", serde_json::to_string_pretty(&pool_manager::openapi())?);
                Ok(Exit::Success)
            }
            None => self.serve.run(),
        }
    }
}

impl Serve {
    fn run(self) -> Outcome {
        log::start("info");
        let name = self.name.clone().unwrap_or_else(manager_name);
        pool_auth::check_name(&name).map_err(|error| {
            Failure::new(Exit::Usage, error.to_string(), "give this manager a name with --name")
        })?;
        let admin_file = places::admin_file(&self.place.directory()?);
        let settings = Settings {
            name,
            listen: self.listen,
            advertise: self.advertise.clone(),
            store: self.place.open()?,
            admin_file: admin_file.clone(),
            clock: pool_manager::Clock::start(),
            leader_ttl: self.leader_ttl,
            ledger: self.ledger_settings()?,
            audit_keep: AUDIT_KEEP,
            certificate_life: CERTIFICATE_LIFE,
            connections_max: CONNECTIONS_MAX,
        };
        // Signals are caught before anything else starts, so that none is missed.
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let running = Running::start(settings).map_err(start_failure)?;
        let mut said = format!("manager listening at {}\n", running.advertised());
        if admin_file.exists() {
            said += &format!("  the first admin's credential is in {}\n", admin_file.display());
        }
        // The process that started it may have gone away without reading; that is no reason to stop.
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(said.as_bytes()).and_then(|()| out.flush());
        drop(out);
        let mut service = ServiceManager::of_environment();
        service.ready();
        let signal = signals.forever().next();
        service.stopping();
        tracing::info!(?signal, "stopping: requests may end, then this manager resigns");
        running.stop();
        Ok(Exit::Success)
    }

    fn ledger_settings(&self) -> anyhow::Result<pool::Settings> {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX / 4);
        if self.suspect_after <= self.report_every || self.dead_after <= self.suspect_after {
            return Err(Failure::new(
                Exit::Usage,
                "boxes would be given up between two reports",
                "choose --report-every below --suspect-after below --dead-after",
            )
            .into());
        }
        Ok(pool::Settings {
            report_after_ms: ms(self.report_every),
            suspect_after_ms: ms(self.suspect_after),
            dead_after_ms: ms(self.dead_after),
            reclaim_after_ms: ms(self.reclaim_after),
            ..pool::Settings::default()
        })
    }
}

impl NewAdmin {
    fn run(self) -> Outcome {
        let store = self.place.open()?;
        let now_ms = pool_manager::Clock::start().now_ms();
        let made = pool_manager::new_admin(&*store, &self.manager, &self.name, now_ms)
            .context("cannot make a credential")?;
        let credential = made.ok_or_else(|| {
            let hint = "start a manager on this store first; it makes the first admin by itself";
            Failure::new(Exit::Failure, "there is no pool in this store yet", hint)
        })?;
        pool_manager::write_private(&self.out, &credential)?;
        outln!("wrote {}; a manager that runs already takes it up when it leads next", self.out.display());
        Ok(Exit::Success)
    }
}

fn manager_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_ascii_lowercase()
}

fn start_failure(error: StartError) -> Failure {
    let hint = match &error {
        StartError::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
            "another process listens there; stop it, or choose another address with --listen"
        }
        StartError::Listen { .. } => "choose an address of this machine with --listen",
        StartError::Bootstrap(_) => "check that the store can be reached and written to",
        StartError::Tls(_) => "check --advertise and --name: they stand in the manager's certificate",
        StartError::Threads(_) => "raise the limit on processes (ulimit -u)",
    };
    Failure::new(Exit::Failure, "the manager cannot start", hint).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_written_as_it_is() {
        assert_eq!(quantity::duration(LEADER_TTL_TEXT), Ok(pool_manager::LEADER_TTL));
    }
}
