//! What a network costs, bare and under a link. Both ends are threads of this process.

mod copies;
mod raw;

pub use copies::{Copy, copy_throughput};
pub use raw::raw_throughput;

use fabric::{
    Endpoint, Epoch, LeaseSecret, Link, LinkConfig, LinkName, NodeId, PathId, Protection, Role, Time, Trunk,
    Willing,
};
use fabric_net::{Port, Pump, StreamPort, UdpPort};
use std::io;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tlp::{
    Bdf, Body, Header, ReadCompletionBoundary, SizeLimit, Span, Tag, Tlp, TransactionId, split_completion,
};
use transport::{Address, ClientSecurity, ConnectionKind, Listener, Preamble, Scheme, ServerSecurity};

/// The proxies of a measurement.
pub const HOST: NodeId = NodeId(1);
/// See [`HOST`].
pub const BOX: NodeId = NodeId(2);
/// The path between them.
pub const PATH: PathId = PathId(1);
const LINK: LinkName = LinkName(1);
const SET_UP_WAIT: Duration = Duration::from_secs(10);
const TURN: Duration = Duration::from_millis(10);

/// Two ports that reach each other over UDP on this machine: the host's, then the box's. Both look for datagrams for
/// `spin` before they sleep.
pub fn udp_pair(spin: Duration) -> io::Result<(UdpPort, UdpPort)> {
    let (ours, theirs) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    let (our_address, their_address) = (ours.local_addr()?, theirs.local_addr()?);
    let (mut ours, mut theirs) = (UdpPort::new([(PATH, ours)])?, UdpPort::new([(PATH, theirs)])?);
    ours.set_address(BOX, PATH, their_address);
    theirs.set_address(HOST, PATH, our_address);
    ours.set_spin(spin);
    theirs.set_spin(spin);
    Ok((ours, theirs))
}

/// The same over shared-memory rings, which are set up through a socket in `folder`.
pub fn shm_pair(folder: &Path, spin: Duration) -> io::Result<(StreamPort, StreamPort)> {
    let address = Address::Shm(folder.join("fabric"));
    let listener = Listener::bind(&address)?;
    let preamble = Preamble { kind: ConnectionKind::Lane, scheme: Scheme::Shm, lane: 0, session: [0; 16] };
    let (client, served) = thread::scope(|scope| {
        let security = ClientSecurity::Plain;
        let client = scope.spawn(move || transport::connect(&address, &security, preamble, SET_UP_WAIT));
        let raw = listener.accept()?.ok_or(io::ErrorKind::NotConnected)?;
        let served =
            raw.serve(&ServerSecurity::Plain, Instant::now() + SET_UP_WAIT).map_err(io::Error::other)?;
        let client = client.join().map_err(|_| io::Error::other("the client panicked"))?;
        io::Result::Ok((client.map_err(io::Error::other)?, served))
    })?;
    let (mut ours, mut theirs) = (StreamPort::new(), StreamPort::new());
    ours.add(BOX, PATH, client);
    theirs.add(HOST, PATH, served);
    ours.set_spin(spin);
    theirs.set_spin(spin);
    Ok((ours, theirs))
}

fn send(port: &mut impl Port, to: NodeId, datagram: &[u8]) -> io::Result<()> {
    port.place()[..datagram.len()].copy_from_slice(datagram);
    port.send(to, PATH, datagram.len())
}

/// Runs `host` here and `other` in a thread until `host` has ended.
fn with_peer<T>(
    host: impl FnOnce() -> io::Result<T>,
    other: impl FnOnce(&AtomicBool) -> io::Result<()> + Send,
) -> io::Result<T> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| other(&is_over));
        let outcome = host();
        is_over.store(true, Ordering::Relaxed);
        other.join().map_err(|_| io::Error::other("the other end panicked"))??;
        outcome
    })
}

