//! One thread's work for a proxy: datagrams out, datagrams in, and what time it is.

use crate::Port;
use fabric::{LinkName, Time, Trunk};
use std::io;
use std::time::{Duration, Instant};

/// Datagrams that are sent before those that came in are looked at.
const BURST: usize = 256;

/// A trunk and the port it speaks through.
#[derive(Debug)]
pub struct Pump<P> {
    /// The links.
    pub trunk: Trunk,
    port: P,
    began: Instant,
    touched: Vec<LinkName>,
}

impl<P: Port> Pump<P> {
    /// The clock of the links begins now.
    pub fn new(trunk: Trunk, port: P) -> Self {
        Self { trunk, port, began: Instant::now(), touched: Vec::new() }
    }

    /// The time as the links of this trunk know it.
    pub fn now(&self) -> Time {
        Time(self.began.elapsed().as_nanos() as u64)
    }

    /// Sends what is to be sent, then takes what comes, for which it waits for at most `wait` and never longer than the
    /// links allow. Gives the links that may have TLPs or events now; each at least once.
    pub fn turn(&mut self, wait: Duration) -> io::Result<&[LinkName]> {
        let now = self.now();
        self.send_at(now)?;
        let wait = match self.trunk.wake_at() {
            Some(at) => at.since(now).min(wait),
            None => wait,
        };
        self.touched.clear();
        let Self { trunk, port, began, touched, .. } = self;
        // Datagrams that come together get one arrival time: a look at the clock is not free.
        let mut arrived_at = None;
        port.receive(wait, &mut |datagram| {
            let now = *arrived_at.get_or_insert_with(|| Time(began.elapsed().as_nanos() as u64));
            if let Some(link) = trunk.on_datagram(now, datagram)
                && touched.last() != Some(&link)
            {
                touched.push(link);
            }
        })?;
        Ok(&self.touched)
    }

    /// Sends what is to be sent now, without looking at what comes.
    pub fn send(&mut self) -> io::Result<()> {
        self.send_at(self.now())
    }

    fn send_at(&mut self, now: Time) -> io::Result<()> {
        for _ in 0..BURST {
            let Some(transmit) = self.trunk.transmit(now, self.port.place()) else { break };
            self.port.send(transmit.node, transmit.path, transmit.bytes)?;
        }
        self.port.flush()
    }

    /// The port, to give it new addresses.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }
}
