//! Whether requests can be served, here or where this manager sends them: looked at, not remembered.
//!
//! A leader that was killed is named by the store until its time is over, and so is this manager itself if it was killed
//! and is here again. So a follower asks the leader whether it lives before it says so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pool_auth::{Authority, Identity};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use crate::status::Status;
use crate::tls::TlsError;

/// The thread that owns the books works ten times a second; a commit on a bad day takes one.
const SOUND_WITHIN: Duration = Duration::from_millis(1500);

/// How long a leader may take to say that it lives.
const ASK_TIMEOUT: Duration = Duration::from_millis(800);

/// An answer of the leader is given to every probe within this time.
const ANSWER_FOR: Duration = Duration::from_millis(200);

/// An answer about its health is a hundred bytes.
const ANSWER_BYTES_MAX: u64 = 4096;

/// What can be said of readiness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// This manager leads, and its store answers.
    Leading,
    /// The manager at this address leads, and lives.
    Following(String),
    /// Nothing can be served.
    No(String),
}

/// Asks leaders whether they live.
pub(crate) struct Readiness {
    tls: TlsConnector,
    own: String,
    last: Mutex<Option<(Instant, String, bool)>>,
}

impl Readiness {
    pub(crate) fn new(authority: &Authority, own: &str) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.certificate_pem().as_bytes())?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { tls: TlsConnector::from(Arc::new(config)), own: own.to_owned(), last: Mutex::default() })
    }

    /// How it is now.
    pub(crate) async fn look(&self, status: &Status) -> Ready {
        if status.is_leading() {
            if status.was_sound_within(SOUND_WITHIN) {
                return Ready::Leading;
            }
            return Ready::No("this manager leads, but its store has not answered for a second".to_owned());
        }
        match status.leader() {
            None => Ready::No("no manager leads at the moment".to_owned()),
            Some(leader) if leader == self.own => {
                Ready::No("this manager was started anew and does not lead yet".to_owned())
            }
            Some(leader) => {
                if self.is_alive(&leader).await {
                    return Ready::Following(leader);
                }
                Ready::No(format!("the manager at {leader} should lead, and does not answer"))
            }
        }
    }

    /// One question at a time, however many ask here.
    async fn is_alive(&self, leader: &str) -> bool {
        let mut last = self.last.lock().await;
        if let Some((at, whom, is_alive)) = &*last
            && at.elapsed() < ANSWER_FOR
            && whom == leader
        {
            return *is_alive;
        }
        let answer = tokio::time::timeout(ASK_TIMEOUT, self.ask(leader)).await;
        let is_alive = matches!(answer, Ok(Ok(true)));
        *last = Some((Instant::now(), leader.to_owned(), is_alive));
        is_alive
    }

    async fn ask(&self, leader: &str) -> std::io::Result<bool> {
        let place = leader.strip_prefix("https://").unwrap_or(leader).trim_end_matches('/');
        let stream = TcpStream::connect(place).await?;
        // Every manager of the pool has this name in its certificate.
        let name = ServerName::try_from(Identity::ANY_MANAGER).map_err(std::io::Error::other)?;
        let mut stream = self.tls.connect(name, stream).await?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: manager\r\nConnection: close\r\n\r\n").await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        // A connection that ends without a farewell has said all that counts.
        let _ = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        Ok(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"standing\":\"leading\""))
    }
}
