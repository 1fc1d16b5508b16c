//! What each box and host was last told, so that a report that brings nothing new may wait for something new.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use pool_api::{BoxOrders, HostOrders, HostWant, Name, Want};

/// The last orders of each box and each host, as a hash.
#[derive(Debug, Default)]
pub(crate) struct Told {
    last: HashMap<(Machine, Name), u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Machine {
    Box,
    Host,
}

impl Told {
    /// Whether these orders are what this run of the agent was told last. They count as told from now on.
    pub(crate) fn is_known(&mut self, box_name: &Name, agent: &str, orders: &BoxOrders) -> bool {
        let mut hasher = DefaultHasher::new();
        (agent, &orders.lease_keys, &orders.denied_leases, &orders.ended_leases, orders.node)
            .hash(&mut hasher);
        for slot in &orders.slots {
            slot.slot.hash(&mut hasher);
            // Without the time at which a lease ends: it moves with every renewal, which is no news for a box.
            match &slot.want {
                Want::Serve { lease, epoch, pcie, .. } => {
                    let pairing =
                        pcie.as_ref().map(|pcie| (pcie.host_node, pcie.host_slot, &pcie.host_paths));
                    (0u8, lease, epoch, pairing).hash(&mut hasher);
                }
                Want::Idle => 1u8.hash(&mut hasher),
                Want::Clean { epoch } => (2u8, epoch).hash(&mut hasher),
                Want::BurnIn { epoch } => (3u8, epoch).hash(&mut hasher),
                Want::Off => 4u8.hash(&mut hasher),
            }
        }
        self.remember(Machine::Box, box_name, hasher.finish())
    }

    /// The same for a host.
    pub(crate) fn is_known_to_host(&mut self, host: &Name, agent: &str, orders: &HostOrders) -> bool {
        let mut hasher = DefaultHasher::new();
        (agent, orders.node).hash(&mut hasher);
        for slot in &orders.slots {
            slot.slot.hash(&mut hasher);
            match &slot.want {
                HostWant::Empty => 0u8.hash(&mut hasher),
                HostWant::Plug { lease, gpu, epoch, box_node, box_paths, .. } => {
                    (1u8, lease, gpu, epoch, box_node, box_paths).hash(&mut hasher);
                }
                HostWant::Unplug { epoch } => (2u8, epoch).hash(&mut hasher),
            }
        }
        self.remember(Machine::Host, host, hasher.finish())
    }

    fn remember(&mut self, machine: Machine, name: &Name, hash: u64) -> bool {
        self.last.insert((machine, name.clone()), hash) == Some(hash)
    }
}
