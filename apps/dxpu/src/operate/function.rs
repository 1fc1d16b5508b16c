//! `dxpu function`: deploy functions, invoke them, and look at them.

use crate::support::exit::{Exit, Failure, Outcome};
use anyhow::Context;
use functions_gateway::client::{Access, Answered, AskError};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  dxpu function deploy resize --zip app.zip --handler app.handler --memory 512
  dxpu function deploy bert --zip bert.zip --handler app.handler --gpu-memory 5000
  dxpu function deploy train --zip train.zip --gpu-memory 5000 --timeout 600 --survive
  dxpu function invoke bert --payload '{\"question\": \"why?\"}'
  dxpu function invoke bert --event --payload-file job.json
  dxpu function failed

The service and the key are those of AWS's own tools: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY.
`dxpu functions new-key` makes a key.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Function {
    #[command(subcommand)]
    order: Order,
    #[command(flatten)]
    service: Service,
}

#[derive(clap::Args)]
struct Service {
    /// Where the service is
    #[arg(
        long,
        value_name = "URL",
        env = "AWS_ENDPOINT_URL",
        default_value = "http://127.0.0.1:9700",
        global = true
    )]
    endpoint: String,
    /// The authorities of the service's certificate, PEM, for an endpoint with https
    #[arg(long, value_name = "FILE", env = "AWS_CA_BUNDLE", global = true)]
    ca: Option<PathBuf>,
    /// The region of the signature
    #[arg(long, env = "AWS_DEFAULT_REGION", default_value = "pool", global = true)]
    region: String,
}

#[derive(clap::Subcommand)]
enum Order {
    /// Deploy a function, or change it
    Deploy(Deploy),
    /// Invoke a function and print its answer
    Invoke(Invoke),
    /// List functions
    Ls,
    /// Print what a function has printed lately
    Logs {
        /// Which function
        name: String,
    },
    /// Delete a function
    Rm {
        /// Which function
        name: String,
    },
    /// List asynchronous invocations that failed for good, with what they were given
    Failed,
}

#[derive(clap::Args)]
struct Deploy {
    /// Its name
    name: String,
    /// The zip file with its code
    #[arg(long, value_name = "FILE")]
    zip: PathBuf,
    /// What is called, such as app.handler
    #[arg(long, default_value = "app.handler")]
    handler: String,
    /// Its runtime: python3.N, or provided for a program named bootstrap
    #[arg(long, default_value = "python3.11")]
    runtime: String,
    /// Memory of an instance, in MB
    #[arg(long, value_name = "MB", default_value = "128")]
    memory: u32,
    /// How long an invocation may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "3")]
    timeout: u32,
    /// GPU memory of an instance, in MiB; without it a function has no GPU
    #[arg(long, value_name = "MIB")]
    gpu_memory: Option<u32>,
    /// Its instances outlive the loss of their GPU and can be moved while they run: plain, or tight, careful, required with commas
    /// between them; off: they end with their GPU [default: as the service was started]
    #[arg(long, value_name = "WORDS", num_args = 0..=1, require_equals = true, default_missing_value = "plain")]
    survive: Option<String>,
    /// A variable of its environment, NAME=VALUE
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
}

#[derive(clap::Args)]
struct Invoke {
    /// Which function
    name: String,
    /// What it is given, as JSON
    #[arg(long, value_name = "JSON", default_value = "{}", conflicts_with = "payload_file")]
    payload: String,
    /// A file with what it is given
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// Asynchronously: print the request's id and do not wait
    #[arg(long)]
    event: bool,
}

impl Function {
    pub(crate) fn run(self) -> Outcome {
        let variable = |name: &str| {
            std::env::var(name).map_err(|_| {
                let hint =
                    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; `dxpu functions new-key` makes a key";
                Failure::new(Exit::Usage, format!("{name} is not set"), hint)
            })
        };
        let authorities = match &self.service.ca {
            Some(path) => {
                Some(std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?)
            }
            None => None,
        };
        let access = Access {
            authorities,
            endpoint: self.service.endpoint,
            key_id: variable("AWS_ACCESS_KEY_ID")?,
            secret: variable("AWS_SECRET_ACCESS_KEY")?,
            region: self.service.region,
        };
        match self.order {
            Order::Deploy(deploy) => deploy.run(&access),
            Order::Invoke(invoke) => invoke.run(&access),
            Order::Ls => list(&access),
            Order::Logs { name } => logs(&access, &name),
            Order::Rm { name } => {
                asked(&access, "DELETE", &format!("/2015-03-31/functions/{name}"), b"")?;
                outln!("{name} is deleted");
                Ok(Exit::Success)
            }
            Order::Failed => failed(&access),
        }
    }
}

fn send(
    access: &Access,
    method: &str,
    path: &str,
    more: &[(&str, &str)],
    body: &[u8],
) -> anyhow::Result<Answered> {
    access.ask(method, path, more, body).map_err(|error| {
        let exit = if matches!(error, AskError::Endpoint(_)) { Exit::Usage } else { Exit::Unreachable };
        let hint = "check --endpoint, and that `dxpu functions` runs there";
        Failure::new(exit, error.to_string(), hint).because(error).into()
    })
}

/// What the service refused, in its own words.
fn refusal(answered: &Answered) -> Failure {
    let body: Value = serde_json::from_slice(&answered.body).unwrap_or_default();
    let code = answered.header("x-amzn-errortype").unwrap_or("error").to_owned();
    let what = body["Message"].as_str().unwrap_or("the service does not say why").to_owned();
    Failure::new(Exit::Refused, format!("{code}: {what}"), "")
}

