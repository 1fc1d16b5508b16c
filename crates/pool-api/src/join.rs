//! How a box becomes part of the pool.

use crate::Name;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A box asks for its certificate.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The name the box wants; the token may prescribe it.
    pub name: Name,
    /// The one-time token an operator made.
    pub token: String,
    /// A certificate request, PEM. The key stays on the box.
    pub certificate_request: String,
}

/// A token must not appear in a log.
impl std::fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A box is let in.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JoinAnswer {
    /// The box's certificate, PEM, naming `spiffe://dxpu/box/NAME`.
    pub certificate: String,
    /// The certificate by which the box knows the manager, PEM.
    pub ca_certificate: String,
    /// When the certificate must be renewed at the latest, by the manager's clock.
    pub expires_ms: u64,
    /// The manager's clock.
    pub now_ms: u64,
}
