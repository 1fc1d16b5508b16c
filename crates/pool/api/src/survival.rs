//! Leases whose programs outlive the loss of a GPU: what their keepers and operators say about places.
//!
//! ```text
//! lost                 the borrower's word: the lease moves at once, its old GPU is cleaned
//! move ──▶ moved       a second GPU is granted first; the old one is given back when the program goes on at the new one
//! suspend ──▶ parked   the program's image is safe and its GPUs are given back; resume asks for GPUs again
//! drill ──▶ drilled    a second GPU is granted for a moment: a copy of the program is resumed there and thrown away
//! ```

use crate::lease::{NOTE_CHARS_MAX, check_note};
use crate::{GpuId, Grant, Invalid, Lease, LeaseId, Name};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What the programs of a lease outlive.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Survive {
    /// Nothing: they see an error and have to be started again.
    #[default]
    None,
    /// The loss of a GPU, of its worker, or of the way to it. Their images are kept by their box.
    Gpu,
}

impl Survive {
    /// Whether nothing was asked for.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// A lease has a second place for one of its GPUs, for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Moving {
    /// The GPU that the program uses.
    pub from: GpuId,
    /// The epoch of that grant.
    pub from_epoch: u64,
    /// The second place.
    pub to: Grant,
    /// What for.
    pub purpose: Purpose,
    /// Since when.
    pub since_ms: u64,
    /// Why.
    pub reason: String,
}

/// What a second place is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The program is to go on there, as a person has asked for.
    Asked,
    /// The program is to go on there, because its GPU is being drained.
    Drain,
    /// A copy of the program is resumed there, compared and thrown away.
    Drill,
}

/// A lease has given its GPUs back, and its programs wait as images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Parking {
    /// Since when.
    pub since_ms: u64,
    /// Bytes of the images, as the programs' keeper said.
    pub image_bytes: u64,
    /// Since when it waits for GPUs again, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_ms: Option<u64>,
}

/// A borrower has lost one of its GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LostRequest {
    /// The GPU.
    pub gpu: GpuId,
    /// The epoch of the grant. A word about an older grant changes nothing, so it may be sent again.
    pub epoch: u64,
    /// What happened; shown to people. At most 256 characters.
    #[serde(default)]
    #[schema(
        max_length = 256,
        pattern = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
    )]
    pub why: String,
}

impl LostRequest {
    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        check_note("why", &self.why)
    }
}

/// What came of a borrower's word that a GPU is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LossAnswer {
    /// The lease as it is now.
    pub lease: Lease,
    /// What was done.
    pub verdict: Verdict,
    /// The same in words.
    pub message: String,
}

/// What was done about a borrower's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The lease has another GPU, or waits for one.
    Moved,
    /// The lease does not have that GPU under that epoch any more: look where it is now.
    Known,
    /// Nothing: there were too many words that no box confirmed, so the word of the box counts.
    BoxDecides,
}

/// Asks for a lease to move.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// Which of its GPUs; the first, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuId>,
    /// Into this box; any, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_box: Option<Name>,
}

/// A program goes on at its second place, or stays where it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MovedRequest {
    /// The second place.
    pub gpu: GpuId,
    /// Its epoch.
    pub epoch: u64,
    /// Why the program stays where it was, if it does. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        max_length = 256,
        pattern = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
    )]
    pub refused: Option<String>,
}

/// A program has ended its session and is kept as an image, or cannot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ParkedRequest {
    /// A GPU that the lease has. A word about an older grant changes nothing.
    pub gpu: GpuId,
    /// The epoch of that grant.
    pub epoch: u64,
    /// Bytes of the images.
    #[serde(default)]
    pub image_bytes: u64,
    /// Why the program cannot be parked, if it cannot. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        max_length = 256,
        pattern = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
    )]
    pub refused: Option<String>,
}

/// How a drill ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrilledRequest {
    /// The second place.
    pub gpu: GpuId,
    /// Its epoch.
    pub epoch: u64,
    /// How long it took to resume there.
    #[serde(default)]
    pub took_ms: u64,
    /// The first difference between the copy and the program, if there was one. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        max_length = 256,
        pattern = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
    )]
    pub difference: Option<String>,
    /// Why there was no drill, if there was none. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        max_length = 256,
        pattern = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
    )]
    pub refused: Option<String>,
}

fn check_optional(field: &'static str, text: Option<&String>) -> Result<(), Invalid> {
    text.map_or(Ok(()), |text| check_note(field, text))
}

impl MovedRequest {
    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        check_optional("refused", self.refused.as_ref())
    }
}

impl ParkedRequest {
    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        check_optional("refused", self.refused.as_ref())
    }
}

