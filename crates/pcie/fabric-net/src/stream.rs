//! Connections of the `transport` crate as a network: shared-memory rings between two proxies of one machine.
//!
//! Each datagram has its length in front, four bytes, little-endian. A connection loses nothing, so a link over it never
//! sends anything twice; but a connection that ends is a path that is cut, and another path may go on.
//!
//! A send blocks while the ring is full. The ring must have room for what a trunk may have on its way and the
//! acknowledgements besides, or two proxies that both send would wait for each other.

use crate::Port;
use crate::batch::{Batch, DATAGRAM_BYTES_MAX, LENGTH_BYTES};
use fabric::{NodeId, PathId};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};
use transport::{Closer, Connection, Rx, Tx};

/// What is read at once.
const READ_BYTES: usize = 256 << 10;

#[derive(Debug)]
struct Way {
    tx: Tx,
    rx: Rx,
    closer: Closer,
    /// Bytes that came and are no whole datagram yet.
    read: Vec<u8>,
    filled: usize,
}

/// One connection for each path to each proxy.
#[derive(Debug, Default)]
pub struct StreamPort {
    ways: HashMap<(NodeId, PathId), Way>,
    /// What waits for one of them.
    unsent: Batch,
    unsent_to: Option<(NodeId, PathId)>,
    spin: Duration,
}

impl StreamPort {
    /// No way to any proxy yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A connection to a proxy. The one that it replaces is closed.
    pub fn add(&mut self, node: NodeId, path: PathId, connection: Connection) {
        let (tx, rx, closer) = connection.split();
        let way = Way { tx, rx, closer, read: vec![0; READ_BYTES], filled: 0 };
        if let Some(old) = self.ways.insert((node, path), way) {
            old.closer.close();
        }
    }

    /// Closes a connection; false when there is none.
    pub fn remove(&mut self, node: NodeId, path: PathId) -> bool {
        self.ways.remove(&(node, path)).map(|way| way.closer.close()).is_some()
    }

    /// How long to look for datagrams before the thread sleeps.
    pub fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
    }

    /// Which ways there are.
    pub fn ways(&self) -> impl Iterator<Item = (NodeId, PathId)> + '_ {
        self.ways.keys().copied()
    }

    /// Sends what waits; its bytes stay where they are.
    fn send_unsent(&mut self) {
        let Some(to) = self.unsent_to.take() else { return };
        if let Some(way) = self.ways.get_mut(&to)
            && way.tx.send(&[self.unsent.as_slice()]).is_err()
        {
            way.closer.close();
            self.ways.remove(&to);
        }
    }

    fn take_all(&mut self, take: &mut dyn FnMut(&mut [u8])) -> usize {
        let mut count = 0;
        self.ways.retain(|_, way| match way.take_all(take) {
            Ok(taken) => {
                count += taken;
                true
            }
            // The path is cut: its links notice, and go another way if they have one.
            Err(_) => {
                way.closer.close();
                false
            }
        });
        count
    }
}

impl Way {
    fn take_all(&mut self, take: &mut dyn FnMut(&mut [u8])) -> io::Result<usize> {
        let mut count = 0;
        while let Some(bytes) = self.rx.try_recv(&mut self.read[self.filled..])? {
            if bytes == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.filled += bytes;
            let mut at = 0;
            while let Some(length) = self.read[at..self.filled].first_chunk::<LENGTH_BYTES>() {
                let length = u32::from_le_bytes(*length) as usize;
                if length > DATAGRAM_BYTES_MAX {
                    return Err(ErrorKind::InvalidData.into());
                }
                let (from, to) = (at + LENGTH_BYTES, at + LENGTH_BYTES + length);
                if to > self.filled {
                    break;
                }
                take(&mut self.read[from..to]);
                count += 1;
                at = to;
            }
            self.read.copy_within(at..self.filled, 0);
            self.filled -= at;
        }
        Ok(count)
    }
}

impl Port for StreamPort {
    fn place(&mut self) -> &mut [u8] {
        self.unsent.place(LENGTH_BYTES)
    }

    fn send(&mut self, to: NodeId, path: PathId, bytes: usize) -> io::Result<()> {
        if self.unsent_to != Some((to, path)) {
            self.send_unsent();
            self.unsent.restart_with(LENGTH_BYTES, bytes);
            self.unsent_to = Some((to, path));
        }
        self.unsent.add_with_length(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_unsent();
        self.unsent.clear();
        Ok(())
    }

    fn receive(&mut self, wait: Duration, take: &mut dyn FnMut(&mut [u8])) -> io::Result<usize> {
        let count = self.take_all(take);
        if count > 0 || wait.is_zero() {
            return Ok(count);
        }
        let began = Instant::now();
        loop {
            let count = self.take_all(take);
            if count > 0 {
                return Ok(count);
            }
            let waited = began.elapsed();
            if waited >= wait {
                return Ok(0);
            }
            if waited < self.spin {
                std::hint::spin_loop();
                continue;
            }
            // With one way it can be slept on; with several, in turns.
            let share = if self.ways.len() == 1 { wait - waited } else { Duration::from_micros(50) };
            match self.ways.values_mut().next() {
                // An end counts as something to read; the next look finds it.
                Some(way) => way.rx.wait(Some(share.min(wait - waited))).map(|_| ()).or_else(ended)?,
                None => std::thread::sleep(wait - waited),
            }
        }
    }
}

fn ended(error: io::Error) -> io::Result<()> {
    match error.kind() {
        ErrorKind::Interrupted | ErrorKind::NotConnected | ErrorKind::InvalidData => Ok(()),
        _ => Err(error),
    }
}
