//! The kernels of cuts, as functions of this process with the parameters of the real ones.

use super::{State, memory::MemoryState, work::Launched};
use snapshot::{BLOCK_BYTES, Key, digest::KEY_BYTES};
use std::sync::{Arc, Mutex, PoisonError};

/// Keys of tests are made from these seeds.
const SEEDS: u8 = 8;

/// Keys that were seen, by their bytes.
static KEYS: Mutex<Vec<(Vec<u8>, Arc<Key>)>> = Mutex::new(Vec::new());

fn parameters(launch: &Launched) -> Vec<u64> {
    let numbers = launch.parameters.chunks_exact(8);
    numbers.map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes"))).collect()
}

/// Where a copy goes that writes pinned memory, and how much at most.
pub(super) fn target(launch: &Launched) -> Option<(u64, usize)> {
    match (launch.name.as_str(), &parameters(launch)[..]) {
        ("dxpu_shadow", &[.., slots, target]) if target >= super::PINNED_OFFSET => {
            Some((target, slots as usize * BLOCK_BYTES))
        }
        _ => None,
    }
}

/// The key that these bytes stand for.
fn key(bytes: &[u8]) -> Option<Arc<Key>> {
    let mut keys = KEYS.lock().unwrap_or_else(PoisonError::into_inner);
    if keys.is_empty() {
        let made = (0..SEEDS).map(|seed| Arc::new(Key::from_seed(&[seed; 32])));
        keys.extend(made.map(|key| (key.to_bytes().to_vec(), key)));
    }
    keys.iter().find(|(of, _)| of == bytes).map(|(_, key)| Arc::clone(key))
}

impl State {
    /// Runs a kernel of cuts; `None` if it is another one. False if it touches what is not there.
    pub(super) fn execute_cut_kernel(&mut self, launch: &Launched) -> Option<bool> {
        let values = parameters(launch);
        match (launch.name.as_str(), &values[..]) {
            ("dxpu_digest", &[blocks, count, key, committed, pending, dirty, dirty_count, skipped, cut]) => {
                if self.memory.read_word(skipped, 8)? >= cut {
                    return Some(true);
                }
                let tables = [committed, pending, dirty, dirty_count];
                Some(digest(&mut self.memory, (blocks, count), key, tables).is_some())
            }
            ("dxpu_shadow", &[blocks, dirty, dirty_count, first, slots, target]) => {
                Some(shadow(&mut self.memory, [blocks, dirty, dirty_count], first, slots, target).is_some())
            }
            _ => None,
        }
    }
}

fn read<const BYTES: usize>(memory: &mut MemoryState, address: u64) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    memory.read(address, &mut bytes).then_some(bytes)
}

/// Address and bytes of a block, and what it holds.
fn block(memory: &mut MemoryState, blocks: u64, place: u64) -> Option<Vec<u8>> {
    let address = u64::from_le_bytes(read(memory, blocks + place * 16)?);
    let bytes = u64::from_le_bytes(read(memory, blocks + place * 16 + 8)?);
    let mut data = vec![0; bytes as usize];
    memory.read(address, &mut data).then_some(data)
}

fn digest(
    memory: &mut MemoryState,
    (blocks, count): (u64, u64),
    key_at: u64,
    [committed, pending, dirty, dirty_count]: [u64; 4],
) -> Option<()> {
    let key = key(&read::<KEY_BYTES>(memory, key_at)?)?;
    // Thread blocks run in no order: the last is the first here.
    for place in (0..count).rev() {
        let digest = key.digest(&block(memory, blocks, place)?).0.to_le_bytes();
        if !memory.write(pending + place * 16, &digest) {
            return None;
        }
        if read::<16>(memory, committed + place * 16)? != digest {
            let found = u32::from_le_bytes(read(memory, dirty_count)?);
            let is_noted = memory.write(dirty + u64::from(found) * 4, &(place as u32).to_le_bytes())
                && memory.write(dirty_count, &(found + 1).to_le_bytes());
            is_noted.then_some(())?;
        }
    }
    Some(())
}

fn shadow(
    memory: &mut MemoryState,
    [blocks, dirty, dirty_count]: [u64; 3],
    first: u64,
    slots: u64,
    target: u64,
) -> Option<()> {
    let count = u64::from(u32::from_le_bytes(read(memory, dirty_count)?));
    for slot in 0..slots.min(count.saturating_sub(first)) {
        let place = u32::from_le_bytes(read(memory, dirty + (first + slot) * 4)?);
        let data = block(memory, blocks, place.into())?;
        let at = target + slot * BLOCK_BYTES as u64;
        let is_written = match at.checked_sub(super::PINNED_OFFSET) {
            Some(start) => memory.write_pinned(start as usize, &data),
            None => memory.write(at, &data),
        };
        is_written.then_some(())?;
    }
    Some(())
}
