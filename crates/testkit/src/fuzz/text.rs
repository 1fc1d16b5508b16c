//! PTX: loaded, and run.

use ptx::{AbortFlag, FlatMemory, Hooks, Launch, Module, Program, Run, link};
use std::{
    sync::{
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

/// Where the small device's memory begins. Half of a pointer to it, read as a number, is a small one: kernels that take
/// a pointer and a count both get something to work with.
const BASE: u64 = 0x7000_0000_0000;
const MEMORY_BYTES: u64 = 64 << 10;
const POINTER: u64 = BASE + 512;
/// A kernel that runs longer is told to stop.
const RUN_TIME_MAX: Duration = Duration::from_millis(20);
/// Kernels of one text that are run.
const RUNS_MAX: usize = 3;

/// Parses, links and binds; variables lie one after the other.
fn load(text: &[u8]) -> Option<Program> {
    let module = Module::parse(text).ok()?;
    let names: Vec<String> = module.kernel_names().map(str::to_owned).collect();
    let linked = link(vec![module]).ok()?;
    let mut next = POINTER;
    let program = Program::bind(linked, |variable| {
        let align = u64::from(variable.align).clamp(1, 4096);
        let address = next.checked_next_multiple_of(align).unwrap_or(BASE);
        next = address.checked_add(variable.size).unwrap_or(BASE);
        address
    });
    assert!(program.kernel_names().count() <= names.len() + 64, "only the device runtime adds kernels");
    Some(program)
}

/// Everything that happens to a text before a launch.
pub fn ptx_load(data: &[u8]) {
    let Some(program) = load(data) else { return };
    for (variable, _) in program.variables() {
        if let Ok(bytes) = program.initial_bytes(variable) {
            assert!(bytes.len() as u64 <= variable.size.max(bytes.len().min(1) as u64));
        }
    }
    let names: Vec<String> = program.kernel_names().map(str::to_owned).collect();
    for name in names {
        match program.kernel(&name).expect("a listed kernel is found") {
            Ok(info) => {
                assert_eq!(info.name, name);
                for param in &info.params {
                    assert!(param.offset.checked_add(param.size).is_some_and(|end| end <= info.param_bytes));
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// Loads a text and runs its first kernels: two blocks of 33 threads, on a small memory, for a short time.
pub fn ptx_run(data: &[u8]) {
    let Executed { launches, faults, .. } = execute(data);
    assert!(faults <= launches);
}

/// What a text did, so that a test can see that texts do run here.
#[derive(Debug, Default, PartialEq, Eq)]
struct Executed {
    launches: u32,
    faults: u32,
    lane_instructions: u64,
    printed_bytes: usize,
}

fn execute(data: &[u8]) -> Executed {
    let mut executed = Executed::default();
    let Some(program) = load(data) else { return executed };
    let memory = FlatMemory::new(BASE, MEMORY_BYTES);
    for (variable, address) in program.variables() {
        let Ok(bytes) = program.initial_bytes(variable) else { return executed };
        // What does not fit stays unwritten; a kernel that reads it faults.
        let _ = memory.write(address, &bytes[..bytes.len().min(MEMORY_BYTES as usize)]);
    }
    let names: Vec<String> = program.kernel_names().take(RUNS_MAX).map(str::to_owned).collect();
    for name in names {
        let Some(Ok(info)) = program.kernel(&name) else { continue };
        let words = info.param_bytes.div_ceil(8) as usize;
        let params: Vec<u8> = std::iter::repeat_n(POINTER.to_le_bytes(), words).flatten().collect();
        let block = info.required_block.unwrap_or([33.min(info.max_threads), 1, 1]);
        let mut launch = Launch::new(name, [2, 1, 1], block, params);
        launch.dynamic_shared = 1 << 10;
        launch.stack_bytes = 4 << 10;
        launch.grid_workspace = BASE;
        run(&program, launch, &memory, &mut executed);
    }
    executed
}

fn run(program: &Program, launch: Launch, memory: &FlatMemory, executed: &mut Executed) {
    let (world, abort) = (World::default(), AbortFlag::default());
    let Ok(run) = Run::new(program, launch, memory, &world, &abort) else { return };
    let (done, is_done) = mpsc::channel::<()>();
    let abort = &abort;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Ends at once when `done` is dropped.
            if is_done.recv_timeout(RUN_TIME_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
                abort.abort();
            }
        });
        executed.launches += 1;
        run.work();
        match run.finish() {
            Ok(stats) => executed.lane_instructions += stats.lane_instructions,
            Err(fault) => {
                executed.faults += 1;
                assert!(!fault.to_string().is_empty());
            }
        }
        drop(done);
    });
    executed.printed_bytes += world.printed_bytes.load(Ordering::Relaxed);
}

/// A world that gives nothing back: no heap, a clock that counts its questions.
#[derive(Default)]
struct World {
    ticks: AtomicU64,
    printed_bytes: AtomicUsize,
}

impl Hooks for World {
    fn print(&self, text: &[u8]) {
        self.printed_bytes.fetch_add(text.len(), Ordering::Relaxed);
    }

    fn malloc(&self, bytes: u64) -> u64 {
        if bytes <= 256 { POINTER } else { 0 }
    }

    fn free(&self, _: u64) {}

    fn clock(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::Relaxed)
    }

    fn global_timer(&self) -> u64 {
        self.ticks.fetch_add(1000, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn seed(name: &str) -> Vec<u8> {
        let seeds = samples::hostile();
        seeds.into_iter().find(|seed| seed.target == "ptx_run" && seed.name == name).unwrap().bytes
    }

    #[test]
    fn texts_of_compilers_really_run() {
        let basics = execute(include_bytes!("../../../cuda/ptx/tests/samples/basics.ptx"));
        assert_eq!(basics.launches, RUNS_MAX as u32);
        assert!(basics.lane_instructions > 100, "{basics:?}");
    }

    #[test]
    fn a_kernel_without_end_is_stopped() {
        assert_eq!(execute(&seed("loop-for-ever.ptx")).faults, 1);
        assert_eq!(execute(&seed("recursion.ptx")).faults, 1);
    }

    #[test]
    fn texts_that_print_reach_the_printer() {
        for name in ["printf-width.ptx", "printf-precision.ptx"] {
            let executed = execute(&seed(name));
            assert!(executed.printed_bytes > 0 && executed.printed_bytes < 1 << 20, "{name}: {executed:?}");
        }
        assert_eq!(execute(&seed("printf-text-nowhere.ptx")).faults, 1);
    }
}
