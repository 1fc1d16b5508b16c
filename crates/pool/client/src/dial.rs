//! One manager's address: names are looked up here, and checked against the name every manager has.

use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::Duration;

use pool_auth::{Credential, Identity};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig, TlsProvider};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use crate::error::ClientError;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Where a manager is, as `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) String);

impl Place {
    /// Reads `https://host:port`, with or without what is in front and behind.
    pub(crate) fn parse(address: &str) -> Result<Self, ClientError> {
        let bare = address.strip_prefix("https://").unwrap_or(address).trim_end_matches('/');
        let has_port =
            bare.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if address.starts_with("http://") || bare.contains('/') || !has_port {
            let problem = format!("{address} is no address of a manager; write https://HOST:PORT");
            return Err(ClientError::Settings(problem));
        }
        Ok(Self(bare.to_owned()))
    }

    fn port(&self) -> &str {
        self.0.rsplit_once(':').map_or("443", |(_, port)| port)
    }

    /// Where a request goes: under the name that the manager's certificate must have.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{}:{}{path}", Identity::ANY_MANAGER, self.port())
    }
}

/// Looks up the real host of the one manager it is for.
#[derive(Debug)]
struct Pinned(Place);

impl Resolver for Pinned {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut found = self.empty();
        for address in self.0.0.to_socket_addrs().map_err(|_| ureq::Error::HostNotFound)?.take(16) {
            found.push(address);
        }
        if found.is_empty() { Err(ureq::Error::HostNotFound) } else { Ok(found) }
    }
}

/// Connections to one manager.
pub(crate) fn agent(place: &Place, credential: &Credential) -> Result<ureq::Agent, ClientError> {
    let unusable =
        |what: &str, error: ureq::Error| ClientError::Settings(format!("the {what} cannot be used: {error}"));
    let authority = Certificate::from_pem(credential.authority.as_bytes())
        .map_err(|error| unusable("authority's certificate", error))?;
    let mut tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::Specific(Arc::new(vec![authority])));
    if let (Some(certificate), Some(key)) = (&credential.certificate, &credential.key) {
        let certificate =
            Certificate::from_pem(certificate.as_bytes()).map_err(|error| unusable("certificate", error))?;
        let key = PrivateKey::from_pem(key.reveal().as_bytes()).map_err(|error| unusable("key", error))?;
        tls = tls.client_cert(Some(ClientCert::new_with_certs(&[certificate], key)));
    }
    let config = Config::builder()
        .tls_config(tls.build())
        .https_only(true)
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .user_agent(concat!("dxpu/", env!("CARGO_PKG_VERSION")))
        .build();
    Ok(ureq::Agent::with_parts(config, DefaultConnector::new(), Pinned(place.clone())))
}
