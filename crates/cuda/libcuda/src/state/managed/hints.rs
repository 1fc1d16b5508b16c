//! What a program says about managed memory, and asks.

use super::{Areas, Attached, lock_areas};
use crate::state::Stream;
use cuda_abi::{CuResult, CudaError};
use cuda_client::managed::advice::{Advice, HOST, Place};
use std::{ops::Range, sync::Arc};

impl Areas {
    /// The one area that holds a range, and the range in it.
    fn range(&mut self, address: u64, bytes: u64) -> CuResult<(u64, Range<u64>)> {
        if super::mapped_host_at(address).is_some() {
            return Err(CudaError::INVALID_VALUE);
        }
        let area = self.at(address).ok_or(CudaError::INVALID_VALUE)?;
        let start = address - area.base;
        let end =
            start.checked_add(bytes).filter(|end| *end <= area.bytes).ok_or(CudaError::INVALID_VALUE)?;
        if bytes == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok((area.base, start..end))
    }
}

/// Fails unless a range is managed memory.
pub(crate) fn check_managed(address: u64, bytes: u64) -> CuResult<()> {
    lock_areas().range(address, bytes).map(drop)
}

/// cuMemPrefetchAsync: to a device, what the program wrote is sent now; to the host, what the device has is fetched when the
/// stream's work is done.
pub(crate) fn prefetch(stream: &Arc<Stream>, address: u64, bytes: u64, to: Place) -> CuResult<()> {
    let mut areas = lock_areas();
    let (base, range) = areas.range(address, bytes)?;
    if let Some(area) = areas.by_base.get_mut(&base) {
        area.advices.change(&range, |advice| advice.prefetched = to);
    }
    if to == HOST {
        areas.want(base, &range);
        return Ok(());
    }
    areas.share(base, &range)?;
    areas.order(stream, base)
}

/// cuMemAdvise: kept, so that the program can ask. Nothing follows from it.
pub(crate) fn advise(address: u64, bytes: u64, change: impl Fn(&mut Advice)) -> CuResult<()> {
    let mut areas = lock_areas();
    let (base, range) = areas.range(address, bytes)?;
    if let Some(area) = areas.by_base.get_mut(&base) {
        area.advices.change(&range, change);
    }
    Ok(())
}

/// What holds for a whole range.
pub(crate) fn advice_for(address: u64, bytes: u64) -> CuResult<Advice> {
    let mut areas = lock_areas();
    let (base, range) = areas.range(address, bytes)?;
    let area = areas.by_base.get(&base).ok_or(CudaError::INVALID_VALUE)?;
    Ok(area.advices.of(&range))
}

/// cuStreamAttachMemAsync: from the next work on. Work before it has closed the pages already.
pub(crate) fn attach(address: u64, bytes: u64, attached: Attached) -> CuResult<()> {
    let mut areas = lock_areas();
    let area = areas.by_base.get_mut(&address).ok_or(CudaError::INVALID_VALUE)?;
    if area.held.is_variables() {
        // Its page may have others, which stay with all streams.
        return Err(CudaError::NOT_SUPPORTED);
    }
    if bytes != 0 && bytes != area.bytes {
        return Err(CudaError::INVALID_VALUE);
    }
    area.attached = attached;
    Ok(())
}
