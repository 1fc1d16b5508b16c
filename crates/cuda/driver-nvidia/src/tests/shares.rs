//! Sessions that take turns: their streams wait on the device for the word of their own slot.

use super::{link::until, session::*};
use crate::pinned::SLOT_BYTES;
use cuda_driver::{Class, Driver, PageHandle, Share, Ticket};
use cuda_wire::*;
use shared_words::{page, process};
use sharing::{Field, Life, Page, Standing, Turns};
use std::sync::Mutex;

const MODULE: ModuleId = ModuleId(1);
const EXEC: ExecId = ExecId(1);
const WAIT: &str = "cuStreamWaitValue64_v2";
const MARK: &str = "cuStreamWriteValue64_v2";
const GATE_NODE: &str = "cuGraphAddBatchMemOpNode";
/// Longer than a turn.
const TURN_NS: u64 = 10_000_000;

/// A session that takes turns with another one, which has a slot of the same page and no device.
struct Shared {
    session: Session,
    page: PageHandle,
    own: Mutex<Turns>,
    other: Mutex<Turns>,
    now_ns: Mutex<u64>,
}

impl Shared {
    fn new() -> Self {
        let (_, page) = page::create().unwrap();
        let own = claim(&page, 1);
        let other = claim(&page, 2);
        let session = Session::with_page(page.clone());
        session.share(own).unwrap();
        session.load(MODULE, CONTEXT).unwrap();
        let turns = |ticket| Mutex::new(Turns::new(page.page(), ticket).unwrap());
        let (own, other, now_ns) = (turns(own), turns(other), Mutex::new(process::now_ns()));
        Self { session, page, own, other, now_ns }
    }

    fn page(&self) -> Page<'_> {
        self.page.page()
    }

    /// The session has work, and the turn if it is free.
    fn begin(&self) {
        self.own.lock().unwrap().begin(self.page(), *self.now_ns.lock().unwrap());
    }

    /// Time passes, and the session's keeper looks.
    fn look_after(&self, ns: u64) -> Standing {
        let mut now_ns = self.now_ns.lock().unwrap();
        *now_ns += ns;
        self.own.lock().unwrap().look(self.page(), *now_ns, |_| Life::Alive, || self.session.rests())
    }

    /// The other session has work, or none any more.
    fn other_wants(&self, has_work: bool) {
        let (mut other, now_ns) = (self.other.lock().unwrap(), *self.now_ns.lock().unwrap());
        match has_work {
            true => other.begin(self.page(), now_ns),
            false => other.end(self.page(), now_ns),
        }
    }

    fn launch(&self, value: u64) {
        let parameters = store(DATA + 8, value);
        self.session.enqueue(STREAM, launch(MODULE, STORE, &parameters)).unwrap();
    }

    fn launched(&self) -> usize {
        self.session.fake.launched().len()
    }

    /// Launches kernels one by one and has them run, until the session knows what they cost.
    fn learn(&self, kernel_ns: u64) {
        // Three tickets lie between those of two events around a launch.
        self.session.fake.set_tick_ns(kernel_ns / 3);
        for _ in 0..64 {
            self.launch(0);
            until("the streams are empty", || self.session.fake.backlog() == 0);
        }
    }

    fn run_what_may_run(&self) {
        let streams = self.session.fake.streams();
        while streams.iter().any(|&stream| self.session.fake.step(stream).is_some()) {}
    }
}

fn claim(page: &PageHandle, lease: u64) -> Ticket {
    let owner = process::this_process().unwrap();
    page.page().claim_share(owner, Share::new(500, lease), process::now_ns()).unwrap()
}

#[test]
fn streams_wait_on_the_device_for_the_session_s_turn() {
    let shared = Shared::new();
    shared.other_wants(true);
    shared.begin();
    shared.session.fake.hold();
    shared.launch(5);
    shared.run_what_may_run();
    assert_eq!((shared.launched(), shared.look_after(50_000)), (0, Standing::Waits));
    assert_eq!(shared.session.quiet(), Ok(false), "what waits is work");
    shared.other_wants(false);
    shared.run_what_may_run();
    assert_eq!((shared.launched(), shared.session.fake.peek(DATA + 8, 8)), (1, 5u64.to_le_bytes().to_vec()));
    assert_eq!((shared.session.quiet(), shared.look_after(50_000)), (Ok(true), Standing::Holds));
    shared.session.check_rules();
}

