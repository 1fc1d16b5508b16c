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
use cuda_wire::content::{BLOCK_BYTES, block_of};
use cuda_wire::{Notice, TransferId};
use locks::lock;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes on their way into the store. When there are more, further blocks are not kept: the next program sends those again.
const HELD_BYTES_MAX: u64 = 64 << 20;
/// Questions that wait. More of them hold the client back.
const QUESTIONS_MAX: usize = 256;
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
    /// Tells the client of it and starts the threads. Both stores are the tenant's; each thread has its own.
    pub(crate) fn start(
        reads: Store,
        keeps: Store,
        lanes: &Arc<Lanes>,
        events: &Arc<Events>,
        ending: &Arc<Ending>,
    ) -> io::Result<Arc<Self>> {
        let blocks = reads.count()?;
        let left = AtomicU64::new(keeps.capacity_bytes() / SESSION_PART);
        // A client that is gone already is noticed elsewhere.
        let _ = events.send(&Notice::ContentKept { key: *reads.key(), blocks });
        let collectors = Arc::default();
        let (questions, asked) = sync_channel(QUESTIONS_MAX);
        let answerer = Answerer {
            store: reads,
            lanes: lanes.clone(),
            events: events.clone(),
            collectors: Arc::clone(&collectors),
            ending: ending.clone(),
        };
        spawn("dxpu-content", move || answerer.run(&asked));
        // The bound is that of `held`; so many blocks fit into it if they are whole ones.
        let (whole, to_keep) = sync_channel((HELD_BYTES_MAX / BLOCK_BYTES) as usize);
        spawn("dxpu-keep", move || keep_blocks(keeps, &to_keep));
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
fn keep_blocks(mut store: Store, blocks: &Receiver<Whole>) {
    // Of this thread alone. Where cores are short, the program that runs comes before the next one, and blocks are left out.
    let _ = rustix::process::setpriority_process(None, 10);
    for whole in blocks {
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
struct Answerer {
    store: Store,
    lanes: Arc<Lanes>,
    events: Arc<Events>,
    collectors: Arc<Collectors>,
    ending: Arc<Ending>,
}

impl Answerer {
    fn run(mut self, questions: &Receiver<Question>) {
        for question in questions {
            match self.answer(&question) {
                Ok(()) => {}
                Err(Unanswered::Link) => return,
                Err(Unanswered::Breach) => {
                    let text = format!("the client named blocks that {} does not have", question.transfer);
                    return self.ending.end(EndKind::Protocol, text);
                }
                Err(Unanswered::Store(error)) => {
                    let text = format!("cannot read what earlier programs of the client have sent: {error}");
                    return self.ending.end(EndKind::Internal, text);
                }
            }
        }
    }

    fn answer(&mut self, question: &Question) -> Result<(), Unanswered> {
        let Question { transfer, first, names } = question;
        let collector = lock(&self.collectors).get(transfer).cloned();
        let mut lacking = Vec::new();
        for (name, number) in names.iter().zip(*first..) {
            let is_there = match &collector {
                Some(collector) => self.has(*transfer, number, name, collector)?,
                // Of a transfer that is over, the client need send nothing.
                None => !self.lanes.is_expected(*transfer),
            };
            if !is_there {
                lacking.push(number);
            }
        }
        let count = names.len() as u32;
        let told = Notice::ContentLacks { transfer: *transfer, first: *first, count, lacking };
        Ok(self.events.send(&told)?)
    }

    /// Puts a block where it belongs, if the store has it.
    fn has(
        &mut self,
        transfer: TransferId,
        number: u32,
        name: &Name,
        collector: &Collector,
    ) -> Result<bool, Unanswered> {
        let (start, length) = block_of(collector.bytes, number).ok_or(Unanswered::Breach)?;
        let lanes = &self.lanes;
        collector.ignore(number);
        let land = |fill: &mut dyn FnMut(&mut [u8])| lanes.land_here(transfer, start, length, fill);
        match self.store.read(name, length, now_ms(), land)?.transpose()? {
            Some(Here::Landed | Here::GivenUp) => Ok(true),
            Some(Here::Crowded) => Ok(false),
            None => {
                collector.want(number);
                Ok(false)
            }
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
