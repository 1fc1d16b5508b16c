//! A value of every command, every kind of work, every frame. Each field has a value that no other field has.

use cuda_wire::*;
use transport::{ConnectionKind, Preamble, Scheme};

const CONTEXT: ContextId = ContextId(0x101);
const STREAM: StreamId = StreamId(0x202);
const EVENT: EventId = EventId(0x303);
const EXEC: ExecId = ExecId(0x404);
const MODULE: ModuleId = ModuleId(0x505);
const HANDLE: MemoryHandleId = MemoryHandleId(0x606);
const TRANSFER: TransferId = TransferId(0x0707_0000_0000);
const ADDRESS: u64 = 0x7f12_3456_7000;
const KERNEL: KernelRef = KernelRef { module: MODULE, index: 7 };
const SOURCE: Plane = Plane { address: ADDRESS, row_pitch: 512, slice_pitch: 8192 };
const TARGET: Plane = Plane { address: ADDRESS + (1 << 20), row_pitch: 256, slice_pitch: 4096 };
const SHAPE: Shape = Shape { width: 200, height: 16, depth: 2 };
const CHUNKS: [u32; LANES_MAX] = [1, 0, 2, 0x0102_0304, 4, 5, u32::MAX, 7];
const HASH: [u8; 32] = *b"0123456789abcdefghijklmnopqrstuv";

fn options() -> Vec<JitOption> {
    vec![JitOption { option: 7, value: 4 }, JitOption { option: 0, value: 1 << 40 }]
}

fn nodes() -> Vec<GraphNode<'static>> {
    let after = |index: usize| (0..index as u32).collect();
    let node = |(index, (_, op))| GraphNode { op, after: after(index), enabled: index % 2 == 0 };
    ops().into_iter().enumerate().map(node).collect()
}

/// Every kind of stream-ordered work.
pub fn ops() -> Vec<(&'static str, Op<'static>)> {
    let attribute = LaunchAttribute { id: 9, value: std::array::from_fn(|at| at as u8) };
    let word = MemoryOp { kind: 2, flags: 1, address: ADDRESS + 8, value: 0xdead_beef };
    vec![
        ("empty", Op::Empty {}),
        (
            "launch",
            Op::Launch {
                kernel: KERNEL,
                grid: [2, 3, 4],
                block: [128, 2, 1],
                shared_bytes: 48 << 10,
                cooperative: true,
                attributes: vec![attribute],
                parameters: Bytes(b"\x00\x70\x56\x34\x12\x7f\x00\x00\x00\x01\x00\x00"),
            },
        ),
        ("fill", Op::Fill { target: TARGET, shape: SHAPE, element_bytes: 4, value: 0x0102_0304 }),
        ("copy-device", Op::CopyDevice { target: TARGET, source: SOURCE, shape: SHAPE }),
        (
            "copy-in-inline",
            Op::CopyIn {
                target: Plane::line(ADDRESS),
                shape: Shape::line(5),
                data: HostData::Inline { bytes: Bytes(b"hello") },
            },
        ),
        (
            "copy-in-pushed",
            Op::CopyIn { target: TARGET, shape: SHAPE, data: HostData::Pushed { transfer: TRANSFER } },
        ),
        (
            "copy-in-pulled",
            Op::CopyIn { target: TARGET, shape: SHAPE, data: HostData::Pulled { transfer: TRANSFER } },
        ),
        ("copy-out", Op::CopyOut { source: SOURCE, shape: SHAPE, transfer: TRANSFER }),
        ("host-call", Op::HostCall { token: 0x1122_3344_5566_7788 }),
        ("record", Op::Record { event: EVENT, flags: 1 }),
        ("wait", Op::Wait { event: EVENT, flags: 2 }),
        ("allocate", Op::Allocate { address: ADDRESS, bytes: 1 << 21 }),
        ("free", Op::Free { address: ADDRESS }),
        ("memory-ops", Op::MemoryOps { ops: vec![word, MemoryOp { kind: 1, ..word }] }),
    ]
}

