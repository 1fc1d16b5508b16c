//! Lambda's interface: <https://docs.aws.amazon.com/lambda/latest/api/welcome.html>.
//!
//! A request is believed when its signature is by the secret of a key that the store has. The key says which tenant asks, and
//! a tenant reaches its own functions alone: there is no name for another's.

mod deploy;
mod events;
mod invoke;
mod own;
mod shapes;

pub(crate) use shapes::time_text;

use crate::answer::{Problem, set};
use crate::clock;
use crate::desk::Desk;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use functions::{Authorization, FunctionKey, SYNC_PAYLOAD_BYTES_MAX};
use std::sync::Arc;

/// Code in base64, and what stands around it.
const CODE_REQUEST_BYTES_MAX: usize = functions::CODE_BYTES_MAX / 3 * 4 + (1 << 20);

/// How a function is named to Lambda's clients. The tenant stands where AWS has the number of an account.
pub(crate) fn arn(region: &str, key: &FunctionKey) -> String {
    format!("arn:aws:lambda:{region}:{}:function:{}", key.tenant, key.name)
}

/// A request whose sender is known.
pub(crate) struct Asked {
    desk: Arc<Desk>,
    id: String,
    tenant: String,
    query: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Asked {
    fn key(&self, name: &str) -> Result<FunctionKey, Problem> {
        let name = decoded(name);
        match functions::name_of(&name) {
            Some(name) => Ok(FunctionKey { tenant: self.tenant.clone(), name: name.to_owned() }),
            None => Err(Problem::invalid(format!("{name:?} is no name of a function"))),
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    fn query(&self, name: &str) -> Option<String> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(found, _)| *found == name).map(|(_, value)| decoded(value))
    }
}

/// Names of functions have at most `:` and `$` encoded.
fn decoded(text: &str) -> String {
    text.replace("%3A", ":").replace("%3a", ":").replace("%24", "$").replace("%2F", "/")
}

/// Answers one request.
pub(crate) async fn handle(State(desk): State<Arc<Desk>>, request: Request) -> Response {
    let id = request_id();
    let mut response = match answer(desk, &id, request).await {
        Ok(response) => response,
        Err(problem) => problem.response(),
    };
    set(&mut response, "x-amzn-requestid", &id);
    response
}

async fn answer(desk: Arc<Desk>, id: &str, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let headers: Vec<(String, String)> = parts
        .headers
        .iter()
        .map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect();
    let unread = functions::Request {
        method: parts.method.as_str(),
        path: &path,
        query: &query,
        headers: &headers,
        body: &[],
    };
    let authorization = Authorization::of(&unread).map_err(denied)?;
    // A stranger's body is not read.
    let key = desk.keys.find(&desk.keeper, &authorization.key_id).ok_or_else(|| {
        Problem::new(
            403,
            "UnrecognizedClientException",
            "The security token included in the request is invalid.",
        )
    })?;
    let is_invocation = path.ends_with("/invocations");
    let most = if is_invocation { SYNC_PAYLOAD_BYTES_MAX } else { CODE_REQUEST_BYTES_MAX };
    let body = to_bytes(body, most).await.map_err(|_| {
        let message = format!("Request must be smaller than {most} bytes for this operation");
        Problem::new(413, "RequestTooLargeException", message)
    })?;
    let whole = functions::Request { body: &body, ..unread };
    authorization.check(&whole, &key.secret, clock::wall_ms() / 1000).map_err(denied)?;
    let asked = Asked { desk, id: id.to_owned(), tenant: key.tenant, query, headers: parts.headers, body };
    route(&asked, &parts.method, &path).await
}

fn denied(denied: functions::Denied) -> Problem {
    let code = match denied {
        functions::Denied::Missing => "MissingAuthenticationTokenException",
        functions::Denied::Malformed | functions::Denied::Unsigned => "IncompleteSignatureException",
        functions::Denied::Expired | functions::Denied::Mismatch => "InvalidSignatureException",
    };
    Problem::new(403, code, denied.to_string())
}

async fn route(asked: &Asked, method: &Method, path: &str) -> Result<Response, Problem> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let get = method == Method::GET;
    match (method.as_str(), &parts[..]) {
        ("POST", ["2015-03-31", "functions"]) => deploy::create(asked).await,
        ("GET", ["2015-03-31", "functions"]) => deploy::list(asked),
        (_, ["2015-03-31", "functions", name]) if get => deploy::get(asked, name),
        ("DELETE", ["2015-03-31", "functions", name]) => deploy::delete(asked, name).await,
        (_, ["2015-03-31", "functions", name, "configuration"]) if get => deploy::configuration(asked, name),
        ("PUT", ["2015-03-31", "functions", name, "configuration"]) => deploy::update(asked, name).await,
        ("PUT", ["2015-03-31", "functions", name, "code"]) => deploy::update_code(asked, name).await,
        ("POST", ["2015-03-31", "functions", name, "invocations"]) => invoke::invoke(asked, name).await,
        (_, ["2017-10-31" | "2019-09-30", "functions", name, "concurrency"]) => {
            deploy::concurrency(asked, name, method).await
        }
        (_, ["2019-09-25", "functions", name, "event-invoke-config"]) => {
            events::config(asked, name, method).await
        }
        (_, ["2019-09-25", "functions", name, "event-invoke-config", "list"]) if get => {
            events::list(asked, name)
        }
        (_, ["dxpu", "v1", "functions", name, "logs"]) if get => own::logs(asked, name),
        (_, ["dxpu", "v1", "functions", name, "status"]) if get => own::status(asked, name),
        (_, ["dxpu", "v1", "invocations", id]) if get => own::invocation(asked, id),
        (_, ["dxpu", "v1", "reports"]) if get => own::reports(asked),
        ("DELETE", ["dxpu", "v1", "reports", id]) => own::forget_report(asked, id),
        _ => Err(Problem::new(404, "UnknownOperationException", format!("there is no {method} {path} here"))),
    }
}

/// A name for a request that no other has, and that later requests come after: a UUID of version 7.
pub(crate) fn request_id() -> String {
    let random = machine::random_hex(10).unwrap_or_else(|_| "0".repeat(20));
    let time = format!("{:012x}", clock::wall_ms());
    format!("{}-{}-7{}-8{}-{}", &time[..8], &time[8..], &random[..3], &random[3..6], &random[6..18])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_are_uuids_in_the_order_of_time() {
        let (one, two) = (request_id(), request_id());
        assert!(one != two && one[..13] <= two[..13]);
        assert_eq!(one.len(), 36);
        assert_eq!(&one[14..15], "7");
    }
}
