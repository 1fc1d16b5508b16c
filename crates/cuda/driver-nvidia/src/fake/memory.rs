//! Device memory behind virtual addresses, and pinned memory of the process.

use super::{Fake, devices::GRANULARITY, put};
use crate::sys::{Context, DeviceAddress, MemAccess, MemAllocationProp};
use cuda_abi::{CuResult, CudaError};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory of a device.
pub(super) const DEVICE_BYTES: usize = 1 << 30;
/// The GPU sees registered memory this much above where the process sees it.
pub(crate) const PINNED_OFFSET: u64 = 1 << 56;
/// Variables of modules lie here.
const VARIABLES: u64 = 0x6100_0000_0000;
/// They come in pieces.
const PIECE_BYTES: u64 = 2 << 20;
const READ_WRITE: c_uint = 3;
/// The driver does not round such ranges up.
const WHOLE: usize = 1 << 30;
/// The first address that is chosen for a program that names none.
const CHOSEN: u64 = 0x5000_0000_0000;

#[derive(Debug, Default)]
pub(super) struct MemoryState {
    /// By device.
    pub(super) free_bytes: Vec<usize>,
    pub(super) reserved: BTreeMap<u64, usize>,
    pub(super) physical: HashMap<u64, PhysicalState>,
    pub(super) mappings: BTreeMap<u64, MappingState>,
    /// Start and bytes of what is registered.
    pub(super) pinned: BTreeMap<usize, usize>,
    variables: BTreeMap<u64, Vec<u8>>,
    /// By context: where the next variable comes, and the end of the piece that it must fit into.
    pieces: HashMap<Context, (u64, u64)>,
    /// What was reserved at addresses that this driver chose, or in pieces that it rounds up, and what streams took. It moves
    /// pieces that come later, as in the real one.
    chosen_bytes: u64,
    streams: u64,
    next_handle: u64,
}

#[derive(Debug)]
pub(super) struct PhysicalState {
    device: usize,
    data: Vec<u8>,
    /// Handles that were not given back. When there is none, it goes with its last mapping.
    handles: usize,
    /// `CUmemAllocationHandleType`.
    handle_types: c_uint,
}

#[derive(Debug)]
pub(super) struct MappingState {
    bytes: usize,
    handle: u64,
    has_access: bool,
}

impl MemoryState {
    pub(super) fn install(&mut self, devices: usize) {
        self.free_bytes = vec![DEVICE_BYTES; devices];
    }

    /// A variable of a module.
    pub(super) fn add_variable(&mut self, context: Context, bytes: usize) -> u64 {
        let all_end = self.pieces.values().map(|&(_, end)| end).max().unwrap_or(0);
        let (next, end) = self.pieces.entry(context).or_default();
        if *next + bytes as u64 > *end {
            *next = all_end.max(VARIABLES + self.chosen_bytes);
            *end = (*next + bytes as u64).next_multiple_of(PIECE_BYTES);
        }
        let address = *next;
        *next = (address + bytes as u64).next_multiple_of(16);
        self.variables.insert(address, vec![0; bytes]);
        address
    }

    /// Streams take from the same room as pieces.
    pub(super) fn add_stream(&mut self) {
        const STREAMS_OF_A_PIECE: u64 = 2;
        self.streams += 1;
        if self.streams.is_multiple_of(STREAMS_OF_A_PIECE) {
            self.chosen_bytes += PIECE_BYTES;
        }
    }

    /// Whether a range leaves the variable that it begins in. A copy may not, even where another variable follows at once.
    pub(super) fn leaves_variable(&self, address: u64, bytes: usize) -> bool {
        let Some((&start, data)) = self.variables.range(..=address).next_back() else { return false };
        let end = start + data.len() as u64;
        address < end && address + bytes as u64 > end
    }

    pub(super) fn remove_variable(&mut self, address: u64) {
        self.variables.remove(&address);
    }

    pub(super) fn is_pinned(&self, start: usize, bytes: usize) -> bool {
        let found = self.pinned.range(..=start).next_back();
        found.is_some_and(|(&from, &count)| start + bytes <= from + count)
    }

