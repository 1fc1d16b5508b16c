//! Cuts: all memory of the session at one place in the order of commands.
//!
//! ```text
//! command thread   cut: freeze names and addresses, note the ends of busy lines, close the gate
//! lines            work before the cut goes on; work after it waits at the gate
//! cut thread       all ends reached ─▶ digests; copies of what changed ─▶ gate open ─▶ Taken
//!                  work waits for longer than `patience` ─▶ gate open ─▶ Abandoned
//! ```
//!
//! Memory that is freed after the cut goes when the gate is open, so the frozen addresses stay what they were. New memory
//! is mapped meanwhile; the cut does not know of it.

use crate::{
    SoftDriver,
    activity::now_ns,
    context::Context,
    frozen::Frozen,
    gate::Gate,
    line::{Place, Record},
    restore,
    session::Session,
    space::{Cursor, PhysicalMemory},
    sync::{Lock, lock, wait},
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{
    Abandon, BlockSink, Blocks, Cut, CutState, LinkLost, PendingCut, Restored, Snapshots, TakenCut,
};
use snapshot::{Block, BlockDigest, Bytes, EventAge, Extents, Key, Tables as DigestTables};
use std::{
    sync::{Arc, Condvar, Weak},
    thread::JoinHandle,
    time::Duration,
};

/// What a session keeps for its cuts.
#[derive(Default)]
pub(crate) struct Cuts {
    pub(crate) books: Lock<Books>,
    thread: Lock<Option<JoinHandle<()>>>,
}

/// The key and the digests of cuts.
#[derive(Default)]
pub(crate) struct Books {
    pub(crate) key: Option<Arc<Key>>,
    pub(crate) digests: DigestTables,
    /// The cut on its way. Until it is settled, its thread alone changes the digests.
    pub(crate) on_its_way: Option<u64>,
}

impl Cuts {
    /// Waits for the thread of the last cut; the session is aborted.
    pub(crate) fn join(&self) {
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

/// A cut as its thread has it.
struct Taking {
    cut: Cut,
    key: Arc<Key>,
    frozen: Frozen,
    ends: Vec<Place>,
    contexts: Vec<Arc<Context>>,
    physical: Vec<Arc<PhysicalMemory>>,
    events: Vec<(u32, Arc<Record>)>,
    gate: Arc<Gate>,
    shared: Arc<Shared>,
}

/// What the cut's thread and the holder of the [`PendingCut`] share.
struct Shared {
    state: Lock<State>,
    changed: Condvar,
}

enum State {
    Waiting,
    GivenUp,
    Over(CutState),
    /// The holder has heard.
    Heard,
}

/// A cut on its way.
struct SoftCut {
    number: u64,
    session: Weak<Session>,
    shared: Arc<Shared>,
    shadow: Arc<Lock<Vec<(BlockDigest, Bytes)>>>,
    /// The holder has heard that it was taken.
    is_taken: bool,
    is_sent: bool,
}

impl Snapshots for SoftDriver {
    fn protect(&self, key: Arc<Key>) -> CuResult<()> {
        let mut books = lock(&self.session.cuts.books);
        if books.on_its_way.is_some() {
            return Err(CudaError::NOT_READY);
        }
        books.key = Some(key);
        books.digests.forget();
        Ok(())
    }

    fn extents(&self) -> CuResult<Extents> {
        Ok(self.session.freeze(&lock(&self.session.tables))?.extents)
    }

    fn cut(&self, cut: Cut) -> CuResult<Box<dyn PendingCut>> {
        let session = &self.session;
        let number = cut.number;
        let mut books = lock(&session.cuts.books);
        let key = books.key.clone().ok_or(CudaError::NOT_INITIALIZED)?;
        if books.on_its_way.is_some() {
            return Err(CudaError::NOT_READY);
        }
        if number <= books.digests.committed() {
            return Err(CudaError::INVALID_VALUE);
        }
        let shadow = Arc::<Lock<Vec<_>>>::default();
        let shared = Arc::new(Shared { state: Lock::new(State::Waiting), changed: Condvar::new() });
        let tables = lock(&session.tables);
        let frozen = session.freeze(&tables)?.without(&cut.dead);
        let timed = tables.events.iter().filter(|(_, event)| event.has_timing);
        let taking = Taking {
            cut,
            key,
            frozen,
            ends: tables.all_busy_ends(),
            contexts: tables.contexts.values().cloned().collect(),
            physical: tables.physical.values().cloned().collect(),
            events: timed.filter_map(|(id, event)| Some((id.0, event.latest.clone()?))).collect(),
            gate: session.close_gate(),
            shared: shared.clone(),
        };
        drop(tables);
        let gate = taking.gate.clone();
        let (of_thread, of_shadow) = (session.clone(), shadow.clone());
        let thread = std::thread::Builder::new().name("dxpu-cut".into());
        let Ok(thread) = thread.spawn(move || of_thread.take(taking, &of_shadow)) else {
            session.open_gate(&gate);
            return Err(CudaError::OUT_OF_MEMORY);
        };
        books.on_its_way = Some(number);
        drop(books);
        // The thread before has told the fate of its cut and has nothing left to do.
        drop(lock(&session.cuts.thread).replace(thread));
        Ok(Box::new(SoftCut {
            number,
            session: Arc::downgrade(session),
            shared,
            shadow,
            is_taken: false,
            is_sent: false,
        }))
    }

    fn settle(&self, number: u64, is_committed: bool) -> CuResult<()> {
        self.session.settle(number, is_committed)
    }

    fn restore(&self, image: &dyn Blocks) -> CuResult<Restored> {
        restore::restore(&self.session, image)
    }
}

impl Session {
    fn settle(&self, number: u64, is_committed: bool) -> CuResult<()> {
        let mut books = lock(&self.cuts.books);
        if books.on_its_way != Some(number) {
            return Err(CudaError::INVALID_VALUE);
        }
        books.digests.settle(number, is_committed).map_err(|_| CudaError::INVALID_VALUE)?;
        books.on_its_way = None;
        Ok(())
    }

    /// The cut's thread.
    fn take(&self, taking: Taking, shadow: &Lock<Vec<(BlockDigest, Bytes)>>) {
        let outcome = self.arrive(&taking).and_then(|()| {
            // The digests are this thread's meanwhile: nothing else changes them while a cut is on its way, and a
            // command that asks for the books need not wait.
            let mut digests = std::mem::take(&mut lock(&self.cuts.books).digests);
            let outcome = self.copy(&taking, &mut digests, shadow);
            lock(&self.cuts.books).digests = digests;
            outcome
        });
        if let Ok(taken) = &outcome {
            (taking.cut.on_taken)(taken);
        }
        self.open_gate(&taking.gate);
        if outcome.is_err() {
            lock(shadow).clear();
            lock(&self.cuts.books).on_its_way = None;
        }
        let is_given_up = {
            let mut state = lock(&taking.shared.state);
            let is_given_up = matches!(*state, State::GivenUp);
            let is_taken = outcome.is_ok();
            *state = State::Over(match outcome {
                Ok(taken) => CutState::Taken(Box::new(taken)),
                Err(reason) => CutState::Abandoned(reason),
            });
            is_given_up && is_taken
        };
        if is_given_up {
            let _ = self.settle(taking.cut.number, false);
        }
        taking.shared.changed.notify_all();
    }

    /// Waits until all work before the cut is done.
    fn arrive(&self, taking: &Taking) -> Result<(), Abandon> {
        /// How often the ends of lines are looked at: short against the work of a step.
        const LOOK: Duration = Duration::from_micros(200);
        loop {
            if self.is_aborted() || matches!(*lock(&taking.shared.state), State::GivenUp) {
                return Err(Abandon::Ended);
            }
            if taking.ends.iter().all(Place::is_reached) {
                break;
            }
            if taking.gate.wanted_for().is_some_and(|waited| waited > taking.cut.patience) {
                return Err(Abandon::Patience);
            }
            std::thread::sleep(LOOK);
        }
        if taking.contexts.iter().any(|context| context.check().is_err()) {
            return Err(Abandon::ContextLost);
        }
        if taking.contexts.iter().any(|context| lock(&context.heap).is_some()) {
            return Err(Abandon::DeviceHeap);
        }
        let parts = self.space.mapped_parts(|start| taking.frozen.extents.holding(start).is_some());
        let is_mapped = |memory: &Arc<PhysicalMemory>| {
            let mut of_it: Vec<(u64, u64)> = parts
                .iter()
                .filter(|(of, ..)| Arc::ptr_eq(of, memory))
                .map(|(_, from, bytes)| (*from, from + bytes))
                .collect();
            of_it.sort_unstable();
            let reach =
                of_it.iter().fold(0, |reach, (from, to)| if *from <= reach { reach.max(*to) } else { reach });
            reach >= memory.pages.bytes()
        };
        if !taking.physical.iter().all(is_mapped) {
            return Err(Abandon::UnmappedMemory);
        }
        Ok(())
    }

    /// Computes all digests and keeps copies of the blocks that changed.
    fn copy(
        &self,
        taking: &Taking,
        digests: &mut DigestTables,
        shadow: &Lock<Vec<(BlockDigest, Bytes)>>,
    ) -> Result<TakenCut, Abandon> {
        let mut cursor = Cursor::of_driver(&self.space);
        let mut entries = Vec::new();
        let mut copies = Vec::new();
        let mut dirty_bytes = 0;
        for block in taking.frozen.extents.blocks() {
            if self.is_aborted() {
                return Err(Abandon::Ended);
            }
            let bytes = read(&mut cursor, &taking.frozen, block).ok_or(Abandon::Ended)?;
            let entry = BlockDigest { block, digest: taking.key.digest(&bytes) };
            entries.push(entry);
            if !digests.is_clean(&entry) {
                dirty_bytes += u64::from(block.bytes);
                copies.push((entry, bytes));
            }
        }
        let delta = digests.take(taking.cut.number, entries).map_err(|_| Abandon::Ended)?;
        *lock(shadow) = copies;
        let now = now_ns() as i64;
        let age = |(event, record): &(u32, Arc<Record>)| {
            let age_ns = u64::try_from(now.saturating_sub(record.reached_at()?)).unwrap_or(0);
            Some(EventAge { event: *event, age_ns })
        };
        Ok(TakenCut {
            delta,
            live_bytes: taking.frozen.extents.bytes(),
            dirty_bytes,
            events: taking.events.iter().filter_map(age).collect(),
            pause: taking.gate.wanted_for().unwrap_or_default(),
        })
    }
}

/// The bytes of a block; `None` if the session ended and its memory is gone.
pub(crate) fn read(cursor: &mut Cursor<'_>, frozen: &Frozen, block: Block) -> Option<Bytes> {
    let mut bytes = vec![0; block.bytes as usize].into_boxed_slice();
    cursor.read(frozen.here(block.address), &mut bytes).ok()?;
    Some(Bytes::from(bytes))
}

impl PendingCut for SoftCut {
    fn poll(&mut self) -> CutState {
        let mut state = lock(&self.shared.state);
        match std::mem::replace(&mut *state, State::Heard) {
            State::Over(outcome) => {
                self.is_taken = matches!(outcome, CutState::Taken(_));
                outcome
            }
            other => {
                *state = other;
                CutState::Waiting
            }
        }
    }

    fn wait(&mut self) -> CutState {
        let mut state = lock(&self.shared.state);
        while matches!(*state, State::Waiting) {
            state = wait(&self.shared.changed, state);
        }
        drop(state);
        self.poll()
    }

    fn send(mut self: Box<Self>, sink: &dyn BlockSink) -> Result<(), LinkLost> {
        self.is_sent = true;
        let copies = std::mem::take(&mut *lock(&self.shadow));
        copies.into_iter().try_for_each(|(entry, bytes)| sink.put(&entry, &bytes))
    }
}

impl Drop for SoftCut {
    fn drop(&mut self) {
        if self.is_sent {
            return;
        }
        let mut state = lock(&self.shared.state);
        let is_taken = match *state {
            State::Waiting => {
                // Its thread sees it, or settles what it has taken by then.
                *state = State::GivenUp;
                return;
            }
            State::Over(CutState::Taken(_)) => true,
            _ => self.is_taken,
        };
        drop(state);
        lock(&self.shadow).clear();
        if let Some(session) = self.session.upgrade().filter(|_| is_taken) {
            let _ = session.settle(self.number, false);
        }
    }
}
