//! Resuming: a thread opens another session and has everything happen again that the program saw.
//!
//! ```text
//!   dxpu-resume ── manifest, commands, pushes, held at each mark ──▶ new session
//!   dxpu-replay ◀── replies: compared if the program has them, delivered if not ── new session
//!   lanes, events, helpers: as ever, with the number of the new session
//! ```
//!
//! The thread holds the queue's wire: what the program sends meanwhile gathers there, and leaves behind the replay.

use super::{
    FENCE_CALL, Link,
    connect::{Parts, open_session, take_apart},
    digest::Digest,
    end::LinkEnd,
    events,
    reply_reader::ReplyReader,
    survival::{self, Core, Phase, Shared},
    wires::{SessionNumber, Wires},
};
use crate::log;
use bulk::Sink;
use cuda_abi::CudaError;
use cuda_wire::{
    Bytes, Command, CommandHeader, ContextId, ImageSource, Op, TransferId, Welcome, begin_command,
    finish_command, header,
};
use journal::{Load, Observation, Step, Verdict};
use std::{
    sync::{Arc, MutexGuard, atomic::Ordering, mpsc},
    thread,
    time::{Duration, Instant},
};
use transport::Tx;

/// Without a sign for this long, what the program saw will not happen again.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The pause after a failed attempt, doubled up to a second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a thread that waits looks whether its session is lost.
const LOOK: Duration = Duration::from_millis(50);

/// Why an attempt failed.
enum Failure {
    /// Another attempt may succeed.
    Again(String),
    /// No attempt can succeed.
    Final(String),
}

/// Starts the thread. False: it cannot be started.
pub(super) fn start(link: &Link, shared: &Arc<Shared>) -> bool {
    let Some(link) = link.shared().upgrade() else { return false };
    let shared = Arc::clone(shared);
    crate::threads::spawn("dxpu-resume", move || resume(&link, &shared)).is_ok()
}

fn resume(link: &Arc<Link>, shared: &Arc<Shared>) {
    let began = Instant::now();
    // The last writer leaves as soon as it sees the closed connection.
    let wire = link.queue.hold();
    let mut pause = FIRST_PAUSE;
    let why = loop {
        let number = shared.core().number;
        match attempt(link, shared, number) {
            Ok(tx) => {
                let took = began.elapsed().as_millis();
                log::warn(&format!(
                    "worker {}: the program goes on in another session after {took} ms",
                    shared.address
                ));
                // With a keeper no write fails.
                let _ = wire.release(tx, number);
                return;
            }
            Err(Failure::Final(why)) => break why,
            Err(Failure::Again(why)) if began.elapsed() >= shared.config.patience => break why,
            Err(Failure::Again(_)) => {}
        }
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    };
    shared.core().phase = Phase::Lost;
    shared.tell();
    drop(wire);
    link.lose(&LinkEnd::NotResumed(why));
}

/// Opens session `number` and brings it to where the program is. Gives back the way for commands.
fn attempt(link: &Arc<Link>, shared: &Arc<Shared>, number: SessionNumber) -> Result<Tx, Failure> {
    let opened = open_session(&shared.address, &shared.config, vec![shared.welcome.va]).map_err(again)?;
    check_same(&shared.welcome, &opened.welcome)?;
    let welcome = opened.welcome.clone();
    let Parts { command_tx, command_rx, events_rx, wires } = take_apart(opened, number, shared.link());
    let wires = Arc::new(wires);
    let mut session = NewSession { link, shared, wires, number, tx: command_tx };
    session.begin(&welcome)?;
    let (Some(on_landed), Some(helpers)) = (shared.on_landed(), shared.helpers()) else {
        return Err(Failure::Final("the link is not complete".to_owned()));
    };
    let wires = &session.wires;
    shared.expectations().begin_session(wires, || link.install(Arc::clone(wires)), on_landed);
    session.expect_again();
    events::listen(link, &session.wires, events_rx, shared.config.stall_timeout, helpers).map_err(again)?;
    let reader = session.read_replies(ReplyReader::new(command_rx, shared.config.reply_spin()))?;
    session.replay()?;
    session.send_fence()?;
    let reader = reader.recv().map_err(|_| Failure::Again("the new session was lost, too".to_owned()))?;
    session.go_live()?;
    link.replies.adopt(reader);
    Ok(session.tx)
}

fn again(error: impl ToString) -> Failure {
    Failure::Again(error.to_string())
}

/// Another GPU would give other answers than the program has.
fn check_same(before: &Welcome, now: &Welcome) -> Result<(), Failure> {
    let kind = |welcome: &Welcome| {
        let devices = welcome.devices.iter();
        let devices =
            devices.map(|device| (device.name.clone(), device.memory_bytes, device.attributes.clone()));
        (welcome.cuda_version, devices.collect::<Vec<_>>())
    };
    if kind(before) == kind(now) {
        return Ok(());
    }
    Err(Failure::Final("the worker's GPUs are of another kind now, or its driver is another one".to_owned()))
}

