//! How a box was last started, so that `dxpu box` alone starts it the same way after a reboot.
//!
//! ```text
//! STATE/settings.json     what options have set; an option that is given again replaces what was kept
//! ```
//!
//! Devices and addresses of the PCIe plane (`--fabric`, `--device`) are not kept: they name files and interfaces that may be
//! others after a reboot. A simulated box keeps nothing.

use super::{GuestsOf, Kind};
use anyhow::Context;
use machine::files;
use pool_api::Model;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What is kept; nothing where no option has ever said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Kept {
    pub(super) kind: Option<Kind>,
    pub(super) rack: Option<String>,
    pub(super) gpus: Option<KeptGpus>,
    pub(super) memory: Option<u64>,
    pub(super) model: Option<Model>,
    pub(super) listen: Option<String>,
    pub(super) advertise: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) guests: Option<u8>,
    pub(super) guest_memory: Option<u64>,
    pub(super) guests_of: Option<GuestsOf>,
    pub(super) slack: Option<u32>,
    pub(super) offline_slice_us: Option<u64>,
    pub(super) shares: Option<u8>,
    pub(super) merged: Option<bool>,
    pub(super) overcommit: Option<bool>,
}

/// Which GPUs a box lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KeptGpus {
    /// So many in software.
    Soft(u8),
    /// Those of this machine.
    Nvidia,
}

const FILE: &str = "settings.json";

impl Kept {
    /// These options, and as the box was started before where they say nothing. Keeps the result.
    pub(super) fn or_as_before(self, state: &Path) -> anyhow::Result<Self> {
        let path = state.join(FILE);
        let before: Self = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| {
                format!("{} is damaged; delete it and give the options again", path.display())
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Self::default(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let now = Self {
            kind: self.kind.or(before.kind),
            rack: self.rack.or(before.rack.clone()),
            gpus: self.gpus.or(before.gpus),
            memory: self.memory.or(before.memory),
            model: self.model.or(before.model.clone()),
            listen: self.listen.or(before.listen.clone()),
            advertise: self.advertise.or(before.advertise.clone()),
            port: self.port.or(before.port),
            guests: self.guests.or(before.guests),
            guest_memory: self.guest_memory.or(before.guest_memory),
            guests_of: self.guests_of.or(before.guests_of),
            slack: self.slack.or(before.slack),
            offline_slice_us: self.offline_slice_us.or(before.offline_slice_us),
            shares: self.shares.or(before.shares),
            merged: self.merged.or(before.merged),
            overcommit: self.overcommit.or(before.overcommit),
        };
        if now != before {
            files::make_private(state)?;
            files::replace(&path, 0o600, &serde_json::to_vec_pretty(&now)?)?;
        }
        Ok(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_is_started_as_before_unless_an_option_says_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("box");
        let first = Kept {
            rack: Some("r2".to_owned()),
            gpus: Some(KeptGpus::Soft(4)),
            memory: Some(8 << 30),
            ..Kept::default()
        };
        assert_eq!(first.clone().or_as_before(&state).unwrap(), first);
        assert_eq!(Kept::default().or_as_before(&state).unwrap(), first, "a restart without options");
        let other = Kept { gpus: Some(KeptGpus::Nvidia), ..Kept::default() };
        assert_eq!(other.or_as_before(&state).unwrap(), Kept { gpus: Some(KeptGpus::Nvidia), ..first });
        std::fs::write(state.join(FILE), "not json").unwrap();
        let told = format!("{:#}", Kept::default().or_as_before(&state).unwrap_err());
        assert!(told.contains("delete it"), "{told}");
    }
}
