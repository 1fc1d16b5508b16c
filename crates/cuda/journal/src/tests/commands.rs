//! Random commands over few names, so that they meet: valid ones, and ones that name what is not there.

use crate::manifest::frame;
use cuda_wire::*;
use proptest::prelude::*;

/// A command of a random program.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) command: Command<'static>,
    /// It asks for an answer.
    pub(super) is_call: bool,
    /// The worker refuses it whatever it is, and says so: it has an answer.
    pub(super) is_refused: bool,
}

impl Sent {
    pub(super) fn frame(&self, call: u32) -> Vec<u8> {
        frame(&self.command, if self.is_call { call } else { 0 })
    }
}

/// Images by their number; the hash of each is its number, 32 times.
pub(super) const IMAGES: [&[u8]; 3] = [b"image 0", b"image 1", b"image 2"];

fn context() -> impl Strategy<Value = ContextId> {
    prop_oneof![Just(0u32), Just(1), 0x100..0x103u32].prop_map(ContextId)
}

fn stream() -> impl Strategy<Value = StreamId> {
    (0..3u32).prop_map(StreamId)
}

fn event() -> impl Strategy<Value = EventId> {
    (0..3u32).prop_map(EventId)
}

fn exec() -> impl Strategy<Value = ExecId> {
    (0..3u32).prop_map(ExecId)
}

fn kernel() -> impl Strategy<Value = KernelRef> {
    (0..3u32, 0..2u32).prop_map(|(module, index)| KernelRef { module: ModuleId(module), index })
}

/// Addresses and lengths in steps of 16, so that ranges touch, overlap and fill each other.
fn range() -> impl Strategy<Value = (u64, u64)> {
    (0..8u64, 0..4u64).prop_map(|(at, length)| (0x1000 + at * 16, length * 16))
}

fn op() -> impl Strategy<Value = Op<'static>> {
    prop_oneof![
        Just(Op::Empty {}),
        kernel().prop_map(|kernel| Op::Launch {
            kernel,
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            cooperative: false,
            attributes: vec![],
            parameters: Bytes(b"parameters"),
        }),
        range().prop_map(|(address, bytes)| Op::Allocate { address, bytes }),
        range().prop_map(|(address, bytes)| Op::Allocate { address, bytes }),
        range().prop_map(|(address, _)| Op::Free { address }),
        event().prop_map(|event| Op::Record { event, flags: 0 }),
        event().prop_map(|event| Op::Wait { event, flags: 0 }),
        (0..4u64).prop_map(|transfer| Op::CopyIn {
            target: Plane::line(0x1000),
            shape: Shape::line(16),
            data: HostData::Pushed { transfer: TransferId(transfer) },
        }),
        (0..4u64).prop_map(|transfer| Op::CopyOut {
            source: Plane::line(0x1000),
            shape: Shape::line(16),
            transfer: TransferId(transfer),
        }),
    ]
}

fn nodes() -> impl Strategy<Value = Vec<GraphNode<'static>>> {
    prop::collection::vec((op(), any::<bool>()), 0..4).prop_map(|ops| {
        let nodes = ops.into_iter().enumerate();
        nodes
            .map(|(index, (op, enabled))| GraphNode { op, after: (0..index as u32).collect(), enabled })
            .collect()
    })
}

fn objects() -> impl Strategy<Value = Command<'static>> {
    prop_oneof![
        (context(), 0..2u32, 0..4u32).prop_map(|(context, device, flags)| Command::ContextCreate {
            context,
            device,
            flags
        }),
        context().prop_map(|context| Command::ContextDestroy { context }),
        context().prop_map(|context| Command::ContextReset { context }),
        (context(), 0..2u32, 0..9u64).prop_map(|(context, limit, value)| Command::ContextSetLimit {
            context,
            limit,
            value
        }),
        (context(), context(), any::<bool>())
            .prop_map(|(context, peer, enable)| Command::ContextEnablePeer { context, peer, enable }),
        (stream(), context(), 0..4u32, -1..2i32).prop_map(|(stream, context, kind, priority)| {
            Command::StreamCreate { stream, context, kind, priority }
        }),
        stream().prop_map(|stream| Command::StreamDestroy { stream }),
        (event(), context(), 0..4u32).prop_map(|(event, context, flags)| Command::EventCreate {
            event,
            context,
            flags
        }),
        event().prop_map(|event| Command::EventDestroy { event }),
        (0..3u32, context(), 0..3u8, any::<bool>(), 0..2u64).prop_map(
            |(module, context, image, is_known, value)| Command::ModuleLoad {
                module: ModuleId(module),
                context,
                hash: [image; 32],
                image: match is_known {
                    true => ImageSource::Known {},
                    false => ImageSource::Inline { bytes: Bytes(IMAGES[image as usize]) },
                },
                options: vec![JitOption { option: 7, value }],
            }
        ),
        (0..3u32).prop_map(|module| Command::ModuleUnload { module: ModuleId(module) }),
        (kernel(), 0..2u32, any::<i32>())
            .prop_map(|(kernel, attribute, value)| Command::KernelSetAttribute { kernel, attribute, value }),
    ]
}

