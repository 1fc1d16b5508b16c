//! The GPU time of tenants.

use super::convert::stored_struct;
use super::{Kind, first_version};
use pool_api::{Model, Name};
use std::collections::BTreeMap;

/// GPU time of tenants.
pub(crate) const USAGE: Kind<UsageRecord> = Kind::new("usage", &[first_version]);

stored_struct! {
    /// The GPU time of a tenant, below `usage/NAME`.
    UsageRecord of TenantUsage {
        tenant: Name,
        since_ms: u64,
        leases_ended: u64,
        #[serde(default)]
        ended_gpu_ms: BTreeMap<Model, u64>,
        // Computed from the leases that have GPUs; always empty in the ledger.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        running_gpu_ms: BTreeMap<Model, u64>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool_api::TenantUsage;

    /// As the first version has written it. A later version must still read it.
    const FIRST: &str =
        r#"{"v":1,"tenant":"vision","since_ms":41,"leases_ended":2,"ended_gpu_ms":{"H200":7200000}}"#;

    #[test]
    fn the_first_version_is_read_as_what_it_was() {
        let usage: TenantUsage = USAGE.decode(FIRST.as_bytes()).unwrap();
        assert_eq!((usage.tenant.as_str(), usage.leases_ended), ("vision", 2));
        assert_eq!(usage.ended_gpu_ms, [(Model::new("H200").unwrap(), 7_200_000)].into());
        assert_eq!(String::from_utf8(USAGE.encode(&usage)).unwrap(), FIRST);
    }
}
