//! What the worker says unasked: run a host function, send data, print; and the heartbeat.
//!
//! Host functions run on a thread of their own, one after the other, so that a slow one delays no data and no
//! heartbeat. CUDA forbids CUDA calls inside them, so they cannot wait for this thread. The device's text is written by
//! another thread for the same reason: the program's standard output may be a pipe that its reader leaves full for a
//! while.

use super::{
    Link, SharedLink, content,
    cuts::KeptBy,
    end::{Breach, LinkEnd},
    survival::{Survival, Turn},
    wires::{SessionNumber, Wires},
};
use crate::{
    host::{self, HostRegion},
    log,
    timeline::LinkTimeline,
};
use cuda_abi::CudaError;
use cuda_wire::{ASIDE, Notice, NoticeHeader, TransferId, WAYS, Wire, header};
use journal::HostCallHeard;
use locks::lock;
use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};
use timeline::Timed;
use transport::Rx;

/// Pieces of text, at most 64 KiB each, that wait for the program's standard output. More of them hold the worker back.
const TEXTS_WAITING_MAX: usize = 256;

type HostFunction = Arc<Mutex<Box<dyn FnMut() + Send>>>;

#[derive(Default)]
pub(super) struct Events {
    state: Mutex<State>,
    changed: Condvar,
    /// Pieces of text handed to the thread that prints them, and pieces printed.
    texts_taken: AtomicU32,
    texts_printed: AtomicU32,
    /// The last name given to a host function.
    last_token: AtomicU64,
    /// Host functions that wait to run, or may run again.
    host_calls_left: AtomicUsize,
}

#[derive(Default)]
struct State {
    offers: HashMap<TransferId, (HostRegion, bool)>,
    /// Offers whose memory the lanes are reading, and how often.
    serving: HashMap<TransferId, u32>,
    host_calls: HashMap<u64, (HostFunction, bool)>,
}

impl Events {
    /// Waits until `notices` of a session were handled; they were sent before the reply that carries this number.
    pub(super) fn wait_handled(&self, wires: &Wires, notices: u32) -> Result<(), LinkEnd> {
        // Text of later notices may be among it; a moment too long is harmless.
        let is_printing =
            || self.texts_taken.load(Ordering::Relaxed) != self.texts_printed.load(Ordering::Acquire);
        if !wires.is_behind(notices) && !is_printing() {
            return Ok(());
        }
        let look = || (!wires.is_behind(notices) && !is_printing()).then_some(());
        self.wait_until(look, || wires.are_broken())
    }

