//! What a box tells of those it did not let in.

use crate::{Invalid, SLOTS_PER_BOX_MAX};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Borrowers whom a box has turned away for good: with a token that is forged, over, or for another GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RefusalReport {
    /// The oldest first.
    #[schema(max_items = 256)]
    pub refusals: Vec<SlotRefusal>,
}

/// Somebody was not let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SlotRefusal {
    /// To which slot.
    #[schema(maximum = 63)]
    pub slot: u8,
    /// Why not.
    #[schema(
        max_length = 256,
        pattern = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
    )]
    pub reason: String,
}

/// What the manager has written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusalsHeard {
    /// How many it was told of.
    pub count: u32,
}

impl RefusalReport {
    /// As many as are told at once.
    pub const REFUSALS_MAX: usize = 256;

    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.refusals.len() > Self::REFUSALS_MAX {
            return Err(Invalid::new("refusals", format!("must be at most {}", Self::REFUSALS_MAX)));
        }
        self.refusals.iter().try_for_each(|refusal| {
            if refusal.slot >= SLOTS_PER_BOX_MAX {
                return Err(Invalid::new("refusals.slot", "must be below 64"));
            }
            crate::lease::check_note("refusals.reason", &refusal.reason)
        })
    }
}
