//! `dxpu smi`: the GPUs that a program of this user has, as nvidia-smi shows them.
//!
//! The numbers are those that `libnvidia-ml.so.1` of `dxpu run` gives: the worker's own, asked for over a connection that only
//! looks. What a worker does not tell is shown as a dash.

mod ask;
mod picture;

use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::yaml;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use transport::Address;

const EXAMPLES: &str = "\
Examples:
  dxpu run --gpus 1 -- dxpu smi                      borrow one and look at it
  dxpu smi --lease l-00c0ffee00c0ffee                the GPUs of a lease that a program uses
  dxpu smi --worker gpu-box:7400 --fingerprint 3f2a… --token-file token
  dxpu smi                                           in a shell that `dxpu run` started
  dxpu smi -o json                                   for programs; memory in bytes, power in milliwatts

`dxpu top` shows the GPUs of the whole pool.";

/// Show the GPUs that you have, as nvidia-smi does
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Smi {
    /// The worker, as for `dxpu run` [default: those of the `dxpu run` around this command]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    worker: Vec<Address>,
    /// The GPUs of this lease
    #[arg(long, value_name = "ID", conflicts_with = "worker")]
    lease: Option<String>,
    /// The worker's certificate, as `dxpu worker` printed it
    #[arg(long, value_name = "HEX", requires = "worker", conflicts_with = "ca")]
    fingerprint: Option<transport::Fingerprint>,
    /// Who signs the worker's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "worker")]
    ca: Option<PathBuf>,
    /// File with the worker's token
    #[arg(long, value_name = "FILE", requires = "worker")]
    token_file: Option<PathBuf>,
    /// How to show them
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Table,
    Json,
    Yaml,
}

impl Smi {
    pub(crate) fn run(self) -> Outcome {
        if !self.worker.is_empty() || self.lease.is_some() {
            return self.inside_run();
        }
        if std::env::var_os("DXPU_WORKER").is_none() {
            let what = "this command is not run inside `dxpu run`, and no worker or lease is named";
            let hint = "try `dxpu run --gpus 1 -- dxpu smi`, `dxpu smi --lease ID` or `dxpu smi --worker ADDR`; \
                        `dxpu top` shows the whole pool";
            return Err(Failure::new(Exit::Usage, what, hint).into());
        }
        let config = worker_link::Config::from_environment().map_err(|what| {
            Failure::new(Exit::Usage, what, "run it with `dxpu run`, which sets the variables")
        })?;
        let gpus = ask::all(&config)?;
        let mine = ask::processes(&std::env::var("DXPU_WORKER").unwrap_or_default());
        let seen = picture::Seen::of(&gpus, mine);
        match self.output {
            Output::Table => out!("{}", picture::table(&seen)),
            Output::Json => outln!("{}", serde_json::to_string_pretty(&seen)?),
            Output::Yaml => out!("{}", yaml::document(&serde_json::to_value(&seen)?)),
        }
        Ok(Exit::Success)
    }

    /// `dxpu run` knows how to reach a worker or a lease: it starts this command again, with the variables set.
    fn inside_run(self) -> Outcome {
        let own = std::env::current_exe()?;
        let mut command = std::process::Command::new(&own);
        command.arg("run");
        if let Some(lease) = &self.lease {
            command.args(["--lease", lease]);
        } else {
            let all: Vec<String> = self.worker.iter().map(ToString::to_string).collect();
            command.args(["--worker", &all.join(",")]);
        }
        if let Some(fingerprint) = &self.fingerprint {
            command.args(["--fingerprint", &fingerprint.to_string()]);
        }
        for (option, file) in [("--ca", &self.ca), ("--token-file", &self.token_file)] {
            if let Some(file) = file {
                command.arg(option).arg(file);
            }
        }
        let output = match self.output {
            Output::Table => "table",
            Output::Json => "json",
            Output::Yaml => "yaml",
        };
        command.arg("--").arg(&own).args(["smi", "--output", output]);
        // Only returns when it could not be started.
        Err(crate::support::exit::not_started(own.as_os_str(), command.exec()).into())
    }
}
