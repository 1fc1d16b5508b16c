//! Library code as compilers emit it: the math library, CUB, cooperative groups, Numba.

mod common;

use common::{Args, Rig};
use half::{bf16, f16};

fn close(got: f64, expected: f64, relative: f64, what: &str) {
    let error = (got - expected).abs();
    assert!(error <= relative * expected.abs().max(1e-3), "{what}: {got} is not {expected}");
}

fn spread(count: usize) -> Vec<f64> {
    (0..count).map(|i| (i as f64 - count as f64 / 2.0) * 0.173 + 0.01).collect()
}

#[test]
fn double_math() {
    let mut rig = Rig::new(include_str!("samples/math.ptx"));
    let x = spread(200);
    let (dx, out) = (rig.upload(&x), rig.alloc(200 * 80));
    rig.run("doubles", 4, 64, Args::new().with(dx).with(out).with(200i32).done());
    let got = rig.download::<f64>(out, 2000);
    for (i, &v) in x.iter().enumerate() {
        let o = &got[i * 10..];
        close(o[0], v.sin(), 1e-14, "sin");
        close(o[1], v.cos(), 1e-14, "cos");
        close(o[2], (v * 0.1).exp(), 1e-14, "exp");
        close(o[3], (v.abs() + 0.1).ln(), 1e-13, "log");
        close(o[4], (v.abs() + 0.5).powf(1.7), 1e-13, "pow");
        close(o[6], v.tanh(), 1e-14, "tanh");
        close(o[7], v.cbrt(), 1e-14, "cbrt");
        close(o[8], v % 0.7, 1e-12, "fmod");
        assert!((-1.0..=1.0).contains(&o[5]) && (v == 0.0 || o[5].signum() == v.signum()), "erf {}", o[5]);
    }
    // erf is odd, and Rust has none to compare with; a known value will do.
    let one = rig.upload(&[1.0f64]);
    rig.run("doubles", 1, 32, Args::new().with(one).with(out).with(1i32).done());
    let got = rig.download::<f64>(out, 10);
    close(got[5], 0.842_700_792_949_714_9, 1e-15, "erf");
    close(got[9], -0.120_782_237_635_245_22, 1e-13, "lgamma");
}

#[test]
fn single_math() {
    let mut rig = Rig::new(include_str!("samples/math.ptx"));
    let x: Vec<f32> = spread(200).into_iter().map(|v| v as f32).collect();
    let (dx, out) = (rig.upload(&x), rig.alloc(200 * 40));
    rig.run("singles", 4, 64, Args::new().with(dx).with(out).with(200i32).done());
    let got = rig.download::<f32>(out, 2000);
    for (i, &v) in x.iter().enumerate() {
        let o: Vec<f64> = got[i * 10..][..10].iter().map(|&value| f64::from(value)).collect();
        let w = f64::from(v);
        close(o[0], w.sin(), 5e-5, "sin");
        close(o[1], w.cos(), 5e-5, "cos");
        close(o[2], (w * 0.1).exp(), 1e-6, "exp");
        close(o[3], (w.abs() + 0.1).ln(), 1e-4, "log");
        close(o[4], (w.abs() + 0.5).powf(1.7), 2e-6, "pow");
        close(o[6], w.tanh(), 1e-5, "tanh");
        assert_eq!(got[i * 10 + 7], v.abs().sqrt());
        assert_eq!(got[i * 10 + 8], 1.0 / (v + 100.0));
        assert_eq!(got[i * 10 + 9], v.round_ties_even());
    }
}

#[test]
fn half_math() {
    let mut rig = Rig::new(include_str!("samples/math.ptx"));
    let n = 300;
    let a: Vec<f16> = (0..n).map(|i| f16::from_f32((i as f32 - 150.0) * 0.37)).collect();
    let b: Vec<f16> = (0..n).map(|i| f16::from_f32((i * 7 % 31) as f32 * 0.11 + 0.25)).collect();
    let bits = |values: &[f16]| values.iter().map(|value| value.to_bits()).collect::<Vec<u16>>();
    let (da, db, out) = (rig.upload(&bits(&a)), rig.upload(&bits(&b)), rig.alloc(n * 12));
    rig.run("halves", 5, 64, Args::new().with(da).with(db).with(out).with(n as i32).done());
    let got = rig.download::<u16>(out, n * 6);
    for i in 0..n {
        let (x, y) = (a[i].to_f32(), b[i].to_f32());
        let expected = [
            f16::from_f32(x + y),
            f16::from_f32(x * y),
            f16::from_f32(x.mul_add(y, x)),
            f16::from_f32(x.min(y)),
            f16::from_f32(x / y),
            f16::from_f32(x * 1.1),
        ];
        for (k, expected) in expected.iter().enumerate() {
            assert_eq!(f16::from_bits(got[i * 6 + k]), *expected, "operation {k} of {x} and {y}");
        }
    }
}

