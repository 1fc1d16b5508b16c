//! A small device for tests: flat memory, hooks that keep what was printed, arguments packed as the driver does.
#![allow(dead_code, unreachable_pub)]

use std::collections::HashMap;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use ptx::{
    AbortFlag, Fault, FlatMemory, Hooks, Launch, LaunchError, Module, Program, Run, Sampler, Stats, link,
};

pub const BASE: u64 = 0x7000_0000_0000;
const BYTES: u64 = 64 << 20;

#[derive(Default)]
pub struct World {
    pub printed: Mutex<Vec<u8>>,
    pub samplers: Mutex<HashMap<u64, Arc<Sampler>>>,
    heap: AtomicU64,
    ticks: AtomicU64,
}

impl Hooks for World {
    fn print(&self, text: &[u8]) {
        self.printed.lock().unwrap().extend_from_slice(text);
    }
    fn malloc(&self, bytes: u64) -> u64 {
        // The upper half of memory is the heap; it only grows.
        let offset = self.heap.fetch_add(bytes.next_multiple_of(16), Ordering::Relaxed);
        if offset + bytes > BYTES / 2 { 0 } else { BASE + BYTES / 2 + offset }
    }
    fn free(&self, _: u64) {}
    fn clock(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::Relaxed)
    }
    fn global_timer(&self) -> u64 {
        self.ticks.fetch_add(1000, Ordering::Relaxed)
    }
    fn sampler(&self, handle: u64) -> Option<Arc<Sampler>> {
        self.samplers.lock().unwrap().get(&handle).cloned()
    }
}

/// A program on a device.
pub struct Rig {
    pub memory: FlatMemory,
    pub world: World,
    pub program: Program,
    pub abort: AbortFlag,
    next: u64,
    pub threads: usize,
    pub cooperative: bool,
    pub dynamic_shared: u32,
    pub stack_bytes: u32,
}

impl Rig {
    pub fn new(text: &str) -> Self {
        Self::of(vec![Module::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"))])
    }

    pub fn of(modules: Vec<Module>) -> Self {
        let memory = FlatMemory::new(BASE, BYTES);
        let mut next = BASE + 4096;
        let linked = link(modules).unwrap_or_else(|error| panic!("{error}"));
        let program = Program::bind(linked, |variable| {
            let address = next.next_multiple_of(u64::from(variable.align).max(256));
            next = address + variable.size;
            address
        });
        for (variable, address) in program.variables() {
            let bytes = program.initial_bytes(variable).unwrap_or_else(|error| panic!("{error}"));
            memory.write(address, &bytes).unwrap();
        }
        Self {
            memory,
            world: World::default(),
            program,
            abort: AbortFlag::default(),
            next,
            threads: 2,
            cooperative: false,
            dynamic_shared: 0,
            stack_bytes: Launch::STACK_DEFAULT,
        }
    }

    pub fn alloc(&mut self, bytes: usize) -> u64 {
        let address = self.next.next_multiple_of(256);
        self.next = address + bytes as u64;
        address
    }

    pub fn upload<T: Plain>(&mut self, values: &[T]) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.bytes()).collect();
        let address = self.alloc(bytes.len());
        self.memory.write(address, &bytes).unwrap();
        address
    }

    pub fn download<T: Plain>(&self, address: u64, count: usize) -> Vec<T> {
        let mut bytes = vec![0; count * size_of::<T>()];
        self.memory.read(address, &mut bytes).unwrap();
        bytes.chunks(size_of::<T>()).map(T::of).collect()
    }

    pub fn launch(&mut self, kernel: &str, grid: [u32; 3], block: [u32; 3], params: Vec<u8>) -> Launch {
        let mut launch = Launch::new(kernel, grid, block, params);
        launch.cooperative = self.cooperative;
        launch.dynamic_shared = self.dynamic_shared;
        launch.stack_bytes = self.stack_bytes;
        if self.cooperative {
            launch.grid_workspace = self.alloc(Launch::GRID_WORKSPACE_BYTES as usize);
        }
        launch
    }

    pub fn try_run(&mut self, launch: Launch) -> Result<Result<Stats, Fault>, LaunchError> {
        let run = Run::new(&self.program, launch, &self.memory, &self.world, &self.abort)?;
        std::thread::scope(|scope| (0..self.threads).for_each(|_| drop(scope.spawn(|| run.work()))));
        Ok(run.finish())
    }

    /// Runs a kernel that must succeed.
    pub fn run(&mut self, kernel: &str, grid: u32, block: u32, params: Vec<u8>) -> Stats {
        let launch = self.launch(kernel, [grid, 1, 1], [block, 1, 1], params);
        match self.try_run(launch) {
            Ok(Ok(stats)) => stats,
            Ok(Err(fault)) => panic!("{fault}"),
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs a kernel that must fail while it runs.
    pub fn fault(&mut self, kernel: &str, grid: u32, block: u32, params: Vec<u8>) -> Fault {
        let launch = self.launch(kernel, [grid, 1, 1], [block, 1, 1], params);
        match self.try_run(launch) {
            Ok(Ok(_)) => panic!("{kernel} did not fail"),
            Ok(Err(fault)) => fault,
            Err(error) => panic!("{error}"),
        }
    }

    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&self.world.printed.lock().unwrap()).into_owned()
    }
}

/// Values that go to device memory as they are.
pub trait Plain: Copy {
    fn bytes(self) -> Vec<u8>;
    fn of(bytes: &[u8]) -> Self;
}

macro_rules! plain {
    ($($t:ty)*) => {$(
        impl Plain for $t {
            fn bytes(self) -> Vec<u8> { self.to_le_bytes().to_vec() }
            fn of(bytes: &[u8]) -> Self { Self::from_le_bytes(bytes.try_into().unwrap()) }
        }
    )*};
}
plain!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

/// Packs kernel arguments, each aligned to its own size.
#[derive(Default)]
pub struct Args(Vec<u8>);

impl Args {
    pub fn new() -> Self {
        Self::default()
    }
    pub fn with<T: Plain>(mut self, value: T) -> Self {
        let size = size_of::<T>();
        self.0.resize(self.0.len().next_multiple_of(size), 0);
        self.0.extend(value.bytes());
        self
    }
    pub fn done(self) -> Vec<u8> {
        self.0
    }
}
