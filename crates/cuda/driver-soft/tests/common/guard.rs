//! A guardian in the test's own memory.

use super::Session;
use cuda_abi::CuResult;
use cuda_driver::{
    BlockSink, Blocks, Cut, CutState, Driver, LinkLost, PendingCut, Restored, Snapshots, TakenCut,
};
use snapshot::{Block, BlockDigest, Bytes, EventAge, Extents, Image, Key};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Long enough for any work that ends by itself.
pub const PATIENT: Duration = Duration::from_secs(60);

pub fn key() -> Arc<Key> {
    Arc::new(Key::from_seed(&[5; 32]))
}

pub struct Guardian {
    pub image: Mutex<Image>,
}

/// The image at one cut.
pub struct At<'g> {
    guardian: &'g Guardian,
    number: u64,
}

struct Into<'g> {
    guardian: &'g Guardian,
    number: u64,
}

impl Guardian {
    pub fn new() -> Self {
        let mut image = Image::new(key(), 1 << 30);
        image.admit(1).unwrap();
        Self { image: Mutex::new(image) }
    }

    pub fn at(&self, number: u64) -> At<'_> {
        At { guardian: self, number }
    }

    /// Takes what a cut sends, commits and pins it, and tells the driver.
    pub fn finish(&self, session: &Session, mut pending: Box<dyn PendingCut>) -> TakenCut {
        let CutState::Taken(taken) = pending.wait() else { panic!("the cut was abandoned") };
        let delta = &taken.delta;
        self.image.lock().unwrap().begin(1, delta.base, delta.number).unwrap();
        pending.send(&Into { guardian: self, number: delta.number }).unwrap();
        let mut image = self.image.lock().unwrap();
        image.bury(1, delta.number, &delta.dead).unwrap();
        image.commit(1, delta.number, delta.seal, taken.events.clone()).unwrap();
        image.pin(delta.number).unwrap();
        drop(image);
        session.cuts().settle(delta.number, true).unwrap();
        *taken
    }
}

impl BlockSink for Into<'_> {
    fn put(&self, entry: &BlockDigest, bytes: &[u8]) -> Result<(), LinkLost> {
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
    pub fn cuts(&self) -> &dyn Snapshots {
        self.driver.snapshots().unwrap()
    }

    pub fn cut(&self, number: u64, patience: Duration) -> Box<dyn PendingCut> {
        self.cuts()
            .cut(Cut { number, dead: Extents::default(), patience, on_taken: Arc::new(|_| {}) })
            .unwrap()
    }

    pub fn cut_without(&self, number: u64, dead: Extents) -> CuResult<Box<dyn PendingCut>> {
        self.cuts().cut(Cut { number, dead, patience: PATIENT, on_taken: Arc::new(|_| {}) })
    }

    pub fn restore(&self, guardian: &Guardian, number: u64) -> CuResult<Restored> {
        self.cuts().restore(&guardian.at(number))
    }
}
