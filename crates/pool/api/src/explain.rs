//! Why a lease is where it is.

use crate::{LeaseId, LeaseState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How the reason begins that tells a guest how it fares in its seat.
pub const SEAT_IS_CLOSED: &str = "its seat takes no newcomers";

/// Why a lease is pending, and what would let it run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The lease.
    pub lease: LeaseId,
    /// Where it stands.
    pub state: LeaseState,
    /// How many pending leases are served before it.
    pub ahead: u64,
    /// How many GPUs fall out at which filter, in the order they are asked. A GPU counts once.
    pub filters: Vec<FilterCount>,
    /// What holds it up, in words.
    pub reasons: Vec<String>,
    /// What would let it run, in words: any one of these.
    pub remedies: Vec<String>,
}

/// How many GPUs fall out at one filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FilterCount {
    /// The filter.
    pub filter: Filter,
    /// How many GPUs got no further.
    pub gpus: u64,
}

/// What is asked of each GPU in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// Is none of those that the lease names.
    Given,
    /// Is a seat for guests and the lease wants a GPU, or the other way round.
    Seat,
    /// Is a part of a GPU and the lease wants a whole one or a larger part, or a GPU and the lease waits for a part.
    Part,
    /// Is of another model.
    Model,
    /// Has less memory.
    Memory,
    /// Is in a box of another kind.
    Kind,
    /// Is in a box that hosts cannot reach on the PCIe plane.
    Plane,
    /// Is bad, in burn-in or absent.
    Health,
    /// Is in a box that is silent, dead or drained.
    BoxState,
    /// Is tainted.
    Taint,
    /// Is leased by somebody.
    Leased,
    /// Is not yet clean after its last lease.
    Cleaning,
    /// Has no worker yet that a borrower could find.
    NotReady,
    /// Is held back as a spare.
    Spare,
    /// Is beyond the tenant's limit.
    Quota,
    /// Is in a box without guard memory for the images of the lease.
    Guard,
    /// Is free, but a lease that this one cannot be beside has its seat for guests, or the GPU that the seat is on.
    Beside,
    /// Is free, but not together with enough others.
    Topology,
    /// Could be had.
    Usable,
}
