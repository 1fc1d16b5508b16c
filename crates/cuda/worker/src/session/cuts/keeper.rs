//! The session's side of its image: what the thread `dxpu-cut` does with the guardian.

use super::{Cuts, Fate, GuardianPlace, Opening, Refusal};
use cuda_abi::CudaError;
use cuda_driver::{
    Blocks, Committed, CutState, ImageStore, KeptImage, LinkLost, PendingCut, Snapshots, StoreError, TakenCut,
};
use cuda_wire::{GuardInfo, ImageRestored};
use snapshot::{Block, BlockDigest, EventAge, Key};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::Instant;

/// Owns the image.
pub(super) struct Keeper {
    cuts: Arc<Cuts>,
    place: GuardianPlace,
    opening: Option<Opening>,
    /// `None` before the guard, and after the guardian was lost.
    image: Option<Box<dyn KeptImage>>,
    /// The last cut whose second copy is awaited, and the bytes of the image; `None`: none is.
    uncopied: Option<(u64, u64)>,
    /// Cuts get second copies.
    has_copies: bool,
}

/// What a look at the guardian found.
pub(super) enum News {
    /// Another box has this cut, too.
    Copied { number: u64, image_bytes: u64 },
    /// It is lost, in words.
    Lost(String),
}

/// How a cut ended.
pub(super) struct Outcome {
    /// What the guardian said, or why there is no image of this cut.
    pub(super) result: Result<Committed, String>,
    /// The image may not be what the driver believes it to be.
    pub(super) is_whole_next: bool,
    /// The guardian is lost, in words.
    pub(super) lost: Option<String>,
}

impl Outcome {
    fn refused(words: String, is_whole_next: bool) -> Self {
        Self { result: Err(words), is_whole_next, lost: None }
    }
}

/// Why a cut that was taken did not get into the image.
enum Unkept {
    /// The guardian has the image as it was before, for what is known.
    Refused(String),
    /// The image is not what the next delta would be relative to.
    OtherImage(String),
    /// It cannot be reached, and the session does not know what it has.
    Lost(StoreError),
}

impl Keeper {
    pub(super) fn new(cuts: Arc<Cuts>, place: GuardianPlace) -> Self {
        Self { cuts, place, opening: None, image: None, uncopied: None, has_copies: false }
    }

    /// Whether the guardian can be looked at.
    pub(super) fn has_image(&self) -> bool {
        self.image.is_some()
    }

    /// Looks whether the guardian is there, and what another box has.
    pub(super) fn look(&mut self) -> Option<News> {
        match self.image.as_ref()?.copied() {
            Ok(copied) => {
                let (number, image_bytes) = self.uncopied.filter(|(number, _)| copied >= *number)?;
                self.uncopied = None;
                Some(News::Copied { number, image_bytes })
            }
            Err(error @ StoreError::Lost(_)) => {
                (self.image, self.uncopied) = (None, None);
                Some(News::Lost(error.to_string()))
            }
            // The image has ended, or has a newer writer: the next cut hears why.
            Err(StoreError::Refused(_)) => None,
        }
    }

    /// Opens the image and lets the driver compute digests.
    pub(super) fn guard(&mut self, opening: &Opening) -> Result<(Arc<Key>, GuardInfo), Refusal> {
        let (image, (address, copy_at)) = self.open(opening, "")?;
        self.has_copies = !copy_at.is_empty();
        let key = opening.key();
        self.cuts.snapshots()?.protect(key.clone())?;
        let info = GuardInfo {
            bytes_max: image.bytes_max(),
            driver_build: self.cuts.driver.build(),
            guardian: address,
            copy_at,
        };
        self.opening = Some(opening.clone());
        self.image = Some(image);
        Ok((key, info))
    }

