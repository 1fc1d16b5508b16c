//! Sessions whose contexts are merged with those of others: they leave when nothing of theirs runs.

use super::{link::until, session::*};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Class, Driver, PageHandle, Ticket};
use cuda_wire::*;
use shared_words::{page, process};
use sharing::Gate;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const MODULE: ModuleId = ModuleId(1);
/// Longer than a session that has nothing on the device takes to leave.
const SHORT: Duration = Duration::from_millis(80);

struct Shared {
    session: Session,
    page: PageHandle,
    ticket: Option<Ticket>,
}

impl Shared {
    fn new(class: Class) -> Self {
        let (_, page) = page::create().unwrap();
        let session = Session::merged(page.clone());
        let owner = process::this_process().unwrap();
        let ticket = page.page().claim(owner, class, process::now_ns());
        if let Some(ticket) = ticket {
            session.share(ticket).unwrap();
        }
        session.load(MODULE, CONTEXT).unwrap();
        Self { session, page, ticket }
    }

    fn launch(&self, value: u64) -> CuResult<()> {
        self.session.enqueue(STREAM, launch(MODULE, STORE, &store(DATA + 8, value)))
    }

    fn launched(&self) -> usize {
        self.session.fake.launched().len()
    }

    /// Runs the streams until a piece of work with this in its description has run.
    fn run_until(&self, what: &str) {
        let streams = self.session.fake.streams();
        loop {
            let ran: Vec<String> =
                streams.iter().filter_map(|&stream| self.session.fake.step(stream)).collect();
            assert!(!ran.is_empty(), "{what} is not due");
            if ran.iter().any(|ran| ran.contains(what)) {
                return;
            }
        }
    }

    /// The streams do what they can.
    fn run_what_may_run(&self) {
        let streams = self.session.fake.streams();
        while streams.iter().any(|&stream| self.session.fake.step(stream).is_some()) {}
    }

    /// Drains, and calls `meanwhile` while that lasts. Returns whether the drain was over before it.
    fn drain_beside(&self, meanwhile: impl FnOnce()) -> bool {
        std::thread::scope(|scope| {
            let drain = scope.spawn(|| Driver::drain(&*self.session));
            std::thread::sleep(SHORT);
            let is_over = drain.is_finished();
            meanwhile();
            drain.join().unwrap();
            is_over
        })
    }
}

#[test]
fn an_offline_session_leaves_when_what_has_begun_has_ended_and_the_rest_never_begins() {
    let shared = Shared::new(Class::Offline);
    shared.session.fake.hold();
    (1..=3).for_each(|value| shared.launch(value).unwrap());
    // The stream is past the gate and has written that the first kernel begins.
    shared.run_until("WriteWord");
    assert_eq!(shared.launched(), 0);
    let is_over = shared.drain_beside(|| shared.run_what_may_run());
    assert!(!is_over, "a kernel had begun");
    assert_eq!(shared.launched(), 1, "the others wait at the gate");
    assert_eq!(shared.page.page().gate(), Gate::Closed, "until the process is gone");
    assert_eq!(shared.launch(4), Err(CudaError::DEVICE_UNAVAILABLE));
    // The front empties the slot of a process that is gone.
    shared.page.page().release(shared.ticket.unwrap());
    assert_eq!(shared.page.page().gate(), Gate::Open);
    shared.session.check_rules();
}

#[test]
fn an_offline_session_whose_work_waits_leaves_at_once() {
    let shared = Shared::new(Class::Offline);
    let owner = process::this_process().unwrap();
    let online = shared.page.page().claim(owner, Class::Online, process::now_ns()).unwrap();
    assert!(shared.page.page().close(online, process::now_ns()));
    shared.session.fake.hold();
    (1..=3).for_each(|value| shared.launch(value).unwrap());
    shared.run_what_may_run();
    assert!(shared.drain_beside(|| {}), "nothing had begun");
    // The online session is idle again; the one that leaves holds its own work back.
    shared.page.page().open_gate(online, process::now_ns());
    shared.run_what_may_run();
    assert_eq!(shared.launched(), 0);
    shared.session.check_rules();
}

#[test]
fn other_sessions_leave_when_all_their_work_is_done() {
    for class in [Class::Online, Class::Dedicated] {
        let shared = Shared::new(class);
        shared.session.fake.hold();
        (1..=3).for_each(|value| shared.launch(value).unwrap());
        assert!(!shared.drain_beside(|| shared.session.fake.release()), "{class:?}: work was left");
        assert_eq!((shared.launched(), shared.session.fake.backlog()), (3, 0));
        assert_eq!(shared.launch(4), Err(CudaError::DEVICE_UNAVAILABLE));
        let (_, none) = (shared.session.abort(), shared.session.fake.backlog());
        assert_eq!(none, 0);
        shared.session.check_rules();
    }
}

#[test]
fn a_kernel_never_sees_bytes_that_did_not_come() {
    for (pull, has_failed_pull) in [(false, false), (true, false), (true, true)] {
        let shared = Shared::new(Class::Dedicated);
        let link = &shared.session.link;
        link.is_lost.store(true, SeqCst);
        link.has_failed_pull.store(has_failed_pull, SeqCst);
        let (plane, shape) = (Plane::line(DATA), Shape::line(64));
        let copy = if pull { pulled(plane, shape, 1) } else { pushed(plane, shape, 1) };
        shared.session.enqueue(STREAM, copy).unwrap();
        shared.launch(1).unwrap();
        until("the client was asked", || !link.asked.lock().unwrap().is_empty());
        std::thread::sleep(SHORT);
        // A client that stays and could not serve a pull hears of the error; the program goes on.
        assert_eq!(shared.launched(), usize::from(has_failed_pull), "pull {pull}");
        shared.session.abort();
        std::thread::sleep(SHORT);
        assert_eq!(shared.launched(), usize::from(has_failed_pull), "the end lets nothing begin");
        shared.session.check_rules();
    }
}

#[test]
fn a_session_that_asks_nothing_hears_of_the_fault_of_another_one() {
    let shared = Shared::new(Class::Online);
    for _ in 0..10 {
        assert_eq!(shared.session.fault(), None);
        std::thread::sleep(Duration::from_millis(1));
    }
    // A device that is slow is not dead.
    shared.session.fake.hold();
    assert_eq!((shared.session.fault(), shared.session.fault(), shared.session.fault()), (None, None, None));
    shared.session.fake.release();
    shared.session.fake.kill_all(CudaError::ILLEGAL_ADDRESS);
    assert_eq!(shared.session.fault(), Some(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(shared.session.fault(), Some(CudaError::ILLEGAL_ADDRESS), "it is told for ever");
    // A session that drains does not wait for what is dead.
    assert!(shared.drain_beside(|| {}));
    assert_eq!(Session::new().fault(), None, "contexts of their own are not asked");
}

#[test]
fn an_offline_session_whose_context_has_died_leaves_at_once_whatever_had_begun() {
    let shared = Shared::new(Class::Offline);
    shared.session.fake.hold();
    (1..=3).for_each(|value| shared.launch(value).unwrap());
    shared.run_until("WriteWord");
    shared.session.fake.kill_all(CudaError::ILLEGAL_ADDRESS);
    assert!(shared.drain_beside(|| {}), "a kernel had begun, and never says that it has ended");
    assert_eq!(shared.page.page().gate(), Gate::Closed, "until the process is gone");
}