/// Round trips of bare datagrams of `bytes` bytes, sorted.
pub fn raw_round_trips<P: Port + Send>(
    ports: (P, P),
    bytes: usize,
    rounds: usize,
) -> io::Result<Vec<Duration>> {
    let (mut ours, mut theirs) = ports;
    let datagram = vec![0x5a; bytes];
    let host = || {
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let began = Instant::now();
            send(&mut ours, BOX, &datagram)?;
            ours.flush()?;
            while ours.receive(TURN, &mut |_| {})? == 0 {
                if began.elapsed() > SET_UP_WAIT {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            times.push(began.elapsed());
        }
        times.sort_unstable();
        Ok(times)
    };
    let mut echo = vec![0; bytes];
    with_peer(host, move |is_over| {
        while !is_over.load(Ordering::Relaxed) {
            let mut count = theirs.receive(TURN, &mut |datagram| echo.copy_from_slice(datagram))?;
            while count > 0 {
                send(&mut theirs, HOST, &echo)?;
                count -= 1;
            }
            theirs.flush()?;
        }
        Ok(())
    })
}

fn pump<P: Port>(role: Role, port: P, protection: Protection, datagram_bytes: usize) -> io::Result<Pump<P>> {
    let (host, slot) = (Endpoint::host(HOST.0), Endpoint::new(BOX.0, 1));
    let ends = if role == Role::Host { [host, slot] } else { [slot, host] };
    let mut config = LinkConfig::new(role, LINK, Epoch(1), LeaseSecret([1; 32]), [role as u8; 32], ends);
    (config.paths, config.protection, config.datagram_bytes) = (vec![PATH], protection, datagram_bytes);
    let mut trunk = Trunk::new(raw::IN_FLIGHT_BYTES);
    trunk.add(Link::new(config, Time(0)).map_err(io::Error::other)?);
    Ok(Pump::new(trunk, port))
}

/// Turns until the link is established.
fn establish<P: Port>(pump: &mut Pump<P>) -> io::Result<()> {
    let began = Instant::now();
    while !pump.trunk.link(LINK).is_some_and(Link::is_established) {
        pump.turn(TURN)?;
        if began.elapsed() > SET_UP_WAIT {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}

/// Round trips of reads of `bytes` bytes (4 to 4096) through two links, sorted: request out, data back.
pub fn read_round_trips<P: Port + Send>(
    ports: (P, P),
    protection: Protection,
    bytes: u32,
    rounds: usize,
) -> io::Result<Vec<Duration>> {
    let (ours, theirs) = ports;
    let span = Span::of_bytes(0x1000, bytes.clamp(4, 4096)).ok_or(io::ErrorKind::InvalidInput)?;
    let mut ours = pump(Role::Host, ours, protection, 8952)?;
    let mut theirs = pump(Role::Box, theirs, protection, 8952)?;
    let host = move || {
        establish(&mut ours)?;
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let id = TransactionId::new(Bdf(0x100), Tag::truncated(0x100 + (round % 768) as u16));
            let began = Instant::now();
            let sent = ours.trunk.send(LINK, &Tlp::new(Header::memory_read(id, span), &[]));
            sent.ok_or(io::ErrorKind::NotConnected)?.map_err(io::Error::other)?;
            while ours.trunk.receive(LINK, Willing::ALL).is_none() {
                ours.turn(TURN)?;
                if began.elapsed() > SET_UP_WAIT {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            times.push(began.elapsed());
        }
        times.sort_unstable();
        Ok(times)
    };
    let data = vec![0x5a; usize::from(span.length_dw) * 4];
    let limit = SizeLimit::new(4096).map_err(io::Error::other)?;
    with_peer(host, move |is_over| {
        while !is_over.load(Ordering::Relaxed) {
            theirs.turn(TURN)?;
            while let Some(Header { body: Body::Memory(memory), .. }) =
                theirs.trunk.receive(LINK, Willing::ALL).map(|tlp| tlp.header)
            {
                let request = Header::new(Body::Memory(memory));
                let span = memory.span();
                let boundary = ReadCompletionBoundary::Bytes128;
                for piece in split_completion(span.first_byte(), span.byte_count(), limit, boundary) {
                    let header = request.completion_data(Bdf(0x200), &piece);
                    let tlp = Tlp::new(header, &data[..header.payload_bytes()]);
                    theirs
                        .trunk
                        .send(LINK, &tlp)
                        .ok_or(io::ErrorKind::NotConnected)?
                        .map_err(io::Error::other)?;
                }
            }
        }
        Ok(())
    })
}

fn posted_write(payload_bytes: u32) -> io::Result<(Header, Vec<u8>)> {
    let span = Span::of_bytes(0x1_0000_0000, payload_bytes).ok_or(io::ErrorKind::InvalidInput)?;
    let header = Header::memory_write(Bdf(0x100), span);
    Ok((header, vec![0x5a; header.payload_bytes()]))
}

/// Bytes of payload a second that posted writes of `payload_bytes` each move from the host to the box.
pub fn write_throughput<P: Port + Send>(
    ports: (P, P),
    protection: Protection,
    datagram_bytes: usize,
    payload_bytes: u32,
    count: u64,
) -> io::Result<f64> {
    let (ours, theirs) = ports;
    let mut ours = pump(Role::Host, ours, protection, datagram_bytes)?;
    let mut theirs = pump(Role::Box, theirs, protection, datagram_bytes)?;
    let (header, payload) = posted_write(payload_bytes)?;
    let host = move || {
        establish(&mut ours)?;
        let began = Instant::now();
        let mut sent = 0;
        while !(sent == count && ours.trunk.link(LINK).is_some_and(Link::is_idle)) {
            while sent < count && matches!(ours.trunk.send(LINK, &Tlp::new(header, &payload)), Some(Ok(()))) {
                sent += 1;
            }
            ours.turn(TURN)?;
        }
        Ok(count as f64 * f64::from(payload_bytes) / began.elapsed().as_secs_f64())
    };
    with_peer(host, move |is_over| {
        while !is_over.load(Ordering::Relaxed) {
            theirs.turn(TURN)?;
            while theirs.trunk.receive(LINK, Willing::ALL).is_some() {}
        }
        Ok(())
    })
}

/// The same with both ends in turn on this thread: no end waits for the other, so the time is all processor time.
pub fn writes_in_turn<P: Port>(
    ports: (P, P),
    protection: Protection,
    datagram_bytes: usize,
    payload_bytes: u32,
    count: u64,
) -> io::Result<f64> {
    let mut ours = pump(Role::Host, ports.0, protection, datagram_bytes)?;
    let mut theirs = pump(Role::Box, ports.1, protection, datagram_bytes)?;
    let (header, payload) = posted_write(payload_bytes)?;
    let (mut sent, mut received, began) = (0, 0, Instant::now());
    while received < count {
        while sent < count && matches!(ours.trunk.send(LINK, &Tlp::new(header, &payload)), Some(Ok(()))) {
            sent += 1;
        }
        ours.turn(Duration::ZERO)?;
        theirs.turn(Duration::ZERO)?;
        while theirs.trunk.receive(LINK, Willing::ALL).is_some() {
            received += 1;
        }
    }
    Ok(count as f64 * f64::from(payload_bytes) / began.elapsed().as_secs_f64())
}
