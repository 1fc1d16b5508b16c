//! The timeline that `dxpu run --timeline` asks for: what this process waited for and what its workers say has run, in a file.
//!
//! Threads hand over what happened and go on; one thread writes. If it cannot keep up, records are dropped and counted: a timeline
//! never holds the program up. Nothing of this is on the way of a launch: what the GPU did comes from the worker.

mod clock;
mod file;

use crate::{link::Link, log};
use cuda_wire::{ModuleId, Span};
use file::TraceFile;
use locks::{lock, wait_for};
use std::{
    path::Path,
    sync::{
        Arc, Condvar, Mutex, OnceLock, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};
use timeline::{Call, LinkNumber, Push, Timed, Trace};

/// Records that wait for the writer; each is less than 100 bytes, but for what a worker says at once (at most 64 KiB).
const RECORDS_MAX: usize = 1 << 14;
/// A killed program loses what happened this long before its end.
const WRITE_EVERY: Duration = Duration::from_millis(100);
/// More than this is written at once.
const WRITE_BYTES: usize = 256 << 10;
/// How often a worker is asked for the time. Clocks of two machines drift apart meanwhile; by how much is not measured.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often at first: of several round trips one is short.
const FIRST_ASKS: u32 = 8;
/// How long the end of the process waits for what the workers have not told yet, and for the file.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(1);
/// How long a worker has to say that it keeps a timeline.
const FIRST_WORD_WITHIN: Duration = Duration::from_secs(10);
/// The question for everything that has run; other questions are numbered from 1.
const FLUSH: u64 = u64::MAX;

/// Something for the trace.
enum Record {
    Linked { link: LinkNumber, way: Weak<Link>, address: String },
    Session { link: LinkNumber },
    Told { link: LinkNumber, nonce: u64, worker_ns: u64, now_ns: u64 },
    Timed { link: LinkNumber, timed: Timed },
    Module { module: ModuleId, kernels: Vec<String> },
    Call(Call),
    Push(Push),
    End,
}

/// The process's timeline.
pub(crate) struct Timeline {
    records: SyncSender<Record>,
    dropped: AtomicU64,
    links: AtomicU32,
    /// Links whose workers have told everything, and whether the file is written.
    ended: Mutex<Ended>,
    changed: Condvar,
}

#[derive(Default)]
struct Ended {
    flushed: u32,
    is_written: bool,
}

static TIMELINE: OnceLock<Option<Arc<Timeline>>> = OnceLock::new();

/// The process's timeline, if it has one. The first call opens the file at `path`; if that fails, the user is told and the program
/// goes on without.
pub(crate) fn open(path: Option<&Path>) -> Option<Arc<Timeline>> {
    TIMELINE.get_or_init(|| start(path?)).clone()
}

fn start(path: &Path) -> Option<Arc<Timeline>> {
    let no_timeline = |error: std::io::Error| {
        log::warn(&format!("no timeline: cannot write {}: {error}", path.display()));
    };
    let file = TraceFile::open(path).map_err(no_timeline).ok()?;
    let (records, received) = sync_channel(RECORDS_MAX);
    let timeline = Arc::new(Timeline {
        records,
        dropped: AtomicU64::new(0),
        links: AtomicU32::new(0),
        ended: Mutex::default(),
        changed: Condvar::new(),
    });
    let mut text = String::new();
    let trace = Trace::new(std::process::id(), &program(), &mut text);
    let writer = Writer { timeline: Arc::clone(&timeline), file: Some(file), trace, text, links: Vec::new() };
    crate::threads::spawn("dxpu-timeline", move || writer.run(&received)).map_err(no_timeline).ok()?;
    Some(timeline)
}

fn program() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    format!("{} (process {})", name.to_string_lossy(), std::process::id())
}

