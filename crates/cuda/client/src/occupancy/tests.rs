use super::*;
use crate::limits::h200;

/// A kernel with these registers, this static shared memory, this largest block and this dynamic shared limit.
fn kernel(registers: i32, static_shared: i32, block_threads: i32, dynamic_max: i32) -> KernelLimits {
    KernelLimits::new(&[(0, block_threads), (1, static_shared), (4, registers), (8, dynamic_max)], &h200())
}

#[test]
fn answers_are_those_of_an_h200() {
    let device = h200();
    let mut compared = 0;
    for line in include_str!("h200.csv").lines().filter(|line| !line.starts_with('#')) {
        let (question, numbers) = line.split_once(';').unwrap();
        let n: Vec<i32> = numbers.split(';').map(|number| number.parse().unwrap()).collect();
        let kernel = kernel(n[0], n[1], n[2], n[3]);
        match question {
            "blocks" => {
                let blocks = max_active_blocks(&device, &kernel, n[4], n[5] as u64, 0);
                assert_eq!((0, blocks), (n[6], Ok(n[7])), "{line}");
            }
            "potential" => {
                let best = max_potential_block_size(&device, &kernel, |_| n[5] as u64, n[4], 0);
                assert_eq!((0, best), (n[6], Ok((n[7], n[8]))), "{line}");
            }
            "available" => {
                let bytes = available_dynamic_shared(&device, &kernel, n[4], n[5]);
                let expected = if n[6] == 0 { Ok(n[7] as u64) } else { Err(CudaError::INVALID_VALUE) };
                assert_eq!(bytes, expected, "{line}");
            }
            other => panic!("{other}"),
        }
        compared += 1;
    }
    assert!(compared > 500);
}

