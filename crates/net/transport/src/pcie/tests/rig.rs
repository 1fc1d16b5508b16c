//! A function in this process, a host's port in front of it, and a thread that moves packets between them.

use std::fs::File;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::pcie::endpoint::{Endpoint, FunctionOptions};
use ::pcie::host::{Access, HostMemory, HostOutput, HostPort, HostPortOptions, Violations};
use gpu_function::GpuEndpoint;
use gpu_registers::{CHANNELS, channel_at, control, register};

use super::super::claim::{self, PAGE_BYTES, Page, Pages};
use super::super::map::Mapping;
use super::super::{Registers, half};
use super::SOON;
use crate::connection::Connection;

/// xorshift: the same numbers every time.
pub(super) fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// Where the guest's memory begins: a page for each channel.
const MEMORY_AT: u64 = 0x1_0000_0000;

#[derive(Debug)]
struct GuestMemory {
    pages: Vec<Mapping>,
}

impl GuestMemory {
    fn place(&self, address: u64, bytes: usize) -> Option<(&Mapping, usize)> {
        let at = usize::try_from(address.checked_sub(MEMORY_AT)?).ok()?;
        let page = self.pages.get(at / PAGE_BYTES)?;
        (at % PAGE_BYTES + bytes <= PAGE_BYTES).then_some((page, at % PAGE_BYTES))
    }
}

impl HostMemory for GuestMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.place(address, into.len()).map(|(page, at)| page.read(at, into)).is_some()
    }

    fn write(&self, address: u64, from: &[u8]) -> bool {
        let Some((page, at)) = self.place(address, from.len()) else { return false };
        match <[u8; 4]>::try_from(from) {
            // As a memory bus does it: aligned words are written at once.
            Ok(word) if at.is_multiple_of(4) => {
                page.word(at).store(u32::from_ne_bytes(word), Ordering::Release);
            }
            _ => page.write(at, from),
        }
        true
    }
}

struct State {
    port: HostPort,
    endpoint: GpuEndpoint,
    answers: std::collections::HashMap<u64, Option<Vec<u8>>>,
    accesses: u64,
    is_cut: bool,
    is_over: bool,
}

struct Machine {
    state: Mutex<State>,
    answered: Condvar,
    memory: GuestMemory,
    bell: Arc<Bell>,
    start: Instant,
}

/// Wakes the thread that moves packets.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.heard.notify_one();
    }

    fn wait(&self) {
        let rung = self.rung.lock().unwrap();
        let wait = self.heard.wait_timeout_while(rung, Duration::from_millis(20), |rung| !*rung);
        *wait.unwrap().0 = false;
    }
}

impl Machine {
    /// Moves packets until nothing moves.
    fn settle(&self, state: &mut State) {
        let now = ::pcie::Time::at(self.start.elapsed());
        state.port.on_tick(now);
        state.endpoint.on_tick(now);
        loop {
            let mut moved = false;
            while let Some(packet) = state.port.transmit(now) {
                moved = true;
                if !state.is_cut {
                    state.endpoint.receive(packet, now);
                }
            }
            while let Some(packet) = state.endpoint.transmit(now) {
                moved = true;
                if !state.is_cut {
                    state.port.receive(&packet, &self.memory);
                }
                // What the guest's answers bring comes before more of ours: memory stays small.
                while let Some(answer) = state.port.transmit(now) {
                    if !state.is_cut {
                        state.endpoint.receive(answer, now);
                    }
                }
            }
            while let Some(output) = state.port.next_output() {
                if let HostOutput::Done { access, data } = output {
                    state.answers.insert(access.0, data);
                    self.answered.notify_all();
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn ask(&self, what: impl FnOnce(&mut State, Access)) -> Option<Vec<u8>> {
        let mut state = self.state.lock().unwrap();
        state.accesses += 1;
        let number = state.accesses;
        what(&mut state, Access(number));
        self.bell.ring();
        loop {
            if let Some(answer) = state.answers.remove(&number) {
                return answer;
            }
            state = self.answered.wait(state).unwrap();
        }
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Machine")
    }
}

impl Registers for Machine {
    fn read(&self, offset: u64) -> u32 {
        let answer = self.ask(|state, access| state.port.bar_read(access, 0, offset, 4));
        answer.map_or(u32::MAX, |data| u32::from_le_bytes(data.try_into().unwrap()))
    }

    fn write(&self, offset: u64, value: u32) {
        self.state.lock().unwrap().port.bar_write(0, offset, &value.to_le_bytes());
        self.bell.ring();
    }
}

/// Files that can be locked and mapped, in a folder of their own.
#[derive(Debug)]
struct FilePages {
    folder: tempfile::TempDir,
    highest: AtomicUsize,
}

impl Pages for FilePages {
    fn lock(&self, channel: usize, may_make: bool) -> io::Result<Option<File>> {
        let path = self.folder.path().join(channel.to_string());
        if !may_make && !self.folder.path().join(format!("{channel}.used")).exists() {
            return Ok(None);
        }
        let file = File::options().read(true).write(true).open(&path)?;
        Ok(file.try_lock().is_ok().then_some(file))
    }

    fn map(&self, file: File) -> io::Result<Page> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)))?;
        let channel: usize = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        File::create(self.folder.path().join(format!("{channel}.used")))?;
        self.highest.fetch_max(channel, Ordering::Relaxed);
        let memory = Mapping::new(&file, PAGE_BYTES)?;
        Ok(Page { memory, address: MEMORY_AT + (channel * PAGE_BYTES) as u64, file })
    }
}

