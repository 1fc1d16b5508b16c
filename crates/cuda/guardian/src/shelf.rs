//! The images of a guardian: who may open which, who writes, what memory they take, how long they stay.
//!
//! ```text
//!            open_to_write (higher incarnation, or the same again)
//!   absent ─────────────────────────────▶ written ─ the writer goes ─▶ idle ─ keep is over ─▶ zeroed
//!                                            │  ▲───── open_to_write ────┘
//!                                            └─ end, end of its lease, stop ─▶ zeroed
//! ```
//!
//! Knows no socket and no clock: time is an argument. Each image has a lock of its own, held for one block at a time, so
//! a new writer gets in between two blocks of the old one.

mod kept;
mod older;
mod reader;
mod writer;

pub(crate) use kept::{Kept, State};
pub(crate) use reader::Reader;
pub(crate) use writer::Writer;

use crate::budget::Budget;
use crate::disk::Disk;
use crate::error::Refusal;
use crate::protocol::Open;
use locks::lock;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// What an image costs beside its blocks: above all its key, which is 64 KiB twice.
const IMAGE_COST: u64 = 256 << 10;

/// All images.
pub(crate) struct Shelf {
    images: Mutex<HashMap<[u8; 16], Arc<Kept>>>,
    budget: Arc<Budget>,
    image_bytes_max: u64,
    serials: AtomicU64,
}

/// How long images without a writer stay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    /// Those that belong to no lease.
    pub(crate) plain: Duration,
    /// Those that belong to a lease, unless its end is told before.
    pub(crate) leased: Duration,
}

impl Shelf {
    /// An empty one. All images together take at most `bytes_max`, and each of them at most `image_bytes_max`.
    pub(crate) fn new(bytes_max: u64, image_bytes_max: u64) -> Arc<Self> {
        let image_bytes_max = image_bytes_max.min(bytes_max.saturating_sub(IMAGE_COST));
        Arc::new(Self {
            images: Mutex::default(),
            budget: Arc::new(Budget::new(bytes_max)),
            image_bytes_max,
            serials: AtomicU64::new(1),
        })
    }

    /// What one image may take.
    pub(crate) fn image_bytes_max(&self) -> u64 {
        self.image_bytes_max
    }

    /// The memory of all images.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Whether there is an image with this name and this secret.
    pub(crate) fn has(&self, open: &Open) -> bool {
        let found = lock(&self.images).get(&open.name.bytes).cloned();
        found.is_some_and(|kept| is_secret_of(&kept, open) && !kept.has_ended())
    }

    /// Whether there is such an image, and it has a writer.
    pub(crate) fn is_written(&self, open: &Open) -> bool {
        let found = lock(&self.images).get(&open.name.bytes).cloned();
        found.is_some_and(|kept| is_secret_of(&kept, open) && kept.has_writer())
    }

