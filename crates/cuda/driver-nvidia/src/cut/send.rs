//! The way out: what a cut has put aside goes to a sink, while the program goes on.
//!
//! A kernel gathers blocks from the shadow into pinned slots, in the order of their addresses. Some slots are on their
//! way while the sink takes the one before. A sink takes less from one thread than the bus brings, so several threads have
//! every nth slot each.

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
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Slots of a thread that are on their way at a time.
const RING: usize = 4;
/// Pieces for which another thread is worth its while: 16 MiB.
const PIECES_OF_A_HAND: usize = 4;
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

/// Sends all that changed and gives the cut's memory back.
pub(super) fn send(work: &Arc<Work>, taking: Taking, sink: &dyn BlockSink) -> Result<(), LinkLost> {
    let Some(items) = plan(&taking) else {
        tracing::error!(number = taking.cut.number, "what a cut has put aside is not what changed");
        return Err(LinkLost);
    };
    let stashes = carry(work, &taking, &items, sink)?;
    drop(taking);
    stashes.into_iter().flatten().try_for_each(|(entry, bytes)| sink.put(&entry, &bytes))
}

/// Blocks that were read out before they could be sent: the program needed the shadow's memory.
type Stash = Vec<(BlockDigest, Bytes)>;

/// What one thread does with the blocks that it has.
struct Hand<'a> {
    work: &'a Work,
    sink: &'a dyn BlockSink,
    road: usize,
    stash: Option<Stash>,
}

impl Hand<'_> {
    fn put(&mut self, entry: &BlockDigest, bytes: &[u8]) -> Result<(), LinkLost> {
        if self.stash.is_none() && self.work.memory.is_lent_wanted() {
            self.stash = Some(Vec::new());
        }
        match &mut self.stash {
            Some(stash) => stash.push((*entry, Bytes::copy_of(bytes))),
            None => self.sink.put_over(self.road, entry, bytes)?,
        }
        Ok(())
    }
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

/// Hands every block to the sink, over several of its roads if there are many. Gives back what was stashed.
fn carry(
    work: &Arc<Work>,
    taking: &Taking,
    items: &[Item],
    sink: &dyn BlockSink,
) -> Result<Vec<Stash>, LinkLost> {
    let mut roads = Vec::new();
    let mut spilled = Vec::new();
    let mut is_whole = true;
    for (index, lane) in taking.lanes.iter().enumerate() {
        let of_lane: Vec<&Item> =
            items.iter().filter(|item| item.lane == index && item.slot < lane.slots()).collect();
        match road(work, lane, &of_lane) {
            Ok(road) => roads.push(road),
            Err(error) => {
                tracing::warn!(%error, "a cut cannot be sent");
                is_whole = false;
                roads.push(None);
            }
        }
        spilled.push(lane.spill.as_ref().map(|spill| std::mem::take(&mut *lock(&spill.blocks))));
    }
    let pieces = pieces(taking, items);
    // The program's own threads need cores, too.
    let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get().div_ceil(2).max(2));
    let hands = sink.roads().min(cores).min(pieces.len().div_ceil(PIECES_OF_A_HAND)).max(1);
    let rings: Vec<Mutex<Vec<Flight>>> = (0..hands).map(|_| Mutex::default()).collect();
    let flight = Sending { work, taking, items, pieces: &pieces, roads: &roads, spilled: &spilled };
    let carried = match is_whole {
        true => fly_side_by_side(&flight, sink, &rings),
        false => Err(LinkLost),
    };
    // Slots, words and the shadow go back when no stream writes them any more.
    for road in roads.iter().flatten() {
        road.stream.wait_out();
    }
    carried
}

/// What all threads of a sending share.
struct Sending<'a> {
    work: &'a Arc<Work>,
    taking: &'a Taking,
    items: &'a [Item],
    pieces: &'a [Piece],
    roads: &'a [Option<Road>],
    spilled: &'a [Option<Vec<Bytes>>],
}

fn fly_side_by_side(
    sending: &Sending<'_>,
    sink: &dyn BlockSink,
    rings: &[Mutex<Vec<Flight>>],
) -> Result<Vec<Stash>, LinkLost> {
    let fly = |road: usize| {
        let mut hand = Hand { work: sending.work, sink, road, stash: None };
        sending.fly(&mut lock(&rings[road]), &mut hand, (road, rings.len()))?;
        Ok(hand.stash.unwrap_or_default())
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..rings.len()).map(|road| scope.spawn(move || fly(road))).collect();
        let own = fly(0);
        let others = others.into_iter().map(|thread| thread.join().unwrap_or(Err(LinkLost)));
        std::iter::once(own).chain(others).collect()
    })
}

impl Sending<'_> {
    /// Carries every piece whose number is `turn` modulo `hands`.
    fn fly(
        &self,
        ring: &mut Vec<Flight>,
        hand: &mut Hand<'_>,
        (turn, hands): (usize, usize),
    ) -> Result<(), LinkLost> {
        let work = self.work;
        let pieces: Vec<&Piece> = self.pieces.iter().skip(turn).step_by(hands).collect();
        let failed = |error| {
            tracing::warn!(%error, "a cut cannot be sent");
            LinkLost
        };
        // Further slots are memory of the library's, which belongs to the thread's context.
        if let Some(lane) = self.taking.lanes.first() {
            lane.lane.context.enter().map_err(failed)?;
        }
        while ring.len() < RING.min(pieces.len()) {
            let flight = || -> CuResult<Flight> {
                Ok(Flight { slot: work.slots.take()?, filled: work.words.take()? })
            };
            ring.push(flight().map_err(failed)?);
        }
        let mut issued = 0;
        for (number, piece) in pieces.iter().enumerate() {
            while issued < pieces.len().min(number + RING) {
                issue(work, self.roads, pieces[issued], (&ring[issued % RING], issued)).map_err(failed)?;
                issued += 1;
            }
            let of_piece = &self.items[piece.from..piece.from + piece.count];
            let Some(road) = self.roads[piece.lane].as_ref().filter(|_| piece.first.is_some()) else {
                let item = &of_piece[0];
                let index = item.slot - self.taking.lanes[item.lane].slots();
                let blocks = self.spilled[piece.lane].as_ref();
                let bytes = blocks.and_then(|blocks| blocks.get(index)).ok_or(LinkLost)?;
                hand.put(&item.entry, &bytes[..item.entry.block.bytes as usize])?;
                continue;
            };
            let flight = &ring[number % RING];
            wait_for(work, road, &flight.filled, number as u64 + 1)?;
            for (index, item) in of_piece.iter().enumerate() {
                // SAFETY: the stream has filled the slot and gets no order for it before the next pieces are issued.
                let bytes =
                    unsafe { flight.slot.bytes(index * BLOCK_BYTES, item.entry.block.bytes as usize) };
                hand.put(&item.entry, bytes)?;
            }
        }
        Ok(())
    }
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
