//! Pages of the host that stand for device memory. All `unsafe` of this crate is here.
//!
//! A session's addresses lie in one [`Region`] that is reserved without access. A [`Mapping`] puts pages somewhere in
//! it and keeps them there as long as it lives; every access goes through a mapping and is checked against its
//! bounds. So an address that a kernel makes up can never reach anything else in this process.
//!
//! Accesses of several threads race, as those of a GPU's do. They are done with relaxed atomics on raw pointers, and
//! no reference to device memory ever exists.

mod mapping;
mod physical;
mod raw;
mod region;

pub(crate) use mapping::Mapping;
pub(crate) use physical::Physical;
pub(crate) use region::{LentPiece, Region};

/// Pages are put and taken in granules of this size. It is also the granularity that cuMemCreate reports, so that
/// mapped physical memory never shares a granule with anything else.
pub(crate) const GRANULE: u64 = 2 << 20;
