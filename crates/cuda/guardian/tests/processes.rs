//! Guardians as processes: killed in the middle, written by two, full, silent, and looked into.

mod support;

use cuda_driver::{ImageStore, StoreError};
use cuda_wire::ImageName;
use guardian::GuardianStore;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use support::{
    BLOCK, Memory, NAME, Plan, Process, SECRET, eventually, freeze, lost, occurrences, refused, thaw,
};

#[test]
fn guardian_process() {
    support::run_if_told();
}

fn start(plan: &Plan) -> (tempfile::TempDir, Process) {
    let directory = tempfile::tempdir().unwrap();
    let process = Process::start(&directory.path().join("g"), plan);
    (directory, process)
}

#[test]
fn a_cut_comes_back_as_it_was_and_survives_its_writer() {
    let (_directory, process) = start(&Plan::new());
    let store = process.store();
    let mut memory = Memory::new(200, 1);
    let image = store.open(NAME, &SECRET, 1, "").unwrap();
    assert_eq!(image.committed(), Ok(0));
    let committed = memory.cut(&*image, 1).unwrap();
    assert_eq!(committed.level, 1);
    assert!(committed.image_bytes >= 200 * BLOCK as u64);
    memory.bytes[3 * BLOCK + 7] = 99;
    memory.cut(&*image, 2).unwrap();
    memory.check(&*image, 2);
    assert_eq!(image.image(2).unwrap().events()[0].age_ns, 1234);
    assert!(image.image(1).is_ok(), "the client may not have heard of cut 2");
    // The session is lost in the middle of the next cut.
    image.begin(2, 3).unwrap();
    // A reader holds the cut that it has listed, until the guardian hears that its connection has ended.
    eventually("the reader of cut 1 is gone", || image.image(1).is_err());
    assert!(refused(image.image(1)).contains("cut 1 cannot be read"));
    let (entry, bytes) = memory.entry(0);
    image.put(&entry, bytes).unwrap();
    drop(image);
    let image = store.open(NAME, &SECRET, 2, "").unwrap();
    assert_eq!(image.committed(), Ok(2));
    memory.check(&*image, 2);
    // After the restore only what changed is sent.
    memory.bytes[199 * BLOCK] = 5;
    memory.cut(&*image, 3).unwrap();
    memory.check(&*image, 3);
    image.end().unwrap();
    let again = store.open(NAME, &SECRET, 1, "").unwrap();
    assert_eq!(again.committed(), Ok(0), "an image that has ended is gone, with its incarnations");
}

#[test]
fn blocks_are_read_in_any_order_and_by_several_threads() {
    let (_directory, process) = start(&Plan::new());
    let image = process.store().open(NAME, &SECRET, 1, "").unwrap();
    let mut memory = Memory::new(500, 0);
    for index in 0..500 {
        memory.bytes[index * BLOCK..][..8].copy_from_slice(&(index as u64).to_le_bytes());
    }
    memory.cut(&*image, 1).unwrap();
    let kept = image.image(1).unwrap();
    let list = kept.list();
    let check = |index: usize| {
        let bytes = kept.read(list[index].block).unwrap();
        assert_eq!(bytes[..8], (index as u64).to_le_bytes(), "block {index}");
    };
    (0..500).rev().step_by(7).for_each(check);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let check = &check;
            scope.spawn(move || (thread..500).step_by(4).for_each(check));
        }
    });
    // As a driver with several threads restores: each takes the next portion.
    for portion in [32, 64, 100, 128] {
        let next = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    loop {
                        let first = next.fetch_add(portion, std::sync::atomic::Ordering::Relaxed);
                        if first >= 500 {
                            return;
                        }
                        let blocks: Vec<_> =
                            list[first..(first + portion).min(500)].iter().map(|entry| entry.block).collect();
                        let mut bytes = vec![0; blocks.len() * BLOCK];
                        kept.read_into(&blocks, &mut bytes).unwrap();
                        for (index, bytes) in bytes.chunks(BLOCK).enumerate() {
                            assert_eq!(
                                bytes[..8],
                                ((first + index) as u64).to_le_bytes(),
                                "block {}",
                                first + index
                            );
                        }
                    }
                });
            }
        });
    }
    [499, 0, 499, 250, 251, 0].into_iter().for_each(check);
    let absent = snapshot::Block { address: 1, bytes: 5 };
    assert!(kept.read(absent).is_err());
    let two = [list[3].block, list[4].block];
    assert!(kept.read_into(&two, &mut vec![0; 2 * BLOCK - 1]).is_err(), "room for less");
    assert!(kept.read_into(&two, &mut vec![0; 2 * BLOCK + 1]).is_err(), "room for more");
    assert!(kept.read_into(&[two[0], absent], &mut vec![0; BLOCK + 5]).is_err());
    (0..500).for_each(check);
}

