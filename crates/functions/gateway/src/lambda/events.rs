//! What becomes of asynchronous invocations: attempts, age, and who hears of their end.

use super::deploy::{found, save};
use super::{Asked, Method, shapes};
use crate::answer::{Problem, bytes_response, json_response};
use axum::response::Response;
use functions::{Destinations, Function, RetryRules};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Destination {
    destination: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DestinationConfig {
    #[serde(default)]
    on_success: Destination,
    #[serde(default)]
    on_failure: Destination,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Wanted {
    maximum_retry_attempts: Option<u8>,
    maximum_event_age_in_seconds: Option<u32>,
    destination_config: Option<DestinationConfig>,
}

/// Put replaces what there was, Update changes what is named.
pub(super) async fn config(asked: &Asked, name: &str, method: &Method) -> Result<Response, Problem> {
    let mut function = found(asked, name)?;
    let own = &mut function.configuration;
    match *method {
        Method::PUT | Method::POST => {
            let wanted: Wanted = shapes::read(&asked.body)?;
            if *method == Method::PUT {
                (own.retry, own.destinations) = (RetryRules::default(), Destinations::default());
            }
            let rules = RetryRules {
                attempts: wanted.maximum_retry_attempts.unwrap_or(own.retry.attempts),
                age_s: wanted.maximum_event_age_in_seconds.unwrap_or(own.retry.age_s),
            };
            own.retry = rules.check()?;
            if let Some(given) = wanted.destination_config {
                let of = |place: Destination| checked(asked, name, place);
                own.destinations =
                    Destinations { on_success: of(given.on_success)?, on_failure: of(given.on_failure)? };
            }
            function = save(asked, function, None).await?;
        }
        Method::DELETE => {
            (own.retry, own.destinations) = (RetryRules::default(), Destinations::default());
            save(asked, function, None).await?;
            return Ok(bytes_response(204, ""));
        }
        _ => {}
    }
    Ok(json_response(200, &shown(asked, &function)))
}

pub(super) fn list(asked: &Asked, name: &str) -> Result<Response, Problem> {
    let function = found(asked, name)?;
    Ok(json_response(200, &json!({"FunctionEventInvokeConfigs": [shown(asked, &function)]})))
}

/// The name of another function of the same tenant. What is no function here is refused now and not when it is needed.
fn checked(asked: &Asked, of: &str, place: Destination) -> Result<Option<String>, Problem> {
    let Some(text) = place.destination.filter(|text| !text.is_empty()) else { return Ok(None) };
    let wrong = |why: &str| {
        Problem::invalid(format!(
            "The destination {text} is not valid: {why}; it is another function of yours"
        ))
    };
    let parts: Vec<&str> = text.split(':').collect();
    match parts[..] {
        [_] => {}
        ["arn", _, "lambda", _, tenant, "function", ..] if tenant == asked.tenant => {}
        ["arn", _, "lambda", _, _, "function", ..] => return Err(wrong("it belongs to another tenant")),
        _ => return Err(wrong("queues, topics and buses are not supported")),
    }
    let key = asked.key(&text)?;
    if key == asked.key(of)? {
        return Err(wrong("a function is not its own destination"));
    }
    if asked.desk.function(&key).is_none() {
        return Err(wrong("there is no such function"));
    }
    Ok(Some(key.name))
}

fn shown(asked: &Asked, function: &Function) -> Value {
    let own = &function.configuration;
    let arn = |name: &String| {
        let key = functions::FunctionKey { tenant: function.key.tenant.clone(), name: name.clone() };
        super::arn(&asked.desk.region, &key)
    };
    let place = |name: &Option<String>| match name {
        Some(name) => json!({"Destination": arn(name)}),
        None => json!({}),
    };
    json!({
        "FunctionArn": format!("{}:$LATEST", super::arn(&asked.desk.region, &function.key)),
        "LastModified": function.modified_ms as f64 / 1000.0,
        "MaximumRetryAttempts": own.retry.attempts,
        "MaximumEventAgeInSeconds": own.retry.age_s,
        "DestinationConfig": {
            "OnSuccess": place(&own.destinations.on_success),
            "OnFailure": place(&own.destinations.on_failure),
        },
    })
}
