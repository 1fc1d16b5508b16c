//! A session on its way to where the program is: it is told everything again, and what comes back is compared.

use super::{
    super::{
        Link, NUDGE_CALL, RESTORE_CALL,
        digest::Digest,
        end::LinkEnd,
        guard::frame,
        places::Place,
        reply_reader::{Reply, ReplyReader},
        survival::{self, Core, Phase, Shared},
        wires::{SessionNumber, Wires},
    },
    Failure, again,
};
use crate::log;
use bulk::Sink;
use cuda_abi::CudaError;
use cuda_wire::{
    Bytes, COMMAND_BYTES_MAX, Command, CommandHeader, ContextId, FENCE_CALL, GuardInfo, ImageRestored,
    ImageSource, Op, ReplyHeader, TransferId, Welcome, Wire, header,
};
use journal::{DeferredVerdict, Difference, Load, Observation, Step, Verdict};
use std::{
    fmt,
    sync::{Arc, MutexGuard, atomic::Ordering, mpsc},
    time::{Duration, Instant},
};
use transport::Tx;

/// Without a sign for this long, what the program saw will not happen again.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long an image may take to come back: the largest one over a slow network. A worker that is gone is noticed by its
/// silence on the events connection long before.
const RESTORE_MAX: Duration = Duration::from_secs(600);
/// How often a thread that waits looks whether its session is lost.
const LOOK: Duration = Duration::from_millis(50);
/// Larger images of modules do not fit into a command: they travel in lanes.
const INLINE_IMAGE_BYTES_MAX: usize = COMMAND_BYTES_MAX as usize / 2;

/// Takes bytes that the program has, for their digest alone.
struct Compared(Arc<Digest>);

impl Sink for Compared {
    fn take(&self, offset: u64, bytes: &[u8]) {
        self.0.add(offset, bytes);
    }
}

/// Where the time of a resume goes.
#[derive(Default)]
pub(super) struct Spent {
    /// A connection, and a session that is ready.
    pub(super) session: Duration,
    /// Contexts, modules, memory, streams, graphs made again.
    pub(super) objects: Duration,
    /// The image loaded.
    pub(super) image: Duration,
    /// The commands since the image executed again.
    pub(super) commands: Duration,
}

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [session, objects, image, commands] =
            [self.session, self.objects, self.image, self.commands].map(|part| part.as_millis());
        write!(f, "session {session}, objects {objects}, image {image}, commands {commands}")
    }
}

pub(super) struct NewSession<'a> {
    link: &'a Arc<Link>,
    shared: &'a Arc<Shared>,
    wires: Arc<Wires>,
    number: SessionNumber,
    tx: Tx,
    place: &'a Place,
    replayed_bytes: u64,
    spent: Spent,
}

impl<'a> NewSession<'a> {
    pub(super) fn new(
        link: &'a Arc<Link>,
        shared: &'a Arc<Shared>,
        wires: Arc<Wires>,
        tx: Tx,
        place: &'a Place,
    ) -> Self {
        let number = wires.number;
        Self { link, shared, wires, number, tx, place, replayed_bytes: 0, spent: Spent::default() }
    }

    pub(super) fn wires(&self) -> &Arc<Wires> {
        &self.wires
    }

    /// The way for commands, how many bytes were told again, and what took how long.
    pub(super) fn into_parts(self) -> (Tx, u64, Spent) {
        (self.tx, self.replayed_bytes, self.spent)
    }

    /// The program does not go on in this session. What is still under way in it is void.
    pub(super) fn give_up(&self) {
        {
            let mut core = self.shared.core();
            if core.number == self.number && core.phase == Phase::Resuming {
                core.end_session();
            }
        }
        self.link.credit.suspend();
        self.wires.close();
        self.link.leave_session(self.number);
        self.shared.tell();
    }

