//! The way to the API server.

use std::path::PathBuf;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::error::ControllerError;

/// Where the API server is, and how the controller proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// As a file of kubectl says.
    Kubeconfig(PathBuf),
    /// As a pod is told: its service account.
    InCluster,
    /// At this address, in plain text and without a name; for tests.
    Plain(String),
}

fn unusable(
    what: impl Into<String>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> ControllerError {
    ControllerError::Config { what: what.into(), source: source.into() }
}

impl Cluster {
    pub(crate) async fn connect(&self) -> Result<Client, ControllerError> {
        let config = match self {
            Self::Kubeconfig(path) => {
                let what = || format!("the kubeconfig {}", path.display());
                let file = Kubeconfig::read_from(path).map_err(|error| unusable(what(), error))?;
                let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
                config.map_err(|error| unusable(what(), error))?
            }
            Self::InCluster => {
                Config::incluster().map_err(|error| unusable("the pod's service account", error))?
            }
            Self::Plain(address) => {
                let address =
                    address.parse().map_err(|error: http::uri::InvalidUri| unusable(address, error))?;
                Config::new(address)
            }
        };
        Client::try_from(config).map_err(|error| unusable("the cluster's address and certificates", error))
    }
}
