//! What a box and the manager say to each other. Any of it may be lost, repeated or come late.

use crate::{
    BoxKind, Counters, DeniedLease, FIRST_GUEST_SLOT, Guest, Health, Invalid, LeaseId, Model, Name, Part,
    PciePairing, SLOTS_PER_BOX_MAX,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A pebibyte, thousands of times what the largest GPU has. Sums over all GPUs of a pool stay far from where they
/// would overflow.
pub const GPU_MEMORY_BYTES_MAX: u64 = 1 << 50;

/// Everything a box has to say, all of it every time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BoxReport {
    /// A random name of this run of the agent.
    #[schema(min_length = 1, max_length = 64, pattern = "^[!-~]+$")]
    pub agent: String,
    /// Grows with each report of this run; what is not newer is ignored.
    pub sequence: u64,
    /// How its GPUs are joined.
    pub kind: BoxKind,
    /// Where it stands.
    #[serde(default)]
    #[schema(
        max_length = 256,
        pattern = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
    )]
    pub rack: String,
    /// Addresses by which hosts reach it. Those of the PCIe plane are `udp:IP:PORT`; the place among these is the path
    /// ID, from 1.
    #[serde(default)]
    #[schema(max_items = 64)]
    pub paths: Vec<String>,
    /// Its GPUs. One that is missing is taken to be gone.
    #[schema(max_items = 64)]
    pub gpus: Vec<GpuReport>,
    /// What its guardian keeps; nothing without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<GuardReport>,
}

/// What the guardian of a box keeps: images of programs, in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardReport {
    /// Memory for all images together.
    pub bytes: u64,
    /// What of it is taken.
    pub used_bytes: u64,
    /// The leases that have images there.
    #[serde(default)]
    #[schema(max_items = 4096)]
    pub leases: Vec<GuardedLease>,
}

impl GuardReport {
    /// More leases than one box serves in a day. Those beyond are reported when these have ended.
    pub const LEASES_MAX: usize = 4096;
}

/// A lease whose images a guardian keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardedLease {
    /// The lease.
    pub lease: LeaseId,
    /// Memory that its images take.
    pub bytes: u64,
}

/// What a box says of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuReport {
    /// Its slot.
    #[schema(maximum = 63)]
    pub slot: u8,
    /// What it is.
    pub model: Model,
    /// Memory that borrowers can use.
    pub memory_bytes: u64,
    /// The driver's name of this very GPU.
    #[schema(
        max_length = 256,
        pattern = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
    )]
    pub uuid: String,
    /// GPUs with the same group are joined by NVLink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_group: Option<u32>,
    /// No GPU, but another device, which only the PCIe plane reaches.
    #[serde(default)]
    pub only_pcie: bool,
    /// It is a seat for guests on another slot's GPU, and `memory_bytes` is what a guest may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<Guest>,
    /// It is a part of a GPU, and `memory_bytes` is what a lease may use of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// Whether it works.
    pub health: Health,
    /// The highest epoch a borrower was admitted with; 0 for none.
    pub bound_epoch: u64,
    /// Everything of this epoch and older is killed, unmapped and scrubbed, and can never come back.
    pub cleaned_epoch: u64,
    /// A worker waits, its context made, and borrowers can find it. No lease gets a GPU that is not.
    #[serde(default)]
    pub ready: bool,
    /// Why it is not ready, for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    pub unready: Option<String>,
    /// Where its worker is reached.
    #[serde(default)]
    #[schema(max_items = 64)]
    pub endpoints: Vec<String>,
    /// What it measures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<Counters>,
    /// How the burn-in that was ordered went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burn_in: Option<BurnIn>,
    /// It is a seat, and the guest of `bound_epoch` must leave it, for the reason that `unready` says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub must_leave: bool,
    /// It is a seat: what the online programs of its GPU leave to a guest. Absent until its box has watched them for long enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SeatLoad>,
}

/// What the online programs of a GPU with a seat do, as a mean over the last minute. The pool predicts from it how fast a guest would
/// run there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SeatLoad {
    /// Thousandths of the time in which the busiest of them had work.
    #[schema(maximum = 1000)]
    pub online_busy_milli: u32,
    /// How often they began to have work, in thousandths of a time per second.
    #[schema(maximum = 1_000_000_000)]
    pub online_periods_milli: u32,
}

impl SeatLoad {
    /// A million times per second: no program begins to have work more often.
    pub const PERIODS_MILLI_MAX: u32 = 1_000_000_000;

