//! Online sessions close the gate of their GPU; processes are killed and frozen while they hold it.

mod support;

use cuda_abi::CudaError;
use cuda_driver::{Class, PageHandle};
use cuda_wire::*;
use cuda_worker::*;
use shared_words::{page, process};
use sharing::{Cleared, Distress, Field, SLOTS, Sentry, SlotOwner};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use support::client::{Client, Told, greet, hello};
use support::toy::{ERROR_LIMIT, SLICE_FILE, Toy, ToyStatus};
use support::worker::Worker;

/// Not a test: the session processes of the tests below run this, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let make = |_: &serde_json::Value, fds: Vec<std::os::fd::OwnedFd>| {
        let page = fds.into_iter().next().map(|fd| page::open(fd).unwrap());
        Ok(Box::new(Toy::sharing(page)) as _)
    };
    let end = run_session_process(control, &make, &|_, _| Ok(Box::new(ToyStatus)));
    std::process::exit(end.kind.exit_code().into());
}

const STREAM: StreamId = StreamId(1);
const CONTEXT: ContextId = ContextId(0);

/// A worker whose sessions share a page; with `sweeps` its front empties slots of processes that are gone.
fn worker(sweeps: bool) -> (Worker, PageHandle) {
    worker_with(sweeps, Vec::new(), |_| {})
}

/// The same with variables for its sessions, and what they are told.
fn worker_with(
    sweeps: bool,
    environment: Vec<(String, OsString)>,
    change: impl FnOnce(&mut SessionConfig),
) -> (Worker, PageHandle) {
    let (words, page) = page::create().unwrap();
    let kept = page.clone();
    let grant = Arc::new(move || {
        let swept = kept.clone();
        Ok(Grant {
            environment: environment.clone(),
            driver: serde_json::Value::Null,
            fds: vec![words.fd().try_clone_to_owned()?],
            release: Box::new(move || {
                if sweeps {
                    page::sweep(swept.page());
                }
            }),
        })
    });
    let worker = Worker::start("unix", |config| {
        config.grant = grant;
        change(&mut config.session);
    });
    (worker, page)
}

fn wishing(worker: &Worker, class: Class) -> Client {
    let client = Client::attach_with(&worker.target, 2, |hello| hello.wish.class = class.code());
    ready(client)
}

fn ready(mut client: Client) -> Client {
    client.one_way(&Command::StreamCreate { stream: STREAM, context: CONTEXT, kind: 1, priority: 0 });
    client.must(&Command::MemoryAllocate { context: CONTEXT, address: client.base, bytes: 64 });
    client
}

fn write(client: &mut Client) {
    let data = HostData::Inline { bytes: Bytes(&[5; 8]) };
    let op = Op::CopyIn { target: Plane::line(client.base), shape: Shape::line(8), data };
    client.one_way(&Command::Enqueue { stream: STREAM, op });
}

