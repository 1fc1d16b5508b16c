//! The session of a drill: it is told everything again, and what comes back is compared.
//!
//! It has nothing of the link's but the journal's moment. The threads that hear it end with its connections.

use super::{
    super::{
        NUDGE_CALL, RESTORE_CALL,
        connect::{Opened, Parts, open_session, take_apart},
        digest::Digest,
        end::LinkEnd,
        guard::frame,
        places::Place,
        reply_reader::ReplyReader,
        resume::check_same,
        survival::{Kept, Shared},
        wires::Wires,
    },
    Moment, Outcome,
};
use bulk::Sink;
use cuda_abi::CudaError;
use cuda_wire::{
    Bytes, COMMAND_BYTES_MAX, Command, ContextId, FENCE_CALL, ImageName, ImageSource, Notice, NoticeHeader,
    TransferId, Wire, header,
};
use journal::{
    DeferredVerdict, Difference, HostCallHeard, HostCallVerdict, Load, PullVerdict, Replay, Step, Verdict,
};
use locks::lock;
use std::{
    collections::HashMap,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};
use transport::{Rx, Tx};
use worker_link::CONNECT_TIMEOUT;

/// Whether the copy has its image: from then on new cuts do it no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Copied {
    No,
    Yes,
}

/// Without a sign for this long, what the program saw will not happen again.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long an image may take to come: the largest one over a slow network.
const COPY_MAX: Duration = Duration::from_secs(600);
/// How often a thread that waits looks whether the session is over, and a worker that says nothing is asked.
const LOOK: Duration = Duration::from_millis(50);
const PING_EVERY: Duration = Duration::from_secs(2);
/// Larger images of modules do not fit into a command: they travel in lanes.
const INLINE_IMAGE_BYTES_MAX: usize = COMMAND_BYTES_MAX as usize / 2;

/// What the threads of a drill share.
struct Drill {
    state: Mutex<State>,
    changed: Condvar,
    wires: Wires,
}

struct State {
    replay: Replay,
    /// The first difference, in words.
    difference: Option<String>,
    /// Why the session is over, if it is.
    broken: Option<String>,
    /// What the session said to the copy of the image.
    copied: Option<Result<(), Refused>>,
    is_fenced: bool,
    push_window: u64,
    image_pulls: HashMap<TransferId, Arc<[u8]>>,
}

/// The worker's words.
struct Refused(String);

/// Why a drill did not come to its end.
enum Stop {
    Different(String),
    NotHeld(String),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::NotHeld(format!("the session of the drill was lost: {error}"))
    }
}

/// Takes bytes that the program has, for their digest alone.
struct Compared(Arc<Digest>);

impl Sink for Compared {
    fn take(&self, offset: u64, bytes: &[u8]) {
        self.0.add(offset, bytes);
    }
}

/// Holds a drill at `place`, from its first connection to its goodbye.
pub(super) fn hold(
    shared: &Shared,
    place: &Place,
    moment: Moment,
    next_transfer: impl Fn() -> TransferId,
) -> Outcome {
    let opened = open_session(&place.address, &place.config, vec![shared.welcome.va], CONNECT_TIMEOUT);
    let opened = match opened {
        Ok(opened) => opened,
        Err(failure) => return Outcome::NotHeld(failure.to_string()),
    };
    if let Err(failure) = check_same(&shared.welcome, &opened.welcome) {
        return Outcome::NotHeld(failure.why().to_owned());
    }
    let push_window_bytes = opened.welcome.push_window_bytes;
    let (mut session, parts) = Session::new(opened, moment, &place.guardian, push_window_bytes);
    let ran = session.run(parts, || shared.drill_has_image(), next_transfer);
    // A session that is gone needs no goodbye.
    let _ = session.tx.send(&[&frame(&Command::Goodbye {}, 0)]);
    session.drill.wires.close();
    match ran {
        Ok(()) => Outcome::Same,
        Err(Stop::Different(words)) => Outcome::Different(words),
        Err(Stop::NotHeld(why)) => Outcome::NotHeld(why),
    }
}

struct Session {
    drill: Arc<Drill>,
    tx: Tx,
    transfers: HashMap<TransferId, u64>,
    image: Option<(ImageName, [u8; 32])>,
    guardian: String,
    push_window_bytes: u64,
}