    /// The image, and the addresses of its guardian and of the one that gets second copies.
    fn open(
        &self,
        opening: &Opening,
        from: &str,
    ) -> Result<(Box<dyn KeptImage>, (String, String)), StoreError> {
        let store: Arc<dyn ImageStore> = (self.place.open)(&self.place.path, self.place.lease.as_deref())?;
        let image = store.open(opening.image, &opening.secret, opening.incarnation, from)?;
        let address = match self.place.address.as_str() {
            "" => store.address(),
            address => address.to_owned(),
        };
        Ok((image, (address, store.copy_at())))
    }

    /// The image, opened again if the guardian was lost.
    fn image(&mut self) -> Result<&dyn KeptImage, StoreError> {
        let image = match self.image.take() {
            Some(image) => image,
            None => {
                let opening = self.opening.as_ref();
                let opening = opening.ok_or_else(|| StoreError::Refused("there is no image".to_owned()))?;
                self.open(opening, "")?.0
            }
        };
        Ok(&**self.image.insert(image))
    }

    /// Brings a cut into the image.
    pub(super) fn keep(&mut self, number: u64, mut pending: Box<dyn PendingCut>) -> Outcome {
        let taken = match pending.wait() {
            CutState::Taken(taken) => taken,
            CutState::Abandoned(why) => {
                return Outcome::refused(why.to_string(), false);
            }
            CutState::Waiting => {
                let words = "the driver did not wait for the cut".to_owned();
                return Outcome::refused(words, false);
            }
        };
        let began = Instant::now();
        match self.store(number, &taken, pending) {
            Ok(committed) => {
                let (bytes, image_bytes) = (taken.dirty_bytes, committed.image_bytes);
                let (level, took) = (committed.level, began.elapsed());
                tracing::debug!(number, pause = ?taken.pause, bytes, ?took, image_bytes, level, "a cut is safe");
                let is_awaited = self.has_copies && committed.level < 2;
                self.uncopied = is_awaited.then_some((number, committed.image_bytes));
                Outcome { result: Ok(committed), is_whole_next: false, lost: None }
            }
            Err(Unkept::Refused(words)) => Outcome::refused(words, false),
            Err(Unkept::OtherImage(words)) => {
                // Opened again, it has no unfinished delta.
                self.image = None;
                Outcome::refused(words, true)
            }
            Err(Unkept::Lost(error)) => {
                // A guardian that comes back has no images, and one that merely broke off may have this cut or not.
                self.image = None;
                let words = format!(
                    "{error}; until the next cut is safe, the program cannot be resumed from an image"
                );
                Outcome { result: Err(words), is_whole_next: true, lost: Some(error.to_string()) }
            }
        }
    }

    fn store(
        &mut self,
        number: u64,
        taken: &TakenCut,
        pending: Box<dyn PendingCut>,
    ) -> Result<Committed, Unkept> {
        let cuts = self.cuts.clone();
        let begun = self.image().and_then(|image| image.begin(taken.delta.base, number).map(|()| image));
        let image = match begun {
            Ok(image) => image,
            // Dropped, the cut never was.
            Err(StoreError::Refused(words)) => return Err(Unkept::OtherImage(words)),
            Err(error) => return Err(Unkept::Lost(error)),
        };
        // A delta that lacks a block has another seal and is never committed. So the commit is asked for in any case: its
        // refusal says why the guardian did not take a block.
        let _ = pending.send(image);
        let kept = image.commit(number, taken).map_err(|error| match error {
            // The next delta can begin when this one is given up.
            StoreError::Refused(words) => match image.abandon(number) {
                Err(lost @ StoreError::Lost(_)) => lost,
                _ => StoreError::Refused(words),
            },
            lost @ StoreError::Lost(_) => lost,
        });
        if let Some(snapshots) = cuts.driver.snapshots() {
            // It fails for a driver that was aborted, which takes no further cut.
            let _ = snapshots.settle(number, kept.is_ok());
        }
        kept.map_err(|error| match error {
            StoreError::Refused(words) => Unkept::Refused(words),
            lost => Unkept::Lost(lost),
        })
    }

