//! A peer that writes what it likes into the shared memory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::half::{self, Direction};
use super::map::{HEADER_BYTES, Ring};
use super::memory::Memory;
use super::setup::accept_rings;
use crate::connection::Connection;
use crate::fd;
use crate::socket::Socket;

const CAPACITY: usize = 4096;

/// A connection of ours, and the hostile peer's view of the same memory.
struct Hostile {
    ours: Connection,
    /// What we send.
    out: Ring,
    /// What we receive.
    into: Ring,
    /// Held, so that we do not see a hang-up.
    _socket: OwnedFd,
}

fn hostile() -> Hostile {
    let (near, far) = fd::socket_pair().unwrap();
    let direction = || {
        let memory = fd::memfd((HEADER_BYTES + CAPACITY) as u64).unwrap();
        let ring = Ring::map(&memory, CAPACITY).unwrap();
        let theirs = Ring::map(&memory, CAPACITY).unwrap();
        (Direction { ring, data: fd::eventfd().unwrap(), space: fd::eventfd().unwrap() }, theirs)
    };
    let ((ours_out, out), (ours_into, into)) = (direction(), direction());
    Hostile {
        ours: half::connection(Socket::from(near), ours_out, ours_into, Memory::Refused),
        out,
        into,
        _socket: far,
    }
}

#[test]
fn an_impossible_head_is_an_error_and_never_a_bad_read() {
    for head in [CAPACITY as u64 + 1, u64::MAX, 1 << 63, u64::MAX - CAPACITY as u64] {
        let mut hostile = hostile();
        hostile.into.head().store(head, Ordering::Release);
        let error = hostile.ours.rx.recv(&mut [0; 100_000]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "head {head}");
        assert!(hostile.ours.rx.try_recv(&mut [0; 10]).is_err());
        assert!(hostile.ours.rx.wait(Some(Duration::ZERO)).is_err());
    }
}

#[test]
fn an_impossible_tail_is_an_error_and_never_a_bad_write() {
    for tail in [1, u64::MAX - CAPACITY as u64, 1 << 40] {
        let mut hostile = hostile();
        hostile.out.tail().store(tail, Ordering::Release);
        let error = hostile.ours.tx.send(&[&[1; 100_000]]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "tail {tail}");
    }
}

#[test]
fn a_head_that_runs_backwards_is_an_error() {
    let mut hostile = hostile();
    hostile.into.head().store(100, Ordering::Release);
    assert_eq!(hostile.ours.rx.recv(&mut [0; 50]).unwrap(), 50);
    hostile.into.head().store(10, Ordering::Release);
    assert!(hostile.ours.rx.recv(&mut [0; 50]).is_err());
}

#[test]
fn words_that_change_all_the_time_corrupt_data_at_most() {
    let Hostile { ours, out, into, _socket } = hostile();
    let (mut tx, mut rx, closer) = ours.split();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 0x1234_5678_9abc_def1u64;
            while !stop.load(Ordering::Relaxed) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let near = random % 10_000;
                let value = if random & 1 << 60 == 0 { near } else { random };
                for ring in [&out, &into] {
                    ring.head().store(value, Ordering::Relaxed);
                    ring.tail().store(value, Ordering::Relaxed);
                    ring.reader_sleeps().store(random as u32, Ordering::Relaxed);
                    ring.writer_sleeps().store(random as u32, Ordering::Relaxed);
                    ring.write(random, &[0xff; 64]);
                }
            }
        });
        let sender = scope.spawn(move || {
            let mut outcomes = 0u32;
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(100) {
                match tx.send(&[&[7; 3000], &[8; 3000]]) {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                    _ => outcomes += 1,
                }
            }
            outcomes
        });
        let mut buf = vec![0; 10_000];
        let mut outcomes = 0u32;
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(100) {
            if let Ok(Some(count)) = rx.try_recv(&mut buf) {
                assert!(count <= CAPACITY);
            }
            outcomes += 1;
        }
        closer.close();
        assert!(outcomes + sender.join().unwrap() > 0);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn bytes_on_the_socket_after_the_set_up_end_the_connection_and_do_no_more() {
    let mut hostile = hostile();
    Socket::from(hostile._socket.try_clone().unwrap()).send_all(&[b"surprise"]).unwrap();
    assert_eq!(hostile.ours.rx.recv(&mut [0; 10]).unwrap(), 0);
    assert!(hostile.ours.tx.send(&[b"x"]).is_err());
}