/// Takes bytes that the program has, for their digest alone.
struct Compared(Arc<Digest>);

impl Sink for Compared {
    fn take(&self, offset: u64, bytes: &[u8]) {
        self.0.add(offset, bytes);
    }
}

struct NewSession<'a> {
    link: &'a Arc<Link>,
    shared: &'a Arc<Shared>,
    wires: Arc<Wires>,
    number: SessionNumber,
    tx: Tx,
}

impl NewSession<'_> {
    /// The core, if this session is still the present one and nothing has happened differently.
    fn core(&self) -> Result<MutexGuard<'_, Core>, Failure> {
        self.checked(self.shared.core())
    }

    fn checked<'a>(&self, core: MutexGuard<'a, Core>) -> Result<MutexGuard<'a, Core>, Failure> {
        if core.number != self.number || core.phase == Phase::Lost {
            return Err(Failure::Again("the new session was lost, too".to_owned()));
        }
        match &core.difference {
            Some(difference) => Err(Failure::Final(format!(
                "the program cannot go on in another session, because {difference}"
            ))),
            None => Ok(core),
        }
    }

    /// Makes this the session whose replies and windows count.
    fn begin(&self, welcome: &Welcome) -> Result<(), Failure> {
        let mut core = self.core()?;
        core.replay = Some(core.journal.replay());
        core.late_pushes.clear();
        let window = welcome.push_window_bytes.saturating_sub(core.announced_bytes());
        self.link.push_window.store(window.min(i64::MAX as u64) as i64, Ordering::SeqCst);
        let credit = welcome.memory_credit_bytes.min(i64::MAX as u64) as i64;
        self.link.memory_credit.store(credit, Ordering::SeqCst);
        drop(core);
        self.link.replies.begin_session(self.number);
        Ok(())
    }

    /// Transfers that the program has come again; their bytes are compared and thrown away.
    fn expect_again(&self) {
        let landed: Vec<_> = self.shared.core().landed.iter().map(|(name, bytes)| (*name, *bytes)).collect();
        for (transfer, bytes) in landed {
            let digest = Arc::new(Digest::default());
            let (shared, number, seen) = (Arc::clone(self.shared), self.number, Arc::clone(&digest));
            let done = move |result: Result<(), bulk::LinkLost>| {
                if result.is_ok() {
                    landed_again(&shared, number, transfer, seen.value());
                }
            };
            self.wires.lanes.expect_later(transfer, bytes, Box::new(Compared(digest)), Box::new(done));
        }
    }

    /// Starts the thread that reads replies until that of the fence, and then gives the reader back.
    fn read_replies(&self, mut reader: ReplyReader) -> Result<mpsc::Receiver<ReplyReader>, Failure> {
        let (give_back, given_back) = mpsc::sync_channel(1);
        let (link, shared, number) = (Arc::clone(self.link), Arc::clone(self.shared), self.number);
        crate::threads::spawn("dxpu-replay", move || {
            loop {
                match read_one(&link, &shared, number, &mut reader) {
                    Ok(true) => {}
                    Ok(false) => {
                        let _ = give_back.send(reader);
                        return;
                    }
                    Err(end) => return link.broke(number, &end),
                }
            }
        })
        .map_err(again)?;
        Ok(given_back)
    }

    fn replay(&mut self) -> Result<(), Failure> {
        let mut last_sign = Instant::now();
        loop {
            let mut core = self.core()?;
            let Some(replay) = core.replay.as_mut() else { return Err(again("there is no replay")) };
            let step = match replay.step() {
                Ok(step) => step,
                Err(unreadable) => return Err(Failure::Final(unreadable.to_string())),
            };
            match step {
                Step::Send(frames) => {
                    let frames = frames.to_vec();
                    drop(core);
                    self.send(&frames)?;
                }
                Step::Load(load) => {
                    let frame = load_frame(load);
                    drop(core);
                    self.send(&frame)?;
                }
                Step::Push(transfer, Some(bytes)) => {
                    drop(core);
                    self.push(transfer, bytes)?;
                }
                // The thread of the program that announced it makes it later.
                Step::Push(_, None) => {}
                Step::Restore(_) => return Err(Failure::Final("images are not restored yet".to_owned())),
                Step::Await(awaited) => {
                    drop(self.shared.wait(core, LOOK));
                    if last_sign.elapsed() > SILENCE_MAX {
                        return Err(Failure::Final(format!(
                            "what the program saw did not happen again: {awaited:?}"
                        )));
                    }
                    continue;
                }
                Step::Done => return Ok(()),
            }
            last_sign = Instant::now();
        }
    }

    fn send(&mut self, frames: &[u8]) -> Result<(), Failure> {
        let allocated = allocated_bytes(frames).min(i64::MAX as u64) as i64;
        self.link.memory_credit.fetch_sub(allocated, Ordering::SeqCst);
        self.tx.send(&[frames]).map_err(again)
    }

    /// Sends pushed bytes when the worker has room for them.
    fn push(&self, transfer: TransferId, bytes: Arc<[u8]>) -> Result<(), Failure> {
        let mut core = self.core()?;
        while !self.link.take_push_window(bytes.len() as u64) {
            core = self.checked(self.shared.wait(core, LOOK))?;
        }
        survival::send(&self.wires, transfer, bytes);
        Ok(())
    }

    /// Asks for something whose reply tells the reading thread that it is relieved.
    fn send_fence(&mut self) -> Result<(), Failure> {
        self.tx.send(&[&frame(&Command::MemoryInfo { device: 0 }, FENCE_CALL)]).map_err(again)
    }

    /// From here on the program's threads send by themselves.
    fn go_live(&self) -> Result<(), Failure> {
        let mut core = self.core()?;
        for (transfer, bytes) in std::mem::take(&mut core.late_pushes) {
            survival::send(&self.wires, transfer, bytes);
        }
        core.phase = Phase::Live;
        drop(core);
        self.shared.tell();
        Ok(())
    }
}

