//! Connections over a function in the same process: the guest's side, a host's port, the box's side and the listener
//! behind it are all real; only the virtual machine is missing.

mod rig;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpu_registers::{CHANNELS, channel_at, control, register, state, status};
use rig::{Rig, random};

use super::claim::{INBOUND_BYTES, OUTBOUND_BYTES};
use crate::connection::Connection;

const SOON: Duration = Duration::from_secs(20);

/// Sends everything back until the end.
fn echo(mut stream: UnixStream) {
    let mut buffer = vec![0; 100_000];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

/// Sends `data` in pieces of random sizes, receives as much, and gives that.
fn to_and_fro(connection: Connection, data: &[u8], seed: u64) -> Vec<u8> {
    let (mut tx, mut rx, _closer) = connection.split();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut rest, mut seed) = (data, seed);
            while !rest.is_empty() {
                let longest = [20, 500, 70_000, 2_000_000][(random(&mut seed) % 4) as usize];
                let here = rest.len().min(random(&mut seed) as usize % longest + 1);
                let (piece, later) = rest.split_at(here);
                let (one, other) = piece.split_at(here / 3);
                tx.send(&[one, other]).unwrap();
                rest = later;
            }
            tx.finish().unwrap();
        });
        let mut seed = !seed;
        let (mut back, mut buffer) = (Vec::with_capacity(data.len()), vec![0; 1 << 20]);
        loop {
            let length = random(&mut seed) as usize % buffer.len() + 1;
            match rx.recv(&mut buffer[..length]).unwrap() {
                0 => return back,
                count => back.extend_from_slice(&buffer[..count]),
            }
        }
    })
}

fn pattern(bytes: usize, mut seed: u64) -> Vec<u8> {
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        data.extend_from_slice(&random(&mut seed).to_le_bytes());
    }
    data.truncate(bytes);
    data
}

#[test]
fn a_hundred_megabytes_go_there_and_back() {
    let rig = Rig::serving(echo);
    let data = pattern(100_000_000, 1);
    let started = Instant::now();
    let back = to_and_fro(rig.open().unwrap(), &data, 7);
    println!("{:.0} MB/s each way", data.len() as f64 / 1e6 / started.elapsed().as_secs_f64());
    assert!(back == data);
    assert_eq!(rig.violations(), Default::default());
}

#[test]
fn sixteen_channels_at_once_keep_their_bytes_apart() {
    let rig = Rig::serving(echo);
    std::thread::scope(|scope| {
        for seed in 1..=16 {
            let rig = &rig;
            scope.spawn(move || {
                let data = pattern(2_000_000, seed);
                let back = to_and_fro(rig.open().unwrap(), &data, seed);
                assert!(back == data, "channel {seed}");
            });
        }
    });
}

#[test]
fn small_messages_go_to_and_fro_in_order() {
    let rig = Rig::serving(echo);
    let mut connection = rig.open().unwrap();
    let mut times: Vec<Duration> = (0..200u32)
        .map(|round| {
            let started = Instant::now();
            connection.tx.send(&[&round.to_le_bytes()]).unwrap();
            let mut back = [0; 4];
            connection.rx.recv_exact(&mut back).unwrap();
            assert_eq!(back, round.to_le_bytes());
            started.elapsed()
        })
        .collect();
    times.sort();
    println!("round trip p50 {:?}", times[100]);
}

#[test]
fn nothing_there_is_nothing_and_a_timeout_is_kept() {
    let rig = Rig::serving(echo);
    let mut connection = rig.open().unwrap();
    assert_eq!(connection.rx.try_recv(&mut [0; 8]).unwrap(), None);
    assert!(!connection.rx.wait(Some(Duration::ZERO)).unwrap());
    let started = Instant::now();
    assert!(!connection.rx.wait(Some(Duration::from_millis(30))).unwrap());
    assert!(started.elapsed() >= Duration::from_millis(30));
    connection.tx.send(&[b"now"]).unwrap();
    assert!(connection.rx.wait(Some(SOON)).unwrap());
    let mut back = [0; 8];
    let mut have = 0;
    while have < 3 {
        have += connection.rx.try_recv(&mut back[have..]).unwrap().unwrap_or(0);
    }
    assert_eq!(&back[..3], b"now");
}

