//! What the worker says unasked: run a host function, send data, print; and the heartbeat.
//!
//! Host functions run on a thread of their own, one after the other, so that a slow one delays no data and no
//! heartbeat. CUDA forbids CUDA calls inside them, so they cannot wait for this thread. The device's text is written by
//! another thread for the same reason: the program's standard output may be a pipe that its reader leaves full for a
//! while.

use super::{Link, SharedLink};
use crate::host::{self, HostRegion};
use cuda_wire::{ASIDE, Notice, NoticeHeader, TransferId, WAYS, Wire, header};
use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};
use transport::{Rx, Tx};

/// Pieces of text, at most 64 KiB each, that wait for the program's standard output. More of them hold the worker back.
const TEXTS_WAITING_MAX: usize = 256;

type HostFunction = Arc<Mutex<Box<dyn FnMut() + Send>>>;

pub(super) struct Events {
    tx: Mutex<Tx>,
    state: Mutex<State>,
    changed: Condvar,
    handled: AtomicU32,
    /// Pieces of text handed to the thread that prints them, and pieces printed.
    texts_taken: AtomicU32,
    texts_printed: AtomicU32,
    next_token: AtomicU64,
    /// Host functions that wait to run, or may run again.
    host_calls_left: AtomicUsize,
    lost: AtomicBool,
}