impl DrilledRequest {
    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        check_optional("difference", self.difference.as_ref())?;
        check_optional("refused", self.refused.as_ref())
    }
}

/// Text of a program, cut and without what a terminal would obey, so that [`LostRequest`] and its like take it.
pub fn as_note(text: &str) -> String {
    let plain: String = text.chars().filter(|&letter| check_note("", &letter.to_string()).is_ok()).collect();
    plain.chars().take(NOTE_CHARS_MAX).collect()
}

/// How well the programs of a lease are protected, as their keeper says. Managers keep it in memory alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProtectionReport {
    /// One for each protected link of the program.
    pub links: Vec<LinkProtection>,
}

/// More links than a lease has GPUs, for programs of several processes.
const LINKS_MAX: usize = 1024;

impl ProtectionReport {
    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.links.len() > LINKS_MAX {
            return Err(Invalid::new("links", format!("must be at most {LINKS_MAX}")));
        }
        self.links.iter().try_for_each(|link| check_note("links.why", &link.why))
    }
}

/// How well one link between a program and a GPU is protected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkProtection {
    /// The GPU.
    pub gpu: GpuId,
    /// The program's process, on the borrower's machine.
    #[serde(default)]
    pub pid: u32,
    /// Whether a loss would be survived.
    pub state: ProtectionState,
    /// Why not, in words. At most 256 characters.
    #[serde(default)]
    #[schema(
        max_length = 256,
        pattern = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
    )]
    pub why: String,
    /// The number of the last safe cut; 0 if there is none.
    #[serde(default)]
    pub cut: u64,
    /// How many boxes have the image of that cut: 1 survives the loss of a session, a worker or a GPU, 2 that of a box.
    #[serde(default)]
    #[schema(maximum = 255)]
    pub level: u8,
    /// How old the last safe image is.
    #[serde(default)]
    pub safe_age_ms: u64,
    /// Bytes of device memory that are in it.
    #[serde(default)]
    pub image_bytes: u64,
    /// Bytes that would be told again.
    #[serde(default)]
    pub journal_bytes: u64,
    /// How long the last cut held work back, in microseconds.
    #[serde(default)]
    pub pause_us: u32,
    /// How long a recovery would take, by what was measured.
    #[serde(default)]
    pub predicted_ms: u64,
}

/// Whether a loss would be survived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProtectionState {
    /// It would.
    Protected,
    /// It would not.
    Unprotected,
    /// Not yet: the first image is not safe.
    Starting,
    /// Not now: the image was lost with its guardian, and a new one is not safe yet.
    Degraded,
}

/// What a manager knows of the protection of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Protection {
    /// The lease.
    pub lease: LeaseId,
    /// When its keeper last said something to the manager that leads now; absent if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_ms: Option<u64>,
    /// The time at this manager.
    pub now_ms: u64,
    /// What it said.
    pub links: Vec<LinkProtection>,
    /// The last drill that this manager knows of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_drill: Option<Drill>,
}

/// A drill that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drill {
    /// When.
    pub at_ms: u64,
    /// Where.
    pub gpu: GpuId,
    /// Under which epoch.
    pub epoch: u64,
    /// How long it took to resume there.
    pub took_ms: u64,
    /// The first difference, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference: Option<String>,
    /// Why there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_before_ask_for_no_survival() {
        let request: crate::LeaseRequest = serde_json::from_str("{}").unwrap();
        assert_eq!(request.survive, Survive::None);
        let text = serde_json::to_string(&request).unwrap();
        assert!(
            !text.contains("survive"),
            "a manager of before refuses fields that it does not know: {text}"
        );
        let request: crate::LeaseRequest = serde_json::from_str(r#"{"survive":"gpu"}"#).unwrap();
        assert_eq!((request.survive, request.check()), (Survive::Gpu, Ok(())));
        let plugged = r#"{"survive":"gpu","plane":"pcie","host":"h1"}"#;
        let refused = serde_json::from_str::<crate::LeaseRequest>(plugged).unwrap().check().unwrap_err();
        assert_eq!(refused.field, "survive");
        assert!(serde_json::from_str::<crate::LeaseRequest>(r#"{"survive":"planet"}"#).is_err());
    }

    #[test]
    fn what_a_program_says_becomes_a_note_that_is_taken() {
        let why = format!("the worker\u{1b}[2J\nclosed \u{202e}it{}", "!".repeat(1000));
        let note = as_note(&why);
        assert!(note.starts_with("the worker[2Jclosed it!!") && note.chars().count() == NOTE_CHARS_MAX);
        let gpu = "a/0".parse().unwrap();
        assert_eq!(LostRequest { gpu, epoch: 1, why: note }.check(), Ok(()));
    }
}