fn asked(access: &Access, method: &str, path: &str, body: &[u8]) -> anyhow::Result<Value> {
    let answered = send(access, method, path, &[], body)?;
    if answered.status >= 300 {
        return Err(refusal(&answered).into());
    }
    Ok(serde_json::from_slice(&answered.body).unwrap_or_default())
}

impl Deploy {
    fn run(self, access: &Access) -> Outcome {
        let zip = std::fs::read(&self.zip).with_context(|| format!("cannot read {}", self.zip.display()))?;
        let zip = functions_gateway::client::base64(&zip);
        let mut variables = serde_json::Map::new();
        for pair in &self.env {
            let (name, value) = pair.split_once('=').ok_or_else(|| {
                Failure::new(Exit::Usage, format!("--env {pair}"), "write it as --env NAME=VALUE")
            })?;
            variables.insert(name.to_owned(), json!(value));
        }
        if let Some(mb) = self.gpu_memory {
            variables.insert("DXPU_GPU_MEMORY_MB".to_owned(), json!(mb.to_string()));
        }
        if let Some(words) = &self.survive {
            variables.insert("DXPU_SURVIVE".to_owned(), json!(words));
        }
        let mut wanted = json!({
            "FunctionName": self.name,
            "Runtime": self.runtime,
            "Role": "arn:aws:iam::0:role/dxpu",
            "Handler": self.handler,
            "Timeout": self.timeout,
            "MemorySize": self.memory,
            "Environment": {"Variables": variables},
        });
        let path = format!("/2015-03-31/functions/{}", self.name);
        let is_new = send(access, "GET", &path, &[], b"")?.status == 404;
        if is_new {
            wanted["Code"] = json!({"ZipFile": zip});
            asked(access, "POST", "/2015-03-31/functions", wanted.to_string().as_bytes())?;
        } else {
            let code = json!({"ZipFile": zip}).to_string();
            asked(access, "PUT", &format!("{path}/code"), code.as_bytes())?;
            asked(access, "PUT", &format!("{path}/configuration"), wanted.to_string().as_bytes())?;
        }
        outln!("{} is {}", self.name, if is_new { "deployed" } else { "changed" });
        Ok(Exit::Success)
    }
}

impl Invoke {
    fn run(self, access: &Access) -> Outcome {
        let payload = match &self.payload_file {
            Some(path) => std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?,
            None => self.payload.clone().into_bytes(),
        };
        let kind = if self.event { "Event" } else { "RequestResponse" };
        let path = format!("/2015-03-31/functions/{}/invocations", self.name);
        let answered = send(access, "POST", &path, &[("x-amz-invocation-type", kind)], &payload)?;
        if answered.status >= 300 {
            return Err(refusal(&answered).into());
        }
        if self.event {
            outln!("{}", answered.header("x-amzn-requestid").unwrap_or_default());
            return Ok(Exit::Success);
        }
        let mut out = std::io::stdout().lock();
        out.write_all(&answered.body)?;
        out.write_all(b"\n")?;
        // The function's own error is on standard output, as its answer would be.
        Ok(if answered.header("x-amz-function-error").is_some() { Exit::Failure } else { Exit::Success })
    }
}

fn list(access: &Access) -> Outcome {
    let listed = asked(access, "GET", "/2015-03-31/functions?MaxItems=10000", b"")?;
    for function in listed["Functions"].as_array().into_iter().flatten() {
        let name = function["FunctionName"].as_str().unwrap_or_default();
        let standing = asked(access, "GET", &format!("/dxpu/v1/functions/{name}/status"), b"")?;
        let gpu = function["Environment"]["Variables"]["DXPU_GPU_MEMORY_MB"].as_str();
        let gpu = gpu.map_or_else(String::new, |mb| format!("  GPU memory {mb} MiB"));
        outln!(
            "{name}  {}  {} MB  {} s{gpu}  {} idle, {} busy, {} starting, {} waiting; the next one has {} before it and \
             waits about {} ms",
            function["Runtime"].as_str().unwrap_or_default(),
            function["MemorySize"],
            function["Timeout"],
            standing["Idle"],
            standing["Busy"],
            standing["Starting"],
            standing["Waiting"],
            standing["Ahead"],
            standing["ExpectedWaitMs"]
        );
    }
    Ok(Exit::Success)
}

fn logs(access: &Access, name: &str) -> Outcome {
    let logs = asked(access, "GET", &format!("/dxpu/v1/functions/{name}/logs"), b"")?;
    for line in logs["Lines"].as_array().into_iter().flatten() {
        let request = line["request"].as_str().unwrap_or("-");
        outln!("{} {request} {}", line["at_ms"], line["text"].as_str().unwrap_or_default());
    }
    Ok(Exit::Success)
}

fn failed(access: &Access) -> Outcome {
    let reports = asked(access, "GET", "/dxpu/v1/reports?failed=true", b"")?;
    for report in reports["Reports"].as_array().into_iter().flatten() {
        outln!(
            "{} {} after {} attempts: {} (payload {})",
            report["id"].as_str().unwrap_or_default(),
            report["key"]["name"].as_str().unwrap_or_default(),
            report["attempts"],
            report["answer"].as_str().unwrap_or_default(),
            report["payload"].as_str().unwrap_or_default()
        );
    }
    Ok(Exit::Success)
}