fn memory() -> impl Strategy<Value = Command<'static>> {
    let handle = || (0..3u32).prop_map(MemoryHandleId);
    prop_oneof![
        (context(), range()).prop_map(|(context, (address, bytes))| Command::MemoryAllocate {
            context,
            address,
            bytes
        }),
        range().prop_map(|(address, _)| Command::MemoryFree { address }),
        (handle(), 0..2u32, 0..4u64).prop_map(|(handle, device, steps)| Command::PhysicalCreate {
            handle,
            device,
            bytes: steps * 16
        }),
        handle().prop_map(|handle| Command::PhysicalRelease { handle }),
        (range(), 0..3u64, handle()).prop_map(|((address, bytes), steps, handle)| Command::PhysicalMap {
            address,
            bytes,
            offset: steps * 16,
            handle
        }),
        range().prop_map(|(address, bytes)| Command::PhysicalUnmap { address, bytes }),
        (range(), 0..2u32, 0..4u32).prop_map(|((address, bytes), device, protection)| {
            Command::PhysicalSetAccess { address, bytes, device, protection }
        }),
    ]
}

fn work() -> impl Strategy<Value = Command<'static>> {
    prop_oneof![
        (stream(), op()).prop_map(|(stream, op)| Command::Enqueue { stream, op }),
        (stream(), op()).prop_map(|(stream, op)| Command::Enqueue { stream, op }),
        (exec(), context(), nodes()).prop_map(|(exec, context, nodes)| Command::GraphInstantiate {
            exec,
            context,
            nodes
        }),
        (exec(), nodes()).prop_map(|(exec, nodes)| Command::GraphUpdate { exec, nodes }),
        (exec(), 0..4u32, op(), any::<bool>()).prop_map(|(exec, index, op, enabled)| Command::GraphSetNode {
            exec,
            index,
            op,
            enabled
        }),
        (exec(), stream(), 0..3u32).prop_map(|(exec, stream, run)| Command::GraphLaunch {
            exec,
            stream,
            run
        }),
        exec().prop_map(|exec| Command::GraphDestroy { exec }),
        stream().prop_map(|stream| Command::StreamSynchronize { stream }),
        stream().prop_map(|stream| Command::StreamQuery { stream }),
        Just(Command::MemoryInfo { device: 0 }),
    ]
}

/// One command. A few contexts and streams are made at the start of every program, so that most commands find theirs.
pub(super) fn sent() -> impl Strategy<Value = Sent> {
    let command = prop_oneof![objects(), memory(), memory(), work(), work()];
    (command, any::<bool>(), 0..8u8).prop_map(|(command, is_call, chance)| {
        // A wait that fails is repeated and fails again: here it does not fail.
        let waits = matches!(command, Command::StreamSynchronize { .. } | Command::StreamQuery { .. });
        Sent { is_refused: is_call && !waits && chance == 0, command, is_call }
    })
}

/// A program of up to `length` commands.
pub(super) fn program(length: usize) -> impl Strategy<Value = Vec<Sent>> {
    let start = [
        Command::StreamCreate { stream: StreamId(0), context: ContextId(0), kind: 2, priority: 0 },
        Command::ContextCreate { context: ContextId(0x100), device: 0, flags: 0 },
        Command::EventCreate { event: EventId(0), context: ContextId(0), flags: 0 },
    ];
    let start: Vec<Sent> =
        start.into_iter().map(|command| Sent { command, is_call: false, is_refused: false }).collect();
    prop::collection::vec(sent(), 0..length).prop_map(move |rest| start.iter().cloned().chain(rest).collect())
}
