//! Copies by content, as clients see them: random copies whose blocks are partly there, and what hostile clients do.

mod support;

use cuda_wire::content::{BLOCK_BYTES, block_of, blocks_of};
use cuda_wire::*;
use cuda_worker::*;
use std::os::fd::AsFd;
use support::client::{Client, Told};
use support::toy::{Toy, ToyStatus};
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

const STREAM: StreamId = StreamId(1);
const CONTEXT: ContextId = ContextId(0);
const MEMORY: u64 = 12 << 20;

fn worker() -> Worker {
    // One set of 16 blocks: random copies soon throw each other's blocks out.
    Worker::start("tcp", |config| config.session.content_bytes_max = 16 << 20)
}

/// One that loses none of a few copies.
fn large_worker() -> Worker {
    Worker::start("tcp", |config| config.session.content_bytes_max = 64 << 20)
}

struct Naming {
    client: Client,
    key: [u8; 32],
    blocks: u64,
    transfers: u64,
}

impl Naming {
    fn attach(worker: &Worker) -> Self {
        let mut client = Client::attach_with(&worker.target, 2, |hello| hello.wish.content = true);
        let Told::ContentKept(key, blocks) = client.heard() else { panic!("it was not told of content") };
        client.one_way(&Command::StreamCreate { stream: STREAM, context: CONTEXT, kind: 1, priority: 0 });
        client.one_way(&Command::MemoryAllocate { context: CONTEXT, address: client.base, bytes: MEMORY });
        Self { client, key, blocks, transfers: 0 }
    }

    fn name(&self, block: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.key, block).as_bytes()
    }

    /// Puts a copy into the stream and waits until the worker wants its bytes.
    fn begin(&mut self, bytes: u64) -> TransferId {
        self.transfers += 1;
        let transfer = TransferId(self.transfers);
        let (target, data) = (Plane::line(self.client.base), HostData::Pulled { transfer });
        let op = Op::CopyIn { target, shape: Shape::line(bytes), data };
        self.client.one_way(&Command::Enqueue { stream: STREAM, op });
        assert_eq!(self.client.heard(), Told::Pull(transfer));
        transfer
    }

    /// Names blocks and hears which are lacking.
    fn ask(&self, transfer: TransferId, first: u32, names: Vec<[u8; 32]>) -> Vec<u32> {
        self.ask_and(transfer, first, names, &mut |_| {})
    }

    /// Names blocks, and sends what is lacking of `data` as the answers come.
    fn supply(&self, transfer: TransferId, first: u32, names: Vec<[u8; 32]>, data: &[u8]) -> Vec<u32> {
        self.ask_and(transfer, first, names, &mut |number| self.send(transfer, data, number))
    }

    fn ask_and(
        &self,
        transfer: TransferId,
        first: u32,
        names: Vec<[u8; 32]>,
        on_lacking: &mut dyn FnMut(u32),
    ) -> Vec<u32> {
        let end = first + names.len() as u32;
        self.client.say(&Notice::ContentNamed { transfer, first, names });
        self.hear(transfer, first, end, on_lacking)
    }

    /// Hears the answers for these blocks: in order, in one piece or several.
    fn hear(&self, transfer: TransferId, first: u32, end: u32, on_lacking: &mut dyn FnMut(u32)) -> Vec<u32> {
        let (mut answered, mut all) = (first, Vec::new());
        while answered < end {
            let told = self.client.heard();
            let Told::ContentLacks(of, at, count, lacking) = told else { panic!("{told:?}") };
            assert_eq!((of, at), (transfer, answered));
            assert!(count > 0 && at + count <= end, "{count} from {at}");
            answered += count;
            lacking.iter().copied().for_each(&mut *on_lacking);
            all.extend(lacking);
        }
        all
    }

    fn send(&self, transfer: TransferId, data: &[u8], number: u32) {
        let (start, length) = block_of(data.len() as u64, number).unwrap();
        let data = data.to_vec();
        let source = move |offset: u64, target: &mut [u8]| {
            target.copy_from_slice(&data[offset as usize..][..target.len()]);
        };
        self.client.lanes.send_part_later(transfer, start, length.into(), Box::new(source), Box::new(|_| {}));
    }

    fn memory(&mut self, bytes: u64) -> Vec<u8> {
        self.client.must(&Command::StreamSynchronize { stream: STREAM });
        let source = Plane::line(self.client.base);
        let read = Command::ReadBack { stream: STREAM, source, shape: Shape::line(bytes) };
        Blob::from_bytes(&self.client.must(&read)).unwrap().0
    }
}