/// Every command, with its file name. Commands that carry variants come once for each.
pub fn commands() -> Vec<(String, Command<'static>)> {
    use Command as C;
    let input = |kind, bytes| LinkInput { kind, name: format!("input-{kind}"), bytes: Bytes(bytes) };
    let load =
        |image| C::ModuleLoad { module: MODULE, context: CONTEXT, hash: HASH, image, options: options() };
    let plain = vec![
        ("context-create", C::ContextCreate { context: CONTEXT, device: 1, flags: 4 }),
        ("context-destroy", C::ContextDestroy { context: CONTEXT }),
        ("context-reset", C::ContextReset { context: CONTEXT }),
        ("context-synchronize", C::ContextSynchronize { context: CONTEXT }),
        ("context-set-limit", C::ContextSetLimit { context: CONTEXT, limit: 2, value: 8 << 20 }),
        ("context-enable-peer", C::ContextEnablePeer { context: CONTEXT, peer: ContextId(1), enable: true }),
        ("memory-allocate", C::MemoryAllocate { context: CONTEXT, address: ADDRESS, bytes: 3 << 20 }),
        ("memory-free", C::MemoryFree { address: ADDRESS }),
        ("memory-info", C::MemoryInfo { device: 1 }),
        ("physical-create", C::PhysicalCreate { handle: HANDLE, device: 1, bytes: 2 << 20 }),
        ("physical-release", C::PhysicalRelease { handle: HANDLE }),
        (
            "physical-map",
            C::PhysicalMap { address: ADDRESS, bytes: 2 << 20, offset: 4 << 20, handle: HANDLE },
        ),
        ("physical-unmap", C::PhysicalUnmap { address: ADDRESS, bytes: 2 << 20 }),
        (
            "physical-set-access",
            C::PhysicalSetAccess { address: ADDRESS, bytes: 2 << 20, device: 1, protection: 3 },
        ),
        ("module-load-known", load(ImageSource::Known {})),
        ("module-load-inline", load(ImageSource::Inline { bytes: Bytes(b".version 8.0\n\0") })),
        ("module-load-pushed", load(ImageSource::Pushed { transfer: TRANSFER, bytes: 1 << 30 })),
        ("module-unload", C::ModuleUnload { module: MODULE }),
        ("kernel-set-attribute", C::KernelSetAttribute { kernel: KERNEL, attribute: 8, value: -1 }),
        (
            "link",
            C::Link {
                context: CONTEXT,
                inputs: vec![input(1, b".version 8.0"), input(0, b"\x7fELF")],
                options: options(),
            },
        ),
        ("stream-create", C::StreamCreate { stream: STREAM, context: CONTEXT, kind: 1, priority: -5 }),
        ("stream-destroy", C::StreamDestroy { stream: STREAM }),
        ("stream-synchronize", C::StreamSynchronize { stream: STREAM }),
        ("stream-query", C::StreamQuery { stream: STREAM }),
        ("read-back", C::ReadBack { stream: STREAM, source: SOURCE, shape: SHAPE }),
        ("event-create", C::EventCreate { event: EVENT, context: CONTEXT, flags: 2 }),
        ("event-destroy", C::EventDestroy { event: EVENT }),
        ("event-synchronize", C::EventSynchronize { event: EVENT }),
        ("event-query", C::EventQuery { event: EVENT }),
        ("event-elapsed", C::EventElapsed { start: EVENT, end: EventId(0x304) }),
        ("graph-instantiate", C::GraphInstantiate { exec: EXEC, context: CONTEXT, nodes: nodes() }),
        ("graph-update", C::GraphUpdate { exec: EXEC, nodes: nodes() }),
        ("graph-launch", C::GraphLaunch { exec: EXEC, stream: STREAM, run: 9 }),
        ("graph-upload", C::GraphUpload { exec: EXEC, stream: STREAM }),
        ("graph-destroy", C::GraphDestroy { exec: EXEC }),
        ("goodbye", C::Goodbye {}),
    ];
    let mut commands: Vec<(String, Command<'static>)> =
        plain.into_iter().map(|(name, command)| (name.to_owned(), command)).collect();
    for (name, op) in ops() {
        commands.push((format!("enqueue-{name}"), C::Enqueue { stream: STREAM, op: op.clone() }));
        commands.push((
            format!("graph-set-node-{name}"),
            C::GraphSetNode { exec: EXEC, index: 3, op, enabled: false },
        ));
    }
    commands
}

/// Every notice.
pub fn notices() -> Vec<(&'static str, Notice<'static>)> {
    vec![
        ("host-call", Notice::HostCall { token: 0x1122_3344_5566_7788, chunks: CHUNKS }),
        ("pull", Notice::Pull { transfer: TRANSFER, chunks: CHUNKS }),
        ("print", Notice::Print { text: Bytes(b"thread 3 says hello\n") }),
        ("push-consumed", Notice::PushConsumed { bytes: 1 << 22 }),
        ("ping", Notice::Ping { nonce: 0x0bad_cafe }),
        ("pong", Notice::Pong { nonce: 0x0bad_cafe }),
        ("host-call-done", Notice::HostCallDone { token: 0x1122_3344_5566_7788 }),
        ("closing", Notice::Closing { text: Bytes("the lease ended · goodbye".as_bytes()) }),
        ("pull-failed", Notice::PullFailed { transfer: TRANSFER }),
    ]
}

/// Every handshake frame.
pub fn handshakes() -> Vec<(&'static str, Handshake)> {
    let range = |base| VaRange { base, bytes: 1 << 40 };
    let device = DeviceInfo {
        name: "NVIDIA H200".into(),
        uuid: std::array::from_fn(|at| at as u8 + 1),
        memory_bytes: 150 << 30,
        attributes: vec![(1, 1024), (75, 9), (76, 0)],
        stream_priorities: (0, -5),
        granularity: (2 << 20, 2 << 20),
        limits: vec![(0, 1024), (2, 8 << 20)],
    };
    let welcome = Welcome {
        protocol: 1,
        session_secret: HASH,
        cuda_version: 13000,
        devices: vec![device.clone(), DeviceInfo { name: "second".into(), ..device }],
        va: range(0x2000_0000_0000),
        push_window_bytes: 64 << 20,
        memory_credit_bytes: 1 << 30,
    };
    let hello = Hello {
        protocol: 1,
        token: "secret".into(),
        program: "python train.py".into(),
        pid: 4242,
        va_candidates: vec![range(0x2000_0000_0000), range(0x3000_0000_0000)],
        lanes: 4,
    };
    vec![
        ("hello", Handshake::Hello(hello)),
        ("welcome", Handshake::Welcome(Box::new(welcome))),
        ("refusal", Handshake::Refusal(Refusal { code: 100, text: "no lease: ask for one".into() })),
        ("join", Handshake::Join(Join { session_secret: HASH })),
    ]
}

/// A preamble for every kind of connection and every scheme.
pub fn preambles() -> Vec<(String, Preamble)> {
    let kinds = [
        ("command", ConnectionKind::Command),
        ("events", ConnectionKind::Events),
        ("lane", ConnectionKind::Lane),
    ];
    let session = std::array::from_fn(|at| 0xf0 - at as u8);
    let mut preambles = Vec::new();
    for (index, (name, kind)) in kinds.into_iter().enumerate() {
        for scheme in Scheme::ALL {
            preambles.push((
                format!("{name}-{scheme}"),
                Preamble { kind, scheme, lane: index as u16 * 259, session },
            ));
        }
    }
    preambles
}

/// What a module load reports.
pub fn module_info() -> ModuleInfo {
    let kernel = |name: &str| KernelInfo {
        name: name.into(),
        parameters: vec![ParameterInfo { offset: 0, bytes: 8 }, ParameterInfo { offset: 8, bytes: 4 }],
        attributes: vec![(0, 1024), (9, -1)],
    };
    ModuleInfo {
        kernels: vec![kernel("_Z5scalePff"), kernel("add")],
        variables: vec![VariableInfo { name: "counter".into(), address: ADDRESS, bytes: 4 }],
        info_log: "ptxas info".into(),
    }
}

/// Replies with a body of every kind.
pub fn replies() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |body: Vec<u8>, status: u32| {
        let header = ReplyHeader {
            bytes: body.len() as u32,
            call: 77,
            status,
            deferred: 700,
            deferred_context: 0x101,
            notices: 3,
            chunks: std::array::from_fn(|lane| lane as u32 * 10),
            memory_credit_bytes: 1 << 30,
        };
        [header.to_bytes(), body].concat()
    };
    vec![
        ("success", frame(Vec::new(), 0)),
        ("failure", frame(Vec::new(), 400)),
        ("memory-info", frame((1u64 << 34, 1u64 << 35).to_bytes(), 0)),
        ("elapsed", frame(1.5f32.to_bytes(), 0)),
        ("read-back", frame(Blob(b"twelve bytes".to_vec()).to_bytes(), 0)),
        ("module-info", frame(module_info().to_bytes(), 0)),
    ]
}