    /// How many images there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        lock(&self.images).len()
    }

    /// Opens an image for a writer, and makes it if there is none. The writer before is shut out from now on.
    pub(crate) fn open_to_write(self: &Arc<Self>, open: &Open) -> Result<Writer, Refusal> {
        loop {
            match self.try_open_to_write(open) {
                // It ended between the look and the admission. The next look finds none, and makes one.
                Err(Refusal::Ended) => {}
                opened => return opened,
            }
        }
    }

    fn try_open_to_write(self: &Arc<Self>, open: &Open) -> Result<Writer, Refusal> {
        let mut images = lock(&self.images);
        let found = images.get(&open.name.bytes).filter(|kept| !kept.has_ended()).cloned();
        let kept = match found {
            Some(kept) if !is_secret_of(&kept, open) => return Err(Refusal::NoSuchImage),
            Some(kept) => kept,
            None => {
                if !self.budget.charge(IMAGE_COST) {
                    return Err(self.budget.full());
                }
                let kept = Arc::new(Kept::new(open, self.image_bytes_max));
                images.insert(open.name.bytes, kept.clone());
                kept
            }
        };
        drop(images);
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        kept.admit(&self.budget, open, serial)?;
        Ok(Writer::new(self.clone(), kept, serial, open.incarnation))
    }

    /// Opens an image for a helper of its writer, which brings blocks beside it.
    pub(crate) fn open_to_help(self: &Arc<Self>, open: &Open) -> Result<Writer, Refusal> {
        let found = lock(&self.images).get(&open.name.bytes).cloned();
        let kept = found.filter(|kept| is_secret_of(kept, open)).ok_or(Refusal::NoSuchImage)?;
        let serial = kept.writer_of(open.incarnation).ok_or(Refusal::Replaced)?;
        Ok(Writer::new(self.clone(), kept, serial, open.incarnation))
    }

    /// Opens an image for a reader. With `takes_over` the writer before is shut out first, and the image is idle.
    pub(crate) fn open_to_read(
        self: &Arc<Self>,
        open: &Open,
        takes_over: bool,
        now: Instant,
    ) -> Result<Reader, Refusal> {
        let found = lock(&self.images).get(&open.name.bytes).cloned();
        let kept = found.filter(|kept| is_secret_of(kept, open) && !kept.has_ended());
        let kept = kept.ok_or(Refusal::NoSuchImage)?;
        if takes_over {
            kept.admit(&self.budget, open, 0)?;
            kept.writer_is_gone(&self.budget, (0, open.incarnation), now, false);
        }
        Ok(Reader::new(self.clone(), kept))
    }

    /// Ends the images whose time without a writer is over; says how many.
    pub(crate) fn reap(&self, now: Instant, keep: Keep) -> usize {
        let all: Vec<Arc<Kept>> = lock(&self.images).values().cloned().collect();
        let over = all.iter().filter(|kept| kept.end_if_over(&self.budget, now, keep));
        over.map(|kept| self.forget(kept)).count()
    }

    /// Ends all images of a lease; says how many.
    pub(crate) fn end_lease(&self, lease: &str) -> usize {
        let all: Vec<Arc<Kept>> = lock(&self.images).values().cloned().collect();
        all.iter().filter(|kept| kept.is_of_lease(lease)).map(|kept| self.end(kept)).count()
    }

    /// Images of leases that are suspended for at least `time`, the longest ones first.
    pub(crate) fn suspended(&self, now: Instant, time: Duration) -> Vec<Arc<Kept>> {
        let all: Vec<Arc<Kept>> = lock(&self.images).values().cloned().collect();
        let idle = all.into_iter().filter_map(|kept| Some((kept.suspended_since()?, kept)));
        let mut idle: Vec<_> =
            idle.filter(|(since, _)| now.saturating_duration_since(*since) >= time).collect();
        idle.sort_by_key(|(since, _)| *since);
        idle.into_iter().map(|(_, kept)| kept).collect()
    }

    /// Writes an image without a writer to disk and ends it in memory; `false` if a writer has come meanwhile. If the disk
    /// does not take it, it stays in memory.
    pub(crate) fn park(self: &Arc<Self>, disk: &Disk, kept: &Arc<Kept>) -> Result<bool, Refusal> {
        let Some(since) = kept.suspended_since() else { return Ok(false) };
        let open = kept.opening();
        disk.park(&open, &mut Reader::of(self, kept))?;
        let is_parked = kept.end_if_idle(&self.budget, since);
        match is_parked {
            true => self.forget(kept),
            // Another writer has opened the image meanwhile, and goes on with the one in memory.
            false => disk.end(&open),
        }
        Ok(is_parked)
    }

    /// The leases that have images here, and the memory that the images of each take.
    pub(crate) fn leases(&self) -> BTreeMap<String, u64> {
        let all: Vec<Arc<Kept>> = lock(&self.images).values().cloned().collect();
        let mut leases = BTreeMap::new();
        for (lease, bytes) in all.iter().filter_map(|kept| kept.charge_of_lease()) {
            *leases.entry(lease).or_default() += bytes;
        }
        leases
    }

    /// Ends all images; says how many.
    pub(crate) fn end_all(&self) -> usize {
        let all: Vec<Arc<Kept>> = lock(&self.images).values().cloned().collect();
        all.iter().map(|kept| self.end(kept)).count()
    }

    /// Ends an image. Its bytes are zeroed when this returns, except blocks that a reader is just sending.
    pub(crate) fn end(&self, kept: &Arc<Kept>) {
        // Refused to a writer that was replaced, and this is none.
        let _ = kept.end(&self.budget, None);
        self.forget(kept);
    }

    fn forget(&self, kept: &Arc<Kept>) {
        let mut images = lock(&self.images);
        // Another image may have its name by now.
        if images.get(&kept.name().bytes).is_some_and(|found| Arc::ptr_eq(found, kept)) {
            images.remove(&kept.name().bytes);
        }
    }
}

fn is_secret_of(kept: &Kept, open: &Open) -> bool {
    kept.secret().ct_eq(&open.secret[..]).into()
}

#[cfg(test)]
mod tests;