    /// Waits until `look` gives something, or `is_over` says that it never will. They are asked again after every notice,
    /// when the notice has been handled, and after every piece of text that was printed.
    pub(super) fn wait_until<T>(
        &self,
        look: impl Fn() -> Option<T>,
        is_over: impl Fn() -> bool,
    ) -> Result<T, LinkEnd> {
        // `look` runs under the lock. The events thread takes the lock after it handled a notice and before it notifies, so
        // a change that `look` did not see is notified when this thread sleeps already.
        let mut state = lock(&self.state);
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            if is_over() {
                return Err(LinkEnd::Ended);
            }
            state = locks::wait(&self.changed, state);
        }
    }

    pub(super) fn offer(&self, transfer: TransferId, region: HostRegion, once: bool) {
        lock(&self.state).offers.insert(transfer, (region, once));
    }

    pub(super) fn withdraw(&self, transfer: TransferId) {
        lock(&self.state).offers.remove(&transfer);
        self.changed.notify_all();
    }

    /// What was offered, and whether only once. The memory is in use until [`Events::served`].
    pub(super) fn begin_serving(&self, transfer: TransferId) -> Option<(HostRegion, bool)> {
        let mut state = lock(&self.state);
        let offer = state.offers.get(&transfer).copied()?;
        *state.serving.entry(transfer).or_default() += 1;
        Some(offer)
    }

    /// The lanes let go of an offer's memory.
    pub(super) fn served(&self, transfer: TransferId, once: bool) {
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
            state = locks::wait(&self.changed, state);
        }
    }

    pub(super) fn offer_host_call(&self, run: Box<dyn FnMut() + Send>, once: bool) -> u64 {
        let token = self.last_token.fetch_add(1, Ordering::Relaxed) + 1;
        self.host_calls_left.fetch_add(1, Ordering::SeqCst);
        lock(&self.state).host_calls.insert(token, (Arc::new(Mutex::new(run)), once));
        token
    }

    pub(super) fn withdraw_host_call(&self, token: u64) {
        if lock(&self.state).host_calls.remove(&token).is_some() {
            self.host_calls_left.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A session is over: threads that wait for its notices look again.
    pub(super) fn wake(&self) {
        drop(lock(&self.state));
        self.changed.notify_all();
    }

    fn text_printed(&self) {
        let state = lock(&self.state);
        self.texts_printed.fetch_add(1, Ordering::Release);
        drop(state);
        self.changed.notify_all();
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

const HOST_CALL_THREAD: &str = "dxpu-host-fn";
const PULL_THREAD: &str = "dxpu-pull";
const PRINT_THREAD: &str = "dxpu-print";

/// The threads that do what notices ask for. They serve all sessions of a link, one after the other.
#[derive(Clone)]
pub(super) struct Helpers {
    run_host_call: mpsc::Sender<AfterLanding<u64>>,
    serve_pull: mpsc::Sender<AfterLanding<TransferId>>,
    print: mpsc::SyncSender<Vec<u8>>,
}

impl Helpers {
    /// Starts the threads that run host functions, serve pulls and print.
    pub(super) fn start(link: &SharedLink) -> io::Result<Self> {
        let run_host_call = start_after_landing(HOST_CALL_THREAD, link, Link::run_host_call)?;
        let serve_pull = start_after_landing(PULL_THREAD, link, Link::serve_pull)?;
        let (print, texts) = mpsc::sync_channel::<Vec<u8>>(TEXTS_WAITING_MAX);
        let printer = Arc::clone(link);
        crate::threads::spawn(PRINT_THREAD, move || {
            for text in texts {
                host::print(&text);
                printer.events.text_printed();
            }
        })?;
        Ok(Self { run_host_call, serve_pull, print })
    }
}

/// Starts the thread that hears the notices of a session.
pub(super) fn listen(
    link: &SharedLink,
    wires: &Arc<Wires>,
    rx: Rx,
    stall_timeout: Duration,
    helpers: Helpers,
) -> io::Result<()> {
    let (link, wires) = (Arc::clone(link), Arc::clone(wires));
    crate::threads::spawn("dxpu-events", move || {
        let end = Reader { link: &link, wires: &wires, rx, helpers, stall_timeout }.run();
        link.broke(wires.number, &end);
    })
}

/// Something that is done when these chunks of a session have landed.
struct AfterLanding<T> {
    wires: Arc<Wires>,
    chunks: [u32; WAYS],
    thing: T,
}

/// Starts a thread that calls `act` for each thing in order, when the bytes that were sent before it are in the
/// program's memory.
///
/// The events thread cannot do this: it must go on hearing the heartbeat.
fn start_after_landing<T: Send + 'static>(
    name: &str,
    link: &SharedLink,
    act: fn(&Link, &Arc<Wires>, T) -> io::Result<()>,
) -> io::Result<mpsc::Sender<AfterLanding<T>>> {
    let (sender, things) = mpsc::channel::<AfterLanding<T>>();
    let link = Arc::clone(link);
    let runs_host_functions = name == HOST_CALL_THREAD;
    crate::threads::spawn(name, move || {
        if runs_host_functions {
            crate::paging::note_host_function_thread();
        }
        for AfterLanding { wires, chunks, thing } in things {
            let lanes = &wires.lanes;
            // Transfers among the replies land only when a thread reads them. If no call waits, this thread must.
            let is_enough =
                || wires.are_broken() || lanes.landed_aside().wrapping_sub(chunks[ASIDE]) < 1 << 31;
            let landed =
                link.replies.read_transfers(is_enough).is_ok() && lanes.wait_landed(&chunks, None).is_ok();
            let done = landed && act(&link, &wires, thing).is_ok();
            // What a lost session asked for, the next one asks for again.
            if !done && link.survival.is_none() {
                return;
            }
        }
    })?;
    Ok(sender)
}

impl Link {
    fn run_host_call(&self, wires: &Arc<Wires>, token: u64) -> io::Result<()> {
        let turn = match &self.survival {
            Some(survival) => survival.host_call_asked(wires.number, token),
            None => Turn::Now,
        };
        match turn {
            Turn::Stale => return Ok(()),
            Turn::Before => {}
            Turn::Now => {
                if let Some((run, once)) = self.events.take_host_call(token) {
                    lock(&run)();
                    if once {
                        self.events.host_calls_left.fetch_sub(1, Ordering::SeqCst);
                    }
                }
                if let Some(survival) = &self.survival {
                    survival.host_call_ran(token);
                }
            }
        }
        wires.send(&Notice::HostCallDone { token })
    }

    fn serve_pull(&self, wires: &Arc<Wires>, transfer: TransferId) -> io::Result<()> {
        if let Some(survival) = &self.survival {
            return survival.serve_pull(&self.events, wires, transfer);
        }
        let Some((region, once)) = self.events.begin_serving(transfer) else {
            return wires.send(&Notice::PullFailed { transfer });
        };
        let link = self.shared();
        let done = Box::new(move |_| {
            if let Some(link) = link.upgrade() {
                link.events.served(transfer, once);
            }
        });
        if once {
            content::send(wires, transfer, region.bytes(), Box::new(region), done);
        } else {
            // A graph's memory changes from launch to launch.
            wires.lanes.send_later(transfer, region.bytes(), Box::new(region), done);
        }
        Ok(())
    }
}

struct Reader<'a> {
    link: &'a Link,
    wires: &'a Arc<Wires>,
    rx: Rx,
    helpers: Helpers,
    stall_timeout: Duration,
}

impl Reader<'_> {
    /// Reads until the link ends, and says why it did.
    fn run(mut self) -> LinkEnd {
        // When the first ping was sent that nothing has come after. Silence before it proves nothing: this process may
        // have been stopped itself.
        let mut asked = None;
        loop {
            match self.rx.wait(Some(self.stall_timeout / 4)) {
                Ok(true) => {
                    asked = None;
                    if let Err(end) = self.read_one() {
                        return end;
                    }
                }
                Ok(false) if asked.is_some_and(|at: Instant| at.elapsed() >= self.stall_timeout * 3 / 4) => {
                    return LinkEnd::Silent(self.stall_timeout);
                }
                Ok(false) => {
                    asked.get_or_insert_with(Instant::now);
                    if let Err(error) = self.wires.send(&Notice::Ping { nonce: 0 }) {
                        return error.into();
                    }
                }
                Err(error) => return error.into(),
            }
        }
    }

    fn read_one(&mut self) -> Result<(), LinkEnd> {
        let mut head = [0; NoticeHeader::BYTES];
        self.fill(&mut head)?;
        let head: NoticeHeader = header(&head).map_err(LinkEnd::unreadable("a notice"))?;
        if head.bytes > NoticeHeader::BODY_MAX {
            return Err(LinkEnd::too_long("a notice", head.bytes));
        }
        let mut body = vec![0; head.bytes as usize];
        self.fill(&mut body)?;
        let notice = Notice::from_bytes(&body).map_err(LinkEnd::unreadable("a notice"))?;
        self.handle(notice)?;
        let events = &self.link.events;
        let state = lock(&events.state);
        self.wires.note_handled();
        drop(state);
        events.changed.notify_all();
        Ok(())
    }

    /// Reads exactly what fits into `target`. A worker may freeze in the middle of a notice, too.
    fn fill(&mut self, target: &mut [u8]) -> Result<(), LinkEnd> {
        let mut have = 0;
        while have < target.len() {
            match self.rx.try_recv(&mut target[have..])? {
                Some(0) => return Err(LinkEnd::Closed),
                Some(count) => have += count,
                None if self.rx.wait(Some(self.stall_timeout))? => {}
                None => return Err(LinkEnd::SilentInNotice(self.stall_timeout)),
            }
        }
        Ok(())
    }

    /// What a worker says about cuts concerns a link that survives.
    fn on_survival(&self, act: impl FnOnce(&Survival, SessionNumber)) {
        if let Some(survival) = &self.link.survival {
            act(survival, self.wires.number);
        }
    }

    fn on_timeline(&self, act: impl FnOnce(&LinkTimeline)) {
        if let Some(timeline) = &self.link.timeline {
            act(timeline);
        }
    }

    /// The worker asks for a host function. One that an earlier session ran is not run again.
    fn host_call_asked(&self, token: u64, chunks: [u32; WAYS]) -> Result<(), LinkEnd> {
        if let Some(survival) = &self.link.survival {
            match survival.host_call_heard(self.wires.number, token) {
                HostCallHeard::Queue => {}
                HostCallHeard::Answer => return Ok(self.wires.send(&Notice::HostCallDone { token })?),
                HostCallHeard::Owed => return Ok(()),
            }
        }
        let call = AfterLanding { wires: Arc::clone(self.wires), chunks, thing: token };
        self.helpers.run_host_call.send(call).map_err(|_| LinkEnd::ThreadEnded(HOST_CALL_THREAD))
    }

    fn heard_of_content(&self, notice: Notice<'_>) -> Result<(), LinkEnd> {
        match notice {
            Notice::ContentKept { key, blocks } => self.wires.content.told(key, blocks),
            Notice::ContentLacks { transfer, count, lacking, .. }
                if !content::answered(self.wires, transfer, count, &lacking) =>
            {
                return Err(Breach::UnaskedAnswer(transfer).into());
            }
            _ => {}
        }
        Ok(())
    }

    fn handle(&self, notice: Notice<'_>) -> Result<(), LinkEnd> {
        let (events, helpers) = (&self.link.events, &self.helpers);
        match notice {
            Notice::HostCall { token, chunks } => self.host_call_asked(token, chunks),
            Notice::Pull { transfer, chunks } => {
                let pull = AfterLanding { wires: Arc::clone(self.wires), chunks, thing: transfer };
                helpers.serve_pull.send(pull).map_err(|_| LinkEnd::ThreadEnded(PULL_THREAD))
            }
            Notice::Print { text } => {
                let known = match &self.link.survival {
                    Some(survival) => survival.printed_before(self.wires.number, text.0),
                    None => 0,
                };
                events.texts_taken.fetch_add(1, Ordering::Relaxed);
                let text = text.0[known..].to_vec();
                helpers.print.send(text).map_err(|_| LinkEnd::ThreadEnded(PRINT_THREAD))
            }
            Notice::PushConsumed { bytes } => {
                self.link.push_consumed(self.wires.number, bytes);
                Ok(())
            }
            Notice::Ping { nonce } => Ok(self.wires.send(&Notice::Pong { nonce })?),
            Notice::Pong { .. } => Ok(()),
            Notice::Waits { text } => {
                log::warn(&String::from_utf8_lossy(text.0));
                Ok(())
            }
            Notice::Closing { text } => Err(LinkEnd::Told(String::from_utf8_lossy(text.0).into_owned())),
            Notice::CutTaken { .. }
            | Notice::CutSafe { .. }
            | Notice::CutAbandoned { .. }
            | Notice::GuardianLost { .. }
            | Notice::Rested {} => {
                self.on_survival(|survival, session| tell_survival(survival, session, &notice));
                Ok(())
            }
            Notice::DeviceLost { code, text } => {
                let text = String::from_utf8_lossy(text.0).into_owned();
                // These are never the device's: see `faults`.
                Err(match CudaError::from_code(code).is_some_and(CudaError::ends_merged_contexts) {
                    true => LinkEnd::Fault { code, text },
                    false => LinkEnd::DeviceLost(format!("{text} (error {code})")),
                })
            }
            Notice::TimelineTold { nonce, worker_ns } => {
                self.on_timeline(|timeline| timeline.told(nonce, worker_ns));
                Ok(())
            }
            Notice::Timed { streams, kernels, works, answers, missed } => {
                let timed = Timed { streams, kernels, works, answers, missed };
                self.on_timeline(|timeline| timeline.timed(timed));
                Ok(())
            }
            Notice::ContentKept { .. } | Notice::ContentLacks { .. } => self.heard_of_content(notice),
            Notice::HostCallDone { .. }
            | Notice::PullFailed { .. }
            | Notice::TimelineAsk { .. }
            | Notice::ContentNamed { .. } => Err(Breach::ClientNotice.into()),
        }
    }
}

/// What a worker says of a session's protection.
fn tell_survival(survival: &Survival, session: SessionNumber, notice: &Notice<'_>) {
    match notice {
        Notice::CutTaken { number, live_bytes, pause_us, .. } => {
            let pause = Duration::from_micros((*pause_us).into());
            survival.cut_taken(session, *number, *live_bytes, pause);
        }
        Notice::CutSafe { number, level, image_bytes } => {
            survival.cut_safe(session, *number, KeptBy { level: *level, image_bytes: *image_bytes });
        }
        Notice::CutAbandoned { number, text } => {
            survival.cut_abandoned(session, *number, &String::from_utf8_lossy(text.0));
        }
        Notice::GuardianLost { text } => {
            survival.guardian_lost(session, &String::from_utf8_lossy(text.0));
        }
        Notice::Rested {} => survival.rested(session),
        _ => {}
    }
}
