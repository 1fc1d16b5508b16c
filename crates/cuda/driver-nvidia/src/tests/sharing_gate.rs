//! Online and offline sessions: streams that wait for the gate on the device, and the question whether all work is done.

use super::{
    link::{bytes, until},
    session::*,
};
use crate::pinned::SLOT_BYTES;
use cuda_abi::CudaError;
use cuda_driver::{Class, Driver, PageHandle, Ticket};
use cuda_wire::*;
use shared_words::{page, process};
use sharing::{Owner, Page};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const MODULE: ModuleId = ModuleId(1);
const OTHER: StreamId = StreamId(2);
const EXEC: ExecId = ExecId(1);
const WAIT: &str = "cuStreamWaitValue64_v2";

/// A session of a class, an online slot of this process, and their page.
struct Shared {
    session: Session,
    page: PageHandle,
    online: Ticket,
}

impl Shared {
    fn new(class: Class) -> Self {
        let (_, page) = page::create().unwrap();
        let owner = process::this_process().unwrap();
        let online = claim(&page, owner, Class::Online);
        let session = Session::with_page(page.clone());
        session.share(claim(&page, owner, class)).unwrap();
        session.load(MODULE, CONTEXT).unwrap();
        Self { session, page, online }
    }

    fn page(&self) -> Page<'_> {
        self.page.page()
    }

    fn close(&self) {
        assert!(self.page().close(self.online, process::now_ns()));
    }

    fn open(&self) {
        self.page().open_gate(self.online, process::now_ns());
    }

    /// Launches kernels one by one and has them run, until the session knows what they cost.
    fn learn(&self, kernel_ns: u64) {
        // Three tickets lie between those of two events around a launch.
        self.session.fake.set_tick_ns(kernel_ns / 3);
        for _ in 0..64 {
            self.launch(STREAM, 0);
            self.settle();
        }
    }

    fn launch(&self, stream: StreamId, value: u64) {
        let parameters = store(DATA + 8, value);
        self.session.enqueue(stream, launch(MODULE, STORE, &parameters)).unwrap();
    }

    fn launched(&self) -> usize {
        self.session.fake.launched().len()
    }

    /// All work is over.
    fn settle(&self) {
        until("the streams are empty", || self.session.fake.backlog() == 0);
    }

    /// The streams do what they can.
    fn run_what_may_run(&self) {
        let streams = self.session.fake.streams();
        while streams.iter().any(|&stream| self.session.fake.step(stream).is_some()) {}
    }
}

fn claim(page: &PageHandle, owner: Owner, class: Class) -> Ticket {
    page.page().claim(owner, class, process::now_ns()).unwrap()
}

#[test]
fn kernels_wait_on_the_device_while_an_online_session_is_busy() {
    let shared = Shared::new(Class::Offline);
    shared.close();
    shared.launch(STREAM, 5);
    shared.session.fake.hold();
    shared.run_what_may_run();
    assert_eq!(shared.launched(), 0);
    assert!(!shared.session.poll(cuda_driver::WaitTarget::Stream(STREAM)).unwrap());
    shared.open();
    shared.run_what_may_run();
    assert_eq!((shared.launched(), shared.session.fake.peek(DATA + 8, 8)), (1, 5u64.to_le_bytes().to_vec()));
    shared.session.check_rules();
}

