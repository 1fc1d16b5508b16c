//! Memory and events that this process shares with the program's other processes.
//!
//! The worker keeps both; a handle only names them (`cuda_client::shares`). What is opened is mapped where this process
//! chooses, as its own memory is.
//!
//! Another process must find what a call of this one has done when that call has returned. So whatever other processes
//! can see is awaited from the first shared thing on: small synchronous copies, records of shared events and waits for them.

use super::{Allocation, AllocationKind, Context, Device, Event, client, lock, memory_of};
use crate::{
    link::{Link, take_last_message},
    log,
};
use cuda_abi::{CuResult, CudaError};
use cuda_client::shares::{HANDLE_BYTES, Handle, What};
use cuda_wire::{Command, Imported, MemoryHandleId, ShareName, Shared};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

/// Whether this process shares anything: most never do.
static USED: AtomicBool = AtomicBool::new(false);

static SHARES: Mutex<Shares> =
    Mutex::new(Shares { exported: BTreeMap::new(), sessions: BTreeSet::new(), opened: BTreeMap::new() });

struct Shares {
    /// Handles of allocations, by the number of the allocation.
    exported: BTreeMap<u64, Handle>,
    /// The names that workers have for this process.
    sessions: BTreeSet<[u8; 16]>,
    /// Memory of other processes, by its address here.
    opened: BTreeMap<u64, Opened>,
}

/// Memory of another process.
#[derive(Clone, Copy)]
struct Opened {
    /// Its handle; `None` for an address in a pool, which is imported anew each time.
    name: Option<ShareName>,
    context: u64,
    /// The range that is mapped.
    at: u64,
    span: u64,
    references: u32,
}

/// A piece that was imported, under the name it has here.
type Piece = (MemoryHandleId, Imported);

/// Whether this process shares anything with others.
#[inline]
pub(crate) fn shares_are_used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// From now on other processes may see what this one does.
pub(super) fn begin(link: &Link) {
    link.unprotect("it shares memory or events with another process, which no image holds");
    USED.store(true, Ordering::SeqCst);
}

/// The handle of what a worker shares from now on.
fn note(shared: Shared, what: What, bytes: u64) -> CuResult<Handle> {
    lock(&SHARES).sessions.insert(shared.name.session);
    let pieces = u16::try_from(shared.pieces).map_err(|_| CudaError::INVALID_VALUE)?;
    Ok(Handle { what, pieces, name: shared.name, bytes, offset: shared.offset })
}

/// The handle of the allocation that holds an address, if it is one that `is_allowed`.
pub(crate) fn share_memory(
    address: u64,
    what: What,
    is_allowed: impl FnOnce(&Allocation) -> bool,
) -> CuResult<[u8; HANDLE_BYTES]> {
    let device = memory_of(address).ok_or(CudaError::INVALID_VALUE)?;
    let found = device.memory.find(address).filter(is_allowed).ok_or(CudaError::INVALID_VALUE)?;
    if let Some(handle) = lock(&SHARES).exported.get(&found.buffer) {
        return Ok(handle.to_bytes());
    }
    begin(&device.link);
    if client()?.unawaited.count() > 0 {
        // Synchronous copies that were not awaited must be there when the other process looks.
        let stream = Context::find(found.context)?.legacy_stream()?;
        stream.context.call(&Command::StreamSynchronize { stream: stream.id })?;
    }
    let shared = device.link.ask(&Command::MemoryShare { address: found.base, bytes: found.bytes })?;
    let handle = note(shared, what, found.bytes)?;
    lock(&SHARES).exported.insert(found.buffer, handle);
    Ok(handle.to_bytes())
}

/// The handle of physical memory.
pub(crate) fn share_physical(
    device: &Device,
    id: MemoryHandleId,
    bytes: u64,
) -> CuResult<[u8; HANDLE_BYTES]> {
    begin(&device.link);
    let shared = device.link.ask(&Command::PhysicalShare { handle: id })?;
    Ok(note(shared, What::Physical, bytes)?.to_bytes())
}

/// The handle of an event.
pub(crate) fn share_event(event: &Event) -> CuResult<[u8; HANDLE_BYTES]> {
    let context = &event.context;
    begin(&context.link);
    let shared = context.settle(context.link.ask(&Command::EventShare { event: event.id }))?;
    Ok(note(shared, What::Event, 0)?.to_bytes())
}

/// An allocation is gone.
pub(super) fn forget_shared(allocation: &Allocation) {
    if shares_are_used() {
        lock(&SHARES).exported.remove(&allocation.buffer);
    }
}

/// Whether a handle is this process's own.
pub(crate) fn is_own(handle: &Handle) -> bool {
    lock(&SHARES).sessions.contains(&handle.name.session)
}

/// Reads a handle. One that is none is told to the user, too.
pub(crate) fn read_handle(function: &str, bytes: &[u8; HANDLE_BYTES], what: What) -> CuResult<Handle> {
    Handle::from_bytes(bytes, what).ok_or_else(|| {
        let words = "the bytes are no such handle of dxpu's; the process that made it must use dxpu, too";
        log::error(&format!("{function}: {words}"));
        CudaError::INVALID_VALUE
    })
}

/// Says in the worker's words why a handle does not open.
pub(super) fn explained<T>(function: &str, result: CuResult<T>) -> CuResult<T> {
    if result.is_err() {
        let words = take_last_message();
        if !words.is_empty() {
            log::error(&format!("{function}: {words}"));
        }
    }
    result
}

