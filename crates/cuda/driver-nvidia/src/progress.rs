//! The thread that watches words in pinned memory and acts when streams have written them.
//!
//! While something is watched it looks again and again, as CUDA's own waits do; after a while without a sign it rests a
//! little between looks.

use crate::{pinned::Word, stream::LiveStream};
use cuda_abi::{CuResult, CudaError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long it looks without a rest. Most of what a program waits for comes sooner.
const EAGER: Duration = Duration::from_micros(500);
/// How long it looks for something to watch before it sleeps: a program that reads results one by one has the next one
/// soon, and a wake-up takes longer than the copy itself.
const LINGER: Duration = Duration::from_millis(1);
/// A rest. The kernel makes it a little longer.
const REST: Duration = Duration::from_micros(30);
/// How often it asks streams whether they are dead, and then never write their words, or have no work.
const HEALTH_EVERY: Duration = Duration::from_millis(2);

/// Called when the stream has got there (`Ok`) or never will (`Err`).
pub(crate) type Then = Box<dyn FnOnce(CuResult<()>) + Send>;

/// What a stream is watched for.
pub(crate) enum Until {
    /// It has written this word: reached when the word is at least the value.
    Written { word: Arc<Word>, value: u64 },
    /// The same, or the orders were called off: then it may never write the word.
    WrittenOrCalledOff { word: Arc<Word>, value: u64, called_off: Arc<AtomicBool> },
    /// It has no work. For work that was given up in the middle: how much of it the stream has is not known.
    Idle,
}

impl Until {
    #[inline]
    fn is_written(&self) -> bool {
        match self {
            Self::Written { word, value } => word.get() >= *value,
            Self::WrittenOrCalledOff { word, value, called_off } => {
                word.get() >= *value || called_off.load(Ordering::Acquire)
            }
            Self::Idle => false,
        }
    }
}

/// Something to wait for.
pub(crate) struct Watch {
    pub(crate) until: Until,
    pub(crate) stream: Arc<LiveStream>,
    pub(crate) then: Then,
}

#[derive(Default)]
pub(crate) struct Progress {
    new: Mutex<Vec<Watch>>,
    has_new: AtomicBool,
    wake: Condvar,
    closed: AtomicBool,
}

impl Progress {
    pub(crate) fn start() -> std::io::Result<Arc<Self>> {
        let progress = Arc::new(Self::default());
        let thread = Arc::clone(&progress);
        std::thread::Builder::new().name("dxpu-progress".to_owned()).spawn(move || thread.run())?;
        Ok(progress)
    }

    /// Watches something from now on.
    pub(crate) fn watch(&self, watch: Watch) {
        let mut new = self.new.lock().unwrap_or_else(PoisonError::into_inner);
        new.push(watch);
        self.has_new.store(true, Ordering::Release);
        drop(new);
        self.wake.notify_one();
    }

    /// Keeps slots and words that orders in a stream may still point to, until the stream has no work or is dead.
    pub(crate) fn keep_until_idle(&self, stream: &Arc<LiveStream>, kept: impl Send + 'static) {
        let then = Box::new(move |_| drop(kept));
        self.watch(Watch { until: Until::Idle, stream: Arc::clone(stream), then });
    }

    /// Ends the thread. Open watches are called with an error.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        drop(self.new.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_all();
    }

    fn run(&self) {
        let mut watched: Vec<Watch> = Vec::new();
        let (mut last_sign, mut last_health) = (Instant::now(), Instant::now());
        loop {
            if self.closed.load(Ordering::SeqCst) {
                let new = std::mem::take(&mut *self.new.lock().unwrap_or_else(PoisonError::into_inner));
                for watch in watched.into_iter().chain(new) {
                    (watch.then)(Err(CudaError::DEVICE_UNAVAILABLE));
                }
                return;
            }
            if watched.is_empty() && last_sign.elapsed() < LINGER && !self.has_new.load(Ordering::Acquire) {
                std::hint::spin_loop();
                continue;
            }
            if watched.is_empty() || self.has_new.load(Ordering::Acquire) {
                let mut new = self.new.lock().unwrap_or_else(PoisonError::into_inner);
                while watched.is_empty() && new.is_empty() && !self.closed.load(Ordering::SeqCst) {
                    new = self.wake.wait(new).unwrap_or_else(PoisonError::into_inner);
                }
                watched.append(&mut new);
                self.has_new.store(false, Ordering::Release);
                last_sign = Instant::now();
            }
            let mut at = 0;
            while at < watched.len() {
                if watched[at].until.is_written() {
                    // In the order they were asked for: parts of one copy follow each other.
                    let watch = watched.remove(at);
                    (watch.then)(Ok(()));
                    last_sign = Instant::now();
                } else {
                    at += 1;
                }
            }
            if last_sign.elapsed() < EAGER {
                std::hint::spin_loop();
                continue;
            }
            if last_health.elapsed() >= HEALTH_EVERY {
                last_health = Instant::now();
                ask_streams(&mut watched);
            }
            std::thread::sleep(REST);
        }
    }
}

/// Gives up what dead streams will never write, and ends the watches for streams that have no work.
fn ask_streams(watched: &mut Vec<Watch>) {
    let mut at = 0;
    while at < watched.len() {
        match watched[at].stream.is_idle() {
            Err(error) => {
                let watch = watched.remove(at);
                (watch.then)(Err(error));
            }
            Ok(true) if matches!(watched[at].until, Until::Idle) => {
                let watch = watched.remove(at);
                (watch.then)(Ok(()));
            }
            Ok(_) => at += 1,
        }
    }
}
