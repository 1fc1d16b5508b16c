//! Keeps a borrowed program alive over losses of its GPUs.
//!
//! ```text
//!   program ──lost, moved, parked, protection…──▶ keeper ──lost, moved, parked, protection──▶ manager
//!           ◀──place, wait, move, suspend, drill─ (this)  ◀──────── the lease, by long poll ──
//! ```
//!
//! `dxpu run --survive` starts one [`Keeper`] for its lease. It listens on a Unix socket in a folder that only its user can
//! enter. One thread waits for changes of the lease, one tells the manager how well the program is protected, and each
//! connection of the program has one. What follows from a lease for a link is decided by pure functions
//! (`decide`). The keeper does not dial workers itself: [`Ways`] finds a way to a GPU.
//!
//! While no manager answers, a lost program waits: the keeper asks again until the program's patience is over. A guest that has
//! lost its seat waits for another one for as long as its lease lives.

#![forbid(unsafe_code)]

mod decide;
mod links;
mod recover;
mod serve;
mod watch;

pub use serve::{Keeper, Settings, Way, Ways};