    /// The bytes at an address up to the end of what is mapped there, at most `bytes`.
    fn piece(&mut self, address: u64, bytes: usize) -> Option<&mut [u8]> {
        if let Some((&start, data)) = self.variables.range_mut(..=address).next_back()
            && let Some(rest) = data.get_mut((address - start) as usize..)
            && !rest.is_empty()
        {
            let count = rest.len().min(bytes);
            return Some(&mut rest[..count]);
        }
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        let at = (address - start) as usize;
        if !mapping.has_access || at >= mapping.bytes {
            return None;
        }
        let end = mapping.bytes.min(at + bytes);
        self.physical.get_mut(&mapping.handle)?.data.get_mut(at..end)
    }

    pub(super) fn read(&mut self, address: u64, out: &mut [u8]) -> bool {
        let mut done = 0;
        while done < out.len() {
            let Some(piece) = self.piece(address + done as u64, out.len() - done) else { return false };
            out[done..done + piece.len()].copy_from_slice(piece);
            done += piece.len();
        }
        true
    }

    pub(super) fn write(&mut self, address: u64, bytes: &[u8]) -> bool {
        let mut done = 0;
        while done < bytes.len() {
            let Some(piece) = self.piece(address + done as u64, bytes.len() - done) else { return false };
            let count = piece.len();
            piece.copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
        true
    }

    pub(super) fn read_pinned(&self, start: usize, out: &mut [u8]) -> bool {
        let source: *const u8 = std::ptr::with_exposed_provenance(start);
        let is_there = self.is_pinned(start, out.len());
        if is_there {
            // SAFETY: registered memory is mapped; the crate leaves it alone while a stream uses it, or a test fails.
            unsafe { std::ptr::copy_nonoverlapping(source, out.as_mut_ptr(), out.len()) };
        }
        is_there
    }

    pub(super) fn write_pinned(&self, start: usize, bytes: &[u8]) -> bool {
        let target: *mut u8 = std::ptr::with_exposed_provenance_mut(start);
        let is_there = self.is_pinned(start, bytes.len());
        if is_there {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        }
        is_there
    }

    /// A word of pinned memory as the processor shares it.
    fn pinned_word(&self, address: u64) -> Option<&AtomicU64> {
        let start = address.checked_sub(PINNED_OFFSET)? as usize;
        let place: *const AtomicU64 = std::ptr::with_exposed_provenance(start);
        // SAFETY: registered memory is mapped, words are aligned, and both sides use them as atomics.
        (self.is_pinned(start, 8) && start.is_multiple_of(8)).then(|| unsafe { &*place })
    }

    pub(super) fn read_word(&mut self, address: u64, bytes: usize) -> Option<u64> {
        if let Some(word) = self.pinned_word(address) {
            return Some(word.load(Ordering::Acquire));
        }
        let mut word = [0; 8];
        self.read(address, &mut word[..bytes]).then(|| u64::from_le_bytes(word))
    }

    pub(super) fn write_word(&mut self, address: u64, value: u64, bytes: usize) -> bool {
        if let Some(word) = self.pinned_word(address) {
            word.store(value, Ordering::Release);
            return true;
        }
        self.write(address, &value.to_le_bytes()[..bytes])
    }

    /// Physical memory goes when its handle was given back and nothing maps it.
    fn let_go(&mut self, handle: u64) {
        let is_mapped = self.mappings.values().any(|mapping| mapping.handle == handle);
        if self.physical.get(&handle).is_some_and(|physical| physical.handles == 0 && !is_mapped)
            && let Some(physical) = self.physical.remove(&handle)
        {
            self.free_bytes[physical.device] += physical.data.len();
        }
    }

    /// The mappings that make up exactly this range.
    fn whole(&self, address: u64, bytes: usize) -> Option<Vec<u64>> {
        let (mut at, end, mut found) = (address, address + bytes as u64, Vec::new());
        while at < end {
            found.push(at);
            at += self.mappings.get(&at)?.bytes as u64;
        }
        (at == end).then_some(found)
    }
}

impl Fake {
    /// Takes memory of a device away, as another program would.
    pub(crate) fn take_memory(&self, device: usize, leave_bytes: usize) {
        self.lock().memory.free_bytes[device] = leave_bytes;
    }

    /// What a program on the device would read there.
    pub(crate) fn peek(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        assert!(self.lock().memory.read(address, &mut out), "{address:#x} is not mapped");
        out
    }

