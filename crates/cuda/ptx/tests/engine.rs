//! How the engine schedules: divergence, barriers, lanes that wait for each other, faults, limits.

mod common;

use std::{thread, time::Duration};

use common::{Args, Rig};
use ptx::{FaultKind, LaunchError, Module, PtxError, link};

fn kernel(params: &str, body: &str) -> String {
    format!(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k({params})\n{{\n{body}\n}}\n")
}

/// A kernel that has the thread number in `%t`, the output in `%out` (at the thread's own place), and ends by storing `%r`.
fn per_thread(body: &str) -> String {
    kernel(
        ".param .u64 out",
        &format!(
            ".reg .b32 %t, %r, %a, %b, %c; .reg .b64 %out, %x, %y; .reg .pred %p, %q;\n\
             mov.u32 %t, %tid.x; ld.param.u64 %out, [out]; mul.wide.u32 %x, %t, 4; add.u64 %out, %out, %x;\n\
             mov.u32 %r, 0;\n{body}\nst.global.u32 [%out], %r;\nret;"
        ),
    )
}

fn run(body: &str, threads: u32) -> Vec<u32> {
    let mut rig = Rig::new(&per_thread(body));
    let out = rig.alloc(threads as usize * 4);
    rig.run("k", 1, threads, Args::new().with(out).done());
    rig.download(out, threads as usize)
}

#[test]
fn nested_branches_reconverge() {
    let got = run(
        "and.b32 %a, %t, 1; setp.eq.u32 %p, %a, 0; @%p bra EVEN;\n\
         and.b32 %a, %t, 2; setp.eq.u32 %p, %a, 0; @%p bra ONE;\n mov.u32 %r, 30; bra.uni DONE;\n\
         ONE: mov.u32 %r, 10; bra.uni DONE;\n EVEN: mov.u32 %r, 20;\n DONE:\n activemask.b32 %b; popc.b32 %b, %b; add.u32 %r, %r, %b;",
        32,
    );
    let expected: Vec<u32> = (0..32).map(|t| [20, 10, 20, 30][t % 4] + 32).collect();
    assert_eq!(got, expected);
}

#[test]
fn a_loop_with_breaks_reconverges_behind_it() {
    // Lane t leaves the outer loop after t rounds, out of the inner loop.
    let got = run(
        "mov.u32 %a, 0;\n OUTER: mov.u32 %b, 0;\n INNER: setp.eq.u32 %p, %a, %t; @%p bra OUT;\n\
         add.u32 %r, %r, 1; add.u32 %b, %b, 1; setp.lt.u32 %p, %b, 3; @%p bra INNER;\n\
         add.u32 %a, %a, 1; bra.uni OUTER;\n OUT: activemask.b32 %c; setp.ne.u32 %p, %c, 0xFFFFFFFF; @%p add.u32 %r, %r, 1000;",
        32,
    );
    assert_eq!(got, (0..32).map(|t| t * 3).collect::<Vec<u32>>());
}

#[test]
fn exited_lanes_are_not_waited_for() {
    let text = per_thread(
        "setp.ge.u32 %p, %t, 40; @%p ret;\n bar.sync 0;\n setp.ge.u32 %p, %t, 8; @%p exit;\n bar.warp.sync 0xFFFFFFFF;\n\
         vote.sync.ballot.b32 %r, 1, 0xFFFFFFFF;",
    );
    let mut rig = Rig::new(&text);
    let out = rig.upload(&[7u32; 64]);
    rig.run("k", 1, 64, Args::new().with(out).done());
    let got = rig.download::<u32>(out, 64);
    assert_eq!(got[..8], [0xFF; 8]);
    assert_eq!(got[8..], [7; 56]);
}

#[test]
fn diverged_lanes_meet_at_a_warp_barrier() {
    let got = run(
        "setp.lt.u32 %p, %t, 16; @%p bra LOW;\n mov.u32 %a, 1; bra.uni JOIN;\n LOW: mov.u32 %a, 2;\n JOIN:\n\
         setp.lt.u32 %q, %t, 5; @%q bra SYNC;\n add.u32 %a, %a, 10;\n SYNC: shfl.sync.idx.b32 %r, %a, 31, 31, -1;",
        32,
    );
    assert_eq!(got, [11; 32]);
}

#[test]
fn shuffles() {
    let check = |body: &str, expected: &dyn Fn(u32) -> u32| {
        assert_eq!(run(body, 32), (0..32).map(expected).collect::<Vec<u32>>(), "{body}");
    };
    check("shfl.sync.up.b32 %r|%p, %t, 3, 0, -1; @!%p add.u32 %r, %r, 100;", &|t| {
        if t < 3 { t + 100 } else { t - 3 }
    });
    check("shfl.sync.down.b32 %r, %t, 3, 0x1F, -1;", &|t| if t + 3 > 31 { t } else { t + 3 });
    check("shfl.sync.bfly.b32 %r, %t, 5, 0x1F, -1;", &|t| t ^ 5);
    check("shfl.sync.idx.b32 %r, %t, 2, 0x181F, -1;", &|t| t & 0x18 | 2);
    check("shfl.sync.down.b32 %r, %t, 4, 0x181F, -1;", &|t| if t % 8 + 4 > 7 { t } else { t + 4 });
    check(
        "vote.sync.ballot.b32 %r, %p, -1; setp.lt.u32 %p, %t, 4; vote.sync.ballot.b32 %r, %p, -1;",
        &|_| 0xF,
    );
    check("and.b32 %a, %t, 3; match.any.sync.b32 %r, %a, -1;", &|t| 0x1111_1111 << (t % 4));
    check("match.all.sync.b32 %r|%p, 5, -1; @!%p mov.u32 %r, 9;", &|_| u32::MAX);
    check("redux.sync.add.s32 %r, %t, -1;", &|_| 496);
    check("redux.sync.max.u32 %r, %t, -1;", &|_| 31);
    check("elect.sync %a|%p, -1; selp.u32 %r, 1, 0, %p;", &|t| u32::from(t == 0));
    check("mov.u32 %r, %lanemask_lt; popc.b32 %r, %r;", &|t| t);
}

#[test]
fn barriers_reduce_and_count() {
    let got = run("setp.lt.u32 %p, %t, 70; barrier.cta.red.popc.u32 %r, 1, %p;", 96);
    assert_eq!(got, [70; 96]);
    let got = run("setp.lt.u32 %p, %t, 70; bar.red.and.pred %q, 0, %p; selp.u32 %r, 1, 2, %q;", 96);
    assert_eq!(got, [2; 96]);
    let got = run("setp.eq.u32 %p, %t, 70; bar.red.or.pred %q, 0, %p; selp.u32 %r, 1, 2, %q;", 96);
    assert_eq!(got, [1; 96]);
}

#[test]
fn producers_arrive_and_consumers_wait() {
    // Warp 0 consumes what warp 1 produced; warp 2 has nothing to do with it.
    let got = run(
        ".shared .align 4 .b32 cell;\n setp.ge.u32 %p, %t, 64; @%p bra DONE;\n setp.ge.u32 %p, %t, 32; @%p bra PRODUCE;\n\
         bar.sync 3, 64; ld.shared.u32 %r, [cell]; bra.uni DONE;\n\
         PRODUCE: st.shared.u32 [cell], 77; membar.cta; bar.arrive 3, 64;\n DONE:",
        96,
    );
    assert_eq!(got[..32], [77; 32]);
    assert_eq!(got[32..], [0; 64]);
}

#[test]
fn warps_that_spin_on_each_other_make_progress() {
    let got = run(
        ".shared .align 4 .b32 flag;\n setp.eq.u32 %p, %t, 0; @%p st.shared.u32 [flag], 0;\n bar.sync 0;\n\
         setp.eq.u32 %p, %t, 64; @%p st.volatile.shared.u32 [flag], 5;\n\
         WAIT: ld.volatile.shared.u32 %r, [flag]; setp.eq.u32 %p, %r, 0; @%p bra WAIT;",
        96,
    );
    assert_eq!(got, [5; 96]);
}

/// Scans that look back at other blocks keep a state and its value in one vector, and rely on seeing both or neither.
#[test]
fn a_strong_vector_is_read_and_written_whole() {
    // Block 0 stores vectors of two equal numbers; block 1 counts the vectors it finds unequal.
    let text = kernel(
        ".param .u64 cell",
        ".reg .b32 %b, %n; .reg .b64 %c, %x, %y, %bad; .reg .pred %p; ld.param.u64 %c, [cell]; mov.u32 %b, %ctaid.x;\n\
         mov.u32 %n, 0; mov.u64 %bad, 0; setp.eq.u32 %p, %b, 1; @%p bra READ;\n\
         WRITE: cvt.u64.u32 %x, %n; st.relaxed.gpu.global.v2.u64 [%c], {%x, %x};\n\
         add.u32 %n, %n, 1; setp.lt.u32 %p, %n, 200000; @%p bra WRITE; ret;\n\
         READ: ld.relaxed.gpu.global.v2.u64 {%x, %y}, [%c]; setp.ne.u64 %p, %x, %y; @%p add.u64 %bad, %bad, 1;\n\
         add.u32 %n, %n, 1; setp.lt.u32 %p, %n, 200000; @%p bra READ; st.global.u64 [%c+16], %bad; ret;",
    );
    let mut rig = Rig::new(&text);
    let cell = rig.upload(&[0u64; 3]);
    rig.run("k", 2, 1, Args::new().with(cell).done());
    assert_eq!(rig.download::<u64>(cell + 16, 1), [0], "vectors of which only a part was new");
}

#[test]
fn blocks_may_wait_for_later_blocks() {
    let text = kernel(
        ".param .u64 cell",
        ".reg .b32 %r, %b; .reg .b64 %c; .reg .pred %p; ld.param.u64 %c, [cell]; mov.u32 %b, %ctaid.x;\n\
         setp.eq.u32 %p, %b, 7; @%p st.volatile.global.u32 [%c], 1;\n\
         WAIT: ld.volatile.global.u32 %r, [%c]; setp.eq.u32 %p, %r, 0; @%p bra WAIT; ret;",
    );
    let mut rig = Rig::new(&text);
    rig.threads = 1;
    let cell = rig.upload(&[0u32]);
    assert_eq!(rig.run("k", 8, 32, Args::new().with(cell).done()).blocks, 8);
}

#[test]
fn a_barrier_that_nobody_can_complete_is_a_fault() {
    let text = per_thread("setp.lt.u32 %p, %t, 32; @%p bar.sync 1, 64; @!%p bar.sync 2, 64;");
    let mut rig = Rig::new(&text);
    let out = rig.alloc(256);
    let fault = rig.fault("k", 1, 64, Args::new().with(out).done());
    assert_eq!(fault.kind, FaultKind::LaunchFailed);
}

#[test]
fn faults_say_where() {
    let text = per_thread("setp.eq.u32 %p, %t, 37; mov.u64 %y, 0x1234560; @%p ld.global.u32 %r, [%y+8];");
    let mut rig = Rig::new(&text);
    let out = rig.alloc(256);
    let fault = rig.fault("k", 3, 64, Args::new().with(out).done());
    assert_eq!(
        (fault.kind, fault.thread, fault.address),
        (FaultKind::IllegalAddress, [37, 0, 0], 0x123_4568)
    );
    assert_eq!(fault.kernel, "k");
    assert_eq!(fault.line, 9);

    let fault = Rig::new(&per_thread("ld.global.u32 %r, [%out+2];")).fault(
        "k",
        1,
        1,
        Args::new().with(common::BASE).done(),
    );
    assert_eq!((fault.kind, fault.cuda_error().code()), (FaultKind::MisalignedAddress, 716));

    let fault = Rig::new(&per_thread("trap;")).fault("k", 1, 1, Args::new().with(common::BASE).done());
    assert_eq!(fault.cuda_error().code(), 719);

    let fault = Rig::new(&per_thread("st.shared.u32 [%t], %r;")).fault(
        "k",
        1,
        1,
        Args::new().with(common::BASE).done(),
    );
    assert_eq!(fault.kind, FaultKind::IllegalAddress);
}

#[test]
fn endless_recursion_overflows_the_stack() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.func f() { call.uni f, (); ret; }\n.visible .entry k() { call.uni f, (); ret; }\n";
    let fault = Rig::new(text).fault("k", 1, 32, Vec::new());
    assert_eq!((fault.kind, fault.cuda_error().code()), (FaultKind::StackOverflow, 714));
}