impl Timeline {
    fn hand_over(&self, record: Record) {
        if self.records.try_send(record).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A module was loaded.
    pub(crate) fn module(&self, module: ModuleId, kernels: Vec<String>) {
        self.hand_over(Record::Module { module, kernels });
    }

    /// Waits until workers have told everything (`links` of them) or the time is over.
    fn wait_flushed(&self, links: u32) {
        let until = Instant::now() + LAST_WORDS_WITHIN;
        let mut ended = lock(&self.ended);
        while ended.flushed < links {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            ended = wait_for(&self.changed, ended, left);
        }
    }
}

/// The process ends: asks the workers for everything. They must still be there.
pub(crate) fn flush<'a>(links: impl Iterator<Item = &'a Link>) {
    let Some(Some(timeline)) = TIMELINE.get() else { return };
    let asked = links.filter(|link| link.ask_timeline(FLUSH, true)).count();
    timeline.wait_flushed(asked as u32);
}

/// Ends the file.
pub(crate) fn finish() {
    let Some(Some(timeline)) = TIMELINE.get() else { return };
    // The writer may be behind: a full queue is given a moment.
    let until = Instant::now() + LAST_WORDS_WITHIN;
    let mut end = Record::End;
    while let Err(std::sync::mpsc::TrySendError::Full(back)) = timeline.records.try_send(end) {
        if Instant::now() >= until {
            return;
        }
        end = back;
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut ended = lock(&timeline.ended);
    while !ended.is_written && Instant::now() < until {
        ended = wait_for(&timeline.changed, ended, Duration::from_millis(50));
    }
}

/// The timeline as one link writes to it.
pub(crate) struct LinkTimeline {
    timeline: Arc<Timeline>,
    link: LinkNumber,
    is_kept: std::sync::atomic::AtomicBool,
}

/// A call that waits for the worker.
pub(crate) struct Waiting(u64);

impl LinkTimeline {
    pub(crate) fn new(timeline: &Arc<Timeline>, way: Weak<Link>, address: String) -> Self {
        let link = timeline.links.fetch_add(1, Ordering::Relaxed);
        timeline.hand_over(Record::Linked { link, way, address });
        Self { timeline: Arc::clone(timeline), link, is_kept: Default::default() }
    }

    /// Another session is the link's from now on. Its worker has not said yet that it keeps a timeline.
    pub(crate) fn begin_session(&self) {
        self.is_kept.store(false, Ordering::Release);
    }

    /// A thread begins to wait.
    pub(crate) fn begin(&self) -> Waiting {
        Waiting(clock::now_ns())
    }

    /// It has its answer.
    pub(crate) fn called(&self, Waiting(start_ns): Waiting, name: &'static str, call: u32) {
        let span = Span { start_ns, end_ns: clock::now_ns() };
        let call = Call { link: self.link, thread: clock::thread(), name, call, span };
        self.timeline.hand_over(Record::Call(call));
    }

    /// Its bytes have left.
    pub(crate) fn pushed(&self, Waiting(start_ns): Waiting, bytes: u64) {
        let span = Span { start_ns, end_ns: clock::now_ns() };
        self.timeline.hand_over(Record::Push(Push { thread: clock::thread(), bytes, span }));
    }

    pub(crate) fn module(&self, module: ModuleId, kernels: Vec<String>) {
        self.timeline.module(module, kernels);
    }

    /// What the worker's clock shows. The first word of a session says that its worker keeps a timeline.
    pub(crate) fn told(&self, nonce: u64, worker_ns: u64) {
        let now_ns = clock::now_ns();
        match nonce {
            0 => {
                self.is_kept.store(true, Ordering::Release);
                self.timeline.hand_over(Record::Session { link: self.link });
            }
            FLUSH => {
                lock(&self.timeline.ended).flushed += 1;
                self.timeline.changed.notify_all();
            }
            nonce => self.timeline.hand_over(Record::Told { link: self.link, nonce, worker_ns, now_ns }),
        }
    }

    /// Whether the worker keeps a timeline: another one must not be asked.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Acquire)
    }

    /// What the worker says has run.
    pub(crate) fn timed(&self, timed: Timed) {
        self.timeline.hand_over(Record::Timed { link: self.link, timed });
    }
}

/// A link, as the writer knows it.
struct Linked {
    link: LinkNumber,
    way: Weak<Link>,
    address: String,
    since: Instant,
    asked: u32,
    asked_at: Option<Instant>,
    is_warned: bool,
}

struct Writer {
    timeline: Arc<Timeline>,
    /// None when it could not be written any more.
    file: Option<TraceFile>,
    trace: Trace,
    text: String,
    links: Vec<Linked>,
}

