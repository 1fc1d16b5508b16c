//! `dxpu functions`: short programs with GPUs of the pool, deployed and invoked as on AWS Lambda.

mod gpus;

use crate::roles::manager::store_option::{EtcdFiles, StoreOption};
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::notify::ServiceManager;
use crate::support::pool_access::PoolAccess;
use crate::support::{log, quantity};
use anyhow::Context;
use functions_gateway::{Gateway, GpusOf, StartError, TlsFiles};
use machine::files;
use pool_store::Older;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  A service on this machine, and a key for a tenant:
      pip install awslambdaric
      dxpu functions --listen 127.0.0.1:9700 &
      dxpu functions new-key --tenant ada

  Then, as ada:
      export AWS_ENDPOINT_URL=http://127.0.0.1:9700 AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… AWS_DEFAULT_REGION=pool
      zip app.zip app.py
      dxpu function deploy hello --zip app.zip --handler app.handler
      dxpu function invoke hello --payload '{\"name\": \"ada\"}'
  boto3 and the aws command work as well: the interface is AWS Lambda's.

  With GPUs of the pool, two functions on each:
      dxpu functions --gpus 4 --sharing 2 --credential functions.json
  A function asks for one by its environment: DXPU_GPU_MEMORY_MB=4000.

  The same, and functions outlive the loss of a GPU and move from a busy GPU to an idle one while they run:
      dxpu functions --gpus 4 --sharing 2 --credential functions.json --survive plain --balance-after 2s
  A function chooses for itself by its environment: DXPU_SURVIVE=plain or off.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Functions {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(clap::Subcommand)]
enum Other {
    /// Make an access key for a tenant, straight in the store
    NewKey(Box<NewKey>),
}

#[derive(clap::Args)]
struct NewKey {
    /// Whose it is
    #[arg(long)]
    tenant: String,
    #[command(flatten)]
    place: Place,
}

#[derive(clap::Args)]
struct Place {
    /// Where everything is kept: sqlite:PATH or etcd:URL,URL,...; the pool's own store will do [default: a file in the state
    /// directory]
    #[arg(long)]
    store: Option<StoreOption>,
    #[command(flatten)]
    etcd: EtcdFiles,
    /// The folder for the default store
    #[arg(long, env = "DXPU_FUNCTIONS_DIR")]
    state_dir: Option<PathBuf>,
}

#[derive(clap::Args)]
struct Serve {
    /// Where to listen; for other machines, with --tls-cert
    #[arg(long, default_value = "127.0.0.1:9700")]
    listen: SocketAddr,
    /// Certificate chain (PEM) to show; clients then use https
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key (PEM) of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
    /// The folder for code and instances; it may be lost [default: run in the state directory]
    #[arg(long)]
    run_dir: Option<PathBuf>,
    /// The interpreter for runtimes python3.N; it must have the package awslambdaric
    #[arg(long, value_name = "PATH", default_value = "/usr/bin/python3")]
    python: String,
    /// The region that functions are told
    #[arg(long, default_value = "pool")]
    region: String,
    /// Instances at once
    #[arg(long, value_name = "N", default_value = "64")]
    instances: usize,
    /// Instances of one tenant that start or work at once
    #[arg(long, value_name = "N", default_value = "64")]
    tenant_instances: usize,
    /// Memory of all instances together
    #[arg(long, value_name = "SIZE", default_value = "16GiB", value_parser = quantity::bytes)]
    memory: u64,
    /// How long an idle instance is kept
    #[arg(long, value_name = "TIME", default_value = "300s", value_parser = quantity::duration)]
    keep_warm: Duration,
    /// How long until an asynchronous invocation that failed is tried again; twice as long before the next time
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = quantity::duration)]
    retry_after: Duration,
    /// Run instances as this process's own user, also as root
    #[arg(long)]
    same_user: bool,
    /// GPUs of the pool that may be borrowed at once
    #[arg(long, value_name = "N", default_value = "0")]
    gpus: usize,
    /// Instances on one GPU, if their declared memory fits
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    sharing: u32,
    /// How long a GPU without instances is kept: its box remembers what they loaded
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = quantity::duration)]
    gpu_keep: Duration,
    /// Which GPU gets the next instance
    #[arg(long, value_enum, default_value = "best")]
    fit: Fit,
    /// Put functions of different tenants on one GPU: each has a session and a memory limit of its own, but they share its time
    #[arg(long)]
    share_between_tenants: bool,
    /// How functions outlive the loss of their session, worker or GPU, where DXPU_SURVIVE of their environment does not say: off,
    /// or words of `dxpu run --survive`: plain, tight, careful, required
    #[arg(long, value_name = "WORDS", default_value = "off")]
    survive: functions::Survive,
    /// When two or more functions run on one GPU and none on another for so long, one that survives moves there while it runs;
    /// off: none moves
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = balance_after)]
    balance_after: BalanceAfter,
    /// Where Prometheus reads metrics, at /metrics and in the clear: only the operator should reach it
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    access: PoolAccess,
}

/// When load is balanced; never, without a time.
#[derive(Clone, Copy, Debug)]
struct BalanceAfter(Option<Duration>);

