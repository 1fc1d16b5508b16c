//! Guardians of two boxes: fetches, second copies, certificates; images on disk.

mod support;

use cuda_driver::{ImageStore, KeptImage};
use guardian::GuardianStore;
use pool_auth::{Authority, Identity, Lifetime};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use support::{BLOCK, Memory, NAME, Plan, Process, SECRET, eventually, lost, occurrences, refused};

#[test]
fn guardian_process() {
    support::run_if_told();
}

fn listening() -> Plan {
    Plan { listens: true, ..Plan::new() }
}

#[test]
fn a_session_that_comes_to_another_box_brings_its_image_along() {
    let directory = tempfile::tempdir().unwrap();
    let first = Process::start(&directory.path().join("a"), &listening());
    let second = Process::start(&directory.path().join("b"), &listening());
    assert_eq!(first.store().address(), first.address);
    let old = first.store().open(NAME, &SECRET, 1, "").unwrap();
    let mut memory = Memory::new(150, 1);
    memory.cut(&*old, 1).unwrap();
    memory.bytes[BLOCK] = 3;
    memory.cut(&*old, 2).unwrap();
    // As a resumed session does: Guard opens an empty image, ImageRestore names where it is.
    let empty = second.store().open(NAME, &SECRET, 2, "").unwrap();
    assert_eq!(empty.committed(), Ok(0));
    let new = second.store().open(NAME, &SECRET, 2, &first.address).unwrap();
    assert_eq!(new.committed(), Ok(2));
    memory.check(&*new, 2);
    // The old writer was shut out before anything was read.
    assert!(refused(old.begin(2, 3)).contains("another session writes"));
    memory.bytes[0] = 4;
    memory.cut(&*new, 3).unwrap();
    // And back again: only what differs travels, and the later image counts.
    let back = first.store().open(NAME, &SECRET, 3, &second.address).unwrap();
    assert_eq!(back.committed(), Ok(3));
    memory.check(&*back, 3);
}

#[test]
fn an_image_of_another_box_is_read_beside_its_writer() {
    let directory = tempfile::tempdir().unwrap();
    let first = Process::start(&directory.path().join("a"), &listening());
    let second = Process::start(&directory.path().join("b"), &listening());
    let image = first.store().open(NAME, &SECRET, 1, "").unwrap();
    let mut memory = Memory::new(150, 1);
    memory.cut(&*image, 1).unwrap();
    let store = second.store();
    let blocks = store.read(NAME, &SECRET, 1, &first.address).unwrap();
    let before = memory.bytes.clone();
    // The writer goes on, twice: what was listed stays readable.
    for number in 2..4 {
        memory.bytes[number as usize * BLOCK] ^= 1;
        memory.cut(&*image, number).unwrap();
    }
    for entry in blocks.list() {
        let bytes = blocks.read(entry.block).unwrap();
        let at = (entry.block.address - blocks.list()[0].block.address) as usize;
        assert_eq!(bytes[..], before[at..at + bytes.len()]);
    }
    assert_eq!(blocks.list().len(), 150);
    assert_eq!(store.census().unwrap().used, 0, "nothing is kept here");
    let words = refused(store.read(NAME, &[9; 32], 3, &first.address));
    assert!(words.contains("no such image"), "{words}");
    let words = refused(store.read(NAME, &SECRET, 77, &first.address));
    assert!(words.contains("77"), "{words}");
}

#[test]
fn what_cannot_be_fetched_is_refused_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = Process::start(&directory.path().join("a"), &listening());
    let second = Process::start(&directory.path().join("b"), &listening());
    let image = first.store().open(NAME, &SECRET, 1, "").unwrap();
    Memory::new(10, 1).cut(&*image, 1).unwrap();
    let store = second.store();
    let wrong_secret = refused(store.open(NAME, &[9; 32], 2, &first.address));
    assert!(wrong_secret.contains("no such image"), "{wrong_secret}");
    let name = cuda_wire::ImageName { bytes: [9; 16] };
    let absent = refused(store.open(name, &SECRET, 2, &first.address));
    assert!(absent.contains("no such image"), "{absent}");
    let nonsense = refused(store.open(name, &SECRET, 2, "nonsense"));
    assert!(nonsense.contains("tls:HOST:PORT/NAME"), "{nonsense}");
    let tls = refused(store.open(name, &SECRET, 2, "tls:127.0.0.1:1"));
    assert!(tls.contains("cannot give the image"), "{tls}");
    let address = first.address.clone();
    first.kill();
    let gone = refused(store.open(name, &SECRET, 2, &address));
    assert!(gone.contains("cannot give the image"), "{gone}");
}

