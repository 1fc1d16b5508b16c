//! Peers that do not keep to the protocol. Whatever they send, the server refuses it and serves the next one.

mod device;

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use device::{Slot, guest_memory};
use proptest::prelude::*;
use vfio_user::message::{Command, Direction, HEADER_BYTES, Header, Request, irq};
use vfio_user::{Client, Connection, FDS_MAX, PENDING_MAX};

fn command(id: u16, request: Request<'_>) -> Vec<u8> {
    let body = request.encode();
    let direction = Direction::Command { no_reply: false };
    let header = Header { id, command: request.command() as u16, body_bytes: body.len(), direction };
    [header.encode().to_vec(), body].concat()
}

fn hello() -> Vec<u8> {
    command(0, Request::Version { major: 0, minor: 9, capabilities: b"{}" })
}

/// A peer that has agreed on a version.
fn peer(slot: &Slot) -> Connection {
    let mut connection = Connection::new(UnixStream::connect(&slot.path).unwrap()).unwrap();
    connection.send(&hello(), &[]).unwrap();
    let answer = connection.receive().unwrap();
    assert_eq!(&answer.body[..4], [0, 0, 0, 0], "version 0.0");
    connection
}

fn ask(connection: &mut Connection, request: Request<'_>, fds: &[BorrowedFd<'_>]) -> Option<u32> {
    connection.send(&command(7, request), fds).unwrap();
    let answer = connection.receive().unwrap();
    assert_eq!((answer.header.id, answer.header.command), (7, request.command() as u16));
    match answer.header.direction {
        Direction::Reply { error } => error,
        other => panic!("{other:?} is no reply"),
    }
}

fn still_serves(slot: &Slot) {
    let mut client = Client::connect(&slot.path).unwrap();
    let mut config = [0; 4];
    client.read(7, 4, &mut config).unwrap();
    assert_eq!(config, [4, 5, 6, 7]);
}

#[test]
fn requests_out_of_bounds_are_errors_and_not_ends() {
    let slot = Slot::new(Duration::from_millis(100));
    let mut p = peer(&slot);
    let read = |region, offset, count| Request::RegionRead { region, offset, count };
    for request in [
        read(0, 8192, 1),
        read(0, 8191, 2),
        read(0, u64::MAX, 4),
        read(0, 0, 0),
        read(0, 0, u32::MAX),
        read(7, 4093, 4),
        read(1, 0, 1),
        read(9, 0, 1),
        read(u32::MAX, 0, 1),
        Request::RegionWrite { region: 0, offset: 8190, data: &[0; 4] },
        Request::RegionWrite { region: 8, offset: 0, data: &[0; 4] },
        Request::RegionInfo { index: 9 },
        Request::IrqInfo { index: u32::MAX },
        Request::SetIrqs { flags: 0x24, index: 1, start: 3, count: 2, data: &[] },
        Request::SetIrqs { flags: 0x24, index: 1, start: u32::MAX, count: u32::MAX, data: &[] },
        Request::DmaMap { flags: 3, offset: 0, address: u64::MAX - 4095, size: 8192 },
        Request::DmaMap { flags: 3, offset: 0, address: 12, size: 4096 },
    ] {
        assert_eq!(ask(&mut p, request, &[]), Some(22), "{request:?}");
    }
    assert_eq!(ask(&mut p, Request::DmaUnmap { flags: 0, address: 0, size: 4096 }, &[]), Some(2));
    assert_eq!(ask(&mut p, Request::DmaRead { address: 0, count: 4 }, &[]), Some(95));
    assert_eq!(ask(&mut p, read(7, 4092, 4), &[]), None);
    assert!(slot.seen.lock().unwrap().writes.is_empty());
}