    fn check(self) -> Result<(), Invalid> {
        if self.online_busy_milli > 1000 {
            return Err(Invalid::new("gpus.sharing.online_busy_milli", "must be at most 1000"));
        }
        if self.online_periods_milli > Self::PERIODS_MILLI_MAX {
            return Err(Invalid::new(
                "gpus.sharing.online_periods_milli",
                format!("must be at most {}", Self::PERIODS_MILLI_MAX),
            ));
        }
        Ok(())
    }
}

/// How a burn-in went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BurnIn {
    /// The epoch of the order.
    pub epoch: u64,
    /// Whether the GPU works.
    pub passed: bool,
    /// What was found.
    #[serde(default)]
    #[schema(
        max_length = 256,
        pattern = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
    )]
    pub detail: String,
}

impl BoxReport {
    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        check_agent(&self.agent)?;
        crate::lease::check_note("rack", &self.rack)?;
        check_addresses("paths", &self.paths)?;
        let mut seen = 0u64;
        for gpu in &self.gpus {
            if gpu.slot >= SLOTS_PER_BOX_MAX {
                return Err(Invalid::new("gpus.slot", "must be below 64"));
            }
            if seen >> gpu.slot & 1 == 1 {
                return Err(Invalid::new("gpus.slot", format!("{} is there twice", gpu.slot)));
            }
            seen |= 1 << gpu.slot;
            if gpu.memory_bytes > GPU_MEMORY_BYTES_MAX {
                return Err(Invalid::new(
                    "gpus.memory_bytes",
                    format!("must be at most {GPU_MEMORY_BYTES_MAX}"),
                ));
            }
            crate::lease::check_note("gpus.uuid", &gpu.uuid)?;
            crate::lease::check_note("gpus.health.reason", gpu.health.reason.as_deref().unwrap_or_default())?;
            crate::lease::check_note("gpus.unready", gpu.unready.as_deref().unwrap_or_default())?;
            crate::lease::check_note("gpus.burn_in.detail", gpu.burn_in.as_ref().map_or("", |b| &b.detail))?;
            check_addresses("gpus.endpoints", &gpu.endpoints)?;
            if let Some(load) = gpu.sharing {
                load.check()?;
                if gpu.guest.is_none() {
                    return Err(Invalid::new("gpus.sharing", "must be of a seat for guests"));
                }
            }
        }
        self.check_guests()?;
        self.check_parts()?;
        if self.guard.as_ref().is_some_and(|guard| guard.leases.len() > GuardReport::LEASES_MAX) {
            return Err(Invalid::new("guard.leases", format!("must be at most {}", GuardReport::LEASES_MAX)));
        }
        Ok(())
    }
}

impl BoxReport {
    /// Each seat for guests is on a GPU of the same box, in the slot that goes with it, and leaves its host some memory.
    fn check_guests(&self) -> Result<(), Invalid> {
        for (gpu, guest) in self.gpus.iter().filter_map(|gpu| Some((gpu, gpu.guest?))) {
            if guest.of >= FIRST_GUEST_SLOT || gpu.slot != FIRST_GUEST_SLOT + guest.of {
                let rule =
                    format!("must be below {FIRST_GUEST_SLOT}, in the slot {FIRST_GUEST_SLOT} after it");
                return Err(Invalid::new("gpus.guest.of", rule));
            }
            let host = self.gpus.iter().find(|host| host.slot == guest.of);
            let Some(host) = host.filter(|host| !host.only_pcie && host.guest.is_none()) else {
                return Err(Invalid::new("gpus.guest.of", "must be a GPU of this report"));
            };
            if gpu.memory_bytes >= host.memory_bytes || gpu.only_pcie {
                return Err(Invalid::new("gpus.memory_bytes", "must be less for a guest than the GPU has"));
            }
        }
        Ok(())
    }
}

impl BoxReport {
    /// Each part is in a slot of its GPU, all in these slots are its parts, and no other slot has this GPU, as a whole or in parts:
    /// it would be lent twice.
    fn check_parts(&self) -> Result<(), Invalid> {
        for (gpu, part) in self.gpus.iter().filter_map(|gpu| Some((gpu, gpu.part?))) {
            part.check(gpu.slot)?;
            if gpu.guest.is_some() || gpu.only_pcie {
                return Err(Invalid::new("gpus.part", "must not go with guest or only_pcie"));
            }
            let is_other = |other: &&GpuReport| {
                part.slots().contains(&other.slot)
                    && (other.part != gpu.part
                        || other.uuid != gpu.uuid
                        || other.memory_bytes != gpu.memory_bytes)
            };
            if self.gpus.iter().any(|other| is_other(&other)) {
                return Err(Invalid::new("gpus.part", "must be alike for all parts of a GPU"));
            }
            if self.gpus.iter().any(|other| other.uuid == gpu.uuid && other.part != gpu.part) {
                return Err(Invalid::new("gpus.uuid", "must not be that of a GPU in parts in another slot"));
            }
        }
        Ok(())
    }
}

