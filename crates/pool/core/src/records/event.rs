//! Events. All events of one outcome are one record, so each event carries the version.

use super::convert::{stored_enum, stored_struct};
use super::{Kind, first_version};
use pool_api::{GpuId, LeaseId, Name};

/// Events.
///
/// Version 2 has more kinds.
pub(crate) const EVENT: Kind<Event> = Kind::new("event", &[first_version, first_version]);

stored_struct! {
    /// Something happened; below `event/FIRST NUMBER`, in an array.
    Event of Event {
        seq: u64,
        at_ms: u64,
        kind: EventKind,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gpu: Option<GpuId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        box_name: Option<Name>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<Name>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<LeaseId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenant: Option<Name>,
        message: String,
    }
}

stored_enum! {
    /// What happened.
    EventKind of EventKind {
        BoxJoined, BoxReturned, BoxDead, BoxDrained, BoxUndrained, BoxRevoked,
        HostJoined, HostReturned, HostDead, HostRevoked, HostMonitorSilent, HostMonitorBack, HostChanged,
        GpuAdded, GpuAbsent, GpuBad, GpuTainted, GpuUntainted, GpuRepaired, GpuBurnInPassed, GpuBurnInFailed,
        GpuPlugged, GpuUnplugged,
        LeasePending, LeaseGranted, LeaseMoved, LeaseRequeued, LeaseReleased, LeaseReclaimed, LeaseExpired,
        TenantChanged, SparesChanged, LeaderChanged, AccessRevoked, IdentityCopied,
        LeaseMoving, LeaseStayed, LeaseParked, LeaseUnparked, LeaseDrill,
    }
}
