//! What Lambda leaves to other services of AWS: logs, reports of asynchronous invocations, how a function stands.

use super::Asked;
use crate::answer::{Problem, bytes_response, json_response};
use axum::response::Response;
use functions::{Report, Whereabouts};
use serde_json::json;

pub(super) fn logs(asked: &Asked, name: &str) -> Result<Response, Problem> {
    let key = asked.key(name)?;
    Ok(json_response(200, &json!({"Lines": asked.desk.logs.of(&key)})))
}

pub(super) fn status(asked: &Asked, name: &str) -> Result<Response, Problem> {
    let key = asked.key(name)?;
    if asked.desk.function(&key).is_none() {
        return Err(Problem::no_function(&key.name));
    }
    let ((starting, idle, busy), waiting, outlook) = asked.desk.standing(&key);
    Ok(json_response(
        200,
        &json!({
            "Starting": starting, "Idle": idle, "Busy": busy,
            "Waiting": waiting, "Ahead": outlook.ahead, "ExpectedWaitMs": outlook.wait_ms,
        }),
    ))
}

/// Where one invocation is: in the queue with so many before it, at an instance, or waiting to be tried again.
pub(super) fn invocation(asked: &Asked, id: &str) -> Result<Response, Problem> {
    let Some((key, found)) = asked.desk.whereabouts(&asked.tenant, id) else {
        let message = "no such invocation waits or runs; its report says how it ended";
        return Err(Problem::new(404, "ResourceNotFoundException", message));
    };
    let mut body = json!({"FunctionName": key.name});
    match found {
        Whereabouts::Running => body["State"] = json!("Running"),
        Whereabouts::Delayed { until_ms } => {
            body["State"] = json!("Delayed");
            body["UntilMs"] = json!(until_ms);
        }
        Whereabouts::Queued(outlook) => {
            body["State"] = json!("Queued");
            body["Ahead"] = json!(outlook.ahead);
            body["ExpectedWaitMs"] = json!(outlook.wait_ms);
        }
    }
    Ok(json_response(200, &body))
}

pub(super) fn reports(asked: &Asked) -> Result<Response, Problem> {
    let only_failed = asked.query("failed").is_some_and(|value| value == "true");
    let mut reports = asked.desk.keeper.reports(&asked.tenant)?;
    reports.retain(|report| !(only_failed && report.succeeded));
    Ok(json_response(200, &json!({"Reports": reports})))
}

pub(super) fn forget_report(asked: &Asked, id: &str) -> Result<Response, Problem> {
    let reports: Vec<Report> = asked.desk.keeper.reports(&asked.tenant)?;
    let found = reports.into_iter().find(|report| report.id == id);
    let found =
        found.ok_or_else(|| Problem::new(404, "ResourceNotFoundException", "there is no such report"))?;
    asked.desk.keeper.forget_report(&found);
    Ok(bytes_response(204, ""))
}
