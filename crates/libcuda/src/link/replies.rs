//! Replies, read by whoever waits for one.
//!
//! There is no reader thread: it would cost a wake-up for every answer. The first who waits reads the connection for
//! all; when its own reply came, it hands the reading over to another who still waits.

use cuda_wire::{ReplyHeader, header};
use std::{
    collections::HashMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};
use transport::Rx;

/// The longest reply. Answers are small: bulk bytes take the lanes, and a linked image is a few megabytes.
const BODY_BYTES_MAX: u32 = 256 << 20;

/// A reply and its body.
pub(super) type Reply = (ReplyHeader, Vec<u8>);

pub(super) struct Replies {
    state: Mutex<State>,
    rx: Mutex<Rx>,
}

#[derive(Default)]
struct State {
    waiting: HashMap<u32, Arc<Slot>>,
    somebody_reads: bool,
    lost: bool,
}

impl State {
    /// Wakes somebody who waits, if nobody reads. It may be one whose reply is there already: it wakes the next.
    fn pass_reading_on(&self) {
        if !self.somebody_reads
            && let Some(next) = self.waiting.values().next()
        {
            next.wake.notify_one();
        }
    }
}

#[derive(Default)]
struct Slot {
    reply: Mutex<Option<Reply>>,
    wake: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replies {
    pub(super) fn new(rx: Rx) -> Self {
        Self { state: Mutex::default(), rx: Mutex::new(rx) }
    }

    /// Announces a call before it is sent, so that its reply finds a place.
    pub(super) fn expect(&self, call: u32) {
        lock(&self.state).waiting.insert(call, Arc::default());
    }

    /// Waits for the reply of an announced call. The error is what broke the link.
    pub(super) fn wait(&self, call: u32) -> Result<Reply, String> {
        let mut state = lock(&self.state);
        let Some(slot) = state.waiting.get(&call).map(Arc::clone) else {
            return Err("a call was not announced".to_owned());
        };
        loop {
            if let Some(reply) = lock(&slot.reply).take() {
                state.waiting.remove(&call);
                // The last reader may have woken us to read for the others.
                state.pass_reading_on();
                return Ok(reply);
            }
            if state.lost {
                state.waiting.remove(&call);
                return Err("the connection ended".to_owned());
            }
            if state.somebody_reads {
                state = slot.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.somebody_reads = true;
            drop(state);
            let read = self.read_until(call);
            state = lock(&self.state);
            state.somebody_reads = false;
            state.waiting.remove(&call);
            match read {
                Ok(reply) => {
                    state.pass_reading_on();
                    return Ok(reply);
                }
                Err(error) => {
                    state.lost = true;
                    state.waiting.values().for_each(|slot| slot.wake.notify_all());
                    return Err(error);
                }
            }
        }
    }

    /// Wakes everybody with an error. The closed connection ends the one who reads.
    pub(super) fn lose(&self) {
        let mut state = lock(&self.state);
        state.lost = true;
        state.waiting.values().for_each(|slot| slot.wake.notify_all());
    }

    fn read_until(&self, call: u32) -> Result<Reply, String> {
        let mut rx = lock(&self.rx);
        loop {
            let reply = read_reply(&mut rx)?;
            if reply.0.call == call {
                return Ok(reply);
            }
            let state = lock(&self.state);
            let Some(slot) = state.waiting.get(&reply.0.call) else {
                return Err(format!("a reply to call {} that nobody made", reply.0.call));
            };
            *lock(&slot.reply) = Some(reply);
            slot.wake.notify_one();
        }
    }
}

fn read_reply(rx: &mut Rx) -> Result<Reply, String> {
    let mut bytes = [0; ReplyHeader::BYTES];
    rx.recv_exact(&mut bytes).map_err(|error| error.to_string())?;
    let head: ReplyHeader = header(&bytes).map_err(|error| error.to_string())?;
    if head.bytes > BODY_BYTES_MAX {
        return Err(format!("a reply of {} bytes", head.bytes));
    }
    let mut body = vec![0; head.bytes as usize];
    if !body.is_empty() {
        rx.recv_exact(&mut body).map_err(|error| error.to_string())?;
    }
    Ok((head, body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_wire::Wire;
    use std::{
        thread,
        time::{Duration, Instant},
    };
    use transport::{Address, ClientSecurity, ConnectionKind, Listener, Preamble, ServerSecurity, Tx};

    const PATIENCE: Duration = Duration::from_secs(10);

    fn reply_to(call: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        ReplyHeader {
            bytes: 0,
            call,
            status: 0,
            deferred: 0,
            deferred_context: 0,
            notices: 0,
            chunks: Default::default(),
            memory_credit_bytes: 0,
        }
        .put(&mut bytes);
        bytes
    }

    /// Replies over a real connection, and the worker's end of it.
    fn connected() -> (Replies, Tx) {
        let listener = Listener::bind(&"tcp:127.0.0.1:0".parse::<Address>().unwrap()).unwrap();
        let address = listener.address().clone();
        let client = thread::spawn(move || {
            let preamble = Preamble::new(ConnectionKind::Command, 0, [1; 16]);
            transport::connect(&address, &ClientSecurity::Plain, preamble, PATIENCE).unwrap()
        });
        let deadline = Instant::now() + PATIENCE;
        let mut worker = listener.accept().unwrap().unwrap();
        worker.read_preamble(deadline).unwrap();
        let worker = worker.serve(&ServerSecurity::Plain, deadline).unwrap();
        (Replies::new(client.join().unwrap().rx), worker.tx)
    }

    #[test]
    fn reading_is_not_handed_to_nobody() {
        let (replies, mut worker) = connected();
        let replies = Arc::new(replies);
        // Call 1 has its reply but has not looked; call 2 sleeps while somebody reads.
        replies.expect(1);
        let header: ReplyHeader = header(&reply_to(1)).unwrap();
        *lock(&lock(&replies.state).waiting[&1].reply) = Some((header, Vec::new()));
        replies.expect(2);
        lock(&replies.state).somebody_reads = true;
        let sleeper = thread::spawn({
            let replies = Arc::clone(&replies);
            move || replies.wait(2).map(|reply| reply.0.call)
        });
        thread::sleep(Duration::from_millis(50));
        // The reader leaves, and the one it woke is call 1.
        lock(&replies.state).somebody_reads = false;
        assert_eq!(replies.wait(1).unwrap().0.call, 1);
        worker.send(&[&reply_to(2)]).unwrap();
        let start = Instant::now();
        while !sleeper.is_finished() {
            assert!(start.elapsed() < PATIENCE, "nobody reads");
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(sleeper.join().unwrap(), Ok(2));
    }
}
