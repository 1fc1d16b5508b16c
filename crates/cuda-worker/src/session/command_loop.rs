//! The command loop: takes commands in order, executes them, answers those that ask for it.
//!
//! It never waits for the device: a wait that is not over goes to a thread of its own, and the commands of the
//! client's other threads go on.

use crate::{
    end::{EndKind, SessionEnd},
    session::{
        gate::Gate,
        input::{Frame, Input},
        link::Link,
        names::Subject,
        replies::Replies,
        waiters::Waiters,
    },
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Driver, LinkLost, WaitTarget};
use cuda_wire::{COMMAND_BYTES_MAX, Command, Op, Plane, Shape, StreamId, Wire, dispatch};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) struct CommandLoop {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) link: Arc<Link>,
    pub(crate) replies: Arc<Replies>,
    pub(crate) waiters: Waiters,
    pub(crate) spin: Duration,
    /// An answer under construction, kept for its memory.
    pub(crate) answer: Vec<u8>,
}

/// What a command asks the loop to do next.
enum Next {
    Continue,
    Goodbye,
    /// A wait that is not over yet.
    Wait {
        call: u32,
        target: WaitTarget,
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
                Next::Goodbye => {
                    self.replies.flush()?;
                    return Err(SessionEnd::new(EndKind::Finished, "the client said goodbye"));
                }
                Next::Wait { call, target } => self.wait(call, target, input)?,
            }
        }
        self.replies.flush()?;
        self.link.events.heard().touch();
        match input.receive() {
            Ok(0) => Err(SessionEnd::new(EndKind::PeerLost, "the client closed without a goodbye")),
            Ok(_) => Ok(()),
            Err(error) => {
                Err(SessionEnd::new(EndKind::PeerLost, format!("the command connection broke: {error}")))
            }
        }
    }

    fn execute(&mut self, frame: Frame<'_>) -> Result<Next, SessionEnd> {
        let Frame { header, body } = frame;
        let command = Command::decode(header.opcode, body).map_err(|error| {
            SessionEnd::new(EndKind::Protocol, format!("a malformed command {:#06x}: {error}", header.opcode))
        })?;
        let call = header.call;
        let target = match command {
            Command::ContextSynchronize { context } => WaitTarget::Context(context),
            Command::StreamSynchronize { stream } => WaitTarget::Stream(stream),
            Command::EventSynchronize { event } => WaitTarget::Event(event),
            Command::ReadBack { stream, source, shape } => {
                self.read_back(call, stream, source, shape)?;
                return Ok(Next::Continue);
            }
            Command::Goodbye {} => {
                let result = self.driver.goodbye();
                if call != 0 {
                    self.replies.push(call, result, &[])?;
                }
                return Ok(Next::Goodbye);
            }
            other => {
                self.dispatch(call, other)?;
                return Ok(Next::Continue);
            }
        };
        // Nobody waits where no reply was asked for.
        if call == 0 {
            return Ok(Next::Continue);
        }
        match self.poll(target) {
            None => Ok(Next::Wait { call, target }),
            Some(result) => {
                self.replies.push(call, result, &[])?;
                Ok(Next::Continue)
            }
        }
    }

    fn dispatch(&mut self, call: u32, command: Command<'_>) -> Result<(), SessionEnd> {
        let subject = Subject::of(&command);
        self.answer.clear();
        let result = dispatch(command, &*self.gate, &mut self.answer);
        match (call, result) {
            (0, Ok(())) => {}
            (0, Err(error)) => self.gate.defer(subject, error),
            (call, result) => self.replies.push(call, result, &self.answer)?,
        }
        Ok(())
    }

    /// `None`: not over yet.
    fn poll(&self, target: WaitTarget) -> Option<CuResult<()>> {
        match self.driver.poll(target) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        }
    }

    /// Polls for a short time if there is nothing better to do, then has another thread wait.
    fn wait(&self, call: u32, target: WaitTarget, input: &mut Input) -> Result<(), SessionEnd> {
        if !self.spin.is_zero() && !input.has_more() {
            self.replies.flush()?;
            let start = Instant::now();
            while start.elapsed() < self.spin {
                if let Some(result) = self.poll(target) {
                    return Ok(self.replies.push(call, result, &[])?);
                }
                std::hint::spin_loop();
            }
        }
        let (driver, replies) = (self.driver.clone(), self.replies.clone());
        self.on_waiter(Box::new(move || {
            let result = driver.wait(target);
            replies.send(call, result, &[]);
        }))
    }

    fn on_waiter(&self, job: Box<dyn FnOnce() + Send>) -> Result<(), SessionEnd> {
        if self.waiters.run(job) {
            return Ok(());
        }
        Err(SessionEnd::new(EndKind::Protocol, "more waits at once than any program has threads"))
    }

    /// Reads device memory behind a stream's work.
    fn read_back(
        &mut self,
        call: u32,
        stream: StreamId,
        source: Plane,
        shape: Shape,
    ) -> Result<(), SessionEnd> {
        if call == 0 {
            return Ok(());
        }
        let bytes = shape.bytes().filter(|bytes| *bytes <= COMMAND_BYTES_MAX.into());
        let Some(bytes) = bytes else {
            return Ok(self.replies.push(call, Err(CudaError::INVALID_VALUE), &[])?);
        };
        if self.is_idle(stream) || bytes == 0 {
            self.answer.clear();
            let result = self.driver.read_back(stream, source, shape).map(|data| data.put(&mut self.answer));
            return Ok(self.replies.push(call, result, &self.answer)?);
        }
        let replies = self.replies.clone();
        let transfer = self.link.read_backs.begin(Box::new(move |data| {
            let mut answer = Vec::with_capacity(data.len() + 4);
            cuda_wire::Bytes(&data).put(&mut answer);
            replies.send(call, Ok(()), &answer);
        }));
        if let Err(error) = self.driver.enqueue(stream, Op::CopyOut { source, shape, transfer }) {
            self.link.read_backs.take(transfer);
            return Ok(self.replies.push(call, Err(error), &[])?);
        }
        // The stream answers when it gets there. If it never does, because it failed before, this does.
        let (driver, replies, link) = (self.driver.clone(), self.replies.clone(), self.link.clone());
        self.on_waiter(Box::new(move || {
            let result = driver.wait(WaitTarget::Stream(stream));
            if link.read_backs.take(transfer).is_some() {
                replies.send(call, Err(result.err().unwrap_or(CudaError::UNKNOWN)), &[]);
            }
        }))
    }

    /// Whether nothing that the stream's next work would wait for is under way. Streams that are ordered against the
    /// legacy stream may wait for any other stream of their context.
    fn is_idle(&self, stream: StreamId) -> bool {
        let target = match self.gate.names.stream(stream) {
            Some(known) if !known.is_independent => WaitTarget::Context(known.context),
            _ => WaitTarget::Stream(stream),
        };
        self.driver.poll(target) == Ok(true)
    }
}