    /// Loads the image of a cut into the driver's memory.
    pub(super) fn restore(&mut self, number: u64, from: &str) -> Result<ImageRestored, Refusal> {
        let started = Instant::now();
        let blocks = match self.image()?.image(number) {
            Err(StoreError::Refused(_)) if !from.is_empty() => self.fetch_one_of(from, number),
            found => found,
        };
        load(self.cuts.snapshots()?, blocks, started)
    }

    /// The image out of the first guardian that has it; `from` names one, or several with commas in between.
    fn fetch_one_of(&mut self, from: &str, number: u64) -> Result<Box<dyn Blocks>, StoreError> {
        let mut found = Err(StoreError::Refused("no guardian is named that has the image".to_owned()));
        for from in from.split(',').filter(|from| !from.is_empty()) {
            found = self.fetch(from).and_then(|()| self.image()?.image(number));
            if found.is_ok() {
                break;
            }
        }
        found
    }

    /// Opens the image anew, with the guardian that has its cuts.
    fn fetch(&mut self, from: &str) -> Result<(), StoreError> {
        if let Some(image) = self.image.take() {
            // An image without a cut would stand in the way of the one that comes.
            match image.committed()? {
                0 => image.end()?,
                _ => image.leave()?,
            }
        }
        let opening = self.opening.as_ref();
        let opening = opening.ok_or_else(|| StoreError::Refused("there is no image".to_owned()))?;
        self.image = Some(self.open(opening, from)?.0);
        Ok(())
    }

    /// Does with the image what the client has decided.
    pub(super) fn close(&mut self, fate: Fate) {
        let Some(image) = self.image.take() else { return };
        let told = match fate {
            Fate::End => image.end(),
            Fate::Stay => image.leave(),
        };
        if let Err(error) = told {
            tracing::warn!(%error, ?fate, "the guardian was not told what becomes of an image");
        }
    }
}

/// Loads blocks into the driver's memory. `started`: when the store was asked for them.
pub(super) fn load(
    snapshots: &dyn Snapshots,
    blocks: Result<Box<dyn Blocks>, StoreError>,
    started: Instant,
) -> Result<ImageRestored, Refusal> {
    let blocks = blocks.map_err(|error| match error {
        StoreError::Refused(words) => Refusal::new(CudaError::NOT_FOUND, words),
        lost => lost.into(),
    })?;
    let watched = Watched { blocks: &*blocks, is_lost: AtomicBool::new(false) };
    let restored = snapshots.restore(&watched).map_err(|error| {
        // A driver takes a block that does not come for a lost link, and that for a lost device.
        if watched.is_lost.load(Ordering::SeqCst) {
            let words = "the guardian broke off while the image was restored";
            return Refusal::new(CudaError::SYSTEM_NOT_READY, words);
        }
        error.into()
    })?;
    let took_us = started.elapsed().as_micros() as u64;
    Ok(ImageRestored { blocks: restored.blocks, bytes: restored.bytes, took_us })
}

/// Blocks of an image, and whether one did not come.
struct Watched<'a> {
    blocks: &'a dyn Blocks,
    is_lost: AtomicBool,
}

impl Blocks for Watched<'_> {
    fn number(&self) -> u64 {
        self.blocks.number()
    }

    fn list(&self) -> Vec<BlockDigest> {
        self.blocks.list()
    }

    fn read(&self, block: Block) -> Result<snapshot::Bytes, LinkLost> {
        self.blocks.read(block).inspect_err(|_| self.is_lost.store(true, Ordering::SeqCst))
    }

    fn read_into(&self, blocks: &[Block], into: &mut [u8]) -> Result<(), LinkLost> {
        self.blocks.read_into(blocks, into).inspect_err(|_| self.is_lost.store(true, Ordering::SeqCst))
    }

    fn events(&self) -> Vec<EventAge> {
        self.blocks.events()
    }
}
