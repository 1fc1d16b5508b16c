//! Loading an image into a session that has made everything again.

#![allow(unsafe_code)]

use super::{
    frozen::{Layouts, Place},
    lane::{Lane, mark},
    lock,
};
use crate::{
    context::LiveContext,
    driver::NvidiaDriver,
    pinned::{SLOT_BYTES, Slot},
    stream::{LiveEvent, LiveStream},
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Blocks, Restored};
use snapshot::{BLOCK_BYTES, Block, BlockDigest, Digest, Extent, Tables as DigestTables};
use std::collections::{BTreeMap, btree_map::Entry};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Threads that read blocks and put them into slots: one fills memory at a fraction of what the bus takes.
const READERS: usize = 12;
/// Slots of a reader: one is filled while the GPU reads the other.
const SLOTS: usize = 2;
/// Blocks of a slot.
const CHUNK_BLOCKS: usize = SLOT_BYTES / BLOCK_BYTES;

/// Blocks of one context that go into one slot.
struct Chunk<'a> {
    context: &'a Arc<LiveContext>,
    places: &'a [Place],
}

/// Writes all blocks, checks what is in memory then, and lets the next cut be relative to this image.
pub(super) fn restore(driver: &NvidiaDriver, image: &dyn Blocks) -> CuResult<Restored> {
    let key = {
        let books = driver.cuts.books();
        if books.on_its_way.is_some() || books.is_clearing {
            return Err(CudaError::NOT_READY);
        }
        books.key.clone().ok_or(CudaError::NOT_INITIALIZED)?
    };
    let contexts: Vec<Arc<LiveContext>> = driver.lock().contexts.values().cloned().collect();
    let started = Instant::now();
    drain(driver, &contexts)?;
    let list = image.list();
    let digests = DigestTables::restored(image.number(), list.clone()).map_err(|error| {
        driver.say(format!("the image cannot be restored: {error}"));
        CudaError::INVALID_VALUE
    })?;
    let layouts = places(driver, &list)?;
    let placed = started.elapsed();
    let of_context = |id: &u32| contexts.iter().find(|context| context.id == *id);
    let chunks: Vec<Chunk<'_>> = layouts
        .iter()
        .filter_map(|(id, places)| Some((of_context(id)?, places)))
        .flat_map(|(context, places)| {
            places.chunks(CHUNK_BLOCKS).map(move |places| Chunk { context, places })
        })
        .collect();
    let spent = write(driver, image, &chunks)?;
    let written = started.elapsed();
    // After all writes: memory that is mapped twice must have got the same bytes from both places.
    let mut lanes = Vec::new();
    for context in &contexts {
        let lane = driver.cuts.lane(&driver.work, context)?;
        let layout = layouts.get(&context.id).cloned().unwrap_or_default();
        lane.prepare(&driver.work, &key, &digests, layout)?;
        lane.digest(&driver.work, &driver.cuts.words.skipped, u64::MAX)?;
        lanes.push(lane);
    }
    for lane in &lanes {
        lane.stream.wait()?;
        check(driver, lane)?;
    }
    remember_moment(driver, &lanes)?;
    driver.restore_ages(&image.events());
    let restored = Restored {
        blocks: list.len() as u64,
        bytes: list.iter().map(|entry| u64::from(entry.block.bytes)).sum(),
    };
    let (write, rest) = (written - placed, started.elapsed() - written);
    tracing::debug!(restored.bytes, ?placed, ?write, ?rest, ?spent, "an image is loaded");
    driver.cuts.books().digests = digests;
    Ok(restored)
}

/// Waits until nothing is in the streams.
fn drain(driver: &NvidiaDriver, contexts: &[Arc<LiveContext>]) -> CuResult<()> {
    for context in contexts {
        context.enter()?;
        // SAFETY: no pointers.
        unsafe { driver.api.context_synchronize()? };
    }
    Ok(())
}

