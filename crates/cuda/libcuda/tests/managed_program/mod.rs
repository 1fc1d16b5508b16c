//! The programs of the tests of managed memory.

mod registered;
mod variables;

// The library under test is linked in; its functions are called as any program calls them.
use cuda as _;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

type Handle = u64;

unsafe extern "C" {
    fn cuInit(flags: u32) -> u32;
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32) -> u32;
    fn cuDeviceGetAttribute(value: *mut i32, attribute: u32, device: i32) -> u32;
    fn cuCtxSetCurrent(context: Handle) -> u32;
    fn cuCtxSynchronize() -> u32;
    fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> u32;
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const i8) -> u32;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32;
    fn cuMemAllocManaged(address: *mut u64, bytes: usize, flags: u32) -> u32;
    fn cuMemFree_v2(address: u64) -> u32;
    fn cuMemHostAlloc(address: *mut u64, bytes: usize, flags: u32) -> u32;
    fn cuMemHostGetDevicePointer_v2(device: *mut u64, host: u64, flags: u32) -> u32;
    fn cuMemHostGetFlags(flags: *mut u32, host: u64) -> u32;
    fn cuMemFreeHost(address: u64) -> u32;
    fn cuMemcpy(to: u64, from: u64, bytes: usize) -> u32;
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) -> u32;
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> u32;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> u32;
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) -> u32;
    fn cuMemPrefetchAsync(address: u64, bytes: usize, device: i32, stream: Handle) -> u32;
    fn cuMemAdvise(address: u64, bytes: usize, advice: u32, device: i32) -> u32;
    fn cuMemRangeGetAttribute(
        data: *mut c_void,
        size: usize,
        attribute: u32,
        address: u64,
        bytes: usize,
    ) -> u32;
    fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, address: u64) -> u32;
    fn cuStreamCreate(stream: *mut Handle, flags: u32) -> u32;
    fn cuStreamSynchronize(stream: Handle) -> u32;
    fn cuStreamAttachMemAsync(stream: Handle, address: u64, bytes: usize, flags: u32) -> u32;
    fn cuLaunchHostFunc(stream: Handle, function: extern "C" fn(*mut c_void), data: *mut c_void) -> u32;
    fn cuLaunchKernel(
        function: Handle,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: Handle,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> u32;
    fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) -> u32;
    fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> u32;
    fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64) -> u32;
    fn cuGraphLaunch(exec: Handle, stream: Handle) -> u32;
}

/// `bump(p, n, v)`: p[i] = p[i] * 3 + v for the first n words. `slow(p, n, v)` does
/// the same with one word after counting to 300,000. `follow(p, n, v)` does the same with the word whose address lies at p.
const KERNELS: &CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .entry bump(.param .u64 p, .param .u64 n, .param .u64 v)
{
    .reg .pred %q;
    .reg .b32 %r<8>;
    .reg .b64 %a<8>;
    ld.param.u64 %a1, [p];
    ld.param.u64 %a2, [n];
    ld.param.u64 %a3, [v];
    cvt.u32.u64 %r5, %a3;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %a4, %r4;
    setp.ge.u64 %q, %a4, %a2;
    @%q bra done;
    shl.b64 %a5, %a4, 2;
    add.u64 %a6, %a1, %a5;
    ld.global.u32 %r6, [%a6];
    mad.lo.u32 %r7, %r6, 3, %r5;
    st.global.u32 [%a6], %r7;
done:
    ret;
}
.visible .entry slow(.param .u64 p, .param .u64 n, .param .u64 v)
{
    .reg .pred %q;
    .reg .b32 %r<9>;
    .reg .b64 %a<8>;
    ld.param.u64 %a1, [p];
    ld.param.u64 %a3, [v];
    cvt.u32.u64 %r5, %a3;
    mov.u32 %r2, %tid.x;
    setp.ne.u32 %q, %r2, 0;
    @%q bra done;
    mov.u32 %r1, 0;
again:
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %q, %r1, 300000;
    @%q bra again;
    ld.global.u32 %r6, [%a1];
    mad.lo.u32 %r7, %r6, 3, %r5;
    st.global.u32 [%a1], %r7;
done:
    ret;
}
.visible .entry follow(.param .u64 p, .param .u64 n, .param .u64 v)
{
    .reg .pred %q;
    .reg .b32 %r<9>;
    .reg .b64 %a<8>;
    ld.param.u64 %a1, [p];
    ld.param.u64 %a3, [v];
    cvt.u32.u64 %r5, %a3;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    or.b32 %r3, %r1, %r2;
    setp.ne.u32 %q, %r3, 0;
    @%q bra done;
    ld.global.u64 %a2, [%a1];
    ld.global.u32 %r6, [%a2];
    mad.lo.u32 %r7, %r6, 3, %r5;
    st.global.u32 [%a2], %r7;
done:
    ret;
}
";