#[test]
fn what_runs_after_the_gate_closed_is_the_rest_of_one_group_in_1000_schedules() {
    // Two kernels of 20 us fit into a group of 50 us.
    const IN_GROUP: usize = 2;
    let shared = Shared::new(Class::Offline);
    shared.learn(20_000);
    let mut dice = 7u64;
    let mut below = |bound: u64| {
        dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (dice >> 33) % bound
    };
    shared.session.fake.hold();
    let (key, mut waits, mut judged) = (shared.session.fake.streams()[0], 0, 0);
    for round in 0..1000 {
        let began = Instant::now();
        shared.close();
        shared.open();
        let before = shared.session.fake.count(WAIT);
        (0..8).for_each(|at| shared.launch(STREAM, round * 8 + at));
        // A test that was held up itself finds longer groups: the online session was not busy lately.
        let is_judged = began.elapsed() < Duration::from_millis(90);
        waits += shared.session.fake.count(WAIT) - before;
        for _ in 0..below(10) {
            shared.session.fake.step(key);
        }
        shared.close();
        let at_close = shared.launched();
        shared.run_what_may_run();
        let after_close = shared.launched() - at_close;
        assert!(after_close <= IN_GROUP || !is_judged, "round {round}: {after_close}");
        judged += usize::from(is_judged);
        shared.open();
        shared.run_what_may_run();
        assert_eq!(shared.session.fake.backlog(), 0);
        assert_eq!(shared.session.fake.peek(DATA + 8, 8), (round * 8 + 7).to_le_bytes(), "in order");
    }
    assert!((3_000..=4_500).contains(&waits), "{waits} waits for 8,000 launches in groups of two");
    assert!(judged > 900, "{judged} of 1000");
    shared.session.check_rules();
}

#[test]
fn behind_a_long_kernel_the_device_looks_at_the_gate_only_when_it_has_ended() {
    const WRITE: &str = "cuStreamWriteValue64_v2";
    // Marks at every 16th wait are no part of this.
    let writes_of = |kernel_ns: u64| {
        let shared = Shared::new(Class::Offline);
        shared.learn(kernel_ns);
        shared.close();
        shared.open();
        let before = (shared.session.fake.count(WAIT), shared.session.fake.count(WRITE));
        (0..8).for_each(|at| shared.launch(STREAM, at));
        shared.settle();
        shared.session.check_rules();
        (shared.session.fake.count(WAIT) - before.0, shared.session.fake.count(WRITE) - before.1)
    };
    let (waits, writes) = writes_of(1_400_000);
    assert_eq!(waits, 8, "each is a group");
    assert!(writes >= 7, "{writes} of 7 waits have a write in front");
    let (waits, writes) = writes_of(20_000);
    assert!((3..=4).contains(&waits) && writes <= 1, "{waits} waits, {writes} writes");
}

#[test]
fn a_graph_that_is_longer_than_a_group_gets_gates_inside() {
    let shared = Shared::new(Class::Offline);
    // Ten kernels in a chain; a launch takes about 500 us.
    shared.session.fake.set_tick_ns(40_000);
    let parameters: Vec<Vec<u8>> = (0..10).map(|at| store(DATA + 8, at + 1)).collect();
    let nodes = || -> Vec<GraphNode<'_>> {
        let kernel = |at: usize| {
            let before = [at.wrapping_sub(1) as u32];
            node(launch(MODULE, STORE, &parameters[at]), if at == 0 { &[] } else { &before })
        };
        (0..10).map(kernel).collect()
    };
    shared.session.graph_instantiate(EXEC, CONTEXT, nodes()).unwrap();
    for run in 0..3 {
        shared.session.graph_launch(EXEC, STREAM, run).unwrap();
        shared.settle();
    }
    assert_eq!((shared.launched(), shared.session.fake.count("cuGraphAddBatchMemOpNode")), (30, 0));
    shared.session.fake.hold();
    shared.session.graph_launch(EXEC, STREAM, 4).unwrap();
    assert!(shared.session.fake.count("cuGraphAddBatchMemOpNode") >= 4, "500 us in groups of 100 us");
    let key = shared.session.fake.streams()[0];
    while shared.launched() < 32 {
        assert!(shared.session.fake.step(key).is_some());
    }
    shared.close();
    shared.run_what_may_run();
    assert!(shared.launched() <= 34, "{} ran after the gate closed", shared.launched() - 32);
    shared.open();
    shared.run_what_may_run();
    assert_eq!((shared.launched(), shared.session.fake.peek(DATA + 8, 1)), (40, vec![10]));
    // A change keeps the gates.
    shared.session.graph_update(EXEC, nodes()).unwrap();
    assert!(shared.session.fake.count("cuGraphAddBatchMemOpNode") >= 8);
    shared.session.check_rules();
}

