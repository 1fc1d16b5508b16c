//! A longer network: holds every byte back for half of a round trip, in each direction, on this side alone.
//!
//! ```text
//!   DelayTx ─▶ queue of (due, bytes) ─▶ pump ─▶ inner Tx ═══ network ═══ inner Rx ─▶ pump ─▶ queue ─▶ DelayRx
//! ```
//!
//! Order is kept, and so is bandwidth: a queue holds what a link of 100 Gbit/s would have on the way (12.5 bytes per
//! nanosecond of delay), at least 4 MiB and at most 1 GiB; only then does a sender block. A byte is never early; it is
//! late by as little as the scheduler allows, since the last part of a wait is spun away.

use locks::lock;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::connection::{Closer, Connection, Link, Rx, RxHalf, Tx, TxHalf};
use crate::fd;

/// The link whose bandwidth a delay must not reduce: 100 Gbit/s.
const BYTES_PER_NANOSECOND: f64 = 12.5;
const QUEUE_BYTES_MIN: usize = 4 << 20;
const QUEUE_BYTES_MAX: usize = 1 << 30;
/// What an entry costs beside its bytes, so that many tiny ones are bounded too.
const ENTRY_OVERHEAD_BYTES: usize = 64;
/// How long before the time a sleeper gets up and spins. A sleep ends up to this much late on a busy machine.
const SPIN_BEFORE_DUE: Duration = Duration::from_micros(100);
/// How much one receive of a pump takes.
const PUMP_BYTES: usize = 256 << 10;

/// What travels.
#[derive(Debug)]
enum Item {
    Bytes(Vec<u8>),
    /// Nothing more comes: cleanly, or with an error.
    End(Option<(io::ErrorKind, String)>),
}

#[derive(Debug, Default)]
struct Queued {
    items: VecDeque<(Instant, Item)>,
    bytes: usize,
    /// Nothing more will be put in.
    complete: bool,
    /// Whatever is inside is void.
    cancelled: bool,
}

/// A bounded queue whose entries may be taken only when they are due.
#[derive(Debug)]
struct Queue {
    state: Mutex<Queued>,
    changed: Condvar,
    delay: Duration,
    bytes_max: usize,
}

/// What became of a wait for the first entry.
enum Due<'a> {
    Now(MutexGuard<'a, Queued>),
    NotYet,
    Over,
}

/// What a taker gets.
enum Taken {
    Item(Item),
    NotYet,
    Over,
}

