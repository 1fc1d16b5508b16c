//! Bodies of requests and answers, with Lambda's names.

use super::arn;
use crate::answer::Problem;
use functions::{Configuration, Destinations, Function, RetryRules};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Variables {
    #[serde(default)]
    pub(super) variables: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Code {
    pub(super) zip_file: Option<String>,
    pub(super) s3_bucket: Option<String>,
    pub(super) image_uri: Option<String>,
    #[serde(default)]
    pub(super) dry_run: bool,
}

/// What CreateFunction and UpdateFunctionConfiguration have in common. Fields that are not named here change nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Wanted {
    pub(super) function_name: Option<String>,
    pub(super) runtime: Option<String>,
    pub(super) role: Option<String>,
    pub(super) handler: Option<String>,
    pub(super) description: Option<String>,
    pub(super) timeout: Option<u32>,
    pub(super) memory_size: Option<u32>,
    pub(super) environment: Option<Variables>,
    pub(super) code: Option<Code>,
    pub(super) package_type: Option<String>,
    pub(super) layers: Option<Vec<Value>>,
}

pub(super) fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        Problem::new(
            400,
            "InvalidRequestContentException",
            format!("Could not parse request body into json: {error}"),
        )
    })
}

impl Wanted {
    /// Refuses what this service does not have, instead of leaving it out in silence.
    pub(super) fn check(&self) -> Result<(), Problem> {
        if self.package_type.as_deref().is_some_and(|kind| kind != "Zip") {
            return Err(Problem::invalid("PackageType Image is not supported: deploy a zip file"));
        }
        if self.layers.as_ref().is_some_and(|layers| !layers.is_empty()) {
            return Err(Problem::invalid("Layers are not supported: put everything into the zip file"));
        }
        Ok(())
    }

    pub(super) fn changed(self, before: Configuration) -> Configuration {
        Configuration {
            runtime: self.runtime.unwrap_or(before.runtime),
            handler: self.handler.unwrap_or(before.handler),
            role: self.role.unwrap_or(before.role),
            description: self.description.unwrap_or(before.description),
            timeout_s: self.timeout.unwrap_or(before.timeout_s),
            memory_mb: self.memory_size.unwrap_or(before.memory_mb),
            environment: self.environment.map_or(before.environment, |given| given.variables),
            concurrency: before.concurrency,
            retry: before.retry,
            destinations: before.destinations,
        }
    }
}

/// What a function has that says nothing else: Lambda's own defaults.
pub(super) fn defaults() -> Configuration {
    Configuration {
        runtime: String::new(),
        handler: String::new(),
        role: String::new(),
        description: String::new(),
        timeout_s: 3,
        memory_mb: 128,
        environment: BTreeMap::new(),
        concurrency: None,
        retry: RetryRules::default(),
        destinations: Destinations::default(),
    }
}

/// FunctionConfiguration.
pub(super) fn configuration(region: &str, function: &Function) -> Value {
    use base64::Engine;
    let own = &function.configuration;
    let hash: Vec<u8> = (0..function.code.len() / 2)
        .filter_map(|at| u8::from_str_radix(function.code.get(at * 2..at * 2 + 2)?, 16).ok())
        .collect();
    json!({
        "FunctionName": function.key.name,
        "FunctionArn": arn(region, &function.key),
        "Runtime": own.runtime,
        "Role": own.role,
        "Handler": own.handler,
        "CodeSize": function.code_bytes,
        "Description": own.description,
        "Timeout": own.timeout_s,
        "MemorySize": own.memory_mb,
        "LastModified": time_text(function.modified_ms),
        "CodeSha256": base64::engine::general_purpose::STANDARD.encode(hash),
        "Version": "$LATEST",
        "Environment": {"Variables": own.environment},
        "TracingConfig": {"Mode": "PassThrough"},
        "RevisionId": format!("{:08x}-0000-4000-8000-{:012x}", function.modified_ms >> 32, function.revision),
        "State": "Active",
        "LastUpdateStatus": "Successful",
        "PackageType": "Zip",
        "Architectures": [if cfg!(target_arch = "aarch64") { "arm64" } else { "x86_64" }],
        "EphemeralStorage": {"Size": 512},
    })
}

/// `2026-11-16T15:48:04.000+0000`.
pub(crate) fn time_text(ms: u64) -> String {
    let (days, of_day) = (ms / 86_400_000, ms / 1000 % 86_400);
    // Howard Hinnant's civil_from_days, with years that begin in March.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let part = (5 * of_year + 2) / 153;
    let day = of_year - (153 * part + 2) / 5 + 1;
    let month = if part < 10 { part + 3 } else { part - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}+0000", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_lambda_does() {
        assert_eq!(time_text(0), "1970-01-01T00:00:00.000+0000");
        assert_eq!(time_text(1_709_251_199_042), "2024-02-29T23:59:59.042+0000");
    }
}