/// Each line as driver 580 answers it on an H200.
#[test]
fn edges_are_those_of_an_h200() {
    let device = h200();
    let plain = kernel(4, 0, 1024, 232_448);
    let blocks = |threads, shared, flags| max_active_blocks(&device, &plain, threads, shared, flags);
    assert_eq!(blocks(0, 0, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(blocks(-1, 0, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(blocks(1025, 0, 0), Ok(0));
    assert_eq!(blocks(64, 232_448, 0), Ok(1));
    assert_eq!(blocks(64, 232_449, 0), Ok(0));
    assert_eq!((blocks(64, 0, 1), blocks(64, 0, 2)), (Ok(32), Err(CudaError::INVALID_VALUE)));
    assert_eq!(max_potential_block_size(&device, &plain, |_| 0, -1, 0), Err(CudaError::INVALID_VALUE));
}

/// Shared memory as a function of the block size, each line as driver 580 answers it on an H200.
#[test]
fn the_callback_decides_with_the_block_size() {
    let device = h200();
    let potential = |static_shared, dynamic_max, factor: u64| {
        let kernel = kernel(4, static_shared, 1024, dynamic_max);
        max_potential_block_size(&device, &kernel, |threads| threads as u64 * factor, 0, 0).unwrap()
    };
    assert_eq!(potential(0, 232_448, 64), (264, 1024));
    assert_eq!(potential(0, 232_448, 200), (264, 576));
    assert_eq!(potential(0, 49_152, 64), (528, 512));
    assert_eq!(potential(0, 49_152, 200), (660, 224));
    assert_eq!(potential(32_768, 199_680, 200), (132, 992));
}

/// `(carveout, threads, dynamic shared, blocks)` as driver 580 answers on an H200.
#[test]
fn a_preferred_carveout_leaves_less_shared_memory() {
    let device = h200();
    for (carveout, threads, shared, blocks) in [
        (0, 64, 0, 8),
        (0, 64, 4096, 1),
        (0, 1024, 40_000, 1),
        (10, 64, 0, 32),
        (10, 64, 4096, 6),
        (10, 64, 20_000, 1),
        (25, 64, 4096, 12),
        (25, 64, 20_000, 3),
        (50, 64, 4096, 26),
        (50, 64, 20_000, 6),
        (50, 1024, 40_000, 2),
        (75, 64, 4096, 32),
        (75, 64, 20_000, 9),
        (100, 64, 20_000, 11),
    ] {
        let mut kernel = kernel(4, 0, 1024, 232_448);
        kernel.set(9, carveout, &device).unwrap();
        let answer = max_active_blocks(&device, &kernel, threads, shared, 0);
        assert_eq!(answer, Ok(blocks), "{carveout} {threads} {shared}");
    }
}

#[test]
fn clusters_of_one_and_two_are_exact_and_larger_ones_never_too_many() {
    let device = h200();
    let mut kernel = kernel(72, 0, 896, 232_448);
    kernel.set(14, 1, &device).unwrap();
    // (threads, dynamic shared, answers of one H200 for clusters of 1, 2, 4, 8 and 16)
    for (threads, shared, real) in [
        (128, 0, [924, 462, 216, 107, 49]),
        (128, 49_152, [528, 264, 124, 62, 28]),
        (128, 100_000, [264, 132, 62, 30, 14]),
        (512, 0, [132, 66, 30, 15, 7]),
        (1024, 0, [0; 5]),
    ] {
        let ours = [1, 2, 4, 8, 16]
            .map(|size| max_active_clusters(&device, &kernel, threads, shared, size).unwrap());
        assert_eq!(ours[..2], real[..2]);
        assert!(
            (2..5).all(|place| ours[place] <= real[place] && ours[place] * 10 >= real[place] * 9),
            "{ours:?}"
        );
    }
    assert_eq!(max_active_clusters(&device, &kernel, 128, 0, 17), Err(CudaError::INVALID_CLUSTER_SIZE));
    assert_eq!(max_potential_cluster_size(&device, &kernel, 512, 0), Ok(16));
    kernel.set(14, 0, &device).unwrap();
    assert_eq!(max_active_clusters(&device, &kernel, 128, 0, 16), Err(CudaError::INVALID_CLUSTER_SIZE));
    assert_eq!(max_potential_cluster_size(&device, &kernel, 512, 0), Ok(8));
    assert_eq!(max_potential_cluster_size(&device, &kernel, 1024, 0), Ok(0));
}

/// The published limits of other generations: threads, registers, shared memory and blocks of a multiprocessor.
#[test]
fn other_generations_follow_their_published_limits() {
    let device = |capability: (i32, i32), threads, shared, optin, blocks, reserved| {
        let base = [(1, 1024), (8, 49152), (10, 32), (12, 65536), (16, 80), (82, 65536)];
        let own =
            [(39, threads), (75, capability.0), (76, capability.1), (81, shared), (97, optin), (106, blocks)];
        DeviceLimits::new(&[&base[..], &own, &[(111, reserved)]].concat())
    };
    let blocks = |device: &DeviceLimits, registers, threads, shared| {
        let kernel = KernelLimits::new(&[(4, registers), (8, device.block_shared_optin as i32)], device);
        max_active_blocks(device, &kernel, threads, shared, 0).unwrap()
    };
    let volta = device((7, 0), 2048, 98_304, 98_304, 32, 0);
    assert_eq!(blocks(&volta, 32, 256, 0), 8);
    assert_eq!(blocks(&volta, 64, 256, 0), 4);
    assert_eq!(blocks(&volta, 32, 256, 48 << 10), 2);
    let turing = device((7, 5), 1024, 65_536, 65_536, 16, 0);
    assert_eq!(blocks(&turing, 32, 32, 0), 16);
    assert_eq!(blocks(&turing, 32, 256, 0), 4);
    let ampere = device((8, 0), 2048, 167_936, 166_912, 32, 1024);
    assert_eq!(blocks(&ampere, 32, 128, 40 << 10), 4);
    assert_eq!(blocks(&ampere, 32, 128, 166_912), 1);
    let ada = device((8, 9), 1536, 102_400, 101_376, 24, 1024);
    assert_eq!(blocks(&ada, 32, 64, 0), 24);
    assert_eq!(blocks(&ada, 40, 512, 0), 3);
}
