//! Users and groups of instances: each instance has a user of its own, each tenant a group.
//!
//! They have no names and no entry anywhere. Files of one instance are its user's; a tenant's code and tokens are readable by
//! its group.

use functions::InstanceId;
use std::collections::HashMap;
use std::sync::Mutex;

/// The first of a range that distributions leave to administrators.
const FIRST: u32 = 2_000_000;
/// How many users follow each other before the first is used again.
const COUNT: u32 = 60_000;

/// Who instances run as.
#[derive(Debug, Default)]
pub(crate) struct Users {
    is_private: bool,
    groups: Mutex<HashMap<String, u32>>,
}

impl Users {
    /// With users of their own, which needs root; otherwise all run as the service does.
    pub(crate) fn new(is_private: bool) -> Self {
        Self { is_private: is_private && rustix::process::geteuid().is_root(), ..Self::default() }
    }

    pub(crate) fn is_private(&self) -> bool {
        self.is_private
    }

    pub(crate) fn user(&self, instance: InstanceId) -> Option<u32> {
        let number = u32::try_from(instance.0 % u64::from(COUNT)).unwrap_or(0);
        self.is_private.then_some(FIRST + number)
    }

    pub(crate) fn group(&self, tenant: &str) -> Option<u32> {
        if !self.is_private {
            return None;
        }
        let mut groups = locks::lock(&self.groups);
        let next = FIRST + u32::try_from(groups.len()).unwrap_or(0);
        Some(*groups.entry(tenant.to_owned()).or_insert(next))
    }
}
