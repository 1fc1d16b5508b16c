//! A host of the PCIe plane: a machine whose proxy shows GPUs of the pool to its guests, each in a slot.
//!
//! ```text
//!            lease granted          box bound             host plugged
//!   free ---------------> binding -----------> plugging ---------------> plugged
//!    ^                       |                     |                        |
//!    |   it was never told   |                     |   released, expired, moved
//!    +<----------------------+                     +-----------+------------+
//!    |                                                         v
//!    +<----------------- host cleared -------------------- unplugging
//! ```
//!
//! What a host is told to plug has the epoch of the grant. It is higher than every epoch its slot, or the GPU, has seen
//! before, so one number says on both sides what is old.

use crate::{GpuId, Invalid, LeaseId, LinkSecret, Name, SlotPass};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Slots a host may have: as many as one virtual switch has ports that a guest can use.
pub const SLOTS_PER_HOST_MAX: u8 = 64;
/// Epochs of the PCIe plane travel in packets, where they have 32 bits.
pub const PCIE_EPOCH_MAX: u64 = u32::MAX as u64;
/// Tenants that one host may serve.
pub const TENANTS_PER_HOST_MAX: usize = 256;
/// How an address of the PCIe plane begins: `udp:IP:PORT`.
pub const PCIE_PATH_PREFIX: &str = "udp:";

/// A machine whose proxy shows GPUs to its guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostRecord {
    /// Its name, which its certificate proves.
    pub name: Name,
    /// Its number on the network, from 1; boxes and hosts are numbered together.
    pub node: u16,
    /// How many slots it has.
    pub slots: u8,
    /// Addresses by which boxes reach it. The place in the list is the path ID, from 1.
    #[serde(default)]
    pub paths: Vec<String>,
    /// The run of its proxy that reported last.
    #[serde(default)]
    pub agent: String,
    /// Whether it is there.
    pub state: HostState,
    /// When it last reported to the manager that leads now; the stored value may be older.
    pub last_seen_ms: u64,
    /// Whose leases may be plugged there. Nobody's, while it is empty.
    #[serde(default)]
    pub tenants: Vec<Name>,
    /// No member of the pool any more; it is one again when it has joined with a new token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<crate::Taint>,
    /// Slots whose virtual machine's monitor does not answer.
    #[serde(default, skip_serializing_if = "is_none_silent")]
    pub monitors_silent: u8,
}

/// Whether a host is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// It reports.
    Ready,
    /// Silent for a moment: nothing new is plugged there.
    Suspect,
    /// Silent for long: boxes no longer wait for it to unplug. Its leases stay until they expire.
    Dead,
}

/// A host with its slots. This is also what is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostDetail {
    /// The host.
    #[serde(rename = "host")]
    pub record: HostRecord,
    /// Its slots, in order.
    pub slots: Vec<HostSlot>,
}

/// One slot of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostSlot {
    /// Which.
    pub slot: u8,
    /// The lease it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
    /// The GPU that is, or shall be, plugged there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuId>,
    /// The highest epoch it was ever given; that of the GPU, while it has one.
    pub epoch: u64,
    /// The highest epoch the host has said to have plugged there.
    #[serde(default)]
    pub bound_epoch: u64,
    /// Everything of this epoch and older is unplugged and cleared. It is given away again only when this has caught
    /// up with what was plugged.
    pub cleared_epoch: u64,
    /// How far it is; nothing while the slot is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// What has to be unplugged first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Leaving>,
    /// The host no longer reports it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
    /// Whether the host last said that a device is plugged there.
    #[serde(default)]
    pub plugged: bool,
    /// The monitor of the virtual machine that the slot is in does not answer, as the host last said: nothing can be plugged
    /// there or unplugged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub monitor_silent: bool,
    /// What the host last said of it, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// A GPU that a host still has to unplug.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Leaving {
    /// The lease it was for.
    pub lease: LeaseId,
    /// The GPU.
    pub gpu: GpuId,
    /// The epoch of its grant.
    pub epoch: u64,
    /// When the host was told.
    pub since_ms: u64,
    /// Whether the box waits for it before it cleans.
    pub box_waits: bool,
}

/// How far a GPU is on its way into a host's slot, or out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its box has not yet said that it lets this host in, or the slot still has something else.
    Binding,
    /// The host is told to plug it.
    Plugging,
    /// The guest has it.
    Plugged,
    /// The host is told to unplug it.
    Unplugging,
}

