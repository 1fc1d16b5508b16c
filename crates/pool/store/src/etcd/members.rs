//! The members of the cluster: one is asked, and when it does not answer the next one is.

use std::error::Error;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message;
use tokio::time::{Instant, sleep, timeout};
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, ConnectError, IntoStreamingRequest, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::proto::{LeaseKeepAliveRequest, LeaseKeepAliveResponse, WatchRequest, WatchResponse};
use super::settings::EtcdSettings;
use crate::error::{OpenError, StoreError};

/// On one machine a connection takes microseconds, across a datacenter milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Members refuse to be asked more often than every five seconds whether they are there.
const PING_EVERY: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// Between two rounds through all members, none of which answered.
const PAUSE: Duration = Duration::from_millis(50);

/// A page of records is the largest answer; far above what a page holds.
const ANSWER_BYTES_MAX: usize = 512 << 20;

/// Whether a request may be sent twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Doing it twice is doing it once.
    Allowed,
    /// Only if it surely did not arrive.
    Never,
}

/// Why there is no answer to use.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was done.
    NotDone(Box<Status>),
    /// It may or may not have been executed.
    Unknown(Box<Status>),
    /// The cluster understood, and said no.
    Answered(Box<Status>),
}

impl Failure {
    pub(super) fn into_error(self, doing: &'static str) -> StoreError {
        match self {
            Self::NotDone(status) | Self::Answered(status) => {
                StoreError::Unavailable { doing, source: status.into() }
            }
            Self::Unknown(status) => StoreError::Uncertain { doing, source: status.into() },
        }
    }

    /// What the cluster said no with, if it did.
    pub(super) fn code(&self) -> Option<Code> {
        match self {
            Self::Answered(status) => Some(status.code()),
            Self::NotDone(_) | Self::Unknown(_) => None,
        }
    }

    /// Sorts what a member or the connection to it said.
    fn from_status(status: Status) -> Self {
        if was_not_sent(&status) {
            return Self::NotDone(Box::new(status));
        }
        match status.code() {
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Unauthenticated
            // Too many requests waiting, or the disk is full: refused before anything was done.
            | Code::ResourceExhausted => Self::Answered(Box::new(status)),
            // A member without a leader, a broken connection, a time-out: the request may be anywhere.
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss => Self::Unknown(Box::new(status)),
        }
    }
}