#[test]
fn an_endless_kernel_can_be_stopped_from_outside() {
    let mut rig = Rig::new(&kernel("", "L: bra.uni L; ret;"));
    let launch = rig.launch("k", [1, 1, 1], [32, 1, 1], Vec::new());
    let run = ptx::Run::new(&rig.program, launch, &rig.memory, &rig.world, &rig.abort).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| run.work());
        thread::sleep(Duration::from_millis(20));
        rig.abort.abort();
    });
    assert_eq!(run.finish().unwrap_err().kind, FaultKind::Aborted);
}

#[test]
fn an_unsupported_instruction_refuses_its_own_kernel_only() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n\
        .visible .entry good() { ret; }\n\
        .visible .entry bad() { .reg .f32 %f<4>; .reg .b64 %t; .reg .b32 %r<3>;\n tex.2dms.v4.f32.s32 {%f0,%f1,%f2,%f3}, [%t, {%r0,%r1,%r2,%r2}];\n ret; }\n\
        .visible .entry odd() { .reg .b32 %r;\n wgmma.fence.sync.aligned;\n ret; }\n";
    let mut rig = Rig::new(text);
    rig.run("good", 1, 1, Vec::new());
    let error = rig.program.kernel("bad").unwrap().unwrap_err();
    assert_eq!((error.line, error.subject.as_str()), (6, "tex.2dms.v4.f32.s32"));
    let launch = rig.launch("odd", [1, 1, 1], [1, 1, 1], Vec::new());
    match rig.try_run(launch) {
        Err(LaunchError::Refused(PtxError { subject, .. })) => {
            assert_eq!(subject, "wgmma.fence.sync.aligned")
        }
        other => panic!("{other:?}"),
    }
    assert!(rig.program.kernel("missing").is_none());
}

