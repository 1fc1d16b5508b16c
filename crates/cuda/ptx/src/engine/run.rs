//! One launch: which blocks are left, which threads work on them, how it ended.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use super::{
    access::Spans,
    block::{Block, Place, Progress},
    fault::{Fault, LaunchError},
    sample::RecentSampler,
};
use crate::{
    code::Kernel,
    hooks::{AbortFlag, Hooks},
    memory::DeviceMemory,
    program::Program,
};

/// What to run.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Name of the kernel.
    pub kernel: String,
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads of a block in each direction.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub dynamic_shared: u32,
    /// The parameter block, laid out as [`crate::KernelInfo::params`] says.
    pub params: Vec<u8>,
    /// All blocks must be able to run at once.
    pub cooperative: bool,
    /// Device address of [`Launch::GRID_WORKSPACE_BYTES`] zeroed bytes, for grid-wide barriers; 0 if not cooperative.
    pub grid_workspace: u64,
    /// `%gridid`.
    pub grid_id: u64,
    /// `%nsmid`.
    pub multiprocessors: u32,
    /// Local memory of a thread for nested calls, as `CU_LIMIT_STACK_SIZE` sets it; the kernel's own frame always fits.
    pub stack_bytes: u32,
}

impl Launch {
    /// Bytes that a cooperative launch needs at [`Launch::grid_workspace`].
    pub const GRID_WORKSPACE_BYTES: u64 = 256;
    /// Shared memory of a block that any device of today has.
    pub const SHARED_MAX: u32 = 227 << 10;
    /// A stack that recursion of ordinary depth fits in.
    pub const STACK_DEFAULT: u32 = 64 << 10;

    /// A launch with everything at its usual value.
    pub fn new(kernel: impl Into<String>, grid: [u32; 3], block: [u32; 3], params: Vec<u8>) -> Self {
        Self {
            kernel: kernel.into(),
            grid,
            block,
            dynamic_shared: 0,
            params,
            cooperative: false,
            grid_workspace: 0,
            grid_id: 1,
            multiprocessors: 1,
            stack_bytes: Self::STACK_DEFAULT,
        }
    }
}

/// What a launch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks that ran.
    pub blocks: u64,
    /// Instructions, counted once for every thread that executed them.
    pub lane_instructions: u64,
}

/// What one host thread needs to run blocks.
pub(super) struct Context<'r, M: DeviceMemory, H: Hooks> {
    pub(super) kernel: &'r Kernel,
    pub(super) launch: &'r Launch,
    pub(super) hooks: &'r H,
    pub(super) spans: Spans<'r, M>,
    pub(super) sampler: RecentSampler,
    pub(super) stop: Stop<'r>,
    pub(super) warps: usize,
    pub(super) lane_instructions: u64,
}

/// Whether to stop: the abort flag is set, or another block failed.
#[derive(Clone, Copy)]
pub(super) struct Stop<'r> {
    abort: &'r AbortFlag,
    failed: &'r AtomicBool,
}

impl Stop<'_> {
    pub(super) fn is_set(&self) -> bool {
        self.abort.is_set() || self.failed.load(Ordering::Relaxed)
    }
}

/// A launch in progress. Share it between host threads; each calls [`Run::work`].
pub struct Run<'r, M: DeviceMemory, H: Hooks> {
    kernel: Arc<Kernel>,
    launch: Launch,
    memory: &'r M,
    hooks: &'r H,
    abort: &'r AbortFlag,
    next_block: AtomicU64,
    workers: AtomicU32,
    failed: AtomicBool,
    fault: Mutex<Option<Fault>>,
    blocks_done: AtomicU64,
    lane_instructions: AtomicU64,
}

/// Blocks one host thread keeps open in an ordinary launch. Blocks that wait for later ones make progress as long
/// as those are within this reach.
const OPEN_MAX: usize = 64;

