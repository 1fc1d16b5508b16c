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
                    if let Some(next) = state.waiting.values().next() {
                        next.wake.notify_one();
                    }
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