#[test]
fn readers_of_a_guardian_that_is_killed_all_end() {
    let (_directory, mut process) = start(&Plan::new());
    let image = process.store().open(NAME, &SECRET, 1, "").unwrap();
    let mut memory = Memory::new(500, 3);
    memory.cut(&*image, 1).unwrap();
    let kept = image.image(1).unwrap();
    let blocks: Vec<_> = kept.list().iter().map(|entry| entry.block).collect();
    // More threads than lines: some wait for a line when the last one is lost.
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let mut bytes = vec![0; blocks.len() * BLOCK];
                while kept.read_into(&blocks, &mut bytes).is_ok() {}
            });
        }
        std::thread::sleep(Duration::from_millis(200));
        process.child.kill().unwrap();
    });
    assert!(kept.read(blocks[0]).is_err());
}

#[test]
fn a_guardian_that_is_killed_in_a_commit_is_lost_at_once_and_the_next_begins_anew() {
    let (directory, mut process) = start(&Plan::new());
    let store = process.store();
    let image = store.open(NAME, &SECRET, 1, "").unwrap();
    let mut memory = Memory::new(64, 1);
    memory.cut(&*image, 1).unwrap();
    memory.bytes.fill(2);
    let taken = memory.take(2);
    memory.send(&*image, &taken).unwrap();
    process.kill();
    lost(image.commit(2, &taken));
    // Whatever comes next is lost at once as well.
    lost(image.committed());
    let (entry, bytes) = memory.entry(0);
    assert!(image.put(&entry, bytes).is_err());
    lost(image.image(1));
    lost(store.open(NAME, &SECRET, 2, ""));
    lost(GuardianStore::connect(&directory.path().join("g")));
    memory.settle(2, false);

    let _next = Process::start(&directory.path().join("g"), &Plan::new());
    let image =
        store.open(NAME, &SECRET, 2, "").expect("the store finds the next guardian at the same socket");
    assert_eq!(image.committed(), Ok(0));
    assert!(refused(image.begin(1, 2)).contains("send a whole image"));
    let mut memory = Memory::new(64, 2);
    memory.cut(&*image, 3).unwrap();
    memory.check(&*image, 3);
}

#[test]
fn a_guardian_that_is_silent_is_lost_after_the_patience() {
    let (_directory, process) = start(&Plan::new());
    let store = process.store().with_patience(Duration::from_millis(300));
    let image = store.open(NAME, &SECRET, 1, "").unwrap();
    freeze(&process);
    assert!(lost(image.committed()).contains("does not answer"));
    let other = store.open(NAME, &SECRET, 1, "");
    assert!(matches!(other, Err(StoreError::Lost(_))));
    thaw(&process);
    // A connection that has given up is not used again: an answer that comes late would be taken for another's.
    lost(image.committed());
    assert_eq!(store.open(NAME, &SECRET, 1, "").unwrap().committed(), Ok(0));
}

#[test]
fn a_writer_that_dies_at_any_byte_leaves_the_committed_image() {
    let (_directory, process) = start(&Plan::new());
    let mut memory = Memory::new(2, 1);
    let image = process.store().open(NAME, &SECRET, 1, "").unwrap();
    memory.cut(&*image, 1).unwrap();
    drop(image);
    // What a store sends for one cut, by its own code, caught on the way.
    let whole = caught_cut(&process, &memory);
    assert!(whole.len() > 2 * BLOCK);
    let interesting = (0..140).chain(whole.len() - 200..whole.len());
    let spread = (140..whole.len() - 200).step_by(1511);
    for (count, cut) in interesting.chain(spread).enumerate() {
        let mut socket = UnixStream::connect(&process.socket).unwrap();
        // The guardian may have refused this writer, which is older than those below, before all of it was written.
        let _ = socket.write_all(&whole[..cut]);
        drop(socket);
        if count % 20 == 0 {
            let image = process.store().open(NAME, &SECRET, 100 + count as u64, "").unwrap();
            assert_eq!(image.committed(), Ok(1), "cut off at byte {cut} of {}", whole.len());
            memory.check(&*image, 1);
        }
    }
}

