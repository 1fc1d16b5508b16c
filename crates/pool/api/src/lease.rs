//! Leases.
//!
//! ```text
//!            granted               released, expired, refused
//! pending ------------> granted ------------------------------> releasing ----> ended
//!    ^  \                  |                                     (boxes clean)    ^
//!    |   \_________________|______________ released, expired ____________________/
//!    +---------------------+
//!      its GPU broke and no other is there
//! ```
//!
//! A granted lease whose program outlives losses can also be parked: it has no GPUs until it is resumed, which makes it
//! pending.

use crate::{Attachment, BoxKind, Class, GpuId, Invalid, LeaseId, Model, Moving, Name, Parking, Survive};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// GPUs one lease may have: more than any one machine holds.
pub const GPUS_PER_LEASE_MAX: u32 = 64;
/// The priority of a request that names none.
pub const PRIORITY_DEFAULT: u32 = 100;
/// The highest priority.
pub const PRIORITY_MAX: u32 = 1000;
/// The largest slack: requests that take eleven times as long have no protection to speak of.
pub const SLACK_PERCENT_MAX: u16 = 1000;
/// How long a lease lives without renewal, if the request does not say.
pub const LEASE_TTL_DEFAULT_MS: u64 = 30_000;
/// Less could not survive one lost message.
pub const LEASE_TTL_MIN_MS: u64 = 1_000;
/// A borrower that is silent for a week is gone.
pub const LEASE_TTL_MAX_MS: u64 = 7 * 24 * 3600 * 1000;
/// A lease that may go on for a year needs no limit.
pub const TIME_LIMIT_MAX_MS: u64 = 366 * 24 * 3600 * 1000;
/// Notes and reasons are for people.
pub const NOTE_CHARS_MAX: usize = 256;
/// As long as an idempotency key: a program may use one word for both.
pub const LABEL_BYTES_MAX: usize = 128;

/// Whether a label is within bounds; an empty one is none.
pub fn check_label(label: &str) -> Result<(), Invalid> {
    if label.len() > LABEL_BYTES_MAX || !label.bytes().all(|byte| byte.is_ascii_graphic()) {
        let rule = format!("must be at most {LABEL_BYTES_MAX} printable characters without spaces");
        return Err(Invalid::new("label", rule));
    }
    Ok(())
}

/// Asks for GPUs: all of them or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// For whom; the tenant of who asks, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
    /// How many.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 64, default = 1)]
    pub gpus: u32,
    /// Of which model; any, if left out. Several GPUs are always of one model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
    /// Memory that each GPU must have at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// From boxes of this kind only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<BoxKind>,
    /// Exactly these GPUs, as many as `gpus`; any, if left out. The lease waits until it can have all of them. It does
    /// not move to others, unless its programs outlive the loss of a GPU. For a scheduler that chooses GPUs itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 64)]
    pub gpu_ids: Vec<GpuId>,
    /// How close together.
    #[serde(default)]
    pub topology: Topology,
    /// A part of one GPU instead of whole ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
    /// Higher is served first.
    #[serde(default = "priority_default")]
    #[schema(maximum = 1000, default = 100)]
    pub priority: u32,
    /// How long it lives without being renewed.
    #[serde(default = "ttl_default")]
    #[schema(minimum = 1000, maximum = 604_800_000, default = 30_000)]
    pub ttl_ms: u64,
    /// How the borrower reaches its GPUs.
    #[serde(default)]
    pub plane: Plane,
    /// Into which host the GPUs are plugged; with plane `pcie`, and only then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Name>,
    /// What its programs outlive; with plane `api` alone.
    #[serde(default, skip_serializing_if = "Survive::is_none")]
    pub survive: Survive,
    /// What its programs are to others on the same GPU. An `offline` lease gets a seat for guests, beside an `online` lease
    /// or on a GPU without a lease: one, on plane `api`.
    #[serde(default, skip_serializing_if = "Class::is_dedicated")]
    pub class: Class,
    /// What offline work beside it may add to the time of its requests, in percent; with class `online`, and only then. Left out,
    /// it is as the worker of its GPU has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub slack_percent: Option<u16>,
    /// It ends so long after its first grant, however it is renewed. Left out, it is as its tenant's settings say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000, maximum = 31_622_400_000_u64)]
    pub time_limit_ms: Option<u64>,
    /// What it is for; shown to people. At most 256 characters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(
        max_length = 256,
        pattern = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
    )]
    pub note: String,
    /// By this a program finds the lease again, such as the name of a job: at most 128 printable characters without
    /// spaces.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 128, pattern = "^[!-~]*$")]
    pub label: String,
}

