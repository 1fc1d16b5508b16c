//! Images of suspended programs go to disk by themselves, come back, and go with their leases.

mod support;

use cuda_driver::ImageStore;
use guardian::GuardianStore;
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::{BLOCK, Memory, NAME, Plan, Process, SECRET, eventually, occurrences, refused};

const LEASE: &str = "l-00c0ffee00c0ffee";
const PATTERN: &[u8; 32] = b"what a program would rather keep";

#[test]
fn guardian_process() {
    support::run_if_told();
}

fn plan(disk: &Path, park_after_ms: u64) -> Plan {
    Plan { disk: Some(disk.to_owned()), park_after_ms, ..Plan::new() }
}

fn files(disk: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(disk).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// An image of a lease whose session has left, as that of a suspended program does.
fn suspend(store: &GuardianStore, name: cuda_wire::ImageName, blocks: usize) -> Memory {
    let mut memory = Memory::new(blocks, 0);
    memory.bytes.chunks_exact_mut(32).for_each(|chunk| chunk.copy_from_slice(PATTERN));
    let image = store.open(name, &SECRET, 4, "").unwrap();
    memory.cut(&*image, 7).unwrap();
    image.leave().unwrap();
    memory
}

#[test]
fn a_suspended_image_goes_to_disk_after_a_while_and_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, disk) = (directory.path().join("g"), directory.path().join("parked"));
    let process = Process::start(&socket, &plan(&disk, 100));
    let store = process.store().for_lease(LEASE);
    let memory = suspend(&store, NAME, 30);
    eventually("it is on disk", || store.census().unwrap().used == 0);
    assert_eq!(
        store.census().unwrap().leases,
        [(LEASE.to_owned(), 0)],
        "the box must hear of the lease's end"
    );
    assert_eq!(occurrences(process.child.id(), PATTERN), 0, "its memory is given back");
    let [file] = &files(&disk)[..] else { panic!("one file") };
    let bytes = std::fs::read(file).unwrap();
    assert!(bytes.len() > 30 * BLOCK && !bytes.windows(32).any(|window| window == PATTERN));
    let image = store.open(NAME, &SECRET, 5, "").unwrap();
    memory.check(&*image, 7);
    assert!(files(&disk).is_empty(), "what is in memory is not on disk");
}

#[test]
fn an_image_whose_session_was_lost_stays_in_memory_with_the_cut_before_the_last_one() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, disk) = (directory.path().join("g"), directory.path().join("parked"));
    let process = Process::start(&socket, &plan(&disk, 100));
    let store = process.store().for_lease(LEASE);
    let image = store.open(NAME, &SECRET, 4, "").unwrap();
    let mut memory = Memory::new(30, 0);
    memory.cut(&*image, 7).unwrap();
    let before = memory.bytes.clone();
    memory.bytes.fill(9);
    memory.cut(&*image, 8).unwrap();
    drop(image);
    // The last commit may never have reached the program.
    std::thread::sleep(Duration::from_secs(2));
    assert!(files(&disk).is_empty() && store.census().unwrap().used > 0);
    memory.bytes = before;
    let image = store.open(NAME, &SECRET, 5, "").unwrap();
    memory.check(&*image, 7);
}

#[test]
fn a_guardian_that_was_killed_knows_whose_files_it_has_and_nothing_stays_behind() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, disk) = (directory.path().join("g"), directory.path().join("parked"));
    let mut process = Process::start(&socket, &plan(&disk, 0));
    suspend(&process.store().for_lease(LEASE), NAME, 8);
    eventually("it is on disk", || files(&disk).len() == 1 && process.store().census().unwrap().used == 0);
    process.kill();
    // As a guardian leaves it that is killed while it writes.
    std::fs::write(disk.join(".unfinished-half"), PATTERN).unwrap();
    let process = Process::start(&socket, &plan(&disk, 0));
    assert_eq!(files(&disk).len(), 1, "half a file is of no use");
    let store = process.store();
    assert_eq!(store.census().unwrap().leases, [(LEASE.to_owned(), 0)]);
    store.end_lease(LEASE).unwrap();
    assert!(files(&disk).is_empty());
    assert_eq!(store.open(NAME, &SECRET, 5, "").unwrap().committed(), Ok(0));
}

