//! An image that this process writes.

use super::restore::StoredCut;
use super::{GuardianStore, store_error};
use crate::error::Broken;
use crate::protocol::Mode;
use crate::talk::{ImageState, Talk};
use cuda_driver::{BlockSink, Blocks, Committed, KeptImage, LinkLost, StoreError, TakenCut};
use cuda_wire::ImageName;
use locks::lock;
use snapshot::BlockDigest;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use zeroize::Zeroizing;

/// An image that is open for writing, over a connection of its own. Dropping it leaves the image as it was committed.
pub struct OpenImage {
    store: GuardianStore,
    name: ImageName,
    secret: Zeroizing<[u8; 32]>,
    incarnation: u64,
    bytes_max: u64,
    talk: Mutex<Connection>,
    /// The cut whose delta is begun.
    begun: AtomicU64,
    helpers: [Mutex<Helper>; HELPERS],
}

/// Connections that bring blocks beside the first one: together about as fast as a GPU's bus.
const HELPERS: usize = 7;

/// A further connection. It is made when a delta is large enough to need it.
#[derive(Default)]
struct Helper {
    talk: Option<Talk>,
    /// The cut whose delta it has joined.
    joined: u64,
    /// The guardian takes no helpers: it is older than this worker, or has enough connections.
    is_refused: bool,
}

/// The connection, until it is lost.
struct Connection {
    talk: Talk,
    /// Why it is lost. Nothing is sent after that: the guardian may have seen half of a message.
    lost: Option<String>,
}

impl Connection {
    fn run<T>(&mut self, run: impl FnOnce(&mut Talk) -> Result<T, Broken>) -> Result<T, StoreError> {
        if let Some(why) = &self.lost {
            return Err(StoreError::Lost(why.clone()));
        }
        let outcome = run(&mut self.talk).map_err(store_error);
        if let Err(StoreError::Lost(why)) = &outcome {
            self.lost = Some(why.clone());
        }
        outcome
    }
}

impl OpenImage {
    pub(super) fn new(
        store: GuardianStore,
        talk: Talk,
        (name, secret, incarnation): (ImageName, &[u8; 32], u64),
        bytes_max: u64,
    ) -> Self {
        let mut kept = Zeroizing::new([0; 32]);
        kept.copy_from_slice(secret);
        let talk = Mutex::new(Connection { talk, lost: None });
        let (begun, helpers) = (AtomicU64::new(0), Default::default());
        Self { store, name, secret: kept, incarnation, bytes_max, talk, begun, helpers }
    }

    /// What the guardian says of it: the way to learn that another box has a cut too, after a commit that said 1.
    pub fn state(&self) -> Result<ImageState, StoreError> {
        self.run(Talk::state)
    }

    /// Has the guardian write the image to its disk, encrypted, and give its memory back. It comes back when the image
    /// is opened again. If the disk does not take it, it stays in memory.
    pub fn park(self) -> Result<(), StoreError> {
        self.run(Talk::park)
    }

    fn run<T>(&self, run: impl FnOnce(&mut Talk) -> Result<T, Broken>) -> Result<T, StoreError> {
        lock(&self.talk).run(run)
    }

    fn connect_helper(&self) -> Result<Talk, StoreError> {
        let mut talk = self.store.talk(self.store.patience)?;
        let open = self.store.opening(Mode::Help, self.name, &self.secret, self.incarnation, "");
        talk.open(open).map_err(store_error)?;
        Ok(talk)
    }

    /// Puts a block over a helper's connection.
    fn put_by(&self, helper: &mut Helper, entry: &BlockDigest, bytes: &[u8]) -> Result<(), StoreError> {
        let number = self.begun.load(Ordering::SeqCst);
        if helper.talk.is_none() && helper.joined != number && !helper.is_refused {
            helper.talk = self.connect_helper().ok();
            helper.is_refused = helper.talk.is_none();
        }
        let Some(mut talk) = helper.talk.take() else {
            return self.run(|talk| talk.put(entry, bytes));
        };
        if helper.joined != number {
            talk.begin(0, number).map_err(store_error)?;
            helper.joined = number;
        }
        talk.put(entry, bytes).map_err(store_error)?;
        helper.talk = Some(talk);
        Ok(())
    }

    /// Waits until the guardian has what the helpers brought of this delta.
    fn helpers_are_done(&self, number: u64) -> Result<(), StoreError> {
        for helper in &self.helpers {
            let mut helper = lock(helper);
            if helper.joined != number {
                continue;
            }
            let Some(mut talk) = helper.talk.take() else {
                return Err(StoreError::Refused("a block did not reach the guardian".to_owned()));
            };
            talk.all_came().map_err(store_error)?;
            helper.talk = Some(talk);
        }
        Ok(())
    }
}

fn is_whole(entry: &BlockDigest, bytes: &[u8]) -> bool {
    entry.block.bytes as usize == bytes.len() && !bytes.is_empty() && bytes.len() <= snapshot::BLOCK_BYTES
}

impl BlockSink for OpenImage {
    fn put(&self, entry: &BlockDigest, bytes: &[u8]) -> Result<(), LinkLost> {
        if !is_whole(entry, bytes) {
            return Err(LinkLost);
        }
        self.run(|talk| talk.put(entry, bytes)).map_err(|_| LinkLost)
    }

    fn roads(&self) -> usize {
        1 + HELPERS
    }

    fn put_over(&self, road: usize, entry: &BlockDigest, bytes: &[u8]) -> Result<(), LinkLost> {
        let Some(helper) = road.checked_sub(1).and_then(|index| self.helpers.get(index)) else {
            return self.put(entry, bytes);
        };
        if !is_whole(entry, bytes) {
            return Err(LinkLost);
        }
        self.put_by(&mut lock(helper), entry, bytes).map_err(|error| {
            tracing::warn!(%error, "a block does not reach the guardian");
            LinkLost
        })
    }
}

impl KeptImage for OpenImage {
    fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    fn committed(&self) -> Result<u64, StoreError> {
        Ok(self.state()?.committed)
    }

    fn copied(&self) -> Result<u64, StoreError> {
        Ok(self.state()?.copied)
    }

    fn begin(&self, base: u64, number: u64) -> Result<(), StoreError> {
        self.run(|talk| talk.begin(base, number))?;
        self.begun.store(number, Ordering::SeqCst);
        Ok(())
    }

    fn commit(&self, number: u64, taken: &TakenCut) -> Result<Committed, StoreError> {
        self.helpers_are_done(number)?;
        self.run(|talk| talk.commit(number, &taken.delta.dead, &taken.events, taken.delta.seal))
    }

    fn abandon(&self, number: u64) -> Result<(), StoreError> {
        self.run(|talk| talk.abandon(number))
    }

    fn image(&self, number: u64) -> Result<Box<dyn Blocks>, StoreError> {
        // Connections of its own: what one lists stays readable as long as it is open, whatever is committed here.
        let connect = || {
            let mut talk = self.store.talk(self.store.patience)?;
            let open = self.store.opening(Mode::Read, self.name, &self.secret, self.incarnation, "");
            talk.open(open).map_err(store_error)?;
            Ok::<Talk, StoreError>(talk)
        };
        Ok(Box::new(StoredCut::list(connect()?, number, connect).map_err(store_error)?))
    }

    fn end(self: Box<Self>) -> Result<(), StoreError> {
        self.run(Talk::end)
    }

    fn leave(self: Box<Self>) -> Result<(), StoreError> {
        self.run(Talk::leave)
    }
}
