//! Replies, read by the threads that wait for them.
//!
//! There is no reader thread: it would cost a wake-up for every answer. The first thread that waits reads the
//! connection for all. When its own reply came, it hands the reading over to another thread that still waits. A thread
//! that waits alone takes only two free locks. A thread that waits while another reads polls for `spin` before it
//! sleeps, so that often it need not be woken either.

use super::{
    end::{Breach, LinkEnd},
    reply_reader::{Reply, ReplyReader},
};
use cuda_wire::TransferId;
use locks::lock;
use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use transport::Rx;

/// Looks between two questions to the clock.
const LOOKS_PER_CLOCK: u32 = 32;

pub(super) struct Replies {
    state: Mutex<State>,
    reader: Mutex<ReplyReader>,
    /// How long a waiting thread that does not read polls before it sleeps.
    spin: Duration,
    /// Takes transfers that come among the replies: name and bytes.
    land: OnceLock<Land>,
}

/// False when there is no place for it.
type Land = Box<dyn Fn(TransferId, &[u8]) -> bool + Send + Sync>;

/// A pause of a thread that waits for transfers while another reads.
const REST: Duration = Duration::from_micros(20);

#[derive(Default)]
struct State {
    /// Calls without an answer, few at a time: each thread waits for at most one.
    calls: Vec<Call>,
    somebody_reads: bool,
    lost: bool,
}

/// A call that was announced.
struct Call {
    name: u32,
    reply: Option<Reply>,
    /// The thread that waits for it while another reads.
    waiter: Option<Arc<Waiter>>,
}

#[derive(Default)]
struct Waiter {
    /// There is something for it in the state: its reply, the end, or the connection to read.
    told: AtomicBool,
    /// Changed under the lock of the state.
    asleep: AtomicBool,
    wake: Condvar,
}

impl Waiter {
    /// Called under the lock of the state.
    fn tell(&self) {
        self.told.store(true, Ordering::Release);
        if self.asleep.load(Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// Whether it was told within `spin`.
    fn look(&self, spin: Duration) -> bool {
        let since = Instant::now();
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.told.load(Ordering::Acquire) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if since.elapsed() >= spin {
                return false;
            }
        }
    }

    fn sleep<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.asleep.store(true, Ordering::Relaxed);
        while !self.told.load(Ordering::Relaxed) {
            state = locks::wait(&self.wake, state);
        }
        self.asleep.store(false, Ordering::Relaxed);
        state
    }
}

impl State {
    fn call(&mut self, name: u32) -> Option<&mut Call> {
        self.calls.iter_mut().find(|call| call.name == name)
    }

    fn forget(&mut self, name: u32) {
        self.calls.retain(|call| call.name != name);
    }

    /// Wakes one thread that still waits for a reply, so that it takes over the reading.
    fn pass_reading_on(&self) {
        let mut waiting = self.calls.iter().filter(|call| call.reply.is_none());
        if let Some(next) = waiting.find_map(|call| call.waiter.as_ref()) {
            next.tell();
        }
    }

    fn lose(&mut self) {
        self.lost = true;
        self.calls.iter().filter_map(|call| call.waiter.as_ref()).for_each(|waiter| waiter.tell());
    }
}

impl Replies {
    /// Replies from `rx`. A waiting thread polls for `spin` before it sleeps; `None`: as seems best to the transport.
    pub(super) fn new(rx: Rx, spin: Option<Duration>) -> Self {
        let reader = Mutex::new(ReplyReader::new(rx, spin));
        Self { state: Mutex::default(), reader, spin: spin.unwrap_or_default(), land: OnceLock::new() }
    }

    /// Says what takes transfers that come among the replies. Called once, before the first call.
    pub(super) fn land_with(&self, land: impl Fn(TransferId, &[u8]) -> bool + Send + Sync + 'static) {
        let _ = self.land.set(Box::new(land));
    }

