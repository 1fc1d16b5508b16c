//! What the worker checks and writes down around commands, as a client sees it: a bound on what it makes, memory credit,
//! and the context that each error belongs to.

mod support;

use cuda_abi::CudaError;
use cuda_wire::*;
use cuda_worker::*;
use std::os::fd::AsFd;
use support::client::{Client, patterned};
use support::toy::{IMPOSSIBLE, NODES_MAX, STUBBORN, Toy, ToyStatus};
use support::worker::Worker;

/// Not a test: the session processes of the tests below run this, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let end =
        run_session_process(control, &|_, _| Ok(Box::new(Toy::default())), &|_, _| Ok(Box::new(ToyStatus)));
    std::process::exit(end.kind.exit_code().into());
}

const FIRST: ContextId = ContextId(0);
const SECOND: ContextId = ContextId(0x101);
const OUT_OF_MEMORY: u32 = CudaError::OUT_OF_MEMORY.code();

/// Room for two contexts, or more of everything that is smaller.
const BOUND: u64 = 2 << 20;

/// An image of this size counts twice, with a kilobyte beside it.
const IMAGE_BYTES: usize = 100 << 10;

/// How to make and to end the thing of a number, and how many there is room for.
struct Kind {
    name: &'static str,
    make: Box<dyn Fn(u32) -> Command<'static>>,
    end: fn(u32) -> Command<'static>,
    fitting: u64,
}

fn kinds(context: ContextId) -> Vec<Kind> {
    let image: &'static [u8] = patterned(1, IMAGE_BYTES).leak();
    let hash = *blake3::hash(image).as_bytes();
    let load = move |number| Command::ModuleLoad {
        module: ModuleId(number),
        context,
        hash,
        image: ImageSource::Inline { bytes: Bytes(image) },
        options: vec![],
    };
    let graph =
        move |number| Command::GraphInstantiate { exec: ExecId(number), context, nodes: vec![empty()] };
    vec![
        Kind {
            name: "streams",
            make: Box::new(move |number| Command::StreamCreate {
                stream: StreamId(number),
                context,
                kind: 1,
                priority: 0,
            }),
            end: |number| Command::StreamDestroy { stream: StreamId(number) },
            fitting: BOUND / (64 << 10),
        },
        Kind {
            name: "events",
            make: Box::new(move |number| Command::EventCreate { event: EventId(number), context, flags: 0 }),
            end: |number| Command::EventDestroy { event: EventId(number) },
            fitting: BOUND / 1024,
        },
        Kind {
            name: "modules",
            make: Box::new(load),
            end: |number| Command::ModuleUnload { module: ModuleId(number) },
            fitting: BOUND / (2 * IMAGE_BYTES as u64 + 1024),
        },
        Kind {
            name: "graphs",
            make: Box::new(graph),
            end: |number| Command::GraphDestroy { exec: ExecId(number) },
            fitting: BOUND / (1024 + 512),
        },
    ]
}

/// The kinds of things that are in no context.
fn kinds_of_their_own() -> Vec<Kind> {
    vec![
        Kind {
            name: "contexts",
            make: Box::new(|number| Command::ContextCreate {
                context: ContextId(number),
                device: 0,
                flags: 0,
            }),
            end: |number| Command::ContextDestroy { context: ContextId(number) },
            fitting: 2,
        },
        Kind {
            name: "physical memory",
            make: Box::new(|number| Command::PhysicalCreate {
                handle: MemoryHandleId(number),
                device: 0,
                bytes: 0,
            }),
            end: |number| Command::PhysicalRelease { handle: MemoryHandleId(number) },
            fitting: BOUND / 1024,
        },
    ]
}

fn empty() -> GraphNode<'static> {
    GraphNode { op: Op::Empty {}, after: vec![], enabled: true }
}

fn bounded() -> Worker {
    Worker::start("unix", |config| {
        config.session.host_bytes_max = BOUND;
        config.session.image_cache = None;
    })
}

/// Makes things from `first` on until there is no room for one more. Returns how many there are.
fn fill(client: &mut Client, kind: &Kind, first: u32) -> u64 {
    for made in 0..=kind.fitting {
        match client.call(&(kind.make)(first + made as u32)).0.status {
            0 => {}
            status => {
                assert_eq!(status, OUT_OF_MEMORY, "{}", kind.name);
                return made;
            }
        }
    }
    panic!("more than {} {} were made", kind.fitting, kind.name)
}

fn status(client: &mut Client, command: &Command<'_>) -> u32 {
    client.call(command).0.status
}