/// Takes all pieces of another process's memory.
pub(crate) fn import_pieces(function: &str, link: &Link, handle: &Handle) -> CuResult<Vec<Piece>> {
    begin(link);
    let mut pieces: Vec<Piece> = Vec::new();
    for piece in 0..u32::from(handle.pieces) {
        let id = MemoryHandleId(client()?.next_id());
        let answer = link.ask(&Command::PhysicalImport { handle: id, name: handle.name, piece });
        match explained(function, answer) {
            Ok(imported) => pieces.push((id, imported)),
            Err(error) => {
                release(link, &pieces);
                return Err(error);
            }
        }
    }
    let end = handle.offset.checked_add(handle.bytes);
    if end.is_none_or(|end| end > span(&pieces)) || handle.bytes == 0 {
        release(link, &pieces);
        return Err(CudaError::INVALID_VALUE);
    }
    Ok(pieces)
}

/// Lets go of imported pieces. Where they are mapped they stay.
fn release(link: &Link, pieces: &[Piece]) {
    for (id, _) in pieces {
        // A worker that is lost has nothing to let go of.
        let _ = link.post(&Command::PhysicalRelease { handle: *id });
    }
}

fn span(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|(_, imported)| imported.bytes).fold(0, u64::saturating_add)
}

/// cuIpcOpenMemHandle: a handle that is open in this context already is the same address.
pub(crate) fn open_memory(function: &str, context: &Arc<Context>, handle: &Handle) -> CuResult<u64> {
    let mut shares = lock(&SHARES);
    let mut opened = shares.opened.iter_mut();
    let known = opened.find(|(_, known)| known.name == Some(handle.name) && known.context == context.handle);
    if let Some((address, known)) = known {
        known.references += 1;
        return Ok(*address);
    }
    // No other thread opens it a second time meanwhile.
    let (address, opened) = open(function, context, handle)?;
    shares.opened.insert(address, Opened { name: Some(handle.name), ..opened });
    Ok(address)
}

/// cuMemPoolImportPointer.
pub(crate) fn open_pool_memory(function: &str, context: &Arc<Context>, handle: &Handle) -> CuResult<u64> {
    let (address, opened) = open(function, context, handle)?;
    lock(&SHARES).opened.insert(address, opened);
    Ok(address)
}

/// Imports memory and maps it. Returns its address.
fn open(function: &str, context: &Arc<Context>, handle: &Handle) -> CuResult<(u64, Opened)> {
    let link = &context.link;
    let pieces = import_pieces(function, link, handle)?;
    let (span, remote) = (span(&pieces), pieces.first().map_or(0, |(_, imported)| imported.device));
    let is_owner = |device: &&Device| Arc::ptr_eq(&device.link, link) && device.remote == remote;
    let owner = client()?.devices.iter().find(is_owner).ok_or(CudaError::INVALID_DEVICE)?;
    let placed = owner.memory.place_import(context, owner.ordinal, span, handle.offset, handle.bytes);
    let at = placed.inspect_err(|_| release(link, &pieces))?;
    let mut address = at;
    for (id, Imported { offset, bytes, device }) in &pieces {
        link.post(&Command::PhysicalMap { address, bytes: *bytes, offset: *offset, handle: *id })?;
        let mut reaching = vec![*device, context.device()?.remote];
        reaching.dedup();
        for device in reaching {
            link.post(&Command::PhysicalSetAccess { address, bytes: *bytes, device, protection: 3 })?;
        }
        address += bytes;
    }
    release(link, &pieces);
    let opened = Opened { name: None, context: context.handle, at, span, references: 1 };
    Ok((at + handle.offset, opened))
}

/// Closes memory of another process: of cuIpcOpenMemHandle, or of a pool. False: there is none at this address.
pub(crate) fn close_memory(address: u64, is_pool: bool) -> CuResult<bool> {
    let mut shares = lock(&SHARES);
    let Some(opened) = shares.opened.get_mut(&address).filter(|opened| opened.name.is_none() == is_pool)
    else {
        return Ok(false);
    };
    opened.references -= 1;
    if opened.references > 0 {
        return Ok(true);
    }
    let gone = *opened;
    shares.opened.remove(&address);
    drop(shares);
    unmap(address, gone).map(|()| true)
}

/// Frees an address in another process's pool. False: it is none.
pub(crate) fn free_imported(address: u64) -> CuResult<bool> {
    if shares_are_used() { close_memory(address, true) } else { Ok(false) }
}

fn unmap(address: u64, gone: Opened) -> CuResult<()> {
    let device = memory_of(address).ok_or(CudaError::INVALID_VALUE)?;
    // Told before the addresses can be used again.
    let told = device.link.post(&Command::PhysicalUnmap { address: gone.at, bytes: gone.span });
    device.memory.remove_import(address);
    told
}

/// A context ends, and with it what was opened in it.
pub(super) fn close_all_of(context: &Context) {
    if !shares_are_used() {
        return;
    }
    let mut shares = lock(&SHARES);
    let in_it = |opened: &Opened| opened.context == context.handle;
    let gone: Vec<(u64, Opened)> =
        shares.opened.iter().filter(|(_, opened)| in_it(opened)).map(|(at, opened)| (*at, *opened)).collect();
    shares.opened.retain(|_, opened| !in_it(opened));
    drop(shares);
    for (address, opened) in gone {
        // A worker that is lost has unmapped everything.
        let _ = unmap(address, opened);
    }
}

impl AllocationKind {
    /// Whether cuIpcGetMemHandle takes it.
    pub(crate) fn is_ipc_capable(self) -> bool {
        self == Self::Plain
    }
}
