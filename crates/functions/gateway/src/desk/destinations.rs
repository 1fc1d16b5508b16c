//! The end of an asynchronous invocation becomes an invocation of another function, as Lambda words it:
//! <https://docs.aws.amazon.com/lambda/latest/dg/invocation-async-retain-records.html>.

use super::{Desk, State};
use crate::lambda::{arn, request_id, time_text};
use functions::{ASYNC_PAYLOAD_BYTES_MAX, FunctionKey, HOPS_MAX, Queued, Report, VERSION, Verdict};
use serde_json::{Value, json};

impl Desk {
    /// What the function's destination is to be told; none if it has none for this end.
    pub(super) fn destination(
        &self,
        state: &State,
        queued: &Queued,
        report: &Report,
        verdict: Verdict,
    ) -> Option<Queued> {
        let places = &state.functions.get(&queued.key)?.configuration.destinations;
        let name = if report.succeeded { &places.on_success } else { &places.on_failure };
        let name = name.clone()?;
        if queued.hops >= HOPS_MAX {
            tracing::warn!(key = %queued.key, "functions are each other's destinations: the chain ends here");
            return None;
        }
        Some(Queued {
            version: VERSION,
            id: request_id(),
            key: FunctionKey { tenant: queued.key.tenant.clone(), name },
            payload: record(&arn(&self.region, &queued.key), queued, report, verdict),
            attempts: 0,
            accepted_ms: report.ended_ms,
            hops: queued.hops + 1,
        })
    }
}

/// The record of an invocation. An answer that is too large to be sent on is left out.
fn record(arn: &str, queued: &Queued, report: &Report, verdict: Verdict) -> String {
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|_| json!(text));
    let condition = match verdict {
        Verdict::Succeeded => "Success",
        Verdict::Expired => "EventAgeExceeded",
        _ => "RetriesExhausted",
    };
    let mut body = json!({
        "version": "1.0",
        "timestamp": time_text(report.ended_ms).replace("+0000", "Z"),
        "requestContext": {
            "requestId": queued.id,
            "functionArn": format!("{arn}:$LATEST"),
            "condition": condition,
            "approximateInvokeCount": report.attempts,
        },
        "requestPayload": value(&queued.payload),
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST"},
        "responsePayload": value(&report.answer),
    });
    if !report.succeeded {
        body["responseContext"]["functionError"] = json!("Unhandled");
    }
    for part in ["responsePayload", "requestPayload"] {
        if body.to_string().len() > ASYNC_PAYLOAD_BYTES_MAX {
            body[part] = Value::Null;
        }
    }
    body.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_what_happened_and_is_never_larger_than_a_payload_may_be() {
        let key = FunctionKey { tenant: "ada".to_owned(), name: "f".to_owned() };
        let queued = Queued {
            version: VERSION,
            id: "one".to_owned(),
            key: key.clone(),
            payload: r#"{"n": 7}"#.to_owned(),
            attempts: 0,
            accepted_ms: 1,
            hops: 0,
        };
        let mut report = Report {
            version: VERSION,
            id: "one".to_owned(),
            key,
            succeeded: false,
            attempts: 3,
            answer: r#"{"errorType": "E"}"#.to_owned(),
            payload: None,
            accepted_ms: 1,
            ended_ms: 2,
        };
        let told: Value = serde_json::from_str(&record("arn", &queued, &report, Verdict::Failed)).unwrap();
        assert_eq!(told["requestContext"]["condition"], "RetriesExhausted");
        assert_eq!(told["requestPayload"]["n"], 7);
        assert_eq!(told["responseContext"]["functionError"], "Unhandled");
        assert_eq!(told["responsePayload"]["errorType"], "E");
        report.answer = format!("\"{}\"", "x".repeat(1 << 20));
        let told = record("arn", &queued, &report, Verdict::Failed);
        assert!(told.len() <= ASYNC_PAYLOAD_BYTES_MAX);
        let told: Value = serde_json::from_str(&told).unwrap();
        assert!(told["responsePayload"].is_null() && told["requestPayload"]["n"] == 7);
    }
}