/// No connection, hence no request on it.
fn was_not_sent(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

pub(super) struct Members {
    channels: Vec<Channel>,
    /// The member that answered last. A number that only grows; the member is the rest of its division by how
    /// many there are.
    current: AtomicUsize,
    request_timeout: Duration,
    patience: Duration,
}

impl Members {
    pub(super) fn new(settings: &EtcdSettings) -> Result<Self, OpenError> {
        let channels =
            settings.endpoints.iter().map(|url| channel(url, settings)).collect::<Result<_, _>>()?;
        Ok(Self {
            channels,
            current: AtomicUsize::new(0),
            request_timeout: settings.request_timeout,
            patience: settings.patience,
        })
    }

    /// One request, one answer.
    pub(super) async fn unary<Q, R>(
        &self,
        path: &'static str,
        request: Q,
        repeat: Repeat,
    ) -> Result<R, Failure>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        self.ask(self.request_timeout, repeat, |channel| {
            let request = request.clone();
            async move {
                let mut grpc = ready(channel).await?;
                let codec = ProstCodec::<Q, R>::default();
                let answer =
                    grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await?;
                Ok(answer.into_inner())
            }
        })
        .await
    }

    /// Keep-alives are a stream in etcd's protocol; ours carries one.
    pub(super) async fn keep_alive(
        &self,
        id: i64,
        attempt_timeout: Duration,
    ) -> Result<LeaseKeepAliveResponse, Failure> {
        self.ask(attempt_timeout.min(self.request_timeout), Repeat::Allowed, |channel| async move {
            let mut grpc = ready(channel).await?;
            let requests = tokio_stream::once(LeaseKeepAliveRequest { id });
            let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
            let codec = ProstCodec::<LeaseKeepAliveRequest, LeaseKeepAliveResponse>::default();
            let answers = grpc.streaming(requests.into_streaming_request(), path, codec).await?;
            let answer = answers.into_inner().message().await?;
            answer.ok_or_else(|| Status::unavailable("the member ended the stream"))
        })
        .await
    }

    /// Asks one member for a stream of changes. The caller goes [`Members::on`] when it breaks.
    pub(super) async fn watch(&self, request: WatchRequest) -> Result<Streaming<WatchResponse>, Failure> {
        let opening = async {
            let mut grpc = ready(self.member(self.current.load(Ordering::Relaxed))).await?;
            // The stream of requests must not end, or the member may end the watch.
            let requests =
                tokio_stream::StreamExt::chain(tokio_stream::once(request), tokio_stream::pending());
            let mut requests = requests.into_streaming_request();
            // A member that is cut off from the others ends the watch, instead of staying silent for ever.
            requests.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            Ok(grpc.streaming(requests, path, codec).await?.into_inner())
        };
        within(self.request_timeout, opening).await.map_err(Failure::from_status)
    }

    /// Goes on from a member that did not answer, unless another thread has done so already.
    pub(super) fn on(&self) {
        self.leave(self.current.load(Ordering::Relaxed));
    }

    fn leave(&self, disappointed: usize) {
        let _ = self.current.compare_exchange(
            disappointed,
            disappointed.wrapping_add(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    fn member(&self, number: usize) -> Channel {
        self.channels[number % self.channels.len()].clone()
    }

    /// Asks one member after the other, until one answers, the request may not be repeated, or patience ends.
    async fn ask<R, F>(
        &self,
        attempt_timeout: Duration,
        repeat: Repeat,
        attempt: impl Fn(Channel) -> F,
    ) -> Result<R, Failure>
    where
        F: Future<Output = Result<R, Status>>,
    {
        let give_up_at = Instant::now() + self.patience;
        let mut attempts = 0;
        loop {
            let number = self.current.load(Ordering::Relaxed);
            let failure = match within(attempt_timeout, attempt(self.member(number))).await {
                Ok(answer) => return Ok(answer),
                Err(status) => Failure::from_status(status),
            };
            let may_go_on = match &failure {
                Failure::Answered(_) => false,
                Failure::Unknown(_) => {
                    self.leave(number);
                    repeat == Repeat::Allowed
                }
                Failure::NotDone(_) => {
                    self.leave(number);
                    true
                }
            };
            if !may_go_on || Instant::now() >= give_up_at {
                return Err(match (failure, repeat) {
                    (Failure::Unknown(status), Repeat::Allowed) => Failure::NotDone(status),
                    (failure, _) => failure,
                });
            }
            attempts += 1;
            if attempts % self.channels.len() == 0 {
                sleep(PAUSE).await;
            }
        }
    }
}

async fn ready(channel: Channel) -> Result<Grpc<Channel>, Status> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
    Ok(grpc)
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    timeout(limit, work)
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded(format!("no answer within {limit:?}"))))
}

fn channel(url: &str, settings: &EtcdSettings) -> Result<Channel, OpenError> {
    let wrong = |what: &str, error: tonic::transport::Error| OpenError::Setting {
        what: format!("{what}: {url}"),
        source: Some(error.into()),
    };
    let is_secure = url.starts_with("https://");
    if !is_secure && !url.starts_with("http://") {
        let what = format!("an etcd endpoint begins with http:// or https://: {url}");
        return Err(OpenError::Setting { what, source: None });
    }
    let mut endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(|error| wrong("not an etcd endpoint", error))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    if is_secure {
        let Some(tls) = &settings.tls else {
            let what = format!("an https endpoint needs the certificate of its authority: {url}");
            return Err(OpenError::Setting { what, source: None });
        };
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        endpoint =
            endpoint.tls_config(config).map_err(|error| wrong("the certificates cannot be used", error))?;
    }
    Ok(endpoint.connect_lazy())
}
