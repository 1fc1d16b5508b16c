//! Accepts connections, within bounds, and hands their requests to the API.

mod farewell;

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
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::desk::Desk;
use crate::door::{Door, Guest};
use crate::status::Status;
use farewell::Farewell;

/// A handshake takes milliseconds; a peer that takes longer holds a place that others need.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The same for the head of a request. Strangers have less, see [`Guest::must_go`].
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);

/// Requests at once over one connection: a borrower has one or two, a dashboard a dozen.
const STREAMS_MAX: u32 = 128;

/// Heads of requests are small; HTTP/2 would take sixteen times as much.
const HEAD_BYTES_MAX: u32 = 32 << 10;

/// At most one warning in this time that connections cannot be accepted.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// How long a stopping manager waits for requests that have begun.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The other end of a connection, as its handshake proved.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) certificate: Option<Certified>,
    pub(crate) guest: Guest,
}

pub(crate) struct Server {
    pub(crate) listener: TcpListener,
    pub(crate) tls: TlsAcceptor,
    pub(crate) api: axum::Router,
    pub(crate) desk: Desk,
    pub(crate) status: Arc<Status>,
    pub(crate) door: Door,
}

impl Server {
    /// Serves until told to stop, then lets requests end.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
        let graceful = Arc::new(GracefulShutdown::new());
        let mut complained: Option<tokio::time::Instant> = None;
        loop {
            let accepted = tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, most likely: a stranger must go, or others must end first.
                    self.door.send_one_away();
                    if complained.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
                        complained = Some(tokio::time::Instant::now());
                        tracing::warn!(%error, "cannot accept a connection; the manager closes the oldest stranger's and tries again");
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            let Some(guest) = self.door.enter(address) else { continue };
            let connection = Connection {
                tls: self.tls.clone(),
                api: self.api.clone(),
                desk: self.desk.clone(),
                status: self.status.clone(),
                watcher: graceful.watcher(),
            };
            tokio::spawn(async move {
                tokio::select! {
                    () = connection.serve(stream, address, guest.clone()) => {}
                    reason = guest.must_go() => tracing::debug!(%address, ?reason, "the manager closes a connection"),
                }
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
    async fn serve(self, stream: TcpStream, address: SocketAddr, guest: Guest) {
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
        if certificate.is_some() {
            guest.believed();
        }
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let peer = Peer { address, certificate, guest };
        let api = self.api.layer(axum::Extension(peer));
        let builder = auto::Builder::new(TokioExecutor::new());
        // ALPN has chosen the protocol. The builder's own detection would wait for the first bytes without a timeout.
        let mut builder = if is_h2 { builder.http2_only() } else { builder.http1_only() };
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEAD_BYTES_MAX)
            .keep_alive_interval(Some(Duration::from_secs(30)));
        let connection = builder
            .serve_connection(TokioIo::new(Farewell(stream)), TowerToHyperService::new(api))
            .into_owned();
        if let Err(error) = self.watcher.watch(connection).await {
            tracing::debug!(%address, %error, "a connection ended");
        }
    }

    /// A handshake that failed because of a certificate is a refusal and goes to the trail; others just went away.
    fn refused(&self, address: SocketAddr, error: &std::io::Error) {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::InvalidCertificate(reason)) = cause {
            self.note(address, format!("certificate refused: {reason:?}"));
        } else {
            tracing::debug!(%address, %error, "a client did not finish the TLS handshake");
        }
    }

    fn note(&self, address: SocketAddr, detail: String) {
        self.status.refused_handshake();
        tracing::debug!(%address, detail, "the manager refused a connection");
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