/// Where a GPU of a lease is plugged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attachment {
    /// The host.
    pub host: Name,
    /// Its slot.
    pub slot: u8,
    /// How far it is.
    pub phase: Phase,
}

/// Says whose leases may be plugged into a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostRequest {
    /// All of them; who is not here may not.
    #[schema(max_items = 256)]
    pub tenants: Vec<Name>,
}

impl HostRequest {
    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.tenants.len() > TENANTS_PER_HOST_MAX {
            return Err(Invalid::new("tenants", format!("must be at most {TENANTS_PER_HOST_MAX}")));
        }
        Ok(())
    }
}

/// Everything a host has to say, all of it every time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostReport {
    /// A random name of this run of the agent.
    #[schema(min_length = 1, max_length = 64, pattern = "^[!-~]+$")]
    pub agent: String,
    /// Grows with each report of this run; what is not newer is ignored.
    pub sequence: u64,
    /// Addresses by which boxes reach it, `udp:IP:PORT`. The place in the list is the path ID, from 1.
    #[serde(default)]
    #[schema(max_items = 64)]
    pub paths: Vec<String>,
    /// Its slots. One that is missing is taken to be gone, with what was plugged there.
    #[schema(max_items = 64)]
    pub slots: Vec<HostSlotReport>,
}

/// What a host says of one slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostSlotReport {
    /// The slot.
    #[schema(maximum = 63)]
    pub slot: u8,
    /// The highest epoch it was ever plugged with; 0 for none.
    #[schema(maximum = 4_294_967_295_u64)]
    pub bound_epoch: u64,
    /// Everything of this epoch and older is unplugged and cleared, and can never come back.
    #[schema(maximum = 4_294_967_295_u64)]
    pub cleared_epoch: u64,
    /// Whether a device is plugged there now.
    pub plugged: bool,
    /// The monitor of the virtual machine that the slot is in does not answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub monitor_silent: bool,
    /// What there is to say, in words. At most 256 characters.
    #[serde(default)]
    #[schema(
        max_length = 256,
        pattern = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
    )]
    pub detail: String,
}

impl HostReport {
    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        crate::report::check_agent(&self.agent)?;
        crate::report::check_addresses("paths", &self.paths)?;
        if let Some(path) = self.paths.iter().find(|path| !is_pcie_path(path)) {
            return Err(Invalid::new("paths", format!("must each be udp:IP:PORT, and {path:?} is not")));
        }
        let mut seen = 0u64;
        for slot in &self.slots {
            if slot.slot >= SLOTS_PER_HOST_MAX {
                return Err(Invalid::new("slots.slot", format!("must be below {SLOTS_PER_HOST_MAX}")));
            }
            if seen >> slot.slot & 1 == 1 {
                return Err(Invalid::new("slots.slot", format!("{} is there twice", slot.slot)));
            }
            seen |= 1 << slot.slot;
            if slot.bound_epoch.max(slot.cleared_epoch) > PCIE_EPOCH_MAX {
                return Err(Invalid::new("slots.bound_epoch", format!("must be at most {PCIE_EPOCH_MAX}")));
            }
            crate::lease::check_note("slots.detail", &slot.detail)?;
        }
        Ok(())
    }
}

fn is_none_silent(count: &u8) -> bool {
    *count == 0
}

/// Whether this is an address of the PCIe plane.
pub fn is_pcie_path(path: &str) -> bool {
    path.strip_prefix(PCIE_PATH_PREFIX).is_some_and(|rest| rest.parse::<std::net::SocketAddr>().is_ok())
}

/// What should be so in a host. The agent compares it with what is, and acts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostOrders {
    /// Whose orders these are: it grows from one leader to the next, whose clocks may differ. The manager fills it in.
    #[serde(default)]
    pub tenure: u64,
    /// The manager's clock.
    pub now_ms: u64,
    /// The host's number on the network.
    pub node: u16,
    /// One for each slot of the report.
    pub slots: Vec<HostSlotOrder>,
    /// When to report again, at the latest.
    pub report_after_ms: u64,
}

/// What should be so in one slot of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostSlotOrder {
    /// The slot.
    pub slot: u8,
    /// What should be so.
    #[serde(flatten)]
    pub want: HostWant,
}

