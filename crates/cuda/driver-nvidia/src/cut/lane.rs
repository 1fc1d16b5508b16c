//! What a cut needs in a context: a stream, the kernels, and tables of blocks and digests.

#![allow(unsafe_code)]

use super::{buffer::DeviceBuffer, frozen::Place};
use crate::{
    context::LiveContext,
    cut_kernels,
    launch::{Launch, launch},
    module::{self, LoadedModule},
    op::Work,
    pinned::{OwnedPages, Word},
    stream::{LiveEvent, LiveStream},
    sys::{Function, Stream},
};
use cuda_abi::{CuResult, CudaError};
use snapshot::{BlockDigest, Digest, Key, Tables as DigestTables, digest::KEY_BYTES};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `kind` of a stream that waits for no other.
const INDEPENDENT: u32 = 1;
/// Bytes of a table's entry: an address and a length, or a digest.
const ENTRY_BYTES: usize = 16;
/// Bytes of a place in the list of what changed.
const PLACE_BYTES: usize = 4;
/// Parts of a buffer begin at multiples of this, as loads of 16 bytes want it, with room to spare.
const PART_ALIGN: usize = 256;
/// Tables are made for at least this many blocks, and for a quarter more than there are: programs grow.
const CAPACITY_MIN: usize = 1024;
/// Thread blocks for each multiprocessor: as many as fit.
const THREAD_BLOCKS: u32 = 3;

/// A context's part in all cuts of a session.
pub(super) struct Lane {
    pub(super) context: Arc<LiveContext>,
    pub(super) stream: Arc<LiveStream>,
    /// Recorded when all streams are there, when digests are computed, when what changed is copied.
    pub(super) marks: [LiveEvent; 3],
    multiprocessors: u32,
    state: Mutex<LaneState>,
}

#[derive(Default)]
pub(super) struct LaneState {
    kernels: Option<Kernels>,
    pub(super) tables: Option<LaneTables>,
}

/// The kernels, loaded in the context.
#[derive(Clone)]
pub(super) struct Kernels {
    _module: Arc<LoadedModule>,
    digest: Function,
    shadow: Function,
}

/// Tables of blocks and digests on the device, and where the host reads them.
pub(super) struct LaneTables {
    device: DeviceBuffer,
    pub(super) host: Arc<OwnedPages>,
    pub(super) capacity: usize,
    pub(super) layout: Arc<Vec<Place>>,
    /// Which of the two tables of digests is the committed one.
    committed: usize,
    /// The cut that it is of, in the order of `layout`.
    committed_cut: Option<u64>,
}

impl LaneTables {
    fn part(&self, before: usize) -> u64 {
        self.device.address + before as u64
    }

    fn key_at(&self) -> u64 {
        self.part(0)
    }

    fn count_at(&self) -> u64 {
        self.part(KEY_BYTES.next_multiple_of(PART_ALIGN))
    }

    /// A copy of the word that says which cuts are skipped: thousands of threads read it, and the bus is slow.
    fn skipped_at(&self) -> u64 {
        self.count_at() + 64
    }

    fn blocks_at(&self) -> u64 {
        self.count_at() + PART_ALIGN as u64
    }

    fn digests_at(&self, half: usize) -> u64 {
        self.blocks_at() + ((1 + half) * self.capacity * ENTRY_BYTES) as u64
    }

    fn dirty_at(&self) -> u64 {
        self.digests_at(2)
    }

    fn device_bytes(capacity: usize) -> u64 {
        let fixed = KEY_BYTES.next_multiple_of(PART_ALIGN) + PART_ALIGN;
        (fixed + capacity * (3 * ENTRY_BYTES + PLACE_BYTES)) as u64
    }

    fn host_digests(&self) -> usize {
        PART_ALIGN
    }

    fn host_dirty(&self) -> usize {
        PART_ALIGN + self.capacity * ENTRY_BYTES
    }
}