    /// Puts bytes into device memory.
    pub(crate) fn poke(&self, address: u64, bytes: &[u8]) {
        assert!(self.lock().memory.write(address, bytes), "{address:#x} is not mapped");
    }

    /// Whether a program on the device could read there.
    pub(crate) fn is_mapped(&self, address: u64) -> bool {
        self.lock().memory.piece(address, 1).is_some()
    }

    pub(crate) fn memory_info(&self, free: *mut usize, total: *mut usize) -> CuResult<()> {
        let state = self.lock();
        let device = state.contexts[&state.current()?].device;
        put(free, state.memory.free_bytes[device as usize]);
        put(total, DEVICE_BYTES);
        Ok(())
    }

    /// The hint is taken where it can be; without one, addresses are behind all that are taken.
    pub(crate) fn address_reserve(
        &self,
        out: *mut DeviceAddress,
        bytes: usize,
        _align: usize,
        hint: DeviceAddress,
        _flags: u64,
    ) -> CuResult<()> {
        let mut state = self.lock();
        let end = hint + bytes as u64;
        let is_taken = state.memory.reserved.iter().any(|(&at, &count)| at < end && hint < at + count as u64);
        let taken = state.memory.reserved.iter().map(|(&at, &count)| at + count as u64);
        let beyond = taken.max().unwrap_or(0).max(CHOSEN);
        let address = if is_taken || hint == 0 { beyond } else { hint };
        let is_whole = address == hint && bytes.is_multiple_of(WHOLE);
        state.memory.chosen_bytes += if is_whole { 0 } else { bytes as u64 };
        state.memory.reserved.insert(address, bytes);
        put(out, address);
        Ok(())
    }

    pub(crate) fn address_free(&self, address: DeviceAddress, bytes: usize) -> CuResult<()> {
        let mut state = self.lock();
        if state.memory.reserved.get(&address) != Some(&bytes) {
            return Err(CudaError::INVALID_VALUE);
        }
        state.memory.reserved.remove(&address);
        Ok(())
    }

    pub(crate) fn memory_create(
        &self,
        out: *mut u64,
        bytes: usize,
        prop: *const MemAllocationProp,
        _flags: u64,
    ) -> CuResult<()> {
        // SAFETY: valid for the call, as the caller promises.
        let prop = unsafe { prop.read() };
        let device = prop.location.id as usize;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut state = self.lock();
        let memory = &mut state.memory;
        let free = memory.free_bytes.get_mut(device).ok_or(CudaError::INVALID_DEVICE)?;
        *free = free.checked_sub(bytes).ok_or(CudaError::OUT_OF_MEMORY)?;
        memory.next_handle += 1;
        let made =
            PhysicalState { device, data: vec![0; bytes], handles: 1, handle_types: prop.handle_types };
        memory.physical.insert(memory.next_handle, made);
        put(out, memory.next_handle);
        Ok(())
    }

    pub(crate) fn memory_release(&self, handle: u64) -> CuResult<()> {
        let mut state = self.lock();
        match state.memory.physical.get_mut(&handle).filter(|physical| physical.handles > 0) {
            Some(physical) => physical.handles -= 1,
            None => {
                state.violation("cuMemRelease of a handle that is not there");
                return Err(CudaError::INVALID_VALUE);
            }
        }
        state.memory.let_go(handle);
        Ok(())
    }

    /// A descriptor is a file with the handle's number in it.
    pub(crate) fn memory_export(
        &self,
        out: *mut c_void,
        handle: u64,
        kind: c_uint,
        _flags: u64,
    ) -> CuResult<()> {
        let state = self.lock();
        let known = state.memory.physical.get(&handle).filter(|physical| physical.handles > 0);
        if known.is_none_or(|physical| physical.handle_types & kind == 0) {
            return Err(CudaError::INVALID_VALUE);
        }
        let words = shared_words::SharedWords::create(1).map_err(|_| CudaError::OPERATING_SYSTEM)?;
        words.words()[0].store(handle, Ordering::SeqCst);
        let fd = words.fd().try_clone_to_owned().map_err(|_| CudaError::OPERATING_SYSTEM)?;
        put(out.cast::<i32>(), std::os::fd::IntoRawFd::into_raw_fd(fd));
        Ok(())
    }

