//! A worker with streams that execute by themselves, one operation at a time, whenever the scheduler lets them.

use super::tables::{Tables, op_of};
use cuda_wire::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Device memory: words of 8 bytes by address.
pub(super) type Memory = BTreeMap<u64, u64>;

/// Opcodes that the wire does not have yet: a cut, and the restore of an image. Their body is the cut's number.
pub(super) const CUT: u16 = 0x70;
pub(super) const RESTORE: u16 = 0x72;
const NOT_READY: u32 = 600;

#[derive(Clone, Debug)]
pub(super) enum Work {
    Kernel { target: u64, source: u64, plus: u64 },
    Print { address: u64 },
    Write { target: u64, value: u64 },
    Push { target: u64, transfer: TransferId },
    Pull { target: u64, transfer: TransferId, is_asked: bool },
    Out { source: u64, transfer: TransferId },
    HostCall { token: u64, is_asked: bool },
    Record { ticket: u64 },
    Wait { ticket: u64 },
    WaitValue { address: u64, value: u64 },
    Read { source: u64, call: u32 },
    Barrier,
}

/// What the worker says on the events connection, with the chunks that went before it.
#[derive(Clone, Debug)]
pub(super) enum Said {
    HostCall(u64),
    Pull(TransferId),
    Print(String),
    CutTaken(u64),
    CutSafe(u64),
    CutAbandoned(u64),
}

#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) call: u32,
    pub(super) status: u32,
    pub(super) body: Vec<u8>,
    pub(super) notices: u64,
    pub(super) chunks: u64,
}

#[derive(Clone, Debug)]
enum Until {
    Stream(u32, u64),
    All(Vec<(u32, u64)>),
    Ticket(u64),
}

#[derive(Clone, Debug, Default)]
struct Stream {
    work: VecDeque<Work>,
    /// How much was ever enqueued, and executed.
    enqueued: u64,
    executed: u64,
}

/// A cut under way: its number, and the memory once it is taken.
#[derive(Clone, Debug)]
struct Cut {
    number: u64,
    image: Option<Memory>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Worker {
    tables: Tables,
    pub(super) memory: Memory,
    pub(super) inbox: VecDeque<Vec<u8>>,
    streams: BTreeMap<u32, Stream>,
    latest: BTreeMap<u32, u64>,
    tickets: u64,
    done: BTreeSet<u64>,
    waits: Vec<(u32, Until)>,
    cut: Option<Cut>,
    pub(super) pushed: BTreeMap<TransferId, u64>,
    pub(super) served: BTreeMap<TransferId, VecDeque<u64>>,
    pub(super) returned: BTreeMap<u64, u32>,
    pub(super) replies: VecDeque<Reply>,
    pub(super) notices: VecDeque<(Said, u64)>,
    pub(super) chunks: VecDeque<(TransferId, u64)>,
    said: u64,
    chunks_sent: u64,
}

/// What a worker can do next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    Command,
    Stream(u32),
    Answer(usize),
    TakeCut,
    AbandonCut,
    CommitCut,
}

impl Worker {
    /// Nothing is left to do, and nothing is on its way to the client.
    pub(super) fn is_quiet(&self) -> bool {
        self.turns().is_empty()
            && self.replies.is_empty()
            && self.notices.is_empty()
            && self.chunks.is_empty()
            && self.streams.values().all(|stream| stream.work.is_empty())
    }

    pub(super) fn turns(&self) -> Vec<Turn> {
        let mut turns = Vec::new();
        if !self.inbox.is_empty() {
            turns.push(Turn::Command);
        }
        turns.extend(self.streams.keys().filter(|id| self.can_run(**id)).map(|id| Turn::Stream(*id)));
        turns.extend((0..self.waits.len()).filter(|at| self.is_over(&self.waits[*at].1)).map(Turn::Answer));
        match &self.cut {
            Some(Cut { image: Some(_), .. }) => turns.push(Turn::CommitCut),
            Some(_) if self.all_arrived() => turns.push(Turn::TakeCut),
            Some(_) => turns.push(Turn::AbandonCut),
            None => {}
        }
        turns
    }

    fn all_arrived(&self) -> bool {
        self.streams.values().all(|stream| matches!(stream.work.front(), Some(Work::Barrier)))
    }

    fn can_run(&self, id: u32) -> bool {
        match self.streams[&id].work.front() {
            None | Some(Work::Barrier) => false,
            Some(Work::Push { transfer, .. }) => self.pushed.contains_key(transfer),
            Some(Work::Pull { transfer, is_asked: true, .. }) => {
                self.served.get(transfer).is_some_and(|served| !served.is_empty())
            }
            Some(Work::HostCall { token, is_asked: true }) => {
                self.returned.get(token).is_some_and(|count| *count > 0)
            }
            Some(Work::Wait { ticket }) => self.is_recorded(*ticket),
            Some(Work::WaitValue { address, value }) => self.memory.get(address) == Some(value),
            Some(_) => true,
        }
    }

