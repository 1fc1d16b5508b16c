//! Transfers over real connections, both ways at once, checked byte for byte; and what hostile peers do.

#![allow(missing_docs, reason = "tests")]

mod pair;

use bulk::{Fault, Here, Lanes, LanesConfig, LinkLost, Sink, Source};
use cuda_wire::{ChunkHeader, TransferId, WAYS, Wire};
use pair::{connections, lanes_pair};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes that differ from place to place and from transfer to transfer.
fn byte(seed: u64, place: u64) -> u8 {
    (place ^ (place >> 8) ^ (place >> 17) ^ seed.wrapping_mul(0x9e37_79b9)) as u8
}

fn source(seed: u64) -> impl Fn(u64, &mut [u8]) + Send + Sync + 'static {
    move |offset, target: &mut [u8]| {
        for (at, slot) in target.iter_mut().enumerate() {
            *slot = byte(seed, offset + at as u64);
        }
    }
}

/// Counts good bytes and panics at a bad one.
#[derive(Default)]
struct Checker {
    seed: u64,
    bytes: Mutex<u64>,
}

impl Checker {
    fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self { seed, bytes: Mutex::new(0) })
    }

    fn sink(self: &Arc<Self>) -> impl Fn(u64, &[u8]) + Send + Sync + 'static {
        let checker = self.clone();
        move |offset, piece: &[u8]| {
            for (at, found) in piece.iter().enumerate() {
                assert_eq!(*found, byte(checker.seed, offset + at as u64), "at {}", offset + at as u64);
            }
            *checker.bytes.lock().unwrap() += piece.len() as u64;
        }
    }

    fn count(&self) -> u64 {
        *self.bytes.lock().unwrap()
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Sizes from nothing to several chunks a lane.
fn sizes(seed: u64, count: usize) -> Vec<u64> {
    let mut state = seed | 1;
    let sizes = |_| match random(&mut state) % 4 {
        0 => random(&mut state) % 100,
        1 => random(&mut state) % 70_000,
        2 => random(&mut state) % 700_000,
        _ => random(&mut state) % 5_000_000,
    };
    (0..count).map(sizes).collect()
}

/// Every combination of blocking and later forms, many at once, in both directions.
fn many_at_once(scheme: &str, count: usize) {
    let config = LanesConfig { early_window_bytes: 1 << 30 };
    let (left, right) = lanes_pair(scheme, 3, config, config);
    std::thread::scope(|scope| {
        for (from, to, direction) in [(&left, &right, 1u64), (&right, &left, 2)] {
            for (at, bytes) in sizes(77 * direction, count).into_iter().enumerate() {
                let transfer = TransferId(direction << 32 | at as u64);
                let seed = transfer.0;
                scope.spawn(move || match at % 2 {
                    0 => from.send(transfer, bytes, &source(seed)).unwrap(),
                    _ => {
                        let (sender, receiver) = channel();
                        let done = move |result| sender.send(result).unwrap();
                        from.send_later(transfer, bytes, Box::new(source(seed)), Box::new(done));
                        receiver.recv().unwrap().unwrap();
                    }
                });
                scope.spawn(move || {
                    let checker = Checker::new(seed);
                    match at % 3 {
                        0 => {
                            let (sender, receiver) = channel();
                            let done = move |result| sender.send(result).unwrap();
                            to.expect_later(transfer, bytes, Box::new(checker.sink()), Box::new(done));
                            receiver.recv().unwrap().unwrap();
                        }
                        _ => to.expect(transfer, bytes).unwrap().wait(&checker.sink()).unwrap(),
                    }
                    assert_eq!(checker.count(), bytes);
                });
            }
        }
    });
    for (from, to) in [(&left, &right), (&right, &left)] {
        assert!(to.wait_landed(&from.chunks_sent(), Some(Instant::now() + Duration::from_secs(5))).unwrap());
    }
    assert!(left.fault().is_none() && right.fault().is_none());
}

#[test]
fn many_transfers_at_once_over_tcp() {
    many_at_once("tcp", 40);
}

#[test]
fn many_transfers_at_once_over_unix_sockets() {
    many_at_once("unix", 40);
}

#[test]
fn many_transfers_at_once_over_shared_memory() {
    many_at_once("shm", 40);
}

/// Memory as a client has it: read and written in place.
struct Memory(Mutex<Vec<u8>>);

impl Sink for Memory {
    fn take(&self, _: u64, _: &[u8]) {
        panic!("it is read straight into");
    }

    fn target(&self, offset: u64, bytes: usize, read: &mut dyn FnMut(&mut [u8])) -> bool {
        read(&mut self.0.lock().unwrap()[offset as usize..][..bytes]);
        true
    }
}

struct Shown(Vec<u8>);

impl Source for Shown {
    fn fill(&self, _: u64, _: &mut [u8]) {
        panic!("it is sent as it lies");
    }

    fn view(&self, offset: u64, bytes: usize, send: &mut dyn FnMut(&[u8])) -> bool {
        let part = &self.0[offset as usize..][..bytes];
        send(&part[..bytes / 3]);
        send(&part[bytes / 3..]);
        true
    }
}

#[test]
fn memory_is_sent_and_received_in_place() {
    let (left, right) = lanes_pair("tcp", 2, LanesConfig::default(), LanesConfig::default());
    let mut data = vec![0; 7_000_000];
    source(9)(0, &mut data);
    let memory = Arc::new(Memory(Mutex::new(vec![0; data.len()])));
    struct Handle(Arc<Memory>);
    impl Sink for Handle {
        fn take(&self, offset: u64, bytes: &[u8]) {
            self.0.take(offset, bytes);
        }
        fn target(&self, offset: u64, bytes: usize, read: &mut dyn FnMut(&mut [u8])) -> bool {
            self.0.target(offset, bytes, read)
        }
    }
    let (sender, receiver) = channel();
    let done = move |result| sender.send(result).unwrap();
    right.expect_later(TransferId(1), data.len() as u64, Box::new(Handle(memory.clone())), Box::new(done));
    left.send_later(TransferId(1), data.len() as u64, Box::new(Shown(data.clone())), Box::new(|_| {}));
    receiver.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
    assert!(*memory.0.lock().unwrap() == data);
}

#[test]
fn a_quarter_gibibyte_arrives_and_a_small_one_overtakes_it() {
    let (left, right) = lanes_pair("unix", 2, LanesConfig::default(), LanesConfig::default());
    let (large, small) = (256 << 20, 10_000);
    let (sender, receiver) = channel();
    for (transfer, bytes) in [(1, large), (2, small)] {
        let sender = sender.clone();
        let count = Arc::new(Mutex::new(0));
        let counted = count.clone();
        let sink = move |_: u64, piece: &[u8]| *counted.lock().unwrap() += piece.len() as u64;
        let done = move |result| sender.send((transfer, result, *count.lock().unwrap())).unwrap();
        right.expect_later(TransferId(transfer), bytes, Box::new(sink), Box::new(done));
    }
    left.send_later(TransferId(1), large, Box::new(|_: u64, _: &mut [u8]| {}), Box::new(|_| {}));
    left.send_later(TransferId(2), small, Box::new(|_: u64, _: &mut [u8]| {}), Box::new(|_| {}));
    assert_eq!(receiver.recv().unwrap(), (2, Ok(()), small));
    assert_eq!(receiver.recv().unwrap(), (1, Ok(()), large));
}

#[test]
fn closing_in_the_middle_wakes_everybody_and_nothing_is_touched_after_done() {
    let (left, right) = lanes_pair("tcp", 2, LanesConfig::default(), LanesConfig::default());
    let over = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = channel();
    let seen = over.clone();
    let sink = move |_: u64, _: &[u8]| {
        assert!(!seen.load(Ordering::SeqCst), "a sink was called after its end");
        std::thread::sleep(Duration::from_millis(1));
    };
    let done = move |result| {
        over.store(true, Ordering::SeqCst);
        sender.send(result).unwrap();
    };
    right.expect_later(TransferId(1), 1 << 30, Box::new(sink), Box::new(done));
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| left.send(TransferId(1), 1 << 30, &source(1)));
        let waiting = scope.spawn(|| right.expect(TransferId(2), 10).unwrap().wait(&|_: u64, _: &[u8]| {}));
        let landing = scope.spawn(|| right.wait_landed(&[u32::MAX >> 2; WAYS], None));
        std::thread::sleep(Duration::from_millis(100));
        right.close();
        assert_eq!(receiver.recv_timeout(Duration::from_secs(5)).unwrap(), Err(LinkLost));
        assert_eq!(blocked.join().unwrap(), Err(LinkLost));
        assert_eq!(waiting.join().unwrap(), Err(LinkLost));
        assert_eq!(landing.join().unwrap(), Err(LinkLost));
    });
    assert_eq!(right.fault(), Some(&Fault::Closed));
    assert!(matches!(left.fault(), Some(Fault::Connection { .. })));
    assert_eq!(left.send(TransferId(3), 10, &source(1)), Err(LinkLost));
    std::thread::sleep(Duration::from_millis(50));
}

