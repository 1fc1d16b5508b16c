//! gRPC over a Unix socket: tonic's codec behind hyper's HTTP/2, since the services have few methods and no generated code.

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use prost::Message;
use std::convert::Infallible;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

/// What a method answers, over HTTP.
pub(crate) type Answer = Response<Body>;
type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Calls that are being served may end within this when the plugin stops; a prepare may take longer, and the kubelet asks
/// the next plugin again.
const END_WITHIN: Duration = Duration::from_secs(3);
/// After a failed accept, which comes of too many open files: not at once again.
const PAUSE: Duration = Duration::from_millis(100);

/// The methods of one socket.
pub(crate) trait Service: Send + Sync + 'static {
    /// Serves one call; its method is the request's path.
    fn call(self: Arc<Self>, request: Request<Incoming>) -> impl Future<Output = Answer> + Send;
}

/// Serves until `stop` says so.
pub(crate) async fn serve(
    listener: UnixListener,
    service: Arc<impl Service>,
    mut stop: watch::Receiver<bool>,
) {
    let builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let service = service.clone();
        let answer = hyper::service::service_fn(move |request| {
            let service = service.clone();
            async move { Ok::<_, Infallible>(service.call(request).await) }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), answer).into_owned();
        let watched = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = watched.await {
                tracing::debug!(%error, "a connection of the kubelet broke");
            }
        });
    }
    let _ = tokio::time::timeout(END_WITHIN, graceful.shutdown()).await;
}

/// A call with one answer.
pub(crate) async fn unary<Q, A, W>(request: Request<Incoming>, work: impl FnOnce(Q) -> W + Send) -> Answer
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    W: Future<Output = Result<A, Status>> + Send + 'static,
{
    let method = Once { work: Some(work), of: PhantomData::<fn(Q) -> A> };
    Grpc::new(ProstCodec::<A, Q>::default()).unary(method, request).await
}

struct Once<F, Q, A> {
    work: Option<F>,
    of: PhantomData<fn(Q) -> A>,
}

impl<F, Q, A, W> UnaryService<Q> for Once<F, Q, A>
where
    F: FnOnce(Q) -> W,
    W: Future<Output = Result<A, Status>> + Send + 'static,
{
    type Response = A;
    type Future = Later<Result<tonic::Response<A>, Status>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let work = self.work.take().map(|work| work(request.into_inner()));
        Box::pin(async move {
            match work {
                Some(work) => work.await.map(tonic::Response::new),
                None => Err(Status::internal("called twice")),
            }
        })
    }
}

/// A call with a stream of answers.
pub(crate) async fn streaming<Q, A, S>(request: Request<Incoming>, stream: S) -> Answer
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    S: Stream<Item = Result<A, Status>> + Send + 'static,
{
    let method = Streamed { stream: Some(stream), of: PhantomData::<fn(Q)> };
    Grpc::new(ProstCodec::<A, Q>::default()).server_streaming(method, request).await
}

struct Streamed<S, Q> {
    stream: Option<S>,
    of: PhantomData<fn(Q)>,
}

impl<S, Q, A> ServerStreamingService<Q> for Streamed<S, Q>
where
    S: Stream<Item = Result<A, Status>> + Send + 'static,
{
    type Response = A;
    type ResponseStream = S;
    type Future = Later<Result<tonic::Response<S>, Status>>;

    fn call(&mut self, _request: tonic::Request<Q>) -> Self::Future {
        let stream = self.stream.take().ok_or_else(|| Status::internal("called twice"));
        Box::pin(async move { stream.map(tonic::Response::new) })
    }
}

/// No such method.
pub(crate) fn unknown(path: &str) -> Answer {
    Status::new(Code::Unimplemented, format!("{path} is no method of this plugin")).into_http()
}
