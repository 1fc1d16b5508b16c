//! How fast an image comes into a guardian and out of it, without a GPU: `cargo run --release -p guardian --example speed -- 2 12`
//! for 2 GiB that 12 threads read.
//!
//! The first number is what a cut can reach, the second what a restore can reach. The memory of the image is touched for the first
//! time by the first cut alone, so there are two.

use cuda_driver::{KeptImage, TakenCut};
use cuda_wire::ImageName;
use guardian::{Guardian, GuardianConfig, GuardianStore};
use snapshot::{BLOCK_BYTES, Block, BlockDigest, Key, Tables};
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SECRET: [u8; 32] = [7; 32];
const NAME: ImageName = ImageName { bytes: [7; 16] };
/// Blocks that a thread reads at a time, as a driver does.
const CHUNK: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<usize>());
    let gibibytes = words.next().unwrap_or(Ok(1))?;
    let threads = words.next().unwrap_or(Ok(12))?;
    let directory = tempfile::tempdir()?;
    let bytes = (gibibytes as u64) << 30;
    let socket = directory.path().join("guardian");
    let guardian = Guardian::start(&GuardianConfig::new(socket.clone(), 3 * bytes))?;
    let store = GuardianStore::connect(&socket)?;
    let image = store.open_image(NAME, &SECRET, 1, "")?;
    let mut tables = Tables::default();
    for number in 1..=2 {
        let took = put(&image, &mut tables, number, bytes)?;
        println!("cut {number}: {:.2} GB/s", bytes as f64 / took.as_secs_f64() / 1e9);
    }
    for turn in 1..=2 {
        let took = read(&image, threads)?;
        println!("restore {turn}: {:.2} GB/s", bytes as f64 / took.as_secs_f64() / 1e9);
    }
    drop(image);
    guardian.stop();
    Ok(())
}

/// Cuts memory of which every byte has changed.
fn put(
    image: &impl KeptImage,
    tables: &mut Tables,
    number: u64,
    bytes: u64,
) -> Result<Duration, Box<dyn Error>> {
    let content = vec![number as u8; BLOCK_BYTES];
    let digest =
        Key::from_seed(&blake3::derive_key("dxpu survival image digest v1", &SECRET)).digest(&content);
    let block = |index: u64| Block { address: index * BLOCK_BYTES as u64, bytes: BLOCK_BYTES as u32 };
    let entries: Vec<BlockDigest> =
        (1..=bytes / BLOCK_BYTES as u64).map(|index| BlockDigest { block: block(index), digest }).collect();
    let delta = tables.take(number, entries)?;
    let started = Instant::now();
    image.begin(delta.base, number)?;
    let roads = image.roads();
    std::thread::scope(|scope| {
        for road in 0..roads {
            let (dirty, content) = (&delta.dirty, &content);
            scope.spawn(move || {
                // The commit says what is missing.
                dirty
                    .iter()
                    .skip(road)
                    .step_by(roads)
                    .all(|entry| image.put_over(road, entry, content).is_ok())
            });
        }
    });
    let taken =
        TakenCut { delta, live_bytes: bytes, dirty_bytes: bytes, events: Vec::new(), pause: Duration::ZERO };
    image.commit(number, &taken)?;
    let took = started.elapsed();
    tables.settle(number, true)?;
    Ok(took)
}

/// Reads the whole image into buffers of the threads.
fn read(image: &impl KeptImage, threads: usize) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    let cut = image.image(image.committed()?)?;
    let list = cut.list();
    let chunks: Vec<&[BlockDigest]> = list.chunks(CHUNK).collect();
    let next = AtomicUsize::new(0);
    let is_whole = std::thread::scope(|scope| {
        let read = || {
            let mut slot = vec![0; CHUNK * BLOCK_BYTES];
            while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                let blocks: Vec<Block> = chunk.iter().map(|entry| entry.block).collect();
                if cut.read_into(&blocks, &mut slot[..blocks.len() * BLOCK_BYTES]).is_err() {
                    return false;
                }
            }
            true
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        threads.into_iter().all(|thread| thread.join().unwrap_or(false))
    });
    if is_whole { Ok(started.elapsed()) } else { Err("a block did not come".into()) }
}
