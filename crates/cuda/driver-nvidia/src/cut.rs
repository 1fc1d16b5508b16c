//! Cuts of a session's memory: one place in the order of commands, saved while the program goes on.
//!
//! ```text
//! command thread   freeze names and addresses · borrow room · the barrier's two passes, the cut's kernels between them
//! GPU              all streams stand still · digests of all live blocks · copies of what changed into the shadow
//! cut thread       tables of digests ─▶ told ─▶ the streams go on
//! sender           shadow ─▶ pinned slots ─▶ guardian; then the shadow goes back
//! ```
//!
//! Memory is reached by kernels of a context: a *lane* is what a context needs for that. Mapped memory is its device's
//! primary context's, variables of a module are its own context's.

mod ages;
pub(crate) mod barrier;
mod buffer;
mod frozen;
mod lane;
mod restore;
mod room;
mod send;
mod shadow;
mod take;

use crate::{
    context::LiveContext,
    driver::NvidiaDriver,
    op::Work,
    pinned::Words,
    stream::{LiveEvent, LiveStream},
};
use barrier::{Barrier, CutWords};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Abandon, BlockSink, Blocks, Cut, CutState, LinkLost, PendingCut, Restored, Snapshots};
use frozen::{Frozen, Layouts};
use lane::Lane;
use locks::lock;
pub(crate) use room::Room;
use snapshot::{Extents, Key, Tables as DigestTables};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use take::{LaneCut, Taking, Timing};

/// What a session keeps for its cuts.
pub(crate) struct Cuts {
    words: Arc<CutWords>,
    books: Mutex<Books>,
    /// By context.
    lanes: Mutex<BTreeMap<u32, Arc<Lane>>>,
    /// Whether to look at `barrier`: without cuts, a command pays one load for all this.
    has_barrier: AtomicBool,
    barrier: Mutex<Option<Arc<Barrier>>>,
    next_barrier: AtomicU64,
    /// Recorded when an image was restored, by context: what ages of events are told from.
    restored: Mutex<HashMap<u32, Arc<LiveEvent>>>,
    timing: Mutex<Timing>,
    /// The memory of the last cut and where its blocks are: millions, and most cuts have the same.
    layouts: Mutex<Option<(Frozen, Layouts)>>,
}

/// The key and the digests of cuts.
#[derive(Default)]
struct Books {
    key: Option<Arc<Key>>,
    digests: DigestTables,
    /// The cut on its way, until it is settled or abandoned.
    on_its_way: Option<u64>,
    /// The lanes of that cut.
    lanes: Vec<Arc<Lane>>,
    /// Kernels of a cut that was given up are still in streams.
    is_clearing: bool,
}

impl Cuts {
    pub(crate) fn new(words: &Arc<Words>) -> CuResult<Arc<Self>> {
        Ok(Arc::new(Self {
            words: Arc::new(CutWords::new(words)?),
            books: Mutex::default(),
            lanes: Mutex::default(),
            has_barrier: AtomicBool::new(false),
            barrier: Mutex::default(),
            next_barrier: AtomicU64::new(1),
            restored: Mutex::default(),
            timing: Mutex::default(),
            layouts: Mutex::default(),
        }))
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }

