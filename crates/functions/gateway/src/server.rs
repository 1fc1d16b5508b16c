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
/// How much a listener bears.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) connections_max: usize,
    /// How long a connection may be without the head of a request. `None`: as long as it likes.
    pub(crate) head_within: Option<Duration>,
}

impl Bounds {
    /// For peers that may be anything.
    pub(crate) const fn strict(connections_max: usize) -> Self {
        Self { connections_max, head_within: Some(Duration::from_secs(15)) }
    }
}

/// Serves until the stop is said or its sender is gone. Connections that `lets_in` refuses are closed.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    tls: Option<TlsAcceptor>,
    lets_in: impl Fn(SocketAddr, SocketAddr) -> bool + Send + Sync + 'static,
    mut stop: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(bounds.connections_max));
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
                    None => http(stream, router, bounds.head_within).await,
                    Some(tls) => {
                        let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await;
                        if let Ok(Ok(stream)) = shaken {
                            http(stream, router, bounds.head_within).await;
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

async fn http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    head_within: Option<Duration>,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(head_within);
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const HEAD_WITHIN: Duration = Duration::from_millis(100);

    /// Asks, rests for longer than the bound, and asks again on the same connection. How many answers came.
    async fn answers(head_within: Option<Duration>) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", axum::routing::get(|| async { "here" }));
        let (_stop, stopped) = watch::channel(false);
        let bounds = Bounds { connections_max: 1, head_within };
        tokio::spawn(serve(listener, router, bounds, None, |_, _| true, stopped));
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut count = 0;
        for _ in 0..2 {
            let asked = stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            let mut answer = [0; 4096];
            let read = stream.read(&mut answer).await.unwrap_or(0);
            count += usize::from(asked.is_ok() && answer[..read].starts_with(b"HTTP/1.1 200"));
            tokio::time::sleep(4 * HEAD_WITHIN).await;
        }
        count
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_connection_may_rest_only_where_there_is_no_bound() {
        assert_eq!(answers(Some(HEAD_WITHIN)).await, 1);
        assert_eq!(answers(None).await, 2);
    }
}
