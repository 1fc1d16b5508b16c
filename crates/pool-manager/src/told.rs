//! What each box was last told, so that a report that brings nothing new may wait for something new.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use pool_api::{BoxOrders, Name};

/// The last orders of each box, as a hash.
#[derive(Debug, Default)]
pub(crate) struct Told {
    last: HashMap<Name, u64>,
}

impl Told {
    /// Whether these orders are what this run of the agent was told last. They count as told from now on.
    pub(crate) fn is_known(&mut self, box_name: &Name, agent: &str, orders: &BoxOrders) -> bool {
        let mut hasher = DefaultHasher::new();
        agent.hash(&mut hasher);
        orders.lease_keys.hash(&mut hasher);
        for slot in &orders.slots {
            slot.slot.hash(&mut hasher);
            // The moment a lease ends moves with every renewal; that alone is no news.
            match &slot.want {
                pool_api::Want::Serve { lease, epoch, .. } => (0u8, lease, epoch).hash(&mut hasher),
                pool_api::Want::Idle => 1u8.hash(&mut hasher),
                pool_api::Want::Clean { epoch } => (2u8, epoch).hash(&mut hasher),
                pool_api::Want::BurnIn { epoch } => (3u8, epoch).hash(&mut hasher),
                pool_api::Want::Off => 4u8.hash(&mut hasher),
            }
        }
        let hash = hasher.finish();
        self.last.insert(box_name.clone(), hash) == Some(hash)
    }
}
