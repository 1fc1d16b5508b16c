//! Protection of one session: its cuts, and the image that they go into.
//!
//! ```text
//! command loop   Guard ─┐   Cut ─▶ driver.cut, at its place in the stream ─┐   ImageRestore ─┐ (waits for it)
//!                       ▼                                                  ▼                 ▼
//! dxpu-cut       open the image, answer        wait ─▶ begin, blocks, commit ─▶ settle ─▶ CutSafe   restore
//! driver's own   all streams stand still ─▶ CutTaken ─▶ streams go on
//! ```
//!
//! The command loop never waits for a guardian or for a cut: the thread `dxpu-cut` does, which the first `Guard` starts.
//! `ImageRestore` is the exception, because the commands behind it need the memory that it brings back.
//!
//! Every `Cut` is followed by one [`Notice::CutSafe`] or one [`Notice::CutAbandoned`], whatever happens, unless the session
//! ends first.

mod keeper;
mod refusal;

pub(crate) use refusal::Refusal;

use crate::{
    end::{EndKind, Ending},
    session::{link::Link, replies::Replies},
};
use cuda_abi::CudaError;
use cuda_driver::{Cut, Driver, ImageStore, LinkLost, OnTaken, PendingCut, Snapshots, StoreError, TakenCut};
use cuda_wire::{Bytes, ImageName, ImageRestored, Notice, VaRange, Wire};
use keeper::Keeper;
use locks::lock;
use snapshot::{Extent, Extents, Key};
use std::path::{Path, PathBuf};
use std::sync::{
    Arc, Mutex,
    mpsc::{Receiver, RecvTimeoutError, Sender, channel},
};
use std::time::{Duration, Instant};

/// Opens the guardian that listens at a path, for images of a lease if there is one.
pub type OpenStore = fn(path: &Path, lease: Option<&str>) -> Result<Arc<dyn ImageStore>, StoreError>;

/// Pieces of dead memory that a cut may name. Between two of them is at least one block, with a digest in the tables of the
/// driver and of the guardian.
const DEAD_MAX: usize = 1 << 18;

/// Words of a refusal that a notice carries; a store's sentences are shorter.
const WORDS_MAX: usize = 4 << 10;

/// How often the thread looks at a guardian that has nothing to do for it. A client hears of its loss that soon.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Where the images of a session go.
#[derive(Clone)]
pub(crate) struct GuardianPlace {
    pub(crate) path: PathBuf,
    /// Where other boxes reach it; empty: as the store says itself.
    pub(crate) address: String,
    /// The lease that the images belong to.
    pub(crate) lease: Option<String>,
    pub(crate) open: OpenStore,
}

/// What opens an image.
#[derive(Clone)]
pub(crate) struct Opening {
    pub(crate) image: ImageName,
    pub(crate) secret: [u8; 32],
    pub(crate) incarnation: u64,
}

impl Opening {
    /// The key of the image's digests. The guardian derives the same one.
    fn key(&self) -> Arc<Key> {
        Arc::new(Key::from_seed(&blake3::derive_key("dxpu survival image digest v1", &self.secret)))
    }
}

/// A cut as the client asks for it.
pub(crate) struct Wanted {
    pub(crate) number: u64,
    /// Memory whose bytes the program does not need.
    pub(crate) dead: Vec<VaRange>,
    pub(crate) patience: Duration,
}

/// What the thread `dxpu-cut` does, in order.
enum Job {
    Guard { call: u32, opening: Opening },
    Cut { number: u64, pending: Box<dyn PendingCut> },
    Restore { number: u64, from: String, answer: Sender<Result<ImageRestored, Refusal>> },
    Close { fate: Fate, done: Sender<()> },
}

/// What becomes of the image when the client ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its bytes are zeroed.
    End,
    /// It stays, for a session elsewhere or later.
    Stay,
}

#[derive(Default)]
enum Standing {
    #[default]
    Unprotected,
    /// The guardian has not answered yet.
    Opening,
    Protected(Arc<Key>),
}

#[derive(Default)]
struct State {
    standing: Standing,
    /// The cut under way.
    cut: Option<u64>,
    /// The image cannot take a delta: the driver must forget what it believes the image to have.
    is_whole_next: bool,
    jobs: Option<Sender<Job>>,
    fate: Option<Fate>,
}

pub(crate) struct Cuts {
    driver: Arc<dyn Driver>,
    link: Arc<Link>,
    replies: Arc<Replies>,
    guardian: Option<GuardianPlace>,
    state: Mutex<State>,
}