#[test]
fn a_second_copy_survives_its_box_and_the_peer_may_be_killed() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("b");
    let mut peer = Process::start(&socket, &listening());
    let plan = Plan { copy_to: Some(peer.address.clone()), ..listening() };
    let mut own = Process::start(&directory.path().join("a"), &plan);
    let image = own.store().open_image(NAME, &SECRET, 1, "").unwrap();
    let mut memory = Memory::new(100, 1);
    assert_eq!(memory.cut(&image, 1).unwrap().level, 1, "told at once");
    eventually("the copy is there", || image.copied() == Ok(1));
    assert_eq!(own.store().copy_at(), peer.address);
    for number in 2..30 {
        memory.bytes[number as usize * BLOCK] = 7;
        memory.cut(&image, number).unwrap();
    }
    eventually("the copy follows", || image.state().unwrap().copied == 29);
    // The peer dies: cuts go on at level 1. (A new peer would have another port; this one never comes back.)
    peer.kill();
    memory.bytes[5] = 9;
    assert_eq!(memory.cut(&image, 30).unwrap().level, 1);
    memory.check(&image, 30);
    assert_eq!(image.state().unwrap().copied, 29);
    drop(image);
    own.kill();
}

#[test]
fn the_box_is_lost_and_the_copy_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let peer = Process::start(&directory.path().join("b"), &listening());
    let plan = Plan { copy_to: Some(peer.address.clone()), copy_wait_ms: 60_000, ..listening() };
    let mut own = Process::start(&directory.path().join("a"), &plan);
    let image = own.store().open(NAME, &SECRET, 1, "").unwrap();
    let mut memory = Memory::new(40, 1);
    for number in 1..6 {
        memory.bytes[number as usize * BLOCK] = 7;
        assert_eq!(memory.cut(&*image, number).unwrap().level, 2, "the commit waits for the copy if told so");
    }
    own.kill();
    lost(image.committed());
    let gone = own.address.clone();
    let image =
        peer.store().open(NAME, &SECRET, 2, &gone).expect("its own copy is used, the lost one is not needed");
    assert_eq!(image.committed(), Ok(5));
    memory.check(&*image, 5);
}

#[test]
fn an_image_that_ends_ends_at_both_boxes_and_one_that_stops_leaves_its_copy() {
    let directory = tempfile::tempdir().unwrap();
    let peer = Process::start(&directory.path().join("b"), &listening());
    let plan = Plan { copy_to: Some(peer.address.clone()), copy_wait_ms: 60_000, ..listening() };
    let mut own = Process::start(&directory.path().join("a"), &plan);
    let pattern = b"what a program would rather keep";
    let mut memory = Memory::new(20, 0);
    memory.bytes.chunks_exact_mut(32).for_each(|chunk| chunk.copy_from_slice(pattern));
    let image = own.store().open(NAME, &SECRET, 1, "").unwrap();
    assert_eq!(memory.cut(&*image, 1).unwrap().level, 2);
    assert!(occurrences(peer.child.id(), pattern) > 0);
    image.end().unwrap();
    assert_eq!(occurrences(own.child.id(), pattern), 0);
    eventually("it ends at the peer", || occurrences(peer.child.id(), pattern) == 0);
    let mut memory = Memory::new(20, 3);
    let image = own.store().open(NAME, &SECRET, 1, "").unwrap();
    assert_eq!(memory.cut(&*image, 1).unwrap().level, 2);
    own.stop();
    let image = peer.store().open(NAME, &SECRET, 2, "").unwrap();
    memory.check(&*image, 1);
}

/// Certificates of two boxes and of a tenant, by one authority, and of a box by another.
fn certificates(directory: &Path) -> impl Fn(&str) -> PathBuf {
    let now_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
    let authority = Authority::make(now_ms).unwrap();
    let stranger = Authority::make(now_ms).unwrap();
    let issue = |folder: &str, authority: &Authority, trusted: &Authority, identity: &Identity| {
        let folder = directory.join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let life = Lifetime::starting(now_ms, Duration::from_secs(3600));
        let issued = authority.issue(identity, &[], life).unwrap();
        std::fs::write(folder.join("authority.pem"), trusted.certificate_pem()).unwrap();
        std::fs::write(folder.join("certificate.pem"), issued.certificate_pem).unwrap();
        std::fs::write(folder.join("key.pem"), issued.key_pem.reveal()).unwrap();
    };
    issue("one", &authority, &authority, &Identity::Box("one".to_owned()));
    issue("two", &authority, &authority, &Identity::Box("two".to_owned()));
    let tenant = Identity::User { tenant: "vision".to_owned(), user: "ada".to_owned() };
    issue("tenant", &authority, &authority, &tenant);
    issue("stranger", &stranger, &authority, &Identity::Box("stranger".to_owned()));
    let directory = directory.to_owned();
    move |folder| directory.join(folder)
}