/// Everything, for one test.
pub(super) struct Rig {
    machine: Arc<Machine>,
    pages: FilePages,
    mover: Option<JoinHandle<()>>,
    worker: PathBuf,
    over: Arc<AtomicBool>,
}

impl Rig {
    pub(super) fn without_worker() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let worker = folder.path().join("worker.sock");
        let pages = (0..CHANNELS).map(|channel| {
            let path = folder.path().join(channel.to_string());
            let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
            file.set_len(PAGE_BYTES as u64).unwrap();
            Mapping::new(&file, PAGE_BYTES).unwrap()
        });
        let (memory, bell) = (GuestMemory { pages: pages.collect() }, Arc::new(Bell::default()));
        let wake = {
            let bell = bell.clone();
            Arc::new(move || bell.ring())
        };
        let state = State {
            port: HostPort::new(HostPortOptions::default()),
            endpoint: GpuEndpoint::new(worker.clone(), FunctionOptions::default(), wake),
            answers: Default::default(),
            accesses: 0,
            is_cut: false,
            is_over: false,
        };
        let state = Mutex::new(state);
        let machine =
            Arc::new(Machine { state, answered: Condvar::new(), memory, bell, start: Instant::now() });
        let mover = {
            let machine = machine.clone();
            std::thread::spawn(move || {
                loop {
                    machine.bell.wait();
                    let mut state = machine.state.lock().unwrap();
                    machine.settle(&mut state);
                    if state.is_over {
                        return;
                    }
                }
            })
        };
        machine.state.lock().unwrap().port.discover();
        let pages = FilePages { folder, highest: AtomicUsize::new(0) };
        let rig = Self { machine, pages, mover: Some(mover), worker, over: Arc::default() };
        rig.enable();
        rig
    }

    /// The pass that a guest finds in the function.
    pub(super) fn pass(&self) -> gpu_function::Pass {
        self.machine.state.lock().unwrap().endpoint.pass()
    }

    /// What the guest's kernel does at start.
    fn enable(&self) {
        // The look at the function takes a few rounds of packets before it knows where the BAR is.
        std::thread::sleep(Duration::from_millis(50));
        for (at, value) in [(0x10, 0xfe00_0000u32), (0x04, 6)] {
            self.machine.ask(|state, access| state.port.config_write(access, at, &value.to_le_bytes()));
        }
    }

    /// With a worker that runs `serve` for every connection, in a thread of its own.
    pub(super) fn serving(serve: impl Fn(UnixStream) + Send + Sync + 'static) -> Self {
        let rig = Self::without_worker();
        rig.serve(serve);
        rig
    }

    pub(super) fn serve(&self, serve: impl Fn(UnixStream) + Send + Sync + 'static) {
        let listener = UnixListener::bind(&self.worker).unwrap();
        let (serve, over) = (Arc::new(serve), self.over.clone());
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let serve = serve.clone();
                std::thread::spawn(move || serve(stream));
            }
        });
    }

    pub(super) fn registers(&self) -> Arc<dyn Registers> {
        self.machine.clone()
    }

    pub(super) fn open(&self) -> io::Result<Connection> {
        let registers = self.registers();
        half::open(claim::claim(&registers, &self.pages)?, registers.clone(), Instant::now() + SOON)
    }

    /// What is left of a process that was killed with a channel open.
    pub(super) fn open_and_die(&self, channel: usize) {
        let registers = self.registers();
        let claimed = claim::claim(&registers, &NoReaping(&self.pages, channel)).unwrap();
        let connection = half::open(claimed, registers, Instant::now() + SOON).unwrap();
        // No goodbye is sent; the kernel drops the lock.
        connection.closer.abandon();
    }

    pub(super) fn page(&self, channel: usize) -> &Mapping {
        &self.machine.memory.pages[channel]
    }

    pub(super) fn violations(&self) -> Violations {
        self.machine.state.lock().unwrap().port.violations()
    }

    pub(super) fn highest_channel(&self) -> usize {
        self.pages.highest.load(Ordering::Relaxed)
    }

    pub(super) fn reset(&self) {
        self.machine.ask(|state, access| state.port.reset(access));
        self.enable();
    }

    /// The box falls silent.
    pub(super) fn cut(&self) {
        self.machine.state.lock().unwrap().is_cut = true;
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(&self.worker);
        for channel in 0..CHANNELS {
            self.machine.write(channel_at(channel) + register::CONTROL, control::RESET);
        }
        self.machine.state.lock().unwrap().is_over = true;
        self.machine.bell.ring();
        if let Some(mover) = self.mover.take() {
            mover.join().unwrap();
        }
    }
}

/// Claims one channel and looks at no other: what two processes do that start at the same time.
#[derive(Debug)]
struct NoReaping<'a>(&'a FilePages, usize);

impl Pages for NoReaping<'_> {
    fn lock(&self, channel: usize, may_make: bool) -> io::Result<Option<File>> {
        if channel == self.1 { self.0.lock(channel, may_make) } else { Ok(None) }
    }

    fn map(&self, file: File) -> io::Result<Page> {
        self.0.map(file)
    }
}
