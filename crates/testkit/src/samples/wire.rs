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
const CHUNKS: [u32; WAYS] = [1, 0, 2, 0x0102_0304, 4, 5, u32::MAX, 7];
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
    // New ones at the end: the frames of the others keep their numbers.
    commands.push(("device-status".to_owned(), C::DeviceStatus { device: 1 }));
    let (kernel, block, grid) = (KERNEL, [128, 1, 1], [64, 2, 1]);
    let attributes = vec![LaunchAttribute { id: 4, value: [1; 64] }];
    let question = C::ActiveClusters { kernel, grid, block, shared_bytes: 1 << 16, attributes };
    commands.push(("active-clusters".to_owned(), question));
    let question = C::LargestCluster { kernel, grid, block, shared_bytes: 0, attributes: Vec::new() };
    commands.push(("largest-cluster".to_owned(), question));
    let image = ImageName { bytes: [0x5a; 16] };
    commands.push(("guard".to_owned(), C::Guard { image, secret: [7; 32], incarnation: 2 }));
    let dead = vec![VaRange { base: 0x6000_0000_0000, bytes: 1 << 21 }];
    commands.push(("cut".to_owned(), C::Cut { number: 3, dead, patience_us: 100_000 }));
    let from = "tls:box-2:7402".to_owned();
    commands.push(("image-restore".to_owned(), C::ImageRestore { number: 3, from }));
    commands.push(("leave".to_owned(), C::Leave {}));
    let copy = C::ImageCopy { image, secret: [7; 32], number: 3, from: "tls:box-2:7402".to_owned() };
    commands.push(("image-copy".to_owned(), copy));
    let (region, shape) = (RegionId(0x808), SHAPE);
    commands.push(("host-share".to_owned(), C::HostShare { region, bytes: 3 << 20 }));
    commands.push(("host-unshare".to_owned(), C::HostUnshare { region }));
    let shared = SharedPlane { region, offset: 4096, row_pitch: 300, slice_pitch: 5000 };
    let op = Op::CopyInShared { target: TARGET, source: shared, shape };
    commands.push(("enqueue-copy-in-shared".to_owned(), C::Enqueue { stream: STREAM, op }));
    let op = Op::CopyOutShared { source: SOURCE, target: shared, shape };
    commands.push(("enqueue-copy-out-shared".to_owned(), C::Enqueue { stream: STREAM, op }));
    let from = "tls:box-2:7402".to_owned();
    commands.push(("image-fetch".to_owned(), C::ImageFetch { image, secret: [7; 32], incarnation: 2, from }));
    commands.extend(arrays());
    commands.extend(shares());
    commands.extend(green());
    let op = Op::Conditional { handle: 0x0d0d_0e0e_0f0f_1010, kind: 2, first: Some(3), bodies: vec![0, 1] };
    let inner = GraphNode { op: Op::Empty {}, after: vec![], enabled: true };
    let nodes = vec![inner, GraphNode { op, after: vec![], enabled: true }];
    let map = Im2colWide {
        element: 1,
        address: ADDRESS,
        sizes: vec![2, 3, 4],
        strides: vec![5, 6],
        element_strides: vec![7, 8, 9],
        corners: [-10, 11],
        channels: 12,
        pixels: 13,
        interleave: 14,
        mode: 15,
        swizzle: 16,
        promotion: 17,
        fill: 18,
    };
    commands.push(("tensor-map-wide".to_owned(), C::TensorMapWide { context: CONTEXT, map }));
    commands.push((
        "graph-instantiate-conditional".to_owned(),
        C::GraphInstantiate { exec: EXEC, context: CONTEXT, nodes },
    ));
    let range = VaRange { base: 0x7f12_3440_0000, bytes: 4 << 20 };
    commands.push(("addresses-reserve".to_owned(), C::AddressesReserve { range }));
    commands
}

