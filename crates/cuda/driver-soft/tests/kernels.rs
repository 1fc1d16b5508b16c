//! Modules and launches. The PTX in samples/ was made by nvcc from the sources beside it.

mod common;

use common::*;
use cuda_abi::CudaError;
use cuda_driver::{Driver, WaitTarget};
use cuda_wire::*;
use driver_soft::SoftConfig;
use std::time::{Duration, Instant};

const KERNELS: &[u8] = include_bytes!("samples/kernels.ptx");

/// A session with the sample module loaded.
struct Loaded {
    session: Session,
    info: ModuleInfo,
}

impl Loaded {
    fn new() -> Self {
        Self::with(Session::new())
    }

    fn with(session: Session) -> Self {
        let info = session.load(1, KERNELS).unwrap();
        Self { session, info }
    }

    fn index(&self, name: &str) -> u32 {
        self.info.kernels.iter().position(|kernel| kernel.name == name).unwrap() as u32
    }

    /// Launches with values laid out as the kernel's parameters say.
    fn launch(
        &self,
        stream: StreamId,
        name: &str,
        grid: u32,
        block: u32,
        values: &[u64],
    ) -> Result<(), CudaError> {
        let bytes = self.pack(name, values);
        self.session.driver.enqueue(stream, launch(1, self.index(name), grid, block, &bytes))
    }

    fn pack(&self, name: &str, values: &[u64]) -> Vec<u8> {
        let kernel = &self.info.kernels[self.index(name) as usize];
        let mut bytes = Vec::new();
        for (parameter, value) in kernel.parameters.iter().zip(values) {
            bytes.resize(parameter.offset as usize, 0);
            bytes.extend_from_slice(&value.to_le_bytes()[..parameter.bytes as usize]);
        }
        bytes
    }

    fn variable(&self, name: &str) -> &VariableInfo {
        self.info.variables.iter().find(|variable| variable.name == name).unwrap()
    }
}

#[test]
fn a_kernel_computes() {
    let loaded = Loaded::new();
    let session = &loaded.session;
    let numbers = |from: u32| (0..5000).map(|i| i + from).flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
    let (a, b) = (session.alloc_with(&numbers(0)), session.alloc_with(&numbers(7)));
    let out = session.alloc(20_000);
    loaded.launch(LEGACY, "add", 40, 128, &[a, b, out, 5000]).unwrap();
    let expected: Vec<u32> = (0..5000).map(|i| i + (i + 7) * 3).collect();
    assert_eq!(session.words(LEGACY, out, 5000), expected);
}

