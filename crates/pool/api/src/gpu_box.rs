//! A box of GPUs, as the manager knows it.

use crate::{Gpu, GuardReport, Name, Taint};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A machine that holds GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BoxRecord {
    /// Its name, which its certificate proves.
    pub name: Name,
    /// Its number on the network, from 1; boxes and hosts are numbered together. 0 while it has none.
    #[serde(default)]
    pub node: u16,
    /// How its GPUs are joined.
    pub kind: BoxKind,
    /// Where it stands.
    #[serde(default)]
    pub rack: String,
    /// Addresses by which hosts reach it, one for each network path.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Whether it is there.
    pub state: BoxState,
    /// When it last reported to the manager that leads now; the stored value may be older.
    pub last_seen_ms: u64,
    /// The slots that have ever had a GPU, in order.
    pub gpus: Vec<u8>,
    /// Being emptied by hand; stays while the box is silent, whatever `state` says then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Taint>,
    /// No member of the pool any more; it is one again when it has joined with a new token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Taint>,
}

/// A box with its GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BoxDetail {
    /// The box.
    #[serde(rename = "box")]
    pub record: BoxRecord,
    /// Its GPUs, by slot.
    pub gpus: Vec<Gpu>,
    /// What its guardian keeps; nothing without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<GuardReport>,
}

/// How the GPUs of a box are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BoxKind {
    /// By NVLink or NVSwitch.
    Nvlink,
    /// By PCIe alone.
    Pcie,
}

/// Whether a box is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BoxState {
    /// It reports.
    Ready,
    /// Silent for a moment: nothing new is placed there.
    Suspect,
    /// Silent for long: its leases have moved, and its GPUs stay out until it has reported that they are clean.
    Dead,
    /// Being emptied by hand.
    Draining,
}