/// The bytes of a connection that opens the image and sends another cut of two blocks, all but its last byte.
fn caught_cut(process: &Process, memory: &Memory) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("between");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let socket = process.socket.clone();
    let between = std::thread::spawn(move || {
        let mut sent = Vec::new();
        // The first connection is `GuardianStore::connect`'s.
        for _ in 0..2 {
            let (near, _) = listener.accept().unwrap();
            let far = UnixStream::connect(&socket).unwrap();
            sent = carry(near, far);
        }
        sent
    });
    let store = GuardianStore::connect(&path).unwrap();
    let image = store.open(NAME, &SECRET, 1, "").unwrap();
    image.begin(1, 2).unwrap();
    for index in 0..2 {
        let (entry, bytes) = memory.entry(index);
        image.put(&entry, bytes).unwrap();
    }
    // Not the right seal: here it must not be committed, either.
    let delta =
        snapshot::Delta { base: 1, number: 2, dirty: vec![], dead: vec![], seal: support::seal_of(&[]) };
    refused(image.commit(2, &support::taken(delta)));
    drop(image);
    let mut sent = between.join().unwrap();
    sent.pop();
    sent
}

/// Carries bytes both ways until the near end closes; what it sent comes back.
fn carry(mut near: UnixStream, mut far: UnixStream) -> Vec<u8> {
    let (mut answers, mut back) = (far.try_clone().unwrap(), near.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut answers, &mut back);
    });
    let (mut sent, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match near.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                sent.extend_from_slice(&buffer[..count]);
                far.write_all(&buffer[..count]).unwrap();
            }
        }
    }
    let _ = far.shutdown(std::net::Shutdown::Both);
    sent
}

#[test]
fn a_higher_incarnation_shuts_out_a_writer_in_the_middle_of_its_puts() {
    let (_directory, process) = start(&Plan::new());
    let store = process.store();
    let mut memory = Memory::new(100, 1);
    let old = store.open(NAME, &SECRET, 1, "").unwrap();
    memory.cut(&*old, 1).unwrap();
    let before = Memory::new(100, 1);
    memory.bytes.fill(2);
    let taken = memory.take(2);
    old.begin(1, 2).unwrap();
    let (entry, bytes) = memory.entry(0);
    old.put(&entry, bytes).unwrap();
    let new = store.open(NAME, &SECRET, 2, "").unwrap();
    // Late puts are refused, and the store hears so without a commit.
    eventually("a late put is refused", || old.put(&entry, bytes).is_err());
    assert!(refused(old.commit(2, &taken)).contains("another session writes this image"));
    assert!(refused(old.begin(1, 3)).contains("another session"));
    before.check(&*new, 1);
    assert!(refused(store.open(NAME, &SECRET, 1, "")).contains("incarnation 1 may not write"));
    // The old one may neither end the image nor leave it.
    assert!(refused(old.end()).contains("another session"));
    before.check(&*new, 1);
}

#[test]
fn a_block_that_was_changed_and_a_cut_that_is_not_whole_are_refused() {
    let (_directory, process) = start(&Plan::new());
    let image = process.store().open(NAME, &SECRET, 1, "").unwrap();
    let mut memory = Memory::new(10, 1);
    memory.cut(&*image, 1).unwrap();
    let before = Memory::new(10, 1);
    memory.bytes.fill(2);
    let taken = memory.take(2);
    memory.settle(2, false);
    image.begin(1, 2).unwrap();
    let (entry, bytes) = memory.entry(0);
    let mut flipped = bytes.to_vec();
    flipped[100] ^= 1;
    let _ = image.put(&entry, &flipped);
    assert!(refused(image.commit(2, &taken)).contains("changed on its way"));
    before.check(&*image, 1);
    // All but one block.
    image.begin(1, 3).unwrap();
    for index in 0..9 {
        let (entry, bytes) = memory.entry(index);
        image.put(&entry, bytes).unwrap();
    }
    assert!(refused(image.commit(3, &taken)).contains("not whole"));
    before.check(&*image, 1);
    // Given up, and then whole.
    image.begin(1, 4).unwrap();
    image.abandon(4).unwrap();
    assert!(refused(image.abandon(4)).contains("no delta"));
    memory.cut(&*image, 5).unwrap();
    memory.check(&*image, 5);
}

