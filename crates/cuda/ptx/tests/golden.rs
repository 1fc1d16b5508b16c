//! 606 forms of instructions on 256 inputs each, many of them special values. The sums in `samples/golden.txt` are of
//! results that an H200 gave, bit for bit; the engine must give the same.
//!
//! Each line: the sum, the bits of the inputs (and of the result, if different), the instruction.

mod common;

use std::fmt::Write as _;

use common::{Args, Rig};

const THREADS: u64 = 256;

/// Inputs that meet edges often: limits of integers, infinities, NaNs, subnormals, numbers of ordinary size.
fn inputs() -> Vec<u64> {
    const SPECIAL: [u64; 24] = [
        0,
        1,
        2,
        3,
        31,
        32,
        33,
        0x7F,
        0x80,
        0xFF,
        0x7FFF,
        0x8000,
        0xFFFF,
        0x3F80_0000,
        0xBF80_0000,
        0x7F80_0000,
        0xFF80_0000,
        0x7FFF_FFFF,
        0x8000_0000,
        0xFFFF_FFFF,
        0x3FF0_0000_0000_0000,
        1 << 63,
        u64::MAX,
        0x1_0000_0001,
    ];
    let mut state = 0x1234_5678_9ABC_DEF1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut one = || {
        let kind = next();
        match kind % 5 {
            0 | 1 => SPECIAL[(kind >> 8) as usize % SPECIAL.len()],
            2 => {
                let small = next() as u32;
                u64::from(small % 0x0800_0000 + 0x3C00_0000) | next() << 32
            }
            3 => u64::from((next() as f32 / 1e18).to_bits()),
            _ => {
                let bits = next();
                if kind & 1024 == 0 { bits } else { ((bits as i64) as f64 / 1e10).to_bits() }
            }
        }
    };
    (0..THREADS * 3).map(|_| one()).collect()
}

fn text(rows: &[(&str, &str)]) -> String {
    let mut text = String::from(
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n{\n\
         .reg .b64 %in, %out, %t; .reg .b32 %i;\nld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mov.u32 %i, %tid.x;\n\
         mul.wide.u32 %t, %i, 24; add.u64 %in, %in, %t; mul.wide.u32 %t, %i, 8; add.u64 %out, %out, %t;\n",
    );
    for (index, (bits, inst)) in rows.iter().enumerate() {
        let (from, to) = bits.split_once('>').unwrap_or((bits, bits));
        let result = match to {
            _ if inst.contains("%p,") => "selp.b64 %w, 1, 0, %p".to_owned(),
            "64" => "mov.b64 %w, %d".to_owned(),
            _ => format!("cvt.u64.u{to} %w, %d"),
        };
        let offset = index as u64 * THREADS * 8;
        writeln!(
            text,
            "{{ .reg .b{from} %a, %b, %c; .reg .b{to} %d; .reg .pred %p; .reg .b64 %w;\n\
             ld.global.b{from} %a, [%in]; ld.global.b{from} %b, [%in+8]; ld.global.b{from} %c, [%in+16];\n\
             mov.b{to} %d, 0; {inst}; {result}; st.global.u64 [%out+{offset}], %w; }}"
        )
        .unwrap();
    }
    text.push_str("ret;\n}\n");
    text
}

/// FNV-1a over the bytes of the results.
fn sum(values: &[u64]) -> u64 {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    bytes.fold(0xCBF2_9CE4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

#[test]
fn the_engine_computes_what_an_h200_computes() {
    let golden = include_str!("samples/golden.txt");
    let mut sums = Vec::new();
    let mut rows = Vec::new();
    for line in golden.lines() {
        let (sum, rest) = line.split_once(' ').expect("a sum");
        sums.push(u64::from_str_radix(sum, 16).expect("a hexadecimal sum"));
        rows.push(rest.split_once(' ').expect("an instruction"));
    }
    assert!(rows.len() > 600);
    let mut rig = Rig::new(&text(&rows));
    let (input, out) = (rig.upload(&inputs()), rig.alloc(rows.len() * THREADS as usize * 8));
    rig.run("k", 1, THREADS as u32, Args::new().with(input).with(out).done());
    let results = rig.download::<u64>(out, rows.len() * THREADS as usize);
    let mut wrong = Vec::new();
    for (index, part) in results.chunks(THREADS as usize).enumerate() {
        if sum(part) != sums[index] {
            wrong.push(format!("{:016x} {} {}", sum(part), rows[index].0, rows[index].1));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