/// Green contexts.
fn green() -> [(String, Command<'static>); 5] {
    use Command as C;
    let named = |name: &str, command| (name.to_owned(), command);
    let (green, other, context) = (GreenId(0xb0b), Some(GreenId(0xb0c)), CONTEXT);
    let split = SmSplit { groups: 2, flags: 1, least: 16 };
    let part = SmPart { of: other, split: Some(split), group: Some(1) };
    let whole = SmPart { of: None, split: None, group: None };
    [
        named("sm-resource", C::SmResource { device: 1, green: None }),
        named("sm-split", C::SmSplit { device: 1, green: other, split }),
        named("green-create", C::GreenCreate { green, context, parts: vec![part, whole], flags: 1 }),
        named("green-destroy", C::GreenDestroy { green }),
        named(
            "green-stream-create",
            C::GreenStreamCreate { stream: STREAM, context, green, kind: 1, priority: -1 },
        ),
    ]
}

/// Arrays, textures, surfaces.
fn arrays() -> [(String, Command<'static>); 8] {
    use Command as C;
    let (array, sampler, context) = (ArrayId(0x909), SamplerId(0xa0a), CONTEXT);
    let info =
        ArrayInfo { format: 0x20, channels: 4, width: 640, height: 480, depth: 6, flags: 0x5, levels: 3 };
    let resource = Resource {
        kind: 3,
        address: ADDRESS,
        format: 0x10,
        channels: 2,
        width: 320,
        height: 200,
        pitch: 2048,
    };
    let sampling = Sampling {
        address_modes: [0, 1, 3],
        filter_mode: 1,
        flags: 2,
        max_anisotropy: 4,
        mipmap_filter_mode: 1,
        mipmap_level_bias: 0.5,
        min_mipmap_level_clamp: 0.25,
        max_mipmap_level_clamp: 2.75,
        border_color: [0.1, 0.2, 0.3, 1.0],
    };
    let view = ResourceView {
        format: 0x1c,
        width: 640,
        height: 481,
        depth: 7,
        first_level: 1,
        last_level: 2,
        first_layer: 3,
        last_layer: 5,
    };
    let named = |name: &str, command| (name.to_owned(), command);
    [
        named("array-create", C::ArrayCreate { array, context, info }),
        named("array-destroy", C::ArrayDestroy { array }),
        named("texture-create", C::TextureCreate { sampler, context, resource, sampling, view: Some(view) }),
        named("texture-create-plain", C::TextureCreate { sampler, context, resource, sampling, view: None }),
        named("surface-create", C::SurfaceCreate { sampler, context, resource }),
        named("sampler-destroy", C::SamplerDestroy { sampler }),
        named(
            "reference-find",
            C::ReferenceFind { module: MODULE, name: "picture".into(), is_surface: true },
        ),
        named(
            "reference-bind",
            C::ReferenceBind {
                module: MODULE,
                name: "picture".into(),
                is_surface: false,
                resource,
                sampling,
            },
        ),
    ]
}

/// What sessions hand to each other.
fn shares() -> [(String, Command<'static>); 5] {
    use Command as C;
    let (handle, event) = (MemoryHandleId(0xb0b), EventId(0xc0c));
    let name = ShareName { worker: 0x0102_0304_0506_0708, session: [0x11; 16], key: [0x22; 16] };
    let named = |name: &str, command| (name.to_owned(), command);
    [
        named("memory-share", C::MemoryShare { address: ADDRESS, bytes: 3 << 20 }),
        named("physical-share", C::PhysicalShare { handle }),
        named("event-share", C::EventShare { event }),
        named("physical-import", C::PhysicalImport { handle, name, piece: 2 }),
        named("event-import", C::EventImport { event, context: CONTEXT, name }),
    ]
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
        (
            "cut-taken",
            Notice::CutTaken { number: 3, live_bytes: 1 << 33, dirty_bytes: 1 << 30, pause_us: 9700 },
        ),
        ("cut-safe", Notice::CutSafe { number: 3, level: 1, image_bytes: 1 << 33 }),
        ("cut-abandoned", Notice::CutAbandoned { number: 4, text: Bytes(b"streams did not meet in time") }),
        ("device-lost", Notice::DeviceLost { code: 214, text: Bytes(b"uncorrectable ECC error") }),
        ("rested", Notice::Rested {}),
        ("guardian-lost", Notice::GuardianLost { text: Bytes(b"the other side closed the connection") }),
        ("timed", timed()),
        ("timeline-ask", Notice::TimelineAsk { nonce: 0x0bad_cafe, flush: true }),
        ("timeline-told", Notice::TimelineTold { nonce: 0x0bad_cafe, worker_ns: 1 << 40 }),
        ("content-kept", Notice::ContentKept { key: [0x5a; 32], blocks: 2048 }),
        (
            "content-named",
            Notice::ContentNamed { transfer: TransferId(9), first: 64, names: vec![[1; 32], [2; 32]] },
        ),
        (
            "content-lacks",
            Notice::ContentLacks { transfer: TransferId(9), first: 64, count: 2, lacking: vec![65] },
        ),
        ("waits", Notice::Waits { text: Bytes(b"this offline program waits for 4 s") }),
    ]
}

/// What a worker says of work that has run.
fn timed() -> Notice<'static> {
    let (stream, span) = (STREAM, Span { start_ns: 1_000_000, end_ns: 1_002_500 });
    Notice::Timed {
        streams: vec![TimedStream { stream, device: 1, kind: 2 }],
        kernels: vec![TimedKernel {
            stream,
            kernel: KERNEL,
            grid: [1024, 2, 1],
            block: [256, 1, 1],
            shared_bytes: 48 << 10,
            span,
        }],
        works: vec![TimedWork { stream, kind: cuda_wire::timed::COPY_IN, bytes: 1 << 20, span }],
        answers: vec![TimedAnswer { call: 77, span }],
        missed: 5,
    }
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
        wish: AppendedWish::default(),
    };
    vec![
        ("hello", Handshake::Hello(hello)),
        ("welcome", Handshake::Welcome(Box::new(welcome))),
        ("refusal", Handshake::Refusal(Refusal { code: 100, text: "no lease: ask for one".into() })),
        ("join", Handshake::Join(Join { session_secret: HASH })),
        ("status-welcome", Handshake::StatusWelcome(StatusWelcome { protocol: 1, devices: 3 })),
        ("knock", Handshake::Knock(Knock { protocol: 2, token: "secret".into(), purpose: purpose::SESSION })),
        (
            "ticket",
            Handshake::Ticket(Ticket {
                session: std::array::from_fn(|at| at as u8),
                executes_ptx_only: true,
            }),
        ),
    ]
}

