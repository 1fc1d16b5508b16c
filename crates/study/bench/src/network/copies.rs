//! A device's copies through a link: its engines read and write the host's memory, or the host pushes into the device's.

use super::{LINK, SET_UP_WAIT, TURN, establish, pump, with_peer};
use crate::copier::{Copier, MEMORY_BAR, copier, ring};
use fabric::{Link, Protection, Role, SendError, Willing};
use fabric_net::{Port, Pump};
use pcie::TlpBuf;
use pcie::endpoint::Endpoint;
use pcie::endpoint::dma::doorbell;
use pcie::host::{HostMemory, HostPort};
use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Which way, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// Host to device, by the device's reads.
    Read,
    /// Device to host, by the device's writes.
    Write,
    /// Host to device, by the host's writes: read avoidance.
    Push,
}

/// What each engine copies again and again: little enough that the device's memory is soon all there, as a real one's is.
const HALF: u32 = 2 << 20;
/// One round of both engines. The first is not counted.
const ROUND: u64 = 2 * HALF as u64;
/// The host's memory is this large, again and again: so that it is memory, not a cache.
const HOST_BYTES: usize = 8 << 20;
/// What the host pushes at a time.
const PUSH_BYTES: usize = 64 << 10;
/// Packets that are handed over before datagrams are looked at.
const BURST: usize = 64;

/// A guest's memory.
struct Memory {
    bytes: RefCell<Vec<u8>>,
    written: RefCell<u64>,
}

impl HostMemory for Memory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let at = address as usize % HOST_BYTES;
        let bytes = self.bytes.borrow();
        bytes.get(at..at + into.len()).map(|from| into.copy_from_slice(from)).is_some()
    }

    fn write(&self, address: u64, from: &[u8]) -> bool {
        let at = address as usize % HOST_BYTES;
        *self.written.borrow_mut() += from.len() as u64;
        let mut bytes = self.bytes.borrow_mut();
        bytes.get_mut(at..at + from.len()).map(|into| into.copy_from_slice(from)).is_some()
    }
}

/// Hands packets to the link until there are none or it takes no more; keeps the one that did not fit.
fn hand_over<P: Port>(
    pump: &mut Pump<P>,
    unsent: &mut Option<TlpBuf>,
    mut next: impl FnMut() -> Option<TlpBuf>,
) -> io::Result<bool> {
    for _ in 0..BURST {
        let Some(packet) = unsent.take().or_else(&mut next) else { return Ok(false) };
        match pump.trunk.send(LINK, &packet.as_tlp()) {
            Some(Ok(())) => {}
            Some(Err(SendError::Full(_))) => {
                *unsent = Some(packet);
                return Ok(false);
            }
            Some(Err(error)) => return Err(io::Error::other(error)),
            None => return Err(io::ErrorKind::NotConnected.into()),
        }
    }
    Ok(true)
}

/// Takes the next packet from the link.
fn take<P: Port>(pump: &mut Pump<P>) -> Option<TlpBuf> {
    let tlp = pump.trunk.receive(LINK, Willing::ALL)?;
    Some(TlpBuf { header: tlp.header, payload: tlp.payload.to_vec() })
}

/// Bytes a second that a copier moves through a link over these ports, with at least `bytes` bytes and for at most about
/// `longest`. Counted where they arrive.
pub fn copy_throughput<P: Port + Send>(
    ports: (P, P),
    protection: Protection,
    datagram_bytes: usize,
    how: Copier,
    kind: Copy,
    bytes: u64,
    longest: Duration,
) -> io::Result<f64> {
    let (device, port) = copier(how, 0);
    let (ours, theirs) = ports;
    let ours = pump(Role::Host, ours, protection, datagram_bytes)?;
    let theirs = pump(Role::Box, theirs, protection, datagram_bytes)?;
    let is_done = AtomicBool::new(false);
    let goal = Goal { kind, bytes, longest, is_done: &is_done };
    let arrived_at_box = std::sync::Mutex::new(None);
    let host = || run_host(ours, port, &goal);
    let rate = with_peer(host, |is_over| {
        let rate = run_box(theirs, device, &goal, is_over)?;
        *arrived_at_box.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = rate;
        Ok(())
    })?;
    let at_box = arrived_at_box.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    rate.or(at_box).ok_or_else(|| io::ErrorKind::TimedOut.into())
}