/// Makes the session busy until the test ends its host function.
fn occupy(client: &mut Client, token: u64) {
    client.one_way(&Command::Enqueue { stream: STREAM, op: Op::HostCall { token } });
    write(client);
    while client.heard() != Told::HostCall(token) {}
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

fn signal(worker: &Worker, signal: rustix::process::Signal) {
    for pid in worker.front.as_ref().unwrap().session_pids() {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

#[test]
fn an_online_session_closes_the_gate_while_it_has_work() {
    let (worker, page) = worker(true);
    let mut client = wishing(&worker, Class::Online);
    assert_eq!(page.page().present().count_ones(), 1, "spares are not present");
    assert!(comes_true(|| page.page().gate().is_open()), "making a stream and memory is no work");
    for token in 1..20 {
        occupy(&mut client, token);
        assert!(comes_true(|| !page.page().gate().is_open()), "it has work");
        std::thread::sleep(Duration::from_millis(2));
        assert!(!page.page().gate().is_open(), "it still has");
        client.say(&Notice::HostCallDone { token });
        let read =
            Command::ReadBack { stream: STREAM, source: Plane::line(client.base), shape: Shape::line(8) };
        assert_eq!(Blob::from_bytes(&client.must(&read)).unwrap().0, [5; 8]);
        assert!(comes_true(|| page.page().gate().is_open()), "its work is done");
    }
    client.must(&Command::Goodbye {});
    worker.end();
    assert!(comes_true(|| page.page().present() == 0), "its slot is given back");
}

/// A replay waits for many things that are no work, and offline work that began in between could fail in its place.
#[test]
fn a_session_that_takes_over_keeps_the_gate_closed_until_its_replay_has_ended() {
    let (worker, page) = worker(true);
    let guard =
        |incarnation| Command::Guard { image: ImageName { bytes: [1; 16] }, secret: [2; 32], incarnation };
    let mut first = wishing(&worker, Class::Online);
    // There is no guardian here; what counts is that the client has asked.
    first.call(&guard(FIRST_INCARNATION));
    std::thread::sleep(Duration::from_millis(5));
    assert!(page.page().gate().is_open(), "a first session has nothing to do again");
    for (incarnation, class) in [(2, Class::Online), (9, Class::Online), (2, Class::Offline)] {
        let is_online = class == Class::Online;
        let mut client = wishing(&worker, class);
        client.call(&guard(incarnation));
        write(&mut client);
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(
                page.page().gate().is_open(),
                !is_online,
                "{class:?}: there is no work, and the replay goes on"
            );
        }
        assert!(!client.has_rested(), "{class:?}: it goes on");
        client.post(&Command::MemoryInfo { device: 0 }, FENCE_CALL);
        assert_eq!(client.reply().0.call, FENCE_CALL);
        assert!(comes_true(|| page.page().gate().is_open()), "{class:?}: it is where the lost one was");
        assert_eq!(client.has_rested(), is_online, "{class:?}: all work has ended well");
        write(&mut client);
        assert!(comes_true(|| page.page().gate().is_open()));
        assert!(!client.has_rested(), "{class:?}: that is told once");
        client.must(&Command::Goodbye {});
    }
    // One that is gone in the middle of it holds nothing.
    let mut client = wishing(&worker, Class::Online);
    client.call(&guard(3));
    assert!(!page.page().gate().is_open());
    drop(client);
    assert!(comes_true(|| page.page().gate().is_open()));
}

#[test]
fn offline_work_that_costs_an_online_program_too_much_is_given_less() {
    let (worker, page) = worker(true);
    let mut client = wishing(&worker, Class::Online);
    let mut token = 0;
    // From the write to the end of the read; the device works until the host function is done.
    let mut request = |took: Duration| {
        token += 1;
        occupy(&mut client, token);
        std::thread::sleep(took);
        client.say(&Notice::HostCallDone { token });
        let (source, shape) = (Plane::line(client.base), Shape::line(8));
        client.must(&Command::ReadBack { stream: STREAM, source, shape });
        assert!(comes_true(|| page.page().gate().is_open()));
    };
    (0..20).for_each(|_| request(Duration::from_millis(2)));
    let guest =
        page.page().claim(process::this_process().unwrap(), Class::Offline, process::now_ns()).unwrap();
    assert_eq!(page.page().group_budget_us(), Some(50));
    let until = Instant::now() + Duration::from_secs(20);
    while page.page().group_budget_us() == Some(50) {
        assert!(Instant::now() < until, "its requests take three times as long as without the guest");
        request(Duration::from_millis(6));
    }
    assert_eq!(page.page().distress(), Distress::OverSlack);
    let cost_milli = page.page().cost_milli();
    // What is lost to a busy machine counts on both sides.
    assert!((250..20_000).contains(&cost_milli), "{cost_milli}");
    page.page().release(guest);
    let is_as_before =
        || page.page().group_budget_us() == Some(50) && page.page().distress() == Distress::None;
    assert!(comes_true(is_as_before), "the guest has left");
    client.must(&Command::Goodbye {});
}

#[test]
fn a_dedicated_session_takes_no_part() {
    let (worker, page) = worker(true);
    let mut client = ready(worker.attach());
    occupy(&mut client, 1);
    assert_eq!((page.page().present(), page.page().closers()), (0, 0));
    assert!((0..SLOTS).all(|slot| page.page().owner(slot) == SlotOwner::Nobody));
    client.say(&Notice::HostCallDone { token: 1 });
    client.must(&Command::Goodbye {});
}

#[test]
fn a_class_that_cannot_be_served_is_refused_in_words() {
    let (sharing, _) = worker(true);
    let plain = Worker::start("unix", |_| {});
    for (worker, class, code, words) in [
        (&sharing, 9, CudaError::INVALID_VALUE, "install the same dxpu"),
        (&plain, 1, CudaError::NOT_SUPPORTED, "start the program without --class"),
        (&plain, 2, CudaError::NOT_SUPPORTED, "cannot serve an offline"),
    ] {
        let name = worker.target.ticket(purpose::SESSION);
        let hello = Hello {
            wish: AppendedWish { class, ..AppendedWish::default() },
            ..hello(&worker.target.token, 0)
        };
        let (_connection, answer) = greet(&worker.target, name, hello);
        let Handshake::Refusal(refusal) = answer.unwrap() else { panic!("not refused") };
        assert_eq!(refusal.code, code.code());
        assert!(refusal.text.contains(words), "{}", refusal.text);
    }
}

#[test]
fn the_gate_opens_when_a_busy_session_is_killed() {
    // With its front, and without: then a session that waits at the gate finds out.
    for sweeps in [true, false] {
        let (worker, page) = worker(sweeps);
        let mut client = wishing(&worker, Class::Online);
        occupy(&mut client, 1);
        assert!(comes_true(|| !page.page().gate().is_open()));
        signal(&worker, rustix::process::Signal::KILL);
        let sentry = std::sync::Mutex::new(Sentry::default());
        let looks = || {
            if !sweeps {
                sentry.lock().unwrap().look(page.page(), process::now_ns(), process::life);
            }
            page.page().gate().is_open()
        };
        assert!(comes_true(looks), "sweeps: {sweeps}");
    }
}

#[test]
fn an_offline_session_whose_work_runs_on_at_a_closed_gate_is_ended_and_told_why() {
    let (worker, page) = worker(true);
    let own = page.page().claim(process::this_process().unwrap(), Class::Online, 1).unwrap();
    let mut client = wishing(&worker, Class::Offline);
    occupy(&mut client, 1);
    std::thread::sleep(Duration::from_millis(700));
    client.must(&Command::MemoryInfo { device: 0 });
    let since = Instant::now();
    assert!(page.page().close(own, process::now_ns()));
    let Told::Closing(text) = client.heard() else { panic!("it is not told") };
    assert!(
        text.contains("kept the GPU from an online program") && text.contains("without --class"),
        "{text}"
    );
    assert!(since.elapsed() >= Duration::from_millis(450), "{:?}", since.elapsed());
    assert_eq!(worker.end().kind, EndKind::Stopped);
    assert!(!page.page().gate().is_open(), "the online session goes on");
}

/// A slot of the page, and what comes before the slots.
const SLOT_WORDS: usize = 16;

#[test]
fn the_time_slice_of_a_session_follows_from_the_others_that_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("slice");
    let environment = vec![(SLICE_FILE.to_owned(), file.clone().into_os_string())];
    let (worker, page) = worker_with(true, environment, |config| config.offline_slice_us = Some(100));
    let slice = || std::fs::read_to_string(&file).unwrap_or_default();
    let claim = |class| page.page().claim(process::this_process().unwrap(), class, 1).unwrap();
    let mut offline = wishing(&worker, Class::Offline);
    assert!(comes_true(|| slice() == "None"), "it is alone: {}", slice());
    let own = claim(Class::Online);
    // As the driver of the offline session writes it; this one knows nothing of its kernels.
    let longest_group = &page.words()
        [SLOT_WORDS * (1 + page.page().guests().trailing_zeros() as usize) + Field::GroupUs as usize];
    longest_group.store(1_400, Relaxed);
    assert!(comes_true(|| slice() == "Some(100)"), "{}", slice());
    longest_group.store(50, Relaxed);
    assert!(comes_true(|| slice() == "None"), "its groups are short: {}", slice());
    longest_group.store(1_400, Relaxed);
    assert!(comes_true(|| slice() == "Some(100)"), "{}", slice());
    page.page().release(own);
    assert!(comes_true(|| slice() == "None"), "{}", slice());
    offline.must(&Command::Goodbye {});
    worker.end();
    let own = claim(Class::Offline);
    page.page().set(own, Field::GroupUs, 1_400);
    let mut online = wishing(&worker, Class::Online);
    assert!(comes_true(|| slice() == "Some(20000)"), "{}", slice());
    page.page().release(own);
    assert!(comes_true(|| slice() == "None"), "{}", slice());
    online.must(&Command::Goodbye {});
}

/// So long after a fault the online session of these tests is back.
const BACK_AFTER: Duration = Duration::from_millis(500);

/// How long a client's first work takes while another thread does with the page what the online session does.
fn wait_of_first_work(
    client: &mut Client,
    page: &PageHandle,
    online: impl FnOnce(sharing::Page<'_>) + Send,
) -> Duration {
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| online(page.page()));
        write(client);
        client.must(&Command::MemoryInfo { device: 0 });
        began.elapsed()
    })
}

