//! A TLS connection that says goodbye however it ends.
//!
//! hyper shuts a connection down cleanly when its client ends it. When this manager ends it (its client asked for nothing
//! for [`HEADER_TIMEOUT`](super::HEADER_TIMEOUT), the door needs its place), hyper's future returns an error or is
//! dropped, and the stream is dropped with it. Without TLS's close_notify a client cannot tell that from an attack that
//! cuts the connection, so it reports an error where it would otherwise just connect again.

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// Sends close_notify when it is dropped, unless it was sent before.
#[derive(Debug)]
pub(super) struct Farewell(pub(super) TlsStream<TcpStream>);

impl Drop for Farewell {
    fn drop(&mut self) {
        let (stream, tls) = self.0.get_mut();
        tls.send_close_notify();
        // A client that has not read what it was sent before has no room for this either; it is not waited for.
        while tls.wants_write() && tls.write_tls(&mut AtOnce(stream)).is_ok_and(|bytes| bytes > 0) {}
    }
}

/// Writes what the socket takes without waiting.
struct AtOnce<'a>(&'a TcpStream);

impl Write for AtOnce<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for Farewell {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(cx, into)
    }
}

impl AsyncWrite for Farewell {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}