#[test]
fn the_gate_of_online_sessions_is_another_word() {
    let shared = Shared::new();
    shared.begin();
    // Paused offline work, and an offline session beside it: neither is this session's affair.
    shared.page().pause(u64::MAX);
    shared.launch(5);
    until("it has run", || shared.launched() == 1);
    let owner = process::this_process().unwrap();
    let online = shared.page().claim(owner, Class::Online, process::now_ns()).unwrap();
    assert!(shared.page().close(online, process::now_ns()));
    assert_eq!(shared.look_after(50_000), Standing::Holds);
    shared.session.fake.hold();
    shared.launch(6);
    shared.run_what_may_run();
    assert_eq!(shared.launched(), 1, "an online session has work");
    shared.page().open_gate(online, process::now_ns());
    shared.look_after(50_000);
    shared.run_what_may_run();
    assert_eq!(shared.launched(), 2);
}

#[test]
fn what_runs_after_the_turn_is_over_is_the_rest_of_one_group_in_300_schedules() {
    // Three kernels of 60 us fit into a group of 200 us.
    const IN_GROUP: usize = 3;
    let shared = Shared::new();
    shared.begin();
    shared.learn(60_000);
    shared.session.fake.hold();
    let (key, mut dice) = (shared.session.fake.streams()[0], 5u64);
    let mut below = |bound: u64| {
        dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (dice >> 33) % bound
    };
    let before = shared.session.fake.count(WAIT);
    for round in 0..300 {
        shared.other_wants(true);
        (0..9).for_each(|at| shared.launch(round * 9 + at));
        while shared.look_after(50_000) != Standing::Holds {
            shared.other_wants(false);
            shared.other_wants(true);
        }
        for _ in 0..below(12) {
            shared.session.fake.step(key);
        }
        while shared.look_after(TURN_NS) == Standing::Holds {}
        let at_end = shared.launched();
        shared.run_what_may_run();
        assert!(shared.launched() - at_end <= IN_GROUP, "round {round}: {}", shared.launched() - at_end);
        shared.other_wants(false);
        shared.look_after(50_000);
        shared.run_what_may_run();
        assert_eq!(shared.session.fake.backlog(), 0);
        assert_eq!(shared.session.fake.peek(DATA + 8, 8), (round * 9 + 8).to_le_bytes(), "in order");
    }
    let waits = shared.session.fake.count(WAIT) - before;
    assert!((800..=1_200).contains(&waits), "{waits} waits for 2,700 launches in groups of three");
    shared.session.check_rules();
}

#[test]
fn a_graph_that_is_longer_than_a_group_waits_inside_for_the_session_s_own_word() {
    let shared = Shared::new();
    shared.begin();
    shared.other_wants(true);
    // Ten kernels in a chain; a launch takes about 2 ms.
    shared.session.fake.set_tick_ns(160_000);
    let parameters: Vec<Vec<u8>> = (0..10).map(|at| store(DATA + 8, at + 1)).collect();
    let kernel = |at: usize| {
        let before = [at.wrapping_sub(1) as u32];
        node(launch(MODULE, STORE, &parameters[at]), if at == 0 { &[] } else { &before })
    };
    shared.session.graph_instantiate(EXEC, CONTEXT, (0..10).map(kernel).collect()).unwrap();
    for run in 0..3 {
        shared.session.graph_launch(EXEC, STREAM, run).unwrap();
        until("the streams are empty", || shared.session.fake.backlog() == 0);
    }
    assert_eq!((shared.launched(), shared.session.fake.count(GATE_NODE)), (30, 0));
    shared.session.fake.hold();
    shared.session.graph_launch(EXEC, STREAM, 4).unwrap();
    assert!(shared.session.fake.count(GATE_NODE) >= 4, "2 ms in groups of 400 us");
    let key = shared.session.fake.streams()[0];
    while shared.launched() < 32 {
        assert!(shared.session.fake.step(key).is_some());
    }
    assert_eq!(shared.look_after(TURN_NS), Standing::Waits, "a graph that waits inside is not waited for");
    shared.run_what_may_run();
    assert!(shared.launched() <= 34, "{} ran after the turn", shared.launched() - 32);
    shared.other_wants(false);
    shared.run_what_may_run();
    assert_eq!((shared.launched(), shared.session.fake.peek(DATA + 8, 1)), (40, vec![10]));
    shared.session.check_rules();
}