#[test]
fn a_text_with_an_instruction_that_ptx_does_not_have_is_no_module() {
    let text = b".version 8.0\n.target sm_80\n.address_size 64\n\
        .visible .entry odd() { .reg .b32 %r;\n frobnicate.u32 %r, %r;\n ret; }\n";
    let error = ptx::Module::parse(text).unwrap_err();
    assert_eq!(error.line, 5);
}

#[test]
fn modules_link() {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    let a = format!(
        "{head}.extern .global .align 4 .b32 cell;\n.extern .func (.param .b32 r) twice (.param .b32 a);\n\
         .visible .entry k(.param .u64 out) {{ .reg .b32 %r; .reg .b64 %o; ld.param.u64 %o, [out]; ld.global.u32 %r, [cell];\n\
         {{ .param .b32 x; .param .b32 y; st.param.b32 [x], %r; call.uni (y), twice, (x); ld.param.b32 %r, [y]; }}\n st.global.u32 [%o], %r; ret; }}\n"
    );
    let b = format!(
        "{head}.visible .global .align 4 .b32 cell = 21;\n\
         .visible .func (.param .b32 r) twice (.param .b32 a) {{ .reg .b32 %x; ld.param.b32 %x, [a]; add.u32 %x, %x, %x; st.param.b32 [r], %x; ret; }}\n"
    );
    let parse = |text: &str| Module::parse(text.as_bytes()).unwrap();
    let mut rig = Rig::of(vec![parse(&a), parse(&b)]);
    let out = rig.alloc(4);
    rig.run("k", 1, 1, Args::new().with(out).done());
    assert_eq!(rig.download::<u32>(out, 1), [42]);

    let error = link(vec![parse(&b), parse(&b)]).unwrap_err();
    assert_eq!(error.reason, "defined in two modules");
    let alone = Rig::new(&a);
    let error = alone.program.kernel("k").unwrap().unwrap_err();
    assert!(error.reason.contains("not defined"), "{error}");
    let weak = b.replace(".visible", ".weak");
    assert!(link(vec![parse(&b), parse(&weak), parse(&weak)]).is_ok());
}

