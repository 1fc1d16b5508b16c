//! Texture and surface instructions as nvcc writes them.

mod common;

use common::{Args, Rig};
use ptx::{AddressMode, Channel, ChannelKind, FaultKind, Level, Sampler};
use std::sync::Arc;

const HEAD: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";

fn plain(address: u64, width: u64, height: u64, depth: u64, channel: Channel) -> Sampler {
    let row_pitch = width * u64::from(channel.bytes) * u64::from(channel.count);
    Sampler {
        levels: vec![Level { address, row_pitch, slice_pitch: row_pitch * height, width, height, depth }],
        channel,
        is_memory: false,
        address_modes: [AddressMode::Clamp; 3],
        is_linear: false,
        is_normalized: false,
        reads_integers: false,
        is_srgb: false,
        is_mip_linear: false,
        lod_bias: 0.0,
        lod_bounds: (0.0, 0.0),
        border: [0.0; 4],
    }
}

const FLOAT: Channel = Channel { kind: ChannelKind::Float, bytes: 4, count: 1 };
const WORD: Channel = Channel { kind: ChannelKind::Unsigned, bytes: 4, count: 1 };

/// A kernel of one block whose thread `%r1` runs `body` and stores `%r9`.
fn kernel(body: &str) -> String {
    format!(
        "{HEAD}.visible .entry k(.param .u64 out, .param .u64 handle) {{
            .reg .b32 %r<20>; .reg .f32 %f<20>; .reg .b64 %rd<8>; .reg .b16 %rs<8>; .reg .pred %p<2>;
            ld.param.u64 %rd1, [out];
            ld.param.u64 %rd2, [handle];
            mov.u32 %r1, %tid.x;
            cvt.rn.f32.u32 %f1, %r1;
            add.f32 %f1, %f1, 0f3F000000;
            mov.f32 %f2, 0f3FC00000;
            {body}
            mul.wide.u32 %rd3, %r1, 4;
            add.s64 %rd4, %rd1, %rd3;
            st.global.u32 [%rd4], %r9;
            ret;
        }}"
    )
}

fn run(rig: &mut Rig, sampler: Sampler, threads: u32) -> Vec<u32> {
    rig.world.samplers.lock().unwrap().insert(0x10, Arc::new(sampler));
    let out = rig.alloc(4 * threads as usize);
    rig.run("k", 1, threads, Args::new().with(out).with(0x10u64).done());
    rig.download(out, threads as usize)
}

fn floats(count: usize) -> Vec<f32> {
    (0..count).map(|at| at as f32 * 0.25).collect()
}

#[test]
fn a_texture_of_two_dimensions_is_read_and_blended() {
    let body = "tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%rd2, {%f1, %f2}]; mov.b32 %r9, %f3;";
    let mut rig = Rig::new(&kernel(body));
    let data = rig.upload(&floats(32));
    let sampler = plain(data, 8, 4, 1, FLOAT);
    let read = |values: Vec<u32>| values.into_iter().map(f32::from_bits).collect::<Vec<_>>();
    let nearest = read(run(&mut rig, sampler.clone(), 10));
    let row: Vec<f32> = (8..16).map(|at| at as f32 * 0.25).collect();
    assert_eq!(nearest[..8], row[..]);
    assert_eq!(nearest[8..], [row[7], row[7]], "clamped");
    let blended = Sampler { is_linear: true, ..sampler };
    assert_eq!(read(run(&mut rig, blended, 8)), row, "texel centres are exact");
}

#[test]
fn layers_levels_gradients_and_offsets_are_understood_or_refused() {
    let data = |rig: &mut Rig| rig.upload(&floats(64));
    for (body, expected) in [
        ("mov.u32 %r2, 1; tex.a2d.v4.f32.f32 {%f3,%f4,%f5,%f6}, [%rd2, {%r2, %f1, %f2, %f2}];", 4.0 + 2.0),
        ("tex.level.2d.v4.f32.f32 {%f3,%f4,%f5,%f6}, [%rd2, {%f1, %f2}], 0f00000000;", 2.0),
        ("tex.grad.2d.v4.f32.f32 {%f3,%f4,%f5,%f6}, [%rd2, {%f1, %f2}], {%f2, %f2}, {%f2, %f2};", 2.0),
        ("tex.3d.v4.f32.f32 {%f3,%f4,%f5,%f6}, [%rd2, {%f1, %f2, %f2, %f2}];", 4.0 + 2.0),
        ("tex.1d.v4.f32.s32 {%f3,%f4,%f5,%f6}, [%rd2, {%r1}];", 0.0),
    ] {
        let mut rig = Rig::new(&kernel(&format!("{body} mov.b32 %r9, %f3;")));
        let data = data(&mut rig);
        let values = run(&mut rig, plain(data, 8, 2, 4, FLOAT), 1);
        assert_eq!(f32::from_bits(values[0]), expected, "{body}");
    }
    let offset = kernel(
        "mov.u32 %r2, 1; tex.2d.v4.f32.f32 {%f3,%f4,%f5,%f6}, [%rd2, {%f1,%f2}], {%r2,%r2}; mov.b32 %r9, %f3;",
    );
    let rig = Rig::new(&offset);
    let refusal = rig.program.kernel("k").unwrap().unwrap_err().to_string();
    assert!(refusal.contains("offsets"), "{refusal}");
}

