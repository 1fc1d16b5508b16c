//! Managed memory: the shell around [`cuda_client::managed`], which says which side has the newest bytes of each block.
//!
//! An allocation is device memory like any other, and host memory at the same address here ([`crate::paging`]).
//!
//! - [`work`]: before work that may use it, what the program wrote is sent by the context's side stream, the work's stream waits
//!   for that, and the pages are closed.
//! - [`serve`]: a touch of a closed page waits for the work that may have changed it, fetches the bytes and opens the page.
//!
//! One lock for all of it, [`lock_areas`]. Under it commands are posted and bytes are sent, but nothing waits for work of the
//! program's streams: a host function that a stream waits for may touch managed memory, too. No thread of ours touches the
//! program's view of the memory; we use the alias.

#![allow(unsafe_code)]

mod hints;
mod registered;
mod serve;
mod side;
mod variables;
mod work;

pub(crate) use hints::*;
pub(crate) use registered::*;
pub(crate) use variables::{add_variables, remove_variables};
pub(crate) use work::*;

use super::{Allocation, AllocationKind, Context, Copy, Place, Stream, lock};
use crate::{
    host::HostRegion,
    paging::{Access, Pages},
};
use cuda_abi::{CuResult, CudaError};
use cuda_client::{
    managed::{BLOCK_BYTES, Block, Table, advice::Advices},
    shadow::SHADOWED_BYTES_MAX,
};
use cuda_wire::{Op, Plane, Shape};
use side::Sides;
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use variables::Held;

/// Whether there is any: most programs have none, and pay one branch.
static IS_ANY: AtomicBool = AtomicBool::new(false);

static AREAS: Mutex<Areas> = Mutex::new(Areas::new());
/// A copy into managed memory was enqueued, a hold was lifted.
static CHANGED: Condvar = Condvar::new();

/// Whether any managed memory is alive.
#[inline]
pub(crate) fn is_any() -> bool {
    IS_ANY.load(Ordering::Acquire)
}

fn lock_areas() -> MutexGuard<'static, Areas> {
    lock(&AREAS)
}

/// Which work may use an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attached {
    /// All.
    Global,
    /// None: it is the host's.
    Host,
    /// That of one stream, by its name on the worker.
    Stream(u32),
}

/// One allocation.
struct Area {
    base: u64,
    bytes: u64,
    /// A number that no other area ever had.
    number: u64,
    context: Arc<Context>,
    pages: Arc<Pages>,
    table: Table,
    attached: Attached,
    advices: Advices,
    /// Copies into these bytes are being enqueued.
    targets: Vec<Range<u64>>,
    /// Changes with all work that may change the memory.
    generation: u64,
    /// A fetch has failed.
    has_failed: bool,
    /// Bytes that were sent and fetched, for the log.
    moved: (u64, u64),
    /// Which of its bytes are managed memory.
    held: Held,
}

impl Area {
    fn new(context: &Arc<Context>, base: u64, pages: Arc<Pages>, table: Table, bytes: u64) -> Self {
        Self {
            base,
            bytes,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            context: Arc::clone(context),
            pages,
            table,
            attached: Attached::Global,
            advices: Advices::default(),
            targets: Vec::new(),
            generation: 0,
            has_failed: false,
            moved: (0, 0),
            held: Held::default(),
        }
    }

    /// The program's bytes in a range, as we reach them.
    fn region(&self, range: &Range<u64>) -> HostRegion {
        region(&self.pages, range)
    }

    fn copy_to_device(&self, range: &Range<u64>) -> Copy {
        let bytes = range.end - range.start;
        Copy {
            source: Place::Host(self.region(range)),
            target: Place::Device(Plane::line(self.base + range.start)),
            shape: Shape::line(bytes),
        }
    }

    /// The part of some addresses that lies in it.
    fn part(&self, address: u64, bytes: u64) -> Range<u64> {
        let start = address.max(self.base) - self.base;
        let end = address.saturating_add(bytes).min(self.base + self.bytes).saturating_sub(self.base);
        start..end.max(start)
    }
}

/// Bytes of an allocation, as we reach them.
fn region(pages: &Pages, range: &Range<u64>) -> HostRegion {
    // SAFETY: the alias is mapped readable and writable for as long as `pages`, which callers keep until their copy is done.
    unsafe { HostRegion::line(pages.alias(range.start), range.end - range.start) }
}

/// Everything that is alive.
struct Areas {
    by_base: BTreeMap<u64, Area>,
    sides: Sides,
    /// Work that may use managed memory waits: a touch was overtaken too often.
    is_held: bool,
    /// Whether a host function runs. There is one thread for each worker.
    functions: usize,
    /// Areas that the host function which runs now has touched.
    by_functions: Vec<u64>,
    /// Fetches that are under way.
    fetching: usize,
    /// Prefetches to the host.
    wanted: Vec<serve::Wanted>,
}

impl Areas {
    const fn new() -> Self {
        Self {
            by_base: BTreeMap::new(),
            sides: Sides::new(),
            is_held: false,
            functions: 0,
            by_functions: Vec::new(),
            fetching: 0,
            wanted: Vec::new(),
        }
    }

    fn at(&mut self, address: u64) -> Option<&mut Area> {
        let (_, area) = self.by_base.range_mut(..=address).next_back()?;
        (address - area.base < area.bytes).then_some(area)
    }

