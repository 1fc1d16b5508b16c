//! `dxpu cdi`: how a container gets the client libraries and the way to its GPUs, as a specification of the Container Device
//! Interface (crate `cdi`). Token, credential and authority become files below /run/dxpu in the container, and the
//! variables that name them.

use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::library;
use anyhow::Context;
use cdi::{CdiError, Edits};
use serde_json::Value;
use std::path::{Path, PathBuf};
use transport::{Address, Fingerprint, Scheme};

const EXAMPLES: &str = "\
Examples:
  A pool; the program borrows by itself:
      dxpu cdi generate --credential /etc/dxpu/ada.json --out /etc/cdi/dxpu.json
      podman run --device dxpu.dev/gpu=pool IMAGE dxpu run --gpus 1 -- python train.py

  A worker without a pool:
      dxpu cdi generate --worker gpu-box:7400 --fingerprint 3f2a… --token-file /etc/dxpu/token --out /etc/cdi/dxpu.json
      podman run --device dxpu.dev/gpu=worker IMAGE python train.py";

/// Where the libraries of the package dxpu-libraries are.
pub(super) const PACKAGED: &str = concat!("/usr/lib/", env!("DXPU_TRIPLET"), "/dxpu");
const FILES_INSIDE: &str = "/run/dxpu";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cdi {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Write a specification for containers on this machine
    #[command(after_help = EXAMPLES)]
    Generate(Generate),
}

#[derive(clap::Args)]
struct Generate {
    /// Borrow from a pool: the credential that containers use
    #[arg(long, value_name = "FILE", required_unless_present = "worker", conflicts_with = "worker")]
    credential: Option<PathBuf>,
    /// Use these workers: HOST:PORT (TLS), tcp:HOST:PORT, unix:/path or shm:/path; several with commas between them
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    worker: Vec<Address>,
    /// The worker's certificate, as `dxpu worker` printed it
    #[arg(long, value_name = "HEX", requires = "worker", conflicts_with = "ca")]
    fingerprint: Option<Fingerprint>,
    /// Who signs the worker's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "worker")]
    ca: Option<PathBuf>,
    /// File with the worker's token
    #[arg(long, value_name = "FILE", requires = "worker")]
    token_file: Option<PathBuf>,
    /// The folder with libcuda.so.1 and libnvidia-ml.so.1 [default: that of the package dxpu-libraries, else a copy in the
    /// user's cache]
    #[arg(long, value_name = "DIR")]
    libraries: Option<PathBuf>,
    /// What the device is called: VENDOR/CLASS
    #[arg(long, default_value = "dxpu.dev/gpu", value_parser = kind)]
    kind: String,
    /// The name behind it [default: pool or worker]
    #[arg(long, value_parser = name)]
    name: Option<String>,
    /// Where to write it, such as /etc/cdi/dxpu.json [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// A part of a device's name, as the interface allows it.
fn name(text: &str) -> Result<String, String> {
    match cdi::is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("write letters, digits and _ . : - only".to_owned()),
    }
}

fn kind(text: &str) -> Result<String, String> {
    let (vendor, class) = text.split_once('/').ok_or("write VENDOR/CLASS, such as dxpu.dev/gpu")?;
    Ok(format!("{}/{}", name(vendor)?, name(class)?))
}

impl Cdi {
    pub(crate) fn run(self) -> Outcome {
        let Verb::Generate(order) = self.verb;
        let libraries = match &order.libraries {
            Some(directory) => directory.clone(),
            None if Path::new(PACKAGED).join("libcuda.so.1").exists() => PACKAGED.into(),
            None => library::extract()?.directory,
        };
        let program = std::env::current_exe().context("cannot find this program")?;
        let text = serde_json::to_string_pretty(&order.specification(&libraries, &program)?)? + "\n";
        match &order.out {
            None => out!("{text}"),
            Some(file) => {
                let above = file.parent().unwrap_or(Path::new("/"));
                std::fs::create_dir_all(above)
                    .and_then(|()| std::fs::write(file, text))
                    .with_context(|| format!("cannot write {}", file.display()))?;
                outln!("wrote {}; containers ask for {}={}", file.display(), order.kind, order.device());
            }
        }
        Ok(Exit::Success)
    }
}

impl Generate {
    fn device(&self) -> &str {
        let default = if self.credential.is_some() { "pool" } else { "worker" };
        self.name.as_deref().unwrap_or(default)
    }