#[test]
fn everything_has_its_price_and_gives_it_back() {
    let worker = bounded();
    let mut client = worker.attach();
    for kind in kinds(FIRST).into_iter().chain(kinds_of_their_own()) {
        // What the driver refuses to make costs nothing.
        for number in 0..10 {
            assert_ne!(status(&mut client, &(kind.make)(IMPOSSIBLE + number)), 0, "{}", kind.name);
        }
        assert_eq!(fill(&mut client, &kind, 1), kind.fitting, "{}", kind.name);
        client.must(&(kind.end)(1));
        assert_eq!(fill(&mut client, &kind, 1), 1, "{}: one went, so one fits", kind.name);
        for number in 1..=kind.fitting as u32 {
            client.must(&(kind.end)(number));
        }
    }
}

#[test]
fn what_the_driver_does_not_end_still_counts() {
    let worker = bounded();
    for kind in kinds(FIRST).into_iter().chain(kinds_of_their_own()) {
        let mut client = worker.attach();
        assert_eq!(fill(&mut client, &kind, STUBBORN), kind.fitting, "{}", kind.name);
        for number in 0..kind.fitting as u32 {
            assert_ne!(status(&mut client, &(kind.end)(STUBBORN + number)), 0, "{}", kind.name);
        }
        assert_eq!(fill(&mut client, &kind, 1), 0, "{}: there is no room", kind.name);
    }
    // A context that is not ended or emptied keeps what is in it.
    let stubborn = ContextId(STUBBORN);
    for kind in kinds(stubborn) {
        let mut client = worker.attach();
        assert_eq!(fill(&mut client, &kind, 1), kind.fitting, "{}", kind.name);
        assert_ne!(status(&mut client, &Command::ContextDestroy { context: stubborn }), 0);
        assert_ne!(status(&mut client, &Command::ContextReset { context: stubborn }), 0);
        assert_eq!(fill(&mut client, &kind, 10_000), 0, "{}: there is no room", kind.name);
    }
}

#[test]
fn a_context_that_ends_or_is_emptied_gives_back_what_was_in_it() {
    let worker = bounded();
    for end in [Command::ContextReset { context: SECOND }, Command::ContextDestroy { context: SECOND }] {
        let mut client = worker.attach();
        client.must(&Command::ContextCreate { context: SECOND, device: 0, flags: 0 });
        let keeps_context = matches!(end, Command::ContextReset { .. });
        // A stream of another context, which stays.
        client.must(&(kinds(FIRST)[0].make)(9999));
        for kind in kinds(SECOND) {
            assert!(fill(&mut client, &kind, 1) > 0, "{}", kind.name);
            client.must(&end);
            if !keeps_context {
                client.must(&Command::ContextCreate { context: SECOND, device: 0, flags: 0 });
            }
        }
        client.must(&end);
        let streams = fill(&mut client, &kinds(FIRST)[0], 1);
        let context_streams = (1 << 20) / (64 << 10);
        let room = BOUND / (64 << 10) - 1;
        assert_eq!(streams, if keeps_context { room - context_streams } else { room });
    }
}

#[test]
fn a_graph_is_counted_by_the_nodes_it_has_now() {
    let worker = bounded();
    let mut client = worker.attach();
    let data: &'static [u8] = patterned(2, 512 << 10).leak();
    let half = || {
        let (target, shape) = (Plane::line(0), Shape::line(data.len() as u64));
        Op::CopyIn { target, shape, data: HostData::Inline { bytes: Bytes(data) } }
    };
    let large = |count| (0..count).map(|_| GraphNode { op: half(), after: vec![], enabled: true }).collect();
    let exec = ExecId(1);
    let update = |nodes: Vec<GraphNode<'static>>| Command::GraphUpdate { exec, nodes };
    let set = |index| Command::GraphSetNode { exec, index, op: half(), enabled: true };
    client.must(&Command::GraphInstantiate {
        exec,
        context: FIRST,
        nodes: (0..4).map(|_| empty()).collect(),
    });
    for index in [0, 1, 2, 0, 1, 2] {
        client.must(&set(index));
    }
    assert_eq!(
        status(&mut client, &set(3)),
        OUT_OF_MEMORY,
        "three halves of a megabyte, and what is beside them"
    );
    assert_eq!(status(&mut client, &update(large(4))), OUT_OF_MEMORY);
    client.must(&update(large(3)));
    // What the driver refuses changes nothing: there would be room for as much again.
    assert_ne!(status(&mut client, &update(vec![])), 0);
    assert_eq!(
        status(&mut client, &Command::GraphInstantiate { exec: ExecId(2), context: FIRST, nodes: large(1) }),
        OUT_OF_MEMORY
    );
    client.must(&update(large(1)));
    client.must(&Command::GraphInstantiate { exec: ExecId(2), context: FIRST, nodes: large(2) });
}

