//! What the store keeps: functions, asynchronous invocations that wait, reports of those that ended, access keys.

use crate::limits::{ENVIRONMENT_BYTES_MAX, MEMORY_MB_MAX, MEMORY_MB_MIN, RETRIES_MAX, TIMEOUT_S_MAX};
use crate::survive::Survive;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The version of these records. A record of a later version is refused, never guessed at.
pub const VERSION: u32 = 1;

/// A function, as it is named within the service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FunctionKey {
    /// Its owner.
    pub tenant: String,
    /// Its name there.
    pub name: String,
}

impl fmt::Display for FunctionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.name)
    }
}

/// Whether this may be a function's name: as Lambda's, 1 to 64 letters, digits, `-` and `_`.
pub fn is_name(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=64).contains(&text.len()) && text.bytes().all(is_word)
}

/// The function's name in what clients write: a name, a partial or a whole ARN, with `$LATEST` or no version behind it.
pub fn name_of(text: &str) -> Option<&str> {
    let name = match text.rsplit_once("function:") {
        Some((_, name)) => name,
        None => text,
    };
    let name = name.strip_suffix(":$LATEST").unwrap_or(name);
    is_name(name).then_some(name)
}

/// What is wrong with what a client asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Invalid {
    /// The sentence that the client is shown.
    pub what: String,
}

fn invalid<T>(what: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid { what: what.into() })
}

/// When an asynchronous invocation is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryRules {
    /// How often after the first time.
    pub attempts: u8,
    /// An invocation older than this is not tried again.
    pub age_s: u32,
}

impl Default for RetryRules {
    fn default() -> Self {
        Self { attempts: RETRIES_MAX, age_s: 6 * 3600 }
    }
}

impl RetryRules {
    /// Whether Lambda would take them.
    pub fn check(self) -> Result<Self, Invalid> {
        if self.attempts > RETRIES_MAX {
            return invalid(format!("MaximumRetryAttempts is at most {RETRIES_MAX}"));
        }
        if !(60..=6 * 3600).contains(&self.age_s) {
            return invalid("MaximumEventAgeInSeconds is between 60 and 21600");
        }
        Ok(self)
    }
}

/// Who hears of the end of an asynchronous invocation: another function of the same tenant, by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destinations {
    /// When it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_success: Option<String>,
    /// When it failed for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<String>,
}

/// How a function is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// Which runtime, such as `python3.11` or `provided`.
    pub runtime: String,
    /// What the runtime calls, such as `app.handler`.
    pub handler: String,
    /// Who it runs as; kept and shown, and without meaning here.
    pub role: String,
    /// For people.
    pub description: String,
    /// An invocation may take so long.
    pub timeout_s: u32,
    /// Memory of an instance.
    pub memory_mb: u32,
    /// Its own variables.
    pub environment: BTreeMap<String, String>,
    /// How many instances it may have; as many as there is room for, if left out.
    pub concurrency: Option<u32>,
    /// For asynchronous invocations.
    pub retry: RetryRules,
    /// Likewise.
    #[serde(default)]
    pub destinations: Destinations,
}

/// The variable by which a function declares the GPU memory that it uses, in MiB: Lambda has no field for it.
const GPU_VARIABLE: &str = "DXPU_GPU_MEMORY_MB";

/// The variable by which a function says how its instances outlive the loss of their GPU.
const SURVIVE_VARIABLE: &str = "DXPU_SURVIVE";

/// Variables that the runner sets itself.
const RESERVED: [&str; 8] = [
    "AWS_LAMBDA_RUNTIME_API",
    "AWS_LAMBDA_FUNCTION_NAME",
    "AWS_LAMBDA_FUNCTION_VERSION",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
    "_HANDLER",
    "LAMBDA_TASK_ROOT",
    "LAMBDA_RUNTIME_DIR",
    "TMPDIR",
];

impl Configuration {
    /// The GPU memory that an instance declares, in MiB; none for a function without a GPU.
    pub fn gpu_mb(&self) -> Option<u32> {
        self.environment.get(GPU_VARIABLE)?.parse().ok().filter(|mb| *mb > 0)
    }

    /// How an instance outlives the loss of its GPU; none if the function leaves that to the service.
    pub fn survive(&self) -> Option<Survive> {
        self.environment.get(SURVIVE_VARIABLE)?.parse().ok()
    }