#[derive(Default)]
struct State {
    offers: HashMap<TransferId, (HostRegion, bool)>,
    /// Offers whose memory the lanes are reading, and how often.
    serving: HashMap<TransferId, u32>,
    host_calls: HashMap<u64, (HostFunction, bool)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Events {
    pub(super) fn new(tx: Tx) -> Self {
        Self {
            tx: Mutex::new(tx),
            state: Mutex::default(),
            changed: Condvar::new(),
            handled: AtomicU32::new(0),
            texts_taken: AtomicU32::new(0),
            texts_printed: AtomicU32::new(0),
            host_calls_left: AtomicUsize::new(0),
            next_token: AtomicU64::new(1),
            lost: AtomicBool::new(false),
        }
    }

    /// Waits until `notices` of them were handled; they were sent before the reply that carries this number.
    pub(super) fn wait_handled(&self, notices: u32) -> Result<(), ()> {
        let is_behind = || {
            let handled = self.handled.load(Ordering::Acquire);
            // Text of later notices may be among it; a moment too long is harmless.
            (notices.wrapping_sub(handled) as i32) > 0
                || self.texts_taken.load(Ordering::Relaxed) != self.texts_printed.load(Ordering::Acquire)
        };
        if !is_behind() {
            return Ok(());
        }
        let mut state = lock(&self.state);
        while is_behind() {
            if self.lost.load(Ordering::SeqCst) {
                return Err(());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    pub(super) fn offer(&self, transfer: TransferId, region: HostRegion, once: bool) {
        lock(&self.state).offers.insert(transfer, (region, once));
    }

    pub(super) fn withdraw(&self, transfer: TransferId) {
        lock(&self.state).offers.remove(&transfer);
        self.changed.notify_all();
    }

    /// The lanes let go of an offer's memory.
    fn served(&self, transfer: TransferId, once: bool) {
        let mut state = lock(&self.state);
        if let Some(count) = state.serving.get_mut(&transfer) {
            *count -= 1;
            if *count == 0 {
                state.serving.remove(&transfer);
            }
        }
        if once {
            state.offers.remove(&transfer);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Takes an offer back and waits until no lane reads its memory: it is the program's again.
    pub(super) fn withdraw_and_wait(&self, transfer: TransferId) {
        let mut state = lock(&self.state);
        state.offers.remove(&transfer);
        // The lanes always let go in the end: when the bytes are out, or when the link is lost.
        while state.serving.contains_key(&transfer) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn offer_host_call(&self, run: Box<dyn FnMut() + Send>, once: bool) -> u64 {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        self.host_calls_left.fetch_add(1, Ordering::SeqCst);
        lock(&self.state).host_calls.insert(token, (Arc::new(Mutex::new(run)), once));
        token
    }

    pub(super) fn withdraw_host_call(&self, token: u64) {
        if lock(&self.state).host_calls.remove(&token).is_some() {
            self.host_calls_left.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
        drop(lock(&self.state));
        self.changed.notify_all();
    }

    fn text_printed(&self) {
        let state = lock(&self.state);
        self.texts_printed.fetch_add(1, Ordering::Release);
        drop(state);
        self.changed.notify_all();
    }

    fn send(&self, notice: &Notice<'_>) -> io::Result<()> {
        lock(&self.tx).send(&[&notice.to_frame()])
    }

    fn take_host_call(&self, token: u64) -> Option<(HostFunction, bool)> {
        let mut state = lock(&self.state);
        let once = state.host_calls.get(&token)?.1;
        if once { state.host_calls.remove(&token) } else { state.host_calls.get(&token).cloned() }
    }

    /// Whether a function of the program may still run, and write whatever it likes.
    pub(super) fn host_calls_left(&self) -> bool {
        self.host_calls_left.load(Ordering::SeqCst) != 0
    }
}

/// Starts the events thread, and the threads that run host functions, serve pulls and print.
pub(super) fn start(link: &SharedLink, rx: Rx, stall_timeout: Duration) -> io::Result<()> {
    let run_host_call = start_after_landing("dxpu-host-fn", link, Link::run_host_call)?;
    let serve_pull = start_after_landing("dxpu-pull", link, Link::serve_pull)?;
    let (print, texts) = mpsc::sync_channel::<Vec<u8>>(TEXTS_WAITING_MAX);
    let printer = Arc::clone(link);
    crate::threads::spawn("dxpu-print", move || {
        for text in texts {
            host::print(&text);
            printer.events.text_printed();
        }
    })?;
    let link = Arc::clone(link);
    crate::threads::spawn("dxpu-events", move || {
        let why = Reader { link: &link, rx, run_host_call, serve_pull, print, stall_timeout }.run();
        link.lose(&why);
    })
}

/// Chunks that must have landed, and what is done then.
type AfterLanding<T> = ([u32; WAYS], T);

/// Starts a thread that calls `act` for each thing in order, when the bytes that were sent before it are in the
/// program's memory.
///
/// The events thread cannot do this: it must go on hearing the heartbeat.
fn start_after_landing<T: Send + 'static>(
    name: &str,
    link: &SharedLink,
    act: fn(&Link, T) -> io::Result<()>,
) -> io::Result<mpsc::Sender<AfterLanding<T>>> {
    let (sender, things) = mpsc::channel::<AfterLanding<T>>();
    let link = Arc::clone(link);
    crate::threads::spawn(name, move || {
        for (chunks, thing) in things {
            // Transfers among the replies land only when a thread reads them. If no call waits, this thread must.
            let is_enough = || link.lanes.landed_aside().wrapping_sub(chunks[ASIDE]) < 1 << 31;
            let landed = link.replies.read_transfers(is_enough).is_ok()
                && link.lanes.wait_landed(&chunks, None).is_ok();
            if !landed || act(&link, thing).is_err() {
                return;
            }
        }
    })?;
    Ok(sender)
}

impl Link {
    fn run_host_call(&self, token: u64) -> io::Result<()> {
        if let Some((run, once)) = self.events.take_host_call(token) {
            lock(&run)();
            if once {
                self.events.host_calls_left.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.events.send(&Notice::HostCallDone { token })
    }

    fn serve_pull(&self, transfer: TransferId) -> io::Result<()> {
        let offer = lock(&self.events.state).offers.get(&transfer).copied();
        let Some((region, once)) = offer else {
            return self.events.send(&Notice::PullFailed { transfer });
        };
        *lock(&self.events.state).serving.entry(transfer).or_default() += 1;
        let link = self.shared();
        let done = Box::new(move |_| {
            if let Some(link) = link.upgrade() {
                link.events.served(transfer, once);
            }
        });
        self.lanes.send_later(transfer, region.bytes(), Box::new(region), done);
        Ok(())
    }
}

struct Reader<'a> {
    link: &'a Link,
    rx: Rx,
    run_host_call: mpsc::Sender<AfterLanding<u64>>,
    serve_pull: mpsc::Sender<AfterLanding<TransferId>>,
    print: mpsc::SyncSender<Vec<u8>>,
    stall_timeout: Duration,
}

impl Reader<'_> {
    /// Reads until the link breaks, and says why it did.
    fn run(mut self) -> String {
        let mut heard = Instant::now();
        loop {
            match self.rx.wait(Some(self.stall_timeout / 4)) {
                Ok(true) => {
                    heard = Instant::now();
                    if let Err(why) = self.read_one() {
                        return why;
                    }
                }
                Ok(false) if heard.elapsed() >= self.stall_timeout => {
                    return format!("it said nothing for {:?}", self.stall_timeout);
                }
                Ok(false) => {
                    if let Err(error) = self.link.events.send(&Notice::Ping { nonce: 0 }) {
                        return error.to_string();
                    }
                }
                Err(error) => return error.to_string(),
            }
        }
    }

    fn read_one(&mut self) -> Result<(), String> {
        let mut head = [0; NoticeHeader::BYTES];
        self.fill(&mut head)?;
        let head: NoticeHeader = header(&head).map_err(|error| error.to_string())?;
        if head.bytes > NoticeHeader::BODY_MAX {
            return Err(format!("a notice of {} bytes", head.bytes));
        }
        let mut body = vec![0; head.bytes as usize];
        self.fill(&mut body)?;
        let notice = Notice::from_bytes(&body).map_err(|error| error.to_string())?;
        self.handle(notice)?;
        let events = &self.link.events;
        let state = lock(&events.state);
        events.handled.fetch_add(1, Ordering::Release);
        drop(state);
        events.changed.notify_all();
        Ok(())
    }

    /// Reads exactly what fits into `target`. A worker may freeze in the middle of a notice, too.
    fn fill(&mut self, target: &mut [u8]) -> Result<(), String> {
        let mut have = 0;
        while have < target.len() {
            match self.rx.try_recv(&mut target[have..]).map_err(|error| error.to_string())? {
                Some(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).to_string()),
                Some(count) => have += count,
                None if self.rx.wait(Some(self.stall_timeout)).map_err(|error| error.to_string())? => {}
                None => {
                    return Err(format!("it stopped in the middle of a notice for {:?}", self.stall_timeout));
                }
            }
        }
        Ok(())
    }

    fn handle(&self, notice: Notice<'_>) -> Result<(), String> {
        let events = &self.link.events;
        match notice {
            Notice::HostCall { token, chunks } => self
                .run_host_call
                .send((chunks, token))
                .map_err(|_| "the thread of host functions ended".to_owned()),
            Notice::Pull { transfer, chunks } => {
                self.serve_pull.send((chunks, transfer)).map_err(|_| "the thread of pulls ended".to_owned())
            }
            Notice::Print { text } => {
                events.texts_taken.fetch_add(1, Ordering::Relaxed);
                self.print.send(text.0.to_vec()).map_err(|_| "the thread that prints ended".to_owned())
            }
            Notice::PushConsumed { bytes } => {
                self.link.push_window.fetch_add(bytes.min(i64::MAX as u64) as i64, Ordering::Relaxed);
                Ok(())
            }
            Notice::Ping { nonce } => events.send(&Notice::Pong { nonce }).map_err(|error| error.to_string()),
            Notice::Pong { .. } => Ok(()),
            Notice::Closing { text } => Err(String::from_utf8_lossy(text.0).into_owned()),
            Notice::HostCallDone { .. } | Notice::PullFailed { .. } => {
                Err("the worker sent a notice that only clients send".to_owned())
            }
        }
    }
}
