//! Claims, as the API server has them.
//!
//! The plugin asks one question: what is in this claim? So it sends one kind of HTTP request, and blocks as everything here
//! does. In a pod, the cluster's own files say where the server is, who signs its certificate, and who we are.

use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use ureq::config::Config;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider};

/// How long the API server may take: the kubelet waits 45 s for all of a request.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// More than etcd keeps of one object.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// Where a pod finds its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Reads claims. Blocks.
pub trait Claims: Send + Sync {
    /// A claim, if there is one of this name.
    fn read(&self, namespace: &str, name: &str) -> Result<Option<FoundClaim>, ClaimsError>;
}

/// A claim of `resource.k8s.io/v1`: what the plugin needs of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct FoundClaim {
    /// Its name and who it is.
    pub metadata: Metadata,
    /// What it got.
    #[serde(default)]
    pub status: Status,
}

/// Who an object is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Metadata {
    /// No other object has the same.
    #[serde(default)]
    pub uid: String,
}

/// What a claim got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Status {
    /// Nothing until the scheduler has chosen.
    #[serde(default)]
    pub allocation: Option<Allocation>,
}

/// What the scheduler chose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Allocation {
    /// The devices.
    #[serde(default)]
    pub devices: AllocatedDevices,
}

/// Devices of all drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct AllocatedDevices {
    /// One for each.
    #[serde(default)]
    pub results: Vec<AllocatedResult>,
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedResult {
    /// The request that it is for; `REQUEST/ALTERNATIVE` where the claim has alternatives.
    pub request: String,
    /// Whose device it is.
    pub driver: String,
    /// The resource pool.
    pub pool: String,
    /// Its name there.
    pub device: String,
    /// Of a device that several claims share.
    #[serde(default, rename = "shareID")]
    pub share_id: Option<String>,
}

/// The API server did not say whether there is a claim.
#[derive(Debug, thiserror::Error)]
pub enum ClaimsError {
    /// It cannot be reached.
    #[error("the API server does not answer: {0}")]
    Unreachable(#[source] Box<ureq::Error>),
    /// It refused.
    #[error("the API server does not show claim {namespace}/{name}: status {status}: {told}")]
    Refused {
        /// Where the claim is.
        namespace: String,
        /// What it is called.
        name: String,
        /// HTTP's word for it.
        status: u16,
        /// What it said.
        told: String,
    },
    /// It said something else.
    #[error("the API server's answer cannot be read: {0}")]
    Answer(#[source] serde_json::Error),
    /// The way to it is not known.
    #[error(
        "no cluster is configured: {0}; in a pod Kubernetes sets it, elsewhere give --api-server, --api-authority and --api-token-file"
    )]
    Config(String),
}

/// The cluster's API server.
pub struct ApiServer {
    url: String,
    /// Read again for each question: Kubernetes replaces it within hours.
    token_file: Option<PathBuf>,
    agent: ureq::Agent,
}

impl ApiServer {
    /// The one of the cluster that this process is a pod of.
    pub fn of_pod() -> Result<Self, ClaimsError> {
        let variable =
            |name: &str| std::env::var(name).map_err(|_| ClaimsError::Config(format!("{name} is not set")));
        let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let account = PathBuf::from(ACCOUNT);
        Self::at(&format!("https://{host}:{port}"), Some(account.join("ca.crt")), Some(account.join("token")))
    }

    /// The one at this address, whose certificate is signed by `authority` (PEM).
    pub fn at(
        url: &str,
        authority: Option<PathBuf>,
        token_file: Option<PathBuf>,
    ) -> Result<Self, ClaimsError> {
        let mut tls = TlsConfig::builder().provider(TlsProvider::Rustls);
        if let Some(file) = authority {
            let odd = |why: String| ClaimsError::Config(format!("{}: {why}", file.display()));
            let pem = std::fs::read(&file).map_err(|error| odd(error.to_string()))?;
            let roots: Result<Vec<Certificate<'static>>, ureq::Error> = ureq::tls::parse_pem(&pem)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
                    Ok(_) => None,
                    Err(error) => Some(Err(error)),
                })
                .collect();
            let roots = roots.map_err(|error| odd(error.to_string()))?;
            if roots.is_empty() {
                return Err(odd("there is no certificate in it".to_owned()));
            }
            tls = tls.root_certs(RootCerts::Specific(Arc::new(roots)));
        }
        let config = Config::builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .timeout_global(Some(ANSWER_WITHIN))
            .user_agent(concat!("dxpu-kube-node/", env!("CARGO_PKG_VERSION")))
            .build();
        let url = url.trim_end_matches('/').to_owned();
        Ok(Self { url, token_file, agent: ureq::Agent::new_with_config(config) })
    }
}

impl Claims for ApiServer {
    fn read(&self, namespace: &str, name: &str) -> Result<Option<FoundClaim>, ClaimsError> {
        let refused = |status: u16, told: &[u8]| ClaimsError::Refused {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            status,
            told: String::from_utf8_lossy(told).chars().take(300).collect(),
        };
        // Names of objects are DNS names: nothing in them changes the path.
        let is_dns = |text: &str| {
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
        };
        if !is_dns(namespace) || !is_dns(name) {
            return Err(refused(400, b"that is no name of a claim"));
        }
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(file) = &self.token_file {
            let token = std::fs::read_to_string(file)
                .map_err(|error| ClaimsError::Config(format!("{}: {error}", file.display())))?;
            request = request.header("authorization", format!("Bearer {}", token.trim()));
        }
        let unreachable = |error: ureq::Error| ClaimsError::Unreachable(Box::new(error));
        let mut response = request.call().map_err(unreachable)?;
        let status = response.status().as_u16();
        let body =
            response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec().map_err(unreachable)?;
        match status {
            200 => serde_json::from_slice(&body).map(Some).map_err(ClaimsError::Answer),
            404 => Ok(None),
            _ => Err(refused(status, &body)),
        }
    }
}