impl Lane {
    pub(super) fn new(work: &Work, context: &Arc<LiveContext>) -> CuResult<Self> {
        /// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`
        const MULTIPROCESSORS: u32 = 16;
        context.enter()?;
        let (mut least, mut greatest, mut count) = (0, 0, 0);
        // SAFETY: the pointers are valid for the calls.
        unsafe {
            work.api.context_priorities(&mut least, &mut greatest)?;
            work.api.device_attribute(&mut count, MULTIPROCESSORS, context.device as i32)?;
        }
        let stream = LiveStream::create(&work.api, Arc::clone(context), INDEPENDENT, greatest)?;
        let mark = || LiveEvent::create(&work.api, Arc::clone(context), 0);
        Ok(Self {
            context: Arc::clone(context),
            stream: Arc::new(stream),
            marks: [mark()?, mark()?, mark()?],
            multiprocessors: u32::try_from(count).unwrap_or(1).max(1),
            state: Mutex::default(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets digests and key.
    pub(super) fn forget(&self) {
        self.lock().tables = None;
    }

    pub(super) fn kernels(&self, work: &Work) -> CuResult<Kernels> {
        let mut state = self.lock();
        if let Some(kernels) = &state.kernels {
            return Ok(kernels.clone());
        }
        let text = cut_kernels::text();
        let (module, info) =
            module::load(&work.api, &self.context, text.as_bytes(), &[], None).map_err(|(error, log)| {
                tracing::warn!(%error, log, "the driver does not take the kernels of cuts");
                error
            })?;
        let named = |name: &str| {
            let index = info.kernels.iter().position(|kernel| kernel.name == name);
            index.map(|index| module.functions[index]).ok_or(CudaError::NOT_FOUND)
        };
        let (digest, shadow) = (named("dxpu_digest")?, named("dxpu_shadow")?);
        /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
        const SHARED_LIMIT: u32 = 8;
        let bytes = cut_kernels::DIGEST_SHARED_BYTES as i32;
        // SAFETY: the function lives as long as its module.
        unsafe { work.api.function_set_attribute(digest, SHARED_LIMIT, bytes)? };
        let kernels = Kernels { _module: Arc::new(module), digest, shadow };
        state.kernels = Some(kernels.clone());
        Ok(kernels)
    }

    /// Makes the tables those of `layout`, with what the image has of it. The stream has no work of a cut before.
    pub(super) fn prepare(
        &self,
        work: &Work,
        key: &Key,
        digests: &DigestTables,
        layout: Arc<Vec<Place>>,
    ) -> CuResult<Arc<Vec<Place>>> {
        self.kernels(work)?;
        let raw = self.stream.enter()?;
        let mut state = self.lock();
        if state.tables.as_ref().is_none_or(|tables| tables.capacity < layout.len()) {
            state.tables = None;
            let capacity = (layout.len() + layout.len() / 4).max(CAPACITY_MIN);
            let bytes = LaneTables::device_bytes(capacity);
            let tables = LaneTables {
                device: DeviceBuffer::own(work, self.context.device, bytes)?,
                host: Arc::new(OwnedPages::new(
                    &work.api,
                    PART_ALIGN + capacity * (ENTRY_BYTES + PLACE_BYTES),
                )?),
                capacity,
                layout: Arc::default(),
                committed: 0,
                committed_cut: None,
            };
            upload(work, raw, tables.key_at(), &key.to_bytes())?;
            state.tables = Some(tables);
        }
        let tables = state.tables.as_mut().ok_or(CudaError::UNKNOWN)?;
        if !Arc::ptr_eq(&tables.layout, &layout) && tables.layout != layout {
            // Whatever fails now, the tables count as those of no layout.
            tables.committed_cut = None;
            tables.layout = Arc::default();
            let blocks: Vec<u8> = layout
                .iter()
                .flat_map(|place| [place.here, u64::from(place.block.bytes)])
                .flat_map(u64::to_le_bytes)
                .collect();
            upload(work, raw, tables.blocks_at(), &blocks)?;
            tables.layout = layout;
        }
        if tables.committed_cut != Some(digests.committed()) {
            tables.committed_cut = None;
            let known = digests.committed_digests(tables.layout.iter().map(|place| place.block));
            upload_digests(work, raw, tables.digests_at(tables.committed), &known)?;
            tables.committed_cut = Some(digests.committed());
        }
        Ok(Arc::clone(&tables.layout))
    }

    /// Puts digests of all blocks into the stream, and copies of the results to the host.
    pub(super) fn digest(&self, work: &Work, skipped: &Word, number: u64) -> CuResult<()> {
        let raw = self.stream.enter()?;
        let kernels = self.kernels(work)?;
        let state = self.lock();
        let tables = state.tables.as_ref().ok_or(CudaError::UNKNOWN)?;
        let count = tables.layout.len();
        if count == 0 {
            return Ok(());
        }
        let pending = tables.digests_at(1 - tables.committed);
        let parameters = [
            tables.blocks_at(),
            count as u64,
            tables.key_at(),
            tables.digests_at(tables.committed),
            pending,
            tables.dirty_at(),
            tables.count_at(),
            tables.skipped_at(),
            number,
        ];
        // SAFETY: the word lives as long as the session.
        unsafe {
            work.api.fill_8(tables.count_at(), 0, PLACE_BYTES, raw)?;
            work.api.copy_in(tables.skipped_at(), skipped.host(), size_of::<u64>(), raw)?;
        }
        let shared = cut_kernels::DIGEST_SHARED_BYTES;
        run(work, raw, kernels.digest, self.grid(count), shared, &parameters)?;
        mark(work, raw, &self.marks[1])?;
        let host = |at: usize| tables.host.start().wrapping_add(at).cast();
        // SAFETY: the host reads these bytes only when the stream has said that they are there.
        unsafe {
            work.api.copy_out(host(0), tables.count_at(), PLACE_BYTES, raw)?;
            work.api.copy_out(host(tables.host_digests()), pending, count * ENTRY_BYTES, raw)?;
            work.api.copy_out(host(tables.host_dirty()), tables.dirty_at(), count * PLACE_BYTES, raw)
        }
    }

    /// Puts copies of what changed into the stream: `slots` of it from the `first` on, to slots from `target` on.
    pub(super) fn copy(&self, work: &Work, first: usize, slots: usize, target: u64) -> CuResult<()> {
        let raw = self.stream.enter()?;
        let kernels = self.kernels(work)?;
        let state = self.lock();
        let tables = state.tables.as_ref().ok_or(CudaError::UNKNOWN)?;
        let parameters =
            [tables.blocks_at(), tables.dirty_at(), tables.count_at(), first as u64, slots as u64, target];
        run(work, raw, kernels.shadow, self.grid(slots), 0, &parameters)
    }

    fn grid(&self, blocks: usize) -> u32 {
        u32::try_from(blocks).unwrap_or(u32::MAX).clamp(1, THREAD_BLOCKS * self.multiprocessors)
    }

    /// Writes the digests of all blocks to `entries`, which are in the order of the layout, and returns the places of
    /// those that changed.
    ///
    /// # Safety
    ///
    /// The stream has said that they are there, and gets no work that writes them again meanwhile.
    pub(super) unsafe fn results(&self, entries: &mut [BlockDigest]) -> CuResult<Vec<u32>> {
        let state = self.lock();
        let tables = state.tables.as_ref().ok_or(CudaError::UNKNOWN)?;
        let count = tables.layout.len();
        if entries.len() != count {
            return Err(CudaError::UNKNOWN);
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: our caller's promise.
        let bytes = |at: usize, bytes: usize| unsafe { tables.host.bytes(at, bytes) };
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
        let changed = word(bytes(0, PLACE_BYTES)) as usize;
        if changed > count {
            return Err(CudaError::UNKNOWN);
        }
        let digest = |bytes: &[u8]| Digest(u128::from_le_bytes(bytes.try_into().expect("16 bytes")));
        let digests = bytes(tables.host_digests(), count * ENTRY_BYTES).chunks_exact(ENTRY_BYTES);
        let dirty = bytes(tables.host_dirty(), changed * PLACE_BYTES).chunks_exact(PLACE_BYTES);
        for (entry, bytes) in entries.iter_mut().zip(digests) {
            entry.digest = digest(bytes);
        }
        Ok(dirty.map(word).collect())
    }

    /// The pending digests are those of the image's cut `number` from now on.
    pub(super) fn commit(&self, number: u64) {
        if let Some(tables) = &mut self.lock().tables {
            tables.committed = 1 - tables.committed;
            tables.committed_cut = Some(number);
        }
    }
}

impl Kernels {
    /// Puts a copy of blocks that `table` lists into a stream: places `first..` of it, `slots` of them, to slots from
    /// `target` on. `table` is followed by its places and their number, see [`super::shadow`].
    pub(super) fn gather(
        &self,
        work: &Work,
        stream: Stream,
        [table, order, count]: [u64; 3],
        (first, slots): (usize, usize),
        target: u64,
    ) -> CuResult<()> {
        /// Few: it moves no more than the bus takes, and leaves the GPU to the program.
        const GRID: u32 = 32;
        let parameters = [table, order, count, first as u64, slots as u64, target];
        run(work, stream, self.shadow, GRID.min(slots as u32).max(1), 0, &parameters)
    }
}

fn run(
    work: &Work,
    stream: Stream,
    function: Function,
    grid: u32,
    shared_bytes: usize,
    values: &[u64],
) -> CuResult<()> {
    let parameters: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let what = Launch {
        function,
        grid: [grid, 1, 1],
        block: [cut_kernels::THREADS, 1, 1],
        shared_bytes: shared_bytes as u32,
        parameters: &parameters,
    };
    launch(&work.api, stream, &what, &mut [])
}

/// Records an event of ours.
pub(super) fn mark(work: &Work, stream: Stream, event: &LiveEvent) -> CuResult<()> {
    // SAFETY: event and stream live until the call returns.
    unsafe { work.api.event_record(event.raw(), stream, 0) }
}

/// Copies bytes of ordinary memory, which the driver takes before it returns.
pub(super) fn upload(work: &Work, stream: Stream, target: u64, bytes: &[u8]) -> CuResult<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let _ = bytes.as_ptr().expose_provenance();
    // SAFETY: the bytes are valid for the call.
    unsafe { work.api.copy_in(target, bytes.as_ptr().cast(), bytes.len(), stream) }
}

fn upload_digests(work: &Work, stream: Stream, target: u64, digests: &[Digest]) -> CuResult<()> {
    let bytes: Vec<u8> = digests.iter().flat_map(|digest| digest.0.to_le_bytes()).collect();
    upload(work, stream, target, &bytes)
}
