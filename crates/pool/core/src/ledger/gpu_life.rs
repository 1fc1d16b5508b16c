//! The life of a GPU. No other module can assign [`Gpu::state`] in the ledger.
//!
//! ```text
//!   found ─▶ cleaning ──cleaned──▶ free ──granted──▶ leased ──vacated──▶ cleaning
//!            cleaning ──────────resumed────────────▶ leased
//!            cleaning ◀──soiled─── free ◀──vacated_clean── leased
//!            cleaning ◀──swapped── free
//!
//!            cleaning ──missed──▶ absent ──returned──▶ cleaning
//!                free ──missed──▶ absent ──swapped───▶ cleaning
//!              leased ──missed──▶ absent
//!
//!            cleaning ──failed──▶ bad ──repaired──▶ burn_in ──burn_in_passed──▶ cleaning
//!                free ──failed──▶ bad ◀──burn_in_failed── burn_in
//!              leased ──failed──▶ bad ◀──────failed────── burn_in
//!              absent ──failed──▶ bad
//! ```

use super::life::life_cycle;
use pool_api::{Gpu, GpuState, Health, Holder, Kept, Model, Taint};
use std::ops::Deref;

/// The state of a GPU that its box reports for the first time: the pool does not know what used it before.
pub(super) const FIRST: GpuState = GpuState::Cleaning;

life_cycle! {
    /// What can happen to the state of a GPU.
    GpuEvent over GpuState {
        /// A lease gets it, clean.
        Granted: Free => Leased;
        /// The lease whose data are on it gets it again, not scrubbed.
        Resumed: Cleaning => Leased;
        /// Its lease has it no longer, and its box has to clean it.
        Vacated: Leased => Cleaning;
        /// Its lease has it no longer, and its box has cleaned it already: the box threw the borrower out by itself.
        VacatedClean: Leased => Free;
        /// Its box has cleaned all epochs that were given.
        Cleaned: Cleaning => Free;
        /// Its box has forgotten that it cleaned, or has let in an epoch that this pool does not know.
        Soiled: Free => Cleaning;
        /// Another GPU is in its slot.
        Swapped: Free | Absent => Cleaning;
        /// Its box reports, and does not name it.
        Missed: Free | Leased | Cleaning => Absent;
        /// Its box names it again.
        Returned: Absent => Cleaning;
        /// Its box says that it fails, an operator says so, or its box claims epochs that it cannot have.
        Failed: Free | Leased | Cleaning | BurnIn | Absent => Bad;
        /// An operator says that it is repaired.
        Repaired: Bad => BurnIn;
        /// Its box has tested it since then.
        BurnInPassed: BurnIn => Cleaning;
        /// The test has failed.
        BurnInFailed: BurnIn => Bad;
    }
}

/// A GPU's record. All of the ledger may read it; its state changes only along the arrows above.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TrackedGpu(Gpu);

/// What the ledger may change of a GPU beside its state. Its name never changes, and its counters are not kept here.
pub(super) struct GpuEdit<'a> {
    pub(super) model: &'a mut Model,
    pub(super) memory_bytes: &'a mut u64,
    pub(super) uuid: &'a mut String,
    pub(super) nvlink_group: &'a mut Option<u32>,
    pub(super) only_pcie: &'a mut bool,
    pub(super) guest: &'a mut Option<pool_api::Guest>,
    pub(super) part: &'a mut Option<pool_api::Part>,
    pub(super) taint: &'a mut Option<Taint>,
    pub(super) spare: &'a mut bool,
    pub(super) epoch: &'a mut u64,
    pub(super) bound_epoch: &'a mut u64,
    pub(super) cleaned_epoch: &'a mut u64,
    pub(super) holders: &'a mut Vec<Holder>,
    pub(super) kept: &'a mut Option<Kept>,
    pub(super) health: &'a mut Health,
    pub(super) unready: &'a mut Option<String>,
    pub(super) endpoints: &'a mut Vec<String>,
}

impl TrackedGpu {
    /// A GPU that is reported for the first time.
    pub(super) fn found(gpu: Gpu) -> Self {
        Self(Gpu { state: FIRST, ..gpu })
    }

    /// A GPU as the store has it.
    pub(super) fn loaded(gpu: Gpu) -> Self {
        Self(gpu)
    }

    /// Takes the arrow of an event. The ledger looks at the state before it lets anything happen, so there is one. If there
    /// is none, the ledger is wrong: the panic ends this leader before it commits the draft, and the next leader reads the
    /// store, which has the state from before.
    pub(super) fn on(&mut self, event: GpuEvent) {
        match event.after(self.0.state) {
            Ok(to) => {
                #[cfg(test)]
                super::life::watch::count(super::life::watch::words(self.0.state, event, to));
                self.0.state = to;
            }
            Err(refused) => panic!("GPU {}: {refused}", self.0.id),
        }
    }

    /// All that is not the state.
    pub(super) fn edit(&mut self) -> GpuEdit<'_> {
        let Gpu {
            id: _,
            box_name: _,
            slot: _,
            state: _,
            counters: _,
            model,
            memory_bytes,
            uuid,
            nvlink_group,
            only_pcie,
            guest,
            part,
            taint,
            spare,
            epoch,
            bound_epoch,
            cleaned_epoch,
            holders,
            kept,
            health,
            unready,
            endpoints,
        } = &mut self.0;
        GpuEdit {
            model,
            memory_bytes,
            uuid,
            nvlink_group,
            only_pcie,
            guest,
            part,
            taint,
            spare,
            epoch,
            bound_epoch,
            cleaned_epoch,
            holders,
            kept,
            health,
            unready,
            endpoints,
        }
    }
}

impl Deref for TrackedGpu {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.0
    }
}