    /// The area of a number, if it is still there.
    fn numbered(&mut self, base: u64, number: u64) -> Option<&mut Area> {
        self.by_base.get_mut(&base).filter(|area| area.number == number)
    }

    /// Bases of areas that some addresses meet.
    fn met_by(&self, address: u64, bytes: u64) -> Vec<u64> {
        let end = address.saturating_add(bytes);
        let all = self.by_base.range(..end).rev();
        all.take_while(|(_, area)| area.base + area.bytes > address).map(|(base, _)| *base).collect()
    }

    fn end(&mut self, base: u64) {
        if let Some(area) = self.by_base.remove(&base) {
            area.pages.end_view();
            let (sent, fetched) = area.moved;
            crate::log::debug(|| {
                format!("managed memory at {base:#x} ends: {sent} bytes sent, {fetched} bytes fetched")
            });
        }
        if self.by_base.is_empty() {
            self.sides.forget_streams();
            IS_ANY.store(false, Ordering::Release);
        }
    }
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// cuMemAllocManaged.
pub(crate) fn allocate_managed(context: &Arc<Context>, bytes: u64, attached: Attached) -> CuResult<u64> {
    allocate_with_pages(context, bytes, attached, AllocationKind::Managed)
}

/// cuMemHostAlloc of memory that kernels reach by its own address, wherever they have it from.
pub(crate) fn allocate_mapped_host(context: &Arc<Context>, bytes: u64, flags: u32) -> CuResult<u64> {
    crate::paging::start(&serve::RESOLVER).map_err(no_pages)?;
    // Programs read files into such memory; and shadows serve smaller memory, where kernels are given its address.
    if !crate::paging::serves_system_calls() && bytes <= SHADOWED_BYTES_MAX {
        return Err(CudaError::NOT_SUPPORTED);
    }
    allocate_with_pages(context, bytes, Attached::Global, AllocationKind::MappedHost { flags })
}

/// The flags of such memory, where an address lies in it.
pub(crate) fn mapped_host_at(address: u64) -> Option<(Allocation, u32)> {
    if !is_any() {
        return None;
    }
    let found = super::memory_of(address)?.memory.find(address)?;
    let flags = found.kind.host_flags()?;
    Some((found, flags))
}

fn allocate_with_pages(
    context: &Arc<Context>,
    bytes: u64,
    attached: Attached,
    kind: AllocationKind,
) -> CuResult<u64> {
    crate::paging::start(&serve::RESOLVER).map_err(no_pages)?;
    let whole = bytes.checked_next_multiple_of(BLOCK_BYTES).ok_or(CudaError::OUT_OF_MEMORY)?;
    let base = super::memory::allocate_as(context, bytes, kind)?;
    let added = add(context, base, bytes, whole, attached);
    if added.is_err() {
        let _ = super::free_device_memory(base);
    }
    added.map(|()| base)
}

fn no_pages(error: std::io::Error) -> CudaError {
    crate::log::error(&format!("no host pages for managed memory: {error}"));
    CudaError::OUT_OF_MEMORY
}

fn add(context: &Arc<Context>, base: u64, bytes: u64, whole: u64, attached: Attached) -> CuResult<()> {
    let pages = Arc::new(Pages::create(base, whole).map_err(no_pages)?);
    crate::log::debug(|| {
        let how = if crate::paging::serves_system_calls() { "also" } else { "not" };
        format!("{bytes} bytes of managed memory at {base:#x}, {how} for system calls")
    });
    let area = Area { attached, ..Area::new(context, base, pages, Table::new(bytes), bytes) };
    let mut areas = lock_areas();
    // Both sides begin as zeros.
    let (target, shape) = (Plane::line(base), Shape::line(whole));
    let zero = Op::Fill { target, shape, element_bytes: 1, value: 0 };
    let posted = areas.sides.post(context, zero);
    areas.by_base.insert(base, area);
    IS_ANY.store(true, Ordering::Release);
    if posted.is_err() {
        areas.end(base);
    }
    posted
}

/// The program frees device memory: if it is managed, this process's part of it goes.
pub(super) fn free_managed(base: u64) {
    if is_any() {
        lock_areas().end(base);
        CHANGED.notify_all();
    }
}

/// A context ended, and with it the memory that was made in it.
pub(super) fn forget_context(context: u64) {
    if !is_any() {
        return;
    }
    let mut areas = lock_areas();
    let gone = areas.by_base.values().filter(|area| area.context.handle == context);
    let gone: Vec<u64> = gone.map(|area| area.base).collect();
    gone.into_iter().for_each(|base| areas.end(base));
    areas.sides.forget_context(context);
    drop(areas);
    CHANGED.notify_all();
}

/// A stream ends; what it still does is waited for as that of its context.
pub(super) fn forget_stream(stream: &Stream) {
    if is_any() {
        lock_areas().sides.stream_ends(stream);
    }
}

/// What the program may do with a block.
fn access_to(block: Option<Block>) -> Access {
    match block {
        Some(Block::Same) => Access::Read,
        Some(Block::HostNewer) => Access::Write,
        Some(Block::DeviceNewer | Block::Ready) | None => Access::Closed,
    }
}
