//! Allocations, copies, fills, mappings.

mod common;

use common::*;
use cuda_abi::CudaError;
use cuda_driver::Driver;
use cuda_wire::*;
use driver_soft::{SharedLedger, SoftConfig};
use std::sync::Arc;

#[test]
fn what_is_written_is_read() {
    let session = Session::new();
    let data: Vec<u8> = (0..100_000u32).map(|value| value as u8).collect();
    let address = session.alloc_with(&data);
    assert_eq!(session.read(LEGACY, address, data.len() as u64).unwrap(), data);
    assert_eq!(session.read(LEGACY, address + 999, 3).unwrap(), data[999..1002]);
}

#[test]
fn pushed_pulled_and_sent_data_take_the_link() {
    let session = Session::new();
    let data: Vec<u8> = (0..70_000u32).map(|value| (value * 7) as u8).collect();
    let address = session.alloc(data.len() as u64);
    let shape = Shape::line(data.len() as u64);
    let target = Plane::line(address);
    let op = Op::CopyIn { target, shape, data: HostData::Pushed { transfer: TransferId(1) } };
    session.driver.enqueue(LEGACY, op).unwrap();
    session.link.push(TransferId(1), &data);
    session.driver.enqueue(LEGACY, Op::CopyOut { source: target, shape, transfer: TransferId(2) }).unwrap();
    session.driver.stream_synchronize(LEGACY).unwrap();
    assert_eq!(session.link.sent(TransferId(2)).unwrap(), data);

    session.link.push(TransferId(3), &vec![9; data.len()]);
    let op = Op::CopyIn { target, shape, data: HostData::Pulled { transfer: TransferId(3) } };
    session.driver.enqueue(LEGACY, op).unwrap();
    assert_eq!(session.read(LEGACY, address, data.len() as u64).unwrap(), vec![9; data.len()]);
    assert_eq!(session.link.pulls(), 1);
}

#[test]
fn boxes_are_copied_row_by_row() {
    let session = Session::new();
    // A volume of 4 slices, 5 rows, 16 bytes; the copy is 3 x 4 x 10 of it.
    let volume: Vec<u8> = (0..4 * 5 * 16).map(|value| value as u8).collect();
    let source = session.alloc_with(&volume);
    let target = session.alloc(1000);
    session.driver.enqueue(LEGACY, fill32(target, 250, 0)).unwrap();
    let shape = Shape { width: 10, height: 4, depth: 3 };
    let from = Plane { address: source + 16 * 5 + 16 + 2, row_pitch: 16, slice_pitch: 80 };
    let to = Plane { address: target, row_pitch: 12, slice_pitch: 60 };
    session.driver.enqueue(LEGACY, Op::CopyDevice { target: to, source: from, shape }).unwrap();
    let result = session.read(LEGACY, target, 1000).unwrap();
    let packed = session.driver.read_back(LEGACY, from, shape).unwrap();
    let mut expected = vec![0; 1000];
    let mut expected_packed = Vec::new();
    for slice in 0..3 {
        for row in 0..4 {
            let at = (slice + 1) * 80 + (row + 1) * 16 + 2;
            expected[slice * 60 + row * 12..][..10].copy_from_slice(&volume[at..at + 10]);
            expected_packed.extend_from_slice(&volume[at..at + 10]);
        }
    }
    assert_eq!(result, expected);
    assert_eq!(packed, expected_packed);

    // And the way in.
    let op = Op::CopyIn { target: to, shape, data: HostData::Inline { bytes: Bytes(&[5; 120]) } };
    session.driver.enqueue(LEGACY, op).unwrap();
    let result = session.read(LEGACY, target, 1000).unwrap();
    assert_eq!(result.iter().filter(|&&byte| byte == 5).count(), 120);
    assert_eq!(&result[48 + 10..60], &[0; 2]);
}