#[test]
fn a_close_here_ends_both_and_what_was_sent_arrives() {
    let (tell, told) = std::sync::mpsc::channel();
    let rig = Rig::serving(move |mut stream: UnixStream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        tell.send(all).unwrap();
    });
    let data = pattern(OUTBOUND_BYTES, 3);
    let mut connection = rig.open().unwrap();
    connection.tx.send(&[&data]).unwrap();
    let (mut tx, mut rx, closer) = connection.split();
    let reader = std::thread::spawn(move || rx.recv(&mut [0; 8]).unwrap());
    std::thread::sleep(Duration::from_millis(20));
    closer.close();
    assert_eq!(reader.join().unwrap(), 0);
    assert!(tx.send(&[b"late"]).is_err());
    assert!(told.recv_timeout(SOON).unwrap() == data);
    // Dropping is closing too.
    let mut connection = rig.open().unwrap();
    connection.tx.send(&[&data[..1000]]).unwrap();
    drop(connection);
    assert!(told.recv_timeout(SOON).unwrap() == data[..1000]);
}

#[test]
fn a_worker_that_goes_is_noticed_after_its_last_byte() {
    let rig = Rig::serving(|mut stream: UnixStream| stream.write_all(b"farewell").unwrap());
    let mut connection = rig.open().unwrap();
    let mut text = [0; 8];
    connection.rx.recv_exact(&mut text).unwrap();
    assert_eq!(&text, b"farewell");
    assert_eq!(connection.rx.recv(&mut text).unwrap(), 0);
    let started = Instant::now();
    while connection.tx.send(&[&[0; 1000]]).is_ok() {
        assert!(started.elapsed() < SOON, "a sender learns of it too");
    }
}

