//! Offline sessions wait at the gate of the page that they share with online ones.

mod common;

use common::*;
use cuda_driver::{Class, Driver, PageHandle, Ticket};
use cuda_wire::*;
use driver_soft::SoftConfig;
use shared_words::{SharedWords, page, process};
use sharing::{Owner, Page};
use std::{
    process::{Child, Command, Stdio},
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};

/// A page, an online slot of this process, and an offline session.
struct Shared {
    words: Arc<SharedWords>,
    page: PageHandle,
    online: Ticket,
    offline: Session,
}

impl Shared {
    fn new() -> Self {
        let (words, page) = page::create().unwrap();
        let online = claim(&page, process::this_process().unwrap(), Class::Online);
        let offline = session_in(&page);
        let ticket = claim(&page, process::this_process().unwrap(), Class::Offline);
        offline.driver.share(ticket).unwrap();
        Self { words, page, online, offline }
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
}

fn session_in(page: &PageHandle) -> Session {
    Session::with(SoftConfig { memory_bytes: 1 << 30, page: Some(page.clone()), ..SoftConfig::default() })
}

fn claim(page: &PageHandle, owner: Owner, class: Class) -> Ticket {
    page.page().claim(owner, class, process::now_ns()).unwrap()
}

/// Whether `condition` came true within ten seconds.
fn comes_true(condition: impl Fn() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    false
}

/// Chance from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn no_offline_kernel_starts_after_the_gate_closed_but_the_one_that_had_looked_in_10000_schedules() {
    const WORK: u64 = 8;
    let shared = Shared::new();
    let session = &shared.offline;
    let memory = session.alloc_with(&[0; 4 * WORK as usize]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let (stream, free) = (session.stream(1), session.stream(1));
    let done = || session.words(free, memory, WORK).iter().filter(|word| **word != 0).count();
    let (mut dice, mut held_back) = (Dice(1), 0);
    for schedule in 1..=10_000 {
        let work = 1 + dice.below(WORK);
        let closes_at = dice.below(work + 1);
        for at in 0..work {
            if at == closes_at {
                shared.close();
            }
            session.driver.enqueue(stream, fill32(memory + 4 * at, 1, schedule)).unwrap();
        }
        shared.close();
        let when_closed = done();
        for _ in 0..dice.below(4) {
            std::thread::sleep(Duration::from_micros(dice.below(60)));
            let later = done();
            assert!(
                later <= when_closed + 1,
                "schedule {schedule}: {when_closed} when it closed, {later} later"
            );
        }
        held_back += work as usize - done();
        shared.open();
        session.driver.stream_synchronize(stream).unwrap();
        let words = session.words(free, memory, WORK);
        assert!(words[..work as usize].iter().all(|word| *word == schedule), "all of it is done: {words:?}");
        session
            .driver
            .enqueue(
                free,
                Op::CopyIn {
                    target: Plane::line(memory),
                    shape: Shape::line(4 * WORK),
                    data: HostData::Inline { bytes: Bytes(&[0; 4 * WORK as usize]) },
                },
            )
            .unwrap();
        session.driver.stream_synchronize(free).unwrap();
    }
    assert!(held_back > 1_000, "the gate held only {held_back} pieces of work back");
}

#[test]
fn nodes_of_graphs_wait_too_and_copies_of_the_host_do_not() {
    let shared = Shared::new();
    let session = &shared.offline;
    let memory = session.alloc_with(&[0; 64]);
    let (stream, free) = (session.stream(1), session.stream(1));
    session.driver.stream_synchronize(LEGACY).unwrap();
    let node = |at: u64, after: &[u32]| GraphNode {
        op: fill32(memory + 4 * at, 1, 7),
        after: after.to_vec(),
        enabled: true,
    };
    let exec = ExecId(1);
    session.driver.graph_instantiate(exec, CONTEXT, vec![node(0, &[]), node(1, &[0]), node(2, &[])]).unwrap();
    shared.close();
    session.driver.graph_launch(exec, stream, 0).unwrap();
    session.write(free, memory + 16, &[9; 4]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(session.words(free, memory, 5), [0, 0, 0, 0, 0x0909_0909], "a copy from the host has passed");
    shared.open();
    session.driver.stream_synchronize(stream).unwrap();
    assert_eq!(session.words(free, memory, 3), [7, 7, 7]);
}

#[test]
fn an_online_or_dedicated_session_waits_for_nothing_and_is_quiet_when_all_is_done() {
    let (_, page) = page::create().unwrap();
    let (online, dedicated) = (session_in(&page), session_in(&page));
    let ticket = claim(&page, process::this_process().unwrap(), Class::Online);
    online.driver.share(ticket).unwrap();
    assert!(page.page().close(ticket, process::now_ns()));
    for session in [&online, &dedicated] {
        let memory = session.alloc_with(&[0; 64]);
        session.driver.enqueue(LEGACY, fill32(memory, 4, 3)).unwrap();
        assert_eq!(session.words(LEGACY, memory, 4), [3; 4]);
        assert!(comes_true(|| session.driver.quiet().unwrap()));
        let stream = session.stream(1);
        session.wait_value(stream, memory, 77);
        assert!(!session.driver.quiet().unwrap(), "a stream has work");
        session.write_value(LEGACY, memory, 77);
        assert!(comes_true(|| session.driver.quiet().unwrap()));
    }
}

/// A process of which a test decides when it ends.
fn process_of_a_test() -> (Child, Owner) {
    let child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    let start = process::start_ticks(child.id()).unwrap().unwrap();
    let owner = Owner::new(child.id(), start).unwrap();
    (child, owner)
}

#[test]
fn a_killed_owner_holds_the_gate_for_a_moment_and_one_that_does_not_beat_for_a_second() {
    let shared = Shared::new();
    let session = &shared.offline;
    let memory = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let stream = session.stream(1);
    for is_killed in [true, false] {
        let (mut child, owner) = process_of_a_test();
        let ticket = claim(&shared.page, owner, Class::Online);
        assert!(shared.page().close(ticket, process::now_ns()));
        session.driver.enqueue(stream, fill32(memory, 1, 5)).unwrap();
        if is_killed {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let began = Instant::now();
        session.driver.stream_synchronize(stream).unwrap();
        let took = began.elapsed();
        // How long the rest takes is the machine's affair; that a live owner has its second is ours.
        assert!(took >= Duration::from_millis(if is_killed { 90 } else { 900 }), "{took:?}");
        assert!(!shared.page().is_held(ticket));
        let _ = child.kill();
        let _ = child.wait();
        shared.page().reclaim(ticket.slot());
    }
}

#[test]
fn an_owner_that_lives_and_beats_is_not_cleared_by_those_who_wait() {
    let shared = Shared::new();
    let session = &shared.offline;
    let memory = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    shared.close();
    session.driver.enqueue(session.stream(1), fill32(memory, 1, 5)).unwrap();
    for _ in 0..40 {
        std::thread::sleep(Duration::from_millis(50));
        assert!(shared.page().is_held(shared.online), "another process cleared it");
        assert!(shared.page().beat_and_hold(shared.online, true));
    }
    assert_eq!(session.words(LEGACY, memory, 1), [0]);
    shared.open();
    assert!(comes_true(|| session.words(LEGACY, memory, 1) == [5]));
}

#[test]
fn a_damaged_page_stops_offline_work_and_the_session_still_ends() {
    let shared = Shared::new();
    let session = &shared.offline;
    let memory = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    shared.words.words()[0].store(0, SeqCst);
    session.driver.enqueue(session.stream(1), fill32(memory, 1, 5)).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(session.words(LEGACY, memory, 1), [0], "doubt protects online");
    session.driver.abort();
    assert!(session.driver.quiet().is_ok());
}