    pub(crate) fn memory_import(&self, out: *mut u64, from: *mut c_void, _kind: c_uint) -> CuResult<()> {
        // SAFETY: the caller keeps the descriptor open during the call.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(from.addr() as i32) };
        let fd = fd.try_clone_to_owned().map_err(|_| CudaError::INVALID_VALUE)?;
        let words = shared_words::SharedWords::open(fd).map_err(|_| CudaError::INVALID_VALUE)?;
        let handle = words.words()[0].load(Ordering::SeqCst);
        let mut state = self.lock();
        let known = state.memory.physical.get_mut(&handle).ok_or(CudaError::INVALID_VALUE)?;
        known.handles += 1;
        put(out, handle);
        Ok(())
    }

    /// Today's driver maps from the start of a handle's memory, all of it or less.
    pub(crate) fn memory_map(
        &self,
        address: DeviceAddress,
        bytes: usize,
        offset: usize,
        handle: u64,
        _flags: u64,
    ) -> CuResult<()> {
        let mut state = self.lock();
        let memory = &mut state.memory;
        let end = address + bytes as u64;
        let known = memory.physical.get(&handle).filter(|physical| physical.handles > 0);
        let fits = known.is_some_and(|physical| bytes <= physical.data.len());
        let is_reserved =
            memory.reserved.iter().any(|(&at, &count)| at <= address && end <= at + count as u64);
        let is_free =
            memory.mappings.iter().all(|(&at, other)| end <= at || at + other.bytes as u64 <= address);
        let is_aligned = bytes.is_multiple_of(GRANULARITY) && address.is_multiple_of(GRANULARITY as u64);
        if !(offset == 0 && fits && is_reserved && is_free && is_aligned) {
            return Err(CudaError::INVALID_VALUE);
        }
        memory.mappings.insert(address, MappingState { bytes, handle, has_access: false });
        Ok(())
    }

    pub(crate) fn memory_unmap(&self, address: DeviceAddress, bytes: usize) -> CuResult<()> {
        let mut state = self.lock();
        let Some(whole) = state.memory.whole(address, bytes) else { return Err(CudaError::INVALID_VALUE) };
        for at in whole {
            if let Some(gone) = state.memory.mappings.remove(&at) {
                state.memory.let_go(gone.handle);
            }
        }
        Ok(())
    }

    pub(crate) fn memory_set_access(
        &self,
        address: DeviceAddress,
        bytes: usize,
        access: *const MemAccess,
        _count: usize,
    ) -> CuResult<()> {
        // SAFETY: valid for the call, as the caller promises.
        let flags = unsafe { access.read() }.flags;
        let mut state = self.lock();
        let whole = state.memory.whole(address, bytes).ok_or(CudaError::INVALID_VALUE)?;
        for at in whole {
            state.memory.mappings.get_mut(&at).ok_or(CudaError::INVALID_VALUE)?.has_access =
                flags == READ_WRITE;
        }
        Ok(())
    }

    pub(crate) fn host_register(&self, start: *mut c_void, bytes: usize, _flags: c_uint) -> CuResult<()> {
        let mut state = self.lock();
        // As the library does, it wants a context of the calling thread.
        state.current()?;
        state.memory.pinned.insert(start.expose_provenance(), bytes);
        Ok(())
    }

    pub(crate) fn host_unregister(&self, start: *mut c_void) -> CuResult<()> {
        let outstanding = self.outstanding();
        let mut state = self.lock();
        let Some(bytes) = state.memory.pinned.remove(&start.addr()) else {
            state.violation("cuMemHostUnregister of memory that is not registered");
            return Err(CudaError::INVALID_VALUE);
        };
        let end = start.addr() + bytes;
        if outstanding.iter().any(|range| range.start < end && start.addr() < range.end) {
            state.violation("cuMemHostUnregister of memory that a stream will still use");
        }
        Ok(())
    }

    pub(crate) fn host_device_pointer(
        &self,
        out: *mut DeviceAddress,
        start: *mut c_void,
        _flags: c_uint,
    ) -> CuResult<()> {
        if !self.lock().memory.is_pinned(start.addr(), 1) {
            return Err(CudaError::INVALID_VALUE);
        }
        put(out, start.addr() as u64 + PINNED_OFFSET);
        Ok(())
    }
}
