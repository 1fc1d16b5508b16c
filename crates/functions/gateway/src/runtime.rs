//! The Lambda Runtime API, for one instance: <https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html>.
//!
//! Each instance has a listener of its own, and only its own user is let in.

use crate::answer::{bytes_response, json_response, set};
use crate::desk::{Desk, Work};
use crate::server::{self, Bounds};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use functions::{Function, InstanceId, SYNC_PAYLOAD_BYTES_MAX};
use serde_json::json;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Mutex, watch};

/// A runtime has one or two. It keeps one while its handler works, which may take a quarter of an hour, and expects to answer on it.
const BOUNDS: Bounds = Bounds { connections_max: 16, head_within: None };

struct Api {
    desk: Arc<Desk>,
    instance: InstanceId,
    arn: String,
    work: Mutex<UnboundedReceiver<Work>>,
}

/// Serves an instance until `stop`'s sender is gone. Returns the address that it is told.
pub(crate) async fn listen(
    desk: &Arc<Desk>,
    instance: InstanceId,
    function: &Function,
    work: UnboundedReceiver<Work>,
    stop: watch::Receiver<bool>,
) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let arn = crate::lambda::arn(&desk.region, &function.key);
    let api = Api { desk: desk.clone(), instance, arn, work: Mutex::new(work) };
    let router = Router::new()
        .route("/2018-06-01/runtime/invocation/next", get(next))
        .route("/2018-06-01/runtime/invocation/{id}/response", post(response))
        .route("/2018-06-01/runtime/invocation/{id}/error", post(error))
        .route("/2018-06-01/runtime/init/error", post(init_error))
        .with_state(Arc::new(api));
    let user = desk.users.user(instance);
    let lets_in = move |local, peer| user.is_none() || crate::peer::user_of(local, peer) == user;
    tokio::spawn(server::serve(listener, router, BOUNDS, None, lets_in, stop));
    Ok(address.to_string())
}

async fn next(State(api): State<Arc<Api>>) -> Response {
    // One question at a time: a second one waits for the first.
    let mut work = api.work.lock().await;
    api.desk.asked(api.instance);
    let Some(work) = work.recv().await else { return refuse(500, "the service ends") };
    let mut response = bytes_response(200, Body::from(work.payload.as_ref().clone()));
    set(&mut response, "content-type", "application/json");
    set(&mut response, "lambda-runtime-aws-request-id", &work.id);
    set(&mut response, "lambda-runtime-deadline-ms", &work.deadline_ms.to_string());
    set(&mut response, "lambda-runtime-invoked-function-arn", &api.arn);
    set(&mut response, "lambda-runtime-trace-id", "Root=1-00000000-000000000000000000000000;Sampled=0");
    response
}

async fn response(State(api): State<Arc<Api>>, Path(id): Path<String>, body: Body) -> Response {
    let Ok(answer) = to_bytes(body, SYNC_PAYLOAD_BYTES_MAX).await else {
        let message = format!("Exceeded maximum allowed payload size ({SYNC_PAYLOAD_BYTES_MAX} bytes).");
        let error = json!({"errorType": "Function.ResponseSizeTooLarge", "errorMessage": message});
        api.desk.answered(api.instance, &id, false, error.to_string().into_bytes());
        return refuse(413, "the answer is too large");
    };
    api.desk.logs_settle(api.instance).await;
    taken(api.desk.answered(api.instance, &id, true, answer.to_vec()))
}

async fn error(State(api): State<Arc<Api>>, Path(id): Path<String>, body: Body) -> Response {
    let Ok(error) = to_bytes(body, SYNC_PAYLOAD_BYTES_MAX).await else {
        return refuse(413, "the error is too large");
    };
    api.desk.logs_settle(api.instance).await;
    taken(api.desk.answered(api.instance, &id, false, error.to_vec()))
}

async fn init_error(State(api): State<Arc<Api>>, body: Body) -> Response {
    /// An error of a start is kept for the clients that wait.
    const BYTES_MAX: usize = 64 << 10;
    if let Ok(error) = to_bytes(body, BYTES_MAX).await {
        api.desk.init_failed(api.instance, error.to_vec());
    }
    taken(true)
}

fn taken(is_taken: bool) -> Response {
    if is_taken {
        json_response(202, &json!({"status": "OK"}))
    } else {
        refuse(400, "this invocation is not yours")
    }
}

fn refuse(status: u16, message: &str) -> Response {
    json_response(status, &json!({"errorType": "InvalidRequest", "errorMessage": message}))
}
