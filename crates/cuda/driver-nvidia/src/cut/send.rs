//! The way out: what a cut has put aside goes to a sink, while the program goes on.
//!
//! A kernel gathers blocks from the shadow into pinned slots, in the order of their addresses. Some slots are on their
//! way while the sink takes the one before.

#![allow(unsafe_code)]

use super::{
    lane::{Kernels, upload},
    lock,
    take::{LaneCut, Taking},
};
use crate::{
    op::Work,
    pinned::{SLOT_BYTES, Slot, Word},
    stream::LiveStream,
};
use cuda_abi::CuResult;
use cuda_driver::{BlockSink, LinkLost};
use snapshot::{BLOCK_BYTES, BlockDigest, Bytes};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Slots that are on their way at a time.
const RING: usize = 8;
/// Blocks of a slot.
const PIECE_BLOCKS: usize = SLOT_BYTES / BLOCK_BYTES;

/// A block that changed and where it was put.
struct Item {
    entry: BlockDigest,
    lane: usize,
    /// Its place in the lane's list of what changed.
    slot: usize,
}

/// Items that follow each other in one lane's shadow, or one that was spilled.
struct Piece {
    lane: usize,
    /// Which of the lane's items in the shadow the first is; `None` for one that was spilled.
    first: Option<usize>,
    from: usize,
    count: usize,
}

/// A lane's way out.
struct Road {
    stream: Arc<LiveStream>,
    kernels: Kernels,
    table: [u64; 3],
}

/// A slot on its way.
struct Flight {
    slot: Slot,
    /// The number of the last piece in it, counted from 1; the stream writes it.
    filled: Word,
}

/// Sends all that changed, in ascending order, and gives the cut's memory back.
pub(super) fn send(work: &Arc<Work>, taking: Taking, sink: &dyn BlockSink) -> Result<(), LinkLost> {
    let Some(items) = plan(&taking) else {
        tracing::error!(number = taking.cut.number, "what a cut has put aside is not what changed");
        return Err(LinkLost);
    };
    let mut stash: Option<Vec<(BlockDigest, Bytes)>> = None;
    carry(work, &taking, &items, |entry, bytes| {
        // The program needs the shadow's memory: it is read out first and sent then.
        if stash.is_none() && work.memory.is_lent_wanted() {
            stash = Some(Vec::new());
        }
        match &mut stash {
            Some(stash) => stash.push((*entry, Bytes::copy_of(bytes))),
            None => sink.put(entry, bytes)?,
        }
        Ok(())
    })?;
    drop(taking);
    stash.into_iter().flatten().try_for_each(|(entry, bytes)| sink.put(&entry, &bytes))
}

/// Every block that changed with its slot, ascending; `None` if the lists of device and host differ.
fn plan(taking: &Taking) -> Option<Vec<Item>> {
    let mut found: Vec<(u64, usize, usize)> = Vec::new();
    for (index, lane) in taking.lanes.iter().enumerate() {
        let mut slots = vec![None; lane.layout.len()];
        for (slot, &place) in lock(&lane.dirty).iter().enumerate() {
            *slots.get_mut(place as usize)? = Some(slot);
        }
        let placed = lane.layout.iter().zip(slots);
        found.extend(placed.filter_map(|(place, slot)| Some((place.block.address, index, slot?))));
    }
    if taking.lanes.len() > 1 {
        found.sort_unstable();
    }
    let dirty = std::mem::take(&mut *lock(&taking.dirty));
    if found.len() != dirty.len() {
        return None;
    }
    let item = |(entry, (address, lane, slot)): (BlockDigest, (u64, usize, usize))| {
        (entry.block.address == address).then_some(Item { entry, lane, slot })
    };
    dirty.into_iter().zip(found).map(item).collect()
}

/// Cuts items into pieces of one slot.
fn pieces(taking: &Taking, items: &[Item]) -> Vec<Piece> {
    let mut of_lanes = vec![0; taking.lanes.len()];
    let mut pieces: Vec<Piece> = Vec::new();
    for (from, item) in items.iter().enumerate() {
        let is_spilled = item.slot >= taking.lanes[item.lane].slots();
        let first = (!is_spilled).then_some(of_lanes[item.lane]);
        of_lanes[item.lane] += usize::from(!is_spilled);
        match pieces.last_mut() {
            Some(last)
                if last.lane == item.lane
                    && last.first.is_some()
                    && !is_spilled
                    && last.count < PIECE_BLOCKS =>
            {
                last.count += 1;
            }
            _ => pieces.push(Piece { lane: item.lane, first, from, count: 1 }),
        }
    }
    pieces
}

