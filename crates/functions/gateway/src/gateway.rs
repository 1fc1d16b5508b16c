//! Starts everything, and ends it.

use crate::cache::Cache;
use crate::desk::{Desk, Parts};
use crate::gpus::{GpuNews, GpusOf, NoGpus};
use crate::keeper::{KeepError, Keeper};
use crate::server::{self, Bounds};
use crate::spawner::Spawner;
use crate::tls::{TlsError, TlsFiles};
use crate::users::Users;
use crate::{lambda, metrics, tls};
use pool_store::{Candidacy, Elector, Leadership, Standing, Store};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// What a service is told.
pub struct Settings {
    /// Where clients come.
    pub listen: SocketAddr,
    /// Where everything is kept.
    pub store: Arc<dyn Store>,
    /// For code, instances and tokens; may be lost.
    pub run_directory: PathBuf,
    /// Limits and times.
    pub machine: functions::Settings,
    /// The interpreter with `awslambdaric`.
    pub python: String,
    /// As functions are told.
    pub region: String,
    /// Give each instance a user of its own, if this process is root's.
    pub private_users: bool,
    /// What clients are shown; without it they speak in the clear.
    pub tls: Option<TlsFiles>,
    /// Where GPUs come from.
    pub gpus: Option<GpusOf>,
    /// How instances outlive the loss of their GPU, where their function does not say.
    pub survive: functions::Survive,
    /// Where metrics are read, in the clear.
    pub metrics: Option<SocketAddr>,
}

/// Why a service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be had.
    #[error("cannot listen at {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Folders or threads cannot be made.
    #[error("cannot {doing}")]
    System {
        /// What.
        doing: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The certificate or its key is not good.
    #[error("no TLS")]
    Tls(#[from] TlsError),
    /// The store cannot be read.
    #[error("cannot read the store")]
    Store(#[from] KeepError),
    /// Another service leads.
    #[error("another service of functions uses this store: {address}")]
    Led {
        /// Where it is.
        address: String,
    },
}

/// How long a service that was killed still counts as leading.
const LEADER_TTL: Duration = Duration::from_secs(2);
/// How long a start waits for the one before it to be gone.
const LEAD_WITHIN: Duration = Duration::from_secs(15);
/// How often time passes for the machine.
const TICK: Duration = Duration::from_millis(20);
/// Clients at once.
const CONNECTIONS_MAX: usize = 4096;
/// Readers of metrics at once.
const METRICS_CONNECTIONS_MAX: usize = 16;
/// How often old reports are removed, and how old they get.
const TIDY_EVERY: Duration = Duration::from_secs(600);
const SUCCESS_KEPT_MS: u64 = 24 * 3600 * 1000;
const FAILURE_KEPT_MS: u64 = 14 * SUCCESS_KEPT_MS;

/// A service that runs.
pub struct Gateway {
    address: SocketAddr,
    desk: Arc<Desk>,
    stop: watch::Sender<bool>,
    elector: Elector,
    runtime: tokio::runtime::Runtime,
}

impl Gateway {
    /// Starts it: waits for the leadership, reads what was accepted, and serves.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        let system = |doing| move |source| StartError::System { doing, source };
        let tls = settings.tls.as_ref().map(tls::acceptor).transpose()?;
        let listener = bind(settings.listen)?;
        let address = listener.local_addr().map_err(system("find the own address"))?;
        let metrics = settings.metrics.map(bind).transpose()?;
        let (elector, leadership) = lead(&settings.store, address)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(system("start threads"))?;
        let users = Arc::new(Users::new(settings.private_users));
        crate::runner::forget_old_cgroups();
        let cache = Cache::open(&settings.run_directory, users.clone()).map_err(system("make folders"))?;
        let keeper = Keeper::start(settings.store.clone(), leadership).map_err(system("start threads"))?;
        let desk = Desk::new(Parts {
            machine: settings.machine,
            keeper: keeper.clone(),
            cache: cache.clone(),
            users: users.clone(),
            region: settings.region.clone(),
            survive: settings.survive,
            runtime: runtime.handle().clone(),
        });
        let spawner = Spawner {
            cache,
            users,
            python: settings.python,
            region: settings.region,
            desk: Arc::downgrade(&desk),
            name: format!("{}-{}", std::process::id(), address.port()),
        };
        let _ = desk.spawner.set(spawner.start().map_err(system("start threads"))?);
        let _ = desk.gpus.set(gpus(&desk, settings.gpus));
        let loaded = keeper.load()?;
        loaded.functions.into_iter().for_each(|function| desk.deploy(function));
        tracing::info!(invocations = loaded.queued.len(), "accepted before this service was started");
        loaded.queued.into_iter().for_each(|queued| desk.invoke_async(queued));
        let (stop, stopped) = watch::channel(false);
        if let Some(metrics) = metrics {
            runtime
                .block_on(serve_metrics(metrics, desk.clone(), stopped.clone()))
                .map_err(system("listen"))?;
        }
        runtime.block_on(serve(listener, tls, desk.clone(), stopped)).map_err(system("listen"))?;
        Ok(Self { address, desk, stop, elector, runtime })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it must end: the store is lost to it, or another leads.
    pub fn is_over(&self) -> bool {
        let is_lost = matches!(self.elector.standings().try_recv(), Ok(Standing::Following(_)));
        is_lost || self.desk.keeper.is_over()
    }

    /// Ends it: no new requests, and all instances are killed. What was accepted is in the store.
    pub fn stop(self) {
        let _ = self.stop.send(true);
        self.runtime.shutdown_timeout(Duration::from_secs(2));
        drop(self.elector);
    }
}

fn gpus(desk: &Arc<Desk>, source: Option<GpusOf>) -> Arc<dyn crate::gpus::Gpus> {
    let weak = Arc::downgrade(desk);
    let news = Arc::new(move |news: GpuNews| {
        if let Some(desk) = weak.upgrade() {
            desk.gpu_news(news);
        }
    });
    match source {
        Some(make) => make(news),
        None => Arc::new(NoGpus(news)),
    }
}

/// Waits until this process leads.
fn lead(store: &Arc<dyn Store>, address: SocketAddr) -> Result<(Elector, Leadership), StartError> {
    let candidacy = Candidacy { name: "functions".to_owned(), address: address.to_string(), ttl: LEADER_TTL };
    let elector = Elector::start(store.clone(), candidacy);
    let until = Instant::now() + LEAD_WITHIN;
    let mut led_by = String::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match elector.standings().recv_timeout(left) {
            Ok(Standing::Leading(leadership)) => return Ok((elector, leadership)),
            Ok(Standing::Following(leader)) => led_by = leader.map_or(led_by, |leader| leader.address),
            Err(_) => return Err(StartError::Led { address: led_by }),
        }
    }
}

fn bind(address: SocketAddr) -> Result<std::net::TcpListener, StartError> {
    let listener = std::net::TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|source| StartError::Listen { address, source })
}

