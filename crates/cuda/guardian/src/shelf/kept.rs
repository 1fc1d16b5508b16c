//! One image and the right to it.

use super::{IMAGE_COST, Keep, older::Older};
use crate::budget::Budget;
use crate::error::Refusal;
use crate::protocol::{Mode, Open};
use cuda_wire::ImageName;
use locks::{lock, wait_for};
use snapshot::{Gone, Image, Key};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// What the digest key of an image is derived with. Worker and guardian derive the same.
const KEY_CONTEXT: &str = "dxpu survival image digest v1";

/// An image that is kept.
pub(crate) struct Kept {
    name: ImageName,
    secret: Zeroizing<[u8; 32]>,
    key: Arc<Key>,
    inner: Mutex<Inner>,
    /// A commit, a copy, or the end.
    changed: Condvar,
}

struct Inner {
    /// None once it has ended.
    image: Option<Image>,
    older: Older,
    charged: u64,
    /// The serial number of who writes; 0: none.
    writer: u64,
    idle_since: Option<Instant>,
    lease: String,
    /// The last cut that another guardian has too.
    copied: u64,
    /// The incarnation whose cuts a thread copies elsewhere; 0: none.
    copier_of: u64,
    /// It ended here because it is on disk.
    is_parked: bool,
    /// Its writer has left on purpose.
    is_suspended: bool,
}

/// What is known of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// The last committed cut; 0 for none.
    pub(crate) committed: u64,
    /// The last cut that another guardian has too.
    pub(crate) copied: u64,
    /// Memory that it takes.
    pub(crate) image_bytes: u64,
    /// The incarnation that may write.
    pub(crate) incarnation: u64,
}

impl Inner {
    fn image(&mut self) -> Result<&mut Image, Refusal> {
        self.image.as_mut().ok_or(Refusal::Ended)
    }

    /// Charges the image for what it takes now. `reserved` was charged on top of what it took before. What it has let go of
    /// comes back, and stays charged until the caller has dropped it.
    fn settle(&mut self, budget: &Budget, reserved: u64) -> Gone {
        let takes = self.image.as_ref().map_or(0, |image| image.bytes() + IMAGE_COST);
        let gone = self.image.as_mut().map(Image::take_gone).unwrap_or_default();
        budget.correct(self.charged + reserved, takes + gone.bytes());
        self.charged = takes;
        gone
    }
}

/// Settles, lets others have the image, and only then zeroes what the image has let go of.
fn release(mut inner: MutexGuard<'_, Inner>, budget: &Budget, reserved: u64) {
    let gone = inner.settle(budget, reserved);
    drop(inner);
    budget.let_go(gone);
}

impl Kept {
    /// An empty image. [`IMAGE_COST`] has been charged for it.
    pub(super) fn new(open: &Open, bytes_max: u64) -> Self {
        let seed = Zeroizing::new(blake3::derive_key(KEY_CONTEXT, &open.secret[..]));
        let mut secret = Zeroizing::new([0; 32]);
        secret.copy_from_slice(&open.secret[..]);
        let key = Arc::new(Key::from_seed(&seed));
        let inner = Inner {
            image: Some(Image::new(Arc::clone(&key), bytes_max)),
            older: Older::default(),
            charged: IMAGE_COST,
            writer: 0,
            idle_since: None,
            lease: String::new(),
            copied: 0,
            copier_of: 0,
            is_parked: false,
            is_suspended: false,
        };
        Self { name: open.name, secret, key, inner: Mutex::new(inner), changed: Condvar::new() }
    }

    pub(crate) fn name(&self) -> ImageName {
        self.name
    }

    pub(crate) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// What blocks are checked with.
    pub(super) fn key(&self) -> &Arc<Key> {
        &self.key
    }

    /// The number of the writer of this incarnation, if it is the one that writes.
    pub(super) fn writer_of(&self, incarnation: u64) -> Option<u64> {
        let inner = lock(&self.inner);
        let is_it = inner.image.as_ref().is_some_and(|image| image.incarnation() == incarnation);
        (is_it && inner.writer != 0).then_some(inner.writer)
    }

