//! Invoke: synchronous, asynchronous, and dry.

use super::Asked;
use crate::answer::{Problem, bytes_response, set};
use crate::desk::Desk;
use axum::response::Response;
use base64::Engine;
use functions::{ASYNC_PAYLOAD_BYTES_MAX, FunctionKey, Queued, VERSION};
use std::sync::Arc;

pub(super) async fn invoke(asked: &Asked, name: &str) -> Result<Response, Problem> {
    let key = asked.key(name)?;
    if asked.desk.function(&key).is_none() {
        return Err(Problem::no_function(&super::arn(&asked.desk.region, &key)));
    }
    let payload = if asked.body.is_empty() { b"{}".to_vec() } else { asked.body.to_vec() };
    // The runtime would fail at it, and the tenant would be told of a broken runtime.
    if serde_json::from_slice::<serde::de::IgnoredAny>(&payload).is_err() {
        let message = "Could not parse request body into json: the payload is not JSON";
        return Err(Problem::new(400, "InvalidRequestContentException", message));
    }
    match asked.header("x-amz-invocation-type").unwrap_or("RequestResponse") {
        "RequestResponse" => wait(asked, key, payload).await,
        "Event" => accept(asked, key, payload).await,
        "DryRun" => Ok(told(asked, &key, bytes_response(204, ""))),
        other => Err(Problem::invalid(format!("there is no InvocationType {other:?}"))),
    }
}

/// With what a client can expect to wait.
fn told(asked: &Asked, key: &FunctionKey, mut response: Response) -> Response {
    let (_, _, outlook) = asked.desk.standing(key);
    set(&mut response, "x-dxpu-queue-ahead", &outlook.ahead.to_string());
    set(&mut response, "x-dxpu-expected-wait-ms", &outlook.wait_ms.to_string());
    response
}

/// Tells the desk when the client goes away before the answer.
struct Waiting {
    desk: Arc<Desk>,
    id: String,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.desk.abandon(&self.id);
    }
}

async fn wait(asked: &Asked, key: FunctionKey, payload: Vec<u8>) -> Result<Response, Problem> {
    let wants_log = asked.header("x-amz-log-type").is_some_and(|kind| kind == "Tail");
    let waiting = Waiting { desk: asked.desk.clone(), id: asked.id.clone() };
    let answer = asked.desk.invoke_sync(&asked.id, &key, payload).await;
    let answer = answer.map_err(|_| Problem::service("the service ends"))??;
    drop(waiting);
    let mut response = bytes_response(200, answer.body);
    set(&mut response, "content-type", "application/json");
    set(&mut response, "x-amz-executed-version", "$LATEST");
    if answer.is_error {
        set(&mut response, "x-amz-function-error", "Unhandled");
    }
    if wants_log {
        let tail = asked.desk.logs.tail(&key, &asked.id);
        set(&mut response, "x-amz-log-result", &base64::engine::general_purpose::STANDARD.encode(tail));
    }
    Ok(response)
}

async fn accept(asked: &Asked, key: FunctionKey, payload: Vec<u8>) -> Result<Response, Problem> {
    if payload.len() > ASYNC_PAYLOAD_BYTES_MAX {
        let message = format!(
            "{} byte payload is too large for the Event invocation type (limit {ASYNC_PAYLOAD_BYTES_MAX} bytes)",
            payload.len()
        );
        return Err(Problem::new(413, "RequestTooLargeException", message));
    }
    asked.desk.check_room()?;
    let payload = String::from_utf8(payload).map_err(|_| Problem::invalid("the payload is not UTF-8"))?;
    let accepted_ms = asked.desk.now_ms();
    let queued = Queued {
        version: VERSION,
        id: asked.id.clone(),
        key: key.clone(),
        payload,
        attempts: 0,
        accepted_ms,
        hops: 0,
    };
    // Accepted means: on disk.
    asked.desk.keeper.accept(&queued).await?;
    asked.desk.invoke_async(queued);
    Ok(told(asked, &key, bytes_response(202, "")))
}
