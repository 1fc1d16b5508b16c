//! How commands find the pool and prove who runs them: a credential file.

use crate::exit::{Exit, Failure};
use crate::{files, manager};
use anyhow::Context;
use pool_auth::Credential;
use pool_client::{Client, ClientError, Patience};
use std::path::PathBuf;

/// Which pool, and who asks.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct PoolAccess {
    /// The file that names the pool's managers and proves who you are [default: credential.json in the configuration
    /// directory, or the admin's of a manager on this machine]
    #[arg(long, env = "DXPU_CREDENTIAL", value_name = "FILE")]
    credential: Option<PathBuf>,
}

impl PoolAccess {
    /// A client that waits out a change of leader.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let credential = self.find()?;
        Client::new(credential, Patience::default()).map_err(|error| failure(error).into())
    }

    fn find(&self) -> anyhow::Result<Credential> {
        let mut places = Vec::new();
        match &self.credential {
            Some(path) => places.push(path.clone()),
            None => {
                places.push(files::config_directory()?.join("credential.json"));
                places.push(manager::default_directory()?.join(manager::ADMIN_FILE));
            }
        }
        for path in &places {
            if path.exists() || places.len() == 1 {
                let text = files::read_secret(path)?;
                let credential: Credential = serde_json::from_str(&text)
                    .with_context(|| format!("{} is not a credential", path.display()))?;
                credential.check().with_context(|| format!("{} cannot be used", path.display()))?;
                return Ok(credential);
            }
        }
        let hint = "give --credential FILE or set DXPU_CREDENTIAL; an admin makes one for you";
        Err(Failure::new(Exit::Failure, "there is no credential for a pool", hint).into())
    }
}

/// A refusal of the manager, with what to do about it.
pub(crate) fn failure(error: ClientError) -> Failure {
    let exit = match &error {
        ClientError::Refused(_) => Exit::Refused,
        ClientError::Unreachable { .. } => Exit::Unreachable,
        ClientError::Answer(_) | ClientError::Settings(_) => Exit::Failure,
    };
    let hint = error.hint().to_owned();
    match error {
        ClientError::Refused(detail) => Failure::new(exit, detail.message, hint),
        other => Failure::new(exit, "the pool's manager cannot be asked", hint).because(other),
    }
}