async fn serve_metrics(
    listener: std::net::TcpListener,
    desk: Arc<Desk>,
    stopped: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let text = || async move { metrics::text(&desk) };
    let router = axum::Router::new().route("/metrics", axum::routing::get(text));
    tokio::spawn(server::serve(
        listener,
        router,
        Bounds::strict(METRICS_CONNECTIONS_MAX),
        None,
        |_, _| true,
        stopped,
    ));
    Ok(())
}

async fn serve(
    listener: std::net::TcpListener,
    tls: Option<TlsAcceptor>,
    desk: Arc<Desk>,
    stopped: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let router = axum::Router::new().fallback(lambda::handle).with_state(desk.clone());
    tokio::spawn(server::serve(
        listener,
        router,
        Bounds::strict(CONNECTIONS_MAX),
        tls,
        |_, _| true,
        stopped.clone(),
    ));
    tokio::spawn(pass_time(desk, stopped));
    Ok(())
}

async fn pass_time(desk: Arc<Desk>, stopped: watch::Receiver<bool>) {
    let mut tidied = Instant::now();
    while !*stopped.borrow() {
        tokio::time::sleep(TICK).await;
        desk.tick();
        if tidied.elapsed() >= TIDY_EVERY {
            tidied = Instant::now();
            let desk = desk.clone();
            let _ = tokio::task::spawn_blocking(move || tidy(&desk)).await;
        }
    }
}

/// Removes reports that are old.
fn tidy(desk: &Desk) {
    let now_ms = desk.now_ms();
    for report in desk.keeper.reports("").unwrap_or_default() {
        let kept_ms = if report.succeeded { SUCCESS_KEPT_MS } else { FAILURE_KEPT_MS };
        if report.ended_ms + kept_ms < now_ms {
            desk.keeper.forget_report(&report);
        }
    }
}
