//! Copies by content, in one session.
//!
//! ```text
//!   a pull ─▶ client: names of its blocks ─▶ `Answerer`: has it? ─▶ from the store to where it belongs, or "lacking"
//!                                                                                   client: bytes of those, in the lanes
//!   bytes that came ─▶ `Collector` of their transfer ─▶ whole blocks ─▶ `keep_blocks`: named, put into the store
//! ```
//!
//! A block is used in the moment in which the worker looks for it, so it cannot go between the question and its use. The worker
//! names what it keeps by the bytes that it got, whatever the client says of them. Both happen on threads of their own. What a lane
//! pays is a copy of its bytes, and nothing when memory for them is short.

use crate::{
    content::{Name, Store},
    end::{EndKind, Ending},
    session::{events::Events, spawn},
};
use bulk::{Here, Lanes};
use cuda_driver::{LinkLost, Sink};
use cuda_wire::content::{BLOCK_BYTES, block_of, blocks_of};
use cuda_wire::{Notice, TransferId};
use locks::lock;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes on their way into the store. When there are more, further blocks are not kept: the next program sends those again.
const HELD_BYTES_MAX: u64 = 256 << 20;
/// Threads that keep blocks. One names about 3 GB a second and waits for the store between; a fast network brings more.
const KEEPERS: usize = 3;
/// Questions that wait. More of them hold the client back.
const QUESTIONS_MAX: usize = 256;
/// How often a block that waits for room looks for it. A part of a copy takes longer than that on any GPU.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// One session fills at most this part of the store. A program that sends new data all the time costs no more than that.
const SESSION_PART: u64 = 2;

/// What a session does about content.
pub(crate) struct Content {
    collectors: Arc<Collectors>,
    questions: SyncSender<Question>,
    /// To the thread that keeps blocks.
    whole: SyncSender<Whole>,
    /// Bytes on their way.
    held: Arc<AtomicU64>,
    /// Bytes that this session may still keep.
    left: AtomicU64,
}

/// Transfers that are under way.
type Collectors = Mutex<HashMap<TransferId, Arc<Collector>>>;

/// Names that the client sent for blocks of a transfer.
struct Question {
    transfer: TransferId,
    first: u32,
    names: Vec<Name>,
}

impl Content {
    /// Tells the client of it and starts the threads. Each of them opens the tenant's store for itself.
    pub(crate) fn start(
        open: impl Fn() -> io::Result<Store>,
        lanes: &Arc<Lanes>,
        events: &Arc<Events>,
        ending: &Arc<Ending>,
    ) -> io::Result<Arc<Self>> {
        let reads = (0..copiers()).map(|_| open()).collect::<io::Result<Vec<_>>>()?;
        let store = open()?;
        let keeps = (0..KEEPERS).map(|_| open()).collect::<io::Result<Vec<_>>>()?;
        let blocks = store.count()?;
        let left = AtomicU64::new(store.capacity_bytes() / SESSION_PART);
        // A client that is gone already is noticed elsewhere.
        let _ = events.send(&Notice::ContentKept { key: *store.key(), blocks });
        let collectors = Arc::default();
        let (questions, asked) = sync_channel(QUESTIONS_MAX);
        let answerer = Answerer {
            stores: reads,
            lanes: lanes.clone(),
            events: events.clone(),
            collectors: Arc::clone(&collectors),
            orders: HashMap::new(),
            ending: ending.clone(),
        };
        spawn("dxpu-content", move || answerer.run(&asked));
        // The bound is that of `held`; so many blocks fit into it if they are whole ones.
        let (whole, to_keep) = sync_channel((HELD_BYTES_MAX / BLOCK_BYTES) as usize);
        let to_keep = Arc::new(Mutex::new(to_keep));
        for store in keeps {
            let to_keep = Arc::clone(&to_keep);
            spawn("dxpu-keep", move || keep_blocks(store, &to_keep));
        }
        Ok(Arc::new(Self { collectors, questions, whole, held: Arc::default(), left }))
    }

    /// The client has named blocks of a transfer. Blocks if it has asked for too much already.
    pub(crate) fn asked(&self, transfer: TransferId, first: u32, names: Vec<Name>) {
        // Its thread ends with the session alone.
        let _ = self.questions.send(Question { transfer, first, names });
    }

