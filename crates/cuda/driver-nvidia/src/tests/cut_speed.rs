//! Cuts and restores on a GPU, measured and checked to the bit. Run it by hand where there is one:
//! `cargo test --release -p driver-nvidia cuts_on_a_gpu -- --ignored --nocapture`.
//!
//! The same runs on the fake driver with a few megabytes, so that it works when it is wanted.

use super::{link::TestLink, session::Session};
use crate::{NvidiaConfig, NvidiaDriver};
use cuda_driver::{
    BlockSink, Blocks, Cut, CutState, DRIVER_VA_BYTES, Driver, LinkLost, PendingCut, Snapshots, TakenCut,
    WaitTarget,
};
use cuda_wire::*;
use snapshot::{BLOCK_BYTES, Block, BlockDigest, Bytes as Held, Digest, EventAge, Key};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const CONTEXT: ContextId = ContextId(0);
const MODULE: ModuleId = ModuleId(1);
const STREAMS: [StreamId; 2] = [StreamId(1), StreamId(2)];
const BASE: u64 = 0x6000_0000_0000;
/// The memory is allocated in pieces of at most this.
const PIECE: u64 = 2 << 30;
/// Places of the kernels below in the order of their names.
const BUMP: u32 = 0;
const PAINT: u32 = 1;

/// `bump` adds one to every word, `paint` gives every word a value of its own.
const PROGRAM: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry paint(.param .u64 p_at, .param .u64 p_words, .param .u64 p_seed)
{
 .reg .pred %p0;
 .reg .b32 %r<8>;
 .reg .b64 %d<8>;
 ld.param.u64 %d0, [p_at];
 ld.param.u64 %d1, [p_words];
 ld.param.u64 %d5, [p_seed];
 mov.u32 %r0, %ctaid.x;
 mov.u32 %r1, %ntid.x;
 mov.u32 %r2, %tid.x;
 mad.lo.u32 %r3, %r0, %r1, %r2;
 cvt.u64.u32 %d2, %r3;
 mov.u32 %r4, %nctaid.x;
 mul.lo.u32 %r5, %r4, %r1;
 cvt.u64.u32 %d3, %r5;
NEXT:
 setp.ge.u64 %p0, %d2, %d1;
 @%p0 bra DONE;
 shl.b64 %d4, %d2, 2;
 add.u64 %d4, %d4, %d0;
 mul.lo.u64 %d6, %d2, 6364136223846793005;
 add.u64 %d6, %d6, %d5;
 shr.u64 %d6, %d6, 20;
 cvt.u32.u64 %r6, %d6;
 st.global.u32 [%d4], %r6;
 add.u64 %d2, %d2, %d3;
 bra NEXT;
DONE:
 ret;
}
.visible .entry bump(.param .u64 p_at, .param .u64 p_words)
{
 .reg .pred %p0;
 .reg .b32 %r<8>;
 .reg .b64 %d<8>;
 ld.param.u64 %d0, [p_at];
 ld.param.u64 %d1, [p_words];
 mov.u32 %r0, %ctaid.x;
 mov.u32 %r1, %ntid.x;
 mov.u32 %r2, %tid.x;
 mad.lo.u32 %r3, %r0, %r1, %r2;
 cvt.u64.u32 %d2, %r3;
 mov.u32 %r4, %nctaid.x;
 mul.lo.u32 %r5, %r4, %r1;
 cvt.u64.u32 %d3, %r5;
NEXT:
 setp.ge.u64 %p0, %d2, %d1;
 @%p0 bra DONE;
 shl.b64 %d4, %d2, 2;
 add.u64 %d4, %d4, %d0;
 ld.global.u32 %r6, [%d4];
 add.u32 %r6, %r6, 1;
 st.global.u32 [%d4], %r6;
 add.u64 %d2, %d2, %d3;
 bra NEXT;
DONE:
 ret;
}
";

/// Counts what comes.
#[derive(Default)]
struct Counter(AtomicU64);