impl Session {
    fn new(opened: Opened, moment: Moment, named: &str, push_window: u64) -> (Self, (Rx, Rx)) {
        // No link hears of broken lanes: whoever waits for them looks.
        let Parts { command_tx, command_rx, events_rx, wires } = take_apart(opened, 0, &Arc::default());
        let Moment { replay, transfers, image, guardian } = moment;
        let (difference, broken, copied, is_fenced, image_pulls) = Default::default();
        let state = State { replay, difference, broken, copied, is_fenced, push_window, image_pulls };
        let drill = Arc::new(Drill { state: Mutex::new(state), changed: Condvar::new(), wires });
        let guardian = if named.is_empty() { guardian } else { named.to_owned() };
        let session =
            Self { drill, tx: command_tx, transfers, image, guardian, push_window_bytes: push_window };
        (session, (command_rx, events_rx))
    }

    fn run(
        &mut self,
        (replies, events): (Rx, Rx),
        has_image: impl Fn(),
        next_transfer: impl Fn() -> TransferId,
    ) -> Result<(), Stop> {
        for (&transfer, &bytes) in &self.transfers {
            self.drill.expect(transfer, bytes);
        }
        let drill = Arc::clone(&self.drill);
        crate::threads::spawn("dxpu-drill-replies", move || drill.hear_replies(replies))?;
        let drill = Arc::clone(&self.drill);
        crate::threads::spawn("dxpu-drill-notices", move || drill.hear_notices(events))?;
        self.replay(has_image, next_transfer)?;
        // Replies and text of what was told are here when this is answered.
        self.tx.send(&[&frame(&Command::MemoryInfo { device: 0 }, FENCE_CALL)])?;
        self.await_until(SILENCE_MAX, |state| state.is_fenced.then_some(()))
    }

    fn replay(&mut self, has_image: impl Fn(), next_transfer: impl Fn() -> TransferId) -> Result<(), Stop> {
        let mut last_sign = Instant::now();
        loop {
            let mut state = self.drill.state()?;
            let step = state.replay.step().map_err(|error| Stop::Different(error.to_string()))?;
            match step {
                Step::Send(frames) => {
                    let frames = frames.to_vec();
                    drop(state);
                    self.tx.send(&[&frames])?;
                }
                Step::Load(load) => {
                    let load = load.clone();
                    drop(state);
                    self.load(&load, &next_transfer)?;
                }
                Step::Push(transfer, Some(bytes)) => {
                    drop(state);
                    self.push(transfer, bytes)?;
                }
                // The program has not made it: nothing that it saw can have come of it.
                Step::Push(_, None) => {}
                Step::Restore(number) => {
                    drop(state);
                    self.copy_image(number)?;
                    has_image();
                }
                Step::Returned(token) => {
                    drop(state);
                    self.drill.wires.send(&Notice::HostCallDone { token })?;
                }
                Step::Await(awaited) => {
                    drop(locks::wait_for(&self.drill.changed, state, LOOK));
                    // In the program's session, what is awaited may have come along with an answer that is left out now.
                    self.tx.send(&[&frame(&Command::MemoryInfo { device: 0 }, NUDGE_CALL)])?;
                    if last_sign.elapsed() > SILENCE_MAX {
                        let words = format!("what the program saw did not happen again: {awaited:?}");
                        return Err(Stop::Different(words));
                    }
                    continue;
                }
                Step::Done => return Ok(()),
            }
            last_sign = Instant::now();
        }
    }

    /// Has the image of the last safe cut put into the copy's memory, and waits until it is there.
    fn copy_image(&mut self, number: u64) -> Result<(), Stop> {
        let (image, secret) =
            self.image.ok_or_else(|| Stop::NotHeld("the program has no image".to_owned()))?;
        let command = Command::ImageCopy { image, secret, number, from: self.guardian.clone() };
        self.tx.send(&[&frame(&command, RESTORE_CALL)])?;
        let copied = self.await_until(COPY_MAX, |state| state.copied.take())?;
        copied.map_err(|Refused(why)| {
            Stop::Different(format!("the image of cut {number} did not come back: {why}"))
        })
    }

