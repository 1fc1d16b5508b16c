//! How long leases may have their GPUs, and how long they may leave them unused.

use crate::lease::check_limit;
use crate::{Invalid, LeaseId, Name};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// A program that reads a file, compiles or waits for another one is not idle yet.
pub const IDLE_LIMIT_MIN_MS: u64 = 60_000;

/// What a tenant's settings say about the time of its leases. What is left out has no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantTimes {
    /// The time limit of a lease that asks for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000, maximum = 31_622_400_000_u64)]
    pub limit_default_ms: Option<u64>,
    /// The longest time limit a lease may ask for; a request above it is refused, and one without a limit gets this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000, maximum = 31_622_400_000_u64)]
    pub limit_max_ms: Option<u64>,
    /// A lease whose GPUs have computed nothing for so long is ended, or suspended if its program outlives that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 60_000, maximum = 31_622_400_000_u64)]
    pub idle_limit_ms: Option<u64>,
}

/// Reads an object, and no list: the fields of a list would be taken by their order.
pub(crate) fn from_object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TenantTimes, D::Error> {
    struct Object;

    impl<'de> Visitor<'de> for Object {
        type Value = TenantTimes;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TenantTimes, A::Error> {
            TenantTimes::deserialize(MapAccessDeserializer::new(map))
        }
    }
    deserializer.deserialize_map(Object)
}

impl TenantTimes {
    /// Whether nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        check_limit("times.limit_default_ms", self.limit_default_ms)?;
        check_limit("times.limit_max_ms", self.limit_max_ms)?;
        check_limit("times.idle_limit_ms", self.idle_limit_ms)?;
        if self.idle_limit_ms.is_some_and(|limit_ms| limit_ms < IDLE_LIMIT_MIN_MS) {
            return Err(Invalid::new("times.idle_limit_ms", format!("must be at least {IDLE_LIMIT_MIN_MS}")));
        }
        if self.limit_max_ms.is_some_and(|max_ms| self.limit_default_ms.is_some_and(|ms| ms > max_ms)) {
            return Err(Invalid::new("times.limit_default_ms", "must not be above times.limit_max_ms"));
        }
        Ok(())
    }

    /// The time limit of a lease that asks for this one.
    pub fn limit_of(&self, asked_ms: Option<u64>) -> Option<u64> {
        asked_ms.or(self.limit_default_ms).or(self.limit_max_ms)
    }
}

/// A granted lease whose GPUs compute nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IdleLease {
    /// The lease.
    pub lease: LeaseId,
    /// Its tenant.
    pub tenant: Name,
    /// For how long the reports of its boxes have shown no work.
    pub idle_ms: u64,
}

/// A span of time as people write it: `2h`, `90m`, `45s`.
pub fn time_in_words(ms: u64) -> String {
    match ms {
        _ if ms >= 86_400_000 && ms.is_multiple_of(86_400_000) => format!("{}d", ms / 86_400_000),
        _ if ms >= 3_600_000 && ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        _ if ms >= 60_000 && ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        _ if ms >= 1_000 && ms.is_multiple_of(1_000) => format!("{}s", ms / 1_000),
        _ => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_gets_its_own_limit_the_default_or_the_longest() {
        let none = TenantTimes::default();
        assert_eq!((none.limit_of(None), none.limit_of(Some(5_000))), (None, Some(5_000)));
        let longest = TenantTimes { limit_max_ms: Some(9_000), ..none };
        assert_eq!(longest.limit_of(None), Some(9_000));
        let both = TenantTimes { limit_default_ms: Some(2_000), ..longest };
        assert_eq!((both.limit_of(None), both.limit_of(Some(5_000))), (Some(2_000), Some(5_000)));
        assert_eq!(both.check(), Ok(()));
        let upside_down = TenantTimes { limit_default_ms: Some(10_000), ..longest };
        assert_eq!(upside_down.check().unwrap_err().field, "times.limit_default_ms");
        let hasty = TenantTimes { idle_limit_ms: Some(59_999), ..none };
        assert_eq!(hasty.check().unwrap_err().field, "times.idle_limit_ms");
    }

    #[test]
    fn times_read_as_people_write_them() {
        let words = [7_200_000, 5_400_000, 45_000, 172_800_000, 1_500].map(time_in_words);
        assert_eq!(words, ["2h", "90m", "45s", "2d", "1500ms"]);
    }
}