    /// The barrier that work of now comes to.
    #[inline]
    pub(crate) fn barrier(&self) -> Option<Arc<Barrier>> {
        if !self.has_barrier.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.barrier).clone().filter(|barrier| !barrier.is_open())
    }

    /// Work comes to a stream, or a thread waits for it.
    #[inline]
    pub(crate) fn want(&self, stream: &Arc<LiveStream>) {
        if let Some(barrier) = self.barrier() {
            barrier.want(stream);
        }
    }

    /// A thread waits for all streams, or may wait for memory that they still use.
    pub(crate) fn want_all(&self) {
        if let Some(barrier) = self.barrier() {
            barrier.want_all();
        }
    }

    fn close_barrier(&self, barrier: &Arc<Barrier>) {
        *lock(&self.barrier) = Some(Arc::clone(barrier));
        self.has_barrier.store(true, Ordering::Release);
    }

    fn open_barrier(&self, barrier: &Arc<Barrier>) {
        barrier.open();
        let mut current = lock(&self.barrier);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, barrier)) {
            *current = None;
            self.has_barrier.store(false, Ordering::Release);
        }
        drop(current);
        drop(barrier.take_kept());
    }

    /// The lane of a context.
    fn lane(&self, work: &Work, context: &Arc<LiveContext>) -> CuResult<Arc<Lane>> {
        if let Some(lane) = lock(&self.lanes).get(&context.id) {
            return Ok(Arc::clone(lane));
        }
        let lane = Arc::new(Lane::new(work, context)?);
        lock(&self.lanes).insert(context.id, Arc::clone(&lane));
        Ok(lane)
    }

    /// A context ends.
    pub(crate) fn forget_context(&self, context: u32) {
        let gone = lock(&self.lanes).remove(&context);
        let base = lock(&self.restored).remove(&context);
        drop((gone, base));
    }

    /// Where all blocks are. `None` if a device may not use some of its memory.
    fn layouts(&self, frozen: Frozen) -> Option<Layouts> {
        let mut known = lock(&self.layouts);
        if let Some((_, layouts)) = known.as_ref().filter(|(of, _)| *of == frozen) {
            return Some(layouts.clone());
        }
        let layouts = frozen.layouts()?;
        *known = Some((frozen, layouts.clone()));
        Some(layouts)
    }

    fn settle(&self, number: u64, is_committed: bool) -> CuResult<()> {
        let mut books = self.books();
        if books.on_its_way != Some(number) {
            return Err(CudaError::INVALID_VALUE);
        }
        books.digests.settle(number, is_committed).map_err(|_| CudaError::INVALID_VALUE)?;
        books.on_its_way = None;
        let lanes = std::mem::take(&mut books.lanes);
        if is_committed {
            lanes.iter().for_each(|lane| lane.commit(number));
        }
        Ok(())
    }

    /// The driver's stream of a context's lane.
    #[cfg(test)]
    pub(crate) fn stream_of(&self, context: u32) -> usize {
        lock(&self.lanes)[&context].stream.enter().unwrap().0.addr()
    }

    /// How long the GPU took for the last cut that was taken.
    #[cfg(test)]
    pub(crate) fn timing(&self) -> Timing {
        *lock(&self.timing)
    }
}

/// What the cut's thread and the holder of the [`PendingCut`] share.
struct Shared {
    state: Mutex<State>,
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
struct NvidiaCut {
    number: u64,
    cuts: Arc<Cuts>,
    work: Arc<Work>,
    shared: Arc<Shared>,
    /// `None` for a cut that was abandoned at once.
    taking: Option<Arc<Taking>>,
    is_taken: bool,
    is_sent: bool,
}

/// What a cut is of, at its place in the order of commands.
struct Scene {
    layouts: Layouts,
    live_bytes: u64,
    contexts: Vec<Arc<LiveContext>>,
    streams: Vec<Arc<LiveStream>>,
    events: Vec<(u32, Arc<LiveEvent>)>,
}

impl NvidiaDriver {
    fn freeze(&self) -> CuResult<Frozen> {
        let tables = self.lock();
        Frozen::new(&tables, self.work.memory.freeze())
    }

    /// Freezes names and addresses. The inner error is a reason to give the cut up.
    fn scene(&self, dead: &Extents) -> CuResult<Result<Scene, Abandon>> {
        let tables = self.lock();
        let memory = self.work.memory.freeze();
        let is_hidden = !tables.physical.values().all(|it| memory.is_mapped_whole(it));
        if tables.modules.values().any(|module| module.allocates) {
            return Ok(Err(Abandon::DeviceHeap));
        }
        if is_hidden {
            return Ok(Err(Abandon::UnmappedMemory));
        }
        let frozen = Frozen::new(&tables, memory)?.without(dead);
        let contexts: Vec<Arc<LiveContext>> = tables.contexts.values().cloned().collect();
        let named = tables.streams.values().chain(&tables.departing);
        let mut streams: Vec<Arc<LiveStream>> = named.cloned().collect();
        let timed = tables.events.iter().filter(|(_, event)| event.has_timing);
        let events = timed.map(|(id, event)| (id.0, Arc::clone(event))).collect();
        drop(tables);
        // Last: a context's legacy stream waits for its blocking streams. It may have work that no name tells of.
        streams.extend(
            contexts.iter().map(|context| Arc::new(LiveStream::legacy(&self.api, Arc::clone(context)))),
        );
        let live_bytes = frozen.extents.bytes();
        let Some(layouts) = self.cuts.layouts(frozen) else { return Ok(Err(Abandon::UnmappedMemory)) };
        Ok(Ok(Scene { layouts, live_bytes, contexts, streams, events }))
    }

