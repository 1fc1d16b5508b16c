//! A pool that goes on from a backup.
//!
//! The backup does not know what was granted after it was made. Boxes know what they let in, and say so: a session of an
//! unknown lease is ended, a session that the backup knows goes on. What boxes do not know is a lease token that was
//! signed and not shown yet. Its epoch must never be given a second time, because a box lets in whatever comes with the
//! epoch it has reached. So a restored pool gives only epochs above a floor that no grant of before can have reached.
//!
//! ```text
//!   epochs in the backup      given since, by how many is not known      after the restore
//!   ──────────────┤ highest ├────────────── EPOCH_LEAP_MAX ─────────────┤ + spread = floor ├──────▶
//! ```
//!
//! The spread is made of the moment of the restore, so that two restores of one backup have different floors.

use super::grants::EPOCH_LEAP_MAX;
use super::{Ledger, LoadError, Settings};
use crate::records::{RESTORED, RestoredRecord};

/// Where [`restored`] has what it writes stored.
pub const RESTORED_KEY: &str = "restored/last";

/// By how much orders of the restored pool count as later than those of before. A tenure is a revision of the store: at ten
/// thousand commits a second it takes years to get so far.
const TENURE_LEAP: u64 = 1 << 42;

/// What a backup holds, and the record that a store must get with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// For [`RESTORED_KEY`].
    pub record: Vec<u8>,
    /// Grants get higher epochs than this.
    pub epoch_floor: u64,
    /// How many boxes there are.
    pub boxes: usize,
    /// How many hosts.
    pub hosts: usize,
    /// How many GPUs.
    pub gpus: usize,
    /// How many leases that are not over.
    pub leases: usize,
    /// How many tenants have settings.
    pub tenants: usize,
}

/// When a backup was made, and when it is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moments {
    /// When it was made.
    pub backup_ms: u64,
    /// The revision of the store that it was made of.
    pub revision: u64,
    /// Now.
    pub now_ms: u64,
}

/// Reads the ledger's records of a backup, and says how a pool can go on from them.
///
/// It fails if one of them cannot be read, above all because a newer dxpu has written it.
pub fn restored<K: AsRef<str>, V: AsRef<[u8]>>(
    records: impl IntoIterator<Item = (K, V)>,
    moments: Moments,
) -> Result<Restored, LoadError> {
    let ledger = Ledger::load(records, Settings::default(), moments.now_ms)?;
    let gpus = ledger.boxes.values().flat_map(|owner| owner.slots.values());
    let given = gpus.clone().map(|entry| entry.gpu.epoch.max(entry.gpu.cleaned_epoch));
    let plugged = ledger.hosts.values().flat_map(|host| host.slots.values()).map(|slot| slot.epoch);
    let highest = given.chain(plugged).max().unwrap_or(0).max(ledger.epoch_floor);
    let spread = (moments.now_ms / 1000) % EPOCH_LEAP_MAX;
    let epoch_floor = highest.saturating_add(EPOCH_LEAP_MAX + spread);
    let tenure_base = ledger.tenure_base.saturating_add(moments.revision).saturating_add(TENURE_LEAP);
    let record = RestoredRecord {
        backup_ms: moments.backup_ms,
        restored_ms: moments.now_ms,
        epoch_floor,
        tenure_base,
    };
    Ok(Restored {
        record: RESTORED.write(&record),
        epoch_floor,
        boxes: ledger.boxes.len(),
        hosts: ledger.hosts.len(),
        gpus: gpus.count(),
        leases: ledger.leases.values().filter(|entry| entry.lease.state.is_live()).count(),
        tenants: ledger.tenants.values().filter(|entry| entry.stored).count(),
    })
}

impl Ledger {
    pub(super) fn load_restored(&mut self, record: &RestoredRecord) {
        self.raise_floor(record.epoch_floor);
        self.tenure_base = record.tenure_base;
    }

    /// From now on grants get higher epochs than this.
    pub(super) fn raise_floor(&mut self, epoch: u64) {
        self.epoch_floor = self.epoch_floor.max(epoch);
    }

    /// What a leader adds to its tenure, so that agents take its orders for later than any from before a restore.
    pub fn tenure_base(&self) -> u64 {
        self.tenure_base
    }
}
