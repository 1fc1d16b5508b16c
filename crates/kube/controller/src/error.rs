//! What can go wrong.

use pool_client::ClientError;

/// Why the controller cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The process cannot have what it needs.
    #[error("cannot start the controller's threads: {0}")]
    Runtime(#[source] std::io::Error),
    /// The API server's address or certificate cannot be used.
    #[error("cannot use {what}: {source}")]
    Config {
        /// What describes the cluster.
        what: String,
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The API server does not serve what the driver needs.
    #[error("the API server does not serve resource.k8s.io/v1, which Kubernetes has since 1.34: {0}")]
    NotServed(#[source] Box<kube::Error>),
}

impl ControllerError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Runtime(_) => "check the limits of processes and open files",
            Self::Config { .. } => {
                "name a file with --kubeconfig, or run this in a pod with a service account"
            }
            Self::NotServed(_) => {
                "use Kubernetes 1.34 or newer, with --runtime-config=resource.k8s.io/v1=true where it is off"
            }
        }
    }
}

/// Why one step failed. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// The API server says no, or nothing.
    #[error("the API server: {0}")]
    Kube(#[from] kube::Error),
    /// The manager says no, or nothing.
    #[error("the pool's manager: {0}")]
    Pool(#[from] ClientError),
    /// The thread that asked the manager is gone.
    #[error("a request to the pool's manager was abandoned")]
    Abandoned,
    /// Nothing settled within as many rounds as a claim gets at once.
    #[error("the claim changes faster than it can be written")]
    Restless,
}

/// Whether the API server refused a write because the object has changed, or is there already.
pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Whether there is no such object.
pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