    /// A cut that is over before it began.
    fn abandoned(&self, number: u64, reason: Abandon) -> Box<dyn PendingCut> {
        let state = Mutex::new(State::Over(CutState::Abandoned(reason)));
        Box::new(NvidiaCut {
            number,
            cuts: Arc::clone(&self.cuts),
            work: Arc::clone(&self.work),
            shared: Arc::new(Shared { state, changed: Condvar::new() }),
            taking: None,
            is_taken: false,
            is_sent: false,
        })
    }

    /// Finds room for a cut and makes its barrier.
    fn prepare(&self, cut: Cut, key: &Key, digests: &DigestTables, mut scene: Scene) -> CuResult<Taking> {
        let mut lanes = Vec::new();
        for context in &scene.contexts {
            let lane = self.cuts.lane(&self.work, context)?;
            let layout = scene.layouts.remove(&context.id).unwrap_or_default();
            let layout = lane.prepare(&self.work, key, digests, layout)?;
            lanes.push(LaneCut::new(&self.work, lane, layout)?);
        }
        let number = self.cuts.next_barrier.fetch_add(1, Ordering::Relaxed);
        let barrier = Barrier::new(number, &self.cuts.words, scene.streams);
        Ok(Taking {
            cut,
            barrier,
            lanes,
            live_bytes: scene.live_bytes,
            events: scene.events,
            dirty: Mutex::default(),
            called_off: Arc::default(),
            is_begun: AtomicBool::new(false),
        })
    }
}

impl Snapshots for NvidiaDriver {
    fn protect(&self, key: Arc<Key>) -> CuResult<()> {
        let mut books = self.cuts.books();
        if books.on_its_way.is_some() || books.is_clearing {
            return Err(CudaError::NOT_READY);
        }
        self.work.room.open()?;
        let contexts: Vec<Arc<LiveContext>> = self.lock().contexts.values().cloned().collect();
        // The compiler takes its time for the kernels: here, not in the first cut.
        for context in &contexts {
            let lane = self.cuts.lane(&self.work, context)?;
            lane.kernels(&self.work)?;
            lane.forget();
        }
        books.key = Some(key);
        books.digests.forget();
        Ok(())
    }

    fn extents(&self) -> CuResult<Extents> {
        Ok(self.freeze()?.extents)
    }