#[test]
fn brain_float_math() {
    let mut rig = Rig::new(include_str!("samples/math.ptx"));
    let n = 300;
    let a: Vec<bf16> = (0..n).map(|i| bf16::from_f32((i as f32 - 150.0) * 0.37)).collect();
    let b: Vec<bf16> = (0..n).map(|i| bf16::from_f32((i * 7 % 31) as f32 * 0.11 + 0.25)).collect();
    let bits = |values: &[bf16]| values.iter().map(|value| value.to_bits()).collect::<Vec<u16>>();
    let (da, db, out) = (rig.upload(&bits(&a)), rig.upload(&bits(&b)), rig.alloc(n * 6));
    rig.run("brains", 5, 64, Args::new().with(da).with(db).with(out).with(n as i32).done());
    let got = rig.download::<u16>(out, n * 3);
    for i in 0..n {
        let (x, y) = (a[i].to_f32(), b[i].to_f32());
        for (k, expected) in [x + y, x * y, x.mul_add(y, x)].into_iter().enumerate() {
            assert_eq!(
                bf16::from_bits(got[i * 3 + k]),
                bf16::from_f32(expected),
                "operation {k} of {x} and {y}"
            );
        }
    }
}

fn shuffled(count: usize) -> Vec<i32> {
    (0..count).map(|i| ((i * 7919 + 13) % 1009) as i32 - 500).collect()
}

#[test]
fn cub_block_algorithms() {
    let mut rig = Rig::new(include_str!("samples/cub.ptx"));
    let input = shuffled(512);
    let (d, out) = (rig.upload(&input), rig.alloc(512 * 4));
    rig.run("breduce", 4, 128, Args::new().with(d).with(out).done());
    let sums: Vec<i32> = input.chunks(128).map(|part| part.iter().sum()).collect();
    assert_eq!(rig.download::<i32>(out, 4), sums);

    rig.run("bscan", 1, 128, Args::new().with(d).with(out).done());
    let mut sum = 0;
    let scan: Vec<i32> = input[..128].iter().map(|value| (sum, sum += value).0).collect();
    assert_eq!(rig.download::<i32>(out, 128), scan);

    rig.run("bsort", 1, 128, Args::new().with(d).with(out).done());
    let mut sorted = input.clone();
    sorted.sort_unstable();
    assert_eq!(rig.download::<i32>(out, 512), sorted);

    let floats: Vec<f32> = input[..128].iter().map(|&value| value as f32).collect();
    let d = rig.upload(&floats);
    rig.run("wred", 1, 128, Args::new().with(d).with(out).done());
    let largest: Vec<f32> =
        floats.chunks(32).map(|part| part.iter().copied().fold(f32::MIN, f32::max)).collect();
    assert_eq!(rig.download::<f32>(out, 4), largest);
}

