//! Memory of the program's that the copy engine reads and writes itself.

use super::{link::until, session::*};
use cuda_abi::CudaError;
use cuda_driver::{Driver, SharedPages};
use cuda_wire::*;
use std::sync::Arc;

const REGION: RegionId = RegionId(3);
const BYTES: usize = 1 << 20;

fn line(offset: u64) -> SharedPlane {
    SharedPlane { region: REGION, offset, row_pitch: 0, slice_pitch: 0 }
}

/// The program's mapping of the pages that a session shares.
fn share(session: &Session) -> SharedPages {
    let (ours, file) = SharedPages::create(BYTES).unwrap();
    session.share_host(REGION, Arc::new(SharedPages::adopt(&file, BYTES as u64).unwrap())).unwrap();
    ours
}

#[test]
fn shared_copies_move_bytes_in_stream_order_and_no_lane_sees_them() {
    let session = Session::new();
    let ours = share(&session);
    let data: Vec<u8> = (0..BYTES).map(|at| (at / 3) as u8).collect();
    ours.write(0, &data).unwrap();
    let shape = Shape::line(300_000);
    session.fake.hold();
    session
        .enqueue(STREAM, Op::CopyInShared { target: Plane::line(DATA), source: line(1000), shape })
        .unwrap();
    session.enqueue(STREAM, fill(DATA + 10, 5, 1)).unwrap();
    session
        .enqueue(STREAM, Op::CopyOutShared { source: Plane::line(DATA), target: line(600_000), shape })
        .unwrap();
    assert_eq!(session.fake.peek(DATA, 2), [0, 0], "the stream is held");
    session.drain();
    let mut expected = data[1000..301_000].to_vec();
    expected[10..15].fill(1);
    let mut out = vec![0; 300_000];
    ours.read(600_000, &mut out).unwrap();
    assert!(out == expected);
    assert!(session.link.asked.lock().unwrap().is_empty());
    session.unshare_host(REGION);
    session.check_rules();
}

#[test]
fn rows_and_slices_keep_their_places() {
    let session = Session::new();
    let ours = share(&session);
    let data: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    ours.write(0, &data).unwrap();
    let shape = Shape { width: 10, height: 4, depth: 3 };
    let source = SharedPlane { region: REGION, offset: 7, row_pitch: 16, slice_pitch: 100 };
    let target = Plane { address: DATA, row_pitch: 32, slice_pitch: 256 };
    session.enqueue(STREAM, Op::CopyInShared { target, source, shape }).unwrap();
    let back = SharedPlane { offset: 5000, row_pitch: 20, slice_pitch: 90, ..source };
    session.enqueue(STREAM, Op::CopyOutShared { source: target, target: back, shape }).unwrap();
    session.drain();
    for (slice, row, column) in (0..3).flat_map(|s| (0..4).flat_map(move |r| (0..10).map(move |c| (s, r, c))))
    {
        let (from, to) = (7 + slice * 100 + row * 16 + column, 5000 + slice * 90 + row * 20 + column);
        let mut byte = [0];
        ours.read(to as u64, &mut byte).unwrap();
        assert_eq!(byte[0], data[from], "{slice} {row} {column}");
    }
    session.check_rules();
}

#[test]
fn a_place_outside_of_the_memory_is_refused_before_the_driver_sees_it() {
    let session = Session::new();
    let _ours = share(&session);
    let bytes = BYTES as u64;
    let (plane, one) = (Plane::line(DATA), Shape::line(1));
    let rows = |row_pitch, slice_pitch| SharedPlane { region: REGION, offset: 0, row_pitch, slice_pitch };
    let refused = [
        (line(bytes), one),
        (line(u64::MAX), one),
        (line(0), Shape::line(bytes + 1)),
        (line(0), Shape::line(u64::MAX)),
        (line(1), Shape::line(bytes)),
        (rows(bytes, 0), Shape { width: 1, height: 2, depth: 1 }),
        (rows(0, bytes), Shape { width: 1, height: 1, depth: 2 }),
        (rows(u64::MAX, 1), Shape { width: 1, height: 3, depth: 1 }),
        (rows(1 << 63, 1 << 63), Shape { width: 1, height: 3, depth: 3 }),
        (line(0), Shape { width: 1, height: 0, depth: 1 }),
        (line(0), Shape { width: 1, height: 1, depth: 0 }),
    ];
    for (shared, shape) in refused {
        let ops = [
            Op::CopyInShared { target: plane, source: shared, shape },
            Op::CopyOutShared { source: plane, target: shared, shape },
        ];
        for op in ops {
            assert_eq!(session.enqueue(STREAM, op.clone()), Err(CudaError::INVALID_VALUE), "{op:?}");
        }
    }
    let other = SharedPlane { region: RegionId(9), ..line(0) };
    let op = Op::CopyInShared { target: plane, source: other, shape: one };
    assert_eq!(session.enqueue(STREAM, op.clone()), Err(CudaError::INVALID_HANDLE));
    assert_eq!(
        session.graph_instantiate(ExecId(1), CONTEXT, vec![node(op, &[])]),
        Err(CudaError::NOT_SUPPORTED)
    );
    assert_eq!(session.fake.backlog(), 0);
}

/// The fake driver notes an unregistration of memory that a stream will still use.
#[test]
fn memory_goes_when_the_work_of_all_contexts_before_is_done() {
    let session = Session::new();
    let (_ours, file) = SharedPages::create(BYTES).unwrap();
    let theirs = Arc::new(SharedPages::adopt(&file, BYTES as u64).unwrap());
    let mapped = Arc::downgrade(&theirs);
    session.share_host(REGION, theirs).unwrap();
    session.fake.hold();
    let shape = Shape::line(BYTES as u64);
    session.enqueue(STREAM, Op::CopyOutShared { source: Plane::line(DATA), target: line(0), shape }).unwrap();
    session.unshare_host(REGION);
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert!(mapped.upgrade().is_some(), "a copy is under way");
    let op = Op::CopyInShared { target: Plane::line(DATA), source: line(0), shape };
    assert_eq!(session.enqueue(STREAM, op), Err(CudaError::INVALID_HANDLE), "it has no name any more");
    session.drain();
    until("the pages are unmapped", || mapped.upgrade().is_none());
    session.check_nothing_left();
}
