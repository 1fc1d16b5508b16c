//! A client with a journal, a worker, and a scheduler that lets anything happen next that can. The worker can be killed
//! after every event, also while its successor is being told what it must know.

use super::{
    program::{Act, FIRST, SECOND, SLOTS},
    worker::{CUT, Memory, RESTORE, Reply, Said, Turn, Worker},
};
use crate::{
    Digest, HostCallHeard, HostCallVerdict, Journal, Landing, Observation, PullVerdict, Replay, Serving,
    Step, Verdict,
    mutant::{Mutant, is_planted},
};
use cuda_wire::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What the program saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) threads: [Vec<String>; 2],
    host_calls: Vec<String>,
    text: String,
}

#[derive(Debug, Default)]
pub(super) struct Thread {
    pub(super) at: usize,
    pub(super) register: u64,
    /// The call that it waits for.
    pub(super) waits: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Worker(Turn),
    Thread(usize),
    Flush,
    Written,
    Reply,
    Notice,
    Chunk,
    HostCallBegins,
    HostCallEnds,
    Serve,
    Cut,
    Resume,
}

pub(super) struct World {
    random: u64,
    pub(super) worker: Worker,
    guardian: BTreeMap<u64, Memory>,
    pub(super) journal: Journal,
    /// What a fresh worker is told. It is asked about pulls, host functions and text until a cut is taken.
    replay: Option<Replay>,
    is_resuming: bool,
    /// The replay waits, and nothing came since.
    is_waiting: bool,
    pub(super) gathered: Vec<u8>,
    /// Frames that are being written, and were announced.
    written: Option<Vec<u8>>,
    pub(super) threads: [Thread; 2],
    pub(super) signals: BTreeSet<u32>,
    pub(super) host: [u64; SLOTS],
    /// The slot of each transfer.
    pub(super) slots: BTreeMap<TransferId, usize>,
    pub(super) opcodes: BTreeMap<u32, u16>,
    replies: VecDeque<Reply>,
    notices_handled: u64,
    chunks_landed: u64,
    host_calls: VecDeque<u64>,
    running: Option<u64>,
    /// The present worker has asked for the function that runs. The one that asked first may be dead.
    is_running_asked: bool,
    servings: VecDeque<(TransferId, Option<Serving>)>,
    pub(super) next_call: u32,
    pub(super) next_transfer: u64,
    pub(super) runs: u32,
    cut_in_flight: Option<u64>,
    safe: Option<u64>,
    next_cut: u64,
    pub(super) seen: Seen,
    pub(super) events: u64,
    pub(super) truncations: u64,
}

