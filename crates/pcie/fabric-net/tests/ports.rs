//! Two proxies in two threads over real networks: every TLP once and in order, and a path that goes away in the middle.

use fabric::{
    Endpoint, Epoch, LeaseSecret, Link, LinkConfig, LinkName, NodeId, PathId, Protection, Role, Time, Trunk,
    Willing,
};
use fabric_net::{Port, Pump, StreamPort, UdpPort};
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};
use tlp::{Bdf, Body, Class, Header, Span, Status, Tag, Tlp, TransactionId};
use transport::{
    Address, ClientSecurity, Connection, ConnectionKind, Listener, Preamble, Scheme, ServerSecurity,
};

const HOST: NodeId = NodeId(1);
const BOX: NodeId = NodeId(2);
const LINK: LinkName = LinkName(7);
const PATHS: [PathId; 2] = [PathId(1), PathId(2)];

fn pump<P: Port>(role: Role, port: P, datagram_bytes: usize, protection: Protection) -> Pump<P> {
    let (host, slot) = (Endpoint::host(HOST.0), Endpoint::new(BOX.0, 4));
    let ends = if role == Role::Host { [host, slot] } else { [slot, host] };
    let secret = LeaseSecret([3; 32]);
    let mut config = LinkConfig::new(role, LINK, Epoch(1), secret, [role as u8; 32], ends);
    config.paths = PATHS.to_vec();
    config.datagram_bytes = datagram_bytes;
    config.protection = protection;
    // Threads of a busy machine sleep for longer than any network.
    config.timeout_min = Duration::from_millis(5);
    let mut trunk = Trunk::new(128 << 10);
    trunk.add(Link::new(config, Time(0)).unwrap());
    Pump::new(trunk, port)
}

fn payload(number: u64) -> Vec<u8> {
    let bytes = [4, 64, 256, 4096][(number % 4) as usize];
    (0..bytes).map(|at| (number as u8).wrapping_add(at as u8)).collect()
}