#[test]
fn a_full_guardian_says_so_and_keeps_what_it_has() {
    let (_directory, process) = start(&Plan { bytes_max: 4 << 20, ..Plan::new() });
    let store = process.store();
    assert_eq!(store.bytes_max(), 4 << 20);
    let image = store.open(NAME, &SECRET, 1, "").unwrap();
    assert!(image.bytes_max() < 4 << 20);
    let mut memory = Memory::new(20, 1);
    memory.cut(&*image, 1).unwrap();
    let before = Memory::new(20, 1);
    let other = store.open(ImageName { bytes: [1; 16] }, &SECRET, 1, "").unwrap();
    let mut large = Memory::new(50, 3);
    let words = refused(large.cut(&*other, 1));
    assert!(words.contains("guard memory") && words.contains("--guard-memory"), "{words}");
    before.check(&*image, 1);
    let mut small = Memory::new(10, 3);
    small.cut(&*other, 2).expect("the memory of the refused delta is free again");
    // An image with a new version of everything needs twice its memory for a moment.
    memory.bytes.resize(60 * BLOCK, 9);
    assert!(refused(memory.cut(&*image, 2)).contains("guard memory"));
    before.check(&*image, 1);
}

#[test]
fn an_image_without_a_writer_goes_after_its_time_and_with_its_lease() {
    let (_directory, process) = start(&Plan { keep_ms: 300, ..Plan::new() });
    let store = process.store();
    let image = store.open(NAME, &SECRET, 1, "").unwrap();
    Memory::new(4, 1).cut(&*image, 1).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(image.committed(), Ok(1), "it has a writer");
    image.leave().unwrap();
    eventually("the image goes", || {
        std::thread::sleep(Duration::from_millis(1500));
        store.open(NAME, &SECRET, 1, "").unwrap().committed() == Ok(0)
    });
    let leased = store.clone().for_lease("lease-1");
    let image = leased.open(NAME, &SECRET, 9, "").unwrap();
    Memory::new(4, 1).cut(&*image, 1).unwrap();
    image.leave().unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(leased.open(NAME, &SECRET, 9, "").unwrap().committed(), Ok(1), "its lease has not ended");
    let census = store.census().unwrap();
    assert_eq!(census.leases, [("lease-1".to_owned(), census.used)], "images without a lease are not named");
    assert!(census.used > 4 * BLOCK as u64 && census.used < census.bytes_max, "{census:?}");
    store.end_lease("lease-1").unwrap();
    assert!(store.census().unwrap().leases.is_empty());
    assert_eq!(leased.open(NAME, &SECRET, 1, "").unwrap().committed(), Ok(0));
}

#[test]
fn what_an_image_held_is_gone_from_the_process_memory() {
    let (_directory, process) = start(&Plan::new());
    let store = process.store();
    let pid = process.child.id();
    let pattern = *b"a tenant's weights, 32 bytes hex";
    let fill = |memory: &mut Memory| {
        for (index, chunk) in memory.bytes.chunks_exact_mut(32).enumerate() {
            chunk.copy_from_slice(&pattern);
            chunk[31] = index as u8;
        }
    };
    let image = store.open(NAME, &SECRET, 1, "").unwrap();
    let mut memory = Memory::new(64, 0);
    fill(&mut memory);
    memory.cut(&*image, 1).unwrap();
    assert!(occurrences(pid, &pattern[..31]) >= 64 * BLOCK / 32, "the search finds what is there");
    // A cut that replaces everything, and one that dies half way.
    memory.bytes.fill(1);
    memory.cut(&*image, 2).unwrap();
    image.begin(2, 3).unwrap();
    assert_eq!(occurrences(pid, &pattern[..31]), 0, "blocks that were replaced");
    fill(&mut memory);
    for index in 0..20 {
        let (entry, bytes) = memory.entry(index);
        image.put(&entry, bytes).unwrap();
    }
    image.abandon(3).unwrap();
    assert_eq!(occurrences(pid, &pattern[..31]), 0, "a delta that was given up");
    memory.cut(&*image, 4).unwrap();
    memory.check(&*image, 4);
    assert!(occurrences(pid, &pattern[..31]) > 0);
    image.end().unwrap();
    eventually("the reader's connection ends", || occurrences(pid, &pattern[..31]) == 0);
    assert_eq!(occurrences(pid, &SECRET), 0, "the secret");
}