    /// Ticket 0 is an event that was never recorded: it counts as done.
    fn is_recorded(&self, ticket: u64) -> bool {
        ticket == 0 || self.done.contains(&ticket)
    }

    fn is_over(&self, until: &Until) -> bool {
        let reached = |id: &u32, count: &u64| self.streams[id].executed >= *count;
        match until {
            Until::Stream(id, count) => reached(id, count),
            Until::All(ends) => ends.iter().all(|(id, count)| reached(id, count)),
            Until::Ticket(ticket) => self.is_recorded(*ticket),
        }
    }

    /// Takes a turn. Images that become safe go to `guardian`.
    pub(super) fn take(&mut self, turn: Turn, guardian: &mut BTreeMap<u64, Memory>) {
        match turn {
            Turn::Command => {
                let frame = self.inbox.pop_front().unwrap();
                self.execute(&frame, guardian);
            }
            Turn::Stream(id) => self.run(id),
            Turn::Answer(at) => {
                let (call, _) = self.waits.remove(at);
                self.reply(call, 0, vec![]);
            }
            Turn::TakeCut => {
                let cut = self.cut.as_mut().unwrap();
                cut.image = Some(self.memory.clone());
                let number = cut.number;
                self.say(Said::CutTaken(number));
                self.let_go();
            }
            Turn::AbandonCut => {
                let number = self.cut.take().unwrap().number;
                self.say(Said::CutAbandoned(number));
                self.let_go();
            }
            Turn::CommitCut => {
                let cut = self.cut.take().unwrap();
                guardian.insert(cut.number, cut.image.unwrap());
                self.say(Said::CutSafe(cut.number));
            }
        }
    }

    fn let_go(&mut self) {
        for stream in self.streams.values_mut() {
            stream.work.retain(|work| !matches!(work, Work::Barrier));
        }
    }

    fn say(&mut self, said: Said) {
        self.said += 1;
        self.notices.push_back((said, self.chunks_sent));
    }

    fn reply(&mut self, call: u32, status: u32, body: Vec<u8>) {
        let (notices, chunks) = (self.said, self.chunks_sent);
        self.replies.push_back(Reply { call, status, body, notices, chunks });
    }

    fn run(&mut self, id: u32) {
        let work = self.streams.get_mut(&id).unwrap().work.front_mut().unwrap();
        match work {
            Work::Pull { transfer, is_asked: asked @ false, .. } => {
                *asked = true;
                let transfer = *transfer;
                return self.say(Said::Pull(transfer));
            }
            Work::HostCall { token, is_asked: asked @ false } => {
                *asked = true;
                let token = *token;
                return self.say(Said::HostCall(token));
            }
            _ => {}
        }
        let stream = self.streams.get_mut(&id).unwrap();
        stream.executed += 1;
        let read = |memory: &Memory, address: u64| memory.get(&address).copied().unwrap_or(0);
        match stream.work.pop_front().unwrap() {
            Work::Kernel { target, source, plus } => {
                let value = read(&self.memory, target).wrapping_mul(31);
                let value = value.wrapping_add(read(&self.memory, source)).wrapping_add(plus);
                self.memory.insert(target, value);
            }
            Work::Print { address } => self.say(Said::Print(format!("[{}]", read(&self.memory, address)))),
            Work::Write { target, value } => drop(self.memory.insert(target, value)),
            Work::Push { target, transfer } => {
                self.memory.insert(target, self.pushed[&transfer]);
            }
            Work::Pull { target, transfer, .. } => {
                let value = self.served.get_mut(&transfer).unwrap().pop_front().unwrap();
                self.memory.insert(target, value);
            }
            Work::Out { source, transfer } => {
                self.chunks_sent += 1;
                self.chunks.push_back((transfer, read(&self.memory, source)));
            }
            Work::HostCall { token, .. } => *self.returned.get_mut(&token).unwrap() -= 1,
            Work::Record { ticket } => drop(self.done.insert(ticket)),
            Work::Wait { .. } | Work::WaitValue { .. } => {}
            Work::Read { source, call } => {
                let value = read(&self.memory, source);
                self.reply(call, 0, value.to_le_bytes().to_vec());
            }
            Work::Barrier => unreachable!("a barrier does not run"),
        }
    }

    fn enqueue(&mut self, id: u32, work: Work) {
        let stream = self.streams.get_mut(&id).unwrap();
        stream.enqueued += 1;
        stream.work.push_back(work);
    }