pub(crate) fn check_agent(agent: &str) -> Result<(), Invalid> {
    if agent.is_empty() || agent.len() > 64 || !agent.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Invalid::new("agent", "must be 1 to 64 printable characters"));
    }
    Ok(())
}

pub(crate) fn check_addresses(field: &'static str, addresses: &[String]) -> Result<(), Invalid> {
    if addresses.len() > 64 {
        return Err(Invalid::new(field, "must be at most 64"));
    }
    addresses.iter().try_for_each(|address| crate::lease::check_note(field, address))
}

/// What should be so in a box. The agent compares it with what is, and acts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BoxOrders {
    /// Whose orders these are: it grows from one leader to the next, whose clocks may differ. The manager fills it in.
    #[serde(default)]
    pub tenure: u64,
    /// The manager's clock.
    pub now_ms: u64,
    /// The box's number on the network; 0 while it has none.
    #[serde(default)]
    pub node: u16,
    /// The public keys by which lease tokens may be signed, in hexadecimal. The manager fills them in.
    pub lease_keys: Vec<String>,
    /// Leases that were revoked: their tokens open nothing here. The manager fills them in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied_leases: Vec<DeniedLease>,
    /// Leases of the report whose images the guardian keeps for nothing: they have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended_leases: Vec<LeaseId>,
    /// One for each GPU of the report.
    pub slots: Vec<SlotOrder>,
    /// When to report again, at the latest.
    pub report_after_ms: u64,
}

/// What should be so in one slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlotOrder {
    /// The slot.
    pub slot: u8,
    /// What should be so.
    #[serde(flatten)]
    pub want: Want,
}

