//! One thread that moves packets between a proxy's side and the network.
//!
//! ```text
//!   calls (pair, clear, look) ─▶ ┌─ the side: ports or devices ─▶ backlog ─▶ trunk ─▶ UDP ─▶
//!   wake ─▶                      └─ ◀────────────────────────────────────── trunk ◀─ UDP ◀─
//! ```
//!
//! Everything of a proxy happens on this thread, so that a packet goes from the network to memory and its answer back
//! without another thread having to wake up.

use crate::backlog::Backlog;
use crate::pairing::{Pairing, PairingError};
use fabric::{Event, Link, Protection, Role, Trunk, Willing};
use fabric_net::{Pump, UdpPort, Waker};
use pcie::TlpBuf;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use units::{LinkName, PathId, Time};

/// What a proxy has on its side of the network. Called by one thread.
pub trait Side: Send + 'static {
    /// A packet has come over a link.
    fn receive(&mut self, link: LinkName, packet: TlpBuf, now: Time);

    /// Something happened to a link.
    fn event(&mut self, link: LinkName, event: Event);

    /// The next packet for the other end of a link.
    fn transmit(&mut self, link: LinkName, now: Time) -> Option<TlpBuf>;

    /// Time has passed.
    fn on_tick(&mut self, now: Time);

    /// How long it may take until [`Side::on_tick`] is called.
    fn wake_in(&self, now: Time) -> Option<Duration>;
}

/// How a carrier behaves.
#[derive(Clone, Debug)]
pub struct CarrierOptions {
    /// Where to listen, one socket for each path; the first is path 1.
    pub listen: Vec<SocketAddr>,
    /// How long to look for datagrams before sleeping: costs a core, saves a wake-up for each packet.
    pub spin: Duration,
    /// Whether packets are encrypted. Both proxies of a link must say the same.
    pub protection: Protection,
}

impl Default for CarrierOptions {
    fn default() -> Self {
        Self { listen: Vec::new(), spin: Duration::ZERO, protection: Protection::Encrypted }
    }
}

/// Bytes that all links of a proxy may have on their way.
const IN_FLIGHT_BYTES_MAX: usize = 4 << 20;
/// How often all links are looked at, whatever happens.
const LOOK_EVERY: Duration = Duration::from_millis(20);

type Call<S> = Box<dyn FnOnce(&mut Core<S>) + Send>;

/// A proxy's thread. Dropping it ends the thread and every link.
pub struct Carrier<S: Side> {
    calls: Sender<Call<S>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    paths: Vec<SocketAddr>,
}

/// What calls work on.
pub(crate) struct Core<S> {
    pub(crate) side: S,
    pump: Pump<UdpPort>,
    /// One for each link.
    backlogs: HashMap<LinkName, Backlog>,
    protection: Protection,
    path_count: usize,
}

impl<S: Side> Core<S> {
    /// Begins a link. The one that had its name before is gone.
    pub(crate) fn begin(&mut self, pairing: &Pairing, role: Role) -> Result<(), PairingError> {
        let link = pairing.make_link(role, self.path_count, self.protection, self.pump.now())?;
        let node = pairing.remote_node(role);
        for (path, address) in pairing.addresses(self.path_count) {
            self.pump.port_mut().set_address(node, path, address);
        }
        self.backlogs.insert(pairing.link(), Backlog::default());
        self.pump.trunk.add(link);
        Ok(())
    }

    /// Ends a link. What is on its way is dropped.
    pub(crate) fn end(&mut self, link: LinkName) {
        self.pump.trunk.remove(link);
        self.backlogs.remove(&link);
    }

    /// Whether both ends of a link have greeted each other, and how long an answer takes.
    pub(crate) fn link_state(&self, link: LinkName) -> (bool, Option<Duration>) {
        let link = self.pump.trunk.link(link);
        (link.is_some_and(Link::is_established), link.and_then(Link::round_trip))
    }

    fn now(&self) -> Time {
        self.pump.now()
    }

    /// Hands on what a link refused earlier and what the side has for it, as far as the link takes it.
    fn feed(&mut self, link: LinkName) {
        let now = self.now();
        if let Some(backlog) = self.backlogs.get_mut(&link) {
            backlog.retry(&mut self.pump.trunk, link);
        }
        self.pass(link, now);
    }