fn good(code: u32) {
    assert_eq!(code, 0);
}

struct Gpu {
    bump: Handle,
    slow: Handle,
    follow: Handle,
}

fn begin() -> Gpu {
    let (mut context, mut module, mut bump, mut slow, mut follow) = (0, 0, 0, 0, 0);
    // SAFETY: the pointers are those of live variables, the texts end in zeros.
    unsafe {
        good(cuInit(0));
        good(cuDevicePrimaryCtxRetain(&mut context, 0));
        good(cuCtxSetCurrent(context));
        good(cuModuleLoadData(&mut module, KERNELS.as_ptr().cast()));
        good(cuModuleGetFunction(&mut bump, module, c"bump".as_ptr()));
        good(cuModuleGetFunction(&mut slow, module, c"slow".as_ptr()));
        good(cuModuleGetFunction(&mut follow, module, c"follow".as_ptr()));
    }
    Gpu { bump, slow, follow }
}

fn launch(function: Handle, memory: &[u32], v: u32, stream: Handle) {
    let mut values = [memory.as_ptr() as u64, memory.len() as u64, v.into()];
    let mut pointers = values.each_mut().map(|value| (&raw mut *value).cast::<c_void>());
    let blocks = (memory.len() as u32).div_ceil(128);
    let none = std::ptr::null_mut();
    // SAFETY: three parameters of eight bytes.
    good(unsafe {
        cuLaunchKernel(function, blocks, 1, 1, 128, 1, 1, 0, stream, pointers.as_mut_ptr(), none)
    });
}

fn synchronize() {
    // SAFETY: no pointers.
    good(unsafe { cuCtxSynchronize() });
}

fn stream(flags: u32) -> Handle {
    let mut stream = 0;
    // SAFETY: the pointer is that of a live variable.
    good(unsafe { cuStreamCreate(&mut stream, flags) });
    stream
}

/// Managed memory as words, for as long as the program runs or until it is freed.
fn managed_with(words: usize, flags: u32) -> &'static mut [u32] {
    let mut address = 0;
    // SAFETY: the pointer is that of a live variable.
    good(unsafe { cuMemAllocManaged(&mut address, words * 4, flags) });
    // SAFETY: the library gave so many bytes, which are this program's.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u32, words) }
}

fn managed(words: usize) -> &'static mut [u32] {
    managed_with(words, 1)
}

fn address<T>(memory: &[T]) -> u64 {
    memory.as_ptr() as u64
}

const MAPPED: u32 = 2;

/// Pinned memory that kernels may use, as words.
fn mapped_words(words: usize) -> &'static mut [u32] {
    let mut address = 0;
    // SAFETY: the pointer is that of a live variable.
    good(unsafe { cuMemHostAlloc(&mut address, words * 4, MAPPED) });
    // SAFETY: the library gave so many bytes, which are this program's.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u32, words) }
}