    fn cut(&self, cut: Cut) -> CuResult<Box<dyn PendingCut>> {
        let number = cut.number;
        let mut books = self.cuts.books();
        let key = books.key.clone().ok_or(CudaError::NOT_INITIALIZED)?;
        if books.on_its_way.is_some() {
            return Err(CudaError::NOT_READY);
        }
        if number <= books.digests.committed() {
            return Err(CudaError::INVALID_VALUE);
        }
        if books.is_clearing {
            return Ok(self.abandoned(number, Abandon::Patience));
        }
        let scene = match self.scene(&cut.dead)? {
            Ok(scene) => scene,
            Err(reason) => return Ok(self.abandoned(number, reason)),
        };
        let legacy = &scene.streams[scene.streams.len() - scene.contexts.len()..];
        if legacy.iter().any(|stream| stream.is_idle().is_err()) {
            return Ok(self.abandoned(number, Abandon::ContextLost));
        }
        let taking = Arc::new(self.prepare(cut, &key, &books.digests, scene)?);
        let shared = Arc::new(Shared { state: Mutex::new(State::Waiting), changed: Condvar::new() });
        let (cuts, work) = (Arc::clone(&self.cuts), Arc::clone(&self.work));
        let (of_thread, told) = (Arc::clone(&taking), Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("dxpu-cut".to_owned());
        // The thread is there before any stream waits: what the passes do may take until it has opened the barrier.
        books.on_its_way = Some(number);
        books.lanes = taking.lanes.iter().map(|lane| Arc::clone(&lane.lane)).collect();
        drop(books);
        if thread.spawn(move || run(&cuts, &work, of_thread, &told)).is_err() {
            self.cuts.books().on_its_way = None;
            return Err(CudaError::OUT_OF_MEMORY);
        }
        self.cuts.close_barrier(&taking.barrier);
        if let Err(error) = taking.begin(&self.work, &self.cuts) {
            // The thread sees it and clears up.
            let mut state = lock(&shared.state);
            if matches!(*state, State::Waiting) {
                *state = State::GivenUp;
            }
            return Err(error);
        }
        Ok(Box::new(NvidiaCut {
            number,
            cuts: Arc::clone(&self.cuts),
            work: Arc::clone(&self.work),
            shared,
            taking: Some(taking),
            is_taken: false,
            is_sent: false,
        }))
    }

    fn settle(&self, number: u64, is_committed: bool) -> CuResult<()> {
        self.cuts.settle(number, is_committed)
    }

    fn restore(&self, image: &dyn Blocks) -> CuResult<Restored> {
        restore::restore(self, image)
    }
}

/// The cut's thread.
fn run(cuts: &Arc<Cuts>, work: &Arc<Work>, taking: Arc<Taking>, shared: &Shared) {
    let number = taking.cut.number;
    let is_unwanted = || {
        let is_given_up = matches!(*lock(&shared.state), State::GivenUp);
        (is_given_up || work.is_aborted()).then_some(Abandon::Ended)
    };
    let entries = taking.entries();
    let outcome = taking.barrier.gather(taking.cut.patience, is_unwanted);
    let gathered = Instant::now();
    let mut outcome = outcome.and_then(|()| taking.collect(work, cuts, entries));
    if let Ok(taken) = &mut outcome {
        (taking.cut.on_taken)(taken);
        // The client was told meanwhile, and work was held back for that, too.
        taken.pause = taking.barrier.held_for();
    }
    let stood = gathered.elapsed();
    cuts.open_barrier(&taking.barrier);
    // From here on the library may be called: no stream waits for this thread.
    match outcome {
        Ok(mut taken) => {
            taken.events = taking.ages(work);
            taking.dirty.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&taken.delta.dirty);
            let timing = taking.timing(work, stood);
            let Timing { digest, copy, stood } = timing;
            tracing::debug!(number, pause = ?taken.pause, ?digest, ?copy, ?stood, taken.dirty_bytes, "a cut is taken");
            *lock(&cuts.timing) = timing;
            drop(taking);
            let mut state = lock(&shared.state);
            let is_given_up = matches!(*state, State::GivenUp);
            *state = State::Over(CutState::Taken(Box::new(taken)));
            drop(state);
            if is_given_up {
                let _ = cuts.settle(number, false);
            }
            shared.changed.notify_all();
        }
        Err(reason) => {
            tracing::debug!(number, %reason, "a cut is given up");
            let mut books = cuts.books();
            books.on_its_way = None;
            books.lanes.clear();
            books.is_clearing = true;
            drop(books);
            *lock(&shared.state) = State::Over(CutState::Abandoned(reason));
            shared.changed.notify_all();
            // Kernels that were skipped may still wait for their turn, and copies write to memory of the cut.
            taking.wait_out();
            drop(taking);
            cuts.books().is_clearing = false;
        }
    }
}

impl PendingCut for NvidiaCut {
    fn poll(&mut self) -> CutState {
        let mut state = lock(&self.shared.state);
        match std::mem::replace(&mut *state, State::Heard) {
            State::Over(outcome) => {
                self.is_taken = matches!(outcome, CutState::Taken(_));
                if !self.is_taken {
                    self.taking = None;
                }
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
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        self.poll()
    }

    fn send(mut self: Box<Self>, sink: &dyn BlockSink) -> Result<(), LinkLost> {
        self.is_sent = true;
        let taking = self.taking.take().filter(|_| self.is_taken).ok_or(LinkLost)?;
        let taking = Arc::into_inner(taking).ok_or(LinkLost)?;
        send::send(&self.work, taking, sink)
    }
}

impl Drop for NvidiaCut {
    fn drop(&mut self) {
        if self.is_sent {
            return;
        }
        let mut state = lock(&self.shared.state);
        let is_taken = match *state {
            State::Waiting => {
                // Its thread sees it, or settles what it has taken by then.
                *state = State::GivenUp;
                drop(state);
                if let Some(taking) = &self.taking {
                    taking.barrier.give_up_waiting();
                }
                return;
            }
            State::Over(CutState::Taken(_)) => true,
            _ => self.is_taken,
        };
        drop(state);
        self.taking = None;
        if is_taken {
            let _ = self.cuts.settle(self.number, false);
        }
    }
}