#[test]
fn after_faults_an_offline_session_waits_also_while_the_online_one_is_on_its_way_back() {
    let (worker, page) = worker_with(true, Vec::new(), |config| config.is_merged = true);
    let now_ns = process::now_ns();
    // Four faults: offline work waits for 8 s.
    (0..4).rev().for_each(|ago| page.page().met_fault(now_ns - ago * 2_000_000_000));
    page.page().expect_online(now_ns);
    let mut client = wishing(&worker, Class::Offline);
    let waited = wait_of_first_work(&mut client, &page, |page| {
        std::thread::sleep(BACK_AFTER);
        let own = page.claim(process::this_process().unwrap(), Class::Online, 1).unwrap();
        page.online_is_back();
        page.release(own);
    });
    assert!(waited >= BACK_AFTER, "it began {waited:?} after a fault, before the online session was back");
    assert!(waited < Duration::from_secs(6), "no online session is there any more, and it waited {waited:?}");
    client.must(&Command::Goodbye {});
}

#[test]
fn no_offline_work_begins_while_an_online_session_is_on_its_way_back_whatever_the_wait_after_faults() {
    let (worker, page) = worker_with(true, Vec::new(), |config| {
        config.is_merged = true;
        config.fault_wait_max = Duration::ZERO;
    });
    page.page().met_fault(process::now_ns());
    page.page().expect_online(process::now_ns());
    let mut client = wishing(&worker, Class::Offline);
    let waited = wait_of_first_work(&mut client, &page, |page| {
        // It has its slot for a while before it closes the gate.
        let own = page.claim(process::this_process().unwrap(), Class::Online, 1).unwrap();
        std::thread::sleep(BACK_AFTER);
        page.online_is_back();
        page.release(own);
    });
    assert!(waited >= BACK_AFTER, "it began after {waited:?}, before the online session was back");
    client.must(&Command::Goodbye {});
}

