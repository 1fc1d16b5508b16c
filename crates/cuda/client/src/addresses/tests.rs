use super::*;
use proptest::prelude::*;

const BASE: u64 = 0x7000_0000_0000;

/// A space with room for `chunks` chunks below the driver's part.
fn space(chunks: u64) -> AddressSpace {
    AddressSpace::new(VaRange { base: BASE, bytes: chunks * CHUNK_BYTES + DRIVER_VA_BYTES })
}

fn allocate(space: &mut AddressSpace, bytes: u64) -> CuResult<u64> {
    space.allocate(bytes, Kind::Memory, 0, 0)
}

#[test]
fn smalls_share_a_chunk_and_larges_have_their_own() {
    let mut space = space(16);
    assert_eq!(allocate(&mut space, 1), Ok(BASE));
    assert_eq!(allocate(&mut space, 513), Ok(BASE + 0x200));
    assert_eq!(allocate(&mut space, 4096), Ok(BASE + 0x600));
    assert_eq!(allocate(&mut space, (1 << 20) - 1), Ok(BASE + 0x1600));
    assert_eq!(allocate(&mut space, 1 << 20), Ok(BASE + CHUNK_BYTES), "driver 580 aligns from 1 MiB on");
    assert_eq!(allocate(&mut space, CHUNK_BYTES + 1), Ok(BASE + 2 * CHUNK_BYTES));
    assert_eq!(allocate(&mut space, 5 << 20), Ok(BASE + 4 * CHUNK_BYTES));
}

#[test]
fn an_address_is_found_in_the_bytes_that_were_asked_for_and_not_past_them() {
    let mut space = space(4);
    let base = space.allocate(100, Kind::PoolMemory, 3, 42).unwrap();
    let found = Allocation { base, bytes: 100, kind: Kind::PoolMemory, device: 3, tag: 42 };
    assert_eq!(space.find(base), Some(&found));
    assert_eq!(space.find(base + 99), Some(&found));
    assert_eq!(space.find(base + 100), None);
    assert_eq!(space.find(base - 1), None);
    assert_eq!(space.free(base + 1), None);
    assert_eq!(space.free(base), Some(found));
    assert_eq!(space.find(base), None);
    assert_eq!(space.free(base), None);
}

#[test]
fn chunks_are_not_shared_between_devices() {
    let mut space = space(4);
    let first = space.allocate(512, Kind::Memory, 0, 0).unwrap();
    let second = space.allocate(512, Kind::Memory, 1, 0).unwrap();
    assert_ne!(first / CHUNK_BYTES, second / CHUNK_BYTES);
}

#[test]
fn what_was_just_freed_is_not_given_out_while_there_is_other_room() {
    let mut space = space(64);
    for bytes in [1000, 3 << 20] {
        let first = allocate(&mut space, bytes).unwrap();
        space.free(first).unwrap();
        assert_ne!(allocate(&mut space, bytes).unwrap(), first);
    }
}

#[test]
fn a_full_space_gives_out_what_rests() {
    let mut space = space(1);
    for _ in 0..100 {
        let whole = allocate(&mut space, CHUNK_BYTES).unwrap();
        assert_eq!(allocate(&mut space, 1), Err(CudaError::OUT_OF_MEMORY));
        space.free(whole).unwrap();
        let small = allocate(&mut space, 1).unwrap();
        assert_eq!(allocate(&mut space, CHUNK_BYTES), Err(CudaError::OUT_OF_MEMORY));
        space.free(small).unwrap();
    }
}

#[test]
fn addresses_of_a_pending_free_stay_out_of_use() {
    let mut space = space(1);
    let base = allocate(&mut space, CHUNK_BYTES).unwrap();
    let pending = space.take(base).unwrap();
    assert_eq!(space.find(base), None);
    assert_eq!(allocate(&mut space, CHUNK_BYTES), Err(CudaError::OUT_OF_MEMORY));
    space.give_back(pending);
    assert_eq!(allocate(&mut space, CHUNK_BYTES), Ok(base));
}

#[test]
fn the_top_of_the_range_belongs_to_the_driver() {
    let mut space = space(2);
    assert_eq!(allocate(&mut space, 3 * CHUNK_BYTES), Err(CudaError::OUT_OF_MEMORY));
    assert_eq!(
        space.reserve(CHUNK_BYTES, 0, BASE + 2 * CHUNK_BYTES, 0),
        Ok(BASE),
        "a hint there is not followed"
    );
    let mut none = AddressSpace::new(VaRange { base: BASE, bytes: DRIVER_VA_BYTES });
    assert_eq!(allocate(&mut none, 1), Err(CudaError::OUT_OF_MEMORY));
}