    pub(super) fn has_writer(&self) -> bool {
        let inner = lock(&self.inner);
        inner.image.is_some() && inner.writer != 0
    }

    pub(super) fn has_ended(&self) -> bool {
        lock(&self.inner).image.is_none()
    }

    /// Lets a writer in, and shuts the one before out: what it has not committed is thrown away.
    pub(super) fn admit(&self, budget: &Arc<Budget>, open: &Open, serial: u64) -> Result<(), Refusal> {
        let mut inner = lock(&self.inner);
        let admitted = inner.image()?.admit(open.incarnation);
        let gone = inner.settle(budget, 0);
        if admitted.is_ok() {
            (inner.writer, inner.idle_since, inner.is_suspended) = (serial, None, false);
            if !open.lease.is_empty() {
                inner.lease.clone_from(&open.lease);
            }
        }
        drop(inner);
        // A program waits for this.
        budget.let_go_aside(gone);
        Ok(admitted?)
    }

    /// The writer with this number is gone: its uncommitted delta is thrown away, and the image's time begins. `is_suspended`:
    /// it said so before, and nobody needs an older cut.
    pub(super) fn writer_is_gone(
        &self,
        budget: &Budget,
        (serial, incarnation): (u64, u64),
        now: Instant,
        is_suspended: bool,
    ) {
        let mut inner = lock(&self.inner);
        if inner.writer != serial {
            return;
        }
        if let Some(image) = &mut inner.image {
            image.leave(incarnation);
        }
        (inner.writer, inner.idle_since, inner.is_suspended) = (0, Some(now), is_suspended);
        release(inner, budget, 0);
    }

    /// Ends the image if its time without a writer is over; whether it was.
    pub(super) fn end_if_over(&self, budget: &Budget, now: Instant, keep: Keep) -> bool {
        let is_over = |inner: &Inner| {
            let keep = if inner.lease.is_empty() { keep.plain } else { keep.leased };
            inner.idle_since.is_some_and(|since| now.saturating_duration_since(since) >= keep)
        };
        self.end_if(budget, is_over)
    }

    /// The lease that it belongs to and the memory that it takes; `None` without a lease, and once it has ended.
    pub(super) fn charge_of_lease(&self) -> Option<(String, u64)> {
        let inner = lock(&self.inner);
        let is_leased = inner.image.is_some() && !inner.lease.is_empty();
        is_leased.then(|| (inner.lease.clone(), inner.charged))
    }

    /// Since when it is suspended, if it belongs to a lease and has a cut. An image whose writer was lost is not suspended: its
    /// program may come for a cut before the committed one, and the disk takes only that one.
    pub(super) fn suspended_since(&self) -> Option<Instant> {
        let inner = lock(&self.inner);
        let has_cut = inner.image.as_ref().is_some_and(|image| image.committed() != 0);
        inner.idle_since.filter(|_| inner.is_suspended && has_cut && !inner.lease.is_empty())
    }

    /// Ends the image if it has been without a writer since then; whether it was.
    pub(super) fn end_if_idle(&self, budget: &Budget, since: Instant) -> bool {
        lock(&self.inner).is_parked = true;
        let has_ended = self.end_if(budget, |inner| inner.idle_since == Some(since));
        lock(&self.inner).is_parked = has_ended;
        has_ended
    }

    /// Whether it ended here because it is on disk.
    pub(crate) fn is_parked(&self) -> bool {
        lock(&self.inner).is_parked
    }

    /// What opens it.
    pub(super) fn opening(&self) -> Open {
        let mut secret = Zeroizing::new([0; 32]);
        secret.copy_from_slice(&self.secret[..]);
        let (from, lease) = (String::new(), self.lease());
        Open { mode: Mode::Read, name: self.name, secret, incarnation: 1, from, lease }
    }