#[test]
fn fills_repeat_their_element() {
    let session = Session::new();
    let address = session.alloc(64);
    let fill = |at, width, element_bytes, value| Op::Fill {
        target: Plane { address: address + at, row_pitch: 16, slice_pitch: 0 },
        shape: Shape { width, height: 2, depth: 1 },
        element_bytes,
        value,
    };
    session.driver.enqueue(LEGACY, fill32(address, 16, 0)).unwrap();
    session.driver.enqueue(LEGACY, fill(0, 6, 2, 0x1_0203)).unwrap();
    session.driver.enqueue(LEGACY, fill(8, 3, 1, 0xff)).unwrap();
    let bytes = session.read(LEGACY, address, 64).unwrap();
    assert_eq!(bytes[..16], [3, 2, 3, 2, 3, 2, 0, 0, 255, 255, 255, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[16..32], bytes[..16]);
    for bad in [fill(1, 4, 2, 0), fill(0, 5, 4, 0), fill(0, 4, 3, 0)] {
        assert_eq!(session.driver.enqueue(LEGACY, bad), Err(CudaError::INVALID_VALUE));
    }
}

#[test]
fn a_copy_outside_allocations_is_refused_at_once() {
    let session = Session::new();
    let address = session.alloc(1000);
    assert_eq!(session.write(LEGACY, address + 999, &[1, 2]), Err(CudaError::INVALID_VALUE));
    assert_eq!(session.write(LEGACY, address - 1, &[1]), Err(CudaError::INVALID_VALUE));
    assert_eq!(session.write(LEGACY, 0, &[1]), Err(CudaError::INVALID_VALUE));
    assert_eq!(session.read(LEGACY, address, 1001), Err(CudaError::INVALID_VALUE));
    assert_eq!(
        session.driver.enqueue(LEGACY, copy(address, address + 512, 500)),
        Err(CudaError::INVALID_VALUE)
    );
    session.driver.memory_free(address).unwrap();
    assert_eq!(session.write(LEGACY, address, &[1]), Err(CudaError::INVALID_VALUE));
    assert_eq!(session.driver.memory_free(address), Err(CudaError::INVALID_VALUE));
    assert_eq!(session.driver.stream_synchronize(LEGACY), Ok(()), "the context lives on");
}

#[test]
fn memory_is_freed_after_the_work_that_uses_it() {
    let session = Session::new();
    let flag = session.alloc_with(&[0; 4]);
    let address = session.alloc_with(&[7; 64]);
    let other = session.alloc(64);
    let stream = session.stream(1);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let before = session.driver.memory_info(0).unwrap().0;
    session.wait_value(stream, flag, 1);
    session.driver.enqueue(stream, copy(other, address, 64)).unwrap();
    session.driver.memory_free(address).unwrap();
    assert_eq!(session.driver.memory_info(0).unwrap().0, before + 64, "what goes soon counts as free");
    let free = session.stream(1);
    session.write_value(free, flag, 1);
    assert_eq!(session.read(stream, other, 64).unwrap(), [7; 64]);
    assert_eq!(session.driver.memory_info(0).unwrap().0, before + 64);
    // The address can be used again.
    session.driver.memory_allocate(CONTEXT, address, 128).unwrap();
    session.write(LEGACY, address, &[1; 128]).unwrap();
    assert_eq!(session.read(LEGACY, address, 128).unwrap(), [1; 128]);
}

#[test]
fn a_new_allocation_at_an_address_waits_for_the_old_one() {
    let session = Session::new();
    let flag = session.alloc_with(&[0; 4]);
    let address = session.alloc_with(&[7; 512]);
    let stream = session.stream(1);
    session.driver.stream_synchronize(LEGACY).unwrap();
    session.wait_value(stream, flag, 1);
    session.driver.enqueue(stream, fill32(address, 128, 0x55)).unwrap();
    session.driver.memory_free(address).unwrap();
    let free = session.stream(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            session.driver.memory_allocate(CONTEXT, address, 512).unwrap();
            // The old stream's fill came before: it cannot spoil this one.
            session.driver.enqueue(free, fill32(address, 128, 0xaa)).unwrap();
            assert_eq!(session.words(free, address, 128), vec![0xaa; 128]);
        });
        std::thread::sleep(std::time::Duration::from_millis(30));
        let other = session.stream(1);
        session.write_value(other, flag, 1);
    });
}

