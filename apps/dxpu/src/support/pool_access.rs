//! Which pool, and with which credential.
//!
//! ```text
//! --credential FILE, DXPU_CREDENTIAL          a file that a person was given (`dxpu token create` makes them)
//! ~/.config/dxpu/config.toml, then /etc/dxpu/config.toml
//!     credential = "ada.json"                 beside the configuration, or a whole path
//!     managers = ["https://10.0.0.7:7500"]    only if they are not those of the credential
//! ~/.config/dxpu/credential.json
//! ~/.local/state/dxpu/up/manager/admin.json   the pool of `dxpu up` on this machine
//! ~/.local/state/dxpu/manager/admin.json      the pool of a manager on this machine
//! ```
//!
//! The first that is there counts. `--manager` and `DXPU_MANAGER` say where, with any credential.

use crate::support::exit::{Exit, Failure};
use crate::support::places;
use anyhow::Context;
use machine::files;
use pool_auth::Credential;
use pool_client::{Client, ClientError, Patience};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Which pool, and who one is there.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct PoolAccess {
    /// Your credential for the pool; by default the one that ~/.config/dxpu/config.toml names
    #[arg(long, value_name = "FILE", env = "DXPU_CREDENTIAL")]
    pub(crate) credential: Option<PathBuf>,
    /// Managers to ask, if not those that the credential names
    #[arg(long, value_name = "ADDR", env = "DXPU_MANAGER", value_delimiter = ',')]
    pub(crate) manager: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    credential: Option<PathBuf>,
    #[serde(default)]
    managers: Vec<String>,
}

impl PoolAccess {
    /// A client of the pool for a command that a user waits for: it gives up at once where no manager runs, and tells the
    /// user when a manager does not answer soon.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(self.patient(Patience::default())?.giving_up_when_absent().telling(tell))
    }

    /// The same for a program that waits for GPUs: a manager that is being restarted is waited for.
    pub(crate) fn waiting_client(&self) -> anyhow::Result<Client> {
        Ok(self.patient(Patience::default())?.telling(tell))
    }

    /// The same, for as long as this.
    pub(crate) fn patient(&self, patience: Patience) -> anyhow::Result<Client> {
        Client::new(self.find()?, patience).map_err(|error| failure(error).into())
    }

    /// The credential, with the managers to ask.
    pub(crate) fn find(&self) -> anyhow::Result<Credential> {
        let (path, managers) = match &self.credential {
            Some(path) => (path.clone(), Vec::new()),
            None => find_kept(&places()?)?.ok_or_else(nowhere)?,
        };
        let mut credential = read(&path)?;
        for other in [managers, self.manager.clone()] {
            if !other.is_empty() {
                credential.managers = other;
            }
        }
        Ok(credential)
    }
}

fn tell(text: &str) {
    errln!("dxpu: {text}");
}

/// Where credentials are looked for.
struct Places {
    configs: Vec<PathBuf>,
    credentials: Vec<PathBuf>,
}

fn places() -> anyhow::Result<Places> {
    let own = files::config_directory()?;
    Ok(Places {
        configs: vec![own.join("config.toml"), PathBuf::from("/etc/dxpu/config.toml")],
        credentials: vec![
            own.join("credential.json"),
            places::admin_file(&places::up_manager_directory(&places::up_directory()?)),
            places::admin_file(&places::manager_directory()?),
        ],
    })
}

/// The file, and managers that a configuration names.
fn find_kept(places: &Places) -> anyhow::Result<Option<(PathBuf, Vec<String>)>> {
    for path in &places.configs {
        let Some(config) = read_config(path)? else { continue };
        if let Some(credential) = config.credential {
            let beside = path.parent().unwrap_or(Path::new("/"));
            return Ok(Some((beside.join(credential), config.managers)));
        }
    }
    Ok(places.credentials.iter().find(|path| path.exists()).map(|path| (path.clone(), Vec::new())))
}

fn read_config(path: &Path) -> anyhow::Result<Option<Config>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    toml::from_str(&text).map(Some).map_err(|error| {
        let what = format!("{} is not a configuration of dxpu", path.display());
        let hint =
            "it may hold `credential = \"FILE\"` and `managers = [\"https://HOST:PORT\"]`, nothing else";
        Failure::new(Exit::Usage, what, hint).because(error).into()
    })
}

/// Reads a credential that its owner alone can read.
pub(crate) fn read(path: &Path) -> anyhow::Result<Credential> {
    let text = files::read_secret(path)?;
    let wrong = |what: String| {
        Failure::new(
            Exit::Usage,
            what,
            "make another with `dxpu token create`, or ask the pool's admin for one",
        )
    };
    // What the parser says may quote the secret, so it is not told.
    let credential: Credential =
        serde_json::from_str(&text).map_err(|_| wrong(format!("{} is not a credential", path.display())))?;
    credential.check().map_err(|error| wrong(format!("{}: {error}", path.display())))?;
    Ok(credential)
}

fn nowhere() -> Failure {
    Failure::new(
        Exit::Usage,
        "no pool is configured: there is no credential",
        "start a pool on this machine with `dxpu up`, or set DXPU_CREDENTIAL to the file that the pool's admin gave you",
    )
}

/// What went wrong, as a person is told it.
pub(crate) fn failure(error: ClientError) -> Failure {
    let exit = Exit::of_client(&error);
    let (what, hint) = (error.to_string(), error.hint().to_owned());
    let failure = Failure::new(exit, what, hint);
    match error {
        ClientError::Unreachable { source, .. }
        | ClientError::Certificate { source, .. }
        | ClientError::Answer(source) => Failure { cause: Some(source), ..failure },
        ClientError::Refused(_) | ClientError::Settings(_) => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIAL: &str = r#"{"managers":["https://127.0.0.1:1"],"authority":"","identity":"spiffe://dxpu/admin/a","token":"t"}"#;

    #[test]
    fn the_first_place_that_is_there_counts() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let places = Places {
            configs: vec![at("config.toml"), at("etc.toml")],
            credentials: vec![at("credential.json"), at("admin.json")],
        };
        assert_eq!(find_kept(&places).unwrap(), None);
        std::fs::write(at("admin.json"), CREDENTIAL).unwrap();
        assert_eq!(find_kept(&places).unwrap(), Some((at("admin.json"), vec![])));
        std::fs::write(at("etc.toml"), "credential = '/elsewhere/c.json'").unwrap();
        assert_eq!(find_kept(&places).unwrap(), Some(("/elsewhere/c.json".into(), vec![])));
        std::fs::write(at("config.toml"), "credential = 'ada.json'\nmanagers = ['https://m:1']").unwrap();
        assert_eq!(find_kept(&places).unwrap(), Some((at("ada.json"), vec!["https://m:1".into()])));
        std::fs::write(at("config.toml"), "credentials = 'ada.json'").unwrap();
        assert!(find_kept(&places).is_err(), "a misspelt word is told, not ignored");
    }

    #[test]
    fn a_secret_that_cannot_be_read_is_not_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.json");
        files::write_new(&path, 0o600, b"{\"token\": \"dxpu-user-hidden\", \"what\": 1}").unwrap();
        let told = format!("{:?}", read(&path).unwrap_err());
        assert!(told.contains("is not a credential") && !told.contains("hidden"), "{told}");
    }
}