#[test]
fn every_way_to_allocate_spends_credit() {
    let worker = Worker::start("unix", |_| {});
    let mut client = worker.attach();
    client.must(&Command::StreamCreate { stream: StreamId(1), context: FIRST, kind: 1, priority: 0 });
    assert_eq!(client.welcome.memory_credit_bytes, 1000);
    let base = client.base;
    let allocations = [
        Command::MemoryAllocate { context: FIRST, address: base, bytes: 600 },
        Command::PhysicalCreate { handle: MemoryHandleId(1), device: 0, bytes: 600 },
        // The toy refuses it, which makes no difference: the driver may have taken the memory all the same.
        Command::Enqueue { stream: StreamId(1), op: Op::Allocate { address: base, bytes: 600 } },
    ];
    // Half of what was granted is used up, so as much again is granted.
    let mut credit = 1000;
    for allocation in allocations {
        client.one_way(&allocation);
        credit -= 600;
        let given = client.call(&Command::MemoryInfo { device: 0 }).0.memory_credit_bytes;
        assert_eq!(given, if credit < 500 { 1000 } else { 0 }, "{}", allocation.name());
        credit += given;
    }
    assert_eq!(credit, 1200);
}

#[test]
fn an_error_belongs_to_the_context_of_what_it_is_about() {
    let worker = Worker::start("unix", |_| {});
    let mut client = worker.attach();
    let deferred = |client: &mut Client, command: &Command<'_>| {
        client.one_way(command);
        let (header, _) = client.call(&Command::MemoryInfo { device: 0 });
        assert_ne!(header.deferred, 0, "{} failed", command.name());
        ContextId(header.deferred_context)
    };
    let kernel = KernelRef { module: ModuleId(5), index: 0 };
    let node = Command::GraphSetNode { exec: ExecId(5), index: NODES_MAX, op: Op::Empty {}, enabled: true };
    // In the order of `kinds`, each fails on the toy.
    let failing = [
        Command::Enqueue { stream: StreamId(5), op: Op::Free { address: 1 } },
        Command::EventQuery { event: EventId(5) },
        Command::KernelSetAttribute { kernel, attribute: 0, value: 0 },
        node,
    ];
    client.must(&Command::ContextCreate { context: SECOND, device: 0, flags: 0 });
    for (kind, failing) in kinds(SECOND).iter().zip(&failing) {
        assert_eq!(deferred(&mut client, failing), FIRST, "{}: there is none", kind.name);
        assert_eq!(
            deferred(&mut client, &(kind.make)(IMPOSSIBLE)),
            SECOND,
            "{}: the command says it",
            kind.name
        );
        client.must(&(kind.make)(5));
        assert_eq!(deferred(&mut client, failing), SECOND, "{}", kind.name);
        client.must(&(kind.end)(5));
        assert_eq!(deferred(&mut client, failing), FIRST, "{}: it is gone", kind.name);
        client.must(&(kind.make)(5));
        // A thing of the driver that it refuses to end is still in its context.
        client.must(&(kind.make)(STUBBORN));
        assert_eq!(deferred(&mut client, &(kind.end)(STUBBORN)), SECOND, "{}", kind.name);
    }
    client.must(&Command::ContextReset { context: SECOND });
    for (kind, failing) in kinds(SECOND).iter().zip(&failing) {
        assert_eq!(deferred(&mut client, failing), FIRST, "{}: gone with its context", kind.name);
    }
}

#[test]
fn an_image_is_what_its_hash_says_and_not_too_large() {
    let worker = bounded();
    let mut client = worker.attach();
    let image = patterned(3, 1000);
    let hash = *blake3::hash(&image).as_bytes();
    let load =
        |image| Command::ModuleLoad { module: ModuleId(1), context: FIRST, hash, image, options: vec![] };
    let huge = ImageSource::Pushed { transfer: TransferId(1), bytes: (1 << 30) + 1 };
    // Refused before a byte of it came.
    assert_eq!(status(&mut client, &load(huge)), CudaError::INVALID_VALUE.code());
    let asked = client.ask(&load(ImageSource::Pushed { transfer: TransferId(2), bytes: 1000 }));
    client.lanes.send(TransferId(2), 1000, &|_: u64, target: &mut [u8]| target.fill(7)).unwrap();
    let (header, _) = client.reply();
    assert_eq!((header.call, header.status), (asked, CudaError::INVALID_IMAGE.code()));
    // Without a cache, no image is known.
    client.must(&load(ImageSource::Inline { bytes: Bytes(&image) }));
    assert_eq!(status(&mut client, &load(ImageSource::Known {})), CudaError::NOT_FOUND.code());
    // An image counts against the bound whichever way it came.
    let large = patterned(4, BOUND as usize / 2);
    let hash = *blake3::hash(&large).as_bytes();
    let image = ImageSource::Inline { bytes: Bytes(&large) };
    let load = Command::ModuleLoad { module: ModuleId(2), context: FIRST, hash, image, options: vec![] };
    assert_eq!(status(&mut client, &load), OUT_OF_MEMORY);
}