    /// The core, if this session is still the present one and nothing has happened differently.
    fn core(&self) -> Result<MutexGuard<'_, Core>, Failure> {
        self.checked(self.shared.core())
    }

    fn checked<'c>(&self, core: MutexGuard<'c, Core>) -> Result<MutexGuard<'c, Core>, Failure> {
        if core.number != self.number || core.phase == Phase::Lost {
            return Err(Failure::Again("the new session was lost, too".to_owned()));
        }
        if core.own_fault.is_some() {
            return Err(Failure::Final("the program itself failed".to_owned()));
        }
        match &core.difference {
            Some(difference) => {
                let why = format!("the program cannot go on in another session, because {difference}");
                Err(match difference {
                    // Where a driver places variables depends on where the system has placed other things in its process.
                    Difference::Places { .. } => Failure::Anew(why),
                    // The lost session gives its memory back when its end was noticed.
                    _ if difference.lacks_memory() => Failure::Again(why),
                    _ => Failure::Elsewhere(why),
                })
            }
            None => Ok(core),
        }
    }

    /// Makes this the session whose replies and windows count.
    pub(super) fn begin(&self, welcome: &Welcome) -> Result<(), Failure> {
        let mut core = self.shared.core();
        core.difference = None;
        core.accepted = 0;
        let mut core = self.checked(core)?;
        core.replay = Some(core.journal.replay());
        core.late_pushes.clear();
        core.image_pulls.clear();
        core.restored = None;
        let window = welcome.push_window_bytes.saturating_sub(core.announced_bytes());
        self.link.push_window.store(window.min(i64::MAX as u64) as i64, Ordering::SeqCst);
        self.link.credit.begin_next(welcome.memory_credit_bytes);
        drop(core);
        self.link.replies.begin_session(self.number);
        Ok(())
    }

    /// Transfers that the program has come again; their bytes are compared and thrown away.
    pub(super) fn expect_again(&self) {
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
    pub(super) fn read_replies(
        &self,
        mut reader: ReplyReader,
    ) -> Result<mpsc::Receiver<ReplyReader>, Failure> {
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

    pub(super) fn replay(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        self.replay_all()?;
        self.spent.commands = began.elapsed().saturating_sub(self.spent.objects + self.spent.image);
        Ok(())
    }

    fn replay_all(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        let mut last_sign = began;
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
                    let load = load.clone();
                    drop(core);
                    self.load(&load)?;
                }
                Step::Push(transfer, Some(bytes)) => {
                    drop(core);
                    self.push(transfer, bytes)?;
                }
                // The thread of the program that announced it makes it later.
                Step::Push(_, None) => {}
                Step::Restore(number) => {
                    drop(core);
                    let since = Instant::now();
                    let at_worker = self.restore(number)?;
                    // The worker answers in order, so this took the objects' time, too.
                    self.spent.image = at_worker.min(since.elapsed());
                    self.spent.objects = began.elapsed() - self.spent.image;
                }
                Step::Returned(token) => {
                    drop(core);
                    self.wires.send(&cuda_wire::Notice::HostCallDone { token }).map_err(again)?;
                }
                Step::Await(awaited) => {
                    drop(self.shared.wait(core, LOOK));
                    self.nudge()?;
                    if last_sign.elapsed() > SILENCE_MAX {
                        return Err(Failure::Elsewhere(format!(
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
        self.link.credit.replayed(allocated_bytes(frames));
        self.replayed_bytes += frames.len() as u64;
        self.tx.send(&[frames]).map_err(again)
    }

    /// Asks for something that has an answer. In the lost session, what is awaited may have come along with the answer to a
    /// query that is left out now.
    fn nudge(&mut self) -> Result<(), Failure> {
        self.tx.send(&[&frame(&Command::MemoryInfo { device: 0 }, NUDGE_CALL)]).map_err(again)
    }

    /// Has the image of the last safe cut put back, and waits until it is. How long that took the worker.
    fn restore(&mut self, number: u64) -> Result<Duration, Failure> {
        let from = match self.place.guardian.as_str() {
            "" => self.core()?.guardians(),
            named => named.to_owned(),
        };
        self.tx.send(&[&frame(&Command::ImageRestore { number, from }, RESTORE_CALL)]).map_err(again)?;
        let began = Instant::now();
        let mut core = self.core()?;
        loop {
            match core.restored.take() {
                Some(Ok(restored)) => return Ok(Duration::from_micros(restored.took_us)),
                Some(Err(why)) => {
                    return Err(Failure::Elsewhere(format!(
                        "the image of cut {number} did not come back: {why}"
                    )));
                }
                None if began.elapsed() > RESTORE_MAX => {
                    return Err(Failure::Elsewhere(format!(
                        "the image did not come back within {RESTORE_MAX:?}"
                    )));
                }
                None => core = self.checked(self.shared.wait(core, LOOK))?,
            }
        }
    }

    /// Has a module loaded: with its image if the journal has it, else by its hash, which the worker may know.
    fn load(&mut self, load: &Load) -> Result<(), Failure> {
        let Some(image) = &load.image else { return self.send(&load.frame(ImageSource::Known {})) };
        if image.len() <= INLINE_IMAGE_BYTES_MAX {
            return self.send(&load.frame(ImageSource::Inline { bytes: Bytes(image) }));
        }
        let (transfer, bytes) = (self.link.next_transfer(), image.len() as u64);
        if bytes <= self.link.push_window_bytes {
            self.push(transfer, Arc::clone(image))?;
        } else {
            // More than the window holds: the worker asks for it.
            self.core()?.image_pulls.insert(transfer, Arc::clone(image));
        }
        self.send(&load.frame(ImageSource::Pushed { transfer, bytes }))
    }

    /// Sends pushed bytes when the worker has room for them.
    fn push(&mut self, transfer: TransferId, bytes: Arc<[u8]>) -> Result<(), Failure> {
        let mut core = self.core()?;
        while !self.link.take_push_window(bytes.len() as u64) {
            core = self.checked(self.shared.wait(core, LOOK))?;
        }
        drop(core);
        self.replayed_bytes += bytes.len() as u64;
        survival::send(&self.wires, transfer, bytes);
        Ok(())
    }

    /// Asks for something whose reply tells the reading thread that it is relieved.
    pub(super) fn send_fence(&mut self) -> Result<(), Failure> {
        self.tx.send(&[&frame(&Command::MemoryInfo { device: 0 }, FENCE_CALL)]).map_err(again)
    }

    /// From here on the program's threads send by themselves.
    pub(super) fn go_live(&self, guard: Option<GuardInfo>) -> Result<(), Failure> {
        let mut core = self.core()?;
        let link = self.link;
        link.queue.with_gathered(|frames| link.credit.adopt_next(allocated_bytes(frames)));
        // The worker's own guardian has the image now.
        core.guardian = guard.as_ref().map_or_else(String::new, |guard| guard.guardian.clone());
        core.cuts.guard = guard;
        core.cuts.lost_guardian = None;
        core.cuts.policy.resumed();
        core.place = self.place.clone();
        core.is_device_lost = false;
        if core.accepted > 1 {
            log::warn(&format!(
                "{} results of the program differ from what it got before the loss",
                core.accepted
            ));
        }
        for (transfer, bytes) in std::mem::take(&mut core.late_pushes) {
            survival::send(&self.wires, transfer, bytes);
        }
        core.begin_to_live();
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
    if head.call == 0 {
        link.replies.deliver((head, body))?;
        return Ok(true);
    }
    let mut core = shared.core();
    if core.number != number {
        return Err(LinkEnd::Ended);
    }
    let Some(replay) = core.replay.as_mut() else { return Err(LinkEnd::Ended) };
    link.credit.grant_next(std::mem::take(&mut head.memory_credit_bytes));
    if head.deferred != 0 {
        match replay.deferred(ContextId(head.deferred_context), head.deferred) {
            DeferredVerdict::New => {}
            DeferredVerdict::Known => head.deferred = 0,
            DeferredVerdict::NoMemory => {
                head.deferred = 0;
                core.differs(Difference::Memory);
                shared.tell();
            }
        }
    }
    if [FENCE_CALL, NUDGE_CALL, RESTORE_CALL].contains(&head.call) {
        tell_program(link, core, &head);
        if head.call == RESTORE_CALL {
            restored(shared, number, &(head, body));
        }
        return Ok(head.call != FENCE_CALL);
    }
    let Some(replay) = core.replay.as_mut() else { return Err(LinkEnd::Ended) };
    match replay.reply_came(head.call, head.status, &body) {
        Verdict::New => {
            drop(core);
            link.replies.deliver((head, body))?;
        }
        Verdict::Same => tell_program(link, core, &head),
        Verdict::Moved(variables) => {
            // A library's modules have dozens, with long names, and all modules that follow have moved, too.
            if core.difference.is_none()
                && let [first, others @ ..] = &variables[..]
            {
                let (name, from, to, others) = (&first.name, first.from, first.to, others.len());
                log::warn(&format!(
                    "variables of a module have moved: {name} from {from:#x} to {to:#x}, and {others} others"
                ));
            }
            core.difference = Some(Difference::Places { call: head.call });
        }
        Verdict::Differs(difference) => core.differs(difference),
    }
    shared.tell();
    Ok(true)
}

/// What a reply brings that no thread of the program waits for: an error of one-way work that is news.
fn tell_program(link: &Link, mut core: MutexGuard<'_, Core>, head: &ReplyHeader) {
    if head.deferred != 0 {
        let context = ContextId(head.deferred_context);
        core.journal.observed(Observation::Deferred { context, status: head.deferred });
    }
    drop(core);
    if let (Some(error), Some(tell)) = (CudaError::from_code(head.deferred), link.on_deferred.get()) {
        tell(head.deferred_context, error);
    }
}

/// A transfer that the program has came again.
fn landed_again(shared: &Shared, number: SessionNumber, transfer: TransferId, digest: u128) {
    let mut core = shared.core();
    if core.number != number {
        return;
    }
    let verdict = core.replay.as_mut().map(|replay| replay.landed_again(transfer, digest.into()));
    if let Some(Verdict::Differs(difference)) = verdict {
        core.differs(difference);
    }
    shared.tell();
}

/// The worker has put the image back, or says why not.
fn restored(shared: &Shared, number: SessionNumber, (head, body): &Reply) {
    let answer = match CudaError::from_code(head.status) {
        None => ImageRestored::from_bytes(body).map_err(|error| error.to_string()),
        Some(error) if body.is_empty() => Err(format!("{error:?}")),
        Some(_) => Err(String::from_utf8_lossy(body).into_owned()),
    };
    let mut core = shared.core();
    if core.number == number {
        core.restored = Some(answer);
    }
    drop(core);
    shared.tell();
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