#[test]
fn stream_ordered_memory_reuses_addresses_in_order() {
    let session = Session::new();
    let stream = session.stream(1);
    let (address, kept) = (session.place(4096), session.alloc(4096 * 50));
    for round in 0..50u64 {
        session.driver.enqueue(stream, Op::Allocate { address, bytes: 4096 }).unwrap();
        session.driver.enqueue(stream, fill32(address, 1024, round as u32)).unwrap();
        session.driver.enqueue(stream, copy(kept + round * 4096, address, 4096)).unwrap();
        session.driver.enqueue(stream, Op::Free { address }).unwrap();
        assert_eq!(session.driver.enqueue(stream, Op::Free { address }), Err(CudaError::INVALID_VALUE));
    }
    for round in 0..50 {
        assert_eq!(session.words(stream, kept + round * 4096, 1024), vec![round as u32; 1024]);
    }
}

#[test]
fn a_device_holds_as_much_as_it_has() {
    let session = Session::with(SoftConfig { memory_bytes: 64 << 20, ..SoftConfig::default() });
    let driver = &session.driver;
    assert_eq!(driver.memory_info(0), Ok((64 << 20, 64 << 20)));
    let first = session.place(40 << 20);
    let second = session.place(40 << 20);
    driver.memory_allocate(CONTEXT, first, 40 << 20).unwrap();
    assert_eq!(driver.memory_allocate(CONTEXT, second, 40 << 20), Err(CudaError::OUT_OF_MEMORY));
    assert_eq!(driver.physical_create(MemoryHandleId(1), 0, 26 << 20), Err(CudaError::OUT_OF_MEMORY));
    assert_eq!(
        driver.enqueue(LEGACY, Op::Allocate { address: second, bytes: 40 << 20 }),
        Err(CudaError::OUT_OF_MEMORY)
    );
    // What is freed behind running work is waited for.
    let flag = session.alloc_with(&[0; 4]);
    let stream = session.stream(1);
    driver.stream_synchronize(LEGACY).unwrap();
    session.wait_value(stream, flag, 1);
    driver.memory_free(first).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| driver.memory_allocate(CONTEXT, second, 40 << 20).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let free = session.stream(1);
        session.write_value(free, flag, 1);
    });
    assert_eq!(driver.memory_info(0).unwrap().0, (24 << 20) - 4);
}

#[test]
fn sessions_share_a_device_through_the_ledger() {
    let ledger = SharedLedger::create(&[64 << 20], 4).unwrap();
    let make = || {
        let slot = ledger.claim(1).unwrap();
        let config = SoftConfig {
            memory_bytes: 64 << 20,
            ledger: Some(Arc::new(ledger.session(slot))),
            ..SoftConfig::default()
        };
        Session::with(config)
    };
    let (first, second) = (make(), make());
    first.alloc(40 << 20);
    let address = second.place(40 << 20);
    assert_eq!(second.driver.memory_allocate(CONTEXT, address, 40 << 20), Err(CudaError::OUT_OF_MEMORY));
    assert_eq!(second.driver.memory_info(0), Ok((24 << 20, 64 << 20)));
    drop(first);
    second.driver.memory_allocate(CONTEXT, address, 40 << 20).unwrap();
    assert!(second.driver.grant_memory_credit() > 0);
    drop(second);
    assert_eq!(ledger.used(0), 0);
}

#[test]
fn physical_memory_at_two_places_is_one() {
    let session = Session::new();
    let driver = &session.driver;
    const PART: u64 = 2 << 20;
    let (first, second) = (session.base + (1 << 30), session.base + (2 << 30));
    driver.physical_create(MemoryHandleId(1), 0, 2 * PART).unwrap();
    driver.physical_map(first, 2 * PART, 0, MemoryHandleId(1)).unwrap();
    driver.physical_map(second, PART, PART, MemoryHandleId(1)).unwrap();
    assert_eq!(driver.physical_map(first, PART, 0, MemoryHandleId(1)), Err(CudaError::INVALID_VALUE));
    driver.physical_set_access(first, 2 * PART, 0, 3).unwrap();
    driver.physical_set_access(second, PART, 0, 1).unwrap();
    session.write(LEGACY, first + PART + 8, &[1, 2, 3]).unwrap();
    assert_eq!(session.read(LEGACY, second + 8, 3).unwrap(), [1, 2, 3]);
    driver.physical_release(MemoryHandleId(1)).unwrap();
    driver.physical_unmap(first, 2 * PART).unwrap();
    assert_eq!(session.read(LEGACY, second + 8, 3).unwrap(), [1, 2, 3], "it lives while it is mapped");
    driver.physical_unmap(second, PART).unwrap();
    assert_eq!(driver.memory_info(0).unwrap().0, 1 << 30);
}

