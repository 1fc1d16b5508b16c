//! A guardian in the test's own memory.

use super::session::Session;
use cuda_abi::CuResult;
use cuda_driver::{
    BlockSink, Blocks, Cut, CutState, Driver, LinkLost, PendingCut, Restored, Snapshots, TakenCut,
};
use snapshot::{Block, BlockDigest, Bytes, EventAge, Image, Key};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Long enough for any work that ends by itself.
pub(super) const PATIENT: Duration = Duration::from_secs(60);

pub(super) fn key() -> Arc<Key> {
    Arc::new(Key::from_seed(&[5; 32]))
}

pub(super) struct Guardian {
    pub(super) image: Mutex<Image>,
}

/// The image at one cut.
pub(super) struct At<'g> {
    pub(super) guardian: &'g Guardian,
    pub(super) number: u64,
}

struct Into<'g> {
    guardian: &'g Guardian,
    number: u64,
    last: Mutex<Option<u64>>,
}

impl Guardian {
    pub(super) fn new() -> Self {
        let mut image = Image::new(key(), 1 << 30);
        image.admit(1).unwrap();
        Self { image: Mutex::new(image) }
    }

    /// Takes what a cut sends, commits and pins it, and tells the driver.
    pub(super) fn finish(&self, session: &Session, mut pending: Box<dyn PendingCut>) -> TakenCut {
        match pending.wait() {
            CutState::Taken(taken) => {
                self.keep(session, pending, &taken).unwrap();
                *taken
            }
            other => panic!("{other:?}"),
        }
    }

    /// The same for a cut that is known to be taken. A cut that cannot be sent is given up.
    pub(super) fn keep(
        &self,
        session: &Session,
        pending: Box<dyn PendingCut>,
        taken: &TakenCut,
    ) -> Result<(), LinkLost> {
        let delta = &taken.delta;
        self.image.lock().unwrap().begin(1, delta.base, delta.number).unwrap();
        let sent = pending.send(&Into { guardian: self, number: delta.number, last: Mutex::default() });
        let mut image = self.image.lock().unwrap();
        match sent {
            Ok(()) => {
                image.bury(1, delta.number, &delta.dead).unwrap();
                image.commit(1, delta.number, delta.seal, taken.events.clone()).unwrap();
                image.pin(delta.number).unwrap();
            }
            Err(LinkLost) => image.abandon(1, delta.number).unwrap(),
        }
        drop(image);
        session.settle(delta.number, sent.is_ok()).unwrap();
        sent
    }

    /// What the image has at an address.
    pub(super) fn saved(&self, number: u64, address: u64, bytes: usize) -> Vec<u8> {
        let image = self.image.lock().unwrap();
        let mut found = Vec::new();
        for entry in image.blocks(number).unwrap() {
            if entry.block.address >= address && found.len() < bytes {
                found.extend_from_slice(&image.read(number, entry.block).unwrap());
            }
        }
        found.truncate(bytes);
        found
    }
}

impl BlockSink for Into<'_> {
    fn put(&self, entry: &BlockDigest, bytes: &[u8]) -> Result<(), LinkLost> {
        let before = self.last.lock().unwrap().replace(entry.block.address);
        assert!(before.is_none_or(|before| before < entry.block.address), "blocks ascend");
        let mut image = self.guardian.image.lock().unwrap();
        image.put(1, self.number, *entry, Bytes::copy_of(bytes)).map_err(|error| panic!("{error}"))
    }
}

impl Blocks for At<'_> {
    fn number(&self) -> u64 {
        self.number
    }

    fn list(&self) -> Vec<BlockDigest> {
        self.guardian.image.lock().unwrap().blocks(self.number).unwrap()
    }

    fn read(&self, block: Block) -> Result<Bytes, LinkLost> {
        Ok(self.guardian.image.lock().unwrap().read(self.number, block).unwrap())
    }

    fn events(&self) -> Vec<EventAge> {
        self.guardian.image.lock().unwrap().events(self.number).unwrap().to_vec()
    }
}

impl Session {
    /// A session without memory whose cuts are protected.
    pub(super) fn protected() -> Self {
        let session = Self::bare(None);
        session.snapshots().unwrap().protect(key()).unwrap();
        session
    }

    pub(super) fn try_cut(&self, number: u64, patience: Duration) -> CuResult<Box<dyn PendingCut>> {
        Snapshots::cut(
            &**self,
            Cut { number, dead: Default::default(), patience, on_taken: Arc::new(|_| {}) },
        )
    }

    pub(super) fn cut(&self, number: u64, patience: Duration) -> Box<dyn PendingCut> {
        self.try_cut(number, patience).unwrap()
    }

    pub(super) fn restore_from(&self, guardian: &Guardian, number: u64) -> CuResult<Restored> {
        Snapshots::restore(&**self, &At { guardian, number })
    }
}