impl Queue {
    fn new(delay: Duration) -> Arc<Self> {
        let in_flight = delay.as_nanos() as f64 * BYTES_PER_NANOSECOND;
        let bytes_max = (in_flight as usize).clamp(QUEUE_BYTES_MIN, QUEUE_BYTES_MAX);
        Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), delay, bytes_max })
    }

    fn lock(&self) -> MutexGuard<'_, Queued> {
        lock(&self.state)
    }

    /// Waits for room. False when the queue is cancelled.
    fn put(&self, item: Item) -> bool {
        let mut state = self.lock();
        while state.bytes >= self.bytes_max && !state.cancelled {
            state = self.wait_for_change(state);
        }
        if state.cancelled {
            return false;
        }
        state.bytes += size_of_item(&item);
        state.items.push_back((Instant::now() + self.delay, item));
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Waits until the first entry is due, at the latest until `deadline` (`None`: as long as it takes).
    fn first_due(&self, deadline: Option<Instant>) -> Due<'_> {
        let mut state = self.lock();
        loop {
            if state.cancelled {
                return Due::Over;
            }
            let due = state.items.front().map(|(due, _)| *due);
            if due.is_none() && state.complete {
                return Due::Over;
            }
            let now = Instant::now();
            if due.is_some_and(|due| due <= now) {
                return Due::Now(state);
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Due::NotYet;
            }
            let until = [due, deadline].into_iter().flatten().min();
            state = match until.map(|until| until - now) {
                None => self.wait_for_change(state),
                Some(left) if left > SPIN_BEFORE_DUE => {
                    let sleep = left - SPIN_BEFORE_DUE;
                    locks::wait_for(&self.changed, state, sleep)
                }
                Some(left) => {
                    drop(state);
                    while now.elapsed() < left {
                        std::hint::spin_loop();
                    }
                    self.lock()
                }
            };
        }
    }

    /// Takes the first entry when it is due.
    fn take(&self, deadline: Option<Instant>) -> Taken {
        let mut state = match self.first_due(deadline) {
            Due::Now(state) => state,
            Due::NotYet => return Taken::NotYet,
            Due::Over => return Taken::Over,
        };
        let Some((_, item)) = state.items.pop_front() else { return Taken::NotYet };
        let was_full = state.bytes >= self.bytes_max;
        state.bytes -= size_of_item(&item);
        drop(state);
        if was_full {
            self.changed.notify_all();
        }
        Taken::Item(item)
    }

    fn wait_for_change<'a>(&self, state: MutexGuard<'a, Queued>) -> MutexGuard<'a, Queued> {
        locks::wait(&self.changed, state)
    }

    fn wait_until_complete(&self) {
        let mut state = self.lock();
        while !state.complete {
            state = self.wait_for_change(state);
        }
    }

    fn complete(&self) {
        self.lock().complete = true;
        self.changed.notify_all();
    }

    fn cancel(&self) {
        let mut state = self.lock();
        state.cancelled = true;
        state.items.clear();
        drop(state);
        self.changed.notify_all();
    }
}

fn size_of_item(item: &Item) -> usize {
    let bytes = if let Item::Bytes(bytes) = item { bytes.len() } else { 0 };
    bytes + ENTRY_OVERHEAD_BYTES
}

/// What both halves share.
#[derive(Debug)]
pub(crate) struct DelayLink {
    inner: Closer,
    up: Arc<Queue>,
    down: Arc<Queue>,
    abandoned: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct DelayTx {
    link: Arc<DelayLink>,
    finished: bool,
}

#[derive(Debug)]
pub(crate) struct DelayRx {
    link: Arc<DelayLink>,
    /// Bytes that were due, and how many of them are read.
    current: (Vec<u8>, usize),
    /// How the stream ended.
    end: Option<Option<(io::ErrorKind, String)>>,
}

impl Connection {
    /// The same connection over a longer network: half of `rtt` is added to each direction. See the module's notes on
    /// order, bandwidth and precision. Starts two threads, which end with the connection.
    pub fn delayed(self, rtt: Duration) -> io::Result<Connection> {
        let (tx, rx, inner) = self.split();
        // Rounded up: never early, not even by a nanosecond.
        let half = (rtt + Duration::from_nanos(1)) / 2;
        let (up, down) = (Queue::new(half), Queue::new(half));
        let link = Arc::new(DelayLink {
            inner: inner.clone(),
            up: up.clone(),
            down: down.clone(),
            abandoned: AtomicBool::new(false),
        });
        let thread = |name: &str| std::thread::Builder::new().name(format!("dxpu-delay-{name}"));
        thread("up").spawn(move || pump_up(tx, &up, &inner))?;
        thread("down").spawn(move || pump_down(rx, &down))?;
        let tx = DelayTx { link: link.clone(), finished: false };
        let rx = DelayRx { link: link.clone(), current: (Vec::new(), 0), end: None };
        Ok(Connection::new(TxHalf::Delayed(tx), RxHalf::Delayed(rx), &link))
    }
}

fn pump_up(mut tx: Tx, queue: &Queue, inner: &Closer) {
    fd::sleep_precisely();
    while let Taken::Item(item) = queue.take(None) {
        let result = match item {
            Item::Bytes(bytes) => tx.send(&[&bytes]),
            Item::End(_) => tx.finish(),
        };
        if result.is_err() {
            // The sender learns at its next send; the receiver may still have something to read.
            queue.cancel();
        }
    }
    // Only when both halves are gone does the other pump have to end too.
    queue.wait_until_complete();
    inner.close();
}

fn pump_down(mut rx: Rx, queue: &Queue) {
    let mut buf = vec![0; PUMP_BYTES];
    loop {
        let item = match rx.recv(&mut buf) {
            Ok(0) => Item::End(None),
            Ok(count) => Item::Bytes(buf[..count].to_vec()),
            Err(error) => Item::End(Some((error.kind(), error.to_string()))),
        };
        let is_end = matches!(item, Item::End(_));
        if !queue.put(item) || is_end {
            return;
        }
    }
}

impl Link for DelayLink {
    fn close(&self) {
        if !self.abandoned.load(Ordering::Relaxed) {
            self.up.cancel();
            self.down.cancel();
            self.inner.close();
        }
    }

    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.inner.abandon();
    }