impl BlockSink for Counter {
    fn put(&self, _: &BlockDigest, bytes: &[u8]) -> Result<(), LinkLost> {
        self.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// An image in the test's own memory.
#[derive(Default)]
struct Memory {
    blocks: Mutex<BTreeMap<u64, (BlockDigest, Held)>>,
    number: AtomicU64,
}

impl BlockSink for Memory {
    fn put(&self, entry: &BlockDigest, bytes: &[u8]) -> Result<(), LinkLost> {
        let held = Held::copy_of(bytes);
        self.blocks.lock().unwrap().insert(entry.block.address, (*entry, held));
        Ok(())
    }
}

impl Blocks for Memory {
    fn number(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    fn list(&self) -> Vec<BlockDigest> {
        self.blocks.lock().unwrap().values().map(|(entry, _)| *entry).collect()
    }

    fn read(&self, block: Block) -> Result<Held, LinkLost> {
        Ok(self.blocks.lock().unwrap()[&block.address].1.clone())
    }

    fn events(&self) -> Vec<EventAge> {
        Vec::new()
    }
}

/// What the cuts of one size took.
#[derive(Default)]
struct Row {
    call: Vec<Duration>,
    pause: Vec<Duration>,
    digest: Vec<Duration>,
    copy: Vec<Duration>,
    host: Vec<Duration>,
    dirty: Vec<u64>,
    send: Vec<(u64, Duration)>,
    abandoned: usize,
    steps: u64,
}

struct Bench<'a> {
    driver: &'a NvidiaDriver,
    base: u64,
    bytes: u64,
    next_cut: u64,
}

fn middle<T: Copy + Ord + Default>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn ms(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e3)
}

fn rate(bytes: u64, time: Duration) -> String {
    format!("{:.1}", bytes as f64 / 1e9 / time.as_secs_f64().max(1e-9))
}

impl Bench<'_> {
    fn pieces(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (base, bytes) = (self.base, self.bytes);
        (0..bytes.div_ceil(PIECE))
            .map(move |piece| (base + piece * PIECE, (bytes - piece * PIECE).min(PIECE)))
    }

    fn launch(&self, stream: StreamId, index: u32, values: &[u64]) {
        let parameters: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let launch = Op::Launch {
            kernel: KernelRef { module: MODULE, index },
            grid: [264, 1, 1],
            block: [512, 1, 1],
            shared_bytes: 0,
            cooperative: false,
            attributes: Vec::new(),
            parameters: cuda_wire::Bytes(&parameters),
        };
        self.driver.enqueue(stream, launch).unwrap();
    }

    fn cut(&mut self, row: &mut Row) -> Box<dyn PendingCut> {
        self.next_cut += 1;
        let number = self.next_cut;
        let patience = Duration::from_millis(500);
        let start = Instant::now();
        let cut = Cut { number, dead: Default::default(), patience, on_taken: Arc::new(|_| {}) };
        let pending = Snapshots::cut(self.driver, cut).unwrap();
        row.call.push(start.elapsed());
        pending
    }

    fn note(&self, row: &mut Row, taken: &TakenCut) {
        let timing = self.driver.cuts.timing();
        row.pause.push(taken.pause);
        row.digest.push(timing.digest);
        row.copy.push(timing.copy);
        row.host.push(timing.stood);
        row.dirty.push(taken.dirty_bytes);
    }

    /// Sends a cut and notes how long it took.
    fn send(&self, row: &mut Row, pending: Box<dyn PendingCut>, bytes: u64, sink: &dyn BlockSink) {
        let start = Instant::now();
        pending.send(sink).unwrap();
        row.send.push((bytes, start.elapsed()));
    }

    /// A step of the program: two streams, kernels and fills, over a small part of the memory.
    fn step(&self, step: u64, events: &[EventId; 2]) {
        let area = (self.bytes / 64).clamp(65536, 64 << 20) / 8 * 8;
        let at = |index: u64| self.base + (index * area) % (self.bytes - area) / 8 * 8;
        for event in events {
            // The program is not far ahead of the GPU.
            self.driver.wait(WaitTarget::Event(*event)).unwrap();
        }
        self.launch(STREAMS[0], BUMP, &[at(2 * (step % 4)), area / 4]);
        self.driver.enqueue(STREAMS[0], Op::Record { event: events[0], flags: 0 }).unwrap();
        let (target, shape) = (Plane::line(at(2 * (step % 4) + 1)), Shape::line(area / 2));
        let fill = Op::Fill { target, shape, element_bytes: 4, value: step as u32 };
        self.driver.enqueue(STREAMS[1], fill).unwrap();
        self.launch(STREAMS[1], BUMP, &[at(2 * (step % 4) + 1), area / 8]);
        self.driver.enqueue(STREAMS[1], Op::Record { event: events[1], flags: 0 }).unwrap();
    }

