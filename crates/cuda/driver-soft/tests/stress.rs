//! Random work on many streams against a model that does everything in order.
//!
//! The program of a seed is free of races: every buffer belongs to one stream at a time, and changes hands through an
//! event. So whatever the device overlaps, the result must be that of the order of the calls.

mod common;

use common::*;
use cuda_driver::Driver;
use cuda_wire::*;
use std::collections::HashMap;

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

const WORDS: u64 = 300;

/// One buffer: where it is, what it should hold, which stream uses it.
struct Buffer {
    address: u64,
    model: Vec<u32>,
    owner: usize,
    stream_ordered: bool,
}

fn run(seed: u64, steps: usize) {
    let session = Session::new();
    let driver = &session.driver;
    let info = session.load(1, include_bytes!("samples/kernels.ptx")).unwrap();
    let add = info.kernels.iter().position(|kernel| kernel.name == "add").unwrap() as u32;
    let mut random = Random(seed);
    // The legacy stream, two blocking ones, three others.
    let mut streams = vec![LEGACY];
    streams.extend([0, 0, 1, 1, 1].map(|kind| session.stream(kind)));
    let mut free_places: Vec<u64> = Vec::new();
    let mut buffers: HashMap<u64, Buffer> = HashMap::new();
    let mut names = 0u64;
    for step in 0..steps {
        let owner = random.below(streams.len() as u64) as usize;
        let stream = streams[owner];
        let mine: Vec<u64> = {
            let mut mine: Vec<u64> =
                buffers.iter().filter(|(_, b)| b.owner == owner).map(|(name, _)| *name).collect();
            mine.sort_unstable();
            mine
        };
        let pick = |random: &mut Random| mine.get(random.below(mine.len().max(1) as u64) as usize).copied();
        match random.below(12) {
            // A new buffer; addresses that were freed in this stream's past come first.
            0 | 1 if buffers.len() < 40 => {
                let address = match random.below(2) {
                    0 => free_places.pop().unwrap_or_else(|| session.place(WORDS * 4)),
                    _ => session.place(WORDS * 4),
                };
                let stream_ordered = random.below(2) == 0;
                let bytes = WORDS * 4;
                match stream_ordered {
                    true => driver.enqueue(stream, Op::Allocate { address, bytes }).unwrap(),
                    false => driver.memory_allocate(CONTEXT, address, bytes).unwrap(),
                }
                let value = random.next() as u32;
                driver.enqueue(stream, fill32(address, WORDS, value)).unwrap();
                names += 1;
                let model = vec![value; WORDS as usize];
                buffers.insert(names, Buffer { address, model, owner, stream_ordered });
            }
            2 => {
                let Some(name) = pick(&mut random) else { continue };
                let buffer = buffers.remove(&name).unwrap();
                match buffer.stream_ordered {
                    true => driver.enqueue(stream, Op::Free { address: buffer.address }).unwrap(),
                    false => driver.memory_free(buffer.address).unwrap(),
                }
                free_places.push(buffer.address);
            }
            3 | 4 => {
                let Some(name) = pick(&mut random) else { continue };
                let (value, from) = (random.next() as u32, random.below(WORDS));
                let count = random.below(WORDS - from) + 1;
                let buffer = buffers.get_mut(&name).unwrap();
                driver.enqueue(stream, fill32(buffer.address + from * 4, count, value)).unwrap();
                buffer.model[from as usize..(from + count) as usize].fill(value);
            }
            5 => {
                let Some(name) = pick(&mut random) else { continue };
                let from = random.below(WORDS);
                let words: Vec<u32> =
                    (0..random.below(WORDS - from) + 1).map(|_| random.next() as u32).collect();
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                let buffer = buffers.get_mut(&name).unwrap();
                session.write(stream, buffer.address + from * 4, &bytes).unwrap();
                buffer.model[from as usize..from as usize + words.len()].copy_from_slice(&words);
            }
            6 | 7 => {
                let (Some(to), Some(from)) = (pick(&mut random), pick(&mut random)) else { continue };
                if to == from {
                    continue;
                }
                let model = buffers[&from].model.clone();
                driver
                    .enqueue(stream, copy(buffers[&to].address, buffers[&from].address, WORDS * 4))
                    .unwrap();
                buffers.get_mut(&to).unwrap().model = model;
            }
            8 | 9 => {
                // out = a + b * 3, in place where the picks say so.
                let picks = (pick(&mut random), pick(&mut random), pick(&mut random));
                let (Some(a), Some(b), Some(out)) = picks else { continue };
                let bytes =
                    parameters(&[buffers[&a].address, buffers[&b].address, buffers[&out].address, WORDS]);
                driver.enqueue(stream, launch(1, add, 5, 64, &bytes)).unwrap();
                let sum = |(a, b): (&u32, &u32)| a.wrapping_add(b.wrapping_mul(3));
                let model: Vec<u32> = buffers[&a].model.iter().zip(&buffers[&b].model).map(sum).collect();
                buffers.get_mut(&out).unwrap().model = model;
            }
            10 => {
                // A buffer changes hands.
                let Some(name) = pick(&mut random) else { continue };
                let to = random.below(streams.len() as u64) as usize;
                let event = EventId(step as u32 + 1_000_000);
                driver.event_create(event, CONTEXT, 2).unwrap();
                driver.enqueue(stream, Op::Record { event, flags: 0 }).unwrap();
                driver.enqueue(streams[to], Op::Wait { event, flags: 0 }).unwrap();
                driver.event_destroy(event).unwrap();
                buffers.get_mut(&name).unwrap().owner = to;
            }
            _ => {
                let Some(name) = pick(&mut random) else { continue };
                let buffer = &buffers[&name];
                assert_eq!(
                    session.words(stream, buffer.address, WORDS),
                    buffer.model,
                    "seed {seed}, step {step}"
                );
            }
        }
    }
    driver.context_synchronize(CONTEXT).unwrap();
    for buffer in buffers.values() {
        let words = session.words(streams[buffer.owner], buffer.address, WORDS);
        assert_eq!(words, buffer.model, "seed {seed}, at the end");
    }
    assert_eq!(driver.take_deferred(), None);
    let bytes: u64 = buffers.len() as u64 * WORDS * 4;
    let (free, total) = driver.memory_info(0).unwrap();
    // The rest is the module's variables.
    assert!(total - free >= bytes && total - free <= bytes + 4096, "seed {seed}: {} used", total - free);
}

#[test]
fn random_programs_compute_what_their_order_says() {
    for seed in 1..=20 {
        run(seed, 600);
    }
}