#[test]
fn a_sender_whose_peer_closes_with_a_full_receive_buffer_is_woken() {
    for transport in ["tcp", "unix"] {
        let (left, right) = lanes_pair(transport, 2, LanesConfig::default(), LanesConfig::default());
        let (open, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        let sink = move |_: u64, _: &[u8]| {
            // Ends when the test drops the other end.
            let _ = gate.lock().unwrap().recv();
        };
        right.expect_later(TransferId(1), 1 << 30, Box::new(sink), Box::new(|_| {}));
        std::thread::scope(|scope| {
            let blocked = scope.spawn(|| left.send(TransferId(1), 1 << 30, &source(1)));
            let mut sent = left.chunks_sent();
            loop {
                std::thread::sleep(Duration::from_millis(300));
                let now = left.chunks_sent();
                if now == sent && now != [0; WAYS] {
                    break;
                }
                sent = now;
            }
            right.close();
            assert_eq!(blocked.join().unwrap(), Err(LinkLost), "{transport}");
        });
        drop(open);
    }
}

#[test]
fn a_panicking_sink_ends_the_lanes_and_nothing_else() {
    let (left, right) = lanes_pair("unix", 1, LanesConfig::default(), LanesConfig::default());
    let (sender, receiver) = channel();
    let done = move |result| sender.send(result).unwrap();
    right.expect_later(TransferId(1), 100, Box::new(|_: u64, _: &[u8]| panic!("a bad sink")), Box::new(done));
    left.send(TransferId(1), 100, &source(1)).unwrap();
    assert_eq!(receiver.recv_timeout(Duration::from_secs(5)).unwrap(), Err(LinkLost));
    assert!(matches!(right.fault(), Some(Fault::Internal { .. })));
}

fn chunk(transfer: u64, offset: u64, bytes: u32, reserved: u32) -> Vec<u8> {
    let mut frame = ChunkHeader { transfer: TransferId(transfer), offset, bytes, reserved }.to_bytes();
    frame.extend(vec![0; bytes.min(1 << 20) as usize]);
    frame
}

#[test]
fn hostile_chunks_break_the_session_with_a_reason() {
    let check = |window: u64, frames: &[Vec<u8>], reason: &str| {
        let (ours, mut theirs) = connections("unix", 1);
        let (sender, receiver) = channel();
        let on_fault = move |fault: &Fault| sender.send(fault.clone()).unwrap();
        let lanes = Lanes::new(ours, LanesConfig { early_window_bytes: window }, on_fault);
        lanes.expect_later(TransferId(1), 1000, Box::new(|_: u64, _: &[u8]| {}), Box::new(|_| {}));
        for frame in frames {
            let _ = theirs[0].tx.send(&[frame]);
        }
        let fault = receiver.recv_timeout(Duration::from_secs(5)).unwrap();
        assert!(matches!(&fault, Fault::Protocol { text } if text.contains(reason)), "{fault}, not {reason}");
    };
    check(0, &[chunk(2, 0, 10, 0)], "does not expect it");
    check(0, &[chunk(1, 0, 0, 0)], "malformed");
    check(0, &[chunk(1, 0, (1 << 20) + 1, 0)], "malformed");
    check(0, &[chunk(1, 0, 10, 1)], "malformed");
    check(0, &[chunk(1, 991, 10, 0)], "which has 1000");
    check(0, &[chunk(1, u64::MAX, 10, 0)], "which has 1000");
    check(0, &[chunk(1, 0, 10, 0), chunk(1, 9, 10, 0)], "came twice");
    check(1 << 20, &[chunk(2, 0, 1 << 20, 0), chunk(3, 0, 1, 0)], "window");
    check(1 << 20, &[chunk(2, 5, 100, 0), chunk(2, 0, 6, 0)], "came twice");
    check(1 << 20, &[chunk(2, u64::MAX - 5, 100, 0)], "reaches past every length");
    let scattered: Vec<_> = (0..2000).map(|at| chunk(2, 2 * at, 1, 0)).collect();
    check(1 << 20, &scattered, "scattered");
    check(1 << 30, &(0..70_000).map(|at| chunk(at + 5, 0, 1, 0)).collect::<Vec<_>>(), "window");
}

#[test]
fn early_bytes_after_the_end_of_their_transfer_are_noticed() {
    let (ours, mut theirs) = connections("unix", 1);
    let lanes = Lanes::new(ours, LanesConfig { early_window_bytes: 1 << 20 }, |_| {});
    theirs[0].tx.send(&[&chunk(1, 90, 20, 0)]).unwrap();
    let mut landed = [0; WAYS];
    landed[0] = 1;
    assert!(lanes.wait_landed(&landed, Some(Instant::now() + Duration::from_secs(5))).unwrap());
    assert!(lanes.expect(TransferId(1), 100).is_err());
    assert!(matches!(lanes.fault(), Some(Fault::Protocol { .. })));
}

#[test]
fn a_cancelled_transfer_fails_and_the_lanes_go_on() {
    let (left, right) = lanes_pair("unix", 1, LanesConfig::default(), LanesConfig::default());
    std::thread::scope(|scope| {
        let expected = right.expect(TransferId(1), 10).unwrap();
        let waiting = scope.spawn(|| expected.wait(&|_: u64, _: &[u8]| {}));
        right.cancel(TransferId(1));
        assert_eq!(waiting.join().unwrap(), Err(LinkLost));
    });
    let checker = Checker::new(4);
    let expected = right.expect(TransferId(1), 5000).unwrap();
    left.send(TransferId(1), 5000, &source(4)).unwrap();
    expected.wait(&checker.sink()).unwrap();
    assert_eq!(checker.count(), 5000);
}

/// Every second block is there already. The others come in the lanes, and everything lands once, whichever thread waits for it.
#[test]
fn bytes_that_are_here_already_land_beside_those_that_come() {
    const BLOCK: u64 = 1 << 20;
    let (bytes, transfer) = (BLOCK * 7 + 12_345, TransferId(1));
    let (near, far) = lanes_pair("unix", 2, LanesConfig::default(), LanesConfig::default());
    let blocks: Vec<(u64, u32)> =
        (0..8).map(|block| (block * BLOCK, (bytes - block * BLOCK).min(BLOCK) as u32)).collect();
    let supply = |near: &Lanes, far: &Lanes| {
        for (number, (start, length)) in blocks.iter().copied().enumerate() {
            if number % 2 == 0 {
                let mut at = start;
                let mut fill = |piece: &mut [u8]| {
                    source(5)(at, piece);
                    at += piece.len() as u64;
                };
                assert_eq!(near.land_here(transfer, start, length, &mut fill), Ok(Here::Landed));
                assert_eq!(at, start + u64::from(length), "all of it was asked for");
            } else {
                far.send_part_later(transfer, start, length.into(), Box::new(source(5)), Box::new(|_| {}));
            }
        }
    };
    // Lane threads hand the bytes over.
    let (checker, (over, is_over)) = (Checker::new(5), channel());
    near.expect_later(
        transfer,
        bytes,
        Box::new(checker.sink()),
        Box::new(move |result| over.send(result).unwrap()),
    );
    supply(&near, &far);
    assert_eq!(is_over.recv_timeout(Duration::from_secs(10)).unwrap(), Ok(()));
    assert_eq!(checker.count(), bytes);
    // A caller that waits takes them.
    let (checker, expectation) = (Checker::new(5), near.expect(transfer, bytes).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| supply(&near, &far));
        assert_eq!(expectation.wait(&checker.sink()), Ok(()));
    });
    assert_eq!(checker.count(), bytes);
    let nothing = near.land_here(transfer, 0, 1, &mut |_| panic!("it is not expected any more"));
    assert_eq!(nothing, Ok(Here::GivenUp));
}

#[test]
fn a_block_that_would_leave_too_many_holes_is_left_to_the_lanes() {
    let (near, _far) = lanes_pair("unix", 1, LanesConfig::default(), LanesConfig::default());
    let expectation = near.expect(TransferId(1), 1 << 20);
    let landed = |at: u64| near.land_here(TransferId(1), at * 2, 1, &mut |piece| piece.fill(1));
    std::thread::scope(|scope| {
        // Mail is taken out, or its buffers would run out.
        let waits = scope.spawn(|| expectation.unwrap().wait(&|_, _: &[u8]| {}));
        let crowded = (0..5000_u64).map(landed).position(|here| here == Ok(Here::Crowded));
        assert!(crowded.is_some_and(|count| count > 100), "{crowded:?}");
        assert!(near.fault().is_none());
        near.close();
        assert_eq!(waits.join().unwrap(), Err(LinkLost));
    });
}