#[test]
fn a_declaration_may_promise_a_result_that_the_definition_does_not_give() {
    // Numba declares functions of the C ABI this way; a linker joins them, and no code uses the result.
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    let caller = format!(
        "{head}.extern .func (.param .b64 r) consume (.param .b64 p);\n\
         .visible .entry k(.param .u64 out) {{ .reg .b64 %o, %x; ld.param.u64 %o, [out];\n\
         {{ .param .b64 p; .param .b64 r; st.param.b64 [p], %o; call.uni (r), consume, (p); ld.param.b64 %x, [r]; }}\n ret; }}\n"
    );
    let callee = format!(
        "{head}.visible .func consume (.param .b64 p) {{ .reg .b64 %p; ld.param.b64 %p, [p]; st.u32 [%p], 42; ret; }}\n"
    );
    let parse = |text: &str| Module::parse(text.as_bytes()).unwrap();
    let mut rig = Rig::of(vec![parse(&caller), parse(&callee)]);
    let out = rig.alloc(4);
    rig.run("k", 1, 1, Args::new().with(out).done());
    assert_eq!(rig.download::<u32>(out, 1), [42]);
}

#[test]
fn initialisers() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n\
        .func f() { ret; }\n\
        .visible .global .align 8 .u64 table[3] = {generic(data)+4, f, data};\n\
        .visible .global .align 4 .b32 data[2][2] = {{1}, {2, 3+4*2}};\n\
        .visible .const .align 4 .f32 pi = 0f40490FDB;\n\
        .visible .global .align 1 .b8 bytes[12] = {0xFF(data), 0xFF00(data), 0xFF0000(data), -1};\n\
        .visible .global .b16 open[] = {1, 2, 3};\n\
        .visible .entry k() { ret; }\n";
    let rig = Rig::new(text);
    let find = |name: &str| {
        let (variable, address) = rig.program.variables().find(|(v, _)| v.name == name).unwrap();
        (variable.size, address)
    };
    let (_, data) = find("data");
    let (_, table) = find("table");
    let table = rig.download::<u64>(table, 3);
    assert_eq!((table[0], table[2]), (data + 4, data));
    assert!(table[1] > data);
    assert_eq!(rig.download::<u32>(data, 4), [1, 0, 2, 11]);
    assert_eq!(rig.download::<f32>(find("pi").1, 1), [core::f32::consts::PI]);
    let bytes = rig.download::<u8>(find("bytes").1, 4);
    assert_eq!(bytes[..3], data.to_le_bytes()[..3]);
    assert_eq!(bytes[3], 0xFF);
    assert_eq!(find("open").0, 6);
}

