//! Pulls by content: what the worker has of this tenant's travels as names.
//!
//! ```text
//!   pull ─▶ `send` ─┬─ not asked: all bytes in the lanes
//!                   └─ asked: threads hash its blocks ── names ──▶ worker ── which it lacks ──▶ bytes of those in the lanes
//! ```
//!
//! Everything below a pull is the same to the rest of the client: the source is read until `done`, and a lost session ends it. So
//! what a program may do with its memory, and what a journal keeps, does not depend on how the bytes went.

use super::wires::Wires;
use bulk::{Done, LinkLost, Source};
use cuda_client::content::AskPolicy;
use cuda_wire::content::{BLOCK_BYTES, block_of, blocks_of};
use cuda_wire::{Notice, TransferId};
use locks::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Blocks that a thread hashes before it tells their names: the worker copies while the next are hashed.
const GROUP: u32 = 8;
/// A copy up to this is hashed by the thread that serves pulls. A thread of its own costs as much as hashing a small one.
const HASHED_HERE_BYTES: u64 = 4 << 20;
/// Threads that hash one copy.
const THREADS_MAX: usize = 8;

type AnySource = Box<dyn Source + Send + Sync>;

/// What one session knows about content.
#[derive(Default)]
pub(super) struct Content {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// None until the worker has said that it keeps blocks.
    kept: Option<Kept>,
    /// Transfers that are asked about.
    open: HashMap<TransferId, Arc<Asked>>,
    is_closed: bool,
}

struct Kept {
    key: [u8; 32],
    policy: AskPolicy,
}

impl Content {
    /// The worker keeps blocks, and has so many.
    pub(super) fn told(&self, key: [u8; 32], blocks: u64) {
        lock(&self.state).kept = Some(Kept { key, policy: AskPolicy::new(blocks) });
    }

    /// Whether a copy of so many bytes would be asked about, if it was pulled.
    pub(super) fn asks(&self, bytes: u64) -> bool {
        lock(&self.state).kept.as_ref().is_some_and(|kept| kept.policy.asks(bytes))
    }

    /// The session is over: no answer comes any more.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let open = std::mem::take(&mut state.open);
        drop(state);
        open.into_values().for_each(|asked| asked.fail());
    }

    fn note(&self, note: impl FnOnce(&mut AskPolicy)) {
        if let Some(kept) = &mut lock(&self.state).kept {
            note(&mut kept.policy);
        }
    }

    /// The key, if a copy is to be asked about.
    fn key_for(&self, bytes: u64) -> Option<[u8; 32]> {
        let mut state = lock(&self.state);
        let kept = state.kept.as_mut()?;
        if kept.policy.asks(bytes) {
            return Some(kept.key);
        }
        kept.policy.sent_unasked(bytes);
        None
    }
}

/// Sends what the worker pulls, by names where that pays. `done` is called when the source is not read any more.
pub(super) fn send(wires: &Arc<Wires>, transfer: TransferId, bytes: u64, source: AnySource, done: Done) {
    let Some(key) = wires.content.key_for(bytes) else {
        return wires.lanes.send_later(transfer, bytes, source, done);
    };
    let threads = threads_for(bytes);
    let progress = Progress {
        unanswered: blocks_of(bytes),
        users: threads,
        lacking_bytes: 0,
        sending: None,
        is_failed: false,
        done: Some(done),
    };
    let asked = Arc::new(Asked {
        transfer,
        bytes,
        key,
        source,
        wires: Arc::downgrade(wires),
        next: AtomicU32::new(0),
        threads,
        progress: Mutex::new(progress),
    });
    let mut state = lock(&wires.content.state);
    let is_closed = state.is_closed;
    if !is_closed {
        state.open.insert(transfer, Arc::clone(&asked));
    }
    drop(state);
    if is_closed {
        asked.fail();
    }
    if bytes <= HASHED_HERE_BYTES {
        return asked.name_blocks(wires);
    }
    for _ in 0..threads {
        let (here, there) = (Arc::clone(&asked), Arc::clone(&asked));
        let its_wires = Arc::clone(wires);
        // Without a thread this one does its part.
        if crate::threads::spawn("dxpu-hash", move || there.name_blocks(&its_wires)).is_err() {
            here.name_blocks(wires);
        }
    }
}

/// Threads that are worth their start. Half of the cores: the program has work for the others.
fn threads_for(bytes: u64) -> u32 {
    if bytes <= HASHED_HERE_BYTES {
        return 1;
    }
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let groups = blocks_of(bytes).div_ceil(GROUP.into());
    (cores / 2).clamp(2, THREADS_MAX).min(groups as usize) as u32
}

/// The worker has answered for `count` blocks. False: that is no answer to anything that was asked.
pub(super) fn answered(wires: &Wires, transfer: TransferId, count: u32, lacking: &[u32]) -> bool {
    let Some(asked) = lock(&wires.content.state).open.get(&transfer).cloned() else {
        // Its session's end was noticed first.
        return true;
    };
    let found = u64::from(count).checked_sub(lacking.len() as u64);
    let Some(found) = found.filter(|_| asked.take_answer(count)) else { return false };
    wires.content.note(|policy| policy.answered(count.into(), found));
    let is_sent =
        lacking.chunk_by(|one, next| *next == one.wrapping_add(1)).all(|run| asked.send(wires, run));
    asked.leave(Ok(()));
    is_sent
}

