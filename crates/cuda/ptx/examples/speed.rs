//! Measures the engine: lane-instructions a second on one host thread and on all.
//!
//! ```text
//! cargo run --release -p ptx --example speed
//! ```

use std::time::Instant;

use ptx::{AbortFlag, FlatMemory, Hooks, Launch, Module, Program, Run, link};

struct Quiet;

impl Hooks for Quiet {
    fn print(&self, _: &[u8]) {}
    fn malloc(&self, _: u64) -> u64 {
        0
    }
    fn free(&self, _: u64) {}
    fn clock(&self) -> u64 {
        0
    }
    fn global_timer(&self) -> u64 {
        0
    }
}

const BASE: u64 = 1 << 40;

fn main() {
    let module = Module::parse(include_bytes!("../tests/samples/basics.ptx")).expect("the sample parses");
    let program = Program::bind(link(vec![module]).expect("the sample links"), |_| BASE);
    let memory = FlatMemory::new(BASE, 64 << 20);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let place = |megabytes: u64| BASE + (megabytes << 20);

    let n = 4u32 << 20;
    let mut saxpy = Vec::new();
    saxpy.extend(n.to_le_bytes());
    saxpy.extend(2.0f32.to_le_bytes());
    saxpy.extend(place(0).to_le_bytes());
    saxpy.extend(place(16).to_le_bytes());
    let saxpy = Launch::new("saxpy", [n / 256, 1, 1], [256, 1, 1], saxpy);

    let side = 256u32;
    let mut matmul = Vec::new();
    matmul.extend(u64::from(side).to_le_bytes());
    (0..3).for_each(|index| matmul.extend(place(index * 4).to_le_bytes()));
    let matmul = Launch::new("matmul", [side / 16, side / 16, 1], [16, 16, 1], matmul);

    for (launch, what) in [(saxpy, "saxpy"), (matmul, "matmul")] {
        for threads in [1, cores] {
            let abort = AbortFlag::default();
            let run = Run::new(&program, launch.clone(), &memory, &Quiet, &abort).expect("a good launch");
            let start = Instant::now();
            std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(|| run.work()))));
            let stats = run.finish().expect("no fault");
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "{what:7} {threads} threads: {:.3} s, {:.0} M lane-instructions/s",
                seconds,
                stats.lane_instructions as f64 / seconds / 1e6
            );
        }
    }
}