/// The host writes and reads, `count` of each; `halfway` is called when half of it is done.
fn host<P: Port>(mut pump: Pump<P>, count: u64, halfway: impl FnOnce(&mut P)) {
    let (mut written, mut asked, mut answered) = (0, 0, 0);
    let mut halfway = Some(halfway);
    let began = Instant::now();
    while answered < count {
        while written < count {
            let payload = payload(written);
            let span = Span::of_bytes(written * 4096, payload.len() as u32).unwrap();
            let tlp = Tlp::new(Header::memory_write(Bdf(0x100), span), &payload);
            if pump.trunk.send(LINK, &tlp).unwrap().is_err() {
                break;
            }
            written += 1;
        }
        while asked < count && asked - answered < 64 {
            let id = TransactionId::new(Bdf(0x100), Tag::new(0x100 + (asked % 512) as u16).unwrap());
            let tlp = Tlp::new(Header::memory_read(id, Span::of_bytes(asked * 4096, 4).unwrap()), &[]);
            if pump.trunk.send(LINK, &tlp).unwrap().is_err() {
                break;
            }
            asked += 1;
        }
        if answered > count / 2 {
            halfway.take().into_iter().for_each(|halfway| halfway(pump.port_mut()));
        }
        pump.turn(Duration::from_millis(5)).unwrap();
        while let Some(tlp) = pump.trunk.receive(LINK, Willing::ALL) {
            assert_eq!(u64::from(tlp.header.tag().value()), 0x100 + answered % 512);
            answered += 1;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", pump.trunk);
    }
    // The last acknowledgements still have to go out, by the other path if the first is gone: on a busy machine that takes
    // a while to be noticed.
    for _ in 0..200 {
        pump.turn(Duration::from_millis(1)).unwrap();
    }
}

fn serve<P: Port>(mut pump: Pump<P>, count: u64) -> Pump<P> {
    let (mut written, mut answered) = (0, 0);
    let mut owed = Vec::new();
    let began = Instant::now();
    while written < count || answered < count || !pump.trunk.link(LINK).unwrap().is_idle() {
        pump.turn(Duration::from_millis(5)).unwrap();
        while let Some(tlp) = pump.trunk.receive(LINK, Willing::ALL) {
            let Body::Memory(memory) = tlp.header.body else { panic!("{tlp}") };
            if tlp.class() == Class::Posted {
                assert_eq!((memory.address / 4096, tlp.payload), (written, payload(written).as_slice()));
                written += 1;
            } else {
                owed.push(tlp.header.completion(Bdf(0x200), Status::UnsupportedRequest));
            }
        }
        owed.retain(|header| pump.trunk.send(LINK, &Tlp::new(*header, &[])).unwrap().is_err());
        answered = count.min(pump.trunk.link_counters(LINK).unwrap().tlps_sent);
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", pump.trunk);
    }
    pump
}

fn udp() -> (UdpPort, UdpPort) {
    let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let (ours, theirs) = (PATHS.map(|path| (path, socket())), PATHS.map(|path| (path, socket())));
    let addresses = |sockets: &[(PathId, UdpSocket); 2]| {
        sockets.each_ref().map(|(path, socket)| (*path, socket.local_addr().unwrap()))
    };
    let (our_addresses, their_addresses) = (addresses(&ours), addresses(&theirs));
    let (mut ours, mut theirs) = (UdpPort::new(ours).unwrap(), UdpPort::new(theirs).unwrap());
    for ((path, our_address), (_, their_address)) in our_addresses.into_iter().zip(their_addresses) {
        ours.set_address(BOX, path, their_address);
        theirs.set_address(HOST, path, our_address);
    }
    (ours, theirs)
}

#[test]
fn udp_with_large_and_small_datagrams() {
    for (datagram_bytes, protection) in [(1452, Protection::Encrypted), (8952, Protection::Plain)] {
        let (ours, theirs) = udp();
        let theirs = pump(Role::Box, theirs, datagram_bytes, protection);
        let ours = pump(Role::Host, ours, datagram_bytes, protection);
        let server = thread::spawn(move || serve(theirs, 20_000));
        host(ours, 20_000, |_| {});
        let counters = *server.join().unwrap().trunk.link_counters(LINK).unwrap();
        assert_eq!(counters.refused(), counters.other_sessions + counters.foreign_hellos, "{counters:?}");
    }
}

#[test]
fn udp_when_a_path_goes_away() {
    let (ours, theirs) = udp();
    let theirs = pump(Role::Box, theirs, 1452, Protection::Encrypted);
    let ours = pump(Role::Host, ours, 1452, Protection::Encrypted);
    let server = thread::spawn(move || serve(theirs, 10_000));
    // A socket listens there, and says nothing.
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    host(ours, 10_000, |port| port.set_address(BOX, PATHS[0], address));
    server.join().unwrap();
}

fn connected(listener: &Listener, address: &Address) -> (Connection, Connection) {
    let preamble = Preamble { kind: ConnectionKind::Lane, scheme: Scheme::Shm, lane: 0, session: [0; 16] };
    let wait = Duration::from_secs(10);
    thread::scope(|scope| {
        let client =
            scope.spawn(|| transport::connect(address, &ClientSecurity::Plain, preamble, wait).unwrap());
        let raw = listener.accept().unwrap().unwrap();
        let served = raw.serve(&ServerSecurity::Plain, Instant::now() + wait).unwrap();
        (client.join().unwrap(), served)
    })
}

#[test]
fn shared_memory_when_a_path_goes_away() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Shm(folder.path().join("fabric"));
    let listener = Listener::bind(&address).unwrap();
    let (mut ours, mut theirs) = (StreamPort::new(), StreamPort::new());
    for path in PATHS {
        let (client, server) = connected(&listener, &address);
        ours.add(BOX, path, client);
        theirs.add(HOST, path, server);
    }
    let theirs = pump(Role::Box, theirs, 8952, Protection::Encrypted);
    let ours = pump(Role::Host, ours, 8952, Protection::Encrypted);
    let server = thread::spawn(move || serve(theirs, 20_000));
    host(ours, 20_000, |port| assert!(port.remove(BOX, PATHS[0])));
    let mut pump = server.join().unwrap();
    assert_eq!(pump.port_mut().ways().collect::<Vec<_>>(), [(HOST, PATHS[1])]);
}