/// A copy whose blocks are asked for.
struct Asked {
    transfer: TransferId,
    bytes: u64,
    key: [u8; 32],
    source: AnySource,
    wires: Weak<Wires>,
    /// The first block that no thread has taken.
    next: AtomicU32,
    threads: u32,
    progress: Mutex<Progress>,
}

struct Progress {
    /// Blocks that the worker has not answered for.
    unanswered: u64,
    /// Threads that read the source, and parts that the lanes send.
    users: u32,
    /// What the worker lacked.
    lacking_bytes: u64,
    /// Since when the lanes have something of it.
    sending: Option<Instant>,
    is_failed: bool,
    done: Option<Done>,
}

impl Asked {
    /// Hashes blocks that no other thread has taken, and tells their names.
    fn name_blocks(&self, wires: &Wires) {
        let mut scratch = Vec::new();
        while !lock(&self.progress).is_failed {
            let first = self.next.fetch_add(GROUP, Ordering::Relaxed);
            let begun = Instant::now();
            let names: Vec<_> = (first..first.saturating_add(GROUP))
                .map_while(|number| block_of(self.bytes, number))
                .map(|(start, length)| self.name(start, length as usize, &mut scratch))
                .collect();
            if names.is_empty() {
                break;
            }
            let rate = rate(names.len() as u64 * BLOCK_BYTES, begun.elapsed()) * u64::from(self.threads);
            wires.content.note(|policy| policy.hashed(rate));
            if wires.send(&Notice::ContentNamed { transfer: self.transfer, first, names }).is_err() {
                return self.leave(Err(LinkLost));
            }
        }
        self.leave(Ok(()));
    }

    fn name(&self, start: u64, length: usize, scratch: &mut Vec<u8>) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        let is_seen = self.source.view(start, length, &mut |part| {
            hasher.update(part);
        });
        if !is_seen {
            scratch.resize(length, 0);
            self.source.fill(start, scratch);
            hasher.update(scratch);
        }
        *hasher.finalize().as_bytes()
    }

    /// Counts an answer, and its reader as one that uses the source. False: there is not so much to answer.
    fn take_answer(&self, count: u32) -> bool {
        let mut progress = lock(&self.progress);
        let Some(left) = progress.unanswered.checked_sub(count.into()) else { return false };
        progress.unanswered = left;
        progress.users += 1;
        true
    }

    /// Sends blocks that follow each other. False: there are no such blocks.
    fn send(self: &Arc<Self>, wires: &Wires, run: &[u32]) -> bool {
        let ends = run.first().zip(run.last());
        let blocks = ends
            .and_then(|(first, last)| Some((block_of(self.bytes, *first)?, block_of(self.bytes, *last)?)));
        let Some(((start, _), (last, length))) = blocks else { return false };
        let bytes = last + u64::from(length) - start;
        let mut progress = lock(&self.progress);
        progress.users += 1;
        progress.lacking_bytes += bytes;
        progress.sending.get_or_insert_with(Instant::now);
        drop(progress);
        let here = Arc::clone(self);
        let done = Box::new(move |result| here.leave(result));
        wires.lanes.send_part_later(self.transfer, start, bytes, Box::new(Part(Arc::clone(self))), done);
        true
    }

    /// No answer comes any more.
    fn fail(&self) {
        let mut progress = lock(&self.progress);
        progress.is_failed = true;
        self.finish(progress);
    }

    /// A thread or a part that used the source is through with it.
    fn leave(&self, result: Result<(), LinkLost>) {
        let mut progress = lock(&self.progress);
        progress.users -= 1;
        progress.is_failed |= result.is_err();
        self.finish(progress);
    }

    fn finish(&self, mut progress: std::sync::MutexGuard<'_, Progress>) {
        let is_complete = progress.unanswered == 0 && !progress.is_failed;
        if progress.users != 0 || !(is_complete || progress.is_failed) {
            return;
        }
        let (done, sent) = (progress.done.take(), progress.lacking_bytes);
        let took = progress.sending.map(|begun| begun.elapsed());
        drop(progress);
        let Some(done) = done else { return };
        if let Some(wires) = self.wires.upgrade() {
            lock(&wires.content.state).open.remove(&self.transfer);
            // Of little the time is that of the way, not of the bytes.
            if let Some(took) = took.filter(|_| is_complete && sent >= 8 * BLOCK_BYTES) {
                wires.content.note(|policy| policy.sent(rate(sent, took)));
            }
        }
        done(if is_complete { Ok(()) } else { Err(LinkLost) });
    }
}

fn rate(bytes: u64, took: Duration) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / took.as_nanos().max(1)) as u64
}

/// The source of a copy, for one of its parts.
struct Part(Arc<Asked>);

impl Source for Part {
    fn fill(&self, offset: u64, target: &mut [u8]) {
        self.0.source.fill(offset, target);
    }

    fn view(&self, offset: u64, bytes: usize, send: &mut dyn FnMut(&[u8])) -> bool {
        self.0.source.view(offset, bytes, send)
    }
}