    /// Begins to collect a transfer's bytes. `None` for one that is too small to be named.
    pub(crate) fn collect(self: &Arc<Self>, transfer: TransferId, bytes: u64) -> Option<Collecting> {
        if bytes < BLOCK_BYTES {
            return None;
        }
        let (whole, held) = (self.whole.clone(), self.held.clone());
        let collector = Arc::new(Collector { bytes, blocks: Mutex::default(), whole, held });
        lock(&self.collectors).insert(transfer, collector.clone());
        Some(Collecting { content: self.clone(), transfer, collector })
    }

    fn may_keep(&self, bytes: u64) -> bool {
        let spend = |left: u64| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok()
    }
}

/// A transfer whose blocks are collected, until it is dropped.
pub(crate) struct Collecting {
    content: Arc<Content>,
    transfer: TransferId,
    collector: Arc<Collector>,
}

impl Drop for Collecting {
    fn drop(&mut self) {
        lock(&self.content.collectors).remove(&self.transfer);
    }
}

impl Collecting {
    /// The same sink, whose bytes are collected too.
    pub(crate) fn around<S: Sink>(self, sink: S) -> CollectingSink<S> {
        CollectingSink { sink, collecting: self }
    }
}

pub(crate) struct CollectingSink<S> {
    sink: S,
    collecting: Collecting,
}

impl<S: Sink> Sink for CollectingSink<S> {
    fn take(&self, offset: u64, bytes: &[u8]) {
        self.sink.take(offset, bytes);
        let Collecting { content, collector, .. } = &self.collecting;
        collector.take(content, offset, bytes);
    }

    fn target(&self, offset: u64, bytes: usize, read: &mut dyn FnMut(&mut [u8])) -> bool {
        let Collecting { content, collector, .. } = &self.collecting;
        let mut at = offset;
        self.sink.target(offset, bytes, &mut |piece| {
            read(piece);
            collector.take(content, at, piece);
            at += piece.len() as u64;
        })
    }

    fn has_room(&self, offset: u64, bytes: usize) -> bool {
        self.sink.has_room(offset, bytes)
    }
}

/// Threads that copy blocks of one question out of the store: one has about 7 GB a second.
fn copiers() -> usize {
    const MOST: usize = 4;
    std::thread::available_parallelism().map_or(2, |cores| (cores.get() / 4).clamp(2, MOST))
}

/// A whole block, and its part of the memory for blocks on their way.
struct Whole {
    bytes: Vec<u8>,
    _held: Held,
}

/// A part of the memory for blocks on their way.
struct Held {
    all: Arc<AtomicU64>,
    bytes: u64,
}

