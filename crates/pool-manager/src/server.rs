//! Accepts connections, within bounds, and hands their requests to the API.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use pool::AuditDraft;
use pool_api::AuditOutcome;
use pool_auth::Certified;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::desk::Desk;
use crate::status::Status;

/// A handshake takes milliseconds; who takes longer holds a place that others need.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The same for the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);

/// Requests that have begun may end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Who is at the other end of a connection, as its handshake proved.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) certificate: Option<Certified>,
}

pub(crate) struct Server {
    pub(crate) listener: TcpListener,
    pub(crate) tls: TlsAcceptor,
    pub(crate) api: axum::Router,
    pub(crate) desk: Desk,
    pub(crate) status: Arc<Status>,
    pub(crate) connections_max: usize,
}

impl Server {
    /// Serves until told to stop, then lets requests end.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
        let places = Arc::new(Semaphore::new(self.connections_max));
        let graceful = Arc::new(GracefulShutdown::new());
        loop {
            let place = tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                place = places.clone().acquire_owned() => place.expect("the places are never closed"),
            };
            let accepted = tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, most likely: others must end first.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let connection = Connection {
                tls: self.tls.clone(),
                api: self.api.clone(),
                desk: self.desk.clone(),
                status: self.status.clone(),
                watcher: graceful.watcher(),
            };
            tokio::spawn(async move {
                connection.serve(stream, address).await;
                drop(place);
            });
        }
        drop(self.listener);
        if let Some(graceful) = Arc::into_inner(graceful) {
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown()).await;
        }
    }
}

struct Connection {
    tls: TlsAcceptor,
    api: axum::Router,
    desk: Desk,
    status: Arc<Status>,
    watcher: hyper_util::server::graceful::Watcher,
}

impl Connection {
    async fn serve(self, stream: TcpStream, address: SocketAddr) {
        let _ = stream.set_nodelay(true);
        let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, self.tls.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return self.refused(address, &error),
            Err(_) => return,
        };
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let certificate = match shown.map(|certificate| pool_auth::certified(certificate)).transpose() {
            Ok(certificate) => certificate,
            Err(error) => return self.note(address, error.to_string()),
        };
        let peer = Peer { address, certificate };
        let api = self.api.layer(axum::Extension(peer));
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(256)
            .keep_alive_interval(Some(Duration::from_secs(30)));
        let connection =
            builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(api)).into_owned();
        if let Err(error) = self.watcher.watch(connection).await {
            tracing::debug!(%address, %error, "a connection ended");
        }
    }

    /// A handshake that failed because of a certificate is somebody who was not let in; others just went away.
    fn refused(&self, address: SocketAddr, error: &std::io::Error) {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::InvalidCertificate(reason)) = cause {
            self.note(address, format!("certificate refused: {reason:?}"));
        } else {
            tracing::debug!(%address, %error, "no handshake");
        }
    }

    fn note(&self, address: SocketAddr, detail: String) {
        self.status.refused_handshake();
        tracing::debug!(%address, detail, "a connection was refused");
        self.desk.note(AuditDraft {
            actor: "anonymous".to_owned(),
            address: address.to_string(),
            action: "connect".to_owned(),
            target: String::new(),
            outcome: AuditOutcome::Denied,
            detail,
        });
    }
}
