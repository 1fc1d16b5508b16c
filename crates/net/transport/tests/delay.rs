//! The delay emulator: never early, in order, as wide as before.

mod support;

use std::time::{Duration, Instant};

use bench_harness::bare;
use support::*;
use transport::*;

on_every_transport! {
    fn a_round_trip_grows_by_the_chosen_amount(scheme) {
        let rtt = Duration::from_millis(5);
        let (client, mut server) = pair(scheme);
        let mut client = client.delayed(rtt).unwrap();
        let echo = std::thread::spawn(move || bare::serve_ping_pong(&mut server, 64));
        // A busy machine may stop the threads for longer than all rounds of one try take.
        let tries: Vec<_> = (0..5).map(|_| bare::ping_pong(&mut client, 64, 20).unwrap()).collect();
        assert!(tries.iter().all(|latencies| latencies.sorted()[0] >= rtt), "{tries:?}");
        assert!(tries.iter().any(|latencies| latencies.p50() < rtt + Duration::from_millis(3)), "{tries:?}");
        drop(client);
        echo.join().unwrap().unwrap();
    }

    fn a_delayed_connection_ends_like_any_other(scheme) {
        let (client, mut server) = pair(scheme);
        let mut client = client.delayed(Duration::from_millis(500)).unwrap();
        client.tx.send(&[b"last ", b"words"]).unwrap();
        client.tx.finish().unwrap();
        assert!(client.tx.send(&[b"more"]).is_err());
        let mut text = [0; 10];
        server.rx.recv_exact(&mut text).unwrap();
        assert_eq!(&text, b"last words");
        assert_eq!(server.rx.recv(&mut text).unwrap(), 0);
        server.tx.send(&[b"heard"]).unwrap();
        assert_eq!(client.rx.try_recv(&mut text).unwrap(), None);
        assert!(!client.rx.wait(Some(Duration::from_millis(1))).unwrap());
        assert!(client.rx.wait(None).unwrap());
        assert_eq!(client.rx.try_recv(&mut text).unwrap(), Some(5));
        drop(server);
        assert_eq!(client.rx.recv(&mut text).unwrap(), 0);
    }

    fn what_was_sent_before_a_drop_still_arrives(scheme) {
        let (client, mut server) = pair(scheme);
        let mut client = client.delayed(Duration::from_millis(20)).unwrap();
        let data = pattern(100_000, 3);
        client.tx.send(&[&data]).unwrap();
        drop(client);
        let mut back = vec![0; data.len()];
        server.rx.recv_exact(&mut back).unwrap();
        assert!(back == data);
        assert_eq!(server.rx.recv(&mut back).unwrap(), 0);
    }

    fn a_closer_does_not_wait_for_the_delay(scheme) {
        let (client, server) = pair(scheme);
        let (mut tx, mut rx, closer) = client.delayed(Duration::from_secs(60)).unwrap().split();
        tx.send(&[b"on the way"]).unwrap();
        let receiver = std::thread::spawn(move || rx.recv(&mut [0; 1]));
        let (_far_tx, mut far_rx, _) = server.split();
        std::thread::sleep(Duration::from_millis(20));
        let started = Instant::now();
        closer.close();
        assert_eq!(receiver.join().unwrap().unwrap(), 0);
        assert_eq!(far_rx.recv(&mut [0; 1]).unwrap(), 0);
        assert!(tx.send(&[b"x"]).is_err());
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn many_messages_share_one_delay() {
    // 200 messages of 100 kB at a delay of 20 ms: one after the other they would take four seconds.
    let (client, mut server) = pair_of(Scheme::Unix, ConnectionKind::Lane);
    let mut client = client.delayed(Duration::from_millis(40)).unwrap();
    let started = Instant::now();
    let receiver = std::thread::spawn(move || {
        let mut back = vec![0; 100_000];
        for round in 0..200u8 {
            server.rx.recv_exact(&mut back).unwrap();
            assert!(back.iter().all(|byte| *byte == round));
        }
        started.elapsed()
    });
    for round in 0..200u8 {
        client.tx.send(&[&[round; 100_000]]).unwrap();
    }
    let took = receiver.join().unwrap();
    assert!(took >= Duration::from_millis(20));
    assert!(took < Duration::from_secs(2), "{took:?}");
}
