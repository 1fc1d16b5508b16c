//! Memory of the program that the worker maps too.

use super::{Link, WORKER_LOST};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{Command, RegionId};
use locks::lock;
use std::os::fd::BorrowedFd;
use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};
use transport::Courier;

/// The way for memory to one worker.
pub(super) struct Sharing {
    courier: Courier,
    /// The number of the last region. Held while a descriptor is passed and the worker is told of it: both must come in one
    /// order.
    turn: Mutex<u32>,
    /// The worker's driver does not do it, so nothing is passed any more.
    is_refused: AtomicBool,
}

impl Sharing {
    pub(super) fn new(courier: Courier) -> Self {
        Self { courier, turn: Mutex::default(), is_refused: AtomicBool::new(false) }
    }
}

impl Link {
    /// Whether the worker may map memory of the program.
    pub(crate) fn shares_memory(&self) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| !sharing.is_refused.load(Ordering::Relaxed))
    }

    /// Has the worker map `bytes` of memory by its descriptor. An error means that copies of it take the lanes, no more.
    pub(crate) fn share_memory(&self, memory: BorrowedFd<'_>, bytes: u64) -> CuResult<RegionId> {
        let sharing = self.sharing.as_ref().ok_or(CudaError::NOT_SUPPORTED)?;
        let mut turn = lock(&sharing.turn);
        let number = turn.checked_add(1).ok_or(CudaError::OUT_OF_MEMORY)?;
        *turn = number;
        let region = RegionId(number);
        sharing.courier.pass(memory).map_err(|_| WORKER_LOST)?;
        match self.call(&Command::HostShare { region, bytes }) {
            Ok(_) => Ok(region),
            Err(error) => {
                let is_refused = error == CudaError::NOT_SUPPORTED;
                sharing.is_refused.fetch_or(is_refused, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Has the worker let go of a region when the work before is done.
    pub(crate) fn unshare_memory(&self, region: RegionId) {
        // A worker that is lost has let go already.
        let _ = self.post(&Command::HostUnshare { region });
    }
}
