//! What holds for a connection whatever carries it.

mod support;

use std::cell::RefCell;
use std::io;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use support::*;
use transport::*;

/// How soon "at once" is on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(3);

on_every_transport! {
    fn an_echo_returns_every_byte_in_order(scheme) {
        let (client, server) = pair(scheme);
        let echo = std::thread::spawn(move || echo(server));
        let (tx, rx, _closer) = client.split();
        let (tx, rx) = (RefCell::new(tx), RefCell::new(rx));
        let sizes = prop_oneof![0..20usize, 0..5_000usize, 0..300_000usize];
        let message = proptest::collection::vec(sizes, 0..5);
        let mut runner = TestRunner::new(Config { cases: 30, failure_persistence: None, ..Config::default() });
        runner
            .run(&message, |sizes| {
                let parts: Vec<Vec<u8>> =
                    sizes.iter().enumerate().map(|(at, size)| pattern(*size, at as u8)).collect();
                let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                let expected = parts.concat();
                let mut back = vec![0; expected.len()];
                let (mut tx, mut rx) = (tx.borrow_mut(), rx.borrow_mut());
                let tx: &mut Tx = &mut tx;
                // An echo larger than the buffers between needs both directions at the same time.
                std::thread::scope(|scope| {
                    scope.spawn(|| tx.send(&slices).unwrap());
                    rx.recv_exact(&mut back).unwrap();
                });
                prop_assert!(back == expected);
                Ok(())
            })
            .unwrap();
        tx.borrow_mut().finish().unwrap();
        assert_eq!(rx.borrow_mut().recv(&mut [0; 10]).unwrap(), 0);
        echo.join().unwrap();
    }

    fn a_finished_direction_ends_after_its_last_byte_and_the_other_goes_on(scheme) {
        let (mut client, mut server) = pair(scheme);
        client.tx.send(&[b"last ", b"words"]).unwrap();
        client.tx.finish().unwrap();
        let mut text = [0; 10];
        server.rx.recv_exact(&mut text).unwrap();
        assert_eq!(&text, b"last words");
        assert_eq!(server.rx.recv(&mut text).unwrap(), 0);
        assert_eq!(server.rx.recv(&mut text).unwrap(), 0, "the end stays the end");
        assert_eq!(server.rx.try_recv(&mut text).unwrap(), Some(0));
        assert!(server.rx.wait(Some(Duration::ZERO)).unwrap(), "the end is readable");
        server.tx.send(&[b"heard you"]).unwrap();
        let mut text = [0; 9];
        client.rx.recv_exact(&mut text).unwrap();
        assert_eq!(&text, b"heard you");
        assert!(client.tx.send(&[b"more"]).is_err(), "nothing may follow the end");
    }

    fn an_end_in_the_middle_of_an_exact_receive_is_an_error(scheme) {
        let (mut client, mut server) = pair(scheme);
        client.tx.send(&[b"half"]).unwrap();
        client.tx.finish().unwrap();
        let error = server.rx.recv_exact(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    fn dropping_a_connection_ends_it_for_the_peer(scheme) {
        let (client, server) = pair(scheme);
        let (mut tx, mut rx, _) = server.split();
        let closer = client.closer.clone();
        drop(client);
        let started = Instant::now();
        assert_eq!(rx.recv(&mut [0; 10]).unwrap(), 0);
        // The peer may need a moment to learn that this end is gone.
        while tx.send(&[&[0; 1000]]).is_ok() {
            assert!(started.elapsed() < AT_ONCE);
        }
        closer.close();
    }

    fn try_recv_and_wait_never_block(scheme) {
        let (mut client, mut server) = pair(scheme);
        assert_eq!(server.rx.try_recv(&mut [0; 4]).unwrap(), None);
        assert!(!server.rx.wait(Some(Duration::ZERO)).unwrap());
        let started = Instant::now();
        assert!(!server.rx.wait(Some(Duration::from_millis(20))).unwrap());
        assert!(started.elapsed() >= Duration::from_millis(20));
        client.tx.send(&[b"abcdef"]).unwrap();
        assert!(server.rx.wait(Some(SOON)).unwrap());
        let mut buf = [0; 4];
        assert_eq!(server.rx.try_recv(&mut buf).unwrap(), Some(4));
        assert!(server.rx.wait(Some(Duration::ZERO)).unwrap(), "two bytes are left");
        assert_eq!(server.rx.try_recv(&mut buf).unwrap(), Some(2));
        assert_eq!(server.rx.try_recv(&mut buf).unwrap(), None);
    }

    fn a_wait_is_woken_by_a_byte(scheme) {
        let (mut client, mut server) = pair(scheme);
        let waiter = std::thread::spawn(move || {
            assert!(server.rx.wait(None).unwrap());
            server.rx.try_recv(&mut [0; 4]).unwrap()
        });
        std::thread::sleep(Duration::from_millis(20));
        client.tx.send(&[b"x"]).unwrap();
        assert_eq!(waiter.join().unwrap(), Some(1));
    }

    fn who_looks_before_sleeping_misses_nothing(scheme) {
        let spin = Duration::from_millis(20);
        let (mut client, mut server) = pair(scheme);
        server.rx.set_spin(spin);
        let receiver = std::thread::spawn(move || {
            let mut whole = [0; 6];
            server.rx.recv_exact(&mut whole).unwrap();
            let mut rest = [0; 10];
            let (count, end) = (server.rx.recv(&mut rest).unwrap(), server.rx.recv(&mut [0; 1]).unwrap());
            (whole, rest[..count].to_vec(), end)
        });
        // While it looks, and when it sleeps.
        client.tx.send(&[b"abc"]).unwrap();
        std::thread::sleep(spin / 4);
        client.tx.send(&[b"def"]).unwrap();
        std::thread::sleep(spin * 4);
        client.tx.send(&[b"ghi"]).unwrap();
        std::thread::sleep(spin / 4);
        client.tx.finish().unwrap();
        assert_eq!(receiver.join().unwrap(), (*b"abcdef", b"ghi".to_vec(), 0));
    }

    fn a_closer_ends_who_looks_before_sleeping(scheme) {
        let (client, mut server) = pair(scheme);
        server.rx.set_spin(Duration::from_secs(60));
        let closer = server.closer.clone();
        let receiver = std::thread::spawn(move || server.rx.recv(&mut [0; 1]));
        std::thread::sleep(Duration::from_millis(20));
        let started = Instant::now();
        closer.close();
        assert_eq!(receiver.join().unwrap().unwrap(), 0);
        assert!(started.elapsed() < AT_ONCE);
        drop(client);
    }

    fn a_closer_wakes_a_blocked_receive_on_both_sides(scheme) {
        let (client, server) = pair(scheme);
        let (_tx, mut rx, closer) = client.split();
        let (_server_tx, mut server_rx, _server_closer) = server.split();
        let near = std::thread::spawn(move || rx.recv(&mut [0; 1]));
        let far = std::thread::spawn(move || server_rx.recv(&mut [0; 1]));
        std::thread::sleep(Duration::from_millis(30));
        let started = Instant::now();
        closer.clone().close();
        assert_eq!(near.join().unwrap().unwrap(), 0);
        assert_eq!(far.join().unwrap().unwrap(), 0);
        assert!(started.elapsed() < AT_ONCE);
        closer.close();
    }

    fn a_closer_wakes_a_blocked_send(scheme) {
        let (client, server) = pair(scheme);
        let (mut tx, _rx, closer) = client.split();
        let sender = std::thread::spawn(move || {
            let block = vec![1; 1 << 20];
            loop {
                if let Err(error) = tx.send(&[&block]) {
                    return error;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!sender.is_finished(), "the sender should be blocked by now");
        let started = Instant::now();
        closer.close();
        let error = sender.join().unwrap();
        assert!(started.elapsed() < AT_ONCE);
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "{error}");
        drop(server);
    }

    fn a_blocked_receive_does_not_hold_a_send_back_nor_the_reverse(scheme) {
        let (client, server) = pair(scheme);
        let (mut tx, mut rx, _) = client.split();
        let (mut far_tx, mut far_rx, far_closer) = server.split();
        // Blocked receive, then send.
        let receiver = std::thread::spawn(move || {
            let mut buf = [0; 2];
            rx.recv_exact(&mut buf).unwrap();
            rx
        });
        std::thread::sleep(Duration::from_millis(20));
        tx.send(&[b"ping"]).unwrap();
        far_rx.recv_exact(&mut [0; 4]).unwrap();
        far_tx.send(&[b"ok"]).unwrap();
        let mut rx = receiver.join().unwrap();
        // Blocked send, then receive.
        let sender = std::thread::spawn(move || while tx.send(&[&vec![1; 1 << 20]]).is_ok() {});
        std::thread::sleep(Duration::from_millis(100));
        for round in 0..100u8 {
            far_tx.send(&[&[round; 1000]]).unwrap();
            let mut buf = [0; 1000];
            rx.recv_exact(&mut buf).unwrap();
            assert_eq!(buf, [round; 1000]);
        }
        far_closer.close();
        drop((far_tx, far_rx));
        sender.join().unwrap();
    }

    fn many_connections_of_one_listener_do_not_mix(scheme) {
        const CLIENTS: u8 = 16;
        let listener = Listener::bind(&fresh_address(scheme)).unwrap();
        let address = listener.address().clone();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..CLIENTS {
                    let raw = listener.accept().unwrap().unwrap();
                    scope.spawn(|| echo(raw.serve(&server_security(), soon()).unwrap()));
                }
            });
            for id in 0..CLIENTS {
                let address = &address;
                scope.spawn(move || {
                    let preamble = Preamble::new(ConnectionKind::Events, 0, [id; 16]);
                    let mut connection = connect(address, &client_security(scheme), preamble, SOON).unwrap();
                    for round in 0..20usize {
                        let sent = pattern(round * 997, id);
                        connection.tx.send(&[&sent[..sent.len() / 3], &sent[sent.len() / 3..]]).unwrap();
                        let mut back = vec![0; sent.len()];
                        connection.rx.recv_exact(&mut back).unwrap();
                        assert!(back == sent);
                    }
                });
            }
        });
    }

    fn bulk_flows_both_ways_at_the_same_time(scheme) {
        const BYTES: usize = 8 << 20;
        let (client, server) = pair_of(scheme, ConnectionKind::Lane);
        let data = pattern(BYTES, 1);
        std::thread::scope(|scope| {
            for end in [client, server] {
                let (mut tx, mut rx, closer) = end.split();
                let data = &data;
                scope.spawn(move || {
                    data.chunks(1_000_003).for_each(|chunk| tx.send(&[chunk]).unwrap());
                    tx
                });
                scope.spawn(move || {
                    let mut back = vec![0; BYTES];
                    rx.recv_exact(&mut back).unwrap();
                    assert!(back == *data);
                    drop(closer);
                });
            }
        });
    }

    fn many_parts_in_one_send_arrive(scheme) {
        let (mut client, mut server) = pair(scheme);
        let data = pattern(3000, 9);
        let parts: Vec<&[u8]> = data.chunks(1).collect();
        client.tx.send(&parts).unwrap();
        client.tx.send(&[]).unwrap();
        client.tx.send(&[b"", b""]).unwrap();
        let mut back = vec![0; 3000];
        server.rx.recv_exact(&mut back).unwrap();
        assert!(back == data);
        assert_eq!(server.rx.try_recv(&mut back).unwrap(), None);
    }

    fn an_abandoned_copy_says_nothing_to_the_peer(scheme) {
        // What a forked child does, without the fork: a second set of the same descriptors stays behind.
        let (client, mut server) = pair(scheme);
        let fds = client.raw_fds();
        assert!(!fds.is_empty());
        let kept: Vec<_> = fds.iter().map(|fd| duplicate(*fd)).collect();
        client.closer.abandon();
        let (mut tx, mut rx, closer) = client.split();
        assert!(tx.send(&[b"x"]).is_err());
        assert!(!matches!(rx.recv(&mut [0; 1]), Ok(1..)));
        let _ = tx.finish();
        closer.close();
        drop((tx, rx));
        assert_eq!(server.rx.try_recv(&mut [0; 10]).unwrap(), None, "the peer must notice nothing");
        assert!(!server.rx.wait(Some(Duration::from_millis(20))).unwrap());
        server.tx.send(&[b"still there"]).unwrap();
        drop(kept);
    }
}

fn duplicate(fd: std::os::fd::RawFd) -> std::os::fd::OwnedFd {
    // SAFETY: the connection that owns `fd` is alive for the length of this call.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    borrowed.try_clone_to_owned().unwrap()
}