#[test]
fn four_texels_are_gathered_and_questions_answered() {
    let body = "tld4.r.2d.v4.f32.f32 {%f3,%f4,%f5,%f6}, [%rd2, {%f2, %f2}];
        txq.width.b32 %r3, [%rd2]; txq.height.b32 %r4, [%rd2]; suq.array_size.b32 %r5, [%rd2];
        add.f32 %f3, %f3, %f6; cvt.rni.u32.f32 %r6, %f3;
        mad.lo.u32 %r9, %r3, 100, %r4; mad.lo.u32 %r9, %r9, 100, %r5; mad.lo.u32 %r9, %r9, 100, %r6;";
    let mut rig = Rig::new(&kernel(body));
    let words: Vec<f32> = (0..32).map(|at| at as f32).collect();
    let data = rig.upload(&words);
    // Texels (1, 2) and (1, 1) of rows of eight: 17 and 9.
    assert_eq!(run(&mut rig, plain(data, 8, 4, 1, FLOAT), 1), [8_040_126]);
}

#[test]
fn surfaces_are_written_read_and_added_to() {
    let body = "shl.b32 %r2, %r1, 2; mov.u32 %r3, 1; mov.u32 %r4, 7;
        mad.lo.u32 %r5, %r1, 3, 5;
        sust.b.2d.b32.trap [%rd2, {%r2, %r3}], {%r5};
        sured.b.add.2d.u32.trap [%rd2, {%r2, %r3}], %r4;
        suld.b.2d.b32.trap {%r9}, [%rd2, {%r2, %r3}];";
    let mut rig = Rig::new(&kernel(body));
    let data = rig.upload(&[0u32; 32]);
    let expected: Vec<u32> = (0..8).map(|at| at * 3 + 12).collect();
    assert_eq!(run(&mut rig, plain(data, 8, 4, 1, WORD), 8), expected);
    assert_eq!(rig.download::<u32>(data + 32, 8), expected, "the second row");
    rig.world.samplers.lock().unwrap().insert(0x10, Arc::new(plain(data, 8, 4, 1, WORD)));
    let out = rig.alloc(64);
    let fault = rig.fault("k", 1, 9, Args::new().with(out).with(0x10u64).done());
    assert_eq!(fault.kind, FaultKind::IllegalAddress);
    assert!(fault.message.contains("outside of a surface"), "{}", fault.message);
    assert_eq!(fault.thread, [8, 0, 0]);
}

#[test]
fn bytes_halves_vectors_and_edges_of_surfaces() {
    let body = "shl.b32 %r2, %r1, 2; mov.u32 %r3, 0; cvt.u16.u32 %rs1, %r1; mov.u16 %rs2, 9;
        sust.b.2d.v2.b16.zero [%rd2, {%r2, %r3}], {%rs1, %rs2};
        suld.b.2d.v4.b8.clamp {%rs3, %rs4, %rs5, %rs6}, [%rd2, {%r2, %r3}];
        cvt.u32.u16 %r5, %rs3; cvt.u32.u16 %r6, %rs5; mad.lo.u32 %r9, %r6, 100, %r5;";
    let mut rig = Rig::new(&kernel(body));
    let data = rig.upload(&[0u32; 8]);
    let values = run(&mut rig, plain(data, 4, 2, 1, WORD), 6);
    assert_eq!(values, [900, 901, 902, 903, 903, 903], "outside nothing is stored, and the last is loaded");
    assert_eq!(rig.download::<u32>(data, 8)[4..], [0; 4]);
}

#[test]
fn a_formatted_store_converts() {
    let body = "mov.u32 %r3, 0; mov.b32 %r4, 0f3F800000; mov.b32 %r5, 0f3F000000;
        sust.p.2d.v4.b32.trap [%rd2, {%r1, %r3}], {%r4, %r5, %r3, %r4};
        shl.b32 %r2, %r1, 2; suld.b.2d.b32.trap {%r9}, [%rd2, {%r2, %r3}];";
    let mut rig = Rig::new(&kernel(body));
    let data = rig.upload(&[0u32; 8]);
    let unorm = Channel { kind: ChannelKind::Unorm, bytes: 1, count: 4 };
    assert_eq!(run(&mut rig, plain(data, 4, 2, 1, unorm), 2), [0xff00_80ff; 2]);
}

#[test]
fn a_handle_that_is_none_ends_the_kernel() {
    let body = "tex.1d.v4.f32.f32 {%f3,%f4,%f5,%f6}, [%rd2, {%f1}]; mov.b32 %r9, %f3;";
    let mut rig = Rig::new(&kernel(body));
    let out = rig.alloc(64);
    let fault = rig.fault("k", 1, 1, Args::new().with(out).with(0xbadu64).done());
    assert!(fault.message.contains("0xbad is no texture"), "{}", fault.message);
    rig.world.samplers.lock().unwrap().insert(0xbad, Arc::new(plain(0x10, 8, 1, 1, FLOAT)));
    let fault = rig.fault("k", 1, 1, Args::new().with(out).with(0xbadu64).done());
    assert_eq!((fault.kind, fault.address), (FaultKind::IllegalAddress, 0x10), "memory that is not there");
}

#[test]
fn a_reference_of_the_module_holds_the_handle_that_the_host_bound() {
    let body = "tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [picture, {%f1, %f2}]; mov.b32 %r9, %f3;";
    let text =
        kernel(body).replace(HEAD, &format!("{HEAD}.global .texref picture;\n.global .surfref canvas;\n"));
    let mut rig = Rig::new(&text);
    let references: Vec<(String, u64)> = rig
        .program
        .variables()
        .filter(|(variable, _)| variable.is_reference)
        .map(|(variable, address)| (variable.name.clone(), address))
        .collect();
    assert_eq!(references.len(), 2);
    let (_, address) = references.iter().find(|(name, _)| name == "picture").unwrap();
    rig.memory.write(*address, &0x10u64.to_le_bytes()).unwrap();
    let data = rig.upload(&floats(32));
    let values = run(&mut rig, plain(data, 8, 4, 1, FLOAT), 2);
    assert_eq!(values.into_iter().map(f32::from_bits).collect::<Vec<_>>(), [2.0, 2.25]);
}
