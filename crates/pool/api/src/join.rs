//! How a box or a host becomes part of the pool.

use crate::Name;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A box or a host asks for its certificate; the token says which of them it is.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Its name, as the token has it.
    pub name: Name,
    /// The one-time token an operator made.
    pub token: String,
    /// A certificate request, PEM. The key stays there.
    pub certificate_request: String,
}

/// A token must not appear in a log.
impl std::fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

/// It is let in.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JoinAnswer {
    /// The certificate, PEM, naming `spiffe://dxpu/box/NAME` or `spiffe://dxpu/host/NAME`.
    pub certificate: String,
    /// The certificate by which the manager is known, PEM.
    pub ca_certificate: String,
    /// When the certificate must be renewed at the latest, by the manager's clock.
    pub expires_ms: u64,
    /// The manager's clock.
    pub now_ms: u64,
}