#[test]
fn launches_that_no_device_accepts() {
    let mut rig = Rig::new(
        &kernel(".param .u64 a", ".reg .b32 %r; mov.u32 %r, %tid.x; ret;")
            .replace("\n{", "\n.maxntid 64, 2, 1\n{"),
    );
    let mut refused = |grid, block, params| {
        let launch = rig.launch("k", grid, block, params);
        matches!(rig.try_run(launch), Err(LaunchError::Invalid(_)))
    };
    assert!(refused([0, 1, 1], [1, 1, 1], vec![0; 8]));
    assert!(refused([1, 1, 1], [129, 1, 1], vec![0; 8]));
    assert!(refused([1, 1, 1], [1, 1, 1], vec![0; 4]));
    assert!(!refused([1, 1, 1], [128, 1, 1], vec![0; 8]));
}

#[test]
fn many_blocks_on_several_host_threads_add_atomically() {
    let text = kernel(
        ".param .u64 cells",
        ".reg .b32 %r; .reg .b64 %c; .reg .f32 %f; .reg .f64 %d; .reg .b16 %h; ld.param.u64 %c, [cells];\n\
         red.global.add.u32 [%c], 1; atom.global.add.u64 %c, [%c+8], 3; ld.param.u64 %c, [cells];\n\
         red.global.add.f32 [%c+16], 0f3F800000; red.global.add.f64 [%c+24], 0d3FF0000000000000;\n\
         atom.global.max.s32 %r, [%c+32], -5; atom.global.inc.u32 %r, [%c+36], 9;\n\
         mov.b16 %h, 0x3C00; red.global.add.noftz.f16 [%c+42], %h; ret;",
    );
    let mut rig = Rig::new(&text);
    rig.threads = 4;
    let cells = rig.upload(&[0u32, 0, 0, 0, 0, 0, 0, 0, 0xFFFF_FFF0, 0, 0]);
    rig.run("k", 20, 64, Args::new().with(cells).done());
    let got = rig.download::<u32>(cells, 11);
    assert_eq!(got[0], 1280);
    assert_eq!(got[2], 3840);
    assert_eq!(f32::from_bits(got[4]), 1280.0);
    assert_eq!(rig.download::<f64>(cells + 24, 1), [1280.0]);
    assert_eq!(got[8], (-5i32) as u32);
    assert_eq!(got[9], 0);
    assert_eq!(got[10] >> 16, u32::from(half::f16::from_f32(1280.0).to_bits()));
    assert_eq!(got[10] & 0xFFFF, 0);
}