#[test]
fn copies_run_on_through_neighbouring_mappings() {
    let session = Session::new();
    let driver = &session.driver;
    const PART: u64 = 2 << 20;
    let base = session.base + (1 << 30);
    for index in 0..3 {
        driver.physical_create(MemoryHandleId(index), 0, PART).unwrap();
        driver.physical_map(base + u64::from(index) * PART, PART, 0, MemoryHandleId(index)).unwrap();
    }
    driver.physical_set_access(base, 3 * PART, 0, 3).unwrap();
    let data: Vec<u8> = (0..PART + 200).map(|value| (value % 251) as u8).collect();
    session.write(LEGACY, base + PART - 100, &data).unwrap();
    assert_eq!(session.read(LEGACY, base + PART - 100, data.len() as u64).unwrap(), data);
    assert_eq!(driver.physical_unmap(base, PART + PART / 2), Err(CudaError::INVALID_VALUE));
    driver.physical_unmap(base, 3 * PART).unwrap();
    // The same addresses can hold other memory at once.
    driver.physical_map(base, PART, 0, MemoryHandleId(2)).unwrap();
}

#[test]
fn a_reset_context_is_empty_and_alive() {
    let session = Session::new();
    let address = session.alloc(1 << 20);
    session.driver.context_reset(CONTEXT).unwrap();
    assert_eq!(session.driver.memory_info(0), Ok((1 << 30, 1 << 30)));
    assert_eq!(session.driver.stream_query(LEGACY), Err(CudaError::INVALID_HANDLE));
    session.driver.stream_create(LEGACY, CONTEXT, 2, 0).unwrap();
    assert_eq!(session.write(LEGACY, address, &[1]), Err(CudaError::INVALID_VALUE));
    session.driver.memory_allocate(CONTEXT, address, 16).unwrap();
    session.write(LEGACY, address, &[1]).unwrap();
    session.driver.context_synchronize(CONTEXT).unwrap();
}

#[test]
fn addresses_beside_the_first_range_are_kept_where_they_are_free() {
    let session = Session::new();
    let further = VaRange { base: Session::some_base(), bytes: 4 << 20 };
    let page = further.base + 4096;
    let data: Vec<u8> = (0..8192u32).map(|value| (value * 3) as u8).collect();
    assert!(session.driver.memory_allocate(CONTEXT, page, 8192).is_err(), "not kept yet");
    session.driver.addresses_reserve(further).unwrap();
    session.driver.memory_allocate(CONTEXT, page, 8192).unwrap();
    let shape = Shape::line(8192);
    let op = Op::CopyIn { target: Plane::line(page), shape, data: HostData::Inline { bytes: Bytes(&data) } };
    session.driver.enqueue(LEGACY, op).unwrap();
    assert_eq!(session.read(LEGACY, page, 8192).unwrap(), data);
    session.driver.memory_free(page).unwrap();
    session.driver.memory_allocate(CONTEXT, page, 8192).unwrap();
    let refused = |base, bytes| session.driver.addresses_reserve(VaRange { base, bytes }).is_err();
    assert!(refused(further.base, 2 << 20), "kept already");
    assert!(refused(session.base, 2 << 20), "in the first range");
    assert!(refused(further.base + (8 << 20), 4096), "not whole");
    assert!(
        refused(&raw const session as u64 / (2 << 20) * (2 << 20), 2 << 20),
        "where this process has memory"
    );
}