    fn execute(&mut self, frame: &[u8], guardian: &BTreeMap<u64, Memory>) {
        let head: CommandHeader = header(&frame[..CommandHeader::BYTES]).unwrap();
        let body = &frame[CommandHeader::BYTES..];
        match head.opcode {
            CUT => {
                self.cut = Some(Cut { number: u64::from_bytes(body).unwrap(), image: None });
                self.streams.values_mut().for_each(|stream| stream.work.push_back(Work::Barrier));
                return;
            }
            RESTORE => {
                self.memory = guardian[&u64::from_bytes(body).unwrap()].clone();
                return;
            }
            _ => {}
        }
        let command = Command::decode(head.opcode, body).unwrap();
        let result = self.tables.execute(&command);
        if let Err(status) = result {
            assert_ne!(head.call, 0, "nothing that is sent one way fails here: {command:?}");
            return self.reply(head.call, status, vec![]);
        }
        if self.begin_wait(&command, head.call) {
            return;
        }
        match &command {
            Command::StreamCreate { stream, .. } => {
                let mut made = Stream::default();
                if self.cut.as_ref().is_some_and(|cut| cut.image.is_none()) {
                    made.work.push_back(Work::Barrier);
                }
                self.streams.insert(stream.0, made);
            }
            Command::Enqueue { stream, op } => self.put(stream.0, op, None),
            Command::GraphLaunch { exec, stream, run } => {
                let nodes = self.tables.graphs[&exec.0].1.clone();
                nodes.iter().filter(|node| node.2).for_each(|node| {
                    self.put(stream.0, &op_of(node), Some(*run));
                });
            }
            Command::ReadBack { stream, source, .. } => {
                return self.enqueue(stream.0, Work::Read { source: source.address, call: head.call });
            }
            Command::MemoryInfo { .. } => {
                // Another answer at each worker and each time.
                let free = self.tickets + self.said;
                return self.reply(head.call, 0, (free, 1u64).to_bytes());
            }
            Command::ModuleLoad { .. } => {
                let variable = VariableInfo { name: "v".to_owned(), address: 0x7000, bytes: 8 };
                let info = ModuleInfo {
                    kernels: vec![],
                    variables: vec![variable],
                    info_log: String::new(),
                    managed: Default::default(),
                };
                return self.reply(head.call, 0, info.to_bytes());
            }
            _ => {}
        }
        if head.call != 0 {
            self.reply(head.call, 0, vec![]);
        }
    }

    /// Begins a wait or answers a query. False: the command is neither.
    fn begin_wait(&mut self, command: &Command<'_>, call: u32) -> bool {
        match command {
            Command::StreamSynchronize { stream } => {
                let end = self.streams[&stream.0].enqueued;
                self.waits.push((call, Until::Stream(stream.0, end)));
            }
            Command::ContextSynchronize { .. } => {
                let ends = self.streams.iter().map(|(id, stream)| (*id, stream.enqueued)).collect();
                self.waits.push((call, Until::All(ends)));
            }
            Command::EventSynchronize { event } => {
                let ticket = self.latest.get(&event.0).copied().unwrap_or(0);
                self.waits.push((call, Until::Ticket(ticket)));
            }
            Command::StreamQuery { stream } => {
                let stream = &self.streams[&stream.0];
                let status = if stream.executed == stream.enqueued { 0 } else { NOT_READY };
                self.reply(call, status, vec![]);
            }
            Command::EventQuery { event } => {
                let ticket = self.latest.get(&event.0).copied().unwrap_or(0);
                let status = if self.is_recorded(ticket) { 0 } else { NOT_READY };
                self.reply(call, status, vec![]);
            }
            _ => return false,
        }
        true
    }

    fn put(&mut self, stream: u32, op: &Op<'_>, run: Option<u32>) {
        let out = |transfer: TransferId| run.map_or(transfer, |run| transfer_of_run(transfer, run));
        let work = match op {
            Op::Launch { kernel, parameters, .. } => {
                let word = |at: usize| u64::from_le_bytes(parameters.0[at..at + 8].try_into().unwrap());
                match kernel.index {
                    0 => Work::Kernel { target: word(0), source: word(8), plus: word(16) },
                    _ => Work::Print { address: word(0) },
                }
            }
            Op::CopyIn { target, data, .. } => {
                let target = target.address;
                match data {
                    HostData::Inline { bytes } => {
                        Work::Write { target, value: u64::from_bytes(bytes.0).unwrap() }
                    }
                    HostData::Pushed { transfer } => Work::Push { target, transfer: *transfer },
                    HostData::Pulled { transfer } => {
                        Work::Pull { target, transfer: *transfer, is_asked: false }
                    }
                }
            }
            Op::CopyOut { source, transfer, .. } => {
                Work::Out { source: source.address, transfer: out(*transfer) }
            }
            Op::HostCall { token } => Work::HostCall { token: *token, is_asked: false },
            Op::Record { event, .. } => {
                self.tickets += 1;
                self.latest.insert(event.0, self.tickets);
                Work::Record { ticket: self.tickets }
            }
            Op::Wait { event, .. } => match self.latest.get(&event.0) {
                Some(ticket) => Work::Wait { ticket: *ticket },
                None => return,
            },
            Op::MemoryOps { ops } => match ops[0].kind {
                0 => Work::WaitValue { address: ops[0].address, value: ops[0].value },
                _ => Work::Write { target: ops[0].address, value: ops[0].value },
            },
            Op::Allocate { .. } | Op::Free { .. } | Op::Empty {} => return,
            other => panic!("{other:?}"),
        };
        self.enqueue(stream, work);
    }
}