#[test]
fn guardians_show_each_other_certificates_of_boxes() {
    let directory = tempfile::tempdir().unwrap();
    let of = certificates(directory.path());
    let start = |socket: &str, folder: &str, copy_to: Option<String>| {
        let plan = Plan { certificates: Some(of(folder)), copy_to, copy_wait_ms: 60_000, ..listening() };
        Process::start(&directory.path().join(socket), &plan)
    };
    let one = start("a", "one", None);
    assert!(
        one.address.starts_with("tls:127.0.0.1:") && one.address.ends_with("/one.box.dxpu"),
        "{}",
        one.address
    );
    let image = one.store().open(NAME, &SECRET, 1, "").unwrap();
    let mut memory = Memory::new(60, 1);
    memory.cut(&*image, 1).unwrap();
    for (socket, folder) in [("t", "tenant"), ("s", "stranger")] {
        let process = start(socket, folder, None);
        let words = refused(process.store().open(NAME, &SECRET, 2, &one.address));
        assert!(words.contains("cannot give the image"), "{words}");
    }
    memory.bytes[0] = 2;
    memory.cut(&*image, 2).expect("none of them has shut the writer out");
    let two = start("b", "two", Some(one.address.clone()));
    // Another name than the one in its certificate.
    let renamed = one.address.replace("/one.", "/two.");
    assert!(refused(two.store().open(NAME, &SECRET, 2, &renamed)).contains("cannot give the image"));
    let moved = two.store().open(NAME, &SECRET, 2, &one.address).unwrap();
    memory.check(&*moved, 2);
    // And a second copy over the same way.
    memory.bytes[1] = 2;
    assert_eq!(memory.cut(&*moved, 3).unwrap().level, 2);
}

#[test]
fn a_suspended_image_is_on_disk_encrypted_and_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("parked");
    let plan = Plan { disk: Some(disk.clone()), ..Plan::new() };
    let mut process = Process::start(&directory.path().join("g"), &plan);
    let pattern = b"what a program would rather keep";
    let mut memory = Memory::new(30, 0);
    memory.bytes.chunks_exact_mut(32).for_each(|chunk| chunk.copy_from_slice(pattern));
    let image = process.store().open_image(NAME, &SECRET, 4, "").unwrap();
    memory.cut(&image, 7).unwrap();
    image.park().unwrap();
    assert_eq!(occurrences(process.child.id(), pattern), 0, "its memory is given back");
    let files = || std::fs::read_dir(&disk).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let [file] = &files()[..] else { panic!("one file") };
    let bytes = std::fs::read(file).unwrap();
    assert!(bytes.len() > 30 * BLOCK && !bytes.windows(32).any(|window| window == pattern));
    // It outlives the guardian.
    process.kill();
    let process = Process::start(&directory.path().join("g"), &plan);
    assert!(refused(process.store().open(NAME, &SECRET, 3, "")).contains("incarnation 3 may not write"));
    let image = process.store().open(NAME, &SECRET, 5, "").unwrap();
    assert_eq!(image.committed(), Ok(7));
    memory.check(&*image, 7);
    assert!(files().is_empty(), "what is in memory is not on disk");
    memory.bytes[0] = 1;
    memory.cut(&*image, 8).unwrap();
    image.end().unwrap();
    assert!(files().is_empty());
}