#[test]
fn cooperative_groups() {
    let mut rig = Rig::new(include_str!("samples/groups.ptx"));
    let out = rig.alloc(256 * 4);
    rig.run("tiles", 1, 64, Args::new().with(out).done());
    let expected: Vec<i32> = (0..64)
        .map(|i| {
            let tile = i / 8 * 8;
            let sum: i32 = (tile..tile + 8).sum();
            if i % 3 != 0 {
                return sum;
            }
            let warp = i / 32 * 32;
            let rank = (warp..i).filter(|j| j % 3 == 0).count() as i32;
            let size = (warp..warp + 32).filter(|j| j % 3 == 0).count() as i32;
            sum + 1000 * rank + 100_000 * size
        })
        .collect();
    assert_eq!(rig.download::<i32>(out, 64), expected);

    rig.run("labels", 1, 32, Args::new().with(out).done());
    let expected: Vec<i32> = (0..32).map(|i| (0..32).filter(|j| j % 5 == i % 5).count() as i32).collect();
    assert_eq!(rig.download::<i32>(out, 32), expected);

    let input = shuffled(128);
    let d = rig.upload(&input);
    rig.run("staged", 1, 128, Args::new().with(d).with(out).done());
    assert_eq!(rig.download::<i32>(out, 128), input.into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn barriers_in_shared_memory() {
    let mut rig = Rig::new(include_str!("samples/groups.ptx"));
    let out = rig.alloc(256 * 4);
    rig.run("phases", 1, 200, Args::new().with(out).done());
    let mut values: Vec<i32> = (0..200).collect();
    for _ in 0..5 {
        values = (0..200).map(|i| values[i].wrapping_add(values[(i + 1) % 200])).collect();
    }
    assert_eq!(rig.download::<i32>(out, 200), values);
}

#[test]
fn eight_bit_floats() {
    let mut rig = Rig::new(include_str!("samples/groups.ptx"));
    let x = [0.0f32, 1.0, 1.06, -3.3, 500.0, 0.001, 1e6, -0.3];
    let (d, out) = (rig.upload(&x), rig.alloc(64));
    rig.run("fp8", 1, 8, Args::new().with(d).with(out).done());
    let expected = [
        0.0,
        0.0,
        1.0,
        1.0,
        1.0,
        1.0,
        -3.25,
        -3.5,
        448.0,
        512.0,
        0.001_953_125,
        0.000_976_562_5,
        448.0,
        57344.0,
        -0.3125,
        -0.3125,
    ];
    assert_eq!(rig.download::<f32>(out, 16), expected);
}

#[test]
fn integers_of_128_bits() {
    let mut rig = Rig::new(include_str!("samples/groups.ptx"));
    let a: [i128; 4] = [0x1234_5678_9ABC_DEF0_1234_5678, -(1 << 100) + 7, -(1 << 99) - 3, i128::MAX - 5];
    let b: [i128; 4] = [0xFEDC_BA98_7654, 0x1_0000_0001_0000_0003, 12345678901234567, -(1 << 70)];
    let words =
        |values: &[i128]| values.iter().flat_map(|v| [*v as u64, (*v >> 64) as u64]).collect::<Vec<u64>>();
    let (da, db) = (rig.upload(&words(&a)), rig.upload(&words(&b)));
    rig.run("wide", 1, 1, Args::new().with(da).with(db).done());
    let expected = [a[0].wrapping_mul(b[0]), a[1] / b[1], a[2] % b[2], a[3] + b[3]];
    assert_eq!(rig.download::<u64>(da, 8), words(&expected));
}

/// An array as Numba passes it: two pointers it does not use, items, item size, data, shape, stride.
fn array(args: Args, data: u64, items: u64, item: u64) -> Args {
    args.with(0u64).with(0u64).with(items).with(item).with(data).with(items).with(item)
}

#[test]
fn numba_shared_and_local_arrays() {
    let mut rig = Rig::new(include_str!("samples/numba_shared.ptx"));
    let x: Vec<f32> = (0..64).map(|i| (i * i % 17) as f32).collect();
    let (dx, out) = (rig.upload(&x), rig.alloc(256));
    let name = rig.program.kernel_names().next().unwrap().to_owned();
    rig.run(&name, 1, 64, array(array(Args::new(), dx, 64, 4), out, 64, 4).done());
    let expected: Vec<f32> = (0..64).map(|t| (0..8).map(|k| x[(t + k) % 64]).sum()).collect();
    assert_eq!(rig.download::<f32>(out, 64), expected);
}

#[test]
fn numba_atomics() {
    let mut rig = Rig::new(include_str!("samples/numba_atomics.ptx"));
    let x: Vec<f64> = (0..128).map(f64::from).collect();
    let dx = rig.upload(&x);
    let out = rig.upload(&[0.0f64, -1e9, 1e9, -5.0]);
    let b = rig.upload(&[3u32, 0, 9, 0xFF]);
    let name = rig.program.kernel_names().next().unwrap().to_owned();
    let args = array(array(array(Args::new(), dx, 128, 8), out, 4, 8), b, 4, 4);
    rig.run(&name, 2, 64, args.done());
    assert_eq!(rig.download::<f64>(out, 1)[0], (0..128).step_by(4).map(f64::from).sum::<f64>());
    // Wrapping at 7: 3 + 128 steps modulo 8.
    assert_eq!(rig.download::<u32>(b, 4), [(3 + 128) % 8, 1, 5, 0xFF]);
}

#[test]
fn a_product_on_the_matrix_unit() {
    let mut rig = Rig::new(include_str!("samples/matrix.ptx"));
    let a: Vec<f32> = (0..256).map(|i| ((i * 37 % 23) as f32 - 11.0) * 0.25).collect();
    let b: Vec<f32> = (0..128).map(|i| ((i * 29 % 19) as f32 - 9.0) * 0.5).collect();
    let bits = |values: &[f32]| values.iter().map(|&v| f16::from_f32(v).to_bits()).collect::<Vec<u16>>();
    let (da, db, dc) = (rig.upload(&bits(&a)), rig.upload(&bits(&b)), rig.alloc(512));
    rig.run("product", 1, 32, Args::new().with(da).with(db).with(dc).done());
    let expected: Vec<f32> =
        (0..128).map(|i| 1.0 + (0..16).map(|k| a[i / 8 * 16 + k] * b[k * 8 + i % 8]).sum::<f32>()).collect();
    assert_eq!(rig.download::<f32>(dc, 128), expected);
}