#[test]
fn the_command_loop_is_held_back_while_the_gate_is_closed_and_64_groups_wait() {
    let shared = Shared::new(Class::Offline);
    shared.close();
    std::thread::scope(|scope| {
        let launching = scope.spawn(|| (0..100).for_each(|at| shared.launch(STREAM, at)));
        until("it is held back", || shared.session.fake.count(WAIT) >= 64);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!launching.is_finished() && shared.session.fake.count(WAIT) == 64);
        shared.open();
        launching.join().unwrap();
    });
    shared.settle();
    assert_eq!(shared.launched(), 100);
    shared.session.check_rules();
}

#[test]
fn an_aborted_session_is_not_held_back() {
    let shared = Shared::new(Class::Offline);
    shared.close();
    std::thread::scope(|scope| {
        let launching = scope.spawn(|| {
            let parameters = store(DATA, 1);
            (0..100).find_map(|_| shared.session.enqueue(STREAM, launch(MODULE, STORE, &parameters)).err())
        });
        until("it is held back", || shared.session.fake.count(WAIT) >= 64);
        shared.session.abort();
        assert_eq!(launching.join().unwrap(), Some(CudaError::DEVICE_UNAVAILABLE));
    });
}

#[test]
fn copies_wait_between_their_parts() {
    let shared = Shared::new(Class::Offline);
    let fake = shared.session.fake;
    fake.hold();
    let count = 3 * SLOT_BYTES as u64;
    // While the gate is closed each part is a group, however long this process waited for the processor.
    shared.close();
    shared.session.enqueue(STREAM, pushed(Plane::line(DATA), Shape::line(count), 1)).unwrap();
    shared.open();
    let key = fake.streams()[0];
    let is_copy = |what: String| what.starts_with("Copy");
    until("a part is copied", || fake.step(key).is_some_and(is_copy));
    shared.close();
    for _ in 0..20 {
        while let Some(what) = fake.step(key) {
            assert!(!is_copy(what), "a part begins a group");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    shared.open();
    until("all is copied", || fake.step(key).is_none() && fake.backlog() == 0);
    assert!(fake.peek(DATA, count as usize) == bytes(TransferId(1), count));
    shared.session.check_rules();
}

#[test]
fn an_online_session_that_died_does_not_keep_the_gate_closed() {
    let shared = Shared::new(Class::Offline);
    let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
    let start = process::start_ticks(child.id()).unwrap().unwrap();
    let dead = claim(&shared.page, Owner::new(child.id(), start).unwrap(), Class::Online);
    assert!(shared.page().close(dead, process::now_ns()));
    child.kill().unwrap();
    child.wait().unwrap();
    shared.launch(STREAM, 1);
    let since = Instant::now();
    shared.settle();
    assert!((100..2_000).contains(&since.elapsed().as_millis()), "{:?}", since.elapsed());
}

#[test]
fn a_damaged_page_holds_offline_work() {
    let shared = Shared::new(Class::Offline);
    let magic = shared.page.words()[0].swap(0, SeqCst);
    std::thread::scope(|scope| {
        let launching = scope.spawn(|| shared.launch(STREAM, 1));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!launching.is_finished());
        shared.page.words()[0].store(magic, SeqCst);
        launching.join().unwrap();
    });
    shared.settle();
}

#[test]
fn an_online_session_is_quiet_when_all_its_streams_are() {
    let shared = Shared::new(Class::Online);
    let session = &shared.session;
    session.stream_create(OTHER, CONTEXT, 1, 0).unwrap();
    assert_eq!(session.quiet(), Ok(true));
    session.fake.hold();
    shared.launch(STREAM, 1);
    shared.launch(OTHER, 2);
    assert_eq!(session.quiet(), Ok(false));
    let [first, second] = session.fake.streams()[..] else { panic!("two streams") };
    while session.fake.step(first).is_some() {}
    assert_eq!(session.quiet(), Ok(false));
    while session.fake.step(second).is_some() {}
    assert_eq!(session.quiet(), Ok(true));
    let read = session.read_back_begin(OTHER, Plane::line(DATA), Shape::line(8)).unwrap();
    assert_eq!(session.quiet(), Ok(false), "a read is work");
    session.fake.release();
    shared.settle();
    drop(read);
    assert_eq!((session.quiet(), session.fake.count(WAIT)), (Ok(true), 0), "it waits for no gate");
    session.check_rules();
}

#[test]
fn work_that_comes_while_the_driver_is_asked_is_not_forgotten() {
    let shared = Shared::new(Class::Online);
    let (session, over) = (&shared.session, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                session.quiet().unwrap();
            }
        });
        for at in 0..2_000 {
            session.fake.hold();
            shared.launch(STREAM, at);
            let is_quiet = session.quiet();
            session.fake.release();
            shared.settle();
            if is_quiet != Ok(false) {
                over.store(true, SeqCst);
                panic!("round {at}: a kernel is in the stream, and the session is quiet");
            }
        }
        over.store(true, SeqCst);
    });
    session.check_rules();
}