#[test]
fn scopes_have_their_own_registers_and_labels() {
    let got = run(
        "mov.u32 %a, 1;\n{ .reg .b32 %a; mov.u32 %a, 50; AGAIN: add.u32 %a, %a, 1; setp.lt.u32 %p, %a, 60; @%p bra AGAIN; add.u32 %r, %r, %a; }\n\
         { AGAIN: add.u32 %r, %r, 1; setp.lt.u32 %p, %r, 64; @%p bra AGAIN; }\n add.u32 %r, %r, %a;",
        1,
    );
    assert_eq!(got, [65]);
}

#[test]
fn the_device_runtime_brings_a_grid_barrier() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n\
        .extern .func (.param .b64 r) cudaCGGetIntrinsicHandle (.param .b32 s);\n\
        .extern .func (.param .b32 r) cudaCGSynchronize (.param .b64 h, .param .b32 f);\n\
        .visible .entry k(.param .u64 out) { .reg .b32 %r, %n; .reg .b64 %o, %h; ld.param.u64 %o, [out]; red.global.add.u32 [%o], 1;\n\
        { .param .b32 s; .param .b64 h; st.param.b32 [s], 1; call.uni (h), cudaCGGetIntrinsicHandle, (s); ld.param.b64 %h, [h]; }\n\
        { .param .b64 h; .param .b32 f; .param .b32 r; st.param.b64 [h], %h; st.param.b32 [f], 0; call.uni (r), cudaCGSynchronize, (h, f); ld.param.b32 %r, [r]; }\n\
        { .param .b64 h; .param .b32 f; .param .b32 r; st.param.b64 [h], %h; st.param.b32 [f], 0; call.uni (r), cudaCGSynchronize, (h, f); ld.param.b32 %r, [r]; }\n\
        ld.global.u32 %n, [%o]; red.global.min.u32 [%o+4], %n; ret; }";
    let mut rig = Rig::new(text);
    rig.cooperative = true;
    rig.threads = 1;
    let out = rig.upload(&[0u32, u32::MAX]);
    rig.run("k", 9, 50, Args::new().with(out).done());
    assert_eq!(rig.download::<u32>(out, 2), [450, 450]);
}

#[test]
fn facts_of_a_kernel() {
    let text = per_thread(
        ".shared .align 8 .b8 a[12]; .shared .align 16 .b8 b[4]; .local .align 8 .b8 l[40];\n mov.u32 %a, 1; mov.u32 %b, 2; add.u32 %r, %a, %b;",
    );
    let rig = Rig::new(&text);
    let info = rig.program.kernel("k").unwrap().unwrap();
    assert_eq!((info.param_bytes, info.static_shared, info.local_bytes, info.max_threads), (8, 20, 48, 1024));
    assert_eq!(info.params, [ptx::Param { offset: 0, size: 8, align: 8 }]);
    assert!((7..14).contains(&info.registers), "{}", info.registers);
}
