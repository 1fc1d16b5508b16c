//! The whole pool in one thread: two managers over one store, boxes, hosts, borrowers, and a network between them, all of
//! which fail. The ledger is the real one; time and chance come from a seed, so a failing seed fails again.
//!
//! ```text
//!   borrowers ──┐                       ┌── manager 0 ──┐
//!               ├── messages that are ──┤               ├── pool_store::Memory, with faults
//!   boxes ──────┤   lost, late, twice   └── manager 1 ──┘
//!   hosts ──────┘
//!        ▲                                                         checker: reads everything that was
//!        └──── borrowers show their tokens                         committed, told, admitted and ended
//! ```
//!
//! Faults stop before the end of a run, everything is repaired, and then everything must come to rest.

mod borrower;
mod borrower_moves;
mod checker;
mod checker_guests;
mod checker_hosts;
mod checker_parts;
mod host;
mod manager;
mod network;
mod rack;
mod tests;
mod world;

pub(crate) use world::{Report, Scenario, run};

/// A mistake made on purpose, to see that the checker finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// The ledger grants GPUs again before their box has cleaned them.
    GrantUncleaned,
    /// The ledger gives a GPU to the next lease under the same epoch.
    KeepEpoch,
    /// The ledger never tells boxes to clean.
    NeverClean,
    /// The ledger tells a host to plug before the box has bound.
    PlugUnbound,
    /// The ledger never tells hosts to unplug.
    NeverUnplug,
    /// The ledger has boxes clean before hosts have unplugged.
    CleanBeforeUnplug,
    /// The ledger gives a device to the same lease again as if what is on it were another's.
    ScrubBetween,
    /// The ledger gives a host's slot away while it still has something else.
    ReuseSlot,
    /// The manager tells answers before they are committed.
    AnswerEarly,
    /// The manager goes on with its memory after a commit that failed.
    KeepMemory,
    /// The manager writes without asking whether it still leads.
    WriteUnfenced,
    /// The ledger does not give the first place of a lease back when its program has moved to the second.
    KeepSource,
    /// The ledger follows a borrower's word about a grant that is over.
    FollowOldWords,
    /// The ledger gives a GPU to a lease that wants it alone while a guest is in its seat.
    GrantBesideGuest,
    /// The ledger gives a GPU to a lease that wants it alone while the guest in its seat is still being suspended.
    GrantBesideLeavingGuest,
    /// The ledger seats guests beside leases of other tenants, where their box forbids it.
    MeetStrangers,
    /// The ledger seats guests where there is too little memory for them.
    SeatWithoutMemory,
    /// The ledger does not look at what the online programs leave of a seat.
    SeatWithoutLoad,
    /// The ledger moves a guest that starves to any other seat.
    MoveForNothing,
    /// The ledger gives parts of GPUs to leases that want whole ones.
    LendPartsAsGpus,
    /// The ledger gives leases with a share parts that are smaller.
    OversellParts,
    /// The box forgets, when it restarts, which epochs it has admitted.
    BoxForgets,
    /// The box admits any higher epoch, cleaned or not.
    BoxAdmitsUncleaned,
}
