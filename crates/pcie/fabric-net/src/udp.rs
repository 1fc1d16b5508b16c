//! UDP: a socket for each path of this proxy, an address for each path of every other.

use crate::batch::Batch;
use crate::{Port, Waker};
use fabric::{NodeId, PathId};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// What one system call may send.
const SEND_BYTES_MAX: usize = 65_000;
/// What one received message may hold: as many joined datagrams as the kernel gives.
const RECEIVE_BYTES: usize = 65_536;
/// How long a sender waits for a socket that is full before it lets the datagrams go.
const FULL_WAIT: Duration = Duration::from_millis(1);

/// What was lost on this side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Datagrams for a proxy or path whose address is not known.
    pub unknown_addresses: u64,
    /// System calls whose datagrams the kernel did not take.
    pub refused_sends: u64,
}

#[derive(Debug)]
struct Local {
    path: PathId,
    socket: UdpSocket,
    state: UdpSocketState,
}

/// Datagrams of one length for one address, the last of them perhaps shorter.
#[derive(Debug, Default)]
struct Segments {
    local: usize,
    to: Option<SocketAddr>,
    batch: Batch,
    segment_bytes: usize,
    count: usize,
}

/// UDP with segmentation offload.
#[derive(Debug)]
pub struct UdpPort {
    locals: Vec<Local>,
    addresses: HashMap<(NodeId, PathId), SocketAddr>,
    segments: Segments,
    buffers: Vec<Vec<u8>>,
    spin: Duration,
    waker: Option<Waker>,
    counters: UdpCounters,
}

impl UdpPort {
    /// One bound socket for each path.
    pub fn new(sockets: impl IntoIterator<Item = (PathId, UdpSocket)>) -> io::Result<Self> {
        let local = |(path, socket): (PathId, UdpSocket)| {
            let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
            Ok(Local { path, socket, state })
        };
        Ok(Self {
            locals: sockets.into_iter().map(local).collect::<io::Result<_>>()?,
            addresses: HashMap::new(),
            segments: Segments::default(),
            buffers: vec![vec![0; RECEIVE_BYTES]; BATCH_SIZE],
            spin: Duration::ZERO,
            waker: None,
            counters: UdpCounters::default(),
        })
    }

    /// Where a proxy is on a path.
    pub fn set_address(&mut self, node: NodeId, path: PathId, address: SocketAddr) {
        self.addresses.insert((node, path), address);
    }