    pub(super) fn is_of_lease(&self, lease: &str) -> bool {
        !lease.is_empty() && lock(&self.inner).lease == lease
    }

    /// Changes the image in the name of a writer. `reserve` is the most memory that the change may take.
    pub(super) fn change<T>(
        &self,
        budget: &Budget,
        serial: u64,
        reserve: u64,
        change: impl FnOnce(&mut Image, &mut Older) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut inner = lock(&self.inner);
        inner.image()?;
        if inner.writer != serial {
            return Err(Refusal::Replaced);
        }
        if !budget.charge(reserve) {
            let image = inner.image()?;
            let incarnation = image.incarnation();
            image.leave(incarnation);
            release(inner, budget, 0);
            return Err(budget.full());
        }
        let Inner { image, older, .. } = &mut *inner;
        let changed = image.as_mut().ok_or(Refusal::Ended).and_then(|image| change(image, older));
        release(inner, budget, reserve);
        changed
    }

    /// Looks at the image, or pins a cut of it, in the name of a reader.
    pub(super) fn look<T>(
        &self,
        budget: &Budget,
        look: impl FnOnce(&mut Image) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut inner = lock(&self.inner);
        let seen = inner.image().and_then(look);
        release(inner, budget, 0);
        seen
    }

    pub(crate) fn state(&self) -> Result<State, Refusal> {
        let mut inner = lock(&self.inner);
        let copied = inner.copied;
        let image = inner.image()?;
        Ok(State {
            committed: image.committed(),
            copied,
            image_bytes: image.bytes(),
            incarnation: image.incarnation(),
        })
    }

    /// Something about the image changed that a thread may wait for.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Another guardian has this cut too.
    pub(crate) fn set_copied(&self, number: u64) {
        lock(&self.inner).copied = number;
        self.changed.notify_all();
    }

    /// Waits until another guardian has this cut too; `false` if it does not within `patience`.
    pub(crate) fn wait_for_copy(&self, number: u64, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut inner = lock(&self.inner);
        while inner.copied < number && inner.image.is_some() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            inner = wait_for(&self.changed, inner, left);
        }
        inner.copied >= number
    }

    /// Waits until a later cut than this is committed, or the image has ended, or `patience` is over.
    pub(crate) fn wait_for_commit(&self, number: u64, patience: Duration) -> Result<State, Refusal> {
        let inner = lock(&self.inner);
        if inner.image.as_ref().is_some_and(|image| image.committed() <= number) {
            drop(wait_for(&self.changed, inner, patience));
        } else {
            drop(inner);
        }
        self.state()
    }

    /// The lease that it belongs to; empty: none.
    pub(crate) fn lease(&self) -> String {
        lock(&self.inner).lease.clone()
    }

    /// Whether the caller is the first that wants to copy the cuts of this incarnation elsewhere.
    pub(crate) fn claim_copier(&self, incarnation: u64) -> bool {
        let mut inner = lock(&self.inner);
        std::mem::replace(&mut inner.copier_of, incarnation) != incarnation
    }

    /// Ends the image: its bytes are zeroed when this returns. With a writer's number only if it still is the writer.
    pub(super) fn end(&self, budget: &Budget, writer: Option<u64>) -> Result<(), Refusal> {
        let may = |inner: &Inner| writer.is_none_or(|serial| serial == inner.writer);
        if self.end_if(budget, may) { Ok(()) } else { Err(Refusal::Replaced) }
    }

    fn end_if(&self, budget: &Budget, may: impl FnOnce(&Inner) -> bool) -> bool {
        let image = {
            let mut inner = lock(&self.inner);
            if !may(&inner) {
                return false;
            }
            let image = inner.image.take();
            // Without an image nothing is let go of: what it had goes with it.
            drop(inner.settle(budget, 0));
            image
        };
        self.changed.notify_all();
        // Outside of the lock: overwriting gigabytes takes a while.
        if let Some(image) = image {
            let held = image.end();
            tracing::debug!(held, "an image has ended");
        }
        true
    }
}