impl Cuts {
    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        link: Arc<Link>,
        replies: Arc<Replies>,
        guardian: Option<GuardianPlace>,
    ) -> Self {
        Self { driver, link, replies, guardian, state: Mutex::default() }
    }

    /// Begins protection. The thread `dxpu-cut` answers `call` when the guardian has opened the image.
    pub(crate) fn guard(
        self: &Arc<Self>,
        call: u32,
        opening: Opening,
        ending: &Arc<Ending>,
    ) -> Result<(), LinkLost> {
        match self.begin_guard(call, opening, ending) {
            Ok(()) => Ok(()),
            Err(refusal) => self.replies.refuse(call, &refusal),
        }
    }

    fn begin_guard(
        self: &Arc<Self>,
        call: u32,
        opening: Opening,
        ending: &Arc<Ending>,
    ) -> Result<(), Refusal> {
        let place = self.place()?;
        self.snapshots()?;
        if opening.incarnation == 0 {
            return Err(Refusal::new(CudaError::INVALID_VALUE, "incarnations are counted from 1"));
        }
        let mut state = lock(&self.state);
        if !matches!(state.standing, Standing::Unprotected) {
            let words = "this session is protected already, or about to be; one image belongs to one session";
            return Err(Refusal::new(CudaError::INVALID_VALUE, words));
        }
        if state.jobs.is_none() {
            state.jobs = Some(self.start_thread(place.clone(), ending)?);
        }
        state.standing = Standing::Opening;
        if let Some(jobs) = &state.jobs {
            // The thread takes jobs until the session ends.
            let _ = jobs.send(Job::Guard { call, opening });
        }
        Ok(())
    }

    fn start_thread(
        self: &Arc<Self>,
        place: GuardianPlace,
        ending: &Arc<Ending>,
    ) -> Result<Sender<Job>, Refusal> {
        let (jobs, taken) = channel();
        let (cuts, ending) = (self.clone(), ending.clone());
        let body = move || {
            let run = std::panic::AssertUnwindSafe(|| cuts.serve(&taken, Keeper::new(cuts.clone(), place)));
            if std::panic::catch_unwind(run).is_err() {
                ending.end(EndKind::Internal, "the driver panicked in a cut");
            }
        };
        let thread = std::thread::Builder::new().name("dxpu-cut".to_owned()).spawn(body);
        thread.map(|_| jobs).map_err(|error| {
            Refusal::new(
                CudaError::OUT_OF_MEMORY,
                format!("the worker cannot start a thread for cuts: {error}"),
            )
        })
    }

    /// The thread `dxpu-cut`.
    fn serve(&self, jobs: &Receiver<Job>, mut keeper: Keeper) {
        loop {
            // Between two cuts the guardian may be lost, or another box may get the last one.
            let job = match keeper.has_image() {
                true => jobs.recv_timeout(LOOK_EVERY),
                false => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let job = match job {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) => {
                    self.tell_news(keeper.look());
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            match job {
                Job::Guard { call, opening } => {
                    let outcome = keeper.guard(&opening);
                    self.guarded(call, outcome);
                }
                Job::Cut { number, pending } => {
                    let outcome = keeper.keep(number, pending);
                    self.cut_over(number, outcome);
                }
                Job::Restore { number, from, answer } => {
                    let _ = answer.send(keeper.restore(number, &from));
                }
                Job::Close { fate, done } => {
                    keeper.close(fate);
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    /// What a look at the guardian found.
    fn tell_news(&self, news: Option<keeper::News>) {
        // A client that is gone needs no notice.
        let _ = match news {
            None => Ok(()),
            Some(keeper::News::Copied { number, image_bytes }) => {
                self.link.events.send(&Notice::CutSafe { number, level: 2, image_bytes })
            }
            Some(keeper::News::Lost(words)) => {
                lock(&self.state).is_whole_next = true;
                self.link.events.send(&Notice::GuardianLost { text: Bytes(within_bounds(&words).as_bytes()) })
            }
        };
    }

    /// The guardian has answered.
    fn guarded(&self, call: u32, outcome: Result<(Arc<Key>, cuda_wire::GuardInfo), Refusal>) {
        let told = match outcome {
            Ok((key, info)) => {
                lock(&self.state).standing = Standing::Protected(key);
                self.replies.protect();
                let mut body = Vec::new();
                info.put(&mut body);
                if call == 0 { Ok(()) } else { self.replies.send(call, Ok(()), &body) }
            }
            Err(refusal) => {
                lock(&self.state).standing = Standing::Unprotected;
                self.replies.refuse(call, &refusal)
            }
        };
        if told.is_err() {
            self.link.outgoing.close();
        }
    }

    /// Takes a cut at this place of the command stream.
    pub(crate) fn cut(&self, call: u32, wanted: Wanted) -> Result<(), LinkLost> {
        let number = wanted.number;
        match self.begin_cut(wanted) {
            Ok(()) if call == 0 => Ok(()),
            Ok(()) => self.replies.send(call, Ok(()), &[]),
            Err(refusal) => {
                let words = refusal.words(&*self.driver);
                if call != 0 {
                    self.replies.refuse(call, &Refusal::new(refusal.error, words.clone()))?;
                }
                self.tell_abandoned(number, &words)
            }
        }
    }

    fn begin_cut(&self, wanted: Wanted) -> Result<(), Refusal> {
        let snapshots = self.snapshots()?;
        let number = wanted.number;
        let (key, is_whole) = {
            let mut state = lock(&self.state);
            let key = match &state.standing {
                Standing::Protected(key) => key.clone(),
                Standing::Opening => {
                    let words = "the guardian has not answered yet, so there is no image for a cut";
                    return Err(Refusal::new(CudaError::NOT_READY, words));
                }
                Standing::Unprotected => {
                    let words = "this session is not protected, so there is no image for a cut";
                    return Err(Refusal::new(CudaError::NOT_INITIALIZED, words));
                }
            };
            if let Some(under_way) = state.cut {
                let words = format!("cut {under_way} is still under way, and one is taken at a time");
                return Err(Refusal::new(CudaError::NOT_READY, words));
            }
            state.cut = Some(number);
            (key, state.is_whole_next)
        };
        let begun = dead_memory(&wanted.dead).and_then(|dead| {
            if is_whole {
                snapshots.protect(key)?;
                lock(&self.state).is_whole_next = false;
            }
            let on_taken = self.tell_taken(number);
            Ok(snapshots.cut(Cut { number, dead, patience: wanted.patience, on_taken })?)
        });
        let mut state = lock(&self.state);
        match (begun, &state.jobs) {
            (Ok(pending), Some(jobs)) => {
                let _ = jobs.send(Job::Cut { number, pending });
                Ok(())
            }
            // The session ends.
            (Ok(_), None) => Ok(()),
            (Err(refusal), _) => {
                state.cut = None;
                Err(refusal)
            }
        }
    }

    /// What the driver calls when all streams stand still: the client hears of the cut before anything that comes after
    /// it, because host functions, pulls and text travel on the same connection.
    fn tell_taken(&self, number: u64) -> OnTaken {
        let link = self.link.clone();
        Arc::new(move |taken: &TakenCut| {
            // A client that is gone needs no notice.
            let _ = link.events.send(&Notice::CutTaken {
                number,
                live_bytes: taken.live_bytes,
                dirty_bytes: taken.dirty_bytes,
                pause_us: u32::try_from(taken.pause.as_micros()).unwrap_or(u32::MAX),
            });
        })
    }

    /// A cut is over: the next one may come before the client hears of it.
    fn cut_over(&self, number: u64, outcome: keeper::Outcome) {
        {
            let mut state = lock(&self.state);
            state.cut = None;
            state.is_whole_next |= outcome.is_whole_next;
        }
        self.tell_news(outcome.lost.map(keeper::News::Lost));
        let _ = match outcome.result {
            Ok(committed) => self.link.events.send(&Notice::CutSafe {
                number,
                level: committed.level,
                image_bytes: committed.image_bytes,
            }),
            Err(words) => self.tell_abandoned(number, &words),
        };
    }

    fn tell_abandoned(&self, number: u64, words: &str) -> Result<(), LinkLost> {
        let text = Bytes(within_bounds(words).as_bytes());
        self.link.events.send(&Notice::CutAbandoned { number, text })
    }

    /// Loads an image. Returns when it is done: the commands behind it need the memory.
    pub(crate) fn restore(&self, call: u32, number: u64, from: String) -> Result<(), LinkLost> {
        self.tell_restored(call, self.restored(number, from))
    }

    /// Loads the image of another session, which goes on writing it. Returns when it is done.
    pub(crate) fn copy(&self, call: u32, opening: &Opening, number: u64, from: &str) -> Result<(), LinkLost> {
        self.tell_restored(call, self.copied(opening, number, from))
    }

    /// Has the guardian bring an image here whose writer goes on elsewhere. Returns when it is done.
    pub(crate) fn fetch(&self, call: u32, opening: &Opening, from: &str) -> Result<(), LinkLost> {
        let fetched = self.place().and_then(|place| {
            let store = (place.open)(&place.path, place.lease.as_deref())?;
            let one = |from| store.fetch(opening.image, &opening.secret, opening.incarnation, from);
            let mut fetched = Err(StoreError::Refused("no guardian is named that has the image".to_owned()));
            for from in from.split(',').filter(|from| !from.is_empty()) {
                fetched = one(from);
                if fetched.is_ok() {
                    break;
                }
            }
            Ok(fetched?)
        });
        match fetched {
            Ok(()) if call == 0 => Ok(()),
            Ok(()) => self.replies.send(call, Ok(()), &[]),
            Err(refusal) => self.replies.refuse(call, &refusal),
        }
    }

    fn copied(&self, opening: &Opening, number: u64, from: &str) -> Result<ImageRestored, Refusal> {
        let place = self.place()?;
        let snapshots = self.snapshots()?;
        if !matches!(lock(&self.state).standing, Standing::Unprotected) {
            let words = "this session is protected: it has an image of its own and takes no copy of another";
            return Err(Refusal::new(CudaError::INVALID_VALUE, words));
        }
        let started = Instant::now();
        let store = (place.open)(&place.path, place.lease.as_deref())?;
        let blocks = store.read(opening.image, &opening.secret, number, from);
        // The driver checks every digest, for which it must know the key.
        snapshots.protect(opening.key())?;
        keeper::load(snapshots, blocks, started)
    }

    fn tell_restored(&self, call: u32, outcome: Result<ImageRestored, Refusal>) -> Result<(), LinkLost> {
        match outcome {
            Ok(_) if call == 0 => Ok(()),
            Ok(restored) => {
                let mut body = Vec::new();
                restored.put(&mut body);
                self.replies.send(call, Ok(()), &body)
            }
            Err(refusal) => self.replies.refuse(call, &refusal),
        }
    }

    fn restored(&self, number: u64, from: String) -> Result<ImageRestored, Refusal> {
        let (answer, answered) = channel();
        {
            let state = lock(&self.state);
            let jobs = state.jobs.as_ref().filter(|_| !matches!(state.standing, Standing::Unprotected));
            let Some(jobs) = jobs else {
                let words = "this session is not protected, so there is no image to restore";
                return Err(Refusal::new(CudaError::NOT_INITIALIZED, words));
            };
            if state.cut.is_some() {
                let words = "a cut is under way; an image is restored before the first cut of a session";
                return Err(Refusal::new(CudaError::NOT_READY, words));
            }
            let _ = jobs.send(Job::Restore { number, from, answer });
        }
        answered.recv().unwrap_or_else(|_| Err(Refusal::new(CudaError::UNKNOWN, "the session ends")))
    }

    /// Whether the session's program goes on in another one if this is lost.
    pub(crate) fn is_protected(&self) -> bool {
        !matches!(lock(&self.state).standing, Standing::Unprotected)
    }

    /// The client has said what becomes of its image.
    pub(crate) fn decide(&self, fate: Fate) {
        lock(&self.state).fate = Some(fate);
    }

    /// Does with the image what the client has decided; the session is over, and its driver stopped. Without a decision
    /// the image stays, and the guardian keeps it for a while. So it does if it does not answer in time.
    pub(crate) fn close(&self) {
        /// A guardian zeroes tens of gigabytes in that time.
        const CLOSED_WITHIN: Duration = Duration::from_secs(5);
        let mut state = lock(&self.state);
        let (Some(jobs), Some(fate)) = (state.jobs.take(), state.fate) else { return };
        drop(state);
        let (done, closed) = channel();
        if jobs.send(Job::Close { fate, done }).is_ok() && closed.recv_timeout(CLOSED_WITHIN).is_err() {
            tracing::warn!(
                ?fate,
                "the guardian did not answer at the end of a session; it ends the image by itself"
            );
        }
    }

    fn place(&self) -> Result<&GuardianPlace, Refusal> {
        let words = "this worker has no guardian; start it with --guard-memory BYTES";
        self.guardian.as_ref().ok_or_else(|| Refusal::new(CudaError::NOT_SUPPORTED, words))
    }

    fn snapshots(&self) -> Result<&dyn Snapshots, Refusal> {
        let words = "this worker's driver takes no cuts";
        self.driver.snapshots().ok_or_else(|| Refusal::new(CudaError::NOT_SUPPORTED, words))
    }
}

/// The beginning of a text that fits into a notice.
fn within_bounds(words: &str) -> &str {
    let end = words.char_indices().map(|(at, _)| at).take_while(|at| *at <= WORDS_MAX).last().unwrap_or(0);
    if words.len() <= WORDS_MAX { words } else { &words[..end] }
}

fn dead_memory(ranges: &[VaRange]) -> Result<Extents, Refusal> {
    if ranges.len() > DEAD_MAX {
        let words =
            format!("the cut names {} pieces of dead memory; at most {DEAD_MAX} are allowed", ranges.len());
        return Err(Refusal::new(CudaError::INVALID_VALUE, words));
    }
    let extents = ranges.iter().map(|range| Extent { address: range.base, bytes: range.bytes });
    Extents::new(extents)
        .map_err(|error| Refusal::new(CudaError::INVALID_VALUE, format!("dead memory of the cut: {error}")))
}
