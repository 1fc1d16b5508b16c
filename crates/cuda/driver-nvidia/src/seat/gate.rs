//! The gate of an offline session: its streams wait on the device until no online session is busy. A session that takes turns waits
//! in the same way for the word of its own slot, which its keeper opens and closes.
//!
//! ```text
//!   page, mapped by all session processes, known to the device        stream of this session
//!   closers ◀─────────────── cuStreamWaitValue64(closers == 0) ────── wait  k k k  wait  k k  wait …
//!      ▲                                                               every 16th wait: the stream writes how far it is
//!   sentry thread: clears the bits of online sessions that died
//! ```
//!
//! [`Turnstile`] decides where a stream waits. The command loop runs ahead of the device as in any session, so what still runs
//! after the gate has closed is the rest of one group. What a stream waits for here is written by the processor of another process,
//! never by a stream.

#![allow(unsafe_code)]

use super::{
    marks::Marks,
    samples::{Samples, Timed, Timing},
};
use crate::{
    graph::{Exec, GraphGates},
    op::{Work, enqueue},
    pinned::Word,
    stream::LiveStream,
    sys::{Api, DeviceAddress},
    tables::Tables,
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{Op, Shape};
use locks::{lock, try_lock};
use shared_words::process;
use sharing::{
    Demand, Field, Gate, KernelShape, KernelTimes, LongestGroup, Page, PageHandle, Part, Sentry, Ticket,
    Turn, Turnstile,
};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// `CU_STREAM_WAIT_VALUE_EQ`
pub(crate) const EQUAL: u32 = 1;
/// A stream writes how many waits it has passed at every wait of this number. A write costs as much as a wait.
const MARK_EVERY: u64 = 16;
/// How long the command loop sleeps between two looks at a closed gate.
const NAP: Duration = Duration::from_micros(50);
/// How often the sentry looks. It takes a longer pause for a pause of its own.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Times of launches are read once in so many pieces of work.
const READ_EVERY: u64 = 16;
/// How many bytes a device copies or fills in a nanosecond, about. A GPU of today moves twice as many.
const DEVICE_BYTES_PER_NS: u64 = 2_000;
/// The same between host and device, over PCIe 5.
const HOST_BYTES_PER_NS: u64 = 50;
/// What a copy or fill costs beside its bytes.
const BASE_NS: u64 = 2_000;
/// A device looks at a wait as soon as it has begun what stands in front of it: the kernel behind an open gate is then as good as begun.
/// Behind a group that takes longer than this the stream writes how far it is first, for which it waits until the group has ended. So
/// one such kernel runs on when the gate closes, not two. The write costs 2 us, and a pause between the groups.
const APART_NS: u64 = 300_000;
/// Work of a session that takes turns is marked if it takes longer, so that its keeper knows when it has ended. Two marks cost
/// about 4 us.
const LONG_NS: u64 = 400_000;

pub(crate) struct SharingGate {
    api: Api,
    page: PageHandle,
    ticket: Ticket,
    /// Where the device finds the word that is zero while the gate is open.
    word: DeviceAddress,
    /// Long work is marked, so that it is known whether some of it runs.
    marks_long: bool,
    state: Mutex<State>,
}

struct State {
    turnstile: Turnstile,
    times: KernelTimes,
    samples: Samples,
    /// By the number of the stream.
    lanes: HashMap<u64, Lane>,
    works: u64,
    longest: LongestGroup,
}

/// The waits of a stream.
struct Lane {
    given: u64,
    /// How many of them the turnstile knows to be passed.
    told: u64,
    /// How many are passed, of those after which the stream writes it.
    passed: Word,
    /// What the group takes that is being put together.
    group_ns: u64,
    /// Of long work, in a session that takes turns or has a merged context.
    marks: Option<Marks>,
}

/// What is put around a piece of work.
#[derive(Default)]
struct Around {
    timing: Option<Timing>,
    is_marked: bool,
}

/// What a piece of work costs.
enum Load {
    Kernel(KernelShape),
    Ns(u64),
}

impl Load {
    /// `None`: it does not occupy the device, or waits part by part.
    fn of(op: &Op<'_>) -> Option<Self> {
        match op {
            Op::Launch { kernel, grid, block, .. } => {
                let function = u64::from(kernel.module.0) << 32 | u64::from(kernel.index);
                Some(Self::Kernel(KernelShape { function, grid: *grid, block: *block }))
            }
            Op::Fill { shape, .. } | Op::CopyDevice { shape, .. } => Some(Self::Ns(device_ns(shape))),
            _ => None,
        }
    }
}

fn device_ns(shape: &Shape) -> u64 {
    BASE_NS + shape.bytes().unwrap_or(u64::MAX) / DEVICE_BYTES_PER_NS
}

impl SharingGate {
    /// Shows the page to the device, and starts the thread that looks after dead owners. The calling thread has a context.
    pub(crate) fn new(api: Api, page: PageHandle, ticket: Ticket) -> CuResult<Self> {
        const PORTABLE_MAPPED: u32 = 1 | 2;
        let words = page.words();
        let start: *mut c_void = words.as_ptr().cast_mut().cast();
        let mut device: DeviceAddress = 0;
        // Streams may wait for the word until the process ends, so the page is never unmapped.
        std::mem::forget(page.clone());
        // SAFETY: the page stays mapped; the number is valid for the call.
        unsafe {
            api.host_register(start, size_of_val(words), PORTABLE_MAPPED)?;
            api.host_device_pointer(&mut device, start, 0)?;
        }
        let word = device + (Page::gate_word(ticket) * size_of::<u64>()) as u64;
        let state = Mutex::new(State {
            turnstile: Turnstile::of(ticket.part()),
            times: KernelTimes::default(),
            samples: Samples::default(),
            lanes: HashMap::new(),
            works: 0,
            longest: LongestGroup::default(),
        });
        let marks_long = ticket.part().share().is_some();
        Ok(Self { api, page, ticket, word, marks_long, state })
    }

    /// The same, with marks around long work also in a session that takes no turns.
    pub(crate) fn marking_long(self, marks_long: bool) -> Self {
        Self { marks_long: self.marks_long || marks_long, ..self }
    }

    /// Closes the gate of all offline sessions until this one is gone: groups of this session that wait begin no more. The caller beats
    /// ([`SharingGate::hold_shut`]) as long as it lives; then its front opens the gate.
    pub(crate) fn shut(&self) {
        self.page.page().close(self.ticket, process::now_ns());
    }

    /// Keeps the gate closed.
    pub(crate) fn hold_shut(&self) {
        self.page.page().beat_and_hold(self.ticket, true);
    }

    /// Whether a piece of work waits for the gate.
    pub(super) fn holds_back(op: &Op<'_>) -> bool {
        Load::of(op).is_some()
    }

    /// Puts work behind the gate.
    pub(super) fn enqueue(
        &self,
        work: &Arc<Work>,
        tables: &Mutex<Tables>,
        stream: &Arc<LiveStream>,
        op: Op<'_>,
    ) -> CuResult<()> {
        let Some(load) = Load::of(&op) else { return enqueue(work, tables, stream, op) };
        self.hold(work)?;
        let around = self.admit(work, stream, load)?;
        let result = enqueue(work, tables, stream, op);
        self.after(stream, around, result);
        result
    }

    /// Puts behind a piece of work what belongs there.
    fn after(&self, stream: &Arc<LiveStream>, around: Around, result: CuResult<()>) {
        if around.timing.is_none() && !around.is_marked {
            return;
        }
        let mut state = lock(&self.state);
        if let (Ok(()), Some(timing)) = (result, around.timing) {
            state.samples.end(&self.api, stream, timing);
        }
        // Also behind work that was refused: nothing runs on.
        if around.is_marked
            && let Some(marks) = state.lanes.get_mut(&stream.number).and_then(|lane| lane.marks.as_mut())
        {
            marks.end(&self.api, stream);
        }
    }

    /// Whether no long work has begun and not ended.
    pub(crate) fn rests(&self) -> bool {
        // A command that is stuck in the library, because its queue is full, holds the lock until the session has its next turn.
        let Some(state) = try_lock(&self.state) else { return false };
        state.lanes.values().all(|lane| lane.marks.as_ref().is_none_or(Marks::rest))
    }

    /// Part of a copy between host and device.
    pub(super) fn before_part(&self, work: &Work, stream: &Arc<LiveStream>, bytes: u64) -> CuResult<()> {
        self.hold(work)?;
        self.admit(work, stream, Load::Ns(BASE_NS + bytes / HOST_BYTES_PER_NS)).map(drop)
    }

    /// Launches a graph behind the gate. One that takes longer than a group is made again with gates inside, when its time is
    /// known and there are online sessions.
    pub(super) fn launch_graph(
        &self,
        tables: &Mutex<Tables>,
        exec: &Arc<Exec>,
        stream: &Arc<LiveStream>,
        run: u32,
    ) -> CuResult<()> {
        let work = exec.work();
        self.hold(work)?;
        let now_ns = process::now_ns();
        let demand = Demand::of(self.page.page(), self.ticket, now_ns);
        let mut state = lock(&self.state);
        state.turnstile.obey(self.page.page());
        state.read_times(&self.api);
        let time = *lock(&exec.time);
        let budget_ns = state.turnstile.graph_budget_ns();
        let is_long = |time_ns: &u64| *time_ns > budget_ns;
        if let (Some(time_ns), true) = (time.ns().filter(is_long), demand != Demand::Absent) {
            exec.wait_inside(GraphGates { word: self.word, time_ns, budget_ns });
        }
        self.tell_longest(&mut state, time.ns().map(|time_ns| time_ns.min(budget_ns)), now_ns);
        // With gates inside, how much of it belongs to the last group is not known.
        let cost_ns = time.ns().filter(|time_ns| !is_long(time_ns));
        let turn = state.turnstile.before(stream.number, cost_ns, demand, now_ns);
        self.take_turn(&mut state, work, stream, turn, (cost_ns, demand))?;
        // One that waits inside may wait there for the next turn.
        let is_marked = !exec.waits_inside() && self.mark_long(&mut state, work, stream, time.ns());
        let timing = match time.is_sampled() {
            true => state.samples.begin(&self.api, stream, Timed::Graph(Arc::downgrade(exec))),
            false => None,
        };
        drop(state);
        let result = exec.launch(tables, stream, run);
        self.after(stream, Around { timing, is_marked }, result);
        result
    }

    /// The timed work that has begun and not ended. The first launch of each kind is timed, so a kernel that never ends is found
    /// unless launches of its kind have ended before.
    pub(super) fn running(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        state.read_times(&self.api);
        state.samples.running()
    }

    /// Writes to the log how the work was cut into groups.
    pub(super) fn tell(&self) {
        let groups = self.page.page().get(self.ticket.slot(), Field::Groups);
        // A command that is stuck in the library holds the lock for good.
        let Some(state) = try_lock(&self.state) else { return };
        let (works, kinds) = (state.works, state.times.shapes());
        tracing::info!(part = %self.ticket.part(), works, groups, kinds, "a session's work was cut into groups");
    }

    /// A stream is gone. Its last waits still write where they are passed.
    pub(super) fn forget(&self, work: &Work, stream: &Arc<LiveStream>) {
        let mut state = lock(&self.state);
        state.turnstile.forget(stream.number);
        let Some(lane) = state.lanes.remove(&stream.number) else { return };
        state.turnstile.passed(lane.given - lane.told);
        drop(state);
        work.progress.keep_until_idle(stream, (lane.passed, lane.marks));
    }

    /// Holds the command loop back while the gate is closed and enough groups are queued, or while the page is damaged.
    fn hold(&self, work: &Work) -> CuResult<()> {
        loop {
            let gate = self.page.page().gate_of(self.ticket);
            if gate == Gate::Open {
                return Ok(());
            }
            let mut state = lock(&self.state);
            state.count_passed();
            let must_hold = gate == Gate::Damaged || state.turnstile.must_hold(false);
            drop(state);
            if !must_hold {
                return Ok(());
            }
            if work.is_aborted() {
                return Err(CudaError::DEVICE_UNAVAILABLE);
            }
            std::thread::sleep(NAP);
        }
    }

    /// Puts a wait into the stream if the work begins a group, and the first event if it is timed.
    fn admit(&self, work: &Work, stream: &Arc<LiveStream>, load: Load) -> CuResult<Around> {
        let now_ns = process::now_ns();
        let demand = Demand::of(self.page.page(), self.ticket, now_ns);
        let mut state = lock(&self.state);
        state.turnstile.obey(self.page.page());
        state.works += 1;
        if state.works.is_multiple_of(READ_EVERY) {
            state.read_times(&self.api);
        }
        let (cost_ns, timed) = match load {
            Load::Ns(ns) => (Some(ns), None),
            Load::Kernel(shape) => {
                let (cost_ns, is_timed) = state.times.launch(shape);
                (cost_ns, is_timed.then_some(Timed::Kernel(shape)))
            }
        };
        let turn = state.turnstile.before(stream.number, cost_ns, demand, now_ns);
        self.take_turn(&mut state, work, stream, turn, (cost_ns, demand))?;
        self.tell_longest(&mut state, cost_ns, now_ns);
        // Behind the wait: the time at the gate is not the kernel's.
        let is_marked = self.mark_long(&mut state, work, stream, cost_ns);
        let timing = timed.and_then(|what| state.samples.begin(&self.api, stream, what));
        Ok(Around { timing, is_marked })
    }

    /// Writes into the slot how long the longest group takes.
    fn tell_longest(&self, state: &mut State, cost_ns: Option<u64>, now_ns: u64) {
        let is_offline = self.ticket.part() == Part::Offline;
        if let Some(us) = cost_ns.filter(|_| is_offline).and_then(|ns| state.longest.saw(ns, now_ns)) {
            self.page.page().set(self.ticket, Field::GroupUs, us);
        }
    }

    /// Has the stream write that long work begins, in a session that takes turns or has a merged context. What is not known yet may be long.
    fn mark_long(
        &self,
        state: &mut State,
        work: &Work,
        stream: &Arc<LiveStream>,
        cost_ns: Option<u64>,
    ) -> bool {
        let is_long = cost_ns.is_none_or(|cost_ns| cost_ns > LONG_NS);
        if !is_long || !self.marks_long {
            return false;
        }
        let Some(lane) = state.lanes.get_mut(&stream.number) else { return false };
        if lane.marks.is_none() {
            lane.marks = Marks::new(work).ok();
        }
        lane.marks.as_mut().is_some_and(|marks| marks.begin(&self.api, stream))
    }

    fn take_turn(
        &self,
        state: &mut State,
        work: &Work,
        stream: &Arc<LiveStream>,
        turn: Turn,
        (cost_ns, demand): (Option<u64>, Demand),
    ) -> CuResult<()> {
        let cost_ns = cost_ns.unwrap_or(0);
        if turn == Turn::Pass {
            if let Some(lane) = state.lanes.get_mut(&stream.number) {
                lane.group_ns = lane.group_ns.saturating_add(cost_ns);
            }
            return Ok(());
        }
        let lane = match state.lanes.entry(stream.number) {
            std::collections::hash_map::Entry::Occupied(lane) => lane.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(Lane { given: 0, told: 0, passed: work.words.take()?, group_ns: 0, marks: None })
            }
        };
        let before_ns = std::mem::replace(&mut lane.group_ns, cost_ns);
        // Sessions that take turns know from their marks what runs.
        let is_offline = self.ticket.part() == Part::Offline;
        let is_apart = is_offline && demand == Demand::Lately && before_ns >= APART_NS;
        lane.given += 1;
        let raw = stream.enter()?;
        // SAFETY: the page is never unmapped, see `new`; the word is kept until the stream has passed this, see `forget`.
        unsafe {
            if is_apart {
                self.api.stream_write_value(raw, lane.passed.device(), lane.given - 1, 0)?;
            }
            self.api.stream_wait_value(raw, self.word, 0, EQUAL)?;
            if lane.given.is_multiple_of(MARK_EVERY) {
                self.api.stream_write_value(raw, lane.passed.device(), lane.given, 0)?;
            }
        }
        let page = self.page.page();
        let groups = page.get(self.ticket.slot(), Field::Groups);
        page.set(self.ticket, Field::Groups, groups.wrapping_add(1));
        Ok(())
    }

    /// Starts the thread that clears the bits of online sessions that died or froze. It ends with the session. The keeper of one that
    /// takes turns does so itself.
    pub(crate) fn watch_owners(&self, work: &Arc<Work>) -> std::io::Result<()> {
        if self.ticket.part() != Part::Offline {
            return Ok(());
        }
        let (page, work): (PageHandle, Weak<Work>) = (self.page.clone(), Arc::downgrade(work));
        std::thread::Builder::new().name("dxpu-sentry".to_owned()).spawn(move || {
            let mut sentry = Sentry::default();
            while work.upgrade().is_some_and(|work| !work.is_aborted()) {
                if page.page().gate() != Gate::Open {
                    for cleared in sentry.look(page.page(), process::now_ns(), process::life) {
                        tracing::info!(?cleared, "the gate was kept closed by a process that does nothing");
                    }
                }
                std::thread::sleep(LOOK_EVERY);
            }
        })?;
        Ok(())
    }
}

impl State {
    /// Tells the turnstile what streams have passed.
    fn count_passed(&mut self) {
        for lane in self.lanes.values_mut() {
            let passed = lane.passed.get();
            self.turnstile.passed(passed.saturating_sub(lane.told));
            lane.told = lane.told.max(passed);
        }
    }

    fn read_times(&mut self, api: &Api) {
        let times = &mut self.times;
        self.samples.take(api, |what, ns| match what {
            Timed::Kernel(shape) => times.sample(shape, ns),
            Timed::Graph(exec) => {
                if let Some(exec) = exec.upgrade() {
                    lock(&exec.time).sample(ns);
                }
            }
        });
    }
}