    /// The whole document.
    fn specification(&self, libraries: &Path, program: &Path) -> anyhow::Result<Value> {
        let mut edits = Edits::with_libraries(libraries).map_err(refusal)?;
        if let Some(credential) = &self.credential {
            edits.mount(program, Path::new("/usr/bin/dxpu")).map_err(refusal)?;
            file(&mut edits, "DXPU_CREDENTIAL", credential, "credential.json")?;
        }
        if !self.worker.is_empty() {
            let workers: Vec<String> = self.worker.iter().map(ToString::to_string).collect();
            edits.set("DXPU_WORKER", &workers.join(","));
        }
        for address in &self.worker {
            if matches!(address.scheme(), Scheme::Unix | Scheme::Shm) {
                let text = address.to_string();
                let path = text.split_once(':').map_or(text.as_str(), |(_, path)| path);
                edits.mount(Path::new(path), Path::new(path)).map_err(refusal)?;
            }
        }
        if let Some(fingerprint) = &self.fingerprint {
            edits.set("DXPU_FINGERPRINT", &fingerprint.to_string());
        }
        if let Some(file) = &self.ca {
            self::file(&mut edits, "DXPU_CA", file, "ca.pem")?;
        }
        if let Some(file) = &self.token_file {
            self::file(&mut edits, "DXPU_TOKEN_FILE", file, "token")?;
        }
        Ok(edits.into_specification(&self.kind, self.device()))
    }
}

/// A file, and the variable that tells the libraries where it is.
fn file(edits: &mut Edits, variable: &str, outside: &Path, name: &str) -> anyhow::Result<()> {
    let inside = format!("{FILES_INSIDE}/{name}");
    edits.mount(outside, Path::new(&inside)).map_err(refusal)?;
    edits.set(variable, &inside);
    Ok(())
}

/// What went wrong, as a person is told it.
fn refusal(error: CdiError) -> anyhow::Error {
    match error {
        CdiError::Missing(_) => {
            let hint = "the container would not start: check the path";
            Failure::new(Exit::Usage, error.to_string(), hint).into()
        }
        CdiError::Here(_) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Whole {
        #[command(flatten)]
        order: Generate,
    }

    fn specification(words: &[&str], libraries: &Path) -> anyhow::Result<Value> {
        let whole = Whole::try_parse_from([&["generate"], words].concat())?;
        whole.order.specification(libraries, Path::new("/proc/self/exe"))
    }

    #[test]
    fn a_worker_needs_libraries_variables_and_files() {
        let directory = tempfile::tempdir().unwrap();
        let token = directory.path().join("a token");
        std::fs::write(&token, "secret-words").unwrap();
        let token_text = token.to_str().unwrap();
        let words = ["--worker", "box-1:7400,box-2:7400", "--token-file", token_text, "--name", "two"];
        let made = specification(&words, directory.path()).unwrap();
        assert_eq!(made["kind"], "dxpu.dev/gpu");
        assert_eq!(made["devices"][0]["name"], "two");
        let edits = &made["devices"][0]["containerEdits"];
        let env: Vec<&str> = edits["env"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(env.contains(&"DXPU_WORKER=tls:box-1:7400,tls:box-2:7400"), "{env:?}");
        assert!(env.contains(&"DXPU_TOKEN_FILE=/run/dxpu/token"), "{env:?}");
        assert!(env.contains(&"LD_LIBRARY_PATH=/usr/lib/dxpu"), "{env:?}");
        let mounts = edits["mounts"].as_array().unwrap();
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0]["hostPath"], directory.path().to_str().unwrap());
        assert_eq!(mounts[1]["containerPath"], "/run/dxpu/token");
        assert!(mounts.iter().all(|mount| mount["options"][0] == "ro"));
        assert!(!made.to_string().contains("secret-words"));
    }

    #[test]
    fn a_pool_needs_the_program_and_a_credential() {
        let directory = tempfile::tempdir().unwrap();
        let credential = directory.path().join("ada.json");
        std::fs::write(&credential, "{}").unwrap();
        let made = specification(&["--credential", credential.to_str().unwrap()], directory.path()).unwrap();
        let edits = &made["devices"][0]["containerEdits"];
        assert_eq!(edits["mounts"][1]["containerPath"], "/usr/bin/dxpu");
        assert_eq!(edits["mounts"][2]["containerPath"], "/run/dxpu/credential.json");
        assert!(edits["env"].to_string().contains("DXPU_CREDENTIAL=/run/dxpu/credential.json"));
    }

    #[test]
    fn what_no_container_could_use_is_refused() {
        let here = tempfile::tempdir().unwrap();
        assert!(specification(&[], here.path()).is_err(), "neither pool nor worker");
        let missing = specification(&["--worker", "a:1", "--token-file", "/no/such"], here.path());
        assert!(missing.unwrap_err().to_string().contains("there is no /no/such"));
        assert!(specification(&["--worker", "a:1", "--kind", "gpu"], here.path()).is_err());
        assert!(specification(&["--worker", "a:1", "--name", "a b"], here.path()).is_err());
    }
}
