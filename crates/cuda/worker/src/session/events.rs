//! The events connection: what the worker says unasked, and what the client answers.

use crate::{
    end::{EndKind, Ending},
    session::{link::Link, timeline::Timeline},
};
use cuda_driver::LinkLost;
use cuda_wire::content::NAMES_MAX;
use cuda_wire::{Notice, NoticeHeader, Wire, header};
use locks::lock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use transport::{Closer, Rx, Tx};

/// The sending side, and when the client was last heard.
pub(crate) struct Events {
    tx: Mutex<Tx>,
    closer: Closer,
    /// Notices sent so far, wrapping.
    sent: AtomicU32,
    closed: AtomicBool,
    heard: Heard,
}

/// When the client last gave a sign of life.
pub(crate) struct Heard {
    start: Instant,
    last_ms: AtomicU64,
}

impl Heard {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), last_ms: AtomicU64::new(0) }
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    pub(crate) fn touch(&self) {
        self.last_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    pub(crate) fn silence(&self) -> Duration {
        Duration::from_millis(self.now_ms().saturating_sub(self.last_ms.load(Ordering::Relaxed)))
    }
}

impl Events {
    pub(crate) fn new(tx: Tx, closer: Closer) -> Self {
        let (sent, closed) = (AtomicU32::new(0), AtomicBool::new(false));
        Self { tx: Mutex::new(tx), closer, sent, closed, heard: Heard::new() }
    }

    pub(crate) fn send(&self, notice: &Notice<'_>) -> Result<(), LinkLost> {
        let frame = notice.to_frame();
        let mut tx = lock(&self.tx);
        if self.closed.load(Ordering::SeqCst) {
            return Err(LinkLost);
        }
        tx.send(&[&frame]).map_err(|_| LinkLost)?;
        // Under the lock, so that a thread that reads the count afterwards knows that the notice left.
        self.sent.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Notices sent so far, wrapping.
    pub(crate) fn sent(&self) -> u32 {
        self.sent.load(Ordering::SeqCst)
    }

    pub(crate) fn heard(&self) -> &Heard {
        &self.heard
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.closer.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

/// Reads the client's answers until the connection ends. Pings are answered here, so that they are answered however
/// busy the command loop is.
pub(crate) fn read_events(
    mut rx: Rx,
    events: &Events,
    link: &Arc<Link>,
    timeline: Option<&Timeline>,
    ending: &Ending,
) {
    let mut body = Vec::new();
    loop {
        let notice = match read_notice(&mut rx, &mut body) {
            Ok(notice) => notice,
            Err(error) => return ending.end(error.kind(), error.to_string()),
        };
        events.heard.touch();
        match notice {
            Notice::Ping { nonce } => {
                if events.send(&Notice::Pong { nonce }).is_err() {
                    return ending.end(EndKind::PeerLost, "the events connection broke");
                }
            }
            Notice::Pong { .. } => {}
            Notice::HostCallDone { token } => {
                if !link.host_calls.done(token) {
                    let reason = format!(
                        "the client reported the end of host function {token}, which this worker has not called"
                    );
                    return ending.end(EndKind::Protocol, reason);
                }
            }
            Notice::PullFailed { transfer } => link.pull_failed(transfer),
            Notice::TimelineAsk { nonce, flush } => match timeline {
                Some(timeline) => timeline.asked(nonce, flush),
                None => {
                    let reason = "the client asks for a timeline that it did not wish for when it came";
                    return ending.end(EndKind::Protocol, reason);
                }
            },
            Notice::ContentNamed { transfer, first, names } => match link.content() {
                Some(content) if names.len() <= NAMES_MAX => content.asked(transfer, first, names),
                _ => {
                    let reason =
                        "the client names blocks, though it did not wish for that when it came, or too many";
                    return ending.end(EndKind::Protocol, reason);
                }
            },
            other => {
                return ending
                    .end(EndKind::Protocol, format!("the client sent {other:?}, which only a worker sends"));
            }
        }
    }
}

/// Why there is no next notice from the client.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("the events connection ended: {0}")]
    Gone(#[from] std::io::Error),
    #[error("the client sent a notice that cannot be decoded: {0}")]
    Malformed(#[from] cuda_wire::DecodeError),
    #[error("the client announced a notice of {0} bytes, which is longer than the protocol allows")]
    TooLong(u32),
}

impl ReadError {
    fn kind(&self) -> EndKind {
        match self {
            Self::Gone(_) => EndKind::PeerLost,
            Self::Malformed(_) | Self::TooLong(_) => EndKind::Protocol,
        }
    }
}

fn read_notice<'a>(rx: &mut Rx, body: &'a mut Vec<u8>) -> Result<Notice<'a>, ReadError> {
    let mut bytes = [0; NoticeHeader::BYTES];
    rx.recv_exact(&mut bytes)?;
    let head: NoticeHeader = header(&bytes)?;
    if head.bytes > NoticeHeader::BODY_MAX || head.reserved != 0 {
        return Err(ReadError::TooLong(head.bytes));
    }
    body.resize(head.bytes as usize, 0);
    rx.recv_exact(body)?;
    Ok(Notice::from_bytes(body)?)
}