/// Where all blocks are in this session, by context.
fn places(driver: &NvidiaDriver, list: &[BlockDigest]) -> CuResult<Layouts> {
    let frozen = driver.freeze()?;
    let mut layouts: BTreeMap<u32, Vec<Place>> = BTreeMap::new();
    for entry in list {
        let block = entry.block;
        let extent = Extent { address: block.address, bytes: block.bytes.into() };
        let place = if frozen.covers(extent) { frozen.place(block) } else { None };
        let Some((context, place)) = place else {
            return Err(refuse(driver, block.address, "belongs to memory that was not allocated again"));
        };
        layouts.entry(context).or_default().push(place);
    }
    Ok(layouts.into_iter().map(|(context, places)| (context, Arc::new(places))).collect())
}

fn refuse(driver: &NvidiaDriver, address: u64, why: &str) -> CudaError {
    driver.say(format!("the image cannot be restored: its block at {address:#x} {why}"));
    CudaError::INVALID_VALUE
}

/// Where the threads that read spent their time, all of them together.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// Until the blocks were in slots.
    reading: Duration,
    /// Until a slot was free again.
    waiting: Duration,
    threads: usize,
}

impl Spent {
    fn and(self, other: Self) -> Self {
        Self {
            reading: self.reading + other.reading,
            waiting: self.waiting + other.waiting,
            threads: self.threads + other.threads,
        }
    }
}

/// Copies all blocks to their places.
fn write(driver: &NvidiaDriver, image: &dyn Blocks, chunks: &[Chunk<'_>]) -> CuResult<Spent> {
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let readers = READERS.min(cores).min(chunks.len());
    std::thread::scope(|scope| {
        let read = || {
            let spent = Spent { threads: 1, ..Spent::default() };
            let mut reader =
                Reader { driver, image, streams: BTreeMap::new(), buffers: Vec::new(), turn: 0, spent };
            let mut result = Ok(());
            while !is_over.load(Ordering::Relaxed) && result.is_ok() {
                let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                result = reader.carry(chunk);
            }
            // Slots go back when the GPU has read them.
            let waited = reader.streams.values().map(|stream| {
                let waited = stream.wait();
                stream.wait_out();
                waited
            });
            let waited = waited.fold(Ok(()), Result::and);
            let result = result.and(waited);
            if result.is_err() {
                is_over.store(true, Ordering::Relaxed);
            }
            result.map(|()| reader.spent)
        };
        let threads: Vec<_> = (0..readers).map(|_| scope.spawn(read)).collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap_or(Err(CudaError::UNKNOWN)));
        // All are joined before the first failure counts.
        let results: Vec<CuResult<Spent>> = results.collect();
        results.into_iter().try_fold(Spent::default(), |all, one| Ok(all.and(one?)))
    })
}

/// Blocks that one copy takes: neighbours in the slot and on the device.
struct Run {
    /// Where it begins in the slot.
    from: usize,
    /// Where it goes.
    to: u64,
    bytes: usize,
    /// [`Place::reach`] of all its blocks.
    reach: u64,
}

impl Run {
    fn goes_on_at(&self, place: &Place) -> bool {
        self.to + self.bytes as u64 == place.here && self.reach == place.reach
    }
}

/// One thread of a restore.
struct Reader<'a> {
    driver: &'a NvidiaDriver,
    image: &'a dyn Blocks,
    streams: BTreeMap<u32, LiveStream>,
    buffers: Vec<(Slot, Option<Arc<LiveEvent>>)>,
    turn: usize,
    spent: Spent,
}