fn balance_after(text: &str) -> Result<BalanceAfter, String> {
    if text == "off" {
        return Ok(BalanceAfter(None));
    }
    let after = quantity::duration(text).map_err(|error| format!("{error}, or off"))?;
    Ok(BalanceAfter(Some(after)))
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Fit {
    /// The one with the least memory left
    Best,
    /// The one with the most memory left
    Worst,
    /// One that had the function before; if all are full, the one where fewest idle instances must end
    FewestMoves,
}

impl Place {
    fn directory(&self) -> anyhow::Result<PathBuf> {
        match &self.state_dir {
            Some(directory) => Ok(directory.clone()),
            None => Ok(files::state_directory()?.join("functions")),
        }
    }

    fn open(&self) -> anyhow::Result<std::sync::Arc<dyn pool_store::Store>> {
        let directory = self.directory()?;
        let store = match &self.store {
            Some(store) => store.clone(),
            None => {
                files::make_private(&directory)?;
                StoreOption::Sqlite(directory.join("functions.db"))
            }
        };
        store.open(self.etcd.tls()?, Older::Refuse)
    }
}

impl Functions {
    pub(crate) fn run(self) -> Outcome {
        match self.other {
            Some(Other::NewKey(order)) => order.run(),
            None => self.serve.run(),
        }
    }
}

impl NewKey {
    fn run(self) -> Outcome {
        let store = self.place.open()?;
        let key = functions_gateway::new_key(&*store, &self.tenant)?;
        outln!("AWS_ACCESS_KEY_ID={}\nAWS_SECRET_ACCESS_KEY={}", key.id, key.secret);
        Ok(Exit::Success)
    }
}

impl Serve {
    fn run(self) -> Outcome {
        log::start("info");
        let run_directory = match &self.run_dir {
            Some(directory) => directory.clone(),
            None => self.place.directory()?.join("run"),
        };
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let settings = functions_gateway::Settings {
            listen: self.listen,
            tls: self.tls()?,
            store: self.place.open()?,
            gpus: self.gpus_of(&run_directory)?,
            run_directory,
            machine: self.limits(),
            survive: self.survive.clone(),
            metrics: self.metrics,
            python: self.python.clone(),
            region: self.region.clone(),
            private_users: !self.same_user,
        };
        let running = Gateway::start(settings).map_err(start_failure)?;
        let mut out = std::io::stdout().lock();
        // The process that started it may have gone away without reading; that is no reason to stop.
        let scheme = if self.tls_cert.is_some() { "https" } else { "http" };
        let _ = writeln!(out, "functions listening at {scheme}://{}", running.address())
            .and_then(|()| out.flush());
        drop(out);
        let mut service = ServiceManager::of_environment();
        service.ready();
        loop {
            if let Some(signal) = signals.pending().next() {
                service.stopping();
                tracing::info!(signal, "stopping: instances end, and what was accepted is in the store");
                running.stop();
                return Ok(Exit::Success);
            }
            if running.is_over() {
                let hint = "start it again: it goes on with what was accepted";
                return Err(Failure::new(Exit::Failure, "the store is lost to this service", hint).into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn tls(&self) -> anyhow::Result<Option<TlsFiles>> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let read = std::fs::read(certificate);
        let certificate = read.with_context(|| format!("cannot read {}", certificate.display()))?;
        Ok(Some(TlsFiles { certificate, key: files::read_secret(key)?.into_bytes() }))
    }

    fn limits(&self) -> functions::Settings {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX / 4);
        functions::Settings {
            instances_max: self.instances,
            tenant_instances_max: self.tenant_instances,
            memory_max_mb: self.memory >> 20,
            keep_warm_ms: ms(self.keep_warm),
            retry_delay_ms: ms(self.retry_after),
            sharing: self.sharing,
            gpus_max: self.gpus,
            gpu_keep_ms: ms(self.gpu_keep),
            fit: match self.fit {
                Fit::Best => functions::Fit::Best,
                Fit::Worst => functions::Fit::Worst,
                Fit::FewestMoves => functions::Fit::FewestMoves,
            },
            tenants_share: self.share_between_tenants,
            balance_after_ms: self.balance_after.0.map(ms),
            ..functions::Settings::default()
        }
    }

    fn gpus_of(&self, run_directory: &std::path::Path) -> anyhow::Result<Option<GpusOf>> {
        if self.gpus == 0 {
            return Ok(None);
        }
        let leases = gpus::Leases::new(&self.access, &run_directory.join("lib"))?;
        Ok(Some(Box::new(move |news| leases.telling(news))))
    }
}

fn start_failure(error: StartError) -> Failure {
    let hint = match &error {
        StartError::Listen { .. } => "choose another address with --listen or --metrics",
        StartError::System { .. } => {
            "check --run-dir and --state-dir: this process must be able to write there"
        }
        StartError::Tls(_) => "check the files of --tls-cert and --tls-key",
        StartError::Store(_) => "check that the store can be reached and written to",
        StartError::Led { .. } => "stop the other service, or give this one a store of its own with --store",
    };
    Failure::new(Exit::Failure, "the service of functions cannot start", hint).because(error)
}