    fn load(&mut self, load: &Load, next_transfer: &impl Fn() -> TransferId) -> Result<(), Stop> {
        let Some(image) = &load.image else {
            return Ok(self.tx.send(&[&load.frame(ImageSource::Known {})])?);
        };
        if image.len() <= INLINE_IMAGE_BYTES_MAX {
            return Ok(self.tx.send(&[&load.frame(ImageSource::Inline { bytes: Bytes(image) })])?);
        }
        let (transfer, bytes) = (next_transfer(), image.len() as u64);
        if bytes <= self.push_window_bytes {
            self.push(transfer, Arc::clone(image))?;
        } else {
            // More than the window holds: the worker asks for it.
            self.drill.state()?.image_pulls.insert(transfer, Arc::clone(image));
        }
        Ok(self.tx.send(&[&load.frame(ImageSource::Pushed { transfer, bytes })])?)
    }

    /// Sends pushed bytes when the worker has room for them.
    fn push(&mut self, transfer: TransferId, bytes: Arc<[u8]>) -> Result<(), Stop> {
        let count = bytes.len() as u64;
        self.await_until(SILENCE_MAX, |state| {
            state.push_window = state.push_window.checked_sub(count)?;
            Some(())
        })?;
        self.drill.send(transfer, bytes);
        Ok(())
    }

    fn await_until<T>(
        &self,
        time: Duration,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Stop> {
        let began = Instant::now();
        let mut state = self.drill.state()?;
        loop {
            if let Some(found) = look(&mut state) {
                return Ok(found);
            }
            if began.elapsed() > time {
                return Err(Stop::NotHeld(format!("the worker of the drill did not answer within {time:?}")));
            }
            drop(locks::wait_for(&self.drill.changed, state, LOOK));
            state = self.drill.state()?;
        }
    }
}

impl Drill {
    /// The state, as long as nothing is different and the session is there.
    fn state(&self) -> Result<MutexGuard<'_, State>, Stop> {
        let state = lock(&self.state);
        if let Some(words) = &state.difference {
            return Err(Stop::Different(words.clone()));
        }
        let fault = self.wires.lanes.fault().map(|fault| format!("{fault:?}"));
        match state.broken.clone().or(fault) {
            Some(why) => Err(Stop::NotHeld(format!("the session of the drill was lost: {why}"))),
            None => Ok(state),
        }
    }

    fn differs(&self, state: &mut State, words: impl ToString) {
        state.difference.get_or_insert_with(|| words.to_string());
    }

    fn send(&self, transfer: TransferId, bytes: Arc<[u8]>) {
        let count = bytes.len() as u64;
        self.wires.lanes.send_later(transfer, count, Box::new(Kept(bytes)), Box::new(|_| {}));
    }

    /// Expects a transfer: its bytes are compared with what the program got, and thrown away.
    fn expect(self: &Arc<Self>, transfer: TransferId, bytes: u64) {
        let digest = Arc::new(Digest::default());
        let (drill, seen) = (Arc::downgrade(self), Arc::clone(&digest));
        let done = move |result: Result<(), bulk::LinkLost>| {
            let (Ok(()), Some(drill)) = (result, drill.upgrade()) else { return };
            let mut state = lock(&drill.state);
            if let Verdict::Differs(difference) = state.replay.landed_again(transfer, seen.value().into()) {
                drill.differs(&mut state, difference);
            }
            drop(state);
            drill.changed.notify_all();
        };
        self.wires.lanes.expect_later(transfer, bytes, Box::new(Compared(digest)), Box::new(done));
    }

    fn broke(&self, end: &LinkEnd) {
        lock(&self.state).broken.get_or_insert_with(|| end.to_string());
        self.changed.notify_all();
    }