#[test]
fn a_fault_is_noted_before_the_client_hears_of_it_and_once() {
    let (worker, page) = worker_with(true, Vec::new(), |config| config.is_merged = true);
    let mut client = wishing(&worker, Class::Offline);
    let fails = |client: &mut Client, error: CudaError| {
        let value = error.code().into();
        client.call(&Command::ContextSetLimit { context: CONTEXT, limit: ERROR_LIMIT, value }).0.status
    };
    let faults = || page.page().fault_backoff().in_a_row();
    assert_eq!(fails(&mut client, CudaError::INVALID_VALUE), CudaError::INVALID_VALUE.code());
    assert_eq!(faults(), 0, "that ends no context");
    assert_eq!(fails(&mut client, CudaError::ILLEGAL_ADDRESS), CudaError::ILLEGAL_ADDRESS.code());
    assert_eq!(faults(), 1);
    // Later than what counts as the same fault.
    std::thread::sleep(Duration::from_millis(1100));
    fails(&mut client, CudaError::ILLEGAL_ADDRESS);
    assert_eq!(faults(), 1);
    client.must(&Command::Goodbye {});
}

#[test]
fn a_frozen_session_loses_the_gate_and_has_it_again_when_it_goes_on() {
    let (worker, page) = worker(true);
    let mut client = wishing(&worker, Class::Online);
    occupy(&mut client, 1);
    assert!(comes_true(|| !page.page().gate().is_open()));
    signal(&worker, rustix::process::Signal::STOP);
    let (sentry, cleared) = (std::sync::Mutex::new(Sentry::default()), std::sync::Mutex::new(Vec::new()));
    assert!(comes_true(|| {
        let found = sentry.lock().unwrap().look(page.page(), process::now_ns(), process::life);
        cleared.lock().unwrap().extend(found);
        page.page().gate().is_open()
    }));
    assert!(matches!(cleared.lock().unwrap()[..], [Cleared::Frozen(..)]), "it lives, and does nothing");
    signal(&worker, rustix::process::Signal::CONT);
    assert!(comes_true(|| !page.page().gate().is_open()), "it is still busy, and says so again");
    client.say(&Notice::HostCallDone { token: 1 });
    assert!(comes_true(|| page.page().gate().is_open()));
}
