//! What all parts of one session share.

use crate::{
    account::Account,
    activity::Activity,
    arrays::Array,
    conditional::Conditions,
    config::SoftConfig,
    context::Context,
    device_memory::DeviceMemory,
    graph::Exec,
    green::Green,
    ledger::{LocalLedger, MemoryLedger},
    line::{Line, LineKind, Place},
    module::LoadedModule,
    op::Event,
    promises::Promises,
    ranges::Ranges,
    samplers::Object,
    space::{Access, Block, Held, PhysicalMemory, Space},
    sync::{Lock, lock},
    work::PendingBlock,
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{HostLink, SharedPages};
use cuda_wire::{
    ArrayId, ContextId, EventId, ExecId, GreenId, MemoryHandleId, ModuleId, RegionId, SamplerId, StreamId,
};
use ptx::Sampler;
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering, Ordering::SeqCst},
    },
    time::Instant,
};

/// Addresses of created contexts start here; below are the primary contexts, by device.
pub(crate) const FIRST_CREATED_CONTEXT: u32 = 0x100;

/// Alignment of what the driver itself allocates.
const INTERNAL_ALIGN: u64 = 512;

/// Variables of a module lie in a slot that its name chooses, if they fit. So a session that loads only the modules that
/// are left finds them where they were.
pub(crate) const VARIABLE_SLOTS: u64 = 32 << 10;
pub(crate) const VARIABLE_SLOT_BYTES: u64 = 1 << 20;
/// Allocations begin and end at multiples of this.
pub(crate) const ALLOCATION_STEP: u64 = 512;

/// One session.
pub(crate) struct Session {
    pub(crate) config: SoftConfig,
    pub(crate) account: Arc<Account>,
    pub(crate) activity: Activity,
    pub(crate) ledger: Arc<dyn MemoryLedger>,
    /// The same, for what sessions of other workers have.
    pub(crate) memory: Arc<DeviceMemory>,
    pub(crate) space: Space,
    pub(crate) tables: Lock<Tables>,
    /// Addresses for globals and heaps.
    pub(crate) internal: Lock<Ranges>,
    /// Where the slots of variables begin, in the same range.
    pub(crate) variables_at: AtomicU64,
    pub(crate) crew: crate::crew::Crew,
    pub(crate) load: crate::load::Load,
    pub(crate) started: Instant,
    pub(crate) retiring: crate::retire::Retiring,
    /// Events that other sessions may know.
    pub(crate) shared_events: Arc<crate::shared_event::SharedEvents>,
    pub(crate) cuts: crate::cut::Cuts,
    pub(crate) current_gate: crate::gate::CurrentGate,
    /// What an offline session's kernels wait at.
    pub(crate) sharing_gate: OnceLock<crate::sharing_gate::SharingGate>,
    /// Textures and surfaces by what kernels know them by, until the work before their end is done.
    pub(crate) samplers: Lock<HashMap<u64, Arc<Sampler>>>,
    /// The values that conditional nodes go by.
    pub(crate) conditions: Arc<Conditions>,
    pub(crate) next_sampler: AtomicU64,
    link: OnceLock<Arc<dyn HostLink>>,
    /// Every line whose thread may still be there.
    lines: Lock<Vec<Arc<Line>>>,
    deferred: Lock<VecDeque<(ContextId, CudaError)>>,
    message: Lock<Option<String>>,
    /// With contexts that are merged with those of other sessions.
    pub(crate) merged: Option<crate::merged::Merged>,
    aborted: AtomicBool,
}

/// The names of a session and what the program was promised. Changed only in the order of its commands, and never
/// locked while anything blocks.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) contexts: HashMap<ContextId, Arc<Context>>,
    pub(crate) streams: HashMap<StreamId, Arc<Line>>,
    /// Lines of each context's life, those whose stream is gone included until their work is done.
    pub(crate) lines: HashMap<u64, Vec<Arc<Line>>>,
    pub(crate) events: HashMap<EventId, Event>,
    pub(crate) execs: HashMap<ExecId, Exec>,
    pub(crate) modules: HashMap<ModuleId, Arc<LoadedModule>>,
    pub(crate) physical: HashMap<MemoryHandleId, Arc<PhysicalMemory>>,
    pub(crate) promises: Promises,
    pub(crate) arrays: HashMap<ArrayId, Array>,
    pub(crate) samplers: HashMap<SamplerId, Object>,
    pub(crate) greens: HashMap<GreenId, Green>,
    /// Memory of the program's.
    pub(crate) shared: HashMap<RegionId, Arc<SharedPages>>,
}

impl Tables {
    pub(crate) fn stream(&self, stream: StreamId) -> CuResult<Arc<Line>> {
        self.streams.get(&stream).cloned().ok_or(CudaError::INVALID_HANDLE)
    }

    pub(crate) fn event(&mut self, event: EventId) -> CuResult<&mut Event> {
        self.events.get_mut(&event).ok_or(CudaError::INVALID_HANDLE)
    }