/// What should be so in one slot of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "want", rename_all = "snake_case")]
pub enum HostWant {
    /// Nothing there.
    Empty,
    /// This GPU there.
    Plug {
        /// The lease.
        lease: LeaseId,
        /// The GPU.
        gpu: GpuId,
        /// The epoch of its grant; at most [`PCIE_EPOCH_MAX`].
        epoch: u64,
        /// The box's number on the network.
        box_node: u16,
        /// The slot in the box.
        box_slot: u8,
        /// Addresses by which the box is reached, `udp:IP:PORT`. The place in the list is the path ID, from 1.
        box_paths: Vec<String>,
        /// What the two proxies' keys are made of. The manager fills it in.
        secret: LinkSecret,
        /// How long the box may be silent before its device is given up: as long as the pool waits for a box.
        #[serde(default = "patience_ms")]
        patience_ms: u64,
    },
    /// Nothing of this epoch or older there: unplug it, clear it, then report it.
    Unplug {
        /// The epoch.
        epoch: u64,
    },
}

/// With whom a box shares a slot on the PCIe plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PciePairing {
    /// The host.
    pub host: Name,
    /// The host's number on the network.
    pub host_node: u16,
    /// The host's slot.
    pub host_slot: u8,
    /// Addresses by which the host is reached, `udp:IP:PORT`. The place in the list is the path ID, from 1.
    pub host_paths: Vec<String>,
    /// What the two proxies' keys are made of. The manager fills it in.
    pub secret: LinkSecret,
    /// What programs of the guest show the GPU's worker. The manager fills it in.
    #[serde(default)]
    pub pass: SlotPass,
    /// How long the host may be silent before the box says so: as long as the pool waits for a box.
    #[serde(default = "patience_ms")]
    pub patience_ms: u64,
}

/// What managers say that do not say it: how long they wait for a box unless they are told otherwise.
fn patience_ms() -> u64 {
    15_000
}

/// The name of a link on the network: the same on both sides, and no other link has it.
pub fn link_name(box_node: u16, box_slot: u8) -> u32 {
    u32::from(box_node) << 16 | u32::from(box_slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> HostReport {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_report_is_bounded() {
        let good = report(
            r#"{"agent":"a","sequence":1,"paths":["udp:127.0.0.1:7000","udp:[::1]:7000"],
                "slots":[{"slot":0,"bound_epoch":0,"cleared_epoch":0,"plugged":false}]}"#,
        );
        assert_eq!(good.check(), Ok(()));
        let refused = |change: &dyn Fn(&mut HostReport)| {
            let mut bad = good.clone();
            change(&mut bad);
            bad.check().unwrap_err().field
        };
        assert_eq!(refused(&|bad| bad.agent.clear()), "agent");
        assert_eq!(refused(&|bad| bad.paths.push("tcp:127.0.0.1:1".into())), "paths");
        assert_eq!(refused(&|bad| bad.paths.push("udp:somewhere:1".into())), "paths");
        assert_eq!(refused(&|bad| bad.slots.push(bad.slots[0].clone())), "slots.slot");
        assert_eq!(refused(&|bad| bad.slots[0].slot = 64), "slots.slot");
        assert_eq!(refused(&|bad| bad.slots[0].cleared_epoch = 1 << 32), "slots.bound_epoch");
        assert_eq!(refused(&|bad| bad.slots[0].detail = "\u{7}".into()), "slots.detail");
    }

    #[test]
    fn orders_read_as_the_contract_says_and_never_show_the_secret() {
        let secret = LinkSecret::from_bytes(&[7; 32]);
        let plug = HostSlotOrder {
            slot: 2,
            want: HostWant::Plug {
                lease: LeaseId(1),
                gpu: "a/3".parse().unwrap(),
                epoch: 9,
                box_node: 1,
                box_slot: 3,
                box_paths: vec!["udp:10.0.0.1:7000".into()],
                secret: secret.clone(),
                patience_ms: 15_000,
            },
        };
        let text = serde_json::to_string(&plug).unwrap();
        assert!(
            text.starts_with(r#"{"slot":2,"want":"plug","lease":"l-0000000000000001","gpu":"a/3""#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<HostSlotOrder>(&text).unwrap(), plug);
        assert!(text.contains(secret.reveal()));
        assert!(!format!("{plug:?}").contains(secret.reveal()));
        let unplug = HostSlotOrder { slot: 0, want: HostWant::Unplug { epoch: 4 } };
        assert_eq!(serde_json::to_string(&unplug).unwrap(), r#"{"slot":0,"want":"unplug","epoch":4}"#);
        assert_eq!(link_name(2, 5), 0x2_0005);
    }
}