#[test]
fn images_without_a_lease_or_with_a_writer_stay_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("parked");
    let process = Process::start(&directory.path().join("g"), &plan(&disk, 0));
    suspend(&process.store(), NAME, 4);
    let written = cuda_wire::ImageName { bytes: [3; 16] };
    let image = process.store().for_lease(LEASE).open(written, &SECRET, 1, "").unwrap();
    Memory::new(4, 1).cut(&*image, 1).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert!(files(&disk).is_empty());
}

/// One image fits into the guardian's memory, two do not.
const BLOCKS: usize = 60;
const SHORT: u64 = 6 << 20;

fn other() -> cuda_wire::ImageName {
    cuda_wire::ImageName { bytes: [9; 16] }
}

#[test]
fn short_memory_sends_suspended_images_to_disk_and_the_next_cut_fits() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("parked");
    let short = Plan { bytes_max: SHORT, ..plan(&disk, 600_000) };
    let process = Process::start(&directory.path().join("g"), &short);
    let store = process.store().for_lease(LEASE);
    let suspended = suspend(&store, NAME, BLOCKS);
    let image = process.store().for_lease("l-another").open(other(), &SECRET, 1, "").unwrap();
    assert!(refused(Memory::new(BLOCKS, 1).cut(&*image, 1)).contains("guard memory"));
    eventually("it is on disk", || {
        files(&disk).len() == 1 && store.census().unwrap().leases.contains(&(LEASE.to_owned(), 0))
    });
    let mut running = Memory::new(BLOCKS, 1);
    running.cut(&*image, 2).unwrap();
    // The suspended program comes back when the other one is gone.
    assert!(refused(store.open(NAME, &SECRET, 5, "")).contains("guard memory"));
    assert_eq!(files(&disk).len(), 1, "a refusal loses nothing");
    image.end().unwrap();
    suspended.check(&*store.open(NAME, &SECRET, 5, "").unwrap(), 7);
}

#[test]
fn a_disk_that_takes_nothing_is_named_in_the_refusal_and_the_images_stay() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("parked");
    let short = Plan { bytes_max: SHORT, ..plan(&disk, 600_000) };
    let process = Process::start(&directory.path().join("g"), &short);
    let store = process.store().for_lease(LEASE);
    let suspended = suspend(&store, NAME, BLOCKS);
    std::fs::remove_dir_all(&disk).unwrap();
    let image = process.store().for_lease("l-another").open(other(), &SECRET, 1, "").unwrap();
    let number = std::cell::Cell::new(1);
    eventually("the disk is named", || {
        number.set(number.get() + 1);
        let words = refused(Memory::new(BLOCKS, 1).cut(&*image, number.get()));
        words.contains("guard memory") && words.contains("cannot be written to")
    });
    suspended.check(&*store.open(NAME, &SECRET, 5, "").unwrap(), 7);
}

#[test]
fn a_file_system_without_room_is_named_in_the_refusal_and_nothing_half_stays_on_it() {
    let may_mount = std::process::Command::new("unshare").args(["--mount", "true"]).status();
    if !may_mount.is_ok_and(|status| status.success()) {
        eprintln!("skipped: only root may mount a small file system");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("parked");
    std::fs::create_dir(&disk).unwrap();
    let short = Plan { bytes_max: SHORT, disk_bytes: Some(1 << 20), ..plan(&disk, 600_000) };
    let process = Process::start(&directory.path().join("g"), &short);
    let store = process.store().for_lease(LEASE);
    let suspended = suspend(&store, NAME, BLOCKS);
    let image = process.store().for_lease("l-another").open(other(), &SECRET, 1, "").unwrap();
    let number = std::cell::Cell::new(1);
    eventually("the disk is named", || {
        number.set(number.get() + 1);
        let words = refused(Memory::new(BLOCKS, 1).cut(&*image, number.get()));
        words.contains("guard memory") && words.contains("No space left on device")
    });
    let inside = Path::new("/proc").join(process.child.id().to_string()).join("root");
    let left = inside.join(disk.strip_prefix("/").unwrap());
    eventually("half a file goes", || files(&left).is_empty());
    suspended.check(&*store.open(NAME, &SECRET, 5, "").unwrap(), 7);
}
