//! The command loop: takes commands in order, executes them, answers those that ask for it.
//!
//! It never waits for the device while a further command may come: it polls what is not over yet for a while, as long
//! as no command comes, and then leaves it to a waiter thread. The commands of the client's other threads go on.

use crate::{
    end::{EndKind, Ending, SessionEnd},
    session::{
        cuts::{Cuts, Fate, Opening, Refusal, Wanted},
        exchange::{Exchange, exports_of},
        gate::Gate,
        holdings::Thing,
        input::{Frame, Input},
        link::Link,
        pending::Pending,
        regions::Regions,
        replies::Replies,
        timeline::{Timeline, work_of_read},
        waiters::{Wait, Waiters},
    },
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Driver, Exported, Exports, LinkLost, WaitTarget};
use cuda_wire::{
    COMMAND_BYTES_MAX, DriverCommand, FENCE_CALL, FIRST_INCARNATION, Notice, Plane, Received, SessionCommand,
    Shape, StreamId, Subject, Wire,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) struct CommandLoop {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) link: Arc<Link>,
    pub(crate) replies: Arc<Replies>,
    pub(crate) waiters: Waiters,
    pub(crate) cuts: Arc<Cuts>,
    pub(crate) regions: Regions,
    /// Other sessions of this worker.
    pub(crate) exchange: Exchange,
    pub(crate) ending: Arc<Ending>,
    /// In a session whose client wished for one.
    pub(crate) timeline: Option<Arc<Timeline>>,
    /// How long the loop polls for what is not over yet.
    pub(crate) spin: Duration,
    /// An answer under construction, kept for its memory.
    pub(crate) answer: Vec<u8>,
}

/// What a command asks the loop to do next.
enum Next {
    Continue,
    /// The client ends the session, in words.
    End(&'static str),
    /// An answer that is not there yet.
    Answer {
        call: u32,
        pending: Pending,
    },
}

impl From<LinkLost> for SessionEnd {
    fn from(_: LinkLost) -> Self {
        SessionEnd::new(EndKind::PeerLost, "the command connection broke")
    }
}

impl CommandLoop {
    /// Runs until the session ends, and says why it did.
    pub(crate) fn run(&mut self, mut input: Input) -> SessionEnd {
        loop {
            if let Err(end) = self.turn(&mut input) {
                return end;
            }
        }
    }

    /// Executes everything that is here, then waits for more.
    fn turn(&mut self, input: &mut Input) -> Result<(), SessionEnd> {
        let malformed = |error: cuda_wire::DecodeError| {
            SessionEnd::new(EndKind::Protocol, format!("a malformed command: {error}"))
        };
        while let Some(frame) = input.next().map_err(malformed)? {
            match self.execute(frame)? {
                Next::Continue => {}
                Next::End(words) => return Err(SessionEnd::new(EndKind::Finished, words)),
                Next::Answer { call, pending } => self.answer(call, pending, input)?,
            }
        }
        self.link.events.heard().touch();
        while self.gate.plans_ahead() {
            match input.try_receive() {
                Ok(None) => self.gate.load_next_ahead(),
                // An end or an error shows again at the next receive, which reports it.
                Ok(Some(0)) | Err(_) => break,
                Ok(Some(_)) => return Ok(()),
            }
        }
        match input.receive() {
            Ok(0) => Err(SessionEnd::new(
                EndKind::PeerLost,
                "the client closed its connection without a goodbye: its process ended early or was killed",
            )),
            Ok(_) => Ok(()),
            Err(error) => {
                Err(SessionEnd::new(EndKind::PeerLost, format!("the command connection broke: {error}")))
            }
        }
    }

    fn execute(&mut self, frame: Frame<'_>) -> Result<Next, SessionEnd> {
        let Frame { header, body } = frame;
        let received = Received::decode(header.opcode, body).map_err(|error| {
            SessionEnd::new(EndKind::Protocol, format!("a malformed command {:#06x}: {error}", header.opcode))
        })?;
        if header.call != 0
            && let Some(timeline) = &self.timeline
        {
            timeline.received(header.call);
        }
        match received {
            Received::Driver(command) => self.execute_on_driver(header.call, command),
            Received::Session(command) => self.carry_out(header.call, command),
        }
    }