fn one() -> u32 {
    1
}

fn priority_default() -> u32 {
    PRIORITY_DEFAULT
}

fn ttl_default() -> u64 {
    LEASE_TTL_DEFAULT_MS
}

impl Default for LeaseRequest {
    fn default() -> Self {
        Self {
            tenant: None,
            gpus: 1,
            model: None,
            memory_bytes: None,
            kind: None,
            gpu_ids: Vec::new(),
            topology: Topology::Any,
            share: None,
            priority: PRIORITY_DEFAULT,
            ttl_ms: LEASE_TTL_DEFAULT_MS,
            plane: Plane::Api,
            host: None,
            survive: Survive::None,
            class: Class::Dedicated,
            slack_percent: None,
            time_limit_ms: None,
            note: String::new(),
            label: String::new(),
        }
    }
}

impl LeaseRequest {
    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        if !(1..=GPUS_PER_LEASE_MAX).contains(&self.gpus) {
            return Err(Invalid::new("gpus", format!("must be 1 to {GPUS_PER_LEASE_MAX}")));
        }
        if self.priority > PRIORITY_MAX {
            return Err(Invalid::new("priority", format!("must be 0 to {PRIORITY_MAX}")));
        }
        if !(LEASE_TTL_MIN_MS..=LEASE_TTL_MAX_MS).contains(&self.ttl_ms) {
            return Err(Invalid::new("ttl_ms", format!("must be {LEASE_TTL_MIN_MS} to {LEASE_TTL_MAX_MS}")));
        }
        check_limit("time_limit_ms", self.time_limit_ms)?;
        match (self.plane, &self.host) {
            (Plane::Pcie, None) => {
                return Err(Invalid::new(
                    "host",
                    "must name the host to plug the GPUs into, with plane = pcie",
                ));
            }
            (Plane::Api, Some(_)) => {
                return Err(Invalid::new("host", "must be left out unless plane = pcie"));
            }
            _ => {}
        }
        if !self.survive.is_none() && self.plane == Plane::Pcie {
            return Err(Invalid::new(
                "survive",
                "must go with plane = api: a plugged device has no image of its program",
            ));
        }
        if let Some(share) = &self.share {
            if self.plane == Plane::Pcie {
                return Err(Invalid::new(
                    "share",
                    "must go with plane = api: a device is plugged as a whole",
                ));
            }
            if self.gpus != 1 {
                return Err(Invalid::new("share", "must go with gpus = 1"));
            }
            if !(1..=1000).contains(&share.milli) {
                return Err(Invalid::new("share.milli", "must be 1 to 1000"));
            }
            if share.memory_bytes == 0 {
                return Err(Invalid::new("share.memory_bytes", "must be at least 1"));
            }
        }
        self.check_class()?;
        self.check_gpu_ids()?;
        check_label(&self.label)?;
        check_note("note", &self.note)
    }

    /// Devices that are plugged into a host, and GPUs of several, cannot be shared.
    fn check_class(&self) -> Result<(), Invalid> {
        let wrong = |rule: &str| Err(Invalid::new("class", rule));
        if let Some(percent) = self.slack_percent {
            if self.class != Class::Online {
                return Err(Invalid::new(
                    "slack_percent",
                    "must go with class = online: it bounds what offline work costs",
                ));
            }
            if !(1..=SLACK_PERCENT_MAX).contains(&percent) {
                return Err(Invalid::new("slack_percent", format!("must be 1 to {SLACK_PERCENT_MAX}")));
            }
        }
        match self.class {
            Class::Online | Class::Offline if self.plane == Plane::Pcie => {
                wrong("must be dedicated with plane = pcie: a device is plugged as a whole")
            }
            Class::Offline if self.gpus != 1 => wrong("must go with gpus = 1 if it is offline"),
            Class::Offline if self.share.is_some() => {
                wrong("must go without share if it is offline: the seat's box decides what of the GPU it has")
            }
            _ => Ok(()),
        }
    }

    fn check_gpu_ids(&self) -> Result<(), Invalid> {
        let ids = &self.gpu_ids;
        if ids.is_empty() {
            return Ok(());
        }
        if ids.len() != self.gpus as usize {
            return Err(Invalid::new("gpu_ids", "must name as many GPUs as gpus says"));
        }
        if ids.iter().enumerate().any(|(at, id)| ids[..at].contains(id)) {
            return Err(Invalid::new("gpu_ids", "must name each GPU once"));
        }
        if self.plane == Plane::Pcie {
            return Err(Invalid::new("gpu_ids", "must go with plane = api"));
        }
        if self.topology != Topology::Any && ids.iter().any(|id| id.box_name != ids[0].box_name) {
            return Err(Invalid::new("gpu_ids", "must be of one box, with this topology"));
        }
        Ok(())
    }
}