/// Makes the stream of a lane and tells the device where the lane's items are.
fn road(work: &Work, lane: &LaneCut, items: &[&Item]) -> CuResult<Option<Road>> {
    /// `kind` of a stream that waits for no other.
    const INDEPENDENT: u32 = 1;
    let Some(shadow) = lane.shadow.as_ref().filter(|_| !items.is_empty()) else { return Ok(None) };
    let context = Arc::clone(&lane.lane.context);
    // The least priority: the program comes first.
    let stream = Arc::new(LiveStream::create(&work.api, context, INDEPENDENT, 0)?);
    let road = Road { stream, kernels: lane.lane.kernels(work)?, table: shadow.table() };
    let raw = road.stream.enter()?;
    let place = |item: &&Item| [shadow.slot(item.slot), u64::from(item.entry.block.bytes)];
    let table: Vec<u8> = items.iter().flat_map(place).flat_map(u64::to_le_bytes).collect();
    let order: Vec<u8> = (0..items.len() as u32).flat_map(u32::to_le_bytes).collect();
    let uploaded = upload(work, raw, road.table[0], &table)
        .and_then(|()| upload(work, raw, road.table[1], &order))
        .and_then(|()| upload(work, raw, road.table[2], &(items.len() as u32).to_le_bytes()));
    if uploaded.is_err() {
        // The shadow goes next, and the stream may have got some of the orders.
        road.stream.wait_out();
    }
    uploaded.map(|()| Some(road))
}

/// Hands every block to `put`, in order.
fn carry(
    work: &Arc<Work>,
    taking: &Taking,
    items: &[Item],
    mut put: impl FnMut(&BlockDigest, &[u8]) -> Result<(), LinkLost>,
) -> Result<(), LinkLost> {
    let mut roads = Vec::new();
    let mut spilled = Vec::new();
    let mut carried = Ok(());
    for (index, lane) in taking.lanes.iter().enumerate() {
        let of_lane: Vec<&Item> =
            items.iter().filter(|item| item.lane == index && item.slot < lane.slots()).collect();
        match road(work, lane, &of_lane) {
            Ok(road) => roads.push(road),
            Err(error) => {
                tracing::warn!(%error, "a cut cannot be sent");
                carried = Err(LinkLost);
                roads.push(None);
            }
        }
        spilled.push(lane.spill.as_ref().map(|spill| std::mem::take(&mut *lock(&spill.blocks))));
    }
    let mut ring = Vec::new();
    if carried.is_ok() {
        carried = fly(work, taking, items, (&roads, &spilled), &mut ring, &mut put);
    }
    // Slots, words and the shadow go back when no stream writes them any more.
    for road in roads.iter().flatten() {
        road.stream.wait_out();
    }
    carried
}

type Roads<'a> = (&'a [Option<Road>], &'a [Option<Vec<Bytes>>]);

fn fly(
    work: &Arc<Work>,
    taking: &Taking,
    items: &[Item],
    (roads, spilled): Roads<'_>,
    ring: &mut Vec<Flight>,
    put: &mut dyn FnMut(&BlockDigest, &[u8]) -> Result<(), LinkLost>,
) -> Result<(), LinkLost> {
    let pieces = pieces(taking, items);
    let failed = |error| {
        tracing::warn!(%error, "a cut cannot be sent");
        LinkLost
    };
    while ring.len() < RING.min(pieces.len()) {
        let flight =
            || -> CuResult<Flight> { Ok(Flight { slot: work.slots.take()?, filled: work.words.take()? }) };
        ring.push(flight().map_err(failed)?);
    }
    let mut issued = 0;
    for (number, piece) in pieces.iter().enumerate() {
        while issued < pieces.len().min(number + RING) {
            issue(work, roads, &pieces[issued], (&ring[issued % RING], issued)).map_err(failed)?;
            issued += 1;
        }
        let of_piece = &items[piece.from..piece.from + piece.count];
        let Some(road) = roads[piece.lane].as_ref().filter(|_| piece.first.is_some()) else {
            let item = &of_piece[0];
            let index = item.slot - taking.lanes[item.lane].slots();
            let bytes = spilled[piece.lane].as_ref().and_then(|blocks| blocks.get(index)).ok_or(LinkLost)?;
            put(&item.entry, &bytes[..item.entry.block.bytes as usize])?;
            continue;
        };
        let flight = &ring[number % RING];
        wait_for(work, road, &flight.filled, number as u64 + 1)?;
        for (index, item) in of_piece.iter().enumerate() {
            // SAFETY: the stream has filled the slot and gets no order for it before the next pieces are issued.
            let bytes = unsafe { flight.slot.bytes(index * BLOCK_BYTES, item.entry.block.bytes as usize) };
            put(&item.entry, bytes)?;
        }
    }
    Ok(())
}

fn issue(
    work: &Work,
    roads: &[Option<Road>],
    piece: &Piece,
    (flight, number): (&Flight, usize),
) -> CuResult<()> {
    let (Some(road), Some(first)) = (&roads[piece.lane], piece.first) else { return Ok(()) };
    let raw = road.stream.enter()?;
    road.kernels.gather(work, raw, road.table, (first, piece.count), flight.slot.device())?;
    // SAFETY: the word lives until the stream has no work.
    unsafe { work.api.stream_write_value(raw, flight.filled.device(), number as u64 + 1, 0) }
}

/// Waits until a stream has filled a slot, or is dead.
fn wait_for(work: &Work, road: &Road, word: &Word, value: u64) -> Result<(), LinkLost> {
    const REST: Duration = Duration::from_micros(20);
    /// How often the stream is asked whether it is alive.
    const HEALTH_EVERY: Duration = Duration::from_millis(5);
    let mut asked = Instant::now();
    while word.get() < value {
        if work.is_aborted() {
            return Err(LinkLost);
        }
        if asked.elapsed() > HEALTH_EVERY {
            road.stream.is_idle().map_err(|_| LinkLost)?;
            asked = Instant::now();
        }
        std::thread::sleep(REST);
    }
    Ok(())
}