#[test]
fn the_end_of_a_long_kernel_is_waited_for_and_counts() {
    let shared = Shared::new();
    shared.begin();
    shared.learn(900_000);
    shared.other_wants(true);
    shared.session.fake.hold();
    let (key, marks) = (shared.session.fake.streams()[0], shared.session.fake.count(MARK));
    shared.launch(7);
    assert_eq!(shared.session.fake.count(MARK) - marks, 2);
    assert!(shared.session.rests(), "it has not begun");
    // The wait and the mark behind it.
    assert!(shared.session.fake.step(key).is_some() && shared.session.fake.step(key).is_some());
    let slot = shared.own.lock().unwrap().ticket().slot();
    let used_ns = || shared.page().get(slot, Field::BusyTotalNs);
    assert_eq!(shared.look_after(TURN_NS), Standing::Holds, "its kernel runs");
    let before_ns = used_ns();
    assert_eq!(shared.look_after(TURN_NS), Standing::Holds);
    assert_eq!(used_ns() - before_ns, TURN_NS);
    assert!(!shared.page().is_open(slot), "nothing more begins");
    shared.run_what_may_run();
    assert_eq!(shared.look_after(50_000), Standing::Waits);
    shared.session.check_rules();
}

#[test]
fn short_kernels_have_no_marks_and_copies_of_the_host_do_not_wait() {
    let shared = Shared::new();
    shared.begin();
    shared.learn(20_000);
    let (marks, waits) = (shared.session.fake.count(MARK), shared.session.fake.count(WAIT));
    (0..8).for_each(|at| shared.launch(at));
    // A stream writes how far it is at every sixteenth wait, and these are one or two groups.
    assert!(shared.session.fake.count(MARK) - marks <= 1);
    assert!(shared.session.fake.count(WAIT) - waits <= 2);
    shared.own.lock().unwrap().end(shared.page(), *shared.now_ns.lock().unwrap());
    let count = 3 * SLOT_BYTES as u64;
    shared.session.enqueue(STREAM, pushed(Plane::line(DATA), Shape::line(count), 1)).unwrap();
    until("all is copied without the turn", || shared.session.fake.backlog() == 0);
    shared.session.check_rules();
}

#[test]
fn a_session_with_the_whole_gpu_has_no_wait_beside_sessions_that_take_turns() {
    let shared = Shared::new();
    shared.begin();
    shared.other_wants(true);
    let whole = Session::with_page(shared.page.clone());
    whole.load(MODULE, CONTEXT).unwrap();
    let (waits, marks) = (whole.fake.count(WAIT), whole.fake.count(MARK));
    (0..100).for_each(|at| whole.enqueue(STREAM, launch(MODULE, STORE, &store(DATA, at))).unwrap());
    whole.drain();
    assert_eq!((whole.fake.count(WAIT), whole.fake.count(MARK)), (waits, marks));
    assert!(whole.rests() && whole.quiet() == Ok(true));
}

#[test]
fn the_command_loop_is_held_back_while_64_groups_wait_for_the_turn() {
    let shared = Shared::new();
    shared.other_wants(true);
    shared.begin();
    std::thread::scope(|scope| {
        let launching = scope.spawn(|| (0..100).for_each(|at| shared.launch(at)));
        until("it is held back", || shared.session.fake.count(WAIT) >= 64);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!launching.is_finished() && shared.session.fake.count(WAIT) == 64);
        shared.other_wants(false);
        launching.join().unwrap();
    });
    until("the streams are empty", || shared.session.fake.backlog() == 0);
    assert_eq!(shared.launched(), 100);
    shared.session.check_rules();
}

#[test]
fn a_damaged_page_does_not_hold_a_session_that_takes_turns() {
    let shared = Shared::new();
    shared.other_wants(true);
    shared.begin();
    shared.launch(1);
    shared.page.words()[0].store(0, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(shared.look_after(50_000), Standing::Alone);
    (0..100).for_each(|at| shared.launch(at));
    until("the streams are empty", || shared.session.fake.backlog() == 0);
    assert_eq!(shared.launched(), 101);
}
