//! Leases with a share of one GPU: each has a worker of its own, their session processes take turns, and processes that have the turn
//! are killed and frozen.

mod support;

use cuda_driver::{Class, PageHandle};
use cuda_wire::*;
use cuda_worker::*;
use driver_soft::{SoftConfig, SoftDriver, SoftStatus};
use lease_fence::{LeaseAdmission, Moment, Trust};
use pool_auth::{LeaseClaims, LeaseKey, lease_token};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use shared_words::{SharedWords, page};
use sharing::{Field, SLOTS, SlotOwner};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::client::{Client, Target, Told};
use transport::ClientSecurity;

/// Not a test: the session processes of the tests below run this, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let config = || SoftConfig { memory_bytes: 1 << 30, ..SoftConfig::default() };
    let make = |_: &serde_json::Value, fds: Vec<std::os::fd::OwnedFd>| {
        let page = fds.into_iter().next().map(|fd| page::open(fd).unwrap());
        Ok(Box::new(SoftDriver::new(SoftConfig { page, ..config() })) as _)
    };
    let end = run_session_process(control, &make, &|_, _| Ok(Box::new(SoftStatus::new(config()))));
    std::process::exit(end.kind.exit_code().into());
}

const STREAM: StreamId = StreamId(1);
const CONTEXT: ContextId = ContextId(0);
const BYTES: u64 = 64 << 10;

/// The page of a GPU, as its box keeps it.
struct Gpu {
    words: Arc<SharedWords>,
    page: PageHandle,
}

impl Gpu {
    fn new() -> Self {
        let (words, page) = page::create().unwrap();
        Self { words, page }
    }

    /// The slots of sessions that take turns, in the order in which they came.
    fn slots(&self) -> Vec<usize> {
        (0..SLOTS).filter(|slot| self.page.page().share(*slot).is_some()).collect()
    }

    fn holder(&self) -> Option<usize> {
        self.page.page().holding().slot
    }
}

/// The worker of a lease.
struct Worker {
    front: Option<FrontHandle>,
    key: LeaseKey,
    address: transport::Address,
    _directory: tempfile::TempDir,
}

impl Worker {
    /// With `sweeps` its front empties the slots of its sessions that are gone.
    fn start(gpu: &Gpu, sweeps: bool, takes_turns: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = LeaseKey::make();
        let admission = LeaseAdmission {
            box_name: "box".to_owned(),
            slot: 2,
            trust_file: directory.path().join("trust"),
            fence_file: directory.path().join("fence"),
        };
        let (keys, at) = (vec![key.public().to_string()], Moment::now().unwrap());
        Trust { keys, manager_ms: 1000, at, denied: vec![] }.write(&admission.trust_file).unwrap();
        let mut session = SessionConfig::admitting(Admission::Lease(admission));
        session.takes_turns = takes_turns;
        let (words, page) = (gpu.words.clone(), gpu.page.clone());
        let grant = Arc::new(move || {
            let swept = page.clone();
            Ok(Grant {
                environment: Vec::new(),
                driver: serde_json::Value::Null,
                fds: vec![words.fd().try_clone_to_owned()?],
                release: Box::new(move || {
                    if sweeps {
                        page::sweep(swept.page());
                    }
                }),
            })
        });
        let arguments = ["--exact", "session_process", "--ignored", "--nocapture"].map(str::to_owned);
        let config = FrontConfig {
            addresses: vec![format!("unix:{}/socket", directory.path().display()).parse().unwrap()],
            spawn: SessionSpawn { program: std::env::current_exe().unwrap(), arguments: arguments.to_vec() },
            session,
            grant,
            sessions_max: 16,
            unauthenticated_max: 16,
            preamble_timeout: Duration::from_secs(2),
            hold: Duration::from_secs(2),
            spares: 0,
            executes_ptx_only: true,
        };
        let front = serve_listener(config, |_| {}).unwrap();
        let address = front.addresses()[0].clone();
        Self { front: Some(front), key, address, _directory: directory }
    }

