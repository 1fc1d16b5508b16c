//! The life of a lease. No other module can assign [`Lease::state`] in the ledger.
//!
//! ```text
//!   asked ─▶ pending ──served───▶ granted ──released───▶ releasing ──emptied──▶ ended
//!            pending ◀──requeued── granted ──expired────▶ releasing
//!                                  granted ──reclaimed──▶ releasing
//!            pending ───────────released────────────────▶ releasing
//!            pending ───────────expired─────────────────▶ releasing
//!
//!            pending ◀──unparked── parked ◀──parked── granted
//!                                  parked ──released──▶ releasing
//!                                  parked ──expired───▶ releasing
//! ```
//!
//! A lease that has nothing to clean, such as a pending one, goes on to `ended` in the same outcome: the store and its
//! borrower never see it releasing.

use super::life::life_cycle;
use pool_api::{Ended, Grant, Lease, LeaseState, Model, Move, Moving, Parking};
use std::ops::Deref;

/// The state of a lease that was asked for just now.
pub(super) const FIRST: LeaseState = LeaseState::Pending;

life_cycle! {
    /// What can happen to the state of a lease.
    LeaseEvent over LeaseState {
        /// It gets all the GPUs it asks for.
        Served: Pending => Granted;
        /// It lost a GPU that cannot be replaced now, and waits again.
        Requeued: Granted => Pending;
        /// Its programs are safe as images, and it gives its GPUs back for a while.
        Parked: Granted => Parked;
        /// It asks for GPUs again.
        Unparked: Parked => Pending;
        /// Its borrower or an operator ends it.
        Released: Pending | Granted | Parked => Releasing;
        /// Its borrower has not renewed it in time.
        Expired: Pending | Granted | Parked => Releasing;
        /// Another tenant is promised what it has.
        Reclaimed: Granted => Releasing;
        /// No GPU is left that has to be cleaned after it.
        Emptied: Releasing => Ended;
    }
}

/// A lease's record. All of the ledger may read it; its state changes only along the arrows above.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TrackedLease(Lease);

/// What the ledger may change of a lease beside its state. Its owner, its request and their time never change.
pub(super) struct LeaseEdit<'a> {
    pub(super) grants: &'a mut Vec<Grant>,
    pub(super) model: &'a mut Option<Model>,
    pub(super) granted_ms: &'a mut Option<u64>,
    pub(super) expires_ms: &'a mut u64,
    pub(super) ended: &'a mut Option<Ended>,
    pub(super) moves: &'a mut Vec<Move>,
    pub(super) moving: &'a mut Option<Moving>,
    pub(super) suspend_wanted: &'a mut bool,
    pub(super) parking: &'a mut Option<Parking>,
    pub(super) version: &'a mut u64,
}

impl TrackedLease {
    /// A lease that was asked for just now.
    pub(super) fn asked(lease: Lease) -> Self {
        Self(Lease { state: FIRST, ..lease })
    }

    /// A lease as the store has it.
    pub(super) fn loaded(lease: Lease) -> Self {
        Self(lease)
    }

    /// Takes the arrow of an event. Panics without one, for the reason that `TrackedGpu::on` gives.
    pub(super) fn on(&mut self, event: LeaseEvent) {
        match event.after(self.0.state) {
            Ok(to) => {
                #[cfg(test)]
                super::life::watch::count(super::life::watch::words(self.0.state, event, to));
                self.0.state = to;
            }
            Err(refused) => panic!("lease {}: {refused}", self.0.id),
        }
    }

    /// All that is not the state.
    pub(super) fn edit(&mut self) -> LeaseEdit<'_> {
        let Lease {
            id: _,
            tenant: _,
            owner: _,
            token: _,
            request: _,
            state: _,
            created_ms: _,
            grants,
            model,
            granted_ms,
            expires_ms,
            ended,
            moves,
            moving,
            suspend_wanted,
            parking,
            version,
        } = &mut self.0;
        LeaseEdit {
            grants,
            model,
            granted_ms,
            expires_ms,
            ended,
            moves,
            moving,
            suspend_wanted,
            parking,
            version,
        }
    }
}

impl Deref for TrackedLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0
    }
}