impl Held {
    fn new(all: &Arc<AtomicU64>, bytes: u64) -> Option<Self> {
        let take = |held: u64| held.checked_add(bytes).filter(|held| *held <= HELD_BYTES_MAX);
        all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(Self { all: all.clone(), bytes })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Puts the blocks of one transfer together.
pub(crate) struct Collector {
    bytes: u64,
    blocks: Mutex<HashMap<u32, Block>>,
    whole: SyncSender<Whole>,
    held: Arc<AtomicU64>,
}

#[derive(Clone)]
enum Block {
    /// The store has it, or there is no memory for it.
    NotWanted,
    /// Some of its bytes have come. `None` when the last has.
    Partial(Arc<Mutex<Option<Partial>>>),
}

struct Partial {
    have: usize,
    whole: Whole,
}

impl Collector {
    fn take(&self, content: &Content, offset: u64, bytes: &[u8]) {
        let (mut at, mut left) = (offset, bytes);
        while !left.is_empty() {
            let number = (at / BLOCK_BYTES) as u32;
            let Some((start, length)) = block_of(self.bytes, number) else { return };
            let inside = (at - start) as usize;
            let (now, later) = left.split_at(left.len().min(length as usize - inside));
            self.take_part(content, number, length as usize, inside, now);
            at += now.len() as u64;
            left = later;
        }
    }

    fn take_part(&self, content: &Content, number: u32, length: usize, inside: usize, bytes: &[u8]) {
        let block =
            lock(&self.blocks).entry(number).or_insert_with(|| self.begin(content, length as u64)).clone();
        let Block::Partial(partial) = block else { return };
        let mut place = lock(&partial);
        let Some(partial) = place.as_mut() else { return };
        partial.whole.bytes[inside..inside + bytes.len()].copy_from_slice(bytes);
        partial.have += bytes.len();
        if partial.have == length
            && let Some(Partial { whole, .. }) = place.take()
        {
            // A full queue: the block is not kept.
            let _ = self.whole.try_send(whole);
        }
    }

    fn begin(&self, content: &Content, length: u64) -> Block {
        let held = Held::new(&self.held, length).filter(|_| content.may_keep(length));
        held.map_or(Block::NotWanted, |held| {
            let whole = Whole { bytes: vec![0; length as usize], _held: held };
            Block::Partial(Arc::new(Mutex::new(Some(Partial { have: 0, whole }))))
        })
    }

    /// The store has this block: its bytes are not collected.
    fn ignore(&self, number: u32) {
        lock(&self.blocks).insert(number, Block::NotWanted);
    }

    /// The store does not have it after all.
    fn want(&self, number: u32) {
        lock(&self.blocks).remove(&number);
    }
}

/// Keeps blocks until the session ends.
fn keep_blocks(mut store: Store, blocks: &Mutex<Receiver<Whole>>) {
    // Of this thread alone. Where cores are short, the program that runs comes before the next one, and blocks are left out.
    let _ = rustix::process::setpriority_process(None, 10);
    loop {
        let next = lock(blocks).recv();
        let Ok(whole) = next else { return };
        if let Err(error) = store.put(&whole.bytes, now_ms()) {
            return tracing::warn!(%error, "cannot keep what the client sent; its next program sends it again");
        }
    }
}

/// A clock that all sessions of a worker have.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The thread that answers questions.
///
/// A driver may have room for a few blocks of a copy at a time, and gives the next ones room when those before have landed. So
/// blocks of a transfer are looked for in order, whichever thread of the client has hashed them first; and what is lacking is told
/// before a block waits for room, because the client must send it first.
struct Answerer {
    /// One for each thread that copies.
    stores: Vec<Store>,
    lanes: Arc<Lanes>,
    events: Arc<Events>,
    collectors: Arc<Collectors>,
    orders: HashMap<TransferId, Order>,
    ending: Arc<Ending>,
}

/// How far the blocks of a transfer are answered for.
struct Order {
    /// Of this transfer: another one may have the same number later.
    collector: Weak<Collector>,
    next: u32,
    /// Names of blocks behind `next`, by the first.
    early: BTreeMap<u32, Vec<Name>>,
}

impl Answerer {
    fn run(mut self, questions: &Receiver<Question>) {
        for question in questions {
            let transfer = question.transfer;
            match self.asked(question) {
                Ok(()) => {}
                Err(Unanswered::Link) => return,
                Err(Unanswered::Breach) => {
                    let text = format!("the client named blocks that {transfer} does not have");
                    return self.ending.end(EndKind::Protocol, text);
                }
                Err(Unanswered::Store(error)) => {
                    let text = format!("cannot read what earlier programs of the client have sent: {error}");
                    return self.ending.end(EndKind::Internal, text);
                }
            }
        }
    }

    /// Answers a question when all blocks before have been asked for, and then those that waited for it.
    fn asked(&mut self, question: Question) -> Result<(), Unanswered> {
        let Question { transfer, first, names } = question;
        let Some(collector) = lock(&self.collectors).get(&transfer).cloned() else {
            return self.answer_unexpected(transfer, first, names.len());
        };
        let end = first.checked_add(names.len() as u32).ok_or(Unanswered::Breach)?;
        if names.is_empty() || u64::from(end) > blocks_of(collector.bytes) {
            return Err(Unanswered::Breach);
        }
        // Those of transfers that are over; few are ever under way at once.
        self.orders.retain(|_, order| order.collector.strong_count() > 0);
        let fresh = || Order { collector: Arc::downgrade(&collector), next: 0, early: BTreeMap::new() };
        let order = self.orders.entry(transfer).or_insert_with(fresh);
        if !std::ptr::eq(order.collector.as_ptr(), Arc::as_ptr(&collector)) {
            *order = fresh();
        }
        let is_new =
            order.early.range(..end).next_back().is_none_or(|(at, names)| at + names.len() as u32 <= first);
        if first < order.next || !is_new {
            return Err(Unanswered::Breach);
        }
        order.early.insert(first, names);
        while let Some(order) = self.orders.get_mut(&transfer) {
            let first = order.next;
            let Some(names) = order.early.remove(&first) else { break };
            order.next += names.len() as u32;
            self.answer(transfer, first, &names, &collector)?;
        }
        Ok(())
    }

    /// Of a transfer that is over, the client need send nothing. One whose blocks are not kept must come whole.
    fn answer_unexpected(&self, transfer: TransferId, first: u32, count: usize) -> Result<(), Unanswered> {
        let is_expected = self.lanes.is_expected(transfer);
        let lacking = (first..).take(count).filter(|_| is_expected).collect();
        self.tell(transfer, first, count as u32, lacking)
    }

    fn tell(
        &self,
        transfer: TransferId,
        first: u32,
        count: u32,
        lacking: Vec<u32>,
    ) -> Result<(), Unanswered> {
        Ok(self.events.send(&Notice::ContentLacks { transfer, first, count, lacking })?)
    }

    fn answer(
        &mut self,
        transfer: TransferId,
        first: u32,
        names: &[Name],
        collector: &Collector,
    ) -> Result<(), Unanswered> {
        let (mut told, mut lacking, mut number) = (first, Vec::new(), first);
        while let Some(left) = names.get((number - first) as usize..).filter(|left| !left.is_empty()) {
            let has_room = |number: u32| {
                let (start, length) = block_of(collector.bytes, number)?;
                (self.lanes.has_room(transfer, start, length) != Some(false)).then_some(())
            };
            let ready = (number..).zip(left).take_while(|(number, _)| has_room(*number).is_some()).count();
            if ready > 0 {
                lacking.extend(self.look_for(transfer, number, &left[..ready], collector)?);
                number += ready as u32;
                continue;
            }
            if number > told {
                self.tell(transfer, told, number - told, std::mem::take(&mut lacking))?;
                told = number;
            }
            // Not in the store's lock: how long this takes is up to the client.
            std::thread::sleep(LOOK_EVERY);
        }
        self.tell(transfer, told, number - told, lacking)
    }

    /// Puts blocks where they belong that the store has, several at a time; says which it lacks.
    fn look_for(
        &mut self,
        transfer: TransferId,
        first: u32,
        names: &[Name],
        collector: &Collector,
    ) -> Result<Vec<u32>, Unanswered> {
        let lanes = &self.lanes;
        let each = names.len().div_ceil(self.stores.len());
        let mut parts: Vec<_> =
            self.stores.iter_mut().zip(names.chunks(each)).zip((first..).step_by(each)).collect();
        let look = |((store, names), first): ((&mut Store, &[Name]), u32)| -> Result<Vec<u32>, Unanswered> {
            let mut lacking = Vec::new();
            for (name, number) in names.iter().zip(first..) {
                if !has(store, lanes, transfer, number, name, collector)? {
                    lacking.push(number);
                }
            }
            Ok(lacking)
        };
        // This thread does the last part.
        let Some(mine) = parts.pop() else { return Ok(Vec::new()) };
        std::thread::scope(|scope| {
            let others: Vec<_> = parts.into_iter().map(|part| scope.spawn(|| look(part))).collect();
            let mine = look(mine);
            let mut lacking = Vec::new();
            for other in others {
                lacking.extend(other.join().map_err(|_| Unanswered::Link)??);
            }
            lacking.extend(mine?);
            Ok(lacking)
        })
    }
}

/// Puts a block where it belongs, if the store has it.
fn has(
    store: &mut Store,
    lanes: &Lanes,
    transfer: TransferId,
    number: u32,
    name: &Name,
    collector: &Collector,
) -> Result<bool, Unanswered> {
    let (start, length) = block_of(collector.bytes, number).ok_or(Unanswered::Breach)?;
    collector.ignore(number);
    let land = |fill: &mut dyn FnMut(&mut [u8])| lanes.land_here(transfer, start, length, fill);
    match store.read(name, length, now_ms(), land)?.transpose()? {
        Some(Here::Landed | Here::GivenUp) => Ok(true),
        Some(Here::Crowded) => Ok(false),
        None => {
            collector.want(number);
            Ok(false)
        }
    }
}

/// Why a question has no answer.
enum Unanswered {
    Link,
    Breach,
    Store(io::Error),
}

impl From<LinkLost> for Unanswered {
    fn from(_: LinkLost) -> Self {
        Self::Link
    }
}

impl From<io::Error> for Unanswered {
    fn from(error: io::Error) -> Self {
        Self::Store(error)
    }
}