/// More events than any run takes: it goes round in circles.
const EVENTS_MAX: u64 = 20_000;

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            worker: Worker::default(),
            guardian: BTreeMap::new(),
            journal: Journal::new(u64::MAX),
            replay: None,
            is_resuming: false,
            is_waiting: false,
            gathered: Vec::new(),
            written: None,
            threads: Default::default(),
            signals: BTreeSet::new(),
            host: [0; SLOTS],
            // The graph's: it pulls slot 5 and writes slot 4.
            slots: BTreeMap::from([(TransferId(1), 5), (TransferId(2), 4)]),
            opcodes: BTreeMap::new(),
            replies: VecDeque::new(),
            notices_handled: 0,
            chunks_landed: 0,
            host_calls: VecDeque::new(),
            running: None,
            is_running_asked: false,
            servings: VecDeque::new(),
            // Near the end of its range: the numbers wrap in every run.
            next_call: u32::MAX - 5,
            next_transfer: 10,
            runs: 0,
            cut_in_flight: None,
            safe: None,
            next_cut: 1,
            seen: Seen::default(),
            events: 0,
            truncations: 0,
        }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % below
    }

    /// Runs the program to its end. The worker dies after the events with these numbers.
    pub(super) fn run(&mut self, kills: &[u64]) -> Result<Seen, String> {
        loop {
            if kills.contains(&self.events) {
                self.kill();
            }
            let is_over = [FIRST, SECOND].iter().zip(&self.threads).all(|(acts, of)| of.at == acts.len());
            if is_over && self.is_quiet() {
                return Ok(self.seen.clone());
            }
            let events = self.enabled();
            if events.is_empty() || self.events > EVENTS_MAX {
                return Err(format!("stuck after {} events", self.events));
            }
            let event = events[self.draw(events.len())];
            self.events += 1;
            self.happen(event)?;
        }
    }

    /// No thread waits and everything that was sent is done.
    fn is_quiet(&self) -> bool {
        !self.is_resuming && self.gathered.is_empty() && self.running.is_none() && self.worker.is_quiet()
    }

    /// Everything on its way is lost with the worker.
    fn kill(&mut self) {
        self.hand_over();
        self.worker = Worker::default();
        self.replies.clear();
        self.host_calls.clear();
        self.is_running_asked = false;
        self.servings.clear();
        (self.notices_handled, self.chunks_landed) = (0, 0);
        if let Some(number) = self.cut_in_flight.take() {
            self.journal.cut_abandoned(number);
        }
        self.safe = None;
        self.replay = Some(self.journal.replay());
        (self.is_resuming, self.is_waiting) = (true, false);
    }

    fn enabled(&mut self) -> Vec<Event> {
        let mut events: Vec<Event> = self.worker.turns().into_iter().map(Event::Worker).collect();
        for (index, acts) in [FIRST, SECOND].iter().enumerate() {
            let thread = &self.threads[index];
            let act = acts.get(thread.at);
            let is_held = matches!(act, Some(Act::Await(signal)) if !self.signals.contains(signal));
            if act.is_some() && thread.waits.is_none() && !is_held {
                events.push(Event::Thread(index));
            }
        }
        if !self.gathered.is_empty() && !self.is_resuming {
            events.push(Event::Flush);
        }
        if self.written.is_some() {
            events.push(Event::Written);
        }
        if let Some(reply) = self.worker.replies.front()
            && reply.notices <= self.notices_handled
            && reply.chunks <= self.chunks_landed
        {
            events.push(Event::Reply);
        }
        if self.worker.notices.front().is_some_and(|(_, chunks)| *chunks <= self.chunks_landed) {
            events.push(Event::Notice);
        }
        if !self.worker.chunks.is_empty() {
            events.push(Event::Chunk);
        }
        if self.running.is_some() {
            events.push(Event::HostCallEnds);
        } else if !self.host_calls.is_empty() {
            events.push(Event::HostCallBegins);
        }
        if !self.servings.is_empty() {
            events.push(Event::Serve);
        }
        if self.is_resuming && !self.is_waiting {
            events.push(Event::Resume);
        }
        if self.cut_in_flight.is_none() && !self.is_resuming && self.draw(12) == 0 && !events.is_empty() {
            events.push(Event::Cut);
        }
        events
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        if !matches!(event, Event::Thread(_)) {
            self.is_waiting = false;
        }
        match event {
            Event::Worker(turn) => self.worker.take(turn, &mut self.guardian),
            Event::Thread(index) => self.act(index),
            Event::Flush => self.flush(),
            Event::Written => self.hand_over(),
            Event::Reply => self.reply()?,
            Event::Notice => self.notice()?,
            Event::Chunk => self.land()?,
            Event::HostCallBegins => {
                self.running = self.host_calls.pop_front();
                self.is_running_asked = true;
                let token = self.running.unwrap();
                self.journal
                    .observed(Observation::HostCallBegan { token, may_send: token.is_multiple_of(2) });
                self.host[3] = self.host[3].wrapping_mul(7).wrapping_add(self.host[2]).wrapping_add(token);
                self.seen.host_calls.push(format!("{token}: {}", self.host[3]));
            }
            Event::HostCallEnds => {
                let token = self.running.take().unwrap();
                self.journal.observed(Observation::HostCallRan { token });
                if self.is_running_asked {
                    *self.worker.returned.entry(token).or_default() += 1;
                }
            }
            Event::Serve => self.serve(),
            Event::Cut => {
                let number = self.next_cut;
                self.next_cut += 1;
                self.gathered.extend(numbered(CUT, number));
                self.flush();
                self.hand_over();
                self.journal.cut_sent(number);
                self.cut_in_flight = Some(number);
            }
            Event::Resume => self.resume()?,
        }
        Ok(())
    }

    /// Writes what has gathered: half of the time it is kept before it is written, else it is announced, and kept when the
    /// write is over.
    fn flush(&mut self) {
        self.hand_over();
        let frames = std::mem::take(&mut self.gathered);
        deliver(&mut self.worker, &frames);
        if self.draw(2) == 0 {
            self.gathered = self.journal.sent(frames);
        } else {
            self.journal.announce(frames.len());
            self.written = Some(frames);
        }
    }

    /// The write is over.
    fn hand_over(&mut self) {
        if let Some(frames) = self.written.take() {
            self.journal.sent(frames);
        }
    }

    fn reply(&mut self) -> Result<(), String> {
        let reply = self.worker.replies.pop_front().unwrap();
        if self.is_resuming {
            match self.replay.as_mut().unwrap().reply_came(reply.call, reply.status, &reply.body) {
                Verdict::New => {}
                Verdict::Same => return Ok(()),
                other => return Err(format!("{other:?}")),
            }
        }
        let index = self.threads.iter().position(|thread| thread.waits == Some(reply.call));
        let index = index.ok_or_else(|| format!("a reply to {} that no thread waits for", reply.call))?;
        let opcode = self.opcodes[&reply.call];
        self.journal.observed(Observation::reply(reply.call, opcode, reply.status, &reply.body));
        if let Some(number) = self.safe {
            self.truncate(number);
        }
        let thread = &mut self.threads[index];
        thread.waits = None;
        let act = [FIRST, SECOND][index][thread.at];
        if matches!(act, Act::PollStream(_) | Act::PollEvent(_)) && reply.status != 0 {
            return Ok(());
        }
        thread.at += 1;
        if let Act::Read(..) = act {
            thread.register = u64::from_bytes(&reply.body).unwrap();
        }
        // Of the device's free memory nothing is promised.
        let what = if matches!(act, Act::MemoryInfo) { vec![] } else { reply.body };
        self.seen.threads[index].push(format!("{act:?}: {} {what:?}", reply.status));
        Ok(())
    }

    fn truncate(&mut self, number: u64) {
        self.safe = Some(number);
        match self.journal.cut_safe(number) {
            Ok(_) => {
                self.safe = None;
                self.cut_in_flight = None;
                self.truncations += 1;
            }
            Err(crate::CutRefused::Unanswered { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn notice(&mut self) -> Result<(), String> {
        let (said, _) = self.worker.notices.pop_front().unwrap();
        self.notices_handled += 1;
        match said {
            Said::HostCall(token) => {
                let heard = self.replay.as_mut().map(|replay| replay.host_call_heard(token));
                let verdict = match heard {
                    Some(HostCallHeard::Owed) => return Ok(()),
                    Some(HostCallHeard::Answer) => Some(HostCallVerdict::AlreadyRan),
                    _ => self.replay.as_mut().map(|replay| replay.host_call_asked(token)),
                };
                match verdict.unwrap_or(HostCallVerdict::Run) {
                    HostCallVerdict::Run => self.host_calls.push_back(token),
                    // It is told when it returns.
                    HostCallVerdict::StillRunning if self.running == Some(token) => {
                        self.is_running_asked = true;
                    }
                    _ => *self.worker.returned.entry(token).or_default() += 1,
                }
            }
            Said::Pull(transfer) => {
                let verdict = self.replay.as_mut().map(|replay| replay.pull_asked(transfer));
                match verdict.unwrap_or(PullVerdict::New) {
                    PullVerdict::Kept(bytes) => {
                        let value = u64::from_bytes(&bytes).unwrap();
                        self.worker.served.entry(transfer).or_default().push_back(value);
                    }
                    PullVerdict::Again(serving) => self.servings.push_back((transfer, Some(serving))),
                    PullVerdict::New => {
                        let serving = self.journal.serving_began(transfer);
                        self.servings.push_back((transfer, Some(serving)));
                    }
                    PullVerdict::Refused => return Err("nothing was refused".to_owned()),
                }
            }
            Said::Print(text) => {
                let verdict = self.replay.as_mut().map(|replay| replay.printed(text.as_bytes()));
                if verdict.is_some_and(|verdict| verdict.differs) {
                    return Err(format!("other text: {text}"));
                }
                let text = &text[verdict.map_or(0, |verdict| verdict.drop)..];
                self.journal.printed(text.as_bytes());
                self.seen.text.push_str(text);
            }
            Said::CutTaken(number) => {
                self.journal.cut_taken(number);
                // All work before it is done, so nothing of before the loss can be asked for again.
                self.replay = None;
            }
            Said::CutSafe(number) => self.truncate(number),
            Said::CutAbandoned(number) => {
                self.journal.cut_abandoned(number);
                self.cut_in_flight = None;
            }
        }
        Ok(())
    }

    fn serve(&mut self) {
        let (transfer, serving) = self.servings.pop_front().unwrap();
        let value = self.host[self.slots[&transfer]];
        if let Some(serving) = serving {
            self.journal.host_data(serving, value.to_bytes().into());
        }
        self.worker.served.entry(transfer).or_default().push_back(value);
    }

    fn land(&mut self) -> Result<(), String> {
        let (transfer, value) = self.worker.chunks.pop_front().unwrap();
        self.chunks_landed += 1;
        let digest = Digest::of(&value.to_bytes());
        if let Some(replay) = &mut self.replay {
            let landing = replay.landing(transfer);
            match (landing, replay.landed_again(transfer, digest)) {
                (Landing::Compare, Verdict::Same) => return Ok(()),
                (Landing::Write, _) => {}
                (Landing::Compare, other) => return Err(format!("{other:?}")),
            }
        }
        self.host[self.slots[&transfer]] = value;
        self.journal.observed(Observation::Landed { transfer, digest });
        Ok(())
    }

    fn resume(&mut self) -> Result<(), String> {
        let replay = self.replay.as_mut().unwrap();
        match replay.step().map_err(|error| error.to_string())? {
            Step::Send(frames) => deliver(&mut self.worker, frames),
            Step::Load(load) => {
                let bytes = load.image.as_deref().ok_or("an image is missing")?;
                let frame = load.frame(ImageSource::Inline { bytes: Bytes(bytes) });
                deliver(&mut self.worker, &frame);
            }
            Step::Push(transfer, bytes) => {
                let bytes = bytes.ok_or("a push is missing")?;
                self.worker.pushed.insert(transfer, u64::from_bytes(&bytes).unwrap());
            }
            Step::Restore(number) => deliver(&mut self.worker, &numbered(RESTORE, number)),
            Step::Returned(token) => *self.worker.returned.entry(token).or_default() += 1,
            Step::Await(_) => self.is_waiting = true,
            Step::Done => {
                self.is_resuming = false;
                if is_planted(Mutant::ReplayForgottenWhenDone) {
                    self.replay = None;
                }
            }
        }
        Ok(())
    }
}

fn deliver(worker: &mut Worker, frames: &[u8]) {
    let mut rest = frames;
    while !rest.is_empty() {
        let head: CommandHeader = header(&rest[..CommandHeader::BYTES]).unwrap();
        let (frame, after) = rest.split_at(CommandHeader::BYTES + head.bytes as usize);
        worker.inbox.push_back(frame.to_vec());
        rest = after;
    }
}

fn numbered(opcode: u16, number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let start = begin_command(&mut out, opcode, 0);
    number.put(&mut out);
    finish_command(&mut out, start);
    out
}