    fn hear_replies(&self, rx: Rx) {
        let mut reader = ReplyReader::new(rx, None);
        loop {
            let (head, body) = match reader.next() {
                Ok(reply) => reply,
                Err(end) => return self.broke(&end),
            };
            if head.call == 0 {
                let Some((name, bytes)) = body.split_first_chunk::<8>() else { return self.wires.close() };
                let transfer = TransferId(u64::from_le_bytes(*name));
                if self.wires.lanes.land_aside(transfer, bytes).is_err() {
                    return self.wires.close();
                }
                continue;
            }
            let mut state = lock(&self.state);
            if head.deferred != 0
                && state.replay.deferred(ContextId(head.deferred_context), head.deferred)
                    == DeferredVerdict::NoMemory
            {
                self.differs(&mut state, Difference::Memory);
            }
            match head.call {
                NUDGE_CALL => {}
                FENCE_CALL => state.is_fenced = true,
                RESTORE_CALL => {
                    state.copied = Some(match CudaError::from_code(head.status) {
                        None => Ok(()),
                        Some(error) if body.is_empty() => Err(Refused(format!("{error:?}"))),
                        Some(_) => Err(Refused(String::from_utf8_lossy(&body).into_owned())),
                    });
                }
                call => {
                    match state.replay.reply_came(call, head.status, &body) {
                        // What the program has not seen is not compared.
                        Verdict::Same | Verdict::New => {}
                        Verdict::Differs(difference) => self.differs(&mut state, difference),
                        Verdict::Moved(moved) => {
                            let names: Vec<_> = moved.iter().map(|moved| moved.name.as_str()).collect();
                            let words = format!("variables of a module lie elsewhere: {}", names.join(", "));
                            self.differs(&mut state, words);
                        }
                    }
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    fn hear_notices(&self, mut rx: Rx) {
        let mut silent = 0;
        loop {
            let heard = match rx.wait(Some(PING_EVERY)) {
                Ok(true) => {
                    silent = 0;
                    self.hear_notice(&mut rx)
                }
                Ok(false) if PING_EVERY * silent > SILENCE_MAX => Err(LinkEnd::Silent(SILENCE_MAX)),
                Ok(false) => {
                    silent += 1;
                    self.wires.send(&Notice::Ping { nonce: 0 }).map_err(LinkEnd::from)
                }
                Err(error) => Err(error.into()),
            };
            if let Err(end) = heard {
                return self.broke(&end);
            }
        }
    }

    fn hear_notice(&self, rx: &mut Rx) -> Result<(), LinkEnd> {
        let mut head = [0; NoticeHeader::BYTES];
        rx.recv_exact(&mut head)?;
        let head: NoticeHeader = header(&head).map_err(LinkEnd::unreadable("a notice"))?;
        if head.bytes > NoticeHeader::BODY_MAX {
            return Err(LinkEnd::too_long("a notice", head.bytes));
        }
        let mut body = vec![0; head.bytes as usize];
        rx.recv_exact(&mut body)?;
        let notice = Notice::from_bytes(&body).map_err(LinkEnd::unreadable("a notice"))?;
        let mut state = lock(&self.state);
        match notice {
            Notice::HostCall { token, .. } => {
                let is_answered = match state.replay.host_call_heard(token) {
                    HostCallHeard::Owed => false,
                    HostCallHeard::Answer => true,
                    // One that has not run does not run for a drill. Nothing that the program saw comes after it.
                    HostCallHeard::Queue => state.replay.host_call_asked(token) != HostCallVerdict::Run,
                };
                if is_answered {
                    self.wires.send(&Notice::HostCallDone { token })?;
                }
            }
            Notice::Pull { transfer, .. } => {
                let image = state.image_pulls.remove(&transfer).map(PullVerdict::Kept);
                match image.unwrap_or_else(|| state.replay.pull_asked(transfer)) {
                    PullVerdict::Kept(bytes) => self.send(transfer, bytes),
                    PullVerdict::Refused => self.wires.send(&Notice::PullFailed { transfer })?,
                    // The memory is the program's, which goes on. Nothing that it saw comes after this.
                    PullVerdict::Again(_) | PullVerdict::New => {}
                }
            }
            Notice::Print { text } => {
                let printed = state.replay.printed(text.0);
                if printed.differs {
                    self.differs(&mut state, "the device printed another text");
                }
            }
            Notice::PushConsumed { bytes } => state.push_window += bytes,
            Notice::Ping { nonce } => self.wires.send(&Notice::Pong { nonce })?,
            Notice::Closing { text } => {
                return Err(LinkEnd::Told(String::from_utf8_lossy(text.0).into_owned()));
            }
            Notice::DeviceLost { code, text } => {
                let text = String::from_utf8_lossy(text.0);
                return Err(LinkEnd::DeviceLost(format!("{text} (error {code})")));
            }
            _ => {}
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }
}