#[test]
fn rings_that_a_hostile_server_offers_are_checked_before_they_are_mapped() {
    let sealed = |bytes: usize| fd::memfd(bytes as u64).unwrap();
    let unsealed = || {
        let file = tempfile::tempfile().unwrap();
        file.set_len((HEADER_BYTES + CAPACITY) as u64).unwrap();
        OwnedFd::from(file)
    };
    let good = HEADER_BYTES + CAPACITY;
    let offer = |memory: [OwnedFd; 2], capacity: u64, fds: usize| {
        let (near, far) = fd::socket_pair().unwrap();
        let events: Vec<OwnedFd> = (0..4).map(|_| fd::eventfd().unwrap()).collect();
        let all = [&memory[0], &events[0], &events[1], &memory[1], &events[2], &events[3]];
        let all: Vec<_> = all.iter().take(fds).map(|fd| fd.as_fd()).collect();
        fd::send_fds(far.as_fd(), &all, &capacity.to_le_bytes()).unwrap();
        accept_rings(Socket::from(near), false, Instant::now() + Duration::from_secs(5))
    };
    let capacity = CAPACITY as u64;
    assert!(offer([sealed(good), sealed(good)], capacity, 6).is_ok());
    for bad in [
        offer([sealed(good), unsealed()], capacity, 6),
        offer([sealed(good), sealed(good - 1)], capacity, 6),
        offer([sealed(good), sealed(good)], capacity * 2, 6),
        offer([sealed(good), sealed(good)], capacity - 1, 6),
        offer([sealed(good), sealed(good)], 1 << 40, 6),
        offer([sealed(good), sealed(good)], 0, 6),
        offer([sealed(good), sealed(good)], capacity, 5),
    ] {
        assert_eq!(bad.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
    let (near, _far) = fd::socket_pair().unwrap();
    let silent = accept_rings(Socket::from(near), false, Instant::now() + Duration::from_millis(20));
    assert_eq!(silent.unwrap_err().kind(), io::ErrorKind::TimedOut);
}

/// A server's connection that takes memory, and the socket of its client.
fn taking_memory() -> (Connection, OwnedFd) {
    let (near, far) = fd::socket_pair().unwrap();
    let direction = || {
        let memory = fd::memfd((HEADER_BYTES + CAPACITY) as u64).unwrap();
        let ring = Ring::map(&memory, CAPACITY).unwrap();
        Direction { ring, data: fd::eventfd().unwrap(), space: fd::eventfd().unwrap() }
    };
    let memory = Memory::Taken(Default::default());
    (half::connection(Socket::from(near), direction(), direction(), memory), far)
}

#[test]
fn memory_is_taken_in_the_order_of_passing_and_wakes_nobody_for_good() {
    let (mut server, client) = taking_memory();
    let inbox = server.inbox().unwrap();
    assert!(server.courier().is_none());
    assert!(inbox.take().unwrap().is_none());
    let sizes = [4096, 8192];
    for bytes in sizes {
        fd::pass_fd(client.as_fd(), fd::memfd(bytes).unwrap().as_fd()).unwrap();
    }
    // A thread that sleeps meanwhile neither sees the end nor takes the memory for data.
    assert!(!server.rx.wait(Some(Duration::from_millis(30))).unwrap());
    for bytes in sizes {
        assert_eq!(fd::sealed_size(&inbox.take().unwrap().unwrap()).unwrap(), bytes);
    }
    assert!(inbox.take().unwrap().is_none());
    drop(client);
    assert_eq!(server.rx.recv(&mut [0; 8]).unwrap(), 0, "the end is still seen");
}

#[test]
fn bytes_without_memory_and_too_much_memory_end_the_connection() {
    let ends = |say: &dyn Fn(&OwnedFd)| {
        let (mut server, client) = taking_memory();
        say(&client);
        assert!(server.rx.wait(Some(Duration::from_secs(5))).unwrap());
        assert_eq!(server.rx.recv(&mut [0; 8]).unwrap(), 0);
    };
    ends(&|client| {
        rustix::net::send(client, b"?", rustix::net::SendFlags::NOSIGNAL).unwrap();
    });
    ends(&|client| fd::send_fds(client.as_fd(), &[client.as_fd(), client.as_fd()], b"two").unwrap());
    let memory = fd::memfd(4096).unwrap();
    ends(&|client| (0..20).for_each(|_| fd::pass_fd(client.as_fd(), memory.as_fd()).unwrap()));
}

#[test]
fn a_side_that_does_not_take_memory_has_no_inbox() {
    let hostile = hostile();
    assert!(hostile.ours.inbox().is_none() && hostile.ours.courier().is_none());
}