/// A limit on time that makes sense.
pub(crate) fn check_limit(field: &'static str, limit_ms: Option<u64>) -> Result<(), Invalid> {
    match limit_ms {
        Some(limit_ms) if !(LEASE_TTL_MIN_MS..=TIME_LIMIT_MAX_MS).contains(&limit_ms) => {
            Err(Invalid::new(field, format!("must be {LEASE_TTL_MIN_MS} to {TIME_LIMIT_MAX_MS}")))
        }
        _ => Ok(()),
    }
}

/// Whether a character can change how a terminal or a browser shows the text around it: control characters, and the
/// invisible ones that turn the direction of writing round, join or hide letters. Operators read what tenants write.
fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Short text for people, without control characters.
pub(crate) fn check_note(field: &'static str, note: &str) -> Result<(), Invalid> {
    if note.chars().count() > NOTE_CHARS_MAX {
        return Err(Invalid::new(field, format!("must be at most {NOTE_CHARS_MAX} characters")));
    }
    if note.chars().any(is_unprintable) {
        return Err(Invalid::new(field, "must not have control characters or invisible ones"));
    }
    Ok(())
}

/// How close together the GPUs of a lease must be.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// Anywhere; together if that is possible.
    #[default]
    Any,
    /// In one box.
    SameBox,
    /// Joined by NVLink.
    Nvlink,
}

/// A part of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Thousandths of its time.
    #[schema(minimum = 1, maximum = 1000)]
    pub milli: u32,
    /// Bytes of its memory; more cannot be allocated.
    #[schema(minimum = 1)]
    pub memory_bytes: u64,
}

/// How a borrower reaches its GPUs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Plane {
    /// CUDA calls travel.
    #[default]
    Api,
    /// PCIe packets travel.
    Pcie,
}

/// GPUs bound to a borrower, or somebody waiting for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// Its name.
    pub id: LeaseId,
    /// For whom.
    pub tenant: Name,
    /// The identity that asked.
    pub owner: String,
    /// The token it asked with; when that is revoked, the lease ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// What was asked for.
    pub request: LeaseRequest,
    /// Where it stands.
    pub state: LeaseState,
    /// What it has; empty unless granted.
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// The model it got; it stays with it when it moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
    /// When it was asked for.
    pub created_ms: u64,
    /// When it was first granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_ms: Option<u64>,
    /// When it ends, unless it is renewed.
    pub expires_ms: u64,
    /// How it ended, or is ending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// The GPUs it lost, and what came in their place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<Move>,
    /// A second place for one of its GPUs, which its program is to go on at or to drill on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<Moving>,
    /// Its program is to end its session and be kept as an image.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend_wanted: bool,
    /// Its program is kept as an image: since the lease was parked until it has GPUs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parking: Option<Parking>,
    /// Grows with every change a borrower should know of; renewals are none.
    pub version: u64,
}

impl Lease {
    /// Whether it is a guest that was suspended because its seat was needed, and that waits for another one.
    pub fn is_unseated(&self) -> bool {
        let has_left = |moved: &Move| moved.planned && moved.to.is_none();
        self.state == LeaseState::Pending && self.parking.is_some() && self.moves.last().is_some_and(has_left)
    }
}

/// Where a lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// Waits for GPUs: for the first time, or because one broke.
    Pending,
    /// Has them.
    Granted,
    /// Has given them back for a while; its program is kept as an image.
    Parked,
    /// Over; its GPUs are being cleaned.
    Releasing,
    /// Over.
    Ended,
}

impl LeaseState {
    /// Whether a borrower may still have it or get it.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::Granted | Self::Parked)
    }
}

/// One GPU of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// The GPU.
    pub gpu: GpuId,
    /// The epoch by which its box admits the borrower.
    pub epoch: u64,
    /// Where its worker is reached.
    pub endpoints: Vec<String>,
    /// What it is.
    pub model: Model,
    /// Where it is plugged, on the PCIe plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<Attachment>,
}