    fn attach(&self, lease: u64, share_milli: u16, wish: Class) -> Client {
        let claims = LeaseClaims {
            lease: format!("l-{lease:016x}"),
            tenant: "vision".to_owned(),
            box_name: "box".to_owned(),
            slot: 2,
            epoch: 5,
            memory_bytes: 4 << 20,
            share_milli,
            class: Class::Dedicated,
            slack_percent: None,
            issued_ms: 1000,
            expires_ms: 1_000_000,
            part: None,
        };
        let token = lease_token::sign(&claims, &self.key).unwrap().reveal().to_owned();
        let target = Target { address: self.address.clone(), security: ClientSecurity::Plain, token };
        let mut client = Client::attach_with(&target, 1, |hello| hello.wish.class = wish.code());
        client.one_way(&Command::StreamCreate { stream: STREAM, context: CONTEXT, kind: 1, priority: 0 });
        client.must(&Command::MemoryAllocate { context: CONTEXT, address: client.base, bytes: BYTES });
        client
    }

    fn signal(&self, signal: Signal) {
        for pid in self.front.as_ref().unwrap().session_pids() {
            let sent = kill_process(Pid::from_raw(pid as i32).unwrap(), signal);
            // One may end just now: its client has said goodbye.
            assert!(matches!(sent, Ok(()) | Err(Errno::SRCH)), "{pid}: {sent:?}");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
        self.front.take().unwrap().stop();
    }
}

fn fill(client: &mut Client, value: u32) {
    let (target, shape) = (Plane::line(client.base), Shape::line(BYTES));
    client.one_way(&Command::Enqueue {
        stream: STREAM,
        op: Op::Fill { target, shape, element_bytes: 4, value },
    });
}

fn read(client: &mut Client) -> u32 {
    let (source, shape) = (Plane::line(client.base), Shape::line(4));
    let reply = client.must(&Command::ReadBack { stream: STREAM, source, shape });
    u32::from_le_bytes(Blob::from_bytes(&reply).unwrap().0.try_into().unwrap())
}

/// Gives the session work that ends when the test lets its host function end.
fn occupy(client: &mut Client, value: u32) {
    client.one_way(&Command::Enqueue { stream: STREAM, op: Op::HostCall { token: 1 } });
    fill(client, value);
    while client.heard() != Told::HostCall(1) {}
}

fn comes_true(condition: impl Fn() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

#[test]
fn the_share_in_a_lease_s_token_decides_and_the_program_s_wish_does_not() {
    let gpu = Gpu::new();
    let (sharing, alone) = (Worker::start(&gpu, true, true), Worker::start(&gpu, true, false));
    let whole = sharing.attach(1, 1000, Class::Dedicated);
    let unshared = alone.attach(2, 500, Class::Dedicated);
    let owners = || (0..SLOTS).filter(|slot| gpu.page.page().owner(*slot) != SlotOwner::Nobody).count();
    assert_eq!(owners(), 0, "a whole GPU, and a GPU that no other lease is on");
    drop((whole, unshared));
    for wish in Class::ALL {
        let mut client = sharing.attach(1, 250, wish);
        let slots = gpu.slots();
        let [slot] = slots[..] else { panic!("{wish}: {slots:?}") };
        let page = gpu.page.page();
        assert_eq!((page.share(slot).unwrap().milli(), page.present()), (250, 0), "{wish}");
        fill(&mut client, 7);
        assert_eq!(read(&mut client), 7, "alone it has the turn at once");
        assert!(page.get(slot, Field::BusyPeriods) >= 1);
        assert!(comes_true(|| gpu.holder().is_none()), "and none when its work is done");
        client.must(&Command::Goodbye {});
        drop(client);
        assert!(comes_true(|| owners() == 0), "its slot is given back");
    }
}

#[test]
fn a_killed_session_gives_the_turn_to_the_others() {
    // With a front that notices, and without: then a session that waits finds out.
    for sweeps in [true, false] {
        let gpu = Gpu::new();
        let (one, two) = (Worker::start(&gpu, sweeps, true), Worker::start(&gpu, sweeps, true));
        let mut busy = one.attach(1, 500, Class::Dedicated);
        occupy(&mut busy, 5);
        let holder = gpu.slots()[0];
        assert!(comes_true(|| gpu.holder() == Some(holder)));
        let mut waiting = two.attach(2, 500, Class::Dedicated);
        one.signal(Signal::STOP);
        fill(&mut waiting, 9);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(gpu.holder(), Some(holder), "it is not found frozen yet");
        one.signal(Signal::KILL);
        let since = Instant::now();
        assert_eq!(read(&mut waiting), 9);
        assert!(since.elapsed() < Duration::from_millis(900), "sweeps {sweeps}: {:?}", since.elapsed());
        waiting.must(&Command::Goodbye {});
    }
}

#[test]
fn a_frozen_session_loses_the_turn_and_goes_on_when_it_is_thawed() {
    let gpu = Gpu::new();
    let (one, two) = (Worker::start(&gpu, true, true), Worker::start(&gpu, true, true));
    let mut frozen = one.attach(1, 500, Class::Dedicated);
    occupy(&mut frozen, 5);
    let holder = gpu.slots()[0];
    assert!(comes_true(|| gpu.holder() == Some(holder)));
    let mut waiting = two.attach(2, 500, Class::Dedicated);
    one.signal(Signal::STOP);
    let since = Instant::now();
    fill(&mut waiting, 9);
    assert_eq!(read(&mut waiting), 9);
    assert!(since.elapsed() >= Duration::from_millis(900), "{:?}", since.elapsed());
    let page = gpu.page.page();
    assert!(!page.is_open(holder) && page.wants() & 1 << holder == 0, "it is not given the turn again");
    fill(&mut waiting, 10);
    assert_eq!(read(&mut waiting), 10);
    one.signal(Signal::CONT);
    assert!(comes_true(|| page.wants() & 1 << holder != 0), "it lives, and says so");
    frozen.say(&Notice::HostCallDone { token: 1 });
    assert_eq!(read(&mut frozen), 5, "nothing of it is lost");
    assert!(comes_true(|| gpu.holder().is_none() && page.wants() == 0));
}

/// Keeps a session in work: some hundred fills ahead of those that have begun.
fn feed(client: &mut Client, gpu: &Gpu, slot: usize, over: &AtomicBool) -> u32 {
    let begun = || gpu.page.page().get(slot, Field::Groups);
    let mut sent = 0;
    while !over.load(SeqCst) {
        if u64::from(sent) >= begun() + 400 {
            std::thread::sleep(Duration::from_micros(500));
            continue;
        }
        sent += 1;
        fill(client, sent);
    }
    sent
}

#[test]
fn sessions_of_two_leases_have_time_in_proportion_to_their_shares() {
    let gpu = Gpu::new();
    let (one, two) = (Worker::start(&gpu, true, true), Worker::start(&gpu, true, true));
    let (mut quarter, mut rest) =
        (one.attach(1, 250, Class::Dedicated), two.attach(2, 750, Class::Dedicated));
    let slots = gpu.slots();
    let used_ns = || [0, 1].map(|at| gpu.page.page().get(slots[at], Field::BusyTotalNs) as f64);
    let over = AtomicBool::new(false);
    let part = std::thread::scope(|scope| {
        let fed = [(&mut quarter, slots[0]), (&mut rest, slots[1])].map(|(client, slot)| {
            let (gpu, over) = (&gpu, &over);
            scope.spawn(move || {
                let sent = feed(client, gpu, slot, over);
                assert_eq!(read(client), sent, "the last fill is the last");
            })
        });
        std::thread::sleep(Duration::from_millis(500));
        let before = used_ns();
        std::thread::sleep(Duration::from_secs(4));
        let after = used_ns();
        over.store(true, SeqCst);
        fed.into_iter().for_each(|thread| thread.join().unwrap());
        let used = [after[0] - before[0], after[1] - before[1]];
        assert!(used[0] + used[1] > 2e9, "the GPU was used for half of the time at least: {used:?}");
        used[0] / (used[0] + used[1])
    });
    // A machine that is busy with other things lets a program wait for its processor, and it has no work meanwhile.
    assert!((part - 0.25).abs() < 0.1, "{part:.3} in place of 0.25");
}

#[test]
fn programs_go_on_when_the_page_is_damaged_and_one_that_lost_its_slot_is_told() {
    let gpu = Gpu::new();
    let (one, two) = (Worker::start(&gpu, true, true), Worker::start(&gpu, true, true));
    let (mut busy, mut other) = (one.attach(1, 500, Class::Dedicated), two.attach(2, 500, Class::Dedicated));
    occupy(&mut busy, 5);
    let magic = gpu.words.words()[0].swap(0, SeqCst);
    fill(&mut other, 9);
    assert_eq!(read(&mut other), 9);
    busy.say(&Notice::HostCallDone { token: 1 });
    assert_eq!(read(&mut busy), 5);
    gpu.words.words()[0].store(magic, SeqCst);
    fill(&mut other, 10);
    assert_eq!(read(&mut other), 10, "it takes turns again");
    gpu.page.page().reclaim(gpu.slots()[0]);
    let Told::Closing(text) = busy.heard() else { panic!("it is not told") };
    assert!(text.contains("lost its place") && text.contains("start it again"), "{text}");
    fill(&mut other, 11);
    assert_eq!(read(&mut other), 11);
}