    /// Hands on what the side has for a link.
    fn pass(&mut self, link: LinkName, now: Time) {
        let Self { side, pump, backlogs, .. } = self;
        if let Some(backlog) = backlogs.get_mut(&link) {
            backlog.pass(&mut pump.trunk, link, || side.transmit(link, now));
        }
    }

    /// Gives the side what has come over a link.
    fn take(&mut self, link: LinkName) {
        while let Some(event) = self.pump.trunk.next_event(link) {
            self.side.event(link, event);
        }
        loop {
            let has_room = self.backlogs.get(&link).is_none_or(Backlog::has_room);
            // Requests make answers. A peer that asks faster than answers go out has to wait.
            let willing = if has_room { Willing::ALL } else { Willing::NO_REQUESTS };
            let Some(tlp) = self.pump.trunk.receive(link, willing) else { break };
            let packet = TlpBuf { header: tlp.header, payload: tlp.payload.to_vec() };
            let now = self.now();
            self.side.receive(link, packet, now);
            if !has_room {
                continue;
            }
            // Answers go on their way as they are made, so that the room for more is known.
            self.pass(link, now);
        }
    }
}

impl<S: Side> Carrier<S> {
    /// Binds the sockets and starts the thread. `make` gets what wakes it.
    pub fn start(options: &CarrierOptions, name: &str, make: impl FnOnce(Waker) -> S) -> io::Result<Self> {
        let waker = Waker::new()?;
        let mut sockets = Vec::new();
        for (path, address) in (1..=u16::MAX).map(PathId).zip(&options.listen) {
            let socket = UdpSocket::bind(address).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot listen at {address}: {error}"))
            })?;
            sockets.push((path, socket));
        }
        let paths: Vec<SocketAddr> =
            sockets.iter().map(|(_, socket)| socket.local_addr()).collect::<io::Result<_>>()?;
        let mut port = UdpPort::new(sockets)?;
        port.set_spin(options.spin);
        port.set_waker(waker.clone());
        let core = Core {
            side: make(waker.clone()),
            pump: Pump::new(Trunk::new(IN_FLIGHT_BYTES_MAX), port),
            backlogs: HashMap::new(),
            protection: options.protection,
            path_count: paths.len(),
        };
        let (calls, inbox) = channel();
        let its_waker = waker.clone();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || run(core, &inbox, &its_waker))?;
        Ok(Self { calls, waker, thread: Some(thread), paths })
    }

    /// Where it listens, by path.
    pub fn paths(&self) -> &[SocketAddr] {
        &self.paths
    }

    /// Does something on the thread and waits for what it gives; `None` when the thread has ended.
    pub(crate) fn call<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Core<S>) -> R + Send + 'static,
    ) -> Option<R> {
        let (answer, answered) = sync_channel(1);
        let call: Call<S> = Box::new(move |core| {
            // A caller that does not wait any longer needs no answer.
            let _ = answer.send(work(core));
        });
        self.calls.send(call).ok()?;
        self.waker.wake();
        answered.recv().ok()
    }
}

impl<S: Side> Drop for Carrier<S> {
    fn drop(&mut self) {
        // The thread ends when the last sender of calls is dropped.
        let (unused, _) = channel();
        self.calls = unused;
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run<S: Side>(mut core: Core<S>, calls: &Receiver<Call<S>>, waker: &Waker) {
    use std::sync::mpsc::TryRecvError;
    let mut looked_at = Instant::now();
    loop {
        let is_called = waker.take();
        loop {
            match calls.try_recv() {
                Ok(call) => call(&mut core),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        let now = core.now();
        let is_due = core.side.wake_in(now).is_some_and(|left| left.is_zero());
        if is_due {
            core.side.on_tick(now);
        }
        // A link that says nothing any more does so without a datagram.
        let is_long_ago = looked_at.elapsed() >= LOOK_EVERY;
        if is_called || is_due || is_long_ago {
            looked_at = Instant::now();
            for link in core.backlogs.keys().copied().collect::<Vec<_>>() {
                core.take(link);
                core.feed(link);
            }
        }
        let wait = core.side.wake_in(core.now()).map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY));
        let touched = match core.pump.turn(wait) {
            Ok(links) => links.to_vec(),
            Err(error) => {
                tracing::error!(%error, "the network cannot be used");
                std::thread::sleep(Duration::from_millis(10));
                Vec::new()
            }
        };
        for link in touched {
            core.take(link);
            core.feed(link);
        }
    }
}
