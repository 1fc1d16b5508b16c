//! Memory of the client's program that this process maps too, for the driver to copy from and to.
//!
//! The client is trusted in nothing: see `docs/design/pinned.md`.

use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Driver, SharedPages};
use cuda_wire::RegionId;
use std::collections::HashMap;
use std::sync::Arc;
use transport::Inbox;

/// Each region is a mapping, and a process may have some 65,000 of those.
const REGIONS_MAX: usize = 8192;

/// The regions of a session.
pub(crate) struct Regions {
    /// None where the transport has no way for memory.
    inbox: Option<Inbox>,
    bytes: HashMap<RegionId, u64>,
    total_bytes: u64,
    bytes_max: u64,
}

impl Regions {
    pub(crate) fn new(inbox: Option<Inbox>, bytes_max: u64) -> Self {
        Self { inbox, bytes: HashMap::new(), total_bytes: 0, bytes_max }
    }

    /// Takes the next memory that the client has passed, whatever comes of it: what was passed belongs to this command.
    pub(crate) fn share(&mut self, driver: &dyn Driver, region: RegionId, bytes: u64) -> CuResult<()> {
        let inbox = self.inbox.as_ref().ok_or(CudaError::NOT_SUPPORTED)?;
        let file = inbox.take().ok().flatten().ok_or(CudaError::INVALID_VALUE)?;
        if self.bytes.contains_key(&region) {
            return Err(CudaError::INVALID_HANDLE);
        }
        let total_bytes = self.total_bytes.checked_add(bytes).filter(|total| *total <= self.bytes_max);
        let total_bytes = total_bytes.ok_or(CudaError::OUT_OF_MEMORY)?;
        if self.bytes.len() >= REGIONS_MAX {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        let pages = SharedPages::adopt(&file, bytes).map_err(|error| {
            tracing::warn!(%error, "a client passed memory that is not taken");
            CudaError::INVALID_VALUE
        })?;
        driver.share_host(region, Arc::new(pages))?;
        self.bytes.insert(region, bytes);
        self.total_bytes = total_bytes;
        Ok(())
    }

    /// Lets go of a region.
    pub(crate) fn unshare(&mut self, driver: &dyn Driver, region: RegionId) -> CuResult<()> {
        let bytes = self.bytes.remove(&region).ok_or(CudaError::INVALID_HANDLE)?;
        self.total_bytes -= bytes;
        driver.unshare_host(region);
        Ok(())
    }
}