#[test]
fn a_module_tells_what_is_in_it() {
    let loaded = Loaded::new();
    let add = &loaded.info.kernels[loaded.index("add") as usize];
    let sizes: Vec<(u32, u32)> = add.parameters.iter().map(|p| (p.offset, p.bytes)).collect();
    assert_eq!(sizes, [(0, 8), (8, 8), (16, 8), (24, 8)]);
    assert_eq!(add.attributes.iter().map(|row| row.0).collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
    let attribute = |number: u32| add.attributes.iter().find(|row| row.0 == number).unwrap().1;
    assert_eq!((attribute(0), attribute(5), attribute(6), attribute(8)), (1024, 80, 120, 48 << 10));
    let variable = loaded.variable("counter");
    assert_eq!(variable.bytes, 4);
    assert_eq!(loaded.session.read_u32(LEGACY, variable.address), 5);
}

#[test]
fn variables_belong_to_their_module() {
    let loaded = Loaded::new();
    let session = &loaded.session;
    let second = session.load(2, KERNELS).unwrap();
    let mine = loaded.variable("counter").address;
    let theirs = second.variables.iter().find(|variable| variable.name == "counter").unwrap().address;
    loaded.launch(LEGACY, "count", 2, 64, &[]).unwrap();
    assert_eq!(session.read_u32(LEGACY, mine), 5 + 128);
    assert_eq!(session.read_u32(LEGACY, theirs), 5);
    // cuMemcpyToSymbol.
    session.write(LEGACY, theirs, &[9, 0, 0, 0]).unwrap();
    assert_eq!(session.read_u32(LEGACY, theirs), 9);
    assert_eq!(session.driver.memory_free(theirs), Err(CudaError::INVALID_VALUE));
    session.driver.module_unload(ModuleId(2)).unwrap();
    assert!(session.read(LEGACY, theirs, 4).is_err());
    // Again and again at the same place, with the first values each time.
    let again = session.load(2, KERNELS).unwrap();
    assert_eq!(
        session.read_u32(LEGACY, again.variables.iter().find(|v| v.name == "counter").unwrap().address),
        5
    );
}

#[test]
fn kernels_of_two_streams_overlap() {
    let loaded = Loaded::new();
    let session = &loaded.session;
    let memory = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    // More spinning kernels than this machine may have cores; the last one frees them all.
    let streams: Vec<StreamId> = (0..4).map(|_| session.stream(1)).collect();
    for (index, &stream) in streams.iter().enumerate() {
        let at = memory + 4 * index as u64;
        loaded.launch(stream, "wait_for", 1, 1, &[at, 1, at + 4]).unwrap();
    }
    assert_eq!(session.driver.stream_query(streams[3]), Err(CudaError::NOT_READY));
    let free = session.stream(1);
    loaded.launch(free, "poke", 1, 1, &[memory, 1]).unwrap();
    session.driver.stream_synchronize(streams[3]).unwrap();
    assert_eq!(session.words(free, memory, 5), [1; 5]);
}

#[test]
fn an_illegal_address_kills_the_context_until_it_is_reset() {
    let loaded = Loaded::new();
    let session = &loaded.session;
    let memory = session.alloc(64);
    let other = session.stream(1);
    loaded.launch(other, "forever", 1, 32, &[memory]).unwrap();
    let read = session.driver.read_back_begin(other, Plane::line(memory), Shape::line(4)).unwrap();
    loaded.launch(LEGACY, "poke", 1, 1, &[memory + 512, 1]).unwrap();
    let illegal = Err(CudaError::ILLEGAL_ADDRESS);
    assert_eq!(session.driver.stream_synchronize(LEGACY), illegal);
    assert_eq!(read.wait(&mut Vec::new()), illegal, "what was read behind them never was");
    assert_eq!(session.driver.stream_synchronize(other), illegal, "its other kernels end too");
    assert_eq!(session.write(LEGACY, memory, &[1]), illegal);
    assert_eq!(session.driver.context_synchronize(CONTEXT), illegal);
    assert_eq!(session.driver.event_create(EventId(1), CONTEXT, 0), illegal);
    assert_eq!(session.driver.take_deferred(), Some((CONTEXT, CudaError::ILLEGAL_ADDRESS)));
    assert_eq!(session.driver.take_deferred(), None);
    let message = session.driver.take_message().unwrap();
    assert!(message.contains("poke") && message.contains(&format!("{:#x}", memory + 512)), "{message}");

    // A second context of the session never noticed.
    session.driver.context_create(ContextId(0x100), 0, 0).unwrap();
    session.driver.stream_create(StreamId(7), ContextId(0x100), 1, 0).unwrap();
    session.driver.stream_synchronize(StreamId(7)).unwrap();

    session.driver.context_reset(CONTEXT).unwrap();
    session.driver.stream_create(LEGACY, CONTEXT, 2, 0).unwrap();
    let revived = session.load(1, KERNELS).unwrap();
    assert_eq!(revived.kernels.len(), loaded.info.kernels.len());
    let memory = session.alloc(64);
    loaded.launch(LEGACY, "poke", 1, 1, &[memory, 1]).unwrap();
    assert_eq!(session.read_u32(LEGACY, memory), 1);
}

#[test]
fn an_allocation_reaches_to_the_next_step_as_on_a_device() {
    let loaded = Loaded::new();
    let session = &loaded.session;
    let memory = session.alloc(40);
    loaded.launch(LEGACY, "poke", 1, 1, &[memory + 60, 1]).unwrap();
    session.driver.stream_synchronize(LEGACY).unwrap();
    loaded.launch(LEGACY, "poke", 1, 1, &[memory + 512, 1]).unwrap();
    assert_eq!(session.driver.stream_synchronize(LEGACY), Err(CudaError::ILLEGAL_ADDRESS));
}

#[test]
fn freed_memory_is_illegal_for_kernels_too() {
    let loaded = Loaded::new();
    let session = &loaded.session;
    let (memory, neighbour) = (session.alloc(512), session.alloc(512));
    session.driver.memory_free(memory).unwrap();
    loaded.launch(LEGACY, "poke", 1, 1, &[neighbour, 1]).unwrap();
    session.driver.stream_synchronize(LEGACY).unwrap();
    loaded.launch(LEGACY, "poke", 1, 1, &[memory, 1]).unwrap();
    assert_eq!(session.driver.stream_synchronize(LEGACY), Err(CudaError::ILLEGAL_ADDRESS));
}

#[test]
fn access_to_mapped_memory_is_what_was_granted() {
    let run = |protection: u32, kernel: &str| {
        let loaded = Loaded::new();
        let session = &loaded.session;
        let address = session.base + (1 << 30);
        session.driver.physical_create(MemoryHandleId(1), 0, 2 << 20).unwrap();
        session.driver.physical_map(address, 2 << 20, 0, MemoryHandleId(1)).unwrap();
        session.driver.physical_set_access(address, 2 << 20, 0, protection).unwrap();
        let out = session.alloc(64);
        loaded.launch(LEGACY, kernel, 1, 1, &[address, out]).unwrap();
        session.driver.stream_synchronize(LEGACY)
    };
    assert_eq!(run(0, "peek"), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(run(1, "peek"), Ok(()));
    assert_eq!(run(1, "poke"), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(run(3, "poke"), Ok(()));
}

#[test]
fn another_devices_memory_needs_peer_access() {
    let config = SoftConfig { devices: 2, ..SoftConfig::default() };
    let loaded = Loaded::with(Session::with(config));
    let session = &loaded.session;
    let far = session.place(64);
    session.driver.memory_allocate(ContextId(1), far, 64).unwrap();
    session.driver.context_enable_peer(CONTEXT, ContextId(1), true).unwrap();
    let again = session.driver.context_enable_peer(CONTEXT, ContextId(1), true);
    assert_eq!(again, Err(CudaError::PEER_ACCESS_ALREADY_ENABLED));
    loaded.launch(LEGACY, "poke", 1, 1, &[far, 5]).unwrap();
    assert_eq!(session.read_u32(LEGACY, far), 5);
    session.driver.context_enable_peer(CONTEXT, ContextId(1), false).unwrap();
    session.write(LEGACY, far, &[6]).unwrap();
    session.driver.stream_synchronize(LEGACY).unwrap();
    loaded.launch(LEGACY, "poke", 1, 1, &[far, 5]).unwrap();
    assert_eq!(session.driver.stream_synchronize(LEGACY), Err(CudaError::ILLEGAL_ADDRESS));
}

#[test]
fn printed_text_arrives_before_the_stream_is_done() {
    let loaded = Loaded::new();
    loaded.launch(LEGACY, "say", 1, 3, &[42]).unwrap();
    loaded.session.driver.stream_synchronize(LEGACY).unwrap();
    let printed = loaded.session.link.printed();
    let mut lines: Vec<&str> = printed.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, (0..3).map(|t| format!("thread {t} says 42 and text")).collect::<Vec<_>>());
}

#[test]
fn a_failed_assertion_says_where_and_kills_the_context() {
    let loaded = Loaded::new();
    loaded.launch(LEGACY, "check", 1, 4, &[4]).unwrap();
    assert_eq!(loaded.session.driver.stream_synchronize(LEGACY), Ok(()));
    loaded.launch(LEGACY, "check", 1, 5, &[4]).unwrap();
    assert_eq!(loaded.session.driver.stream_synchronize(LEGACY), Err(CudaError::ASSERT));
    let printed = loaded.session.link.printed();
    assert!(printed.starts_with("kernels.cu:"), "{printed}");
    assert!(
        printed.contains(": block: [0,0,0], thread: [4,0,0] Assertion `threadIdx.x < limit` failed.\n"),
        "{printed}"
    );
}

#[test]
fn device_malloc_gives_memory_until_the_heap_is_full() {
    let loaded = Loaded::new();
    let session = &loaded.session;
    let out = session.alloc(400);
    loaded.launch(LEGACY, "heap", 1, 100, &[out, 100]).unwrap();
    assert_eq!(session.words(LEGACY, out, 100), (0..100).map(|t| t * 2).collect::<Vec<_>>());
    loaded.launch(LEGACY, "heap", 1, 1, &[out, 9 << 20]).unwrap();
    assert_eq!(session.words(LEGACY, out, 1), [u32::MAX]);
}

#[test]
fn all_blocks_of_a_cooperative_launch_meet() {
    let loaded = Loaded::new();
    let session = &loaded.session;
    let (values, sums) = (session.alloc(64), session.alloc(64));
    let bytes = loaded.pack("meet", &[values, sums]);
    let meet = |blocks: u32| Op::Launch {
        kernel: KernelRef { module: ModuleId(1), index: loaded.index("meet") },
        grid: [blocks, 1, 1],
        block: [64, 1, 1],
        shared_bytes: 0,
        cooperative: true,
        attributes: Vec::new(),
        parameters: Bytes(&bytes),
    };
    for _ in 0..20 {
        session.driver.enqueue(LEGACY, meet(16)).unwrap();
        assert_eq!(session.words(LEGACY, sums, 16), [136; 16]);
    }
    assert_eq!(session.driver.enqueue(LEGACY, meet(1 << 20)), Err(CudaError::COOPERATIVE_LAUNCH_TOO_LARGE));
}

#[test]
fn impossible_launches_are_refused_at_once() {
    let loaded = Loaded::new();
    let session = &loaded.session;
    let memory = session.alloc(4096);
    for (grid, block) in [(0, 1), (1, 0), (1, 1025)] {
        assert_eq!(loaded.launch(LEGACY, "poke", grid, block, &[memory, 1]), Err(CudaError::INVALID_VALUE));
    }
    let kernel = |index| KernelRef { module: ModuleId(1), index };
    let dynamic = kernel(loaded.index("dynamic"));
    let bytes = loaded.pack("dynamic", &[memory]);
    let launch = |shared_bytes: u32, attributes: Vec<LaunchAttribute>| Op::Launch {
        kernel: dynamic,
        grid: [1, 1, 1],
        block: [128, 1, 1],
        shared_bytes,
        cooperative: false,
        attributes,
        parameters: Bytes(&bytes),
    };
    let driver = &session.driver;
    assert_eq!(driver.enqueue(LEGACY, launch((48 << 10) + 1, vec![])), Err(CudaError::INVALID_VALUE));
    driver.kernel_set_attribute(dynamic, 8, 100 << 10).unwrap();
    assert_eq!(driver.kernel_set_attribute(dynamic, 8, 228 << 10), Err(CudaError::INVALID_VALUE));
    driver.enqueue(LEGACY, launch(100 << 10, vec![])).unwrap();
    assert_eq!(session.words(LEGACY, memory, 128), (0..128).rev().collect::<Vec<_>>());
    let cluster = |size: u8| {
        let mut value = [0; 64];
        value[0] = size;
        value[4] = 1;
        value[8] = 1;
        vec![LaunchAttribute { id: 4, value }]
    };
    driver.enqueue(LEGACY, launch(512, cluster(1))).unwrap();
    assert_eq!(driver.enqueue(LEGACY, launch(512, cluster(2))), Err(CudaError::NOT_SUPPORTED));
    let unknown = driver.enqueue(
        LEGACY,
        Op::Launch {
            kernel: kernel(999),
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            cooperative: false,
            attributes: vec![],
            parameters: Bytes(&[]),
        },
    );
    assert_eq!(unknown, Err(CudaError::INVALID_HANDLE));
    driver.stream_synchronize(LEGACY).unwrap();
}

#[test]
fn a_kernel_the_engine_cannot_run_is_refused_by_name_and_leaves_the_rest_alone() {
    let loaded = Loaded::new();
    let memory = loaded.session.alloc(64);
    let bytes = parameters(&[0, memory]);
    let refused = loaded.session.driver.enqueue(LEGACY, launch(1, loaded.index("texture"), 1, 1, &bytes));
    assert_eq!(refused, Err(CudaError::NOT_SUPPORTED));
    let message = loaded.session.driver.take_message().unwrap();
    assert!(message.contains("texture") && message.contains("tex"), "{message}");
    assert!(loaded.info.info_log.contains("texture"), "the load says so already");
    loaded.launch(LEGACY, "poke", 1, 1, &[memory, 3]).unwrap();
    assert_eq!(loaded.session.read_u32(LEGACY, memory), 3);
}

#[test]
fn images_that_do_not_fit_the_device_are_refused_with_words() {
    let session = Session::new();
    let check = |image: &[u8], error: CudaError, word: &str| {
        assert_eq!(session.load(9, image).map(|_| ()), Err(error));
        let message = session.driver.take_message().unwrap();
        assert!(message.contains(word), "{message}");
    };
    check(b".version 8.0\n.target sm_80\nnonsense\0", CudaError::INVALID_PTX, "line 3");
    check(b".version 8.8\n.target sm_121\n.address_size 64\n\0", CudaError::INVALID_PTX, "sm_121");
    check(
        b".version 12.0\n.target sm_80\n.address_size 64\n\0",
        CudaError::UNSUPPORTED_PTX_VERSION,
        "version 12",
    );
    check(b"\x01\x02", CudaError::INVALID_IMAGE, "fatbin");
    check(include_bytes!("../../image/samples/sample.cubin"), CudaError::NO_BINARY_FOR_GPU, "PTX");
    check(include_bytes!("../../image/samples/family.fatbin"), CudaError::NO_BINARY_FOR_GPU, "compute_120");
}

/// The CUDA runtime loads a program's fatbins by itself, and some libraries drop the error: their results would be wrong
/// without a word.
#[test]
fn who_ignores_that_his_own_kernels_cannot_run_does_not_get_far() {
    let session = Session::new();
    let memory = session.alloc(64);
    let refused = Err(CudaError::NO_BINARY_FOR_GPU);
    // What a program loads by hand it looks at by itself.
    let cubin = include_bytes!("../../image/samples/sample.cubin");
    assert_eq!(session.load(1, cubin).map(|_| ()), refused);
    session.driver.stream_synchronize(LEGACY).unwrap();
    assert_eq!(session.driver.take_deferred(), None);

    let fatbin = include_bytes!("../../image/samples/family.fatbin");
    assert_eq!(session.load(2, fatbin).map(|_| ()), refused);
    assert_eq!(session.driver.stream_synchronize(LEGACY), refused);
    assert_eq!(session.driver.read_back(LEGACY, Plane::line(memory), Shape::line(4)).map(|_| ()), refused);
    assert_eq!(session.driver.context_synchronize(CONTEXT), refused);
    session.driver.context_reset(CONTEXT).unwrap();
    session.driver.context_synchronize(CONTEXT).unwrap();
}

#[test]
fn fatbins_load_by_their_ptx() {
    for image in [
        &include_bytes!("../../image/samples/many.fatbin")[..],
        include_bytes!("../../image/samples/ptx-speed.fatbin"),
        include_bytes!("../../image/samples/pair-size.fatbin"),
    ] {
        let session = Session::new();
        let info = session.load(1, image).unwrap();
        let index = info.kernels.iter().position(|kernel| kernel.name == "scale").unwrap() as u32;
        let floats = session.alloc_with(&1.5f32.to_le_bytes().repeat(100));
        let mut bytes = floats.to_le_bytes().to_vec();
        bytes.extend_from_slice(&2.0f32.to_le_bytes());
        bytes.extend_from_slice(&100u32.to_le_bytes());
        session.driver.enqueue(LEGACY, launch(1, index, 4, 32, &bytes)).unwrap();
        assert_eq!(session.words(LEGACY, floats, 100), vec![10.0f32.to_bits(); 100]);
    }
}

#[test]
fn linked_modules_call_each_other() {
    let session = Session::new();
    let input =
        |name: &str, bytes: &'static [u8]| LinkInput { kind: 1, name: name.to_owned(), bytes: Bytes(bytes) };
    let (caller, callee): (&[u8], &[u8]) =
        (include_bytes!("samples/caller.ptx"), include_bytes!("samples/callee.ptx"));
    let alone = session.driver.link(CONTEXT, vec![input("caller", caller)], vec![]).unwrap();
    assert_eq!(alone.status, CudaError::INVALID_IMAGE.code());
    assert!(alone.cubin.0.is_empty() && alone.error_log.contains("twice"), "{}", alone.error_log);
    let both =
        session.driver.link(CONTEXT, vec![input("caller", caller), input("callee", callee)], vec![]).unwrap();
    assert_eq!((both.status, both.error_log.as_str()), (0, ""));
    let info = session.load(1, &both.cubin.0).unwrap();
    let index = info.kernels.iter().position(|kernel| kernel.name == "call").unwrap() as u32;
    let out = session.alloc(4);
    let mut bytes = out.to_le_bytes().to_vec();
    bytes.extend_from_slice(&21u32.to_le_bytes());
    session.driver.enqueue(LEGACY, launch(1, index, 1, 1, &bytes)).unwrap();
    assert_eq!(session.read_u32(LEGACY, out), 42);
    // What was linked can be linked again.
    let inputs = vec![LinkInput { kind: 0, name: "image".into(), bytes: Bytes(&both.cubin.0) }];
    assert_eq!(session.driver.link(CONTEXT, inputs, vec![]).unwrap().cubin, both.cubin);
    // The device runtime is an archive, which adds nothing; the code of compilers is another matter.
    let runtime = vec![LinkInput { kind: 4, name: "libcudadevrt.a".into(), bytes: Bytes(b"!<arch>\n") }];
    assert_eq!(session.driver.link(CONTEXT, runtime, Vec::new()).unwrap().status, 0);
    let library = vec![LinkInput { kind: 5, name: "nvvm".into(), bytes: Bytes(b"BC\xc0\xde") }];
    assert_eq!(
        session.driver.link(CONTEXT, library, vec![]).unwrap().status,
        CudaError::NOT_SUPPORTED.code()
    );
}

#[test]
fn abort_stops_a_kernel_at_once() {
    let loaded = Loaded::new();
    let session = &loaded.session;
    let memory = session.alloc_with(&[0; 4]);
    let stream = session.stream(1);
    session.driver.stream_synchronize(LEGACY).unwrap();
    loaded.launch(stream, "forever", 8, 256, &[memory]).unwrap();
    while session.read_u32(LEGACY, memory) == 0 {}
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| session.driver.wait(WaitTarget::Stream(stream)));
        std::thread::sleep(Duration::from_millis(5));
        let start = Instant::now();
        session.driver.abort();
        assert!(waiter.join().unwrap().is_err());
        assert!(start.elapsed() < Duration::from_millis(500));
    });
    let start = Instant::now();
    drop(loaded);
    assert!(start.elapsed() < Duration::from_millis(500));
}

#[test]
fn more_inputs_than_an_image_can_count_are_refused() {
    let session = Session::new();
    let text = Bytes(b".version 8.0\n.target sm_80\n.address_size 64\n");
    let link = |count: usize| {
        let input = LinkInput { kind: 1, name: String::new(), bytes: text };
        session.driver.link(CONTEXT, vec![input; count], Vec::new()).unwrap()
    };
    assert_eq!(link(3).status, 0);
    let refused = link(65_534);
    assert_eq!(refused.status, CudaError::INVALID_IMAGE.code());
    assert!(refused.error_log.contains("more than 65533 inputs"), "{}", refused.error_log);
}
