//! The thread that watches words in pinned memory and acts when streams have written them.
//!
//! While something is watched it looks again and again, as CUDA's own waits do; after a while without a sign it rests a
//! little between looks.
//!
//! It never calls the library. The library's calls wait for each other: while one waits for room in a stream, all others
//! of its context wait too, and the room may come only by what this thread does. So another thread asks streams whether
//! they are dead or idle (`Health`).

use crate::{pinned::Word, stream::LiveStream};
use cuda_abi::{CuResult, CudaError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
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

/// A watch, and its number in the order of asking.
struct Watched {
    number: u64,
    watch: Watch,
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
        let (thread, health) = (Arc::clone(&progress), Health::start()?);
        std::thread::Builder::new().name("dxpu-progress".to_owned()).spawn(move || thread.run(health))?;
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

    fn run(&self, mut health: Health) {
        let mut watched: Vec<Watched> = Vec::new();
        let mut next_number = 0;
        let mut last_sign = Instant::now();
        loop {
            if self.closed.load(Ordering::SeqCst) {
                let new = std::mem::take(&mut *self.new.lock().unwrap_or_else(PoisonError::into_inner));
                for watch in watched.into_iter().map(|watched| watched.watch).chain(new) {
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
                for watch in new.drain(..) {
                    watched.push(Watched { number: next_number, watch });
                    next_number += 1;
                }
                self.has_new.store(false, Ordering::Release);
                last_sign = Instant::now();
            }
            let mut at = 0;
            while at < watched.len() {
                if watched[at].watch.until.is_written() {
                    // In the order they were asked for: parts of one copy follow each other.
                    let Watched { watch, .. } = watched.remove(at);
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
            health.look_after(&mut watched);
            std::thread::sleep(REST);
        }
    }
}

/// A stream, and the numbers of the watches that wait for it.
type Question = (Arc<LiveStream>, Vec<u64>);
/// Whether the stream had no work, or why it is dead, and for which watches that was asked.
type Answer = (CuResult<bool>, Vec<u64>);

/// The thread that asks streams how they are.
struct Health {
    questions: mpsc::Sender<Vec<Question>>,
    answers: mpsc::Receiver<Vec<Answer>>,
    is_asking: bool,
    last: Instant,
}

impl Health {
    fn start() -> std::io::Result<Self> {
        let (questions, asked) = mpsc::channel::<Vec<Question>>();
        let (answer, answers) = mpsc::channel();
        std::thread::Builder::new().name("dxpu-health".to_owned()).spawn(move || {
            for questions in asked {
                let found = questions.into_iter().map(|(stream, numbers)| (stream.is_idle(), numbers));
                if answer.send(found.collect()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { questions, answers, is_asking: false, last: Instant::now() })
    }

    /// Ends the watches for streams that were found dead, or idle, and asks again after a while.
    fn look_after(&mut self, watched: &mut Vec<Watched>) {
        if let Ok(answers) = self.answers.try_recv() {
            self.is_asking = false;
            apply(watched, &answers);
        }
        if self.is_asking || self.last.elapsed() < HEALTH_EVERY {
            return;
        }
        self.last = Instant::now();
        let mut questions: Vec<Question> = Vec::new();
        for Watched { number, watch } in watched.iter() {
            match questions.iter_mut().find(|(stream, _)| Arc::ptr_eq(stream, &watch.stream)) {
                Some((_, numbers)) => numbers.push(*number),
                None => questions.push((Arc::clone(&watch.stream), vec![*number])),
            }
        }
        self.is_asking = self.questions.send(questions).is_ok();
    }
}

/// Gives up what dead streams will never write, and ends the watches for streams that have no work. An answer counts only for
/// watches that were there when it was asked for.
fn apply(watched: &mut Vec<Watched>, answers: &[Answer]) {
    let mut at = 0;
    while at < watched.len() {
        let number = watched[at].number;
        let answer = answers.iter().find(|(_, numbers)| numbers.contains(&number)).map(|(answer, _)| *answer);
        let is_for_idleness = matches!(watched[at].watch.until, Until::Idle);
        let result = match answer {
            Some(Err(error)) => Err(error),
            Some(Ok(true)) if is_for_idleness => Ok(()),
            _ => {
                at += 1;
                continue;
            }
        };
        let Watched { watch, .. } = watched.remove(at);
        (watch.then)(result);
    }
}