/// What should be so in one slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "want", rename_all = "snake_case")]
pub enum Want {
    /// Nobody there; a warm worker may wait.
    Idle,
    /// This lease may use it.
    Serve {
        /// The lease.
        lease: LeaseId,
        /// The epoch of its grant.
        epoch: u64,
        /// Whatever was let in with this epoch or a later one was this lease too: what it left there is its own, and is not
        /// scrubbed. 0 means the same as `epoch`.
        #[serde(default, skip_serializing_if = "is_zero")]
        since_epoch: u64,
        /// When the lease ends, unless it is renewed; by the manager's clock.
        expires_ms: u64,
        /// Memory the borrower may allocate.
        memory_bytes: u64,
        /// Thousandths of the GPU the borrower may use; 1000 for all of it.
        share_milli: u32,
        /// For whom.
        tenant: Name,
        /// The host that the GPU is plugged into; nothing on the api plane.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pcie: Option<PciePairing>,
    },
    /// Kill, unmap and scrub everything of this epoch and older, then report it.
    Clean {
        /// The epoch.
        epoch: u64,
    },
    /// Test it, then report with this epoch.
    BurnIn {
        /// The epoch.
        epoch: u64,
    },
    /// Nobody there, no worker: it is bad.
    Off,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_read_as_the_contract_says() {
        let serve = SlotOrder {
            slot: 3,
            want: Want::Serve {
                lease: LeaseId(1),
                epoch: 7,
                since_epoch: 0,
                expires_ms: 9,
                memory_bytes: 5,
                share_milli: 1000,
                tenant: Name::new("a").unwrap(),
                pcie: None,
            },
        };
        let text = serde_json::to_string(&serve).unwrap();
        assert!(
            text.starts_with(r#"{"slot":3,"want":"serve","lease":"l-0000000000000001","epoch":7"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<SlotOrder>(&text).unwrap(), serve);
        let idle = SlotOrder { slot: 0, want: Want::Idle };
        assert_eq!(serde_json::to_string(&idle).unwrap(), r#"{"slot":0,"want":"idle"}"#);
    }

    #[test]
    fn a_seat_is_on_a_gpu_of_its_box() {
        let gpu = |slot: u8, memory_bytes: u64| -> GpuReport {
            serde_json::from_value(serde_json::json!({
                "slot": slot, "model": "H200", "memory_bytes": memory_bytes, "uuid": "u", "health": {"ok": true},
                "bound_epoch": 0, "cleaned_epoch": 0
            }))
            .unwrap()
        };
        let seat = |slot: u8, of: u8, memory_bytes: u64| {
            let guest = Some(Guest { of, any_tenant: false, overcommit: false });
            GpuReport { guest, ..gpu(slot, memory_bytes) }
        };
        let checked = |gpus: Vec<GpuReport>| {
            let (agent, rack, paths) = ("a".into(), String::new(), vec![]);
            let report =
                BoxReport { agent, sequence: 1, kind: BoxKind::Pcie, rack, paths, gpus, guard: None };
            report.check().map_err(|error| error.field)
        };
        assert_eq!(checked(vec![gpu(0, 10), gpu(1, 10), seat(33, 1, 4)]), Ok(()));
        assert_eq!(checked(vec![gpu(0, 10), seat(33, 0, 4)]), Err("gpus.guest.of"));
        assert_eq!(checked(vec![gpu(0, 10), seat(33, 1, 4)]), Err("gpus.guest.of"));
        assert_eq!(checked(vec![gpu(0, 10), seat(32, 0, 10)]), Err("gpus.memory_bytes"));
        assert_eq!(checked(vec![gpu(32, 10), seat(64, 32, 4)]), Err("gpus.slot"));
        let loaded = |one: GpuReport, online_busy_milli, online_periods_milli| {
            let sharing = Some(SeatLoad { online_busy_milli, online_periods_milli });
            vec![gpu(1, 10), GpuReport { sharing, ..one }]
        };
        assert_eq!(checked(loaded(seat(33, 1, 4), 1000, 1_000_000_000)), Ok(()));
        assert_eq!(checked(loaded(seat(33, 1, 4), 1001, 0)), Err("gpus.sharing.online_busy_milli"));
        assert_eq!(
            checked(loaded(seat(33, 1, 4), 0, 1_000_000_001)),
            Err("gpus.sharing.online_periods_milli")
        );
        assert_eq!(checked(loaded(gpu(0, 10), 0, 0)), Err("gpus.sharing"));
    }

    #[test]
    fn all_parts_of_a_gpu_are_alike() {
        let part = |slot: u8, of: u8, memory_bytes: u64| -> GpuReport {
            serde_json::from_value(serde_json::json!({
                "slot": slot, "model": "H200", "memory_bytes": memory_bytes, "uuid": format!("u{of}"), "health": {"ok": true},
                "part": {"of": of, "milli": 500}, "bound_epoch": 0, "cleaned_epoch": 0
            }))
            .unwrap()
        };
        let checked = |gpus: Vec<GpuReport>| {
            let (agent, rack, paths) = ("a".into(), String::new(), vec![]);
            let report =
                BoxReport { agent, sequence: 1, kind: BoxKind::Pcie, rack, paths, gpus, guard: None };
            report.check().map_err(|error| error.field)
        };
        let whole = |slot: u8| GpuReport { part: None, ..part(slot, 0, 5) };
        let another = GpuReport { uuid: "u2".to_owned(), ..whole(4) };
        let plugged = |gpu: GpuReport| GpuReport { only_pcie: true, ..gpu };
        assert_eq!(
            checked(vec![part(0, 0, 5), part(1, 0, 5), part(2, 1, 7), part(3, 1, 7), another]),
            Ok(())
        );
        assert_eq!(checked(vec![part(1, 0, 5)]), Ok(()), "one may be missing");
        assert_eq!(checked(vec![part(2, 0, 5)]), Err("gpus.part.of"));
        assert_eq!(checked(vec![part(0, 0, 5), part(1, 0, 6)]), Err("gpus.part"));
        assert_eq!(checked(vec![part(0, 0, 5), whole(1)]), Err("gpus.part"), "no slot is the GPU as a whole");
        assert_eq!(checked(vec![part(0, 0, 5), whole(4)]), Err("gpus.uuid"), "nor is one further on");
        let twice = GpuReport { uuid: "u0".to_owned(), ..part(2, 1, 5) };
        assert_eq!(checked(vec![part(0, 0, 5), twice]), Err("gpus.uuid"), "its parts are in one place");
        assert_eq!(checked(vec![plugged(part(0, 0, 5))]), Err("gpus.part"));
        let large = GpuReport { part: Some(Part { of: 0, milli: 700 }), ..part(0, 0, 5) };
        assert_eq!(checked(vec![large]), Err("gpus.part.milli"));
    }

    #[test]
    fn a_slot_cannot_be_there_twice() {
        let text = r#"{"slot":1,"model":"H200","memory_bytes":1,"uuid":"u","health":{"ok":true},"bound_epoch":0,"cleaned_epoch":0}"#;
        let gpu: GpuReport = serde_json::from_str(text).unwrap();
        let mut report = BoxReport {
            agent: "a".into(),
            sequence: 1,
            kind: BoxKind::Pcie,
            rack: String::new(),
            paths: vec![],
            gpus: vec![gpu.clone(), gpu],
            guard: None,
        };
        assert_eq!(report.check().unwrap_err().field, "gpus.slot");
        report.gpus[1].slot = 64;
        assert_eq!(report.check().unwrap_err().field, "gpus.slot");
        report.gpus.pop();
        assert_eq!(report.check(), Ok(()));
    }
}