    /// The program runs and is cut every `every`.
    fn run(&mut self, row: &mut Row, image: &Memory, cuts: usize, every: Duration) {
        let events = [EventId(1), EventId(2)];
        let mut last = Instant::now();
        let mut pending: Option<Box<dyn PendingCut>> = None;
        let mut is_sending = false;
        std::thread::scope(|scope| {
            let (done, finished) = mpsc::channel();
            let mut taken_cuts = 0;
            while taken_cuts < cuts || pending.is_some() || is_sending {
                self.step(row.steps, &events);
                row.steps += 1;
                if let Ok((bytes, time, number)) = finished.try_recv() {
                    row.send.push((bytes, time));
                    self.driver.settle(number, true).unwrap();
                    image.number.store(number, Ordering::SeqCst);
                    is_sending = false;
                }
                if pending.is_none() && !is_sending && taken_cuts < cuts && last.elapsed() >= every {
                    last = Instant::now();
                    pending = Some(self.cut(row));
                }
                let Some(mut waiting) = pending.take() else { continue };
                match waiting.poll() {
                    CutState::Waiting => pending = Some(waiting),
                    CutState::Abandoned(_) => row.abandoned += 1,
                    CutState::Taken(taken) => {
                        taken_cuts += 1;
                        self.note(row, &taken);
                        is_sending = true;
                        let done = done.clone();
                        scope.spawn(move || {
                            let start = Instant::now();
                            waiting.send(image).unwrap();
                            let _ = done.send((taken.dirty_bytes, start.elapsed(), taken.delta.number));
                        });
                    }
                }
            }
        });
        self.driver.wait(WaitTarget::Context(CONTEXT)).unwrap();
    }

    /// Digests of all memory as the processor computes them, with another key than cuts have.
    fn look(&self) -> Vec<Digest> {
        const READ: u64 = 4 << 20;
        let key = Key::from_seed(&[7; 32]);
        let mut digests = Vec::new();
        let mut out = Vec::new();
        for (start, bytes) in self.pieces() {
            let mut reads = (0..bytes.div_ceil(READ)).map(|part| {
                let (from, count) = (start + part * READ, (bytes - part * READ).min(READ));
                self.driver.read_back_begin(STREAMS[0], Plane::line(from), Shape::line(count)).unwrap()
            });
            let mut next = reads.next();
            while let Some(read) = next {
                // The next one is on its way while this one is looked at.
                next = reads.next();
                out.clear();
                read.wait(&mut out).unwrap();
                digests.extend(out.chunks(BLOCK_BYTES).map(|block| key.digest(block)));
            }
        }
        digests
    }
}