#[test]
fn file_descriptors_are_looked_at() {
    let slot = Slot::new(Duration::from_millis(100));
    let mut p = peer(&slot);
    let memory = guest_memory(0x2000);
    let (pipe, _end) = std::io::pipe().unwrap();
    let map = |address, size, offset| Request::DmaMap { flags: 3, offset, address, size };
    assert_eq!(ask(&mut p, map(0, 0x4000, 0), &[memory.as_fd()]), Some(22), "beyond the file");
    assert_eq!(ask(&mut p, map(0, 0x1000, 1 << 63), &[memory.as_fd()]), Some(22), "beyond the file");
    assert_eq!(ask(&mut p, map(0, 0x1000, 0), &[pipe.as_fd()]), Some(1), "not memory");
    assert_eq!(ask(&mut p, map(0, 0x1000, 0), &[memory.as_fd(); 2]), Some(22), "two files");
    assert_eq!(ask(&mut p, map(0, 0x1000, 0), &[memory.as_fd()]), None);
    assert_eq!(ask(&mut p, map(0, 0x1000, 0), &[memory.as_fd()]), Some(22), "overlap");
    let set = Request::SetIrqs { flags: 0x24, index: irq::MSI, start: 0, count: 1, data: &[] };
    assert_eq!(ask(&mut p, set, &[memory.as_fd()]), Some(22), "not an event");
    // Descriptors with a message that has no use for them are closed, not kept.
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    for _ in 0..50 {
        ask(&mut p, Request::DeviceInfo, &[memory.as_fd(); FDS_MAX]);
    }
    assert!(std::fs::read_dir("/proc/self/fd").unwrap().count() <= before + 4);
}

#[test]
fn breaking_the_protocol_ends_the_connection_and_nothing_else() {
    let slot = Slot::new(Duration::from_millis(100));
    let too_long = Header {
        id: 0,
        command: Command::Version as u16,
        body_bytes: 1 << 30,
        direction: Direction::Command { no_reply: false },
    };
    let reply = Header { id: 0, command: 9, body_bytes: 0, direction: Direction::Reply { error: None } };
    let twice = [hello(), hello()].concat();
    let replying = [hello(), reply.encode().to_vec()].concat();
    for bytes in [
        &too_long.encode()[..],
        &[0xff; HEADER_BYTES],
        &[0; HEADER_BYTES],
        &command(1, Request::DeviceInfo),
        &command(1, Request::Version { major: 1, minor: 0, capabilities: b"" }),
        &twice,
        &replying,
    ] {
        let mut stream = UnixStream::connect(&slot.path).unwrap();
        stream.write_all(bytes).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        assert!(end.is_ok() || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
        still_serves(&slot);
    }
}

#[test]
fn a_peer_that_stops_inside_a_message_is_cut_off() {
    let slot = Slot::new(Duration::from_millis(100));
    let mut stream = UnixStream::connect(&slot.path).unwrap();
    stream.write_all(&hello()[..10]).unwrap();
    still_serves(&slot);
}

#[test]
fn a_flood_of_reads_that_nobody_answers_is_bounded() {
    let slot = Slot::new(Duration::from_millis(300));
    let mut p = peer(&slot);
    let read = Request::RegionRead { region: 0, offset: 4096, count: 4 };
    let wanted = PENDING_MAX + 200;
    std::thread::scope(|scope| {
        let mut sender = Connection::new(UnixStream::from(p.as_fd().try_clone_to_owned().unwrap())).unwrap();
        scope.spawn(move || {
            for id in 0..wanted {
                sender.send(&command(id as u16, read), &[]).unwrap();
            }
        });
        let mut answered = vec![false; wanted];
        for _ in 0..wanted {
            let answer = p.receive().unwrap();
            assert_eq!(&answer.body[16..], [0xff; 4]);
            assert!(!std::mem::replace(&mut answered[usize::from(answer.header.id)], true));
        }
    });
    assert_eq!(slot.seen.lock().unwrap().abandoned.len(), wanted);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn random_messages_never_stop_the_server(
        messages in proptest::collection::vec(
            (0u16..18, proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..80)), 1..20)
    ) {
        let slot = Slot::new(Duration::from_millis(5));
        let mut p = peer(&slot);
        for (number, body) in messages {
            let direction = Direction::Command { no_reply: false };
            let header = Header { id: 3, command: number, body_bytes: body.len(), direction };
            if p.send(&[header.encode().to_vec(), body].concat(), &[]).is_err() || p.receive().is_err() {
                break;
            }
        }
        drop(p);
        // The writes that got through may have changed configuration space; only that it answers counts.
        let mut client = Client::connect(&slot.path).unwrap();
        client.read(7, 0, &mut [0; 4]).unwrap();
    }
}