#[test]
fn a_sender_waits_for_a_worker_that_is_slow_and_wakes_when_it_dies() {
    let (let_go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let rig = Rig::serving(move |_stream: UnixStream| {
        let _ = wait.lock().unwrap().recv();
    });
    let mut connection = rig.open().unwrap();
    let sender = std::thread::spawn(move || {
        let mut sent = 0usize;
        while connection.tx.send(&[&[1; 100_000]]).is_ok() {
            sent += 100_000;
        }
        sent
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(!sender.is_finished(), "nobody reads");
    let_go.send(()).unwrap();
    // Ring, window and socket buffers: bounded, whatever the program wants to send.
    assert!(sender.join().unwrap() < 8 << 20);
}

#[test]
fn the_function_brings_along_what_opens_it() {
    let rig = Rig::without_worker();
    let found = || super::read_pass(&*rig.registers()).unwrap();
    assert_eq!(found(), "");
    for text in ["dxpu.lease.token-1", "", &"ä".repeat(1024)] {
        rig.pass().set(text);
        assert_eq!(found(), text);
    }
    rig.pass().set(&"x".repeat(2049));
    assert_eq!(found(), "", "what does not fit is not shown in part");
}

#[test]
fn no_worker_is_an_error_that_says_so_at_once() {
    let rig = Rig::without_worker();
    let started = Instant::now();
    let error = rig.open().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(error.to_string().contains("no worker"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
    // The channel can be used again.
    rig.serve(echo);
    assert_eq!(to_and_fro(rig.open().unwrap(), b"after all", 1), b"after all");
}

#[test]
fn a_function_that_is_reset_or_gone_ends_the_wait() {
    let rig = Rig::serving(echo);
    let mut connection = rig.open().unwrap();
    let reader = std::thread::spawn(move || connection.rx.recv(&mut [0; 8]).unwrap());
    std::thread::sleep(Duration::from_millis(20));
    rig.reset();
    assert_eq!(reader.join().unwrap(), 0);
    assert_eq!(to_and_fro(rig.open().unwrap(), b"anew", 1), b"anew");
    let mut connection = rig.open().unwrap();
    let reader = std::thread::spawn(move || connection.rx.recv(&mut [0; 8]).unwrap());
    rig.cut();
    assert_eq!(reader.join().unwrap(), 0);
    assert!(rig.open().is_err());
}

#[test]
fn threads_and_channels_come_back() {
    let rig = Rig::serving(echo);
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    to_and_fro(rig.open().unwrap(), b"warm", 1);
    for round in 0..200u64 {
        let data = pattern((random(&mut (round + 1)) % 5000) as usize, round + 1);
        assert!(to_and_fro(rig.open().unwrap(), &data, round + 1) == data);
    }
    // Other tests run beside this one: only the growth of 200 connections would be a leak.
    assert!(threads() < 200, "{}", threads());
    assert!(rig.highest_channel() < CHANNELS / 2, "channels are used again");
}

#[test]
fn all_channels_in_use_is_said_and_one_that_ends_is_enough() {
    let rig = Rig::serving(echo);
    let mut held: Vec<Connection> = (0..CHANNELS).map(|_| rig.open().unwrap()).collect();
    let error = rig.open().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
    held.pop();
    assert!(rig.open().is_ok());
}

#[test]
fn what_a_killed_process_left_open_is_ended_by_the_next_one() {
    let (tell, ended) = std::sync::mpsc::channel();
    let rig = Rig::serving(move |stream: UnixStream| {
        echo(stream);
        tell.send(()).unwrap();
    });
    // Its lock is gone, its channel is not.
    rig.open_and_die(0);
    rig.open_and_die(1);
    assert!(ended.recv_timeout(Duration::from_millis(100)).is_err());
    let connection = rig.open().unwrap();
    ended.recv_timeout(SOON).unwrap();
    ended.recv_timeout(SOON).unwrap();
    assert_eq!(to_and_fro(connection, b"alive", 1), b"alive");
}

#[test]
fn a_function_that_writes_impossible_numbers_is_an_error() {
    for (word, value) in [
        (status::INBOUND_PUT, INBOUND_BYTES as u32 + 1),
        (status::INBOUND_PUT, u32::MAX),
        (status::OUTBOUND_TAKEN, 1),
        (status::STATE, state::FAULT),
    ] {
        let rig = Rig::serving(echo);
        let mut connection = rig.open().unwrap();
        rig.page(0).word(word as usize).store(value.to_le(), Ordering::Release);
        let kind = std::io::ErrorKind::InvalidData;
        match word {
            status::OUTBOUND_TAKEN => {
                assert_eq!(connection.tx.send(&[&[0; 10]]).unwrap_err().kind(), kind);
            }
            _ => assert_eq!(connection.rx.recv(&mut [0; 10]).unwrap_err().kind(), kind),
        }
    }
}

#[test]
fn a_guest_that_lies_loses_its_channel_and_no_other() {
    let rig = Rig::serving(echo);
    let mut liar = rig.open().unwrap();
    let honest = rig.open().unwrap();
    rig.registers().write(channel_at(0) + register::OUTBOUND_PUT, 0x7000_0000);
    assert!(liar.rx.recv(&mut [0; 8]).is_err());
    assert!(to_and_fro(honest, &pattern(100_000, 5), 5) == pattern(100_000, 5));
    drop(liar);
    rig.registers().write(channel_at(0) + register::CONTROL, control::RESET);
    assert_eq!(to_and_fro(rig.open().unwrap(), b"honest now", 1), b"honest now");
}

#[test]
fn an_abandoned_connection_says_nothing_to_its_worker() {
    let rig = Rig::serving(echo);
    let mut connection = rig.open().unwrap();
    connection.tx.send(&[b"parent"]).unwrap();
    let mut text = [0; 6];
    connection.rx.recv_exact(&mut text).unwrap();
    connection.closer.abandon();
    assert!(connection.tx.send(&[b"child"]).is_err() && connection.rx.recv(&mut text).is_err());
    drop(connection);
    assert_eq!(rig.registers().read(channel_at(0) + register::STATE), state::OPEN);
}
