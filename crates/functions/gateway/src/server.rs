//! HTTP/1.1 over a listener, with TLS or without, within bounds.

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

/// A handshake takes milliseconds; a peer that takes longer holds a place that others need.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The head of a request may take so long.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);

/// Serves until the stop is said or its sender is gone. Connections that `lets_in` refuses are closed.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    connections_max: usize,
    tls: Option<TlsAcceptor>,
    lets_in: impl Fn(SocketAddr, SocketAddr) -> bool + Send + Sync + 'static,
    mut stop: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(connections_max));
    loop {
        let accepted = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Ok(local) = stream.local_addr() else { continue };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        if !lets_in(local, peer) {
            tracing::warn!(%peer, %local, "a connection of another user is refused");
            continue;
        }
        let _ = stream.set_nodelay(true);
        let (router, tls) = (router.clone(), tls.clone());
        let mut stopped = stop.clone();
        tokio::spawn(async move {
            let _place = place;
            let served = async {
                match tls {
                    None => http(stream, router).await,
                    Some(tls) => {
                        let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await;
                        if let Ok(Ok(stream)) = shaken {
                            http(stream, router).await;
                        }
                    }
                }
            };
            tokio::select! {
                () = served => {}
                _ = stopped.wait_for(|stop| *stop) => {}
            }
        });
    }
}

async fn http(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection ended");
    }
}