    /// How long to look for datagrams before the kernel puts the thread to sleep: a core for a few microseconds.
    pub fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
    }

    /// Lets others end a wait for datagrams.
    pub fn set_waker(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }

    /// Where the socket of a path is bound.
    pub fn local_address(&self, path: PathId) -> Option<SocketAddr> {
        self.locals.iter().find(|local| local.path == path)?.socket.local_addr().ok()
    }

    /// What was lost on this side.
    pub fn counters(&self) -> &UdpCounters {
        &self.counters
    }

    fn take_all(&mut self, take: &mut dyn FnMut(&mut [u8])) -> io::Result<usize> {
        let mut count = 0;
        for local in &self.locals {
            loop {
                let mut metas = [RecvMeta::default(); BATCH_SIZE];
                let mut slices = self.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer));
                let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
                    std::array::from_fn(|_| slices.next().expect("there is one for each"));
                let received =
                    match local.state.recv(UdpSockRef::from(&local.socket), &mut slices, &mut metas) {
                        Ok(received) => received,
                        // No socket listened at some address a moment ago: the links notice by themselves.
                        Err(error)
                            if matches!(
                                error.kind(),
                                ErrorKind::WouldBlock | ErrorKind::ConnectionRefused
                            ) =>
                        {
                            break;
                        }
                        Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                        Err(error) => return Err(error),
                    };
                for (meta, buffer) in metas[..received].iter().zip(&mut self.buffers) {
                    for datagram in buffer[..meta.len].chunks_mut(meta.stride.max(1)) {
                        take(datagram);
                        count += 1;
                    }
                }
                if received < BATCH_SIZE {
                    break;
                }
            }
        }
        Ok(count)
    }

    /// Sends what waits; its bytes stay where they are.
    fn send_segments(&mut self) -> io::Result<()> {
        let segments = &mut self.segments;
        let Some(destination) = segments.to.take() else { return Ok(()) };
        let segment_size = (segments.count > 1).then_some(segments.segment_bytes);
        segments.count = 0;
        let contents = segments.batch.as_slice();
        let transmit = Transmit { destination, ecn: None, contents, segment_size, src_ip: None };
        let local = &self.locals[segments.local];
        for is_last_try in [false, true] {
            match local.state.try_send(UdpSockRef::from(&local.socket), &transmit) {
                Ok(()) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock && !is_last_try => {
                    poll_for(&mut [PollFd::new(&local.socket, PollFlags::OUT)], FULL_WAIT)?;
                }
                // What a network does not take is lost: a host that is away, a route that is gone, a full queue.
                Err(_) => {
                    self.counters.refused_sends += 1;
                    break;
                }
            }
        }
        Ok(())
    }

    fn wait_readable(&self, wait: Duration) -> io::Result<()> {
        let mut fds: Vec<PollFd<'_>> =
            self.locals.iter().map(|local| PollFd::new(&local.socket, PollFlags::IN)).collect();
        let Some(waker) = &self.waker else { return poll_for(&mut fds, wait) };
        if !waker.may_sleep() {
            return Ok(());
        }
        fds.push(PollFd::new(waker, PollFlags::IN));
        let waited = poll_for(&mut fds, wait);
        waker.awake();
        waited
    }
}

fn poll_for(fds: &mut [PollFd<'_>], wait: Duration) -> io::Result<()> {
    let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Port for UdpPort {
    fn place(&mut self) -> &mut [u8] {
        self.segments.batch.place(0)
    }

    fn send(&mut self, to: NodeId, path: PathId, bytes: usize) -> io::Result<()> {
        let local = self.locals.iter().position(|local| local.path == path);
        let (Some(local), Some(address)) = (local, self.addresses.get(&(to, path)).copied()) else {
            self.counters.unknown_addresses += 1;
            return Ok(());
        };
        let segments = &self.segments;
        let fits = segments.to == Some(address)
            && segments.local == local
            && bytes <= segments.segment_bytes
            && segments.batch.len() + bytes <= SEND_BYTES_MAX;
        if !fits {
            self.send_segments()?;
            let segments = &mut self.segments;
            segments.batch.restart_with(0, bytes);
            (segments.local, segments.to, segments.segment_bytes) = (local, Some(address), bytes);
        }
        let segments = &mut self.segments;
        segments.batch.add(bytes);
        segments.count += 1;
        // Only the last segment may be shorter. One that would be too many is better written at the front at once.
        let is_full = bytes < segments.segment_bytes
            || segments.batch.len() + segments.segment_bytes > SEND_BYTES_MAX
            || segments.count >= self.locals[local].state.max_gso_segments();
        if is_full { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        let sent = self.send_segments();
        self.segments.batch.clear();
        sent
    }

    fn receive(&mut self, wait: Duration, take: &mut dyn FnMut(&mut [u8])) -> io::Result<usize> {
        let count = self.take_all(take)?;
        if count > 0 || wait.is_zero() {
            return Ok(count);
        }
        let spin_until = Instant::now() + self.spin.min(wait);
        while Instant::now() < spin_until && !self.waker.as_ref().is_some_and(Waker::is_called) {
            let count = self.take_all(take)?;
            if count > 0 {
                return Ok(count);
            }
            std::hint::spin_loop();
        }
        if let Some(left) = wait.checked_sub(self.spin).filter(|left| !left.is_zero()) {
            self.wait_readable(left)?;
        }
        self.take_all(take)
    }
}
