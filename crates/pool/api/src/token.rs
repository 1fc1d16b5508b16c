//! What a borrower shows to a box.

use crate::{GpuId, LeaseId, Name};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a lease token says, under the manager's signature. A box believes it without asking.
///
/// There is no time in it: the epoch alone decides, so that clocks need not agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseClaims {
    /// The lease.
    pub lease: LeaseId,
    /// For whom.
    pub tenant: Name,
    /// The GPU: box and slot.
    pub gpu: GpuId,
    /// The epoch of the grant.
    pub epoch: u64,
    /// Memory the borrower may allocate.
    pub memory_bytes: u64,
    /// Thousandths of the GPU the borrower may use.
    pub share_milli: u32,
}

/// One token for each GPU of a lease.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct LeaseTokens {
    /// The lease.
    pub lease: LeaseId,
    /// The version of the lease these belong to.
    pub version: u64,
    /// In the order of the lease's grants.
    pub grants: Vec<SignedGrant>,
    /// For the second place of a lease that is to move or to drill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<SignedGrant>,
    /// The certificate by which boxes are known, PEM.
    pub ca_certificate: String,
}

/// A GPU and the token that opens it.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct SignedGrant {
    /// The GPU.
    pub gpu: GpuId,
    /// The epoch of the grant.
    pub epoch: u64,
    /// Where its worker is reached.
    pub endpoints: Vec<String>,
    /// How much of the GPU's memory the token opens; 0 from a manager that does not say.
    #[serde(default)]
    pub memory_bytes: u64,
    /// To be shown to the box. Whoever has it has the GPU.
    pub token: String,
}

/// Tokens must not appear in a log.
impl std::fmt::Debug for SignedGrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignedGrant")
            .field("gpu", &self.gpu)
            .field("epoch", &self.epoch)
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

/// See [`SignedGrant`].
impl std::fmt::Debug for LeaseTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseTokens")
            .field("lease", &self.lease)
            .field("grants", &self.grants)
            .finish_non_exhaustive()
    }
}
