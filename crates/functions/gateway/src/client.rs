//! A client of the service, for `dxpu function`: signs as any client of Lambda does.

use std::sync::Arc;
use std::time::Duration;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider};

/// Where the service is, and who asks.
#[derive(Clone)]
pub struct Access {
    /// Such as `http://127.0.0.1:9700`.
    pub endpoint: String,
    /// The access key's name.
    pub key_id: String,
    /// Its secret.
    pub secret: String,
    /// Any word: it is part of the signature.
    pub region: String,
    /// The authorities of the service's certificate, PEM; those that this program was built with, if left out.
    pub authorities: Option<Vec<u8>>,
}

/// What the service answered.
#[derive(Debug)]
pub struct Answered {
    /// The status.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// All of it.
    pub body: Vec<u8>,
}

impl Answered {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The endpoint is no address.
    #[error("{0:?} is no address of a service: write http://HOST:PORT")]
    Endpoint(String),
    /// The authorities are none.
    #[error("there is no certificate in the file of authorities")]
    Authorities,
    /// No service answers there.
    #[error("the service at {endpoint} does not answer")]
    Unreachable {
        /// Where.
        endpoint: String,
        /// Why.
        #[source]
        source: Box<ureq::Error>,
    },
}

/// Longer than the longest invocation.
const PATIENCE: Duration = Duration::from_secs(960);

impl Access {
    /// Asks.
    pub fn ask(
        &self,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answered, AskError> {
        let wrong = || AskError::Endpoint(self.endpoint.clone());
        let endpoint = self.endpoint.trim_end_matches('/');
        let host = endpoint.split_once("://").ok_or_else(wrong)?.1;
        let mut headers: Vec<(String, String)> = vec![
            ("host".to_owned(), host.to_owned()),
            ("x-amz-date".to_owned(), date(crate::clock::wall_ms())),
        ];
        headers.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let (plain, query) = path.split_once('?').unwrap_or((path, ""));
        let request = functions::Request { method, path: plain, query, headers: &headers, body };
        let signature =
            functions::sign(&request, &self.key_id, &self.secret, &self.region).ok_or_else(wrong)?;
        headers.push(("authorization".to_owned(), signature));
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .tls_config(self.tls()?)
            .build();
        let agent = ureq::Agent::new_with_config(config);
        let mut builder = ureq::http::Request::builder().method(method).uri(format!("{endpoint}{path}"));
        for (name, value) in headers.iter().filter(|(name, _)| name != "host") {
            builder = builder.header(name, value);
        }
        let request = builder.body(body).map_err(|_| wrong())?;
        let unreachable =
            |source| AskError::Unreachable { endpoint: self.endpoint.clone(), source: Box::new(source) };
        let mut response = agent.run(request).map_err(unreachable)?;
        let headers = response
            .headers()
            .iter()
            .map(|(name, value)| {
                (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
            })
            .collect();
        let status = response.status().as_u16();
        let limit = functions::CODE_BYTES_MAX as u64;
        let body = response.body_mut().with_config().limit(limit).read_to_vec().map_err(unreachable)?;
        Ok(Answered { status, headers, body })
    }
}

impl Access {
    fn tls(&self) -> Result<TlsConfig, AskError> {
        let tls = TlsConfig::builder().provider(TlsProvider::Rustls);
        let Some(pem) = &self.authorities else { return Ok(tls.build()) };
        let is_certificate = |item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        };
        let roots: Vec<Certificate<'static>> = ureq::tls::parse_pem(pem).filter_map(is_certificate).collect();
        if roots.is_empty() {
            return Err(AskError::Authorities);
        }
        Ok(tls.root_certs(RootCerts::Specific(Arc::new(roots))).build())
    }
}

/// `20150830T123600Z`.
fn date(ms: u64) -> String {
    let text = crate::lambda::time_text(ms);
    let digits: String = text.chars().take(19).filter(|c| *c != '-' && *c != ':').collect();
    format!("{digits}Z")
}

/// Base64, as zip files travel.
pub fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