    fn raw_fds(&self) -> Vec<RawFd> {
        self.inner.raw_fds()
    }
}

impl Drop for DelayLink {
    fn drop(&mut self) {
        // The pump sends what is on the way, then closes. In a forked child there is no pump, and the locks may be
        // held for ever.
        if !self.abandoned.load(Ordering::Relaxed) {
            self.up.complete();
            self.down.cancel();
        }
    }
}

impl DelayTx {
    pub(crate) fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        // Long sends leave in pieces, so that the other end of the pipe is busy early.
        let bytes = parts.concat();
        let sent = match bytes.len() {
            0 => true,
            1..=PUMP_BYTES => self.put(Item::Bytes(bytes)),
            _ => bytes.chunks(PUMP_BYTES).all(|piece| self.put(Item::Bytes(piece.to_vec()))),
        };
        if sent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }

    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.put(Item::End(None));
        self.finished = true;
        Ok(())
    }

    fn put(&self, item: Item) -> bool {
        !self.finished && !self.link.abandoned.load(Ordering::Relaxed) && self.link.up.put(item)
    }
}

impl DelayRx {
    pub(crate) fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(count) = self.receive(buf, None)? {
                return Ok(count);
            }
        }
    }

    pub(crate) fn try_recv(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        self.receive(buf, Some(Instant::now()))
    }

    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        if self.has_current() || self.end.is_some() {
            return Ok(true);
        }
        self.check_abandoned()?;
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        Ok(!matches!(self.link.down.first_due(deadline), Due::NotYet))
    }

    fn has_current(&self) -> bool {
        self.current.1 < self.current.0.len()
    }

    fn check_abandoned(&self) -> io::Result<()> {
        let abandoned = self.link.abandoned.load(Ordering::Relaxed);
        if abandoned { Err(io::ErrorKind::NotConnected.into()) } else { Ok(()) }
    }

    fn receive(&mut self, buf: &mut [u8], deadline: Option<Instant>) -> io::Result<Option<usize>> {
        self.check_abandoned()?;
        if buf.is_empty() {
            return Ok(Some(0));
        }
        if !self.has_current() && self.end.is_none() {
            match self.link.down.take(deadline) {
                Taken::NotYet => return Ok(None),
                Taken::Over => self.end = Some(None),
                Taken::Item(Item::End(end)) => self.end = Some(end),
                Taken::Item(Item::Bytes(bytes)) => self.current = (bytes, 0),
            }
        }
        if self.has_current() {
            let (bytes, read) = &mut self.current;
            let count = buf.len().min(bytes.len() - *read);
            buf[..count].copy_from_slice(&bytes[*read..*read + count]);
            *read += count;
            return Ok(Some(count));
        }
        match &self.end {
            Some(Some((kind, text))) => Err(io::Error::new(*kind, text.clone())),
            _ => Ok(Some(0)),
        }
    }
}
