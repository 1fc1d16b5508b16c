//! What can go wrong.

use pool_api::{ErrorCode, ErrorDetail};

/// Why there is no answer, or not the one that was hoped for.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The manager refuses.
    #[error("{}", .0.message)]
    Refused(ErrorDetail),
    /// No manager could be reached, or none leads.
    #[error("no manager of the pool answers ({tried})")]
    Unreachable {
        /// Which were tried.
        tried: String,
        /// What the last one did.
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

impl ClientError {
    /// What the manager says, if it said anything.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(detail) => Some(detail.code),
            Self::Unreachable { .. } | Self::Answer(_) | Self::Settings(_) => None,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &str {
        match self {
            Self::Refused(detail) => &detail.hint,
            Self::Unreachable { .. } => "check that a manager runs there, and that its addresses are right",
            Self::Answer(_) => "use the same version of dxpu on both sides",
            Self::Settings(_) => "check the credential file",
        }
    }
}