struct Goal<'a> {
    kind: Copy,
    bytes: u64,
    longest: Duration,
    is_done: &'a AtomicBool,
}

impl Goal<'_> {
    /// The rate, when enough has arrived since the first round was over.
    fn rate(&self, arrived: u64, first: &mut Option<(u64, Instant)>) -> Option<f64> {
        if arrived < ROUND {
            return None;
        }
        let (before, since) = *first.get_or_insert_with(|| (arrived, Instant::now()));
        let (counted, took) = (arrived - before, since.elapsed());
        let is_enough = counted >= self.bytes || took >= self.longest && counted > 0;
        is_enough.then(|| {
            self.is_done.store(true, Ordering::Relaxed);
            counted as f64 / took.as_secs_f64()
        })
    }
}

/// The host's side. Gives the rate where the bytes arrive here.
fn run_host<P: Port>(mut pump: Pump<P>, mut port: HostPort, goal: &Goal<'_>) -> io::Result<Option<f64>> {
    establish(&mut pump)?;
    let memory = Memory { bytes: RefCell::new(vec![0x5a; HOST_BYTES]), written: RefCell::new(0) };
    let (began, mut first, mut unsent, mut pushed, mut rate) = (Instant::now(), None, None, 0u64, None);
    while !goal.is_done.load(Ordering::Relaxed) {
        let now = pump.now();
        let is_more = hand_over(&mut pump, &mut unsent, || {
            let packet = port.transmit(now);
            if packet.is_some() || goal.kind != Copy::Push {
                return packet;
            }
            port.push(MEMORY_BAR, pushed % ROUND, pushed % HOST_BYTES as u64, PUSH_BYTES, &memory);
            pushed += PUSH_BYTES as u64;
            port.transmit(now)
        })?;
        pump.turn(if is_more { Duration::ZERO } else { TURN })?;
        while let Some(packet) = take(&mut pump) {
            port.receive(&packet, &memory);
        }
        if goal.kind == Copy::Write {
            rate = rate.or_else(|| goal.rate(*memory.written.borrow(), &mut first));
        }
        if began.elapsed() > SET_UP_WAIT {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(rate)
}

/// The box's side. Gives the rate where the bytes arrive here.
fn run_box<P: Port>(
    mut pump: Pump<P>,
    mut device: pcie::endpoint::dma::DmaDevice,
    goal: &Goal<'_>,
    is_over: &AtomicBool,
) -> io::Result<Option<f64>> {
    let (mut is_begun, mut first, mut unsent, mut arrived, mut rate) = (false, None, None, 0u64, None);
    // What the engines were told to copy so far.
    let mut told = 0u64;
    while !is_over.load(Ordering::Relaxed) {
        let now = pump.now();
        is_begun |= pump.trunk.link(LINK).is_some_and(Link::is_established);
        let copied = if goal.kind == Copy::Read { arrived } else { told };
        if is_begun && goal.kind != Copy::Push && copied >= told && unsent.is_none() {
            let kind = if goal.kind == Copy::Read { doorbell::READ } else { doorbell::WRITE };
            ring(&mut device, 0, 0, 0, HALF, kind, now);
            ring(&mut device, 1, HALF.into(), HALF.into(), HALF, kind, now);
            told += ROUND;
        }
        let is_more = hand_over(&mut pump, &mut unsent, || device.transmit(now))?;
        pump.turn(if is_more { Duration::ZERO } else { TURN })?;
        while let Some(packet) = take(&mut pump) {
            arrived += packet.payload.len() as u64;
            device.receive(packet, now);
        }
        if goal.kind != Copy::Write {
            rate = rate.or_else(|| goal.rate(arrived, &mut first));
        }
    }
    Ok(rate)
}
