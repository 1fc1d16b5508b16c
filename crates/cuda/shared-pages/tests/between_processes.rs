//! Pages from the side that makes them and from the side that adopts them, and files that are not taken.

use proptest::prelude::*;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use shared_pages::{NotShareable, OutsideOfPages, SharedPages};
use std::os::fd::OwnedFd;

const PAGE: usize = 4096;

fn memory_file(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

/// Lines of this process's map that name the file of shared pages with this inode.
fn mappings(file: &OwnedFd) -> usize {
    let inode = rustix::fs::fstat(file).unwrap().st_ino.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| {
            line.contains("memfd:dxpu-pinned") && line.split_whitespace().any(|word| word == inode)
        })
        .count()
}

#[test]
fn both_sides_have_the_same_bytes() {
    let (ours, file) = SharedPages::create(3 * PAGE + 5).unwrap();
    let theirs = SharedPages::adopt(&file, ours.bytes() as u64).unwrap();
    ours.write(3 * PAGE as u64, b"hello").unwrap();
    let mut out = [0; 5];
    theirs.read(3 * PAGE as u64, &mut out).unwrap();
    assert_eq!(&out, b"hello");
    theirs.write(0, b"there").unwrap();
    ours.read(0, &mut out).unwrap();
    assert_eq!(&out, b"there");
}

#[test]
fn all_pages_are_there_before_the_other_side_has_them() {
    let (_pages, file) = SharedPages::create(64 * PAGE).unwrap();
    let has = rustix::fs::fstat(&file).unwrap().st_blocks as u64 * 512;
    assert_eq!(has, 64 * PAGE as u64);
}

#[test]
fn a_mapping_goes_with_its_value() {
    let (ours, file) = SharedPages::create(PAGE).unwrap();
    let theirs = SharedPages::adopt(&file, PAGE as u64).unwrap();
    assert_eq!(mappings(&file), 2);
    drop(ours);
    assert_eq!(mappings(&file), 1);
    theirs.write(0, b"still there").unwrap();
    drop(theirs);
    assert_eq!(mappings(&file), 0);
}

#[test]
fn a_file_that_could_be_cut_short_is_refused() {
    for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::SHRINK] {
        let file = memory_file(PAGE as u64, seals);
        assert!(matches!(SharedPages::adopt(&file, PAGE as u64), Err(NotShareable::NotSealed)), "{seals:?}");
    }
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    assert!(matches!(SharedPages::adopt(&file, PAGE as u64), Err(NotShareable::NotSealed)));
    let file: OwnedFd = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into();
    assert!(matches!(SharedPages::adopt(&file, PAGE as u64), Err(NotShareable::NotSealed)));
}

#[test]
fn a_sealed_file_cannot_be_cut_short_by_the_one_who_made_it() {
    let (_pages, file) = SharedPages::create(2 * PAGE).unwrap();
    assert!(rustix::fs::ftruncate(&file, PAGE as u64).is_err());
    assert!(rustix::fs::ftruncate(&file, 3 * PAGE as u64).is_err());
    assert!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).is_err(), "nothing more is sealed either");
}

#[test]
fn pages_that_the_other_side_takes_out_read_as_zeros_and_kill_nobody() {
    let (ours, file) = SharedPages::create(2 * PAGE).unwrap();
    let theirs = SharedPages::adopt(&file, 2 * PAGE as u64).unwrap();
    ours.write(0, &[7; 2 * PAGE]).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, hole, 0, PAGE as u64).unwrap();
    let mut out = [1; 2 * PAGE];
    theirs.read(0, &mut out).unwrap();
    assert_eq!((out[0], out[PAGE - 1], out[PAGE]), (0, 0, 7));
}

#[test]
fn huge_pages_of_a_pool_are_refused() {
    // Without a pool the kernel may refuse to make such a file; then there is nothing to refuse.
    let Ok(file) = rustix::fs::memfd_create("huge", MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING) else {
        return;
    };
    let bytes = 2 << 20;
    if rustix::fs::ftruncate(&file, bytes).is_err() {
        return;
    }
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    assert!(matches!(SharedPages::adopt(&file, bytes), Err(NotShareable::NotOrdinary)));
}

#[test]
fn another_size_than_was_said_is_refused() {
    let (_pages, file) = SharedPages::create(PAGE).unwrap();
    for said in [1, PAGE as u64 - 1, PAGE as u64 + 1, 1 << 40] {
        let refused = SharedPages::adopt(&file, said).unwrap_err();
        assert!(matches!(refused, NotShareable::OtherSize { have, .. } if have == PAGE as u64), "{refused}");
    }
    for said in [0, u64::MAX, 1 << 63] {
        assert!(matches!(SharedPages::adopt(&file, said), Err(NotShareable::Size { .. })), "{said}");
    }
}

proptest! {
    #[test]
    fn nothing_outside_is_touched(offset in prop_oneof![0..3 * PAGE as u64, any::<u64>()], bytes in 0..2 * PAGE) {
        let (ours, file) = SharedPages::create(2 * PAGE).unwrap();
        let theirs = SharedPages::adopt(&file, 2 * PAGE as u64).unwrap();
        let data = vec![0x5a; bytes];
        let fits = offset.checked_add(bytes as u64).is_some_and(|end| end <= 2 * PAGE as u64);
        let outside = OutsideOfPages { offset, bytes: bytes as u64 };
        prop_assert_eq!(ours.write(offset, &data), if fits { Ok(()) } else { Err(outside) });
        let mut model = vec![0; 2 * PAGE];
        if fits {
            model[offset as usize..offset as usize + bytes].fill(0x5a);
        }
        let mut out = vec![1; 2 * PAGE];
        theirs.read(0, &mut out).unwrap();
        prop_assert_eq!(out, model);
        let mut back = data.clone();
        prop_assert_eq!(theirs.read(offset, &mut back).is_ok(), fits);
        prop_assert_eq!(back, data);
    }
}
