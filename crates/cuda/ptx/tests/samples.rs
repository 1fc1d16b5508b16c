//! PTX that nvcc made of the .cu files beside it, executed and compared with the same computation in Rust.

mod common;

use common::{Args, Rig};

const BASICS: &str = include_str!("samples/basics.ptx");
const CONTROL: &str = include_str!("samples/control.ptx");
const MATH: &str = include_str!("samples/math.ptx");
const GRID: &str = include_str!("samples/grid.ptx");

fn noise(count: usize, seed: u32) -> Vec<u32> {
    let mut state = seed | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        })
        .collect()
}

fn unit(bits: u32) -> f32 {
    bits as f32 / u32::MAX as f32
}

#[test]
fn every_kernel_of_the_samples_is_usable() {
    for text in [BASICS, CONTROL, MATH, GRID] {
        let rig = Rig::new(text);
        let names: Vec<String> = rig.program.kernel_names().map(str::to_owned).collect();
        assert!(!names.is_empty());
        for name in names {
            rig.program.kernel(&name).unwrap().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

#[test]
fn saxpy() {
    let mut rig = Rig::new(BASICS);
    let n = 1000;
    let x: Vec<f32> = noise(n, 1).into_iter().map(unit).collect();
    let y: Vec<f32> = noise(n, 2).into_iter().map(unit).collect();
    let (dx, dy) = (rig.upload(&x), rig.upload(&y));
    rig.run("saxpy", 8, 128, Args::new().with(n as i32).with(2.5f32).with(dx).with(dy).done());
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 2.5f32.mul_add(*x, *y)).collect();
    assert_eq!(rig.download::<f32>(dy, n), expected);
}

#[test]
fn tiled_product() {
    let mut rig = Rig::new(BASICS);
    let n = 64;
    let a: Vec<f32> = noise(n * n, 3).into_iter().map(unit).collect();
    let b: Vec<f32> = noise(n * n, 4).into_iter().map(unit).collect();
    let (da, db, dc) = (rig.upload(&a), rig.upload(&b), rig.alloc(n * n * 4));
    let params = Args::new().with(n as i32).with(da).with(db).with(dc).done();
    let launch = rig.launch("matmul", [4, 4, 1], [16, 16, 1], params);
    rig.try_run(launch).unwrap().unwrap();
    let c = rig.download::<f32>(dc, n * n);
    for row in 0..n {
        for col in 0..n {
            let expected = (0..n).fold(0f32, |sum, k| a[row * n + k].mul_add(b[k * n + col], sum));
            assert_eq!(c[row * n + col], expected, "at {row}, {col}");
        }
    }
}

#[test]
fn histogram_of_many_blocks() {
    let mut rig = Rig::new(BASICS);
    let data: Vec<u8> = noise(50_000, 5).into_iter().map(|bits| (bits >> 24) as u8).collect();
    let (d, bins) = (rig.upload(&data), rig.upload(&[0u32; 256]));
    rig.run("histogram", 16, 192, Args::new().with(data.len() as i32).with(d).with(bins).done());
    let mut expected = [0u32; 256];
    data.iter().for_each(|&byte| expected[byte as usize] += 1);
    assert_eq!(rig.download::<u32>(bins, 256), expected);
}

#[test]
fn shuffled_sum_with_double_atomics() {
    let mut rig = Rig::new(BASICS);
    let x: Vec<f64> = noise(10_000, 6).into_iter().map(|bits| f64::from(bits >> 16)).collect();
    let (d, out) = (rig.upload(&x), rig.upload(&[0f64]));
    rig.run("sum", 7, 256, Args::new().with(x.len() as i32).with(d).with(out).done());
    assert_eq!(rig.download::<f64>(out, 1)[0], x.iter().sum::<f64>());
}

#[test]
fn dynamic_shared_memory() {
    let mut rig = Rig::new(BASICS);
    let data: Vec<i32> = (0..200).collect();
    let d = rig.upload(&data);
    rig.dynamic_shared = 800;
    rig.run("reverse", 1, 200, Args::new().with(d).done());
    assert_eq!(rig.download::<i32>(d, 200), data.into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn too_little_dynamic_shared_memory_is_a_fault() {
    let mut rig = Rig::new(BASICS);
    let d = rig.alloc(800);
    rig.dynamic_shared = 400;
    let fault = rig.fault("reverse", 1, 200, Args::new().with(d).done());
    assert_eq!(fault.kind, ptx::FaultKind::IllegalAddress);
    assert_eq!(fault.cuda_error().code(), 700);
    assert_eq!(fault.thread, [100, 0, 0]);
}

#[test]
fn recursion() {
    let mut rig = Rig::new(CONTROL);
    let out = rig.alloc(64 * 4);
    rig.run("fibonacci", 1, 64, Args::new().with(out).done());
    let fib = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89];
    let expected: Vec<i32> = (0..64).map(|i| fib[i % 12]).collect();
    assert_eq!(rig.download::<i32>(out, 64), expected);
}

#[test]
fn function_pointers_in_memory() {
    let mut rig = Rig::new(CONTROL);
    let a: Vec<i32> = (0..96).map(|i| i * 3 + 1).collect();
    let b: Vec<i32> = (0..96).map(|i| 50 - i).collect();
    let (da, db, out) = (rig.upload(&a), rig.upload(&b), rig.alloc(96 * 4));
    rig.run("pointers", 1, 96, Args::new().with(da).with(db).with(out).done());
    let expected: Vec<i32> = (0..96)
        .map(|i| match i % 3 {
            0 => a[i] + b[i],
            1 => a[i] - b[i],
            _ => a[i] * b[i],
        })
        .collect();
    assert_eq!(rig.download::<i32>(out, 96), expected);
}

#[test]
fn lanes_of_one_warp_wait_for_a_lock_that_another_holds() {
    let mut rig = Rig::new(CONTROL);
    let (lock, counter) = (rig.upload(&[0i32]), rig.upload(&[0i32]));
    rig.run("spinlock", 4, 96, Args::new().with(lock).with(counter).done());
    assert_eq!(rig.download::<i32>(counter, 1), [4 * 96]);
}

#[test]
fn switches_of_different_lanes() {
    let mut rig = Rig::new(CONTROL);
    let input: Vec<i32> = (0..64).map(|i| i % 9).collect();
    let (d, out) = (rig.upload(&input), rig.alloc(64 * 4));
    rig.run("switches", 1, 64, Args::new().with(d).with(out).done());
    let expected: Vec<i32> = (0..64)
        .map(|i| match input[i as usize] {
            0 => 10,
            1 => 7 + i,
            2 => i * i,
            3 => -i,
            4 => i ^ 0x55,
            5 => i << 3,
            6 => i % 5,
            _ => 99,
        })
        .collect();
    assert_eq!(rig.download::<i32>(out, 64), expected);
}

#[test]
fn virtual_calls_of_objects_on_the_heap() {
    let mut rig = Rig::new(CONTROL);
    let out = rig.alloc(64 * 4);
    rig.run("shapes", 1, 64, Args::new().with(out).done());
    let expected: Vec<f32> =
        (0..64).map(|i| i as f32 * i as f32 * if i % 2 == 1 { 1.0 } else { 3.0 }).collect();
    assert_eq!(rig.download::<f32>(out, 64), expected);
}

#[test]
fn loops_of_different_length_and_early_returns() {
    let mut rig = Rig::new(CONTROL);
    let input: Vec<u32> = (1..=128).collect();
    let (d, out) = (rig.upload(&input), rig.upload(&[0u32; 128]));
    rig.run("collatz", 1, 128, Args::new().with(d).with(out).done());
    let expected: Vec<u32> = input
        .iter()
        .map(|&n| {
            let (mut n, mut steps) = (n, 0);
            while n != 1 {
                n = if n % 2 == 1 { 3 * n + 1 } else { n / 2 };
                steps += 1;
            }
            steps
        })
        .collect();
    assert_eq!(rig.download::<u32>(out, 128), expected);
}

#[test]
fn a_failed_assertion_says_what_and_where() {
    let mut rig = Rig::new(CONTROL);
    rig.run("checked", 1, 32, Args::new().with(32i32).done());
    let fault = rig.fault("checked", 1, 32, Args::new().with(20i32).done());
    assert_eq!(fault.kind, ptx::FaultKind::Assert);
    assert_eq!(fault.cuda_error().code(), 710);
    assert_eq!(fault.thread, [20, 0, 0]);
    assert!(fault.message.contains("(int)threadIdx.x < limit"), "{}", fault.message);
}

#[test]
fn printf_formats_as_c_does() {
    let mut rig = Rig::new(CONTROL);
    rig.run("say", 1, 32, Args::new().with(2i32).done());
    let expected =
        "0| 0.00|ab  |000000ff|z|-5000000000|1e-07|%\n1| 1.50|ab  |000000ff|z|-5000000000|1e-07|%\n";
    assert_eq!(rig.printed(), expected);
}

#[test]
fn a_grid_wide_barrier_on_one_host_thread() {
    for threads in [1, 3] {
        let mut rig = Rig::new(GRID);
        rig.threads = threads;
        rig.cooperative = true;
        let d = rig.alloc(1000 * 4);
        rig.run("gsync", 20, 40, Args::new().with(d).with(1000i32).done());
        assert_eq!(rig.printed(), "sum 499500 of 1000 items\n");
    }
}

#[test]
fn a_grid_wide_barrier_without_a_cooperative_launch_traps() {
    let mut rig = Rig::new(GRID);
    let d = rig.alloc(400);
    let fault = rig.fault("gsync", 1, 32, Args::new().with(d).with(100i32).done());
    assert_eq!(fault.cuda_error().code(), 719);
}