#[test]
fn a_destroyed_stream_of_an_online_session_still_counts_as_work() {
    let shared = Shared::new(Class::Online);
    let session = &shared.session;
    session.stream_create(OTHER, CONTEXT, 1, 0).unwrap();
    session.fake.hold();
    shared.launch(OTHER, 2);
    session.stream_destroy(OTHER).unwrap();
    assert_eq!(session.quiet(), Ok(false));
    session.fake.release();
    shared.settle();
    assert_eq!(session.quiet(), Ok(true));
    session.check_rules();
}

#[test]
fn a_dedicated_session_puts_no_wait_into_its_streams_and_does_not_know_the_page() {
    let (_, page) = page::create().unwrap();
    let session = Session::with_page(page.clone());
    let pinned = session.fake.live().pinned;
    session.load(MODULE, CONTEXT).unwrap();
    for at in 0..100 {
        session.enqueue(STREAM, launch(MODULE, STORE, &store(DATA, at))).unwrap();
    }
    session.drain();
    assert_eq!((session.fake.count(WAIT), session.fake.live().pinned), (0, pinned));
    assert!(session.fake.count("cuEventRecordWithFlags") == 0 && session.page().is_some());
}

#[test]
fn a_kernel_that_has_begun_and_not_ended_is_told() {
    let shared = Shared::new(Class::Offline);
    let (session, fake) = (&shared.session, shared.session.fake);
    assert_eq!(session.running(), None);
    fake.hold();
    shared.launch(STREAM, 1);
    let key = fake.streams()[0];
    assert_eq!(session.running(), None, "it waits");
    // The wait and the event in front of the kernel.
    assert!(fake.step(key).is_some() && fake.step(key).is_some());
    let running = session.running();
    assert!(running.is_some());
    assert!(fake.step(key).is_some() && session.running() == running, "its end is not seen yet");
    assert!(fake.step(key).is_some() && session.running().is_none());
    session.check_rules();
}

#[test]
fn streams_come_and_go_without_end() {
    let shared = Shared::new(Class::Offline);
    let session = &shared.session;
    let words = session.work.words.free_ranges().len();
    for round in 0..50 {
        session.stream_create(OTHER, CONTEXT, 1, 0).unwrap();
        (0..40).for_each(|at| shared.launch(OTHER, round * 40 + at));
        session.stream_destroy(OTHER).unwrap();
    }
    shared.settle();
    until("the words are back", || session.work.words.free_ranges().len() == words);
    session.check_rules();
}