/// Waits until the worker has kept so many blocks: it does that beside the program.
fn settle(worker: &Worker, blocks: u64) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while Naming::attach(worker).blocks < blocks {
        assert!(std::time::Instant::now() < until, "{blocks} blocks are not kept");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

/// A copy of blocks that are each one of twenty, so that some are there and others have gone since.
fn random_copy(state: &mut u64) -> Vec<u8> {
    let bytes = BLOCK_BYTES + random(state, MEMORY - BLOCK_BYTES + 1);
    let mut data = Vec::new();
    for number in 0..blocks_of(bytes) as u32 {
        let (_, length) = block_of(bytes, number).unwrap();
        let kind = random(state, 20);
        data.extend((0..u64::from(length)).map(|at| (at.wrapping_mul(kind * 2 + 1) >> 3) as u8 ^ kind as u8));
    }
    data
}

#[test]
fn whatever_is_there_or_has_gone_the_bytes_are_those_of_the_program() {
    let worker = worker();
    let mut state = 0x00c0_ffee_1234_5678;
    let (mut found, mut sent) = (0, 0);
    for _ in 0..6 {
        // Another session each time, as a second instance has.
        let mut naming = Naming::attach(&worker);
        for _ in 0..6 {
            let data = random_copy(&mut state);
            let bytes = data.len() as u64;
            let transfer = naming.begin(bytes);
            let mut first = 0;
            while u64::from(first) < blocks_of(bytes) {
                let count = (1 + random(&mut state, 5) as u32).min(blocks_of(bytes) as u32 - first);
                let named = (first..first + count).map(|number| {
                    let (start, length) = block_of(bytes, number).unwrap();
                    naming.name(&data[start as usize..][..length as usize])
                });
                let lacking = naming.supply(transfer, first, named.collect(), &data);
                found += count as usize - lacking.len();
                sent += lacking.len();
                first += count;
            }
            assert!(naming.memory(bytes) == data, "another byte came");
        }
    }
    assert!(found > 20 && sent > 20, "{found} found, {sent} sent");
}

#[test]
fn a_session_that_dies_between_question_and_use_leaves_the_next_one_right() {
    let worker = worker();
    let mut state = 77;
    for round in 0..4 {
        let mut naming = Naming::attach(&worker);
        let data = random_copy(&mut state);
        let transfer = naming.begin(data.len() as u64);
        let names = data.chunks(BLOCK_BYTES as usize).map(|block| naming.name(block)).collect();
        if round % 2 == 0 {
            // Half of what is lacking. Blocks behind it may be told of later, or not at all.
            naming.client.say(&Notice::ContentNamed { transfer, first: 0, names });
            let Told::ContentLacks(_, _, _, lacking) = naming.client.heard() else { panic!("no answer") };
            lacking.into_iter().step_by(2).for_each(|number| naming.send(transfer, &data, number));
        } else {
            naming.client.say(&Notice::ContentNamed { transfer, first: 0, names });
        }
        drop(naming);
        worker.end();
    }
    let mut naming = Naming::attach(&worker);
    let data = random_copy(&mut state);
    let transfer = naming.begin(data.len() as u64);
    let names = data.chunks(BLOCK_BYTES as usize).map(|block| naming.name(block)).collect();
    naming.supply(transfer, 0, names, &data);
    assert!(naming.memory(data.len() as u64) == data);
}

/// Threads of a client hash blocks of one copy side by side, and a GPU takes them in order.
#[test]
fn names_that_come_before_those_of_earlier_blocks_wait_for_them() {
    let worker = large_worker();
    let data: Vec<u8> = (0..12 * BLOCK_BYTES).map(|at| (at >> 17) as u8).collect();
    for is_known in [false, true] {
        let mut naming = Naming::attach(&worker);
        let names: Vec<_> = data.chunks(BLOCK_BYTES as usize).map(|block| naming.name(block)).collect();
        let transfer = naming.begin(data.len() as u64);
        for first in [8, 4, 0] {
            let names = names[first..first + 4].to_vec();
            naming.client.say(&Notice::ContentNamed { transfer, first: first as u32, names });
        }
        let lacking = naming.hear(transfer, 0, 12, &mut |number| naming.send(transfer, &data, number));
        assert!(!is_known || lacking.is_empty(), "{lacking:?} are there");
        assert!(naming.memory(data.len() as u64) == data, "another byte came");
        settle(&worker, 12);
    }
}

/// The client sends a block that is lacking when it hears of it, and blocks behind it may have no room until it has come.
#[test]
fn what_is_lacking_is_told_before_a_block_behind_it_waits() {
    let worker = large_worker();
    let data: Vec<u8> = (0..12 * BLOCK_BYTES).map(|at| (at >> 16) as u8 ^ 0x5a).collect();
    let mut naming = Naming::attach(&worker);
    // All but the first block are known.
    let known = &data[BLOCK_BYTES as usize..];
    let transfer = naming.begin(known.len() as u64);
    (0..11).for_each(|number| naming.send(transfer, known, number));
    assert!(naming.memory(known.len() as u64) == known);
    settle(&worker, 11);
    let names: Vec<_> = data.chunks(BLOCK_BYTES as usize).map(|block| naming.name(block)).collect();
    let transfer = naming.begin(data.len() as u64);
    assert_eq!(naming.supply(transfer, 0, names, &data), [0]);
    assert!(naming.memory(data.len() as u64) == data, "another byte came");
}

#[test]
fn names_that_overlap_end_the_session() {
    for second in [0, 1, 3] {
        let worker = worker();
        let mut naming = Naming::attach(&worker);
        let transfer = naming.begin(8 * BLOCK_BYTES);
        for first in [2, second] {
            naming.client.say(&Notice::ContentNamed { transfer, first, names: vec![[7; 32]; 3] });
        }
        assert_eq!(worker.end().kind, EndKind::Protocol, "{second}");
    }
}

/// A client that lies about names hurts itself: the worker names what it keeps by the bytes that came.
#[test]
fn bytes_under_a_wrong_name_are_not_found_under_it() {
    let worker = worker();
    let mut liar = Naming::attach(&worker);
    let (said, sent) = (vec![1; 2 << 20], vec![2; 2 << 20]);
    let transfer = liar.begin(2 << 20);
    let wrong = liar.name(&said[..1 << 20]);
    assert_eq!(liar.ask(transfer, 0, vec![wrong, wrong]), [0, 1]);
    [0, 1].into_iter().for_each(|number| liar.send(transfer, &sent, number));
    assert!(liar.memory(2 << 20) == sent);
    drop(liar);
    let until = std::time::Instant::now() + support::client::TIMEOUT;
    let mut next = loop {
        let next = Naming::attach(&worker);
        if next.blocks == 1 {
            break next;
        }
        assert!(std::time::Instant::now() < until, "{} blocks; both are the same one", next.blocks);
    };
    let transfer = next.begin(2 << 20);
    let right = next.name(&sent[..1 << 20]);
    assert_eq!(next.ask(transfer, 0, vec![wrong, right]), [0]);
    next.send(transfer, &sent, 0);
    assert!(next.memory(2 << 20) == sent);
}

#[test]
fn a_client_that_breaks_the_rules_ends_its_session_alone() {
    let worker = worker();
    let ends = |break_rule: &dyn Fn(&mut Naming)| {
        let mut naming = Naming::attach(&worker);
        break_rule(&mut naming);
        assert_eq!(worker.end().kind, EndKind::Protocol);
    };
    let name = [0; 32];
    ends(&|naming| {
        let transfer = naming.begin(2 << 20);
        naming.client.say(&Notice::ContentNamed { transfer, first: 1, names: vec![name; 2] });
    });
    ends(&|naming| {
        let transfer = naming.begin(2 << 20);
        naming.client.say(&Notice::ContentNamed { transfer, first: u32::MAX, names: vec![name; 2] });
    });
    ends(&|naming| {
        let transfer = naming.begin(2 << 20);
        naming.client.say(&Notice::ContentNamed { transfer, first: 0, names: vec![name; 65] });
    });
    // A block that was found, and its bytes as well.
    let mut first = Naming::attach(&worker);
    let data = vec![9; 1 << 20];
    let transfer = first.begin(1 << 20);
    let is_there = first.name(&data);
    first.ask(transfer, 0, vec![is_there]);
    first.send(transfer, &data, 0);
    assert!(first.memory(1 << 20) == data);
    let until = std::time::Instant::now() + support::client::TIMEOUT;
    while Naming::attach(&worker).blocks == 0 {
        assert!(std::time::Instant::now() < until);
    }
    drop(first);
    while worker.events.recv_timeout(std::time::Duration::from_millis(500)).is_ok() {}
    ends(&|naming| {
        let transfer = naming.begin(2 << 20);
        assert_eq!(naming.ask(transfer, 0, vec![is_there]), [0u32; 0]);
        naming.send(transfer, &vec![9; 2 << 20], 0);
    });
    // A client that did not wish for it, and one of a worker that keeps nothing.
    let plain = worker.attach();
    plain.say(&Notice::ContentNamed { transfer: TransferId(1), first: 0, names: vec![name] });
    assert_eq!(worker.end().kind, EndKind::Protocol);
}

#[test]
fn names_for_a_copy_that_is_over_are_answered() {
    let worker = worker();
    let naming = Naming::attach(&worker);
    assert_eq!(naming.ask(TransferId(99), 0, vec![[0; 32]]), [0u32; 0], "the client is not left waiting");
}

/// Loads a module by its hash alone. Says whether the worker had it.
fn load(naming: &mut Naming, number: u32, image: &[u8], source: ImageSource<'_>) -> bool {
    let hash = *blake3::hash(image).as_bytes();
    let module = ModuleId(number);
    let (header, _) = naming.client.call(&Command::ModuleLoad {
        module,
        context: CONTEXT,
        hash,
        image: source,
        options: vec![],
    });
    header.status == 0
}

/// Removes every image that the worker keeps on its disk. What it can still load, it has loaded before.
fn remove_images(worker: &Worker) {
    for tenant in std::fs::read_dir(worker.directory.path().join("images")).unwrap().flatten() {
        for file in std::fs::read_dir(tenant.path()).unwrap().flatten() {
            if !file.file_name().to_string_lossy().ends_with(".described") {
                std::fs::remove_file(file.path()).unwrap();
            }
        }
    }
}

#[test]
fn modules_of_the_last_program_are_loaded_before_the_next_one_asks() {
    let images: Vec<Vec<u8>> = (1..4).map(|seed| support::client::patterned(seed, 1000)).collect();
    for is_on in [true, false] {
        let worker = Worker::start("tcp", |config| config.session.modules_ahead = is_on);
        let attach = || {
            let client = Client::attach_with(&worker.target, 1, |hello| hello.wish.content = true);
            Naming { client, key: [0; 32], blocks: 0, transfers: 0 }
        };
        let mut first = attach();
        for (image, number) in images.iter().zip(5..) {
            assert!(load(&mut first, number, image, ImageSource::Inline { bytes: Bytes(image) }));
        }
        first.client.must(&Command::Goodbye {});
        worker.end();

        let mut second = attach();
        assert!(load(&mut second, 5, &images[0], ImageSource::Known {}));
        // The worker has nothing else to do now; that it has done it shows when the images are gone.
        std::thread::sleep(std::time::Duration::from_millis(300));
        remove_images(&worker);
        assert_eq!(load(&mut second, 6, &images[1], ImageSource::Known {}), is_on);
        // Another image under the name of the one that was prepared.
        assert!(load(&mut second, 7, &images[1], ImageSource::Inline { bytes: Bytes(&images[1]) }));
        second.client.must(&Command::Goodbye {});
        worker.end();
    }
}
