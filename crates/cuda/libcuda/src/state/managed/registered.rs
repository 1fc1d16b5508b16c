//! Registered host memory at one address (cuMemHostRegister with `CU_MEMHOSTREGISTER_DEVICEMAP`).
//!
//! The program's pages become managed memory where they lie, if the worker can have device memory at the same addresses: then
//! kernels reach them through any pointer. They are the program's own again when it unregisters them, or when their context ends.

use super::{Area, Areas, CHANGED, IS_ANY, lock_areas, no_pages, serve};
use crate::{
    paging::{self, Pages},
    state::{Context, client, lock, memory::or_squeeze, memory_of},
};
use cuda_abi::{CuResult, CudaError};
use cuda_client::managed::Table;
use cuda_wire::{Command, VaRange};
use std::{
    sync::{Arc, Mutex, MutexGuard, atomic::Ordering},
    time::Duration,
};

/// One registers or unregisters at a time.
static REGISTERING: Mutex<()> = Mutex::new(());

/// Each fetch wakes the threads that wait for bytes. Work in between makes what was wanted void, without a word.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Has memory that the program registers be managed memory. If that cannot be had, nothing has changed.
pub(crate) fn adopt_registered(context: &Arc<Context>, base: u64, bytes: u64, flags: u32) -> CuResult<()> {
    // A program that survives its worker would need the same addresses there. Kernels of several devices may use registered memory at
    // once; device memory belongs to one.
    let is_alone = client()?.devices.len() == 1;
    if context.link.survives() || !is_alone || !paging::is_adoptable(base, bytes) {
        return Err(CudaError::NOT_SUPPORTED);
    }
    paging::start(&serve::RESOLVER).map_err(no_pages)?;
    // Programs read files into such memory.
    if !paging::serves_system_calls() {
        return Err(CudaError::NOT_SUPPORTED);
    }
    let _one = lock(&REGISTERING);
    let device = context.device()?;
    if !device.memory.is_kept(base, bytes) {
        let is_kept =
            |range: &VaRange| context.link.call(&Command::AddressesReserve { range: *range }).is_ok();
        let kept = device.memory.keepable(base, bytes).into_iter().find(is_kept);
        device.memory.note_kept(kept.ok_or(CudaError::NOT_SUPPORTED)?);
    }
    let command = Command::MemoryAllocate { context: context.id, address: base, bytes };
    or_squeeze(device, || context.settle(context.link.allocate(&command, bytes)))?;
    // The lock keeps touches waiting until the area is there.
    let mut areas = lock_areas();
    let pages = match Pages::adopt(base, bytes) {
        Ok(pages) => Arc::new(pages),
        Err(error) => {
            drop(areas);
            crate::log::debug(|| format!("registered memory at {base:#x} stays where it is: {error}"));
            device.link.post(&Command::MemoryFree { address: base })?;
            return Err(CudaError::NOT_SUPPORTED);
        }
    };
    crate::log::debug(|| format!("{bytes} bytes of registered memory at {base:#x}, for kernels too"));
    areas.by_base.insert(base, Area::new(context, base, pages, Table::on_host(bytes), bytes));
    IS_ANY.store(true, Ordering::Release);
    device.memory.note_registered(context, base, bytes, flags);
    Ok(())
}

/// cuMemHostUnregister of such memory. Whatever fails, the memory is the program's own afterwards.
pub(crate) fn give_back_registered(base: u64) -> CuResult<()> {
    let _one = lock(&REGISTERING);
    let device = memory_of(base).ok_or(CudaError::HOST_MEMORY_NOT_REGISTERED)?;
    let (mut areas, home) = bring_home(base);
    areas.end(base);
    device.memory.forget_registered(base);
    drop(areas);
    CHANGED.notify_all();
    home.and(device.link.post(&Command::MemoryFree { address: base }))
}

/// A context is about to end, and with it the device memory behind registered memory.
pub(crate) fn give_back_all_of(context: u64) {
    if !super::is_any() {
        return;
    }
    let areas = lock_areas();
    let mine =
        areas.by_base.values().filter(|area| area.context.handle == context && is_registered(area.base));
    let mine: Vec<u64> = mine.map(|area| area.base).collect();
    drop(areas);
    for base in mine {
        if let Err(error) = give_back_registered(base) {
            crate::log::error(&format!(
                "registered memory at {base:#x} may lack what kernels wrote: {error}"
            ));
        }
    }
}

/// Whether registered memory at one address starts here.
pub(crate) fn is_registered(base: u64) -> bool {
    super::is_any() && memory_of(base).is_some_and(|device| device.memory.is_registered(base))
}

/// Whether any of a range is such memory.
pub(crate) fn meets_registered(base: u64, bytes: u64) -> bool {
    super::is_any()
        && client().is_ok_and(|client| {
            client.devices.iter().any(|device| device.memory.meets_registered(base, bytes))
        })
}

impl Areas {
    /// The program has unmapped registered memory without a word: what lies there now is none of ours.
    pub(super) fn leave(&mut self, base: u64) -> CuResult<()> {
        crate::log::error(&format!(
            "memory at {base:#x} was unmapped while it was registered; cuMemHostUnregister it before"
        ));
        let Some(device) = memory_of(base) else { return Ok(()) };
        self.end(base);
        device.memory.forget_registered(base);
        device.link.post(&Command::MemoryFree { address: base })
    }
}

/// Has all that only the device has fetched. The lock that is returned keeps it so.
///
/// `dxpu-pages` does it, which serves touches, too: two threads that fetch the same bytes would overwrite what the program writes
/// once it has them from the first.
fn bring_home(base: u64) -> (MutexGuard<'static, Areas>, CuResult<()>) {
    let mut areas = lock_areas();
    if let Some(area) = areas.by_base.get_mut(&base) {
        area.has_failed = false;
    }
    loop {
        let Some(area) = areas.by_base.get(&base) else { return (areas, Ok(())) };
        let Some(first) = area.table.only_on_device(&(0..area.bytes)).into_iter().next() else {
            return (areas, Ok(()));
        };
        if area.has_failed {
            return (areas, Err(CudaError::UNKNOWN));
        }
        let rest = first.start..area.bytes;
        areas.want(base, &rest);
        areas = locks::wait_for(&CHANGED, areas, LOOK_AGAIN);
    }
}