    /// Whether it is within bounds.
    pub fn check(self) -> Result<Self, Invalid> {
        if !(1..=TIMEOUT_S_MAX).contains(&self.timeout_s) {
            return invalid(format!("Timeout is between 1 and {TIMEOUT_S_MAX} seconds"));
        }
        if !(MEMORY_MB_MIN..=MEMORY_MB_MAX).contains(&self.memory_mb) {
            return invalid(format!("MemorySize is between {MEMORY_MB_MIN} and {MEMORY_MB_MAX} MB"));
        }
        let is_python = self.runtime.starts_with("python3.");
        if !is_python && !self.runtime.starts_with("provided") {
            return invalid(format!("{}: this service runs python3.N and provided runtimes", self.runtime));
        }
        if self.handler.len() > 128 || self.handler.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return invalid("Handler is at most 128 characters without spaces");
        }
        if is_python && !self.handler.contains('.') {
            return invalid("Handler is written module.function");
        }
        if self.description.chars().count() > 256 || self.role.len() > 2048 {
            return invalid("Description is at most 256 characters, Role at most 2048");
        }
        self.check_environment()?;
        self.retry.check()?;
        Ok(self)
    }

    fn check_environment(&self) -> Result<(), Invalid> {
        let bytes: usize = self.environment.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > ENVIRONMENT_BYTES_MAX {
            return invalid(format!("Environment has {bytes} bytes; it may have {ENVIRONMENT_BYTES_MAX}"));
        }
        for (name, value) in &self.environment {
            let mut bytes = name.bytes();
            let starts = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic());
            if !starts || !bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                return invalid(format!("{name:?} is no name of a variable"));
            }
            // What begins so steers the client library: a function must not choose another worker or token.
            let is_setting = [GPU_VARIABLE, SURVIVE_VARIABLE].contains(&name.as_str());
            let steers = name.starts_with("DXPU_") && !is_setting;
            if RESERVED.contains(&name.as_str()) || steers || name.starts_with("LD_") {
                return invalid(format!("{name} is set by the service"));
            }
            if value.contains('\0') {
                return invalid(format!("the value of {name} has a zero byte"));
            }
        }
        if let Some(Err(error)) = self.environment.get(SURVIVE_VARIABLE).map(|text| text.parse::<Survive>()) {
            return invalid(format!("{SURVIVE_VARIABLE}: {error}"));
        }
        match self.environment.get(GPU_VARIABLE) {
            Some(text) if self.gpu_mb().is_none() => {
                invalid(format!("{GPU_VARIABLE} is a number of MiB, and {text:?} is none"))
            }
            _ => Ok(()),
        }
    }
}

/// A function that is deployed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// [`VERSION`].
    pub version: u32,
    /// Which.
    pub key: FunctionKey,
    /// How it is run.
    pub configuration: Configuration,
    /// SHA-256 of its zip file, in hex: its code is kept under this name.
    pub code: String,
    /// How many bytes the zip file has.
    pub code_bytes: u64,
    /// Counts the changes: instances of an older one retire.
    pub revision: u64,
    /// When it was last changed, in milliseconds since 1970.
    pub modified_ms: u64,
}

/// An asynchronous invocation that was accepted and is not reported yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queued {
    /// [`VERSION`].
    pub version: u32,
    /// Its request id.
    pub id: String,
    /// Whose function.
    pub key: FunctionKey,
    /// What it is given.
    pub payload: String,
    /// How often it was tried and failed.
    pub attempts: u8,
    /// When it was accepted, in milliseconds since 1970.
    pub accepted_ms: u64,
    /// How many functions it went through as a destination: functions that name each other would never end.
    #[serde(default)]
    pub hops: u8,
}

/// How an asynchronous invocation ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// Its request id.
    pub id: String,
    /// Whose function.
    pub key: FunctionKey,
    /// It succeeded.
    pub succeeded: bool,
    /// How often it was tried.
    pub attempts: u8,
    /// What the function answered, or why it failed.
    pub answer: String,
    /// What a failed one was given, so that it can be sent again.
    pub payload: Option<String>,
    /// When it was accepted, and when it ended, in milliseconds since 1970.
    pub accepted_ms: u64,
    /// When it ended.
    pub ended_ms: u64,
}

/// A tenant's key: requests are signed with its secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessKey {
    /// [`VERSION`].
    pub version: u32,
    /// What the client calls it.
    pub id: String,
    /// Shared with the client. A signature can only be checked by who knows it.
    pub secret: String,
    /// Whose it is.
    pub tenant: String,
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccessKey({} of {})", self.id, self.tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration() -> Configuration {
        Configuration {
            runtime: "python3.11".to_owned(),
            handler: "app.handler".to_owned(),
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

    #[test]
    fn names_are_found_in_what_clients_write() {
        for text in [
            "f-1",
            "123456789012:function:f-1",
            "arn:aws:lambda:us-east-1:1:function:f-1:$LATEST",
            "f-1:$LATEST",
        ] {
            assert_eq!(name_of(text), Some("f-1"), "{text}");
        }
        for text in ["", "a/b", "a b", "../x", "f:7", &"x".repeat(65)] {
            assert_eq!(name_of(text), None, "{text}");
        }
    }

    #[test]
    fn what_lambda_refuses_is_refused_and_so_is_what_would_steer_the_client_library() {
        assert!(configuration().check().is_ok());
        let with = |name: &str, value: &str| {
            let environment = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            Configuration { environment, ..configuration() }.check()
        };
        assert_eq!(with(GPU_VARIABLE, "350").unwrap().gpu_mb(), Some(350));
        for (name, value) in [
            ("DXPU_WORKER", "x"),
            ("LD_PRELOAD", "x"),
            ("AWS_LAMBDA_RUNTIME_API", "x"),
            ("1a", "x"),
            ("A=B", "x"),
            (GPU_VARIABLE, "many"),
            ("A", "\0"),
        ] {
            assert!(with(name, value).is_err(), "{name}");
        }
        assert!(with("A", &"x".repeat(ENVIRONMENT_BYTES_MAX)).is_err());
        for bad in [
            Configuration { timeout_s: 0, ..configuration() },
            Configuration { timeout_s: 901, ..configuration() },
            Configuration { memory_mb: 64, ..configuration() },
            Configuration { runtime: "java21".to_owned(), ..configuration() },
            Configuration { handler: "app".to_owned(), ..configuration() },
        ] {
            assert!(bad.check().is_err());
        }
    }
}