impl Reader<'_> {
    fn carry(&mut self, chunk: &Chunk<'_>) -> CuResult<()> {
        /// `kind` of a stream that waits for no other.
        const INDEPENDENT: u32 = 1;
        /// `CU_EVENT_DISABLE_TIMING`
        const NO_TIMING: u32 = 2;
        let work = &self.driver.work;
        if work.is_aborted() {
            return Err(CudaError::DEVICE_UNAVAILABLE);
        }
        // Further slots are memory of the library's, which belongs to the thread's context.
        chunk.context.enter()?;
        let started = Instant::now();
        match self.buffers.len() {
            0 => self.buffers.push((work.slots.take()?, None)),
            // Fresh pinned memory takes longer than a wait for the slot that this thread has.
            1..SLOTS => self.buffers.extend(work.slots.take_free().map(|slot| (slot, None))),
            _ => {}
        }
        self.turn = (self.turn + 1) % self.buffers.len();
        if let Some(event) = self.buffers[self.turn].1.take() {
            event.wait()?;
        }
        self.spent.waiting += started.elapsed();
        let id = chunk.context.id;
        if let Entry::Vacant(vacant) = self.streams.entry(id) {
            vacant.insert(LiveStream::create(&work.api, Arc::clone(chunk.context), INDEPENDENT, 0)?);
        }
        let event = LiveEvent::create(&work.api, Arc::clone(chunk.context), NO_TIMING)?;
        let slot = &self.buffers[self.turn].0;
        let blocks: Vec<Block> = chunk.places.iter().map(|place| place.block).collect();
        let bytes = blocks.iter().map(|block| block.bytes as usize).sum();
        let started = Instant::now();
        // SAFETY: the copies out of this slot are over, and only this thread has it.
        self.image.read_into(&blocks, unsafe { slot.bytes_mut(0, bytes) })?;
        self.spent.reading += started.elapsed();
        let mut runs: Vec<Run> = Vec::new();
        let mut at = 0;
        for place in chunk.places {
            let count = place.block.bytes as usize;
            match runs.last_mut() {
                Some(run) if run.goes_on_at(place) => run.bytes += count,
                _ => runs.push(Run { from: at, to: place.here, bytes: count, reach: place.reach }),
            }
            at += count;
        }
        let raw = self.streams[&id].enter()?;
        for run in runs {
            let source = slot.start().wrapping_byte_add(run.from);
            // SAFETY: the slot is left alone until the event is reached, or the stream has no work.
            let copied = unsafe { work.api.copy_in(run.to, source, run.bytes, raw) };
            copied.inspect_err(|error| {
                let Run { to, bytes, .. } = run;
                self.driver.say(format!(
                    "the image cannot be restored: the library refuses a copy of {bytes} bytes to {to:#x}: {error}"
                ));
            })?;
        }
        mark(work, raw, &event)?;
        self.buffers[self.turn].1 = Some(Arc::new(event));
        Ok(())
    }
}

/// Compares the digests of a lane's blocks with the image's.
fn check(driver: &NvidiaDriver, lane: &Lane) -> CuResult<()> {
    let layout = lane.lock().tables.as_ref().map(|tables| Arc::clone(&tables.layout)).unwrap_or_default();
    let mut entries: Vec<BlockDigest> =
        layout.iter().map(|place| BlockDigest { block: place.block, digest: Digest::NEVER }).collect();
    // SAFETY: the stream has no work.
    let changed = unsafe { lane.results(&mut entries)? };
    let Some(&first) = changed.iter().min() else { return Ok(()) };
    let address = layout.get(first as usize).map(|place| place.block.address);
    let why = format!("is not what the worker saved, nor are {} others", changed.len() - 1);
    Err(refuse(driver, address.unwrap_or(0), &why))
}

/// Notes the moment of the restore in every context, for the times of events.
fn remember_moment(driver: &NvidiaDriver, lanes: &[Arc<Lane>]) -> CuResult<()> {
    for lane in lanes {
        let event = LiveEvent::create(&driver.work.api, Arc::clone(&lane.context), 0)?;
        mark(&driver.work, lane.stream.enter()?, &event)?;
        event.wait()?;
        lock(&driver.cuts.restored).insert(lane.context.id, Arc::new(event));
    }
    Ok(())
}