    /// The ends of all lines of a context that are not idle.
    pub(crate) fn busy_ends(&self, life: u64, wanted: impl Fn(&Line) -> bool) -> Vec<Place> {
        let lines = self.lines.get(&life).into_iter().flatten();
        lines.filter(|line| wanted(line)).map(Line::end).filter(|end| !end.is_reached()).collect()
    }

    /// The ends of all lines of the session that are not idle.
    pub(crate) fn all_busy_ends(&self) -> Vec<Place> {
        self.lines.keys().flat_map(|&life| self.busy_ends(life, |_| true)).collect()
    }

    /// What a new task of `line` must wait for in other lines: the two-way order of the legacy stream.
    pub(crate) fn implicit_order(&self, line: &Arc<Line>) -> Vec<Place> {
        match line.kind {
            LineKind::NonBlocking => Vec::new(),
            LineKind::Blocking => self.busy_ends(line.context.life, |other| other.kind == LineKind::Legacy),
            LineKind::Legacy => self.busy_ends(line.context.life, |other| other.kind == LineKind::Blocking),
        }
    }
}

impl Session {
    pub(crate) fn new(config: SoftConfig) -> Arc<Self> {
        let devices = config.devices as usize;
        let ledger: Arc<dyn MemoryLedger> = match &config.ledger {
            Some(ledger) => ledger.clone(),
            None => Arc::new(LocalLedger::new(&vec![config.memory_bytes; devices])),
        };
        let memory = Arc::new(DeviceMemory::new(ledger));
        let ledger: Arc<dyn MemoryLedger> = memory.clone();
        Arc::new(Self {
            account: Account::new(ledger.clone(), devices),
            activity: Activity::new(ledger.clone(), devices),
            ledger,
            memory,
            crew: crate::crew::Crew::new(config.block_threads),
            load: crate::load::Load::default(),
            merged: crate::merged::Merged::of(&config),
            config,
            space: Space::new(),
            tables: Lock::default(),
            internal: Lock::default(),
            variables_at: AtomicU64::new(0),
            started: Instant::now(),
            retiring: crate::retire::Retiring::default(),
            shared_events: Arc::default(),
            cuts: crate::cut::Cuts::default(),
            current_gate: crate::gate::CurrentGate::default(),
            sharing_gate: OnceLock::new(),
            samplers: Lock::default(),
            conditions: Arc::default(),
            next_sampler: AtomicU64::new(0),
            link: OnceLock::new(),
            lines: Lock::default(),
            deferred: Lock::default(),
            message: Lock::default(),
            aborted: AtomicBool::new(false),
        })
    }

    pub(crate) fn attach(&self, link: Arc<dyn HostLink>) {
        let _ = self.link.set(link);
    }

    pub(crate) fn link(&self) -> CuResult<&Arc<dyn HostLink>> {
        self.link.get().ok_or(CudaError::DEVICE_UNAVAILABLE)
    }

    /// The context of this name, if it is alive. A primary context is there whenever it is asked for.
    pub(crate) fn context(&self, tables: &mut Tables, id: ContextId) -> CuResult<Arc<Context>> {
        let context = self.context_dead_or_alive(tables, id)?;
        context.check()?;
        Ok(context)
    }

    pub(crate) fn context_dead_or_alive(&self, tables: &mut Tables, id: ContextId) -> CuResult<Arc<Context>> {
        if let Some(context) = tables.contexts.get(&id) {
            return Ok(context.clone());
        }
        if id.0 >= FIRST_CREATED_CONTEXT || id.0 >= self.config.devices {
            return Err(CudaError::INVALID_CONTEXT);
        }
        let context = Context::new(id, id.0);
        if let Some(error) = self.merged.as_ref().and_then(|merged| merged.ended_by()) {
            context.kill(error);
        }
        tables.contexts.insert(id, context.clone());
        Ok(context)
    }

    pub(crate) fn check_device(&self, device: u32) -> CuResult<()> {
        if device < self.config.devices { Ok(()) } else { Err(CudaError::INVALID_DEVICE) }
    }

    /// Keeps a new line in sight until its thread is gone.
    pub(crate) fn keep(&self, tables: &mut Tables, line: &Arc<Line>) {
        let of_context = tables.lines.entry(line.context.life).or_default();
        // Lines of destroyed streams are forgotten when their work is done: no thread waits for them any more.
        of_context.push(line.clone());
        let mut lines = lock(&self.lines);
        lines.retain(|line| Arc::strong_count(line) > 1 || !line.is_at_rest());
        lines.push(line.clone());
    }

    /// A stream's work failed: its context is dead, and the client will be told.
    pub(crate) fn fail(&self, context: &Context, error: CudaError) {
        if self.is_aborted() {
            return;
        }
        if context.kill(error) {
            lock(&self.deferred).push_back((context.id, error));
            if let Some(merged) = &self.merged {
                merged.tell(error);
            }
        }
    }

    /// The fault that has ended all contexts of merged sessions. Ends those of this one, if it is another session's.
    pub(crate) fn merged_fault(&self) -> Option<CudaError> {
        let error = self.merged.as_ref()?.ended_by()?;
        let contexts: Vec<Arc<Context>> = lock(&self.tables).contexts.values().cloned().collect();
        for context in contexts {
            if context.kill(error) {
                lock(&self.deferred).push_back((context.id, error));
            }
        }
        Some(error)
    }