    fn execute_on_driver(&mut self, call: u32, command: DriverCommand<'_>) -> Result<Next, SessionEnd> {
        let subject = command.subject();
        self.answer.clear();
        let result = self.gate.execute(command, &mut self.answer);
        if call == FENCE_CALL {
            let link = self.link.clone();
            self.gate.has_replayed(Box::new(move || {
                // A client that cannot hear it is lost, which the events' own thread tells.
                let _ = link.events.send(&Notice::Rested {});
            }));
        }
        match (call, result) {
            (0, Ok(())) => {}
            (0, Err(error)) => self.gate.defer(subject, error),
            (call, result) => self.replies.send(call, result, &self.answer)?,
        }
        Ok(Next::Continue)
    }

    /// Begins a wait and says what to answer after it. Without a reply (`call` 0) there is no wait.
    fn carry_out(&mut self, call: u32, command: SessionCommand) -> Result<Next, SessionEnd> {
        let target = match command {
            SessionCommand::Goodbye {} => {
                return self.end(call, Fate::End, "the client said goodbye");
            }
            SessionCommand::Leave {} => {
                return self.end(call, Fate::Stay, "the client left, and its image stays");
            }
            SessionCommand::Guard { image, secret, incarnation } => {
                self.gate.load_nothing_ahead();
                if incarnation > FIRST_INCARNATION {
                    self.gate.replays();
                }
                self.cuts.guard(call, Opening { image, secret, incarnation }, &self.ending)?;
                return Ok(Next::Continue);
            }
            SessionCommand::Cut { number, dead, patience_us } => {
                let patience = Duration::from_micros(patience_us.into());
                self.cuts.cut(call, Wanted { number, dead, patience })?;
                return Ok(Next::Continue);
            }
            SessionCommand::ImageRestore { number, from } => {
                self.cuts.restore(call, number, from)?;
                return Ok(Next::Continue);
            }
            SessionCommand::ImageCopy { image, secret, number, from } => {
                self.gate.load_nothing_ahead();
                self.cuts.copy(call, &Opening { image, secret, incarnation: 0 }, number, &from)?;
                return Ok(Next::Continue);
            }
            SessionCommand::ImageFetch { image, secret, incarnation, from } => {
                self.cuts.fetch(call, &Opening { image, secret, incarnation }, &from)?;
                return Ok(Next::Continue);
            }
            SessionCommand::HostShare { region, bytes } => {
                let shared = self.regions.share(&*self.driver, region, bytes);
                return self.settle(call, shared);
            }
            SessionCommand::HostUnshare { region } => {
                let unshared = self.regions.unshare(&*self.driver, region);
                return self.settle(call, unshared);
            }
            _ if call == 0 => return Ok(Next::Continue),
            SessionCommand::MemoryShare { .. }
            | SessionCommand::PhysicalShare { .. }
            | SessionCommand::EventShare { .. }
            | SessionCommand::PhysicalImport { .. }
            | SessionCommand::EventImport { .. } => return self.exchange(call, command),
            SessionCommand::ReadBack { stream, source, shape } => {
                return match self.read_back(stream, source, shape) {
                    Ok(pending) => Ok(Next::Answer { call, pending }),
                    Err(error) => {
                        self.replies.send(call, Err(error), &[])?;
                        Ok(Next::Continue)
                    }
                };
            }
            SessionCommand::ContextSynchronize { context } => WaitTarget::Context(context),
            SessionCommand::StreamSynchronize { stream } => WaitTarget::Stream(stream),
            SessionCommand::EventSynchronize { event } => WaitTarget::Event(event),
        };
        Ok(Next::Answer { call, pending: Pending::Target(target) })
    }

    /// Shares something with other sessions, or takes what one of them shares.
    fn exchange(&mut self, call: u32, command: SessionCommand) -> Result<Next, SessionEnd> {
        self.answer.clear();
        match self.exchanged(command) {
            Ok(answer) => self.replies.send(call, Ok(()), &answer)?,
            Err(refusal) => self.replies.refuse(call, &refusal)?,
        }
        Ok(Next::Continue)
    }

