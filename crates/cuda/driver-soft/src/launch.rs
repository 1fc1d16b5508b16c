//! Launches: what is refused before they begin, and how they run.

use crate::{
    context::{Context, LIMIT_STACK},
    device_info::{
        BLOCK_MAX, BLOCKS_PER_SM, GRID_MAX, SHARED_OPT_IN, SHARED_PER_SM, THREADS_PER_BLOCK_MAX,
        THREADS_PER_SM, multiprocessors,
    },
    heap,
    line::Line,
    op::KernelLaunch,
    retire::What,
    session::Session,
    space::Cursor,
    sync::{Lock, lock},
    view::KernelView,
};
use cuda_abi::{CuResult, CudaError};
use ptx::{Fault, FaultKind, Hooks, Launch, LaunchError, Run};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{SystemTime, UNIX_EPOCH},
};

/// Printed text is sent when this much has come together, and when the kernel ends.
const PRINT_BYTES: usize = 16 << 10;

impl KernelLaunch {
    /// Refuses what cuLaunchKernel refuses at once.
    pub(crate) fn check(&self) -> CuResult<()> {
        let invalid = Err(CudaError::INVALID_VALUE);
        let info = self.kernel.info()?;
        let in_range = |sizes: [u32; 3], max: [u32; 3]| {
            sizes.iter().zip(max).all(|(&size, max)| (1..=max).contains(&size))
        };
        if !in_range(self.grid, GRID_MAX) || !in_range(self.block, BLOCK_MAX) {
            return invalid;
        }
        let threads: u32 = self.block.iter().product();
        if threads > THREADS_PER_BLOCK_MAX || info.required_block.is_some_and(|block| block != self.block) {
            return invalid;
        }
        if threads > info.max_threads {
            return Err(CudaError::LAUNCH_OUT_OF_RESOURCES);
        }
        if self.shared_bytes > self.kernel.dynamic_shared_max()
            || self.parameters.len() < info.param_bytes as usize
        {
            return invalid;
        }
        let shared = info.static_shared.saturating_add(self.shared_bytes);
        if shared > SHARED_OPT_IN {
            return invalid;
        }
        if self.cooperative {
            let by_shared = SHARED_PER_SM.checked_div(shared).unwrap_or(BLOCKS_PER_SM);
            let per_sm = (THREADS_PER_SM / threads).min(BLOCKS_PER_SM).min(by_shared);
            let blocks: u64 = self.grid.iter().map(|&size| u64::from(size)).product();
            if blocks > u64::from(per_sm) * u64::from(multiprocessors()) {
                return Err(CudaError::COOPERATIVE_LAUNCH_TOO_LARGE);
            }
        }
        Ok(())
    }
}

/// Runs a launch on the thread of its stream and on helpers.
pub(crate) fn run(session: &Arc<Session>, line: &Arc<Line>, launch: &KernelLaunch) -> CuResult<()> {
    let context = &line.context;
    let workspace = match launch.cooperative {
        true => Some(Workspace::new(session, context)?),
        false => None,
    };
    let view = KernelView { space: &session.space, device: context.device, peers: context.peers() };
    let services = Services { session, context, text: Lock::default() };
    let outcome =
        execute(session, line, launch, workspace.as_ref().map_or(0, |area| area.address), &view, &services);
    let told = services.flush();
    match outcome {
        Ok(()) => told,
        // If an error was the reason for the abort, the context has it.
        Err(fault) if fault.kind == FaultKind::Aborted => context.check(),
        Err(fault) => {
            if fault.kind == FaultKind::Assert {
                services.print(assertion(&fault).as_bytes());
                services.flush()?;
            }
            tracing::warn!(context = %context.id, %fault, "a kernel failed");
            session.say(fault.to_string());
            Err(fault.cuda_error())
        }
    }
}