    /// Reads until `is_enough` of the transfers among the replies are there; they are on their way. The error says
    /// why the link ended.
    pub(super) fn read_transfers(&self, is_enough: impl Fn() -> bool) -> Result<(), LinkEnd> {
        while !is_enough() {
            let mut state = lock(&self.state);
            if state.lost {
                return Err(LinkEnd::Ended);
            }
            if state.somebody_reads {
                drop(state);
                std::thread::sleep(REST);
                continue;
            }
            state.somebody_reads = true;
            drop(state);
            let read = self.read_one(&mut lock(&self.reader), None);
            let mut state = lock(&self.state);
            state.somebody_reads = false;
            match read {
                Ok(_) => state.pass_reading_on(),
                Err(end) => {
                    state.lose();
                    return Err(end);
                }
            }
        }
        Ok(())
    }

    /// Announces a call before it is sent, so that its reply finds a place.
    pub(super) fn expect(&self, name: u32) {
        lock(&self.state).calls.push(Call { name, reply: None, waiter: None });
    }

    /// Waits for the reply of an announced call. The error says why the link ended.
    pub(super) fn wait(&self, name: u32) -> Result<Reply, LinkEnd> {
        let mut state = lock(&self.state);
        loop {
            let is_lost = state.lost;
            let is_read = state.somebody_reads;
            let Some(call) = state.call(name) else { return Err(LinkEnd::Unannounced(name)) };
            if let Some(reply) = call.reply.take() {
                state.forget(name);
                return Ok(reply);
            }
            if is_lost {
                state.forget(name);
                return Err(LinkEnd::Ended);
            }
            if !is_read {
                state.somebody_reads = true;
                drop(state);
                return self.read(name);
            }
            let waiter = Arc::clone(call.waiter.get_or_insert_default());
            waiter.told.store(false, Ordering::Relaxed);
            drop(state);
            let was_told = waiter.look(self.spin);
            state = lock(&self.state);
            if !was_told {
                state = waiter.sleep(state);
            }
        }
    }

    /// Reads for all until the reply of `name` is there.
    fn read(&self, name: u32) -> Result<Reply, LinkEnd> {
        let read = self.read_until(name);
        let mut state = lock(&self.state);
        state.somebody_reads = false;
        state.forget(name);
        match &read {
            Ok(_) => state.pass_reading_on(),
            Err(_) => state.lose(),
        }
        read
    }

    fn read_until(&self, name: u32) -> Result<Reply, LinkEnd> {
        let mut reader = lock(&self.reader);
        loop {
            if let Some(reply) = self.read_one(&mut reader, Some(name))? {
                return Ok(reply);
            }
        }
    }

    /// Reads one frame. Returns the reply of call `mine`, gives any other reply to its call and a transfer to `land`.
    fn read_one(&self, reader: &mut ReplyReader, mine: Option<u32>) -> Result<Option<Reply>, LinkEnd> {
        let reply = reader.next()?;
        if Some(reply.0.call) == mine {
            return Ok(Some(reply));
        }
        if reply.0.call == 0 {
            let Some((name, bytes)) = reply.1.split_first_chunk::<8>() else {
                return Err(Breach::UnnamedTransfer.into());
            };
            let transfer = TransferId(u64::from_le_bytes(*name));
            if !self.land.get().is_some_and(|land| land(transfer, bytes)) {
                return Err(Breach::UnexpectedTransfer(transfer).into());
            }
            return Ok(None);
        }
        let mut state = lock(&self.state);
        let Some(call) = state.call(reply.0.call) else {
            return Err(Breach::UnexpectedReply(reply.0.call).into());
        };
        call.reply = Some(reply);
        if let Some(waiter) = &call.waiter {
            waiter.tell();
        }
        Ok(None)
    }

    /// Wakes all waiting threads with an error. The closed connection ends the thread that reads.
    pub(super) fn lose(&self) {
        lock(&self.state).lose();
    }
}

#[cfg(test)]
mod tests;
