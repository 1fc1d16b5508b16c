//! How an invocation ended, in Lambda's words: to the client that waits, or into the report.

use super::{Answer, Desk, Pending, Reply, State};
use crate::answer::Problem;
use functions::{FunctionKey, Outlook, Queued, Refusal, Report, VERSION, Verdict};
use serde_json::json;

/// An error as runtimes write it.
pub(super) fn error_body(kind: &str, message: &str) -> Vec<u8> {
    json!({"errorType": kind, "errorMessage": message}).to_string().into_bytes()
}

/// Why a synchronous invocation was not accepted.
pub(super) fn refused(key: &FunctionKey, refusal: Refusal, outlook: Outlook) -> Problem {
    let busy = |message: String| Problem::new(429, "TooManyRequestsException", message);
    match refusal {
        Refusal::NoFunction => Problem::no_function(&key.name),
        Refusal::Concurrency { limit } => busy(format!(
            "Rate Exceeded: the {limit} instances that {} may have are busy; the next would be free in about {} ms",
            key.name, outlook.wait_ms
        )),
        Refusal::QueueFull { limit } => busy(format!(
            "Rate Exceeded: {limit} invocations of {} wait already; the next would be number {} and wait about {} ms",
            key.tenant,
            outlook.ahead + 1,
            outlook.wait_ms
        )),
        Refusal::Known => Problem::service("this request id is in use; try again"),
    }
}

impl Desk {
    /// Tells the client, or writes the report. Returns the invocation of its destination, which is accepted with the report.
    pub(super) fn finish(
        &self,
        state: &State,
        id: &str,
        pending: Pending,
        verdict: Verdict,
        attempts: u8,
    ) -> Option<Queued> {
        let ended = in_words(state, id, &pending, verdict);
        let queued = match pending.reply {
            Reply::Sync(reply) => {
                let _ = reply.send(ended);
                return None;
            }
            Reply::Async(queued) => queued,
        };
        let (succeeded, answer) = match ended {
            Ok(answer) => (!answer.is_error, String::from_utf8_lossy(&answer.body).into_owned()),
            Err(problem) => {
                let body = error_body(problem.code, &problem.message);
                (false, String::from_utf8_lossy(&body).into_owned())
            }
        };
        let Queued { key, payload, accepted_ms, .. } = queued.clone();
        let report = Report {
            version: VERSION,
            id: id.to_owned(),
            key,
            succeeded,
            attempts,
            answer,
            payload: (!succeeded).then_some(payload),
            accepted_ms,
            ended_ms: self.now_ms(),
        };
        let next = self.destination(state, &queued, &report, verdict);
        self.keeper.report(&queued, &report, next.as_ref());
        next
    }
}

fn in_words(state: &State, id: &str, pending: &Pending, verdict: Verdict) -> Result<Answer, Problem> {
    let error = |kind: &str, message: &str| {
        let message = format!("RequestId: {id} Error: {message}");
        Ok(Answer { body: error_body(kind, &message), is_error: true })
    };
    let said = || pending.answer.clone().unwrap_or_default();
    match verdict {
        Verdict::Succeeded => Ok(Answer { body: said(), is_error: false }),
        Verdict::Failed => Ok(Answer { body: said(), is_error: true }),
        Verdict::TimedOut { limit_ms } => {
            let message = format!("Task timed out after {:.2} seconds", limit_ms as f64 / 1000.0);
            error("Sandbox.Timedout", &message)
        }
        Verdict::Died => {
            let how = pending.ending.as_deref().unwrap_or("Runtime exited without providing a reason");
            error("Runtime.ExitError", how)
        }
        Verdict::NotStarted => match state.init_errors.get(&pending.key) {
            Some(body) => Ok(Answer { body: body.clone(), is_error: true }),
            None => error("Runtime.ExitError", "no instance of the function could be started"),
        },
        Verdict::GpuLost => {
            let why = if state.gpu_refusal.is_empty() { "the GPU was lost" } else { &state.gpu_refusal };
            Err(Problem::new(503, "ServiceException", format!("no GPU for this invocation: {why}")))
        }
        Verdict::FunctionGone => Err(Problem::no_function(&pending.key.name)),
        Verdict::Expired => {
            error("EventAgeExceeded", "the event waited longer than MaximumEventAgeInSeconds")
        }
    }
}