/// Reads one reply of a session that is being resumed. False: it was that of the fence.
fn read_one(
    link: &Link,
    shared: &Shared,
    number: SessionNumber,
    reader: &mut ReplyReader,
) -> Result<bool, LinkEnd> {
    let (mut head, body) = reader.next()?;
    if head.call == FENCE_CALL {
        return Ok(false);
    }
    if head.call == 0 {
        link.replies.deliver((head, body))?;
        return Ok(true);
    }
    let mut core = shared.core();
    if core.number != number {
        return Err(LinkEnd::Ended);
    }
    let Some(replay) = core.replay.as_mut() else { return Err(LinkEnd::Ended) };
    let verdict = replay.reply_came(head.call, head.status, &body);
    let context = ContextId(head.deferred_context);
    let is_news = head.deferred != 0 && replay.deferred(context, head.deferred);
    if !is_news {
        head.deferred = 0;
    }
    match verdict {
        Verdict::New => {
            drop(core);
            link.replies.deliver((head, body))?;
        }
        Verdict::Same => {
            if is_news {
                core.journal.observed(Observation::Deferred { context, status: head.deferred });
            }
            drop(core);
            link.memory_credit.fetch_add(head.memory_credit_bytes as i64, Ordering::Relaxed);
            if let (Some(error), Some(tell)) = (CudaError::from_code(head.deferred), link.on_deferred.get()) {
                tell(head.deferred_context, error);
            }
        }
        Verdict::Moved(variables) => {
            let names: Vec<_> = variables.iter().map(|variable| variable.name.as_str()).collect();
            log::warn(&format!("variables of a module have moved: {}", names.join(", ")));
            core.difference = Some(journal::Difference::Body { call: head.call });
        }
        Verdict::Differs(difference) => core.difference = Some(difference),
    }
    shared.tell();
    Ok(true)
}

/// A transfer that the program has came again.
fn landed_again(shared: &Shared, number: SessionNumber, transfer: TransferId, digest: u128) {
    let mut core = shared.core();
    if core.number != number {
        return;
    }
    let verdict = core.replay.as_mut().map(|replay| replay.landed_again(transfer, digest.into()));
    if let Some(Verdict::Differs(difference)) = verdict {
        core.difference = Some(difference);
    }
    shared.tell();
}

fn frame(command: &Command<'_>, call: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let start = begin_command(&mut out, command.opcode(), call);
    command.put_body(&mut out);
    finish_command(&mut out, start);
    out
}

/// The command that loads a module: with its image if the journal has it, else by its hash, which the worker knows.
fn load_frame(load: &Load) -> Vec<u8> {
    let image = match &load.image {
        Some(bytes) => ImageSource::Inline { bytes: Bytes(bytes) },
        None => ImageSource::Known {},
    };
    let command = Command::ModuleLoad {
        module: load.module,
        context: load.context,
        hash: load.hash,
        image,
        options: load.options.clone(),
    };
    frame(&command, load.call)
}

/// What the commands take from the memory credit of their session.
fn allocated_bytes(mut frames: &[u8]) -> u64 {
    let mut total: u64 = 0;
    while let Some((head, rest)) = frames.split_at_checked(CommandHeader::BYTES) {
        let Ok(head) = header::<CommandHeader>(head) else { break };
        let Some((body, rest)) = rest.split_at_checked(head.bytes as usize) else { break };
        let bytes = match Command::decode(head.opcode, body) {
            Ok(Command::MemoryAllocate { bytes, .. } | Command::PhysicalCreate { bytes, .. }) => bytes,
            Ok(Command::Enqueue { op: Op::Allocate { bytes, .. }, .. }) => bytes,
            _ => 0,
        };
        total = total.saturating_add(bytes);
        frames = rest;
    }
    total
}