/// A preamble for every kind of connection and every scheme.
pub fn preambles() -> Vec<(String, Preamble)> {
    let kinds = [
        ("command", ConnectionKind::Command),
        ("events", ConnectionKind::Events),
        ("lane", ConnectionKind::Lane),
        ("status", ConnectionKind::Status),
        ("door", ConnectionKind::Door),
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
        managed: AppendedPlaces::default(),
    }
}

/// What a device says of its state, every field with a value.
pub fn device_status() -> DeviceStatus {
    let text = |text: &str| Some(text.to_owned());
    DeviceStatus {
        driver_version: "580.159.04".into(),
        nvml_version: "13.580.159.04".into(),
        cuda_version: 13000,
        name: "NVIDIA H200".into(),
        brand: 14,
        architecture: Some(9),
        compute_capability: (9, 0),
        core_count: Some(16896),
        uuid: "GPU-01020304-0506-0708-090a-0b0c0d0e0f10".into(),
        serial: text("1650000000000"),
        board_part_number: text("965-2G520-0041-0R0"),
        vbios_version: text("96.00.A5.00.1A"),
        inforom_image_version: text("G520.0282.02.02"),
        inforom_versions: vec![(0, "2.1".into()), (1, "7.16".into())],
        gsp_firmware_version: text("580.159.04"),
        gsp_firmware_mode: Some((1, 1)),
        minor_number: Some(3),
        board_id: Some(0x600),
        is_multi_gpu_board: Some(false),
        module_id: Some(2),
        pdi: Some(0x11ef_4534_cd5e_49ba),
        pci_domain: 0x10,
        pci_bus: 0x1b,
        pci_device: 6,
        pci_device_id: 0x2335_10de,
        pci_subsystem_id: 0x18bf_10de,
        pci_class: Some((3, 2)),
        bus_type: Some(2),
        pcie_generation: Some(4),
        pcie_generation_max: Some(5),
        pcie_generation_device_max: Some(6),
        pcie_width: Some(8),
        pcie_width_max: Some(16),
        pcie_speed_mbps: Some(32000),
        pcie_speed_max: Some(5),
        pcie_replays: Some(7),
        memory_total_bytes: 143_771 << 20,
        memory_reserved_bytes: 616 << 20,
        memory_free_bytes: 143_000 << 20,
        memory_used_bytes: 155 << 20,
        bar1_bytes: Some([1 << 38, (1 << 38) - 1, 1]),
        memory_bus_bits: Some(6144),
        utilization_gpu_percent: Some(80),
        utilization_memory_percent: Some(9),
        utilization_encoder: Some((11, 167_000)),
        utilization_decoder: Some((12, 167_001)),
        utilization_jpeg: Some((13, 167_002)),
        utilization_ofa: Some((14, 167_003)),
        encoder_stats: Some([1, 2, 3]),
        frame_capture_stats: Some([4, 5, 6]),
        temperature_c: Some(31),
        temperature_margin_c: Some(-8),
        temperature_thresholds_c: vec![(0, 95), (3, 87)],
        fan_count: Some(2),
        fan_speeds_percent: vec![30, 33],
        power_mw: Some(124_170),
        power_limit_mw: Some(650_000),
        power_limit_default_mw: Some(700_000),
        power_limit_enforced_mw: Some(640_000),
        power_limit_range_mw: Some((200_000, 710_000)),
        energy_mj: Some(1 << 40),
        power_source: Some(0),
        clocks_mhz: [Some(1980), Some(1981), Some(3201), Some(1545)],
        clocks_max_mhz: [Some(1982), Some(1983), Some(3202), None],
        clocks_applications_mhz: [Some(1984), None, Some(3203), None],
        clocks_applications_default_mhz: [Some(1985), None, Some(3204), None],
        clocks_customer_max_mhz: [Some(1986), None, None, None],
        auto_boost: Some((1, 0)),
        clock_event_reasons: Some(1 << 33),
        clock_event_reasons_supported: Some(0x1ff),
        performance_state: Some(2),
        persistence_mode: Some(1),
        compute_mode: Some(3),
        display_mode: Some(0),
        display_active: Some(1),
        accounting_mode: Some(1),
        accounting_buffer_size: Some(4000),
        virtualization_mode: Some(1),
        operation_mode: Some((0, 1)),
        mig_mode: Some((0, 1)),
        c2c_mode: Some(0),
        ecc_mode: Some((1, 0)),
        ecc_mode_default: Some(1),
        memory_errors: vec![
            MemoryErrors { error_type: 0, counter_type: 1, location: Some(2), count: 1 << 33 },
            MemoryErrors { error_type: 1, counter_type: 0, location: None, count: 5 },
        ],
        remapped_rows: Some([1, 2, 0, 1]),
        row_remapper_histogram: Some([3072, 4, 3, 2, 1]),
        fields: vec![FieldValue { field: 185, scope: 2, value_type: 5, bits: u64::MAX - 8 }],
    }
}

fn shared() -> Shared {
    let name = ShareName { worker: 9, session: [0x33; 16], key: [0x44; 16] };
    Shared { name, pieces: 3, offset: 512 }
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
        ("device-status", frame(device_status().to_bytes(), 0)),
        ("shared", frame(shared().to_bytes(), 0)),
        ("imported", frame(Imported { offset: 4 << 20, bytes: 6 << 20, device: 1 }.to_bytes(), 0)),
    ]
}