impl<'r, M: DeviceMemory, H: Hooks> Run<'r, M, H> {
    /// Prepares a launch: finds the kernel, decodes it if need be, checks the sizes.
    pub fn new(
        program: &Program,
        launch: Launch,
        memory: &'r M,
        hooks: &'r H,
        abort: &'r AbortFlag,
    ) -> Result<Self, LaunchError> {
        let (kernel, info) = match program.decoded(&launch.kernel) {
            None => return Err(LaunchError::NoSuchKernel(launch.kernel)),
            Some(Err(error)) => return Err(LaunchError::Refused(error)),
            Some(Ok(decoded)) => decoded,
        };
        let threads = launch.block.iter().fold(1u32, |all, &dim| all.saturating_mul(dim));
        if threads == 0 || launch.grid.contains(&0) {
            return Err(LaunchError::Invalid("a dimension is 0"));
        }
        if threads > info.max_threads {
            return Err(LaunchError::Invalid("more threads in a block than the kernel allows"));
        }
        if info.required_block.is_some_and(|dims| dims != launch.block) {
            return Err(LaunchError::Invalid("the kernel requires another block size"));
        }
        if launch.params.len() < info.param_bytes as usize {
            return Err(LaunchError::Invalid("fewer parameter bytes than the kernel reads"));
        }
        if u64::from(info.static_shared) + u64::from(launch.dynamic_shared) > u64::from(Launch::SHARED_MAX) {
            return Err(LaunchError::Invalid("more shared memory than a block may have"));
        }
        Ok(Self {
            kernel: Arc::clone(kernel),
            launch,
            memory,
            hooks,
            abort,
            next_block: AtomicU64::new(0),
            workers: AtomicU32::new(0),
            failed: AtomicBool::new(false),
            fault: Mutex::new(None),
            blocks_done: AtomicU64::new(0),
            lane_instructions: AtomicU64::new(0),
        })
    }

    /// Blocks of the grid.
    pub fn blocks(&self) -> u64 {
        self.launch.grid.iter().map(|&dim| u64::from(dim)).product()
    }

    /// Runs blocks until none is left to begin and those it began are done. Call it from as many threads as should
    /// work; the launch is over when all calls have returned.
    pub fn work(&self) {
        let worker = self.workers.fetch_add(1, Ordering::Relaxed);
        let threads: u32 = self.launch.block.iter().product();
        let mut context = Context {
            kernel: &self.kernel,
            launch: &self.launch,
            hooks: self.hooks,
            spans: Spans::new(self.memory),
            sampler: RecentSampler::default(),
            stop: Stop { abort: self.abort, failed: &self.failed },
            warps: threads.div_ceil(32) as usize,
            lane_instructions: 0,
        };
        if let Err(fault) = self.drain(&mut context, worker)
            && !self.failed.swap(true, Ordering::SeqCst)
        {
            *self.fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(fault);
        }
        self.lane_instructions.fetch_add(context.lane_instructions, Ordering::Relaxed);
    }

    fn drain(&self, context: &mut Context<'_, M, H>, worker: u32) -> Result<(), Fault> {
        let shared = (self.kernel.static_shared + self.launch.dynamic_shared) as usize;
        let mut open: VecDeque<Block> = VecDeque::new();
        let mut spare: Vec<Block> = Vec::new();
        let open_max = if self.launch.cooperative { usize::MAX } else { OPEN_MAX };
        loop {
            // A new block, while there is room for one; else the one that waited longest.
            let begun = if open.len() < open_max { self.claim() } else { None };
            let mut block = match begun {
                Some(index) => {
                    let mut block = spare.pop().unwrap_or_else(|| Block::new(context.warps as u32, shared));
                    block.reset(context, Place { block: self.position(index), worker });
                    block
                }
                None => match open.pop_front() {
                    Some(block) => block,
                    None => return Ok(()),
                },
            };
            match block.run(context)? {
                Progress::Done => {
                    self.blocks_done.fetch_add(1, Ordering::Relaxed);
                    spare.push(block);
                }
                Progress::Paused => {
                    open.push_back(block);
                    // With one core, the blocks that ours wait for may belong to other host threads: let them run.
                    if begun.is_none() {
                        std::thread::yield_now();
                    }
                }
            }
        }
    }

    fn claim(&self) -> Option<u64> {
        let blocks = self.blocks();
        // The counter stops at the end, so that it cannot wrap however often it is asked.
        self.next_block
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| (next < blocks).then_some(next + 1))
            .ok()
    }

    fn position(&self, index: u64) -> [u32; 3] {
        let (x, y) = (u64::from(self.launch.grid[0]), u64::from(self.launch.grid[1]));
        [(index % x) as u32, (index / x % y) as u32, (index / (x * y)) as u32]
    }

    /// How it ended, once all calls of [`Run::work`] have returned.
    pub fn finish(self) -> Result<Stats, Fault> {
        match self.fault.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            Some(fault) => Err(fault),
            None => Ok(Stats {
                blocks: self.blocks_done.into_inner(),
                lane_instructions: self.lane_instructions.into_inner(),
            }),
        }
    }
}