    pub(crate) fn take_deferred(&self) -> Option<(ContextId, CudaError)> {
        lock(&self.deferred).pop_front()
    }

    /// Keeps words that say why the last command failed, for [`Session::take_message`].
    pub(crate) fn say(&self, message: String) {
        *lock(&self.message) = Some(message);
    }

    pub(crate) fn take_message(&self) -> Option<String> {
        lock(&self.message).take()
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(SeqCst)
    }

    /// Asked by a thread that waits for memory to go: a cut that holds it back must not do so for long.
    pub(crate) fn must_give_up(&self) -> bool {
        if let Some(gate) = self.gate() {
            gate.want();
        }
        self.is_aborted()
    }

    /// The client is gone: nothing more is done.
    pub(crate) fn lost_link(&self) -> CudaError {
        self.abort();
        CudaError::DEVICE_UNAVAILABLE
    }

    /// Ends all work and all waits, and lets go of all memory. Threads end by themselves.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, SeqCst);
        if let Some(gate) = self.gate() {
            gate.open();
        }
        self.load.end();
        let lives: Vec<Arc<Context>> = {
            let tables = lock(&self.tables);
            // Streams of other sessions must not wait for what is not done any more.
            tables
                .events
                .values()
                .filter_map(|event| event.latest.as_ref())
                .for_each(|record| record.tell_others());
            let by_lines = tables.lines.values().flatten().map(|line| line.context.clone());
            by_lines.chain(tables.contexts.values().cloned()).collect()
        };
        lives.iter().for_each(|context| context.abort.abort());
        let lines: Vec<Arc<Line>> = lock(&self.lines).clone();
        for line in &lines {
            line.context.abort.abort();
            line.abort();
        }
        self.retiring.forget();
        self.space.clear();
        self.account.settle();
    }

    /// Waits for all threads; only after [`Session::abort`].
    pub(crate) fn join(&self) {
        let lines = std::mem::take(&mut *lock(&self.lines));
        lines.iter().for_each(|line| line.join());
        self.cuts.join();
        // What a thread put there while the session was aborted.
        self.space.clear();
        *lock(&self.tables) = Tables::default();
        self.account.settle();
    }

    /// Puts an allocation where it belongs, after what was there before.
    pub(crate) fn map_pending(&self, pending: PendingBlock) -> CuResult<()> {
        let turn = &pending.turn;
        if !self.space.wait_for(turn, || self.must_give_up()) {
            return Err(CudaError::DEVICE_UNAVAILABLE);
        }
        // What reads a little past the last byte it asked for runs on a real device, whose allocations end on such a
        // boundary; so it must run here. The client places nothing else in between.
        let reach = turn.bytes.checked_next_multiple_of(ALLOCATION_STEP).unwrap_or(turn.bytes);
        let mapping = self.space.pages(turn.start, reach).map_err(|_| CudaError::OUT_OF_MEMORY)?;
        self.space.insert(Block {
            mapping,
            device: pending.device,
            life: pending.life,
            access: Access::Owner,
            turn: turn.number(),
            held: Held::Charge(pending.charge),
        });
        Ok(())
    }

    /// Device memory for the driver's own use, which ends with the context.
    pub(crate) fn allocate_internal(&self, context: &Context, bytes: u64) -> Option<u64> {
        let padded = bytes.next_multiple_of(INTERNAL_ALIGN);
        self.map_internal(context, bytes, |ranges| ranges.take_next(padded, INTERNAL_ALIGN))
    }

    /// The same for the variables of a module.
    pub(crate) fn allocate_variables(&self, context: &Context, module: ModuleId, bytes: u64) -> Option<u64> {
        let slot = u64::from(module.0) % VARIABLE_SLOTS;
        let from = self.variables_at.load(Ordering::Relaxed) + self.config.variables_moved_by;
        let near = from + slot * VARIABLE_SLOT_BYTES;
        let padded = bytes.next_multiple_of(INTERNAL_ALIGN);
        self.map_internal(context, bytes, |ranges| ranges.take_near(near, padded, INTERNAL_ALIGN))
    }

    fn map_internal(
        &self,
        context: &Context,
        bytes: u64,
        take: impl FnOnce(&mut Ranges) -> Option<u64>,
    ) -> Option<u64> {
        let charge = self.account.charge(context.device as usize, bytes)?;
        let address = take(&mut lock(&self.internal))?;
        let (device, life) = (context.device, context.life);
        let turn = self.space.turns.take(address, bytes);
        self.map_pending(PendingBlock { turn, device, life, charge }).ok()?;
        Some(address)
    }

    /// Gives addresses of [`Session::allocate_internal`] back; the block's owner removes the block itself.
    pub(crate) fn give_internal(&self, address: u64, bytes: u64) {
        lock(&self.internal).give(address, bytes.next_multiple_of(INTERNAL_ALIGN));
    }
}