#[test]
fn absurd_requests_are_refused() {
    let mut space = space(4);
    assert_eq!(allocate(&mut space, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(allocate(&mut space, u64::MAX), Err(CudaError::OUT_OF_MEMORY));
    assert_eq!(allocate(&mut space, u64::MAX - CHUNK_BYTES), Err(CudaError::OUT_OF_MEMORY));
    assert_eq!(space.reserve(CHUNK_BYTES, 1 << 63, 0, 0), Err(CudaError::OUT_OF_MEMORY));
    assert_eq!(
        space.reserve(u64::MAX / CHUNK_BYTES * CHUNK_BYTES, 0, BASE, 0),
        Err(CudaError::OUT_OF_MEMORY)
    );
}

/// Each line as driver 580 answers it.
#[test]
fn reservations_follow_the_driver() {
    let mut space = space(1024);
    let mut reserve = |bytes, align, hint| space.reserve(bytes, align, hint, 0);
    assert_eq!(reserve(1 << 20, 0, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(reserve(0, 0, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(reserve(CHUNK_BYTES, 3, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(reserve(CHUNK_BYTES, 0, BASE + (1 << 20)), Err(CudaError::INVALID_VALUE));
    assert_eq!(reserve(CHUNK_BYTES, 4096, 0), Ok(BASE));
    assert_eq!(reserve(CHUNK_BYTES, 0, BASE + 10 * CHUNK_BYTES), Ok(BASE + 10 * CHUNK_BYTES));
    assert_eq!(reserve(CHUNK_BYTES, 1 << 30, 0).unwrap() % (1 << 30), 0);
    assert_eq!(reserve(CHUNK_BYTES, 0, 0x1000_0000_0000).unwrap() & (1 << 44), BASE & (1 << 44));
    assert_eq!(space.free_reservation(BASE, 1 << 20), Err(CudaError::INVALID_VALUE));
    assert_eq!(space.free(BASE), None, "cuMemFree does not end a reservation");
    assert_eq!(space.free_reservation(BASE, CHUNK_BYTES), Ok(()));
    assert_eq!(space.free_reservation(BASE, CHUNK_BYTES), Err(CudaError::INVALID_VALUE));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate { bytes: u64, device: u32 },
    Reserve { chunks: u64, align_log: u32, hint: u64 },
    Free { which: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![1..2000u64, 1..(1u64 << 20), (1u64 << 20)..(9 << 20)];
    prop_oneof![
        4 => (bytes, 0..2u32).prop_map(|(bytes, device)| Step::Allocate { bytes, device }),
        1 => (1..6u64, 0..26u32, 0..64u64)
            .prop_map(|(chunks, align_log, hint)| Step::Reserve { chunks, align_log, hint }),
        4 => any::<usize>().prop_map(|which| Step::Free { which }),
    ]
}

proptest! {
    #[test]
    fn nothing_overlaps_and_everything_comes_back(steps in prop::collection::vec(step(), 1..400)) {
        const CHUNKS: u64 = 48;
        let mut space = space(CHUNKS);
        for step in steps {
            match step {
                Step::Allocate { bytes, device } => {
                    if let Ok(base) = space.allocate(bytes, Kind::Memory, device, 0) {
                        let align = if bytes < SMALL_BYTES { ALIGN_BYTES } else { CHUNK_BYTES };
                        prop_assert!(base.is_multiple_of(align));
                        prop_assert!(bytes >= SMALL_BYTES || base % CHUNK_BYTES + bytes <= CHUNK_BYTES);
                    }
                }
                Step::Reserve { chunks, align_log, hint } => {
                    let hint = BASE + hint * CHUNK_BYTES;
                    if let Ok(base) = space.reserve(chunks * CHUNK_BYTES, 1 << align_log, hint, 0) {
                        prop_assert!(base.is_multiple_of(1 << align_log) && base.is_multiple_of(CHUNK_BYTES));
                    }
                }
                Step::Free { which } => {
                    let count = space.allocations().count();
                    if let Some(&old) = (count != 0).then(|| space.allocations().nth(which % count)).flatten() {
                        match old.kind {
                            Kind::Reservation => space.free_reservation(old.base, old.bytes).unwrap(),
                            _ => assert_eq!(space.free(old.base), Some(old)),
                        }
                    }
                }
            }
            let live: Vec<_> = space.allocations().copied().collect();
            for pair in live.windows(2) {
                prop_assert!(pair[0].end() <= pair[1].base, "{pair:?}");
                let same_chunk = pair[0].base / CHUNK_BYTES == pair[1].base / CHUNK_BYTES;
                prop_assert!(!same_chunk || pair[0].device == pair[1].device);
            }
            prop_assert!(live.iter().all(|a| a.base >= BASE && a.end() <= BASE + CHUNKS * CHUNK_BYTES));
        }
        let all: Vec<_> = space.allocations().copied().collect();
        for old in all {
            match old.kind {
                Kind::Reservation => space.free_reservation(old.base, old.bytes).unwrap(),
                _ => assert_eq!(space.free(old.base), Some(old)),
            }
        }
        prop_assert_eq!(allocate(&mut space, CHUNKS * CHUNK_BYTES), Ok(BASE), "all of it is one range again");
    }
}