fn execute(
    session: &Session,
    line: &Line,
    launch: &KernelLaunch,
    grid_workspace: u64,
    view: &KernelView<'_>,
    services: &Services<'_>,
) -> Result<(), Fault> {
    static GRIDS: AtomicU64 = AtomicU64::new(1);
    let what = Launch {
        kernel: launch.kernel.name.clone(),
        grid: launch.grid,
        block: launch.block,
        dynamic_shared: launch.shared_bytes,
        params: launch.parameters.to_vec(),
        cooperative: launch.cooperative,
        grid_workspace,
        grid_id: GRIDS.fetch_add(1, Relaxed),
        multiprocessors: multiprocessors(),
        // The limit is what a program asks for beyond what its kernels need; it is never less than usual here.
        stack_bytes: u32::try_from(line.context.limit(LIMIT_STACK))
            .unwrap_or(u32::MAX)
            .clamp(Launch::STACK_DEFAULT, STACK_BYTES_MAX),
    };
    let run = Run::new(&launch.kernel.program, what, view, services, &line.context.abort)
        .map_err(|error| impossible(&error, launch))?;
    let threads: u64 = launch.block.iter().map(|&size| u64::from(size)).product();
    let helpers = session.crew.helpers(run.blocks(), run.blocks().saturating_mul(threads));
    // This thread works too, and more threads than blocks would find nothing to do.
    let beside = (helpers.count as u64).min(run.blocks().saturating_sub(1));
    std::thread::scope(|scope| {
        for _ in 0..beside {
            scope.spawn(|| run.work());
        }
        run.work();
    });
    run.finish().map(drop)
}

/// The largest stack of a thread that is believed; a CUDA device stops at 512 KiB.
const STACK_BYTES_MAX: u32 = 512 << 10;

/// The launch was checked when it was queued; an engine that refuses it now contradicts the check.
fn impossible(error: &LaunchError, launch: &KernelLaunch) -> Fault {
    Fault {
        kind: FaultKind::LaunchFailed,
        kernel: launch.kernel.name.clone(),
        line: 0,
        block: [0; 3],
        thread: [0; 3],
        address: 0,
        message: error.to_string(),
    }
}

/// The words that CUDA prints for a failed assertion.
fn assertion(fault: &Fault) -> String {
    let place = |at: [u32; 3]| format!("[{},{},{}]", at[0], at[1], at[2]);
    let (block, thread) = (place(fault.block), place(fault.thread));
    match fault.message.split_once(": Assertion `") {
        Some((source, claim)) => {
            format!("{source}: block: {block}, thread: {thread} Assertion `{claim}\n")
        }
        None => format!("block: {block}, thread: {thread} {}\n", fault.message),
    }
}

/// Zeroed device memory for the grid-wide barriers of one launch.
struct Workspace<'s> {
    session: &'s Session,
    address: u64,
}

impl<'s> Workspace<'s> {
    fn new(session: &'s Session, context: &Context) -> CuResult<Self> {
        let bytes = Launch::GRID_WORKSPACE_BYTES;
        let address = session.allocate_internal(context, bytes).ok_or(CudaError::OUT_OF_MEMORY)?;
        let area = Self { session, address };
        Cursor::new(&session.space).write(address, &vec![0; bytes as usize])?;
        Ok(area)
    }
}

impl Drop for Workspace<'_> {
    fn drop(&mut self) {
        let (address, bytes) = (self.address, Launch::GRID_WORKSPACE_BYTES);
        self.session.retire(What::Internal { address, bytes }, Vec::new());
    }
}

/// What the engine asks for while a kernel runs.
struct Services<'r> {
    session: &'r Session,
    context: &'r Arc<Context>,
    text: Lock<Vec<u8>>,
}

impl Services<'_> {
    /// Sends what was printed.
    fn flush(&self) -> CuResult<()> {
        let text = std::mem::take(&mut *lock(&self.text));
        if !text.is_empty() {
            let link = self.session.link()?;
            text.chunks(PRINT_BYTES).for_each(|piece| link.print(piece));
        }
        Ok(())
    }
}

impl Hooks for Services<'_> {
    fn print(&self, text: &[u8]) {
        let is_much = {
            let mut kept = lock(&self.text);
            kept.extend_from_slice(text);
            kept.len() >= PRINT_BYTES
        };
        if is_much {
            // Without a link the text is lost.
            let _ = self.flush();
        }
    }

    fn malloc(&self, bytes: u64) -> u64 {
        heap::malloc(self.session, self.context, bytes)
    }

    fn free(&self, address: u64) {
        heap::free(self.context, address);
    }

    fn clock(&self) -> u64 {
        u64::try_from(self.session.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn set_condition(&self, handle: u64, value: u32) {
        self.session.conditions.set(handle, value);
    }

    fn sampler(&self, handle: u64) -> Option<Arc<ptx::Sampler>> {
        lock(&self.session.samplers).get(&handle).cloned()
    }

    fn global_timer(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
    }
}
