//! Boxes, and the note of an operator that boxes, hosts and GPUs have in common.

use super::convert::{stored_enum, stored_struct};
use super::{Kind, first_version};
use pool_api::Name;

/// Boxes.
pub(crate) const BOX: Kind<BoxRecord> = Kind::new("box", &[first_version]);

stored_struct! {
    /// A box, below `box/NAME`.
    BoxRecord of BoxRecord {
        name: Name,
        #[serde(default)]
        node: u16,
        kind: BoxKind,
        #[serde(default)]
        rack: String,
        #[serde(default)]
        paths: Vec<String>,
        state: BoxState,
        last_seen_ms: u64,
        gpus: Vec<u8>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        drain: Option<Taint>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revoked: Option<Taint>,
    }
}

stored_enum! {
    /// How the GPUs of a box are joined.
    BoxKind of BoxKind { Nvlink, Pcie, }
}

stored_enum! {
    /// Whether a box is there.
    BoxState of BoxState { Ready, Suspect, Dead, Draining, }
}

stored_struct! {
    /// What an operator has set, and why.
    Taint of Taint {
        reason: String,
        by: String,
        since_ms: u64,
        #[serde(default)]
        drain: bool,
    }
}