/// How a lease ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    /// When.
    pub at_ms: u64,
    /// Why: `released`, `expired`, or what somebody did.
    pub reason: String,
}

/// A lease lost a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Move {
    /// The GPU it lost.
    pub from: GpuId,
    /// What it got instead; nothing while the lease waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<GpuId>,
    /// When.
    pub at_ms: u64,
    /// Why.
    pub reason: String,
    /// The borrower said that it is lost, before its box did.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub said_by_borrower: bool,
    /// Nothing was lost: the program went on at the second place before it left the first, or it was suspended before a guest
    /// left its seat.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub planned: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_empty_request_is_one_gpu_of_any_kind() {
        let request: LeaseRequest = serde_json::from_str("{}").unwrap();
        assert_eq!(request, LeaseRequest::default());
        assert_eq!(request.check(), Ok(()));
        assert_eq!(
            serde_json::from_str::<LeaseRequest>(&serde_json::to_string(&request).unwrap()).unwrap(),
            request
        );
    }

    #[test]
    fn unknown_fields_and_numbers_out_of_bounds_are_refused() {
        assert!(serde_json::from_str::<LeaseRequest>(r#"{"gpu":1}"#).is_err());
        let refused =
            |text: &str| serde_json::from_str::<LeaseRequest>(text).unwrap().check().unwrap_err().field;
        assert_eq!(refused(r#"{"gpus":0}"#), "gpus");
        assert_eq!(refused(r#"{"gpus":65}"#), "gpus");
        assert_eq!(refused(r#"{"priority":1001}"#), "priority");
        assert_eq!(refused(r#"{"ttl_ms":999}"#), "ttl_ms");
        assert_eq!(refused(r#"{"gpus":2,"share":{"milli":500,"memory_bytes":1}}"#), "share");
        assert_eq!(refused(r#"{"share":{"milli":1001,"memory_bytes":1}}"#), "share.milli");
        assert_eq!(refused(r#"{"note":"a\u0000"}"#), "note");
        assert_eq!(refused(r#"{"note":"\u001b[2J"}"#), "note", "clears an operator's terminal");
        assert_eq!(refused(r#"{"note":"a\u202eb"}"#), "note", "turns what follows it round");
        assert_eq!(refused(r#"{"note":"pro\u200bd"}"#), "note", "looks like another word");
        assert_eq!(refused(r#"{"plane":"pcie"}"#), "host");
        assert_eq!(refused(r#"{"gpu_ids":["a/0","a/1"]}"#), "gpu_ids", "gpus says one");
        assert_eq!(refused(r#"{"gpus":2,"gpu_ids":["a/0","a/0"]}"#), "gpu_ids");
        assert_eq!(refused(r#"{"gpus":2,"topology":"same_box","gpu_ids":["a/0","b/0"]}"#), "gpu_ids");
        assert_eq!(refused(r#"{"plane":"pcie","host":"h1","gpu_ids":["a/0"]}"#), "gpu_ids");
        assert_eq!(refused(r#"{"label":"a b"}"#), "label");
        assert_eq!(refused(&format!(r#"{{"label":"{}"}}"#, "x".repeat(129))), "label");
        assert_eq!(refused(r#"{"host":"h1"}"#), "host");
        assert_eq!(
            refused(r#"{"plane":"pcie","host":"h1","share":{"milli":500,"memory_bytes":1}}"#),
            "share"
        );
        assert_eq!(refused(r#"{"plane":"pcie","host":"h1","class":"online"}"#), "class");
        assert_eq!(refused(r#"{"gpus":2,"class":"offline"}"#), "class");
        assert_eq!(refused(r#"{"class":"offline","share":{"milli":500,"memory_bytes":1}}"#), "class");
        let guest: LeaseRequest = serde_json::from_str(r#"{"class":"offline","survive":"gpu"}"#).unwrap();
        assert_eq!(guest.check(), Ok(()), "a guest may be suspended");
        assert!(serde_json::from_str::<LeaseRequest>(r#"{"class":"Online"}"#).is_err());
        let online: LeaseRequest = serde_json::from_str(r#"{"gpus":2,"class":"online"}"#).unwrap();
        assert_eq!((online.class, online.check()), (Class::Online, Ok(())));
        let plugged: LeaseRequest = serde_json::from_str(r#"{"plane":"pcie","host":"h1"}"#).unwrap();
        assert_eq!(plugged.check(), Ok(()));
    }
}