#[test]
fn a_stop_zeroes_everything_and_removes_the_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("g");
    let guardian = guardian::Guardian::start(&guardian::GuardianConfig::new(path.clone(), 64 << 20)).unwrap();
    let store = GuardianStore::connect(&path).unwrap();
    let image = store.open(NAME, &SECRET, 1, "").unwrap();
    Memory::new(16, 1).cut(&*image, 1).unwrap();
    guardian.stop();
    lost(image.committed());
    assert!(!path.exists());
    // A socket that an earlier guardian left is replaced; one that is in use is not.
    let first = guardian::Guardian::start(&guardian::GuardianConfig::new(path.clone(), 64 << 20)).unwrap();
    assert!(guardian::Guardian::start(&guardian::GuardianConfig::new(path, 64 << 20)).is_err());
    drop(first);
}

#[test]
fn strangers_and_garbage_change_nothing() {
    let (_directory, process) = start(&Plan::new());
    let store = process.store();
    let image = store.open(NAME, &SECRET, 1, "").unwrap();
    let mut memory = Memory::new(8, 1);
    memory.cut(&*image, 1).unwrap();
    let words = refused(store.open(NAME, &[1; 32], 9, ""));
    assert_eq!(words, "this guardian has no such image");
    let mut seed = 0x1234_5678_9abc_def0u64;
    for round in 0..200 {
        let mut socket = UnixStream::connect(&process.socket).unwrap();
        let garbage: Vec<u8> = (0..round * 7 % 500)
            .map(|_| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (seed >> 56) as u8
            })
            .collect();
        let _ = socket.write_all(&garbage);
    }
    memory.bytes[0] = 2;
    memory.cut(&*image, 2).unwrap();
    memory.check(&*image, 2);
}

/// Prints figures; asserts nothing about time.
#[test]
fn throughput_beside_a_bare_socket() {
    const BLOCKS: usize = 1024;
    let (_directory, process) = start(&Plan { bytes_max: 1 << 30, ..Plan::new() });
    let image = process.store().open(NAME, &SECRET, 1, "").unwrap();
    let mut memory = Memory::new(BLOCKS, 1);
    let taken = memory.take(1);
    let began = Instant::now();
    memory.settle(1, false);
    image.begin(0, 1).unwrap();
    for (index, entry) in taken.delta.dirty.iter().enumerate() {
        image.put(entry, &memory.bytes[index * BLOCK..(index + 1) * BLOCK]).unwrap();
    }
    image.commit(1, &taken).unwrap();
    let put = began.elapsed();
    let kept = image.image(1).unwrap();
    let began = Instant::now();
    for entry in kept.list() {
        assert_eq!(kept.read(entry.block).unwrap().len(), BLOCK);
    }
    let read = began.elapsed();
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let began = Instant::now();
    let reader = std::thread::spawn(move || {
        let mut block = vec![0; BLOCK];
        (0..BLOCKS).for_each(|_| far.read_exact(&mut block).unwrap());
    });
    memory.bytes.chunks(BLOCK).for_each(|block| near.write_all(block).unwrap());
    reader.join().unwrap();
    let bare = began.elapsed();
    let rate = |time: Duration| (BLOCKS * BLOCK) as f64 / time.as_secs_f64() / 1e9;
    println!(
        "put {:.2} GB/s, read {:.2} GB/s, bare socket {:.2} GB/s: put takes {:.2} times, read {:.2} times as long",
        rate(put),
        rate(read),
        rate(bare),
        put.as_secs_f64() / bare.as_secs_f64(),
        read.as_secs_f64() / bare.as_secs_f64(),
    );
}