/// All of it for one size. Returns a row of the table.
fn measure(driver: &NvidiaDriver, base: u64, bytes: u64, cuts: usize, every: Duration) -> String {
    let mut bench = Bench { driver, base, bytes, next_cut: 0 };
    for (address, bytes) in bench.pieces() {
        driver.memory_allocate(CONTEXT, address, bytes).unwrap();
        bench.launch(STREAMS[0], PAINT, &[address, bytes / 4, address >> 20]);
    }
    driver.wait(WaitTarget::Context(CONTEXT)).unwrap();
    driver.protect(Arc::new(Key::from_seed(&[5; 32]))).unwrap();
    // Everything, to a sink that only counts.
    let mut whole = Row::default();
    for round in 0..2 {
        whole = Row::default();
        let mut pending = bench.cut(&mut whole);
        let CutState::Taken(taken) = pending.wait() else { panic!("the first cut was given up") };
        assert_eq!(taken.dirty_bytes, bytes);
        bench.note(&mut whole, &taken);
        let counter = Counter::default();
        bench.send(&mut whole, pending, bytes, &counter);
        assert_eq!(counter.0.load(Ordering::SeqCst), bytes, "round {round}");
        driver.settle(taken.delta.number, false).unwrap();
    }
    // Everything into an image, then what the running program changes.
    let image = Memory::default();
    let mut first = Row::default();
    let mut pending = bench.cut(&mut first);
    let CutState::Taken(taken) = pending.wait() else { panic!("the first cut was given up") };
    pending.send(&image).unwrap();
    driver.settle(taken.delta.number, true).unwrap();
    let mut row = Row::default();
    let start = Instant::now();
    bench.run(&mut row, &image, cuts, every);
    let took = start.elapsed();
    // One more, of what is there now.
    let mut pending = bench.cut(&mut Row::default());
    let CutState::Taken(taken) = pending.wait() else { panic!("the last cut was given up") };
    pending.send(&image).unwrap();
    driver.settle(taken.delta.number, true).unwrap();
    image.number.store(taken.delta.number, Ordering::SeqCst);
    let before = bench.look();
    for (address, bytes) in bench.pieces() {
        let (target, shape) = (Plane::line(address), Shape::line(bytes));
        let fill = Op::Fill { target, shape, element_bytes: 1, value: 0xa5 };
        driver.enqueue(STREAMS[1], fill).unwrap();
    }
    driver.wait(WaitTarget::Context(CONTEXT)).unwrap();
    let start = Instant::now();
    let restored = driver.restore(&image).unwrap();
    let restore = start.elapsed();
    assert_eq!(restored.bytes, bytes);
    assert!(bench.look() == before, "memory is what it was, to the bit");
    for (address, _) in bench.pieces() {
        driver.memory_free(address).unwrap();
    }
    driver.memory_info(0).unwrap();
    let sent = row.send.iter().fold((0, Duration::ZERO), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let longest = row.pause.iter().max().copied().unwrap_or_default();
    format!(
        "| {:.1} | {} / {} / {} / {} | {} | {} / {} | {} | {} / {} / {} | {:.0} | {} | {} | {} / {} | {:.2} |",
        bytes as f64 / 1e9,
        ms(middle(whole.call)),
        ms(middle(whole.digest)),
        ms(middle(whole.copy)),
        rate(whole.send[0].0, whole.send[0].1),
        ms(middle(row.call.clone())),
        ms(middle(row.pause.clone())),
        ms(longest),
        ms(middle(row.digest)),
        ms(middle(row.copy)),
        ms(middle(row.host)),
        ms(middle(first.call)),
        middle(row.dirty.clone()) as f64 / 1e6,
        rate(sent.0, sent.1),
        rate(restored.bytes, restore),
        row.pause.len(),
        row.abandoned,
        took.as_secs_f64() * 1e3 / row.steps as f64,
    )
}

const HEAD: &str = "
| GB | whole image: call ms / digest ms / copy ms / send GB/s | cut: call ms | pause ms: middle / longest | digest ms | copy ms / stood still ms / first call ms | dirty MB | send to image GB/s | restore GB/s | taken / given up | ms a step |
|---|---|---|---|---|---|---|---|---|---|---|";

fn prepare(driver: &NvidiaDriver) {
    for (index, stream) in STREAMS.into_iter().enumerate() {
        driver.stream_create(stream, CONTEXT, 1, 0).unwrap();
        driver.event_create(EventId(index as u32 + 1), CONTEXT, 2).unwrap();
    }
    let image = ImageSource::Inline { bytes: cuda_wire::Bytes(PROGRAM.as_bytes()) };
    driver.module_load(MODULE, CONTEXT, [0; 32], image, Vec::new()).unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuts_on_a_gpu() {
    let driver = NvidiaDriver::new(&NvidiaConfig::default()).unwrap();
    let range = VaRange { base: BASE, bytes: (256 << 30) + DRIVER_VA_BYTES };
    assert_eq!(driver.reserve_addresses(&[range]), Some(range));
    driver.attach(Arc::new(TestLink::default()));
    prepare(&driver);
    println!("{HEAD}");
    let sizes = [(512 << 20, 100), (2 << 30, 100), (20 << 30, 250), (60u64 << 30, 500)];
    for (bytes, every) in sizes {
        println!("{}", measure(&driver, BASE, bytes, 10, Duration::from_millis(every)));
    }
}

#[test]
fn what_is_measured_on_a_gpu_works() {
    let session = Session::bare(None);
    prepare(&session);
    let row = measure(&session, super::session::DATA, (3 << 20) + 40, 3, Duration::from_millis(5));
    assert_eq!(row.matches('|').count(), HEAD.lines().nth(1).unwrap().matches('|').count(), "{row}");
    session.check_rules();
}