impl Writer {
    fn run(mut self, received: &Receiver<Record>) {
        let mut written = Instant::now();
        let mut nonce = 0;
        loop {
            let is_over = match received.recv_timeout(WRITE_EVERY) {
                Ok(Record::End) | Err(RecvTimeoutError::Disconnected) => true,
                Ok(record) => {
                    self.take(record);
                    false
                }
                Err(RecvTimeoutError::Timeout) => false,
            };
            if is_over {
                self.trace.finish(clock::now_ns(), &mut self.text);
            }
            if is_over || self.text.len() >= WRITE_BYTES || written.elapsed() >= WRITE_EVERY {
                self.note_dropped();
                self.write();
                written = Instant::now();
            }
            if is_over {
                return self.end();
            }
            self.ask_for_time(&mut nonce);
        }
    }

    fn take(&mut self, record: Record) {
        let (trace, text) = (&mut self.trace, &mut self.text);
        match record {
            Record::Linked { link, way, address } => {
                let since = Instant::now();
                self.links.push(Linked {
                    link,
                    way,
                    address,
                    since,
                    asked: 0,
                    asked_at: None,
                    is_warned: false,
                });
            }
            Record::Session { link } => {
                if let Some(linked) = self.links.iter_mut().find(|linked| linked.link == link) {
                    (linked.asked, linked.asked_at) = (0, None);
                    trace.session(link, &linked.address, text);
                }
            }
            Record::Told { link, nonce, worker_ns, now_ns } => {
                trace.told(link, nonce, worker_ns, now_ns, text)
            }
            Record::Timed { link, timed } => trace.timed(link, timed, clock::now_ns(), text),
            Record::Module { module, kernels } => trace.module(module, kernels),
            Record::Call(call) => {
                name_thread(trace, call.thread, text);
                trace.call(call, text);
            }
            Record::Push(push) => {
                name_thread(trace, push.thread, text);
                trace.push(push, text);
            }
            Record::End => {}
        }
    }

    fn note_dropped(&mut self) {
        let dropped = self.timeline.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            self.trace.dropped(dropped, clock::now_ns(), &mut self.text);
        }
    }

    fn write(&mut self) {
        if let Some(file) = &mut self.file
            && let Err(error) = file.append(&self.text)
        {
            log::warn(&format!("the timeline ends here: its file cannot be written: {error}"));
            self.file = None;
        }
        self.text.clear();
    }

    fn end(mut self) {
        if let Some(file) = self.file.take() {
            // Without the closing bracket the file is as good.
            let _ = file.close();
        }
        lock(&self.timeline.ended).is_written = true;
        self.timeline.changed.notify_all();
    }

    /// Asks the workers for the time, and warns of those that keep none.
    fn ask_for_time(&mut self, nonce: &mut u64) {
        for linked in &mut self.links {
            let Some(link) = linked.way.upgrade() else { continue };
            if !link.keeps_timeline() {
                if !linked.is_warned && linked.since.elapsed() >= FIRST_WORD_WITHIN {
                    linked.is_warned = true;
                    warn_of_old_worker(&linked.address);
                }
                continue;
            }
            let is_due = linked.asked_at.is_none_or(|at| at.elapsed() >= ASK_EVERY);
            if !is_due && linked.asked >= FIRST_ASKS {
                continue;
            }
            (linked.asked, linked.asked_at) = (linked.asked + 1, Some(Instant::now()));
            *nonce += 1;
            self.trace.asked(linked.link, *nonce, clock::now_ns());
            link.ask_timeline(*nonce, false);
        }
    }
}

/// The worker serves the program and tells nothing of what runs.
pub(crate) fn warn_of_old_worker(address: &str) {
    log::warn(&format!(
        "the timeline shows this machine alone: worker {address} is too old to say what runs on its GPU; install the same dxpu \
         there"
    ));
}

fn name_thread(trace: &mut Trace, thread: u64, text: &mut String) {
    if !trace.knows_thread(thread) {
        let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
        trace.thread(thread, name.as_deref().unwrap_or("a thread that has ended").trim_end(), text);
    }
}
