//! What the store holds, apart from what the HTTP API shows.
//!
//! ```text
//!   pool_api::Lease ──of───────▶ lease::Lease ──Kind::write──▶ {"v":1,"id":…}
//!   pool_api::Lease ◀─into_api── lease::Lease ◀──Kind::read─── {"v":1,"id":…}   newest version: as it is
//!                                             ◀── upgrades ─── {"id":…}         older version: each upgrade in turn
//!                                        refused ◀──────────── {"v":2,"id":…}   newer version: use a newer dxpu
//! ```
//!
//! The ledger works with the types of `pool-api`. Their serde attributes say how HTTP spells them. The types in this
//! module say how the store spells the same values. Each conversion names every field and every word, so a change of an
//! HTTP type does not compile before it is decided here whether it is stored. Only numbers, texts and the identifiers
//! (`Name`, `Model`, `GpuId`, `LeaseId`) are shared: they are one text each, and check it themselves.
//!
//! To change what is stored:
//!
//! 1. Change the type here.
//! 2. Add a function to the upgrades of its [`Kind`]. It turns a record of the version before into the new one.
//! 3. Run `DXPU_WRITE_RECORDS=1 cargo test -p pool records`. It writes the golden files of the new version to
//!    `crates/pool/core/records`. Files of older versions stay as they are: old stores contain such records.
//!
//! Managers of an older release refuse records of a newer version, so a pool with several managers stops all old ones
//! before the first new one leads.

mod convert;
mod kind;

mod event;
mod floor;
mod gpu;
mod host;
mod lease;
mod machine;
mod restored;
mod tenant;
mod usage;

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;

pub use kind::{Kind, ReadError, Upgrade, first_version};

pub(crate) use convert::Stored;
pub(crate) use event::EVENT;
pub(crate) use floor::{FLOOR, FloorRecord};
pub(crate) use gpu::GPU;
pub(crate) use host::HOST;
pub(crate) use lease::{LEASE, request_bytes};
pub(crate) use machine::BOX;
pub(crate) use restored::{RESTORED, RestoredRecord};
pub(crate) use tenant::{KEY, KeyRecord, SPARE, TENANT};
pub(crate) use usage::USAGE;

impl<S: serde::Serialize + serde::de::DeserializeOwned> Kind<S> {
    /// Writes a value of an HTTP type as it is stored.
    pub(crate) fn encode<A>(&self, api: &A) -> Vec<u8>
    where
        S: Stored<A>,
    {
        self.write(&S::of(api))
    }

    /// Reads what [`Kind::encode`] wrote, of any version.
    pub(crate) fn decode<A>(&self, bytes: &[u8]) -> Result<A, ReadError>
    where
        S: Stored<A>,
    {
        self.read(bytes).map(S::into_api)
    }

    /// Writes several values under one key.
    pub(crate) fn encode_all<A>(&self, api: &[A]) -> Vec<u8>
    where
        S: Stored<A>,
    {
        let records: Vec<S> = api.iter().map(S::of).collect();
        self.write_all(&records)
    }

    /// Reads what [`Kind::encode_all`] wrote, of any version.
    pub(crate) fn decode_all<A>(&self, bytes: &[u8]) -> Result<Vec<A>, ReadError>
    where
        S: Stored<A>,
    {
        Ok(self.read_all(bytes)?.into_iter().map(S::into_api).collect())
    }
}
