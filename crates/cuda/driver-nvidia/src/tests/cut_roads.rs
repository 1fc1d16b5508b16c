//! A cut that leaves over several roads at a time.

use super::{guard::*, session::*};
use cuda_driver::{BlockSink, CutState, LinkLost, Snapshots};
use cuda_wire::{Commands, StreamId};
use snapshot::BlockDigest;
use std::collections::BTreeMap;
use std::sync::Mutex;

const STREAM: StreamId = StreamId(11);
/// Enough for several threads.
const BYTES: u64 = 48 << 20;

/// What came, by address: its road and its first byte.
#[derive(Default)]
struct Roads(Mutex<BTreeMap<u64, (usize, u8)>>);

impl BlockSink for Roads {
    fn put(&self, entry: &BlockDigest, bytes: &[u8]) -> Result<(), LinkLost> {
        self.put_over(0, entry, bytes)
    }

    fn roads(&self) -> usize {
        4
    }

    fn put_over(&self, road: usize, entry: &BlockDigest, bytes: &[u8]) -> Result<(), LinkLost> {
        let before = self.0.lock().unwrap().insert(entry.block.address, (road, bytes[0]));
        assert_eq!(before, None, "the block at {:#x} came twice", entry.block.address);
        assert_eq!(key().digest(bytes), entry.digest);
        Ok(())
    }
}

#[test]
fn every_block_comes_once_over_one_of_the_roads() {
    let session = Session::bare(Some(256 << 20));
    session.protect(key()).unwrap();
    session.stream_create(STREAM, CONTEXT, 1, 0).unwrap();
    session.memory_allocate(CONTEXT, DATA, BYTES).unwrap();
    session.enqueue(STREAM, fill(DATA, BYTES, 7)).unwrap();
    let mut pending = session.cut(1, PATIENT);
    let CutState::Taken(taken) = pending.wait() else { panic!("the cut is not taken") };
    let roads = Roads::default();
    pending.send(&roads).unwrap();
    session.settle(1, true).unwrap();
    let came = roads.0.into_inner().unwrap();
    assert_eq!(came.len(), taken.delta.dirty.len());
    assert!(taken.delta.dirty.iter().all(|entry| came.contains_key(&entry.block.address)));
    assert!(came.values().all(|(_, byte)| *byte == 7));
    let used: std::collections::BTreeSet<usize> = came.values().map(|(road, _)| *road).collect();
    assert!(used.len() > 1, "one thread did it all");
    session.check_rules();
}
