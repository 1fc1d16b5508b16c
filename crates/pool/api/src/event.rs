//! What happened in the pool.

use crate::{GpuId, LeaseId, Name};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Counts all events from 1.
    pub seq: u64,
    /// When.
    pub at_ms: u64,
    /// What.
    pub kind: EventKind,
    /// The GPU it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuId>,
    /// The box it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub box_name: Option<Name>,
    /// The host it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Name>,
    /// The lease it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
    /// The tenant it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
    /// In words.
    pub message: String,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A box reported for the first time.
    BoxJoined,
    /// A box that was dead reported again.
    BoxReturned,
    /// A box was silent for too long.
    BoxDead,
    /// A box is being emptied by hand.
    BoxDrained,
    /// A box takes leases again.
    BoxUndrained,
    /// A box was revoked: it is no member any more, and its leases move.
    BoxRevoked,
    /// A host reported for the first time.
    HostJoined,
    /// A host that was dead reported again.
    HostReturned,
    /// A host was silent for too long.
    HostDead,
    /// A host was revoked: it is no member any more, and its leases end.
    HostRevoked,
    /// The monitor of a virtual machine does not answer its host: nothing can be plugged there or unplugged.
    HostMonitorSilent,
    /// The monitor of a virtual machine answers again.
    HostMonitorBack,
    /// Whom a host serves was set.
    HostChanged,
    /// A box has a GPU more, or another one in a slot.
    GpuAdded,
    /// A box no longer reports a GPU.
    GpuAbsent,
    /// A GPU went bad.
    GpuBad,
    /// A GPU was tainted or drained by hand.
    GpuTainted,
    /// A GPU takes leases again.
    GpuUntainted,
    /// Somebody says a GPU is repaired.
    GpuRepaired,
    /// A repaired GPU passed its test.
    GpuBurnInPassed,
    /// A repaired GPU failed its test.
    GpuBurnInFailed,
    /// A GPU was plugged into a host.
    GpuPlugged,
    /// A GPU was unplugged from a host.
    GpuUnplugged,
    /// A lease waits.
    LeasePending,
    /// A lease got its GPUs.
    LeaseGranted,
    /// A GPU of a lease was replaced by another.
    LeaseMoved,
    /// A lease lost a GPU and waits for another.
    LeaseRequeued,
    /// A lease was given back.
    LeaseReleased,
    /// A lease was ended, because its tenant had more than its guarantee and another had less than its own.
    LeaseReclaimed,
    /// A lease was not renewed.
    LeaseExpired,
    /// The quota or weight of a tenant was set.
    TenantChanged,
    /// The number of spares was set.
    SparesChanged,
    /// Another manager leads now, or the first one does.
    LeaderChanged,
    /// A token, an identity, a certificate or a lease was revoked.
    AccessRevoked,
    /// Two agents report in turns as one box or one host: its identity was copied.
    IdentityCopied,
    /// A lease has a second place, which its program is to go on at.
    LeaseMoving,
    /// A lease has given its second place back: its program stays where it is.
    LeaseStayed,
    /// A lease has given its GPUs back for a while.
    LeaseParked,
    /// A lease that was parked asks for GPUs again.
    LeaseUnparked,
    /// A lease has a second place for a moment, to try a recovery.
    LeaseDrill,
}
