//! What can go wrong.

use pool_api::{ErrorCode, ErrorDetail};

/// Why there is no answer, or not the one that was hoped for.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The manager refuses.
    #[error("{}", .0.message)]
    Refused(ErrorDetail),
    /// No manager could be reached, or none leads.
    #[error("{why} ({tried})")]
    Unreachable {
        /// Which were tried.
        tried: String,
        /// How the last one was silent.
        why: Silence,
        /// What the last one did.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// One side does not accept the certificate of the other.
    #[error("{what}")]
    Certificate {
        /// Which end refuses the certificate, and why.
        what: String,
        /// It is ours, and its time is over.
        is_over: bool,
        /// As TLS says it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What was answered is not what this version knows.
    #[error("a manager gave an answer that cannot be read")]
    Answer(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The addresses or certificates cannot be used.
    #[error("{0}")]
    Settings(String),
}

/// How a manager was silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Silence {
    /// Nothing listens there.
    #[error("no manager of the pool runs there: the connection is refused")]
    Refused,
    /// The name is of no machine.
    #[error("the manager's name is not known to this machine")]
    NoSuchHost,
    /// Anything else.
    #[error("no manager of the pool answers")]
    NoAnswer,
}

impl ClientError {
    /// What the manager says, if it said anything.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(detail) => Some(detail.code),
            Self::Unreachable { .. } | Self::Certificate { .. } | Self::Answer(_) | Self::Settings(_) => None,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &str {
        match self {
            Self::Refused(detail) => &detail.hint,
            Self::Unreachable { why: Silence::Refused, .. } => {
                "start it there (`dxpu manager`, or `dxpu up` for a pool on this machine), or check its address and port"
            }
            Self::Unreachable { why: Silence::NoSuchHost, .. } => {
                "check the name, or use the manager's IP address (--manager https://HOST:PORT)"
            }
            Self::Unreachable { .. } => "check that a manager runs there, and that its addresses are right",
            Self::Certificate { .. } => {
                "have an admin make a new credential with `dxpu token create`; a box or host that was off for long joins again with a new token"
            }
            Self::Answer(_) => "use the same version of dxpu on both sides",
            Self::Settings(_) => "check the credential file",
        }
    }
}

/// What TLS says of a certificate, if that is why there was no answer; and whether it is that ours is over.
pub(crate) fn certificate_problem(error: &ureq::Error) -> Option<(&'static str, bool)> {
    use rustls::AlertDescription as Alert;
    let tls = match error {
        ureq::Error::Rustls(tls) => tls,
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref()?,
        _ => return None,
    };
    match tls {
        rustls::Error::AlertReceived(Alert::CertificateExpired) => {
            Some(("the manager does not accept this certificate: its time is over, or has not come", true))
        }
        rustls::Error::AlertReceived(
            Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateUnknown
            | Alert::CertificateRevoked
            | Alert::UnsupportedCertificate
            | Alert::DecryptError
            | Alert::AccessDenied,
        ) => Some(("the manager does not accept this certificate: it is not of this pool", false)),
        rustls::Error::InvalidCertificate(_) => {
            Some(("whoever answers there is no manager of this pool", false))
        }
        _ => None,
    }
}
