//! The function with its connections: a device for any driver of devices.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pcie::endpoint::gpu::{Action, ChannelId, GpuFunction};
use pcie::endpoint::{Endpoint, FunctionOptions};
use pcie::{Time, TlpBuf};

use crate::bridge::Bridge;

/// Bytes of one channel that become packets at once; then it is another channel's turn.
const TURN_BYTES: usize = 16 << 10;

type Wake = Arc<dyn Fn() + Send + Sync>;

/// What a guest finds in the function to show the worker. Copies are the same pass.
#[derive(Clone, Default)]
pub struct Pass {
    text: Arc<Mutex<String>>,
    changed: Arc<AtomicBool>,
}

impl Pass {
    /// Guests that look from now on find this; an empty one is none.
    pub fn set(&self, text: &str) {
        text.clone_into(&mut self.text.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.store(true, Ordering::Release);
    }
}

/// The dxpu GPU function, with a worker behind it.
pub struct GpuEndpoint {
    function: GpuFunction,
    bridges: Vec<Option<Bridge>>,
    worker: PathBuf,
    wake: Wake,
    /// Channels whose connection has news, a bit each. Set by the connections' threads.
    news: Arc<AtomicU64>,
    /// Channels with news that were not all told yet: the guest had no room.
    untold: u64,
    turn: ChannelId,
    pass: Pass,
}

impl GpuEndpoint {
    /// A function whose channels are connections to the worker that listens at this Unix socket. `wake` is called, from any
    /// thread, when [`Endpoint::transmit`] may have something new.
    pub fn new(worker: PathBuf, options: FunctionOptions, wake: Wake) -> Self {
        let bridges = (0..u64::BITS).map(|_| None).collect();
        let (function, news) = (GpuFunction::new(options), Arc::default());
        Self { function, bridges, worker, wake, news, untold: 0, turn: 0, pass: Pass::default() }
    }

    /// The pass, to set it.
    pub fn pass(&self) -> Pass {
        self.pass.clone()
    }

    /// Does what the function says.
    fn act(&mut self) {
        while let Some(action) = self.function.next_action() {
            match action {
                Action::Open(id) => {
                    let (news, wake) = (self.news.clone(), self.wake.clone());
                    let notify = move || {
                        news.fetch_or(1 << id, Ordering::AcqRel);
                        wake();
                    };
                    self.bridges[id] = Some(Bridge::open(self.worker.clone(), Box::new(notify)));
                }
                Action::Bytes(id, bytes) => {
                    if let Some(bridge) = &self.bridges[id] {
                        bridge.send(bytes);
                    }
                }
                Action::Finish(id) => {
                    if let Some(bridge) = &self.bridges[id] {
                        bridge.finish();
                    }
                }
                Action::Close(id) => {
                    self.bridges[id] = None;
                    self.untold &= !(1 << id);
                }
            }
        }
    }

    /// Tells the function what one connection has for it. Says whether there was anything to tell.
    fn tell_one(&mut self) -> bool {
        self.untold |= self.news.swap(0, Ordering::AcqRel);
        for step in 1..=self.bridges.len() {
            let id = (self.turn + step) % self.bridges.len();
            if self.untold & 1 << id != 0 && self.tell(id) {
                self.turn = id;
                self.act();
                return true;
            }
        }
        false
    }

    fn tell(&mut self, id: ChannelId) -> bool {
        let Some(bridge) = &self.bridges[id] else {
            // What a connection said before it was closed.
            self.untold &= !(1 << id);
            return false;
        };
        let room = self.function.room(id).min(TURN_BYTES);
        let news = bridge.news(room);
        if !news.has_more {
            self.untold &= !(1 << id);
        }
        match news.connected {
            Some(true) => {
                self.function.opened(id);
                // Until now there was no room for anything.
                self.untold |= 1 << id;
            }
            Some(false) => self.function.refused(id),
            None => {}
        }
        if news.taken > 0 {
            self.function.taken(id, news.taken);
        }
        if !news.bytes.is_empty() {
            let pushed = self.function.push(id, &news.bytes);
            debug_assert_eq!(pushed, news.bytes.len(), "there was room");
        }
        if news.deserted {
            self.function.desert(id);
        }
        if news.finished {
            self.function.finish(id);
        }
        news.connected.is_some() || news.taken > 0 || !news.bytes.is_empty() || news.deserted || news.finished
    }
}

impl Endpoint for GpuEndpoint {
    fn receive(&mut self, packet: TlpBuf, now: Time) {
        // It hardly ever has, and this is asked for every packet: a look costs less than an exchange.
        if self.pass.changed.load(Ordering::Relaxed) && self.pass.changed.swap(false, Ordering::AcqRel) {
            let text = self.pass.text.lock().unwrap_or_else(PoisonError::into_inner);
            self.function.set_pass(text.as_bytes());
        }
        self.function.receive(packet, now);
        self.act();
    }

    fn transmit(&mut self, now: Time) -> Option<TlpBuf> {
        loop {
            let packet = self.function.transmit(now);
            self.act();
            if packet.is_some() {
                return packet;
            }
            if !self.tell_one() {
                return None;
            }
        }
    }

    fn on_tick(&mut self, now: Time) {
        self.function.on_tick(now);
        self.act();
    }

    fn wake_at(&self) -> Option<Time> {
        self.function.wake_at()
    }

    fn reset(&mut self) {
        self.function.reset();
        self.act();
    }
}