/// Pinned memory at one address: a kernel finds it by a pointer in memory, and a graph does.
fn mapped() {
    let gpu = begin();
    let (list, values) = (mapped_words(1 << 18), mapped_words(1 << 15));
    assert!(list.iter().all(|word| *word == 0), "new memory is zero");
    let at = address(values) + 40;
    (list[0], list[1]) = (at as u32, (at >> 32) as u32);
    values[10] = 5;
    launch(gpu.follow, list, 2, 0);
    synchronize();
    assert_eq!(values[10], 17, "a kernel follows the pointer");

    let (stream, mut graph, mut exec) = (stream(1), 0, 0);
    // SAFETY: the pointers are those of live variables.
    unsafe {
        good(cuStreamBeginCapture_v2(stream, 0));
        launch(gpu.follow, list, 1, stream);
        launch(gpu.bump, values, 1, stream);
        good(cuStreamEndCapture(stream, &mut graph));
        good(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        for start in [1, 100] {
            values[10] = start;
            good(cuGraphLaunch(exec, stream));
            good(cuStreamSynchronize(stream));
            assert_eq!(values[10], 9 * start + 4, "a graph uses it");
        }
    }
    mapped_is_memory_of_the_host(list);
    // SAFETY: they are not used afterwards.
    unsafe {
        assert_eq!(cuMemFree_v2(address(list)), 1, "it is no device memory");
        assert_eq!(cuMemFreeHost(address(list) + 4096), 1, "nothing begins there");
        good(cuMemFreeHost(address(list)));
        good(cuMemFreeHost(address(values)));
        assert_eq!(cuMemFreeHost(address(values)), 1, "it is gone");
    }
}

fn mapped_is_memory_of_the_host(memory: &[u32]) {
    const MEMORY_TYPE: u32 = 2;
    const IS_MANAGED: u32 = 8;
    const HOST: u32 = 1;
    let (mut kind, mut is_managed, mut flags, mut device) = (0u32, 9u32, 0, 0);
    let at = address(memory);
    // SAFETY: the pointers are those of live variables of the right types.
    unsafe {
        good(cuPointerGetAttribute((&raw mut kind).cast(), MEMORY_TYPE, at + 8));
        good(cuPointerGetAttribute((&raw mut is_managed).cast(), IS_MANAGED, at + 8));
        good(cuMemHostGetFlags(&mut flags, at + 8));
        good(cuMemHostGetDevicePointer_v2(&mut device, at + 8, 0));
        assert_eq!(cuMemPrefetchAsync(at, 4096, 0, 0), 1, "it is not managed");
    }
    assert_eq!((kind, is_managed, flags, device), (HOST, 0, MAPPED, at + 8));
}

/// A number from a seed.
fn next(seed: &mut u64, below: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % below
}

/// As every tutorial has it.
fn simple() {
    let gpu = begin();
    for words in [1, 1000, 300_000] {
        let memory = managed(words);
        assert!(memory.iter().all(|word| *word == 0), "new memory is zero");
        memory.iter_mut().enumerate().for_each(|(at, word)| *word = at as u32);
        launch(gpu.bump, memory, 7, 0);
        synchronize();
        assert!(memory.iter().enumerate().all(|(at, word)| *word == 3 * at as u32 + 7));
        memory[words / 2] = 5;
        launch(gpu.bump, memory, 1, 0);
        // Without a wait of the program: the touch waits.
        assert_eq!(memory[words / 2], 16);
        // SAFETY: it is not used afterwards.
        good(unsafe { cuMemFree_v2(address(memory)) });
    }
    // Memory that the host never touched is zero for kernels, too.
    let memory = managed(500);
    launch(gpu.bump, memory, 9, 0);
    synchronize();
    assert!(memory.iter().all(|word| *word == 9));
}

/// Random work and touches against a model.
struct World {
    gpu: Gpu,
    streams: [Handle; 3],
    graph: Handle,
    memory: [&'static mut [u32]; 2],
    models: [Vec<u32>; 2],
    device: u64,
    pageable: Vec<u32>,
}

/// Words of one of the two allocations, and what happens to them in which stream.
struct Step {
    which: usize,
    at: usize,
    count: usize,
    place: u64,
    stream: Handle,
    round: u32,
}

const WORDS: usize = 200_000;

fn random(seed: &mut u64) {
    let gpu = begin();
    let streams = [0, stream(0), stream(1)];
    let memory = [managed(WORDS), managed(WORDS / 3)];
    let models = [vec![0u32; WORDS], vec![0u32; WORDS / 3]];
    let mut device = 0;
    // SAFETY: the pointer is that of a live variable.
    good(unsafe { cuMemAlloc_v2(&mut device, WORDS * 4) });
    let graph = graph_of(&gpu, memory[0], streams[1]);
    let mut world = World { gpu, streams, graph, memory, models, device, pageable: vec![0; WORDS] };
    for round in 0..600 {
        let which = next(seed, 2);
        let words = world.models[which].len();
        let (at, stream) = (next(seed, words), streams[next(seed, 3)]);
        let most = [3, 20_000, words][next(seed, 3)];
        let count = 1 + next(seed, most.min(words - at));
        let place = address(world.memory[which]) + 4 * at as u64;
        let step = Step { which, at, count, place, stream, round };
        match next(seed, 12) {
            0..=4 => world.touch(&step, seed),
            5..=7 => world.work(&step, seed),
            8 | 9 => world.copy_pageable(&step, seed),
            10 => world.copy_over_the_device(&step, seed),
            _ => world.launch_graph(seed),
        }
        hint(seed, place, count, stream);
    }
    synchronize();
    (0..2).for_each(|which| assert!(world.memory[which] == world.models[which].as_slice()));
}

impl World {
    fn touch(&mut self, step: &Step, seed: &mut u64) {
        let range = step.at..step.at + step.count;
        if next(seed, 5) < 3 {
            let wanted = &self.models[step.which][range.clone()];
            assert!(self.memory[step.which][range] == *wanted, "round {}", step.round);
        } else {
            self.memory[step.which][range.clone()].fill(step.round);
            self.models[step.which][range].fill(step.round);
        }
    }

    fn work(&mut self, step: &Step, seed: &mut u64) {
        let (range, round) = (step.at..step.at + step.count, step.round);
        let model = &mut self.models[step.which][range.clone()];
        if next(seed, 3) < 2 {
            launch(self.gpu.bump, &self.memory[step.which][range], round, step.stream);
            model.iter_mut().for_each(|word| *word = word.wrapping_mul(3).wrapping_add(round));
        } else {
            // SAFETY: the range is managed memory.
            good(unsafe { cuMemsetD8Async(step.place, round as u8, step.count * 4, step.stream) });
            model.fill(u32::from_le_bytes([round as u8; 4]));
        }
        settle(step.stream, seed);
    }

    fn copy_pageable(&mut self, step: &Step, seed: &mut u64) {
        let model = &mut self.models[step.which][step.at..step.at + step.count];
        let pageable = &mut self.pageable[..step.count];
        if next(seed, 2) == 0 {
            pageable.fill(step.round ^ 0x5555);
            model.fill(step.round ^ 0x5555);
            // SAFETY: so many words are at either address.
            good(unsafe { cuMemcpyHtoD_v2(step.place, pageable.as_ptr().cast(), step.count * 4) });
        } else {
            // SAFETY: as above.
            good(unsafe { cuMemcpyDtoH_v2(pageable.as_mut_ptr().cast(), step.place, step.count * 4) });
            assert!(pageable == model, "round {}", step.round);
        }
    }

    /// To the device and back to another place, managed memory named as host memory or as any.
    fn copy_over_the_device(&mut self, step: &Step, seed: &mut u64) {
        let (memory, model) = (&mut self.memory[step.which], &mut self.models[step.which]);
        let back = next(seed, model.len() - step.count + 1);
        let to = address(memory) + 4 * back as u64;
        // SAFETY: so many words are at each address.
        unsafe {
            if step.round.is_multiple_of(2) {
                good(cuMemcpyHtoD_v2(self.device, step.place as *const c_void, step.count * 4));
            } else {
                good(cuMemcpy(self.device, step.place, step.count * 4));
            }
        }
        // The source is the program's again.
        memory[step.at] ^= 1;
        // SAFETY: as above.
        good(unsafe { cuMemcpyAsync(to, self.device, step.count * 4, step.stream) });
        let moved = model[step.at..step.at + step.count].to_vec();
        model[step.at] ^= 1;
        model[back..back + step.count].copy_from_slice(&moved);
        settle(step.stream, seed);
    }

    fn launch_graph(&mut self, seed: &mut u64) {
        // SAFETY: the graph and the stream are alive.
        good(unsafe { cuGraphLaunch(self.graph, self.streams[1]) });
        self.models[0].iter_mut().for_each(|word| *word = word.wrapping_mul(3).wrapping_add(11));
        settle(self.streams[1], seed);
    }
}

/// Work of one stream is not ordered against that of others: waits, or lets a touch wait.
fn settle(stream: Handle, seed: &mut u64) {
    if next(seed, 2) == 0 {
        // SAFETY: the stream is alive.
        good(unsafe { cuStreamSynchronize(stream) });
    } else {
        synchronize();
    }
}

fn hint(seed: &mut u64, place: u64, words: usize, stream: Handle) {
    match next(seed, 10) {
        // SAFETY: no pointers of ours.
        0 => good(unsafe { cuMemPrefetchAsync(place, words * 4, 0, stream) }),
        // SAFETY: as above.
        1 => good(unsafe { cuMemPrefetchAsync(place, words * 4, -1, stream) }),
        _ => {}
    }
}

fn graph_of(gpu: &Gpu, memory: &[u32], stream: Handle) -> Handle {
    let (mut graph, mut exec) = (0, 0);
    // SAFETY: the pointers are those of live variables.
    unsafe {
        good(cuStreamBeginCapture_v2(stream, 0));
        launch(gpu.bump, memory, 11, stream);
        good(cuStreamEndCapture(stream, &mut graph));
        good(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    }
    exec
}

/// Many threads write their own parts at once; after a kernel all of them read everything.
fn threads() {
    const WORDS: usize = 400_000;
    let gpu = begin();
    let memory = managed(WORDS);
    for round in 0..4u32 {
        std::thread::scope(|scope| {
            for part in memory.chunks_mut(WORDS / 8) {
                scope.spawn(move || {
                    part.iter_mut().enumerate().for_each(|(at, word)| *word = at as u32 ^ round)
                });
            }
        });
        launch(gpu.bump, memory, round, 0);
        synchronize();
        let all = &*memory;
        std::thread::scope(|scope| {
            for part in 0..8 {
                scope.spawn(move || {
                    let place = |k: usize| (k * 7 + part * 1000) % WORDS;
                    (0..WORDS / 4).map(place).for_each(|at| {
                        let first = (at % (WORDS / 8)) as u32 ^ round;
                        assert_eq!(all[at], first.wrapping_mul(3).wrapping_add(round));
                    });
                });
            }
        });
    }
}

/// Bytes that the program goes through, and single touches.
pub(crate) const BUDGET_WALKED: u64 = 4 << 20;
pub(crate) const BUDGET_TOUCHES: u64 = 40;

fn budget() {
    const BYTES: usize = 256 << 20;
    begin();
    let memory = managed(BYTES / 4);
    let walked = &mut memory[1 << 20..(1 << 20) + BUDGET_WALKED as usize / 4];
    walked.fill(3);
    // SAFETY: the range is managed memory.
    good(unsafe { cuMemsetD8Async(address(memory), 1, BYTES, 0) });
    let walked = &memory[5 << 20..(5 << 20) + BUDGET_WALKED as usize / 4];
    assert!(walked.iter().all(|word| *word == 0x0101_0101));
    // SAFETY: it is not used afterwards.
    good(unsafe { cuMemFree_v2(address(memory)) });

    let memory = managed(BYTES / 4);
    // SAFETY: the range is managed memory.
    good(unsafe { cuMemsetD8Async(address(memory), 2, BYTES, 0) });
    for k in 0..BUDGET_TOUCHES as usize {
        assert_eq!(memory[k * 7_654_321 % memory.len()], 0x0202_0202);
    }
    // SAFETY: it is not used afterwards.
    good(unsafe { cuMemFree_v2(address(memory)) });
}

/// read(2) and write(2) with managed memory that only the device has.
fn calls() {
    let gpu = begin();
    let memory = managed(1 << 20);
    memory.fill(1);
    launch(gpu.bump, memory, 2, 0);
    let mut ends = [0; 2];
    // SAFETY: the pointers are those of live memory of so many bytes.
    let (wrote, got) = unsafe {
        good(libc::pipe(ends.as_mut_ptr()) as u32);
        let wrote = libc::write(ends[1], memory.as_ptr().add(5).cast(), 4);
        libc::write(ends[1], [7u32].as_ptr().cast(), 4);
        let got =
            if wrote == 4 { libc::read(ends[0], memory.as_mut_ptr().add(500_000).cast(), 8) } else { -1 };
        (wrote, got)
    };
    println!("calls {}", wrote == 4 && got == 8);
    if got == 8 {
        assert_eq!(memory[500_000..500_002], [5, 7]);
        launch(gpu.bump, memory, 0, 0);
        assert_eq!(memory[499_999..500_003], [15, 15, 21, 15]);
    }
}

static SEEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn touch(data: *mut c_void) {
    let word = data.cast::<u32>();
    // SAFETY: the word is managed memory that nothing else uses meanwhile.
    unsafe {
        SEEN.store(*word, Ordering::SeqCst);
        *word = 1000;
    }
}

/// Touches while kernels run, and by host functions of streams.
fn order() {
    let gpu = begin();
    let (blocking, free) = (stream(0), stream(1));
    let memory = managed(100_000);
    for round in 1..5u32 {
        for stream in [0, blocking, free] {
            memory[0] = round;
            launch(gpu.slow, &memory[..1], 4, stream);
            assert_eq!(memory[0], 3 * round + 4, "a touch waits for the kernel");
        }
        // A kernel, a host function that reads and writes, and a kernel behind it.
        memory[0] = round;
        launch(gpu.slow, &memory[..1], 1, free);
        // SAFETY: the function and the word stay.
        good(unsafe { cuLaunchHostFunc(free, touch, memory.as_mut_ptr().cast()) });
        // SAFETY: the stream is alive.
        good(unsafe { cuStreamSynchronize(free) });
        assert_eq!(SEEN.load(Ordering::SeqCst), 3 * round + 1);
        launch(gpu.bump, memory, 2, blocking);
        assert_eq!(memory[0], 3002);
        // Work that waits behind the host function has what it wrote.
        launch(gpu.slow, &memory[..1], 1, free);
        // SAFETY: as above.
        good(unsafe { cuLaunchHostFunc(free, touch, memory.as_mut_ptr().cast()) });
        launch(gpu.bump, memory, 5, free);
        // SAFETY: as above.
        good(unsafe { cuStreamSynchronize(free) });
        assert_eq!(memory[0], 3005);
    }
    attached(&gpu, [blocking, free]);
}

/// Memory that belongs to one stream or to the host is not closed by other streams' work.
fn attached(gpu: &Gpu, [mine, other]: [Handle; 2]) {
    let (own, host) = (managed(50_000), managed_with(50_000, 2));
    let all = managed(10);
    // SAFETY: the stream and the memory are alive.
    good(unsafe { cuStreamAttachMemAsync(mine, address(own), 0, 4) });
    own.fill(1);
    host.fill(2);
    launch(gpu.slow, all, 1, other);
    // Neither waits: nothing is fetched here.
    own[3] = 5;
    host[3] = 6;
    launch(gpu.bump, own, 1, mine);
    assert_eq!(own[2..4], [4, 16]);
    // SAFETY: as above.
    good(unsafe { cuStreamAttachMemAsync(mine, address(host), 50_000 * 4, 1) });
    launch(gpu.bump, host, 1, other);
    assert_eq!(host[2..4], [7, 19]);
    // SAFETY: as above.
    unsafe {
        assert_eq!(cuStreamAttachMemAsync(0, address(own), 0, 4), 1, "a default stream");
        assert_eq!(cuStreamAttachMemAsync(mine, address(own), 100, 4), 1, "a part");
        assert_eq!(cuStreamAttachMemAsync(mine, address(own) + 4, 0, 1), 1, "not the start");
        assert_eq!(cuStreamAttachMemAsync(mine, address(own), 0, 3), 1, "no such flags");
    }
}

fn range_number(attribute: u32, memory: &[u32], bytes: usize) -> i32 {
    let mut value = 99i32;
    // SAFETY: the pointer is that of a live variable of four bytes.
    good(unsafe { cuMemRangeGetAttribute((&raw mut value).cast(), 4, attribute, address(memory), bytes) });
    value
}

fn hints() {
    begin();
    let memory = managed(100_000);
    let (at, bytes) = (address(memory), 400_000);
    let attribute = |number| {
        let mut value = -1;
        // SAFETY: the pointer is that of a live variable.
        good(unsafe { cuDeviceGetAttribute(&mut value, number, 0) });
        value
    };
    // Managed memory; pageable access, concurrent access, page tables of the host, direct access: none of them.
    assert_eq!([83, 88, 89, 100, 101].map(attribute), [1, 0, 0, 0, 0]);
    let (mut value, mut word) = (0u32, 0u64);
    // SAFETY: the pointers are those of live variables; the addresses are the library's to judge.
    unsafe {
        good(cuPointerGetAttribute((&raw mut value).cast(), 8, at + 5));
        assert_eq!(value, 1, "is managed");
        good(cuPointerGetAttribute((&raw mut value).cast(), 2, at + 5));
        assert_eq!(value, 2, "device memory");
        good(cuPointerGetAttribute((&raw mut word).cast(), 4, at + 5));
        assert_eq!(word, at + 5, "and the host's");
        assert_eq!([1, 2, 4, 6, 8].map(|number| range_number(number, memory, bytes)), [0, -2, -2, 0, 0]);
        good(cuMemAdvise(at, bytes, 1, 7));
        good(cuMemAdvise(at, bytes, 3, -1));
        good(cuMemAdvise(at, bytes / 2, 5, 0));
        good(cuMemPrefetchAsync(at, bytes, 0, 0));
        assert_eq!([1, 2, 4, 5, 7].map(|number| range_number(number, memory, bytes)), [1, -1, 0, 2, 1]);
        let mut places = [9i32; 3];
        let data = (&raw mut places).cast();
        good(cuMemRangeGetAttribute(data, 12, 3, at, bytes / 2));
        assert_eq!(places, [0, -2, -2]);
        good(cuMemRangeGetAttribute(data, 12, 3, at, bytes));
        assert_eq!(places, [-2; 3]);
        assert_eq!(cuMemRangeGetAttribute(data, 8, 1, at, bytes), 1, "a wrong size");
        assert_eq!(cuMemRangeGetAttribute(data, 4, 77, at, bytes), 1, "no such attribute");
        assert_eq!(cuMemAdvise(at, bytes, 3, 44), 101, "no such device");
        assert_eq!(cuMemAdvise(at, bytes + 1, 1, 0), 1, "too long");
        assert_eq!(cuMemAdvise(at, bytes, 9, 0), 1, "no such advice");
        assert_eq!(cuMemPrefetchAsync(at, 0, 0, 0), 1, "nothing");
        let mut plain = 0;
        good(cuMemAlloc_v2(&mut plain, 4096));
        assert_eq!(cuMemPrefetchAsync(plain, 4096, 0, 0), 1, "not managed");
        assert_eq!(cuMemAllocManaged(&mut plain, 0, 1), 1, "no bytes");
        assert_eq!(cuMemAllocManaged(&mut plain, 16, 0), 1, "no flags");
        assert_eq!(cuMemAllocManaged(&mut plain, 1 << 40, 1), 2, "more than there is");
        good(cuMemFree_v2(at));
        assert_eq!(cuMemFree_v2(at), 1, "freed twice");
    }
}

/// Frees while other threads touch other memory, and while work and prefetches are under way; forks.
fn ends() {
    let gpu = begin();
    let kept = managed(300_000);
    kept.fill(4);
    for round in 0..30u32 {
        let memory = managed(200_000);
        memory.fill(round);
        launch(gpu.bump, memory, 1, 0);
        launch(gpu.bump, &kept[..1], 0, 0);
        // SAFETY: the memory is alive until the free, and not used afterwards.
        unsafe {
            good(cuMemPrefetchAsync(address(memory), 800_000, -1, 0));
            good(cuMemFree_v2(address(memory)));
        }
        kept[0] = 4;
    }
    launch(gpu.bump, kept, 1, 0);
    synchronize();
    // SAFETY: the child only touches the memory, which ends it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let found = std::hint::black_box(&*kept)[7];
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(found as i32) };
    }
    let mut status = 0;
    // SAFETY: the pointer is that of a live variable.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status}");
    assert!(kept[1..].iter().all(|word| *word == 13), "the parent goes on");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert_eq!(maps.lines().filter(|line| line.contains("dxpu-managed")).count(), count_of_views(&maps));
}

/// The alias, and the view, which may be in several pieces: all of one file.
fn count_of_views(maps: &str) -> usize {
    let of_files = maps.lines().filter(|line| line.contains("dxpu-managed"));
    let mut inodes: Vec<&str> = of_files.clone().filter_map(|line| line.split_whitespace().nth(4)).collect();
    inodes.dedup();
    inodes.sort_unstable();
    inodes.dedup();
    assert_eq!(inodes.len(), 1, "pages of freed memory are still mapped");
    of_files.count()
}

extern "C" fn own_handler(_signal: i32) {
    println!("the program's handler ran");
    // SAFETY: ends the process, as such handlers do.
    unsafe { libc::_exit(0) };
}

/// The program installs a handler after ours; managed memory still works, and its own faults are still its own.
fn handler() {
    let gpu = begin();
    let memory = managed(100_000);
    memory.fill(1);
    // SAFETY: the handler is a function that stays.
    unsafe { libc::signal(libc::SIGSEGV, own_handler as *const () as usize) };
    launch(gpu.bump, memory, 1, 0);
    assert_eq!(memory[99_999], 4);
    // SAFETY: it is not used afterwards, except for the fault that this is about.
    good(unsafe { cuMemFree_v2(address(memory)) });
    println!("{}", std::hint::black_box(&*memory)[5]);
}

/// The worker's session is gone when the program touches what only the device has.
fn lost() {
    let gpu = begin();
    let memory = managed(100_000);
    memory.fill(1);
    launch(gpu.bump, memory, 1, 0);
    synchronize();
    let me = std::process::id().to_string();
    for entry in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let process = entry.file_name().into_string().unwrap_or_default();
        let text = |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        // A session of this test: of our parent, with the session's entry among its arguments.
        if process != me && text("cmdline").contains("session_process") && is_sibling(&text("stat")) {
            // SAFETY: a process of this test.
            unsafe { libc::kill(process.parse().unwrap(), libc::SIGKILL) };
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    println!("{} went on", std::hint::black_box(&*memory)[5]);
}

fn is_sibling(stat: &str) -> bool {
    let parent = stat.rsplit(')').next().unwrap_or("").split_whitespace().nth(1);
    // SAFETY: no pointers.
    parent == Some(unsafe { libc::getppid() }.to_string().as_str())
}

pub(crate) fn run(plan: &str) {
    match plan.split_once(' ') {
        Some(("random", seed)) => random(&mut seed.parse().unwrap()),
        _ => match plan {
            "simple" => simple(),
            "threads" => threads(),
            "budget" => budget(),
            "calls" => calls(),
            "order" => order(),
            "hints" => hints(),
            "ends" => ends(),
            "handler" => handler(),
            "variables" => variables::variables(),
            "lost" => lost(),
            "mapped" => mapped(),
            "registered" => registered::registered(),
            other => panic!("no plan {other}"),
        },
    }
}