    fn exchanged(&self, command: SessionCommand) -> Result<Vec<u8>, Refusal> {
        use SessionCommand as C;
        let driver = &*self.driver;
        let share = |what: &dyn Fn(&dyn Exports) -> CuResult<Arc<dyn Exported>>| {
            self.exchange.share(driver, what).map(|shared| shared.to_bytes())
        };
        match command {
            C::MemoryShare { address, bytes } => share(&|exports| exports.share_memory(address, bytes)),
            C::PhysicalShare { handle } => share(&|exports| exports.share_physical(handle)),
            C::EventShare { event } => share(&|exports| exports.share_event(event)),
            C::PhysicalImport { handle, name, piece } => {
                let import = || {
                    let parcel = self.exchange.fetch(&name, piece)?;
                    Ok(exports_of(driver)?.import_memory(handle, parcel)?.to_bytes())
                };
                self.gate.count(Thing::Physical(handle), None, import)
            }
            C::EventImport { event, context, name } => {
                let import = || {
                    let parcel = self.exchange.fetch(&name, 0)?;
                    exports_of(driver)?.import_event(event, context, parcel)?;
                    Ok(Vec::new())
                };
                self.gate.count(Thing::Event(event), Some(context), import)
            }
            _ => Err(CudaError::NOT_SUPPORTED.into()),
        }
    }

    /// Answers what was done at once. A failure that nobody awaits is kept for the next reply.
    fn settle(&self, call: u32, result: CuResult<()>) -> Result<Next, SessionEnd> {
        match (call, result) {
            (0, Ok(())) => {}
            (0, Err(error)) => self.gate.defer(Subject::Nothing, error),
            (call, result) => self.replies.send(call, result, &[])?,
        }
        Ok(Next::Continue)
    }

    /// The client ends the session and decides what becomes of its image.
    fn end(&self, call: u32, fate: Fate, words: &'static str) -> Result<Next, SessionEnd> {
        self.cuts.decide(fate);
        if call != 0 {
            self.replies.send(call, Ok(()), &[])?;
        }
        Ok(Next::End(words))
    }

    /// Puts a read of device memory behind a stream's work.
    fn read_back(&self, stream: StreamId, source: Plane, shape: Shape) -> CuResult<Pending> {
        let bytes = shape.bytes().filter(|bytes| *bytes <= COMMAND_BYTES_MAX.into());
        bytes.ok_or(CudaError::INVALID_VALUE)?;
        let _telling = self.gate.telling_of_read();
        let begin = || self.driver.read_back_begin(stream, source, shape);
        let read = match &self.timeline {
            None => begin(),
            Some(timeline) => timeline.time(stream, work_of_read(&shape), begin),
        };
        read.map(Pending::Read)
    }

    /// Sends an answer as soon as it is there. Polls for it until the next command arrives or `spin` is over, then has
    /// a waiter thread wait.
    fn answer(&mut self, call: u32, mut pending: Pending, input: &mut Input) -> Result<(), SessionEnd> {
        let started = Instant::now();
        loop {
            self.answer.clear();
            if let Some(result) = pending.poll(&*self.driver, &mut self.answer) {
                self.gate.waited();
                self.replies.send_awaited(call, result, &self.answer)?;
                self.gate.open_soon(|| input.has_arrived());
                return Ok(());
            }
            if input.has_arrived() || started.elapsed() >= self.spin {
                break;
            }
            std::hint::spin_loop();
        }
        let (driver, replies, gate) = (self.driver.clone(), self.replies.clone(), self.gate.clone());
        let is_taken = self.waiters.run(Box::new(Awaited { driver, replies, gate, call, pending }));
        match is_taken {
            true => Ok(()),
            false => Err(SessionEnd::new(
                EndKind::Protocol,
                "the client waits for more things at once than any program has threads",
            )),
        }
    }
}

/// A reply that is sent when what it waits for is over.
struct Awaited {
    driver: Arc<dyn Driver>,
    replies: Arc<Replies>,
    gate: Arc<Gate>,
    call: u32,
    pending: Pending,
}

impl Wait for Awaited {
    fn wait(self: Box<Self>) {
        let mut answer = Vec::new();
        let result = self.pending.wait(&*self.driver, &mut answer);
        self.gate.waited();
        self.replies.send_or_close(self.call, result, &answer);
        // This thread has nothing else to do. A command that comes meanwhile closes the gate, or ends the linger.
        self.gate.open_soon(|| false);
    }

    fn look(&mut self) -> bool {
        let mut answer = Vec::new();
        let Some(result) = self.pending.poll(&*self.driver, &mut answer) else { return false };
        self.gate.waited();
        self.replies.send_or_close(self.call, result, &answer);
        true
    }
}
