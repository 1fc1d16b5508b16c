//! Where the cluster is and how to talk to it.

use std::fmt;
use std::time::Duration;

use crate::error::OpenError;

/// How to reach a cluster.
#[derive(Clone, Debug)]
pub struct EtcdSettings {
    /// The members' client addresses, such as `http://10.0.0.1:2379`. One that answers is enough.
    pub endpoints: Vec<String>,
    /// Goes before every key, so that a cluster can serve others too. Ends with a slash.
    pub namespace: String,
    /// For `https` endpoints, which need it.
    pub tls: Option<EtcdTls>,
    /// How long one member may take to answer. A little longer than electing a leader among the members takes.
    pub request_timeout: Duration,
    /// How long a request that may be repeated is tried, on one member after the other.
    pub patience: Duration,
    /// The members' `--max-txn-ops`, which they do not tell.
    pub max_txn_ops: usize,
}

/// Certificates as PEM text.
#[derive(Clone)]
pub struct EtcdTls {
    /// The authority that signed the members' certificates.
    pub ca: Vec<u8>,
    /// Our certificate and key, if the members ask for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for EtcdTls {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdTls").field("has_identity", &self.identity.is_some()).finish_non_exhaustive()
    }
}

impl EtcdSettings {
    /// The usual settings.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            namespace: "dxpu/".into(),
            tls: None,
            request_timeout: Duration::from_secs(2),
            patience: Duration::from_secs(6),
            max_txn_ops: 128,
        }
    }

    pub(super) fn check(&self) -> Result<(), OpenError> {
        let wrong = |what: &str| Err(OpenError::Setting { what: what.into(), source: None });
        if self.endpoints.is_empty() {
            return wrong("an etcd store needs at least one endpoint");
        }
        if !self.namespace.ends_with('/') {
            return wrong("the namespace of an etcd store must end with a slash");
        }
        if self.max_txn_ops == 0 {
            return wrong("an etcd store needs transactions of at least one operation");
        }
        Ok(())
    }
}
