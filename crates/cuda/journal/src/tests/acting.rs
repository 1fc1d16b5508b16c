//! What threads of the program do.

use super::{
    program::{A, Act, B, BLOCK, FIRST, SECOND},
    world::World,
};
use crate::manifest::frame;
use cuda_wire::*;

impl World {
    fn post(&mut self, command: &Command<'_>) {
        self.gathered.extend(frame(command, 0));
    }

    fn call(&mut self, index: usize, command: &Command<'_>) {
        self.next_call = self.next_call.wrapping_add(1).max(1);
        self.opcodes.insert(self.next_call, command.opcode());
        self.gathered.extend(frame(command, self.next_call));
        self.threads[index].waits = Some(self.next_call);
    }

    fn enqueue(&mut self, stream: u32, op: Op<'_>) {
        self.post(&Command::Enqueue { stream: StreamId(stream), op });
    }

    fn name(&mut self) -> TransferId {
        self.next_transfer += 1;
        TransferId(self.next_transfer)
    }

    pub(super) fn act(&mut self, index: usize) {
        let act = [FIRST, SECOND][index][self.threads[index].at];
        let register = self.threads[index].register;
        let context = ContextId(0);
        let calls = self.next_call;
        match act {
            Act::Synchronize(stream) => {
                self.call(index, &Command::StreamSynchronize { stream: StreamId(stream) });
            }
            Act::SynchronizeAll => self.call(index, &Command::ContextSynchronize { context }),
            Act::SynchronizeEvent(event) => {
                self.call(index, &Command::EventSynchronize { event: EventId(event) });
            }
            Act::PollStream(stream) => self.call(index, &Command::StreamQuery { stream: StreamId(stream) }),
            Act::PollEvent(event) => self.call(index, &Command::EventQuery { event: EventId(event) }),
            Act::Read(stream, address) => {
                let (source, shape) = (Plane::line(address), Shape::line(8));
                self.call(index, &Command::ReadBack { stream: StreamId(stream), source, shape });
            }
            Act::Look(slot) => {
                self.threads[index].register = self.host[slot];
                self.seen.threads[index].push(format!("slot {slot}: {}", self.host[slot]));
            }
            Act::Set(slot, plus) => self.host[slot] = register.wrapping_add(plus),
            Act::Signal(signal) => drop(self.signals.insert(signal)),
            Act::Await(_) => {}
            Act::Launch(exec, stream) => {
                self.runs += 1;
                let (exec, run) = (ExecId(exec), self.runs);
                self.slots.insert(transfer_of_run(TransferId(2), run), 4);
                self.post(&Command::GraphLaunch { exec, stream: StreamId(stream), run });
            }
            Act::Instantiate(exec) => self.instantiate(index, ExecId(exec)),
            Act::Load(module) => {
                let image = ImageSource::Inline { bytes: Bytes(b"image") };
                let (module, hash) = (ModuleId(module), [1; 32]);
                self.call(index, &Command::ModuleLoad { module, context, hash, image, options: vec![] });
            }
            Act::MakeEvent(event) => {
                self.post(&Command::EventCreate { event: EventId(event), context, flags: 0 });
            }
            Act::EndEvent(event) => self.post(&Command::EventDestroy { event: EventId(event) }),
            Act::MakeStream(stream) => {
                if stream == 1 {
                    let (address, bytes) = BLOCK;
                    self.post(&Command::MemoryAllocate { context, address, bytes });
                }
                self.post(&Command::StreamCreate { stream: StreamId(stream), context, kind: 1, priority: 0 });
            }
            Act::MemoryInfo => self.call(index, &Command::MemoryInfo { device: 0 }),
            _ => self.enqueue_act(act, register),
        }
        if self.next_call == calls {
            self.threads[index].at += 1;
        }
    }

    /// A graph that pulls slot 5, computes, has a host function run and writes slot 4.
    fn instantiate(&mut self, index: usize, exec: ExecId) {
        let parameters = words([A, B, 6]);
        let ops = [
            copy_in(B, HostData::Pulled { transfer: TransferId(1) }),
            kernel(0, &parameters),
            Op::HostCall { token: 77 },
            Op::CopyOut { source: Plane::line(A), shape: Shape::line(8), transfer: TransferId(2) },
        ]
        .map(|op| GraphNode { op, after: vec![], enabled: true });
        self.call(index, &Command::GraphInstantiate { exec, context: ContextId(0), nodes: ops.to_vec() });
    }

    /// Puts work into a stream.
    fn enqueue_act(&mut self, act: Act, register: u64) {
        match act {
            Act::Kernel(stream, target, source, plus) => {
                self.enqueue(stream, kernel(0, &words([target, source, plus])));
            }
            Act::KernelWithRead(stream, target, source) => {
                self.enqueue(stream, kernel(0, &words([target, source, register])));
            }
            Act::Print(stream, address) => self.enqueue(stream, kernel(1, &words([address, 0, 0]))),
            Act::Inline(stream, target, plus) => {
                let bytes = register.wrapping_add(plus).to_bytes();
                self.enqueue(stream, copy_in(target, HostData::Inline { bytes: Bytes(&bytes) }));
            }
            Act::Push(stream, target, plus) => {
                let (transfer, value) = (self.name(), register.wrapping_add(plus));
                self.enqueue(stream, copy_in(target, HostData::Pushed { transfer }));
                self.journal.pushed(transfer, value.to_bytes().into());
                self.worker.pushed.insert(transfer, value);
            }
            Act::Pull(stream, target, slot) => {
                let transfer = self.name();
                self.slots.insert(transfer, slot);
                self.enqueue(stream, copy_in(target, HostData::Pulled { transfer }));
            }
            Act::Out(stream, source, slot) => {
                let transfer = self.name();
                self.slots.insert(transfer, slot);
                let (source, shape) = (Plane::line(source), Shape::line(8));
                self.enqueue(stream, Op::CopyOut { source, shape, transfer });
            }
            Act::HostCall(stream, token) => self.enqueue(stream, Op::HostCall { token }),
            Act::Record(stream, event) => {
                self.enqueue(stream, Op::Record { event: EventId(event), flags: 0 });
            }
            Act::WaitEvent(stream, event) => {
                self.enqueue(stream, Op::Wait { event: EventId(event), flags: 0 })
            }
            Act::WaitValue(stream, address, value) => {
                self.enqueue(
                    stream,
                    Op::MemoryOps { ops: vec![MemoryOp { kind: 0, flags: 0, address, value }] },
                );
            }
            Act::WriteValue(stream, address, value) => {
                self.enqueue(
                    stream,
                    Op::MemoryOps { ops: vec![MemoryOp { kind: 1, flags: 0, address, value }] },
                );
            }
            Act::Allocate(stream, address) => self.enqueue(stream, Op::Allocate { address, bytes: 8 }),
            Act::Free(stream, address) => self.enqueue(stream, Op::Free { address }),
            other => panic!("{other:?} is no work of a stream"),
        }
    }
}

fn words(words: [u64; 3]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn kernel(index: u32, parameters: &[u8]) -> Op<'_> {
    Op::Launch {
        kernel: KernelRef { module: ModuleId(1), index },
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: false,
        attributes: vec![],
        parameters: Bytes(parameters),
    }
}

fn copy_in(target: u64, data: HostData<'_>) -> Op<'_> {
    Op::CopyIn { target: Plane::line(target), shape: Shape::line(8), data }
}
