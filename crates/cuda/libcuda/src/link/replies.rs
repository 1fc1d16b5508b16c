//! Replies, read by the threads that wait for them.
//!
//! There is no reader thread: it would cost a wake-up for every answer. The first thread that waits reads the
//! connection for all. When its own reply came, it hands the reading over to another thread that still waits. A thread
//! that waits alone takes only two free locks. A thread that waits while another reads polls for `spin` before it
//! sleeps, so that often it need not be woken either.

use super::{
    end::{Breach, LinkEnd},
    reply_reader::{Reply, ReplyReader},
    wires::{FIRST_SESSION, SessionNumber},
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
    /// A call stays announced after its reply came, until [`Replies::forget`]: the reply may have to come again.
    keeps_calls: bool,
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
    /// The session whose replies are read.
    number: SessionNumber,
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
    ///
    /// With `keeps_calls` a call stays announced after its reply came, until [`Replies::forget`].
    pub(super) fn new(rx: Rx, spin: Option<Duration>, keeps_calls: bool) -> Self {
        let reader = Mutex::new(ReplyReader::new(rx, spin));
        let state = Mutex::new(State { number: FIRST_SESSION, ..State::default() });
        Self { state, reader, spin: spin.unwrap_or_default(), keeps_calls, land: OnceLock::new() }
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
            let number = state.number;
            drop(state);
            let read = self.reader_of(number).and_then(|mut reader| self.read_one(&mut reader, None));
            let mut state = lock(&self.state);
            if state.number != number {
                return Err(LinkEnd::Ended);
            }
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

    /// Waits for the reply of an announced call, and says which session gave it. The error says which session ended,
    /// and why.
    pub(super) fn wait(&self, name: u32) -> Result<(SessionNumber, Reply), (SessionNumber, LinkEnd)> {
        let mut state = lock(&self.state);
        loop {
            let (is_lost, is_read, number) = (state.lost, state.somebody_reads, state.number);
            let Some(call) = state.call(name) else { return Err((number, LinkEnd::Unannounced(name))) };
            if let Some(reply) = call.reply.take() {
                self.was_answered(&mut state, name);
                return Ok((number, reply));
            }
            if is_lost {
                self.was_answered(&mut state, name);
                return Err((number, LinkEnd::Ended));
            }
            if !is_read {
                state.somebody_reads = true;
                drop(state);
                return self.read(name, number);
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
    fn read(
        &self,
        name: u32,
        number: SessionNumber,
    ) -> Result<(SessionNumber, Reply), (SessionNumber, LinkEnd)> {
        let read = self.read_until(name, number);
        let mut state = lock(&self.state);
        self.was_answered(&mut state, name);
        // If another session has taken over meanwhile, its reader is not ours to hand on.
        if state.number == number {
            state.somebody_reads = false;
            match &read {
                Ok(_) => state.pass_reading_on(),
                Err(_) => state.lose(),
            }
        }
        read.map(|reply| (number, reply)).map_err(|end| (number, end))
    }

    /// The thread that waited for `name` does so no more.
    fn was_answered(&self, state: &mut State, name: u32) {
        if !self.keeps_calls {
            state.forget(name);
        } else if let Some(call) = state.call(name) {
            call.waiter = None;
        }
    }

    /// Forgets a call whose reply was kept, or will not be waited for.
    pub(super) fn forget(&self, name: u32) {
        lock(&self.state).forget(name);
    }

    fn read_until(&self, name: u32, number: SessionNumber) -> Result<Reply, LinkEnd> {
        let mut reader = self.reader_of(number)?;
        loop {
            if let Some(reply) = self.read_one(&mut reader, Some(name))? {
                return Ok(reply);
            }
        }
    }

    /// The reader, if it still reads the replies of session `number`.
    fn reader_of(&self, number: SessionNumber) -> Result<MutexGuard<'_, ReplyReader>, LinkEnd> {
        let reader = lock(&self.reader);
        // Only a link that survives has a second session. The number changes under the lock of the reader.
        if self.keeps_calls && lock(&self.state).number != number {
            return Err(LinkEnd::Ended);
        }
        Ok(reader)
    }

    /// Reads one frame and sorts it.
    fn read_one(&self, reader: &mut ReplyReader, mine: Option<u32>) -> Result<Option<Reply>, LinkEnd> {
        self.sort(reader.next()?, mine)
    }

    /// Returns the reply of call `mine`, gives any other reply to its call and a transfer to `land`.
    fn sort(&self, reply: Reply, mine: Option<u32>) -> Result<Option<Reply>, LinkEnd> {
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

    /// Gives a reply that another thread read to the call it answers, or a transfer to its place.
    pub(super) fn deliver(&self, reply: Reply) -> Result<(), LinkEnd> {
        self.sort(reply, None).map(drop)
    }

    /// Wakes all waiting threads with an error. The closed connection ends the thread that reads.
    pub(super) fn lose(&self) {
        lock(&self.state).lose();
    }

    /// Whether a thread of the program waits for an answer.
    pub(super) fn are_awaited(&self) -> bool {
        !lock(&self.state).calls.is_empty()
    }

    /// Session `number` takes over: replies of the last one that no thread has taken are void. Its replies are read by
    /// the caller, who hands the reading over with [`Replies::adopt`].
    pub(super) fn begin_session(&self, number: SessionNumber) {
        // The thread that reads the last session's replies leaves when it sees the closed connection.
        let _reader = lock(&self.reader);
        let mut state = lock(&self.state);
        state.number = number;
        state.somebody_reads = true;
        state.lost = false;
        state.calls.iter_mut().for_each(|call| call.reply = None);
    }

    /// From now on the threads that wait read the session's replies from `reader`.
    pub(super) fn adopt(&self, reader: ReplyReader) {
        *lock(&self.reader) = reader;
        let mut state = lock(&self.state);
        state.somebody_reads = false;
        state.pass_reading_on();
    }
}

#[cfg(test)]
mod tests;
