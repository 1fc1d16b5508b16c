//! A running manager.

use std::net::SocketAddr;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::bootstrap::{self, BootstrapError};
use crate::clock::system_now_ms;
use crate::descriptors;
use crate::desk::{Desk, JOBS_MAX};
use crate::door::{Door, Places};
use crate::history::History;
use crate::http::{self, Api};
use crate::leader::Leader;
use crate::readiness::Readiness;
use crate::server::Server;
use crate::settings::Settings;
use crate::status::Status;
use crate::tls::{self, OWN_RENEWAL, OwnCertificate, TlsError};
use crate::tries::Tries;

/// Why a manager cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The pool's authority.
    #[error("cannot begin")]
    Bootstrap(#[from] BootstrapError),
    /// TLS.
    #[error("cannot make certificates")]
    Tls(#[from] TlsError),
    /// The address.
    #[error("cannot listen at {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Threads.
    #[error("cannot start threads")]
    Threads(#[source] std::io::Error),
}

/// A manager that runs until it is stopped.
pub struct Manager {
    address: SocketAddr,
    advertised: String,
    stop: watch::Sender<bool>,
    status: Arc<Status>,
    runtime: Option<Runtime>,
    server: Option<tokio::task::JoinHandle<()>>,
    leader: Option<JoinHandle<()>>,
}

impl Manager {
    /// Starts it. It listens when this returns; whether it leads is seen later.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        let clock = settings.clock;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("manager")
            .build()
            .map_err(StartError::Threads)?;
        let listening = runtime.block_on(TcpListener::bind(settings.listen));
        let listen_error = |source| StartError::Listen { address: settings.listen, source };
        let listener = listening.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let advertised = settings.advertise.clone().unwrap_or_else(|| default_address(address));

        let authority = bootstrap::begin(
            &*settings.store,
            std::slice::from_ref(&advertised),
            &settings.admin_file,
            clock.now_ms(),
        )?;
        let own = OwnCertificate::make(
            authority.clone(),
            &settings.name,
            hosts(&advertised, address),
            system_now_ms(),
        )?;
        let tls = tls::server_config(&authority, own.clone())?;

        let status = Arc::new(Status::default());
        let (jobs_in, jobs) = sync_channel(JOBS_MAX);
        let desk = Desk::new(jobs_in);
        let history = Arc::new(Mutex::new(History::default()));
        let leader = Leader {
            store: settings.store.clone(),
            settings: settings.clone(),
            authority: authority.clone(),
            address: advertised.clone(),
            jobs,
            status: status.clone(),
            clock,
            history: history.clone(),
        };
        let leader = std::thread::Builder::new()
            .name("leader".to_owned())
            .spawn(move || leader.run_whatever_happens())
            .map_err(StartError::Threads)?;

        let door = Door::new(Places::of(settings.connections_max.min(descriptors::connections())));
        let api = Api {
            door: door.clone(),
            readiness: Arc::new(Readiness::new(&authority, &advertised)?),
            desk: desk.clone(),
            status: status.clone(),
            store: settings.store.clone(),
            clock,
            certificate_life: settings.certificate_life,
            authority,
            history,
            tries: Arc::new(Mutex::new(Tries::default())),
            document: http::openapi().to_string().into(),
        };
        let server = Server {
            listener,
            tls: TlsAcceptor::from(Arc::new(tls)),
            api: http::router(api),
            desk,
            status: status.clone(),
            door,
        };
        let (stop, stopped) = watch::channel(false);
        runtime.spawn(renew_certificate(own));
        let server = runtime.spawn(server.run(stopped));
        tracing::info!(name = settings.name, %address, advertised, "manager started");
        Ok(Self {
            address,
            advertised,
            stop,
            status,
            runtime: Some(runtime),
            server: Some(server),
            leader: Some(leader),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How others reach it.
    pub fn advertised(&self) -> &str {
        &self.advertised
    }

    /// Whether it leads.
    pub fn is_leading(&self) -> bool {
        self.status.is_leading()
    }

    /// Lets requests end, resigns, and ends every thread.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.stop.send(true);
        if let (Some(runtime), Some(server)) = (self.runtime.take(), self.server.take()) {
            let _ = runtime.block_on(server);
            // Ends what is left of connections, and with them the last desks: then the leader's thread ends.
            runtime.shutdown_timeout(std::time::Duration::from_secs(2));
        }
        if let Some(leader) = self.leader.take() {
            let _ = leader.join();
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.end();
    }
}

/// How often it is looked whether it is time to renew: a machine may have been asleep, and its clock set.
const LOOK_AT_CLOCK_EVERY: std::time::Duration = std::time::Duration::from_secs(60);

async fn renew_certificate(own: Arc<OwnCertificate>) {
    let mut made_ms = system_now_ms();
    loop {
        tokio::time::sleep(LOOK_AT_CLOCK_EVERY).await;
        let now_ms = system_now_ms();
        if u128::from(now_ms.abs_diff(made_ms)) < OWN_RENEWAL.as_millis() {
            continue;
        }
        match own.renew(now_ms) {
            Ok(()) => made_ms = now_ms,
            Err(error) => tracing::error!(%error, "cannot renew the manager's certificate"),
        }
    }
}

/// A manager that listens on all addresses is reached differently from each machine; its host name is one way.
fn default_address(address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        format!("https://{}:{}", host_name(), address.port())
    } else {
        format!("https://{address}")
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}

/// Names and addresses for the certificate.
fn hosts(advertised: &str, address: SocketAddr) -> Vec<String> {
    let mut hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), host_name()];
    if !address.ip().is_unspecified() {
        hosts.push(address.ip().to_string());
    }
    if let Some(host) = advertised.strip_prefix("https://") {
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        hosts.push(host.trim_matches(['[', ']']).to_owned());
    }
    hosts.sort();
    hosts.dedup();
    hosts
}
