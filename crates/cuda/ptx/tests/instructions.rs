//! One row an instruction: what it is given, what it must give. Every row runs on the engine, as PTX text.

mod common;

use std::fmt::Write as _;

use common::{Args, Rig};

/// Instruction over `%d`, `%a`, `%b`, `%c` (and predicates `%p`, `%q`); bits of the registers; inputs; the result.
type Row<'r> = (&'r str, u32, &'r [u64], u64);

/// Runs all rows in one kernel and compares.
fn check(rows: &[Row<'_>]) {
    let mut text = String::from(
        ".version 8.2\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out)\n{\n.reg .b64 %out;\nld.param.u64 %out, [out];\n",
    );
    for (index, (inst, bits, inputs, _)) in rows.iter().enumerate() {
        let inst = inst.trim_end_matches(';');
        writeln!(text, "{{ .reg .b{bits} %d, %a, %b, %c; .reg .b64 %wide, %w; .reg .b32 %n; .reg .b16 %h; .reg .pred %p, %q;").unwrap();
        for (name, value) in ["a", "b", "c"].iter().zip(inputs.iter()) {
            writeln!(text, "mov.b{bits} %{name}, {value:#x};").unwrap();
        }
        writeln!(text, "mov.b{bits} %d, 0; mov.b64 %w, 0; mov.b32 %n, 0; mov.b16 %h, 0; setp.ne.u32 %p, 0, 0; setp.ne.u32 %q, 0, 0;").unwrap();
        writeln!(text, "{inst};").unwrap();
        // The result is whichever of the registers the row wrote.
        let from = if inst.contains("%w,") || inst.contains("%w ") {
            "mov.b64 %wide, %w".to_owned()
        } else if inst.contains("%n") {
            "cvt.u64.u32 %wide, %n".to_owned()
        } else if inst.contains("%h,") {
            "cvt.u64.u16 %wide, %h".to_owned()
        } else if inst.contains("%d") {
            if *bits == 64 { "mov.b64 %wide, %d".into() } else { format!("cvt.u64.u{bits} %wide, %d") }
        } else {
            "selp.b64 %wide, 1, 0, %p".to_owned()
        };
        writeln!(text, "{from}; st.global.u64 [%out+{}], %wide; }}", index * 8).unwrap();
    }
    text.push_str("ret;\n}\n");
    let mut rig = Rig::new(&text);
    let out = rig.alloc(rows.len() * 8);
    rig.run("k", 1, 1, Args::new().with(out).done());
    let got = rig.download::<u64>(out, rows.len());
    let mut wrong = Vec::new();
    for ((inst, _, inputs, expected), got) in rows.iter().zip(got) {
        if got != *expected {
            wrong.push(format!("{inst} of {inputs:x?}: got {got:#x}, not {expected:#x}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const fn f(value: f32) -> u64 {
    value.to_bits() as u64
}

const fn g(value: f64) -> u64 {
    value.to_bits()
}

const NAN: u64 = 0x7FFF_FFFF;

#[test]
fn integers() {
    check(&[
        ("add.u32 %d, %a, %b", 32, &[0xFFFF_FFFF, 2], 1),
        ("add.s16 %d, %a, %b", 16, &[0x7FFF, 1], 0x8000),
        ("add.sat.s32 %d, %a, %b", 32, &[0x7FFF_FFFF, 5], 0x7FFF_FFFF),
        ("sub.sat.s32 %d, %a, %b", 32, &[0x8000_0000, 1], 0x8000_0000),
        ("sub.u64 %d, %a, %b", 64, &[1, 2], u64::MAX),
        ("mul.lo.u32 %d, %a, %b", 32, &[0x1_0001, 0x1_0001], 0x2_0001),
        ("mul.hi.u32 %d, %a, %b", 32, &[0xFFFF_FFFF, 0xFFFF_FFFF], 0xFFFF_FFFE),
        ("mul.hi.s32 %d, %a, %b", 32, &[0xFFFF_FFFF, 5], 0xFFFF_FFFF),
        ("mul.wide.s32 %w, %a, %b", 32, &[0xFFFF_FFFE, 3], (-6i64) as u64),
        ("mul.wide.u32 %w, %a, %b", 32, &[0xFFFF_FFFF, 0xFFFF_FFFF], 0xFFFF_FFFE_0000_0001),
        ("mul.wide.s16 %n, %a, %b", 16, &[0xFFFF, 7], (-7i32) as u32 as u64),
        ("mul.hi.u64 %d, %a, %b", 64, &[u64::MAX, u64::MAX], u64::MAX - 1),
        ("mul.hi.s64 %d, %a, %b", 64, &[u64::MAX, 9], u64::MAX),
        ("mul24.lo.s32 %d, %a, %b", 32, &[0xFF_FFFF, 3], (-3i32) as u32 as u64),
        ("mul24.hi.u32 %d, %a, %b", 32, &[0xFF_FFFF, 0xFF_FFFF], 0xFFFF_FE00),
        ("mad.lo.s32 %d, %a, %b, %c", 32, &[3, 4, 5], 17),
        ("mad.hi.u32 %d, %a, %b, %c", 32, &[0x8000_0000, 4, 5], 7),
        ("mad.wide.u32 %w, %a, %b, %w", 32, &[0xFFFF_FFFF, 2], 0x1_FFFF_FFFE),
        ("mad24.lo.u32 %d, %a, %b, %c", 32, &[0x100_0003, 4, 5], 17),
        ("sad.s32 %d, %a, %b, %c", 32, &[(-3i32) as u32 as u64, 4, 10], 17),
        ("sad.u32 %d, %a, %b, %c", 32, &[3, 0xFFFF_FFFF, 0], 0xFFFF_FFFC),
        ("div.s32 %d, %a, %b", 32, &[(-7i32) as u32 as u64, 2], (-3i32) as u32 as u64),
        ("div.u32 %d, %a, %b", 32, &[7, 0], 0xFFFF_FFFF),
        ("div.s32 %d, %a, %b", 32, &[0x8000_0000, 0xFFFF_FFFF], 0x8000_0000),
        ("rem.s64 %d, %a, %b", 64, &[(-7i64) as u64, 3], (-1i64) as u64),
        ("rem.u32 %d, %a, %b", 32, &[7, 0], 0xFFFF_FFFF),
        ("abs.s32 %d, %a", 32, &[(-9i32) as u32 as u64], 9),
        ("abs.s64 %d, %a", 64, &[1 << 63], 1 << 63),
        ("neg.s16 %d, %a", 16, &[1], 0xFFFF),
        ("min.s32 %d, %a, %b", 32, &[0xFFFF_FFFF, 1], 0xFFFF_FFFF),
        ("min.u32 %d, %a, %b", 32, &[0xFFFF_FFFF, 1], 1),
        ("max.s64 %d, %a, %b", 64, &[u64::MAX, 1], 1),
        ("max.u16 %d, %a, %b", 16, &[0xFFFF, 1], 0xFFFF),
        ("max.relu.s32 %d, %a, %b", 32, &[0xFFFF_FFFF, 0xFFFF_FFFE], 0),
        ("min.s16x2 %d, %a, %b", 32, &[0xFFFF_0003, 0x0001_0002], 0xFFFF_0002),
        ("add.u16x2 %d, %a, %b", 32, &[0xFFFF_0003, 0x0001_FFFF], 0x0000_0002),
        ("popc.b64 %n, %a", 64, &[0xF0F0], 8),
        ("popc.b32 %d, %a", 32, &[0xFFFF_FFFF], 32),
        ("clz.b32 %d, %a", 32, &[1], 31),
        ("clz.b64 %n, %a", 64, &[0], 64),
        ("bfind.u32 %d, %a", 32, &[0x100], 8),
        ("bfind.s32 %d, %a", 32, &[0xFFFF_FFFF], 0xFFFF_FFFF),
        ("bfind.s32 %d, %a", 32, &[0xFFFF_FF00], 7),
        ("bfind.shiftamt.u32 %d, %a", 32, &[0x100], 23),
        ("brev.b32 %d, %a", 32, &[1], 0x8000_0000),
        ("brev.b64 %d, %a", 64, &[2], 1 << 62),
        ("bfe.u32 %d, %a, %b, %c", 32, &[0x1234_5678, 8, 8], 0x56),
        ("bfe.s32 %d, %a, %b, %c", 32, &[0x0000_8000, 8, 8], 0xFFFF_FF80),
        ("bfe.s32 %d, %a, %b, %c", 32, &[0x8000_0000, 28, 20], 0xFFFF_FFF8),
        ("bfe.u64 %d, %a, 8, 64", 64, &[0xFF00], 0xFF),
        ("bfi.b32 %d, %a, %b, 8, 4", 32, &[0xF, 0], 0xF00),
        ("bfi.b64 %d, %a, %b, 32, 32", 64, &[0x1234, 0x5678], 0x1234_0000_5678),
        ("bmsk.clamp.b32 %d, %a, %b", 32, &[4, 8], 0xFF0),
        ("szext.wrap.s32 %d, %a, %b", 32, &[0x80, 8], 0xFFFF_FF80),
        ("szext.clamp.u32 %d, %a, %b", 32, &[0xFFFF, 8], 0xFF),
        ("fns.b32 %d, %a, %b, %c", 32, &[0b1011_0100, 0, 3], 5),
        ("fns.b32 %d, %a, %b, %c", 32, &[0b1011_0100, 31, 0xFFFF_FFFF], 7),
        ("fns.b32 %d, %a, %b, %c", 32, &[0b100, 3, 1], 0xFFFF_FFFF),
        ("dp4a.s32.s32 %d, %a, %b, %c", 32, &[0xFF02_0304, 0x0101_0101, 10], 18),
        ("dp4a.u32.s32 %d, %a, %b, %c", 32, &[0xFF00_0000, 0xFF00_0000, 0], (-255i32) as u32 as u64),
        ("dp2a.lo.s32.u32 %d, %a, %b, %c", 32, &[0xFFFF_0002, 0x0000_0305, 1], 8),
        ("dp2a.hi.u32.u32 %d, %a, %b, %c", 32, &[0x0001_0002, 0x0305_0000, 1], 14),
    ]);
}

#[test]
fn carries() {
    check(&[
        ("add.cc.u32 %n, %a, %b; addc.u32 %d, %c, 0", 32, &[0xFFFF_FFFF, 1, 5], 0),
        ("add.cc.u32 %d, %a, %b; addc.u32 %d, %c, 0", 32, &[0xFFFF_FFFF, 1, 5], 6),
        ("sub.cc.u32 %d, %a, %b; subc.u32 %d, %c, 0", 32, &[0, 1, 5], 4),
        ("sub.cc.u32 %d, %a, %b; addc.u32 %d, 0, 0", 32, &[0, 1], 0),
        ("sub.cc.u32 %d, %a, %b; addc.u32 %d, 0, 0", 32, &[1, 1], 1),
        ("add.cc.u64 %d, %a, %b; addc.u64 %d, %c, 0", 64, &[u64::MAX, 1, 5], 6),
        ("sub.cc.u64 %d, %a, %b; subc.cc.u64 %d, 0, 0; subc.u64 %d, %c, 0", 64, &[0, 1, 5], 4),
        (
            "mad.lo.cc.u32 %d, %a, %b, %c; madc.hi.u32 %d, %a, %b, 0",
            32,
            &[0xFFFF_FFFF, 0xFFFF_FFFF, 0xFFFF_FFFF],
            0xFFFF_FFFF,
        ),
    ]);
}

#[test]
fn bits() {
    check(&[
        ("and.b32 %d, %a, %b", 32, &[0xF0F0, 0xFF00], 0xF000),
        ("or.b16 %d, %a, %b", 16, &[0xF0, 0xF00], 0xFF0),
        ("xor.b64 %d, %a, %b", 64, &[u64::MAX, 1], u64::MAX - 1),
        ("not.b16 %d, %a", 16, &[1], 0xFFFE),
        ("cnot.b32 %d, %a", 32, &[0], 1),
        ("cnot.b32 %d, %a", 32, &[7], 0),
        ("shl.b32 %d, %a, %b", 32, &[1, 32], 0),
        ("shl.b64 %d, %a, 63", 64, &[3], 1 << 63),
        ("shr.s32 %d, %a, %b", 32, &[0x8000_0000, 40], 0xFFFF_FFFF),
        ("shr.u32 %d, %a, %b", 32, &[0x8000_0000, 31], 1),
        ("shr.s16 %d, %a, 4", 16, &[0x8000], 0xF800),
        ("shr.s64 %d, %a, 1", 64, &[1 << 63], 3 << 62),
        ("shf.l.wrap.b32 %d, %a, %b, %c", 32, &[0x8000_0000, 1, 33], 3),
        ("shf.r.clamp.b32 %d, %a, %b, %c", 32, &[0x8000_0000, 1, 33], 1),
        ("shf.r.wrap.b32 %d, %a, %b, %c", 32, &[0x8000_0000, 1, 1], 0xC000_0000),
        ("shf.l.clamp.b32 %d, %a, %b, %c", 32, &[0x1234_5678, 1, 32], 0x1234_5678),
        ("lop3.b32 %d, %a, %b, %c, 0x96", 32, &[0xF0, 0xCC, 0xAA], 0x96),
        ("lop3.b32 %d, %a, %b, %c, 0x1F", 32, &[0xF0, 0xCC, 0xAA], 0xFFFF_FF1F),
        ("lop3.or.b32 _|%p, %a, %b, %c, 0x80, %q", 32, &[0xF0, 0xF0, 0x10], 1),
        ("prmt.b32 %d, %a, %b, 0x7610", 32, &[0x3322_1100, 0x7766_5544], 0x7766_1100),
        ("prmt.b32 %d, %a, %b, 0x000B", 32, &[0x8822_1100, 0], 0x0000_00FF),
        ("prmt.b32.f4e %d, %a, %b, 1", 32, &[0x3322_1100, 0x7766_5544], 0x4433_2211),
        ("prmt.b32.b4e %d, %a, %b, 1", 32, &[0x3322_1100, 0x7766_5544], 0x6677_0011),
        ("prmt.b32.rc8 %d, %a, %b, 2", 32, &[0x3322_1100, 0], 0x2222_2222),
        ("prmt.b32.ecl %d, %a, %b, 2", 32, &[0x3322_1100, 0], 0x3322_2222),
        ("prmt.b32.ecr %d, %a, %b, 2", 32, &[0x3322_1100, 0], 0x2222_1100),
        ("prmt.b32.rc16 %d, %a, %b, 1", 32, &[0x3322_1100, 0], 0x3322_3322),
        ("mov.b32 {%h, _}, %a", 32, &[0x1234_5678], 0x5678),
        ("mov.b64 {_, %n}, %a", 64, &[0x1234_5678_9ABC_DEF0], 0x1234_5678),
        ("mov.b64 %w, {%a, %b}", 32, &[1, 2], 0x2_0000_0001),
        ("mov.b32 %d, {%h, %h}", 32, &[], 0),
        ("selp.b32 %d, %a, %b, %p", 32, &[1, 2], 2),
        ("slct.s32.s32 %d, %a, %b, %c", 32, &[1, 2, 0xFFFF_FFFF], 2),
        ("slct.f32.f32 %d, %a, %b, %c", 32, &[1, 2, f(0.0)], 1),
    ]);
}

#[test]
fn single_precision() {
    const TINY: u64 = 1;
    check(&[
        ("add.f32 %d, %a, %b", 32, &[f(1.5), f(2.25)], f(3.75)),
        ("add.rz.f32 %d, %a, %b", 32, &[f(1.0), 0x3380_0001], f(1.0)),
        ("add.rn.f32 %d, %a, %b", 32, &[f(1.0), 0x3380_0001], 0x3F80_0001),
        ("add.rp.f32 %d, %a, %b", 32, &[f(1.0), f(1e-30)], 0x3F80_0001),
        ("add.rm.f32 %d, %a, %b", 32, &[f(1.0), f(-1e-30)], 0x3F7F_FFFF),
        ("add.rm.f32 %d, %a, %b", 32, &[f(1.0), f(-1.0)], f(-0.0)),
        ("add.rn.f32 %d, %a, %b", 32, &[f(1.0), f(-1.0)], f(0.0)),
        ("add.rz.f32 %d, %a, %b", 32, &[f(f32::MAX), f(f32::MAX)], f(f32::MAX)),
        ("add.f32 %d, %a, %b", 32, &[f(f32::INFINITY), f(f32::NEG_INFINITY)], NAN),
        ("add.sat.f32 %d, %a, %b", 32, &[f(0.75), f(0.75)], f(1.0)),
        ("add.sat.f32 %d, %a, %b", 32, &[NAN, f(0.75)], f(0.0)),
        ("add.ftz.f32 %d, %a, %b", 32, &[TINY, 0x8000_0001], f(0.0)),
        ("sub.f32 %d, %a, %b", 32, &[f(1.0), f(3.0)], f(-2.0)),
        ("mul.rz.f32 %d, %a, %b", 32, &[0x3F80_0001, 0x3F80_0001], 0x3F80_0002),
        ("mul.rp.f32 %d, %a, %b", 32, &[0x3F80_0001, 0x3F80_0001], 0x3F80_0003),
        ("mul.rp.f32 %d, %a, %b", 32, &[TINY, TINY], TINY),
        ("mul.ftz.f32 %d, %a, %b", 32, &[f(1e-30), f(1e-10)], 0),
        ("fma.rn.f32 %d, %a, %b, %c", 32, &[0x3F80_0001, 0x3F80_0001, 0xBF80_0002], 0x2880_0000),
        ("fma.rm.f32 %d, %a, %b, %c", 32, &[f(1.0), f(1.0), f(-1e-30)], 0x3F7F_FFFF),
        ("mad.rn.f32 %d, %a, %b, %c", 32, &[f(2.0), f(3.0), f(4.0)], f(10.0)),
        ("fma.rn.sat.f32 %d, %a, %b, %c", 32, &[f(2.0), f(3.0), f(4.0)], f(1.0)),
        ("div.rn.f32 %d, %a, %b", 32, &[f(1.0), f(3.0)], 0x3EAA_AAAB),
        ("div.rz.f32 %d, %a, %b", 32, &[f(1.0), f(3.0)], 0x3EAA_AAAA),
        ("div.rn.f32 %d, %a, %b", 32, &[f(1.0), f(0.0)], f(f32::INFINITY)),
        ("div.approx.f32 %d, %a, %b", 32, &[f(6.0), f(3.0)], f(2.0)),
        ("div.full.f32 %d, %a, %b", 32, &[f(6.0), f(3.0)], f(2.0)),
        ("rcp.rn.f32 %d, %a", 32, &[f(3.0)], 0x3EAA_AAAB),
        ("rcp.approx.ftz.f32 %d, %a", 32, &[TINY], f(f32::INFINITY)),
        ("sqrt.rn.f32 %d, %a", 32, &[f(2.0)], f(core::f32::consts::SQRT_2)),
        ("sqrt.rm.f32 %d, %a", 32, &[f(2.0)], 0x3FB5_04F3),
        ("sqrt.rp.f32 %d, %a", 32, &[f(2.0)], 0x3FB5_04F4),
        ("rsqrt.approx.f32 %d, %a", 32, &[f(4.0)], f(0.5)),
        ("sin.approx.f32 %d, %a", 32, &[f(0.0)], f(0.0)),
        ("cos.approx.f32 %d, %a", 32, &[f(0.0)], f(1.0)),
        ("lg2.approx.f32 %d, %a", 32, &[f(8.0)], f(3.0)),
        ("ex2.approx.f32 %d, %a", 32, &[f(-2.0)], f(0.25)),
        ("tanh.approx.f32 %d, %a", 32, &[f(0.0)], f(0.0)),
        ("neg.f32 %d, %a", 32, &[f(1.0)], f(-1.0)),
        ("abs.f32 %d, %a", 32, &[f(-1.0)], f(1.0)),
        ("min.f32 %d, %a, %b", 32, &[NAN, f(1.0)], f(1.0)),
        ("min.f32 %d, %a, %b", 32, &[f(0.0), f(-0.0)], f(-0.0)),
        ("max.f32 %d, %a, %b", 32, &[f(-0.0), f(0.0)], f(0.0)),
        ("max.NaN.f32 %d, %a, %b", 32, &[NAN, f(1.0)], NAN),
        ("max.f32 %d, %a, %b", 32, &[NAN, NAN], NAN),
        ("min.xorsign.abs.f32 %d, %a, %b", 32, &[f(-3.0), f(2.0)], f(-2.0)),
        ("copysign.f32 %d, %a, %b", 32, &[f(-1.0), f(3.0)], f(-3.0)),
        ("testp.subnormal.f32 %p, %a", 32, &[TINY], 1),
        ("testp.notanumber.f32 %p, %a", 32, &[NAN], 1),
        ("testp.finite.f32 %p, %a", 32, &[f(f32::INFINITY)], 0),
        ("testp.normal.f32 %p, %a", 32, &[f(1.0)], 1),
    ]);
}

#[test]
fn double_precision() {
    check(&[
        ("add.f64 %d, %a, %b", 64, &[g(1.5), g(2.25)], g(3.75)),
        ("add.rz.f64 %d, %a, %b", 64, &[g(1.0), g(-1e-30)], g(1.0) - 1),
        ("add.rp.f64 %d, %a, %b", 64, &[g(1.0), g(1e-30)], g(1.0) + 1),
        ("add.rm.f64 %d, %a, %b", 64, &[g(1.0), g(-1.0)], g(-0.0)),
        ("sub.rm.f64 %d, %a, %b", 64, &[g(1.0), g(1e-30)], g(1.0) - 1),
        ("mul.rz.f64 %d, %a, %b", 64, &[g(0.1), g(0.1)], g(0.1 * 0.1) - 1),
        ("mul.rp.f64 %d, %a, %b", 64, &[g(5e-324), g(0.25)], g(5e-324)),
        ("mul.rn.f64 %d, %a, %b", 64, &[g(5e-324), g(0.25)], 0),
        ("mul.rz.f64 %d, %a, %b", 64, &[g(1e300), g(-1e300)], g(f64::MIN)),
        ("fma.rn.f64 %d, %a, %b, %c", 64, &[g(0.1), g(10.0), g(-1.0)], g(5.551115123125783e-17)),
        ("fma.rp.f64 %d, %a, %b, %c", 64, &[g(1e-200), g(1e-200), g(1.0)], g(1.0) + 1),
        ("fma.rm.f64 %d, %a, %b, %c", 64, &[g(1e-200), g(-1e-200), g(1.0)], g(1.0) - 1),
        ("div.rn.f64 %d, %a, %b", 64, &[g(1.0), g(3.0)], g(1.0 / 3.0)),
        ("div.rp.f64 %d, %a, %b", 64, &[g(1.0), g(3.0)], g(1.0 / 3.0) + 1),
        ("div.rz.f64 %d, %a, %b", 64, &[g(-1.0), g(3.0)], g(-1.0 / 3.0)),
        ("rcp.rn.f64 %d, %a", 64, &[g(4.0)], g(0.25)),
        ("sqrt.rn.f64 %d, %a", 64, &[g(2.0)], g(core::f64::consts::SQRT_2)),
        ("sqrt.rm.f64 %d, %a", 64, &[g(2.0)], g(core::f64::consts::SQRT_2) - 1),
        ("sqrt.rp.f64 %d, %a", 64, &[g(2.0)], g(core::f64::consts::SQRT_2)),
        ("min.f64 %d, %a, %b", 64, &[g(f64::NAN), g(1.0)], g(1.0)),
        ("max.f64 %d, %a, %b", 64, &[g(2.0), g(1.0)], g(2.0)),
        ("neg.f64 %d, %a", 64, &[g(0.0)], g(-0.0)),
        ("copysign.f64 %d, %a, %b", 64, &[g(-1.0), g(3.0)], g(-3.0)),
        ("testp.infinite.f64 %p, %a", 64, &[g(f64::INFINITY)], 1),
    ]);
}

#[test]
fn half_precision() {
    check(&[
        ("add.f16 %d, %a, %b", 16, &[0x3C00, 0x4000], 0x4200),
        ("add.rn.bf16 %d, %a, %b", 16, &[0x3F80, 0x4000], 0x4040),
        ("add.f16x2 %d, %a, %b", 32, &[0x3C00_4000, 0x3C00_4000], 0x4000_4400),
        ("mul.f16 %d, %a, %b", 16, &[0x7BFF, 0x4000], 0x7C00),
        ("mul.sat.f16 %d, %a, %b", 16, &[0x7BFF, 0x4000], 0x3C00),
        ("add.ftz.f16 %d, %a, %b", 16, &[0x0001, 0x0001], 0),
        ("add.f16 %d, %a, %b", 16, &[0x0001, 0x0001], 0x0002),
        ("fma.rn.f16 %d, %a, %b, %c", 16, &[0x3C01, 0x3C01, 0xBC02], 0x0010),
        ("fma.rn.relu.f16 %d, %a, %b, %c", 16, &[0x3C00, 0x3C00, 0xC000], 0),
        ("fma.rn.bf16x2 %d, %a, %b, %c", 32, &[0x3F80_4000, 0x4000_4000, 0x3F80_3F80], 0x4040_40A0),
        ("min.f16 %d, %a, %b", 16, &[0x7E00, 0x3C00], 0x3C00),
        ("max.NaN.f16 %d, %a, %b", 16, &[0x7E00, 0x3C00], 0x7FFF),
        ("neg.f16x2 %d, %a", 32, &[0x3C00_BC00], 0xBC00_3C00),
        ("abs.bf16 %d, %a", 16, &[0xBF80], 0x3F80),
        ("ex2.approx.f16 %d, %a", 16, &[0x4000], 0x4400),
        ("tanh.approx.f16x2 %d, %a", 32, &[0], 0),
        ("setp.lt.f16 %p, %a, %b", 16, &[0x3C00, 0x4000], 1),
        ("setp.gt.bf16 %p, %a, %b", 16, &[0x3F80, 0x4000], 0),
        ("setp.lt.f16x2 %p|%q, %a, %b", 32, &[0x3C00_3C00, 0x3C00_4000], 1),
        ("set.eq.f16.f16 %d, %a, %b", 16, &[0x3C00, 0x3C00], 0x3C00),
        ("set.lt.u32.f16 %n, %a, %b", 16, &[0x3C00, 0x4000], 0xFFFF_FFFF),
        ("set.gtu.f16x2.f16x2 %d, %a, %b", 32, &[0x7E00_3C00, 0x3C00_3C00], 0x3C00_0000),
    ]);
}

#[test]
fn comparisons() {
    check(&[
        ("setp.lt.s32 %p, %a, %b", 32, &[0xFFFF_FFFF, 0], 1),
        ("setp.lt.u32 %p, %a, %b", 32, &[0xFFFF_FFFF, 0], 0),
        ("setp.lo.u32 %p, %a, %b", 32, &[0, 0xFFFF_FFFF], 1),
        ("setp.hs.u32 %p, %a, %b", 32, &[1, 1], 1),
        ("setp.eq.f32 %p, %a, %b", 32, &[NAN, NAN], 0),
        ("setp.equ.f32 %p, %a, %b", 32, &[NAN, NAN], 1),
        ("setp.ne.f32 %p, %a, %b", 32, &[NAN, 0], 0),
        ("setp.neu.f32 %p, %a, %b", 32, &[NAN, 0], 1),
        ("setp.num.f32 %p, %a, %b", 32, &[f(1.0), 0], 1),
        ("setp.nan.f64 %p, %a, %b", 64, &[g(f64::NAN), 0], 1),
        ("setp.geu.f64 %p, %a, %b", 64, &[g(f64::NAN), 0], 1),
        ("setp.eq.ftz.f32 %p, %a, %b", 32, &[1, 0], 1),
        ("setp.eq.s16 %p, %a, %b", 16, &[0xFFFF, 0xFFFF], 1),
        ("setp.gt.s64 %p, %a, %b", 64, &[u64::MAX, 0], 0),
        ("setp.eq.and.s32 %p, %a, %b, !%q", 32, &[1, 1], 1),
        ("setp.eq.xor.s32 %p|%q, %a, %b, %q", 32, &[1, 2], 0),
        ("setp.eq.or.s32 %q|%p, %a, %b, %q", 32, &[1, 2], 1),
        ("set.lt.u32.s32 %d, %a, %b", 32, &[1, 2], 0xFFFF_FFFF),
        ("set.lt.f32.s32 %d, %a, %b", 32, &[1, 2], f(1.0)),
        ("set.gt.and.u32.f32 %d, %a, %b, %p", 32, &[f(2.0), f(1.0)], 0),
        ("not.pred %p, %q", 32, &[], 1),
        ("mov.pred %p, %q", 32, &[], 0),
    ]);
}

#[test]
fn conversions() {
    check(&[
        ("cvt.s64.s32 %w, %a", 32, &[0xFFFF_FFFF], u64::MAX),
        ("cvt.u64.u32 %w, %a", 32, &[0xFFFF_FFFF], 0xFFFF_FFFF),
        ("cvt.u16.u32 %h, %a", 32, &[0x12_3456], 0x3456),
        ("cvt.s32.s8 %d, %a", 32, &[0x80], 0xFFFF_FF80),
        ("cvt.sat.u8.s32 %d, %a", 32, &[0xFFFF_FFFF], 0),
        ("cvt.sat.s8.s32 %d, %a", 32, &[1000], 127),
        ("cvt.rzi.s32.f32 %d, %a", 32, &[f(-2.9)], (-2i32) as u32 as u64),
        ("cvt.rni.s32.f32 %d, %a", 32, &[f(2.5)], 2),
        ("cvt.rmi.s32.f32 %d, %a", 32, &[f(-2.1)], (-3i32) as u32 as u64),
        ("cvt.rpi.s32.f32 %d, %a", 32, &[f(2.1)], 3),
        ("cvt.rzi.u32.f32 %d, %a", 32, &[f(-2.9)], 0),
        ("cvt.rzi.s32.f32 %d, %a", 32, &[f(3e9)], 0x7FFF_FFFF),
        ("cvt.rzi.s32.f32 %d, %a", 32, &[NAN], 0),
        ("cvt.rzi.s64.f32 %w, %a", 32, &[NAN], 1 << 63),
        ("cvt.rzi.s32.f64 %n, %a", 64, &[g(f64::NAN)], 0x8000_0000),
        ("cvt.rzi.u64.f64 %d, %a", 64, &[g(1e19)], 10_000_000_000_000_000_000),
        ("cvt.rn.f32.s32 %d, %a", 32, &[16_777_217], f(16_777_216.0)),
        ("cvt.rp.f32.s32 %d, %a", 32, &[16_777_217], f(16_777_218.0)),
        ("cvt.rz.f32.u64 %n, %a", 64, &[u64::MAX], 0x5F7F_FFFF),
        ("cvt.rn.f64.u64 %d, %a", 64, &[u64::MAX], g(18446744073709551616.0)),
        ("cvt.rz.f64.u64 %d, %a", 64, &[u64::MAX], g(18446744073709551616.0) - 1),
        ("cvt.f64.f32 %w, %a", 32, &[f(1.5)], g(1.5)),
        ("cvt.rn.f32.f64 %n, %a", 64, &[g(0.1)], f(0.1)),
        ("cvt.rz.f32.f64 %n, %a", 64, &[g(0.1)], f(0.1) - 1),
        ("cvt.rn.ftz.f32.f64 %n, %a", 64, &[g(1e-40)], 0),
        ("cvt.rni.f32.f32 %d, %a", 32, &[f(2.5)], f(2.0)),
        ("cvt.rmi.f64.f64 %d, %a", 64, &[g(-2.5)], g(-3.0)),
        ("cvt.sat.f32.f32 %d, %a", 32, &[f(7.0)], f(1.0)),
        ("cvt.rn.f16.f32 %h, %a", 32, &[f(65520.0)], 0x7C00),
        ("cvt.rz.f16.f32 %h, %a", 32, &[f(65520.0)], 0x7BFF),
        ("cvt.f32.f16 %n, %a", 16, &[0x3555], f(0.333_251_95)),
        ("cvt.rn.bf16.f32 %h, %a", 32, &[0x3F80_8000], 0x3F80),
        ("cvt.rn.bf16.f32 %h, %a", 32, &[0x3F81_8000], 0x3F82),
        ("cvt.f32.bf16 %n, %a", 16, &[0x4049], 0x4049_0000),
        ("cvt.rn.f16.s32 %h, %a", 32, &[2049], 0x6800),
        ("cvt.rzi.s16.f16 %d, %a", 16, &[0xC100], 0xFFFE),
        ("cvt.rn.f16x2.f32 %d, %a, %b", 32, &[f(1.0), f(2.0)], 0x3C00_4000),
        ("cvt.rn.relu.bf16x2.f32 %d, %a, %b", 32, &[f(-1.0), f(2.0)], 0x0000_4000),
        ("cvt.rna.tf32.f32 %d, %a", 32, &[0x3F80_1000], 0x3F80_2000),
        ("cvt.rn.satfinite.e4m3x2.f32 %h, %a, %b", 32, &[f(1000.0), f(-1.0)], 0x7EB8),
        ("cvt.rn.satfinite.e5m2x2.f32 %h, %a, %b", 32, &[f(1.0), f(1.5)], 0x3C3E),
        ("cvt.rn.f16x2.e4m3x2 %n, %a", 16, &[0x38B8], 0x3C00_BC00),
        ("cvt.pack.sat.s16.s32 %d, %a, %b", 32, &[70_000, 0xFFFF_FFFF], 0x7FFF_FFFF),
        ("cvt.pack.sat.u8.s32.b32 %d, %a, %b, %c", 32, &[300, 0xFFFF_FFFF, 0x1234], 0x1234_FF00),
    ]);
}