#[test]
fn a_damaged_file_is_refused_and_a_lease_that_ends_removes_its_files() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("parked");
    let process =
        Process::start(&directory.path().join("g"), &Plan { disk: Some(disk.clone()), ..Plan::new() });
    let store: GuardianStore = process.store().for_lease("lease-9");
    let park = || {
        let image = store.open_image(NAME, &SECRET, 1, "").unwrap();
        Memory::new(8, 1).cut(&image, 1).unwrap();
        image.park().unwrap();
        std::fs::read_dir(&disk).unwrap().next().unwrap().unwrap().path()
    };
    let file = park();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let words = refused(store.open(NAME, &SECRET, 2, ""));
    assert!(words.contains("cannot be read back") && words.contains("changed or cut off"), "{words}");
    store.end_lease("another").unwrap();
    assert!(file.exists());
    store.end_lease("lease-9").unwrap();
    assert!(!file.exists());
    assert_eq!(store.open(NAME, &SECRET, 1, "").unwrap().committed(), Ok(0));
}

#[test]
fn a_disk_that_takes_nothing_leaves_the_image_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("parked");
    let process =
        Process::start(&directory.path().join("g"), &Plan { disk: Some(disk.clone()), ..Plan::new() });
    let store = process.store();
    let image = store.open_image(NAME, &SECRET, 1, "").unwrap();
    let mut memory = Memory::new(8, 1);
    memory.cut(&image, 1).unwrap();
    std::fs::remove_dir_all(&disk).unwrap();
    let words = refused(image.park());
    assert!(words.contains("stays in memory"), "{words}");
    let image = store.open(NAME, &SECRET, 2, "").unwrap();
    memory.check(&*image, 1);
    // A guardian without a directory.
    let none = Process::start(&directory.path().join("n"), &Plan::new());
    let image = none.store().open_image(NAME, &SECRET, 1, "").unwrap();
    memory = Memory::new(8, 1);
    memory.cut(&image, 1).unwrap();
    assert!(refused(image.park()).contains("stays in memory"));
}

/// As a driver does that has many blocks: each road has a connection of its own.
#[test]
fn blocks_come_over_several_connections_and_a_bad_one_spoils_only_its_cut() {
    let directory = tempfile::tempdir().unwrap();
    let guardian = Process::start(&directory.path().join("a"), &Plan::new());
    let image = guardian.store().open(NAME, &SECRET, 1, "").unwrap();
    assert!(image.roads() > 2);
    let mut memory = Memory::new(150, 1);
    for number in 1..=4 {
        memory.bytes.iter_mut().step_by(BLOCK).for_each(|byte| *byte = number as u8);
        let taken = memory.take(number);
        image.begin(taken.delta.base, number).unwrap();
        for (index, entry) in taken.delta.dirty.iter().enumerate() {
            let mut bytes = memory.entry(index).1.to_vec();
            // One block of the second cut is another than its digest says, on a helper's road.
            bytes[7] ^= u8::from(number == 2 && index == 1);
            // The commit says why.
            let _ = image.put_over(index % image.roads(), entry, &bytes);
        }
        let committed = image.commit(number, &taken);
        memory.settle(number, committed.is_ok());
        match number {
            2 => assert!(!refused(committed).is_empty()),
            _ => memory.check(&*image, committed.map(|_| number).unwrap()),
        }
        if number == 2 {
            assert_eq!(image.committed(), Ok(1));
        }
    }
}

#[test]
fn an_image_goes_ahead_of_its_session_and_only_what_changed_follows() {
    let directory = tempfile::tempdir().unwrap();
    let first = Process::start(&directory.path().join("a"), &listening());
    let second = Process::start(&directory.path().join("b"), &listening());
    let image = first.store().open(NAME, &SECRET, 1, "").unwrap();
    let mut memory = Memory::new(600, 1);
    memory.cut(&*image, 1).unwrap();
    second.store().fetch(NAME, &SECRET, 1, &first.address).unwrap();
    // Its writer goes on where it is, and the image that went ahead can be brought up to date.
    memory.bytes[BLOCK] = 3;
    memory.cut(&*image, 2).unwrap();
    second.store().fetch(NAME, &SECRET, 1, &first.address).unwrap();
    memory.bytes[0] = 4;
    memory.cut(&*image, 3).unwrap();
    // Where a session writes it nothing is fetched: that would shut the session out.
    assert!(refused(first.store().fetch(NAME, &SECRET, 1, &second.address)).contains("writes it"));
    memory.bytes[2 * BLOCK] = 5;
    memory.cut(&*image, 4).unwrap();
    // The session comes: what went ahead is there, the rest follows.
    let empty = second.store().open(NAME, &SECRET, 2, "").unwrap();
    assert_eq!(empty.committed(), Ok(2));
    let here = second.store().open(NAME, &SECRET, 2, &first.address).unwrap();
    assert_eq!(here.committed(), Ok(4));
    memory.check(&*here, 4);
}
