//! The connections of one session of the worker, but for those of commands and replies.
//!
//! A link has the wires of one session at a time. A link that survives the loss of its session gets the wires of the
//! next one as a whole, so that counts of chunks and notices never mix two sessions.

use super::content::Content;
use bulk::Lanes;
use cuda_wire::Notice;
use locks::lock;
use std::{
    io,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};
use transport::{Closer, Tx};

/// Which session of a link, counted from 1.
pub(super) type SessionNumber = u64;

/// The first session of a link.
pub(super) const FIRST_SESSION: SessionNumber = 1;

pub(super) struct Wires {
    /// The session that they belong to.
    pub(super) number: SessionNumber,
    pub(super) lanes: Lanes,
    events_tx: Mutex<Tx>,
    /// Notices of this session that were handled, wrapping.
    handled: AtomicU32,
    closers: Vec<Closer>,
    /// Descriptors a forked child must close, or the worker would take the child for the parent.
    descriptors: Vec<i32>,
    broken: AtomicBool,
    /// What the worker has of what this program sends.
    pub(super) content: Content,
}

impl Wires {
    pub(super) fn new(
        number: SessionNumber,
        lanes: Lanes,
        events_tx: Tx,
        closers: Vec<Closer>,
        descriptors: Vec<i32>,
    ) -> Self {
        let (handled, broken, content) = Default::default();
        Self {
            number,
            lanes,
            events_tx: Mutex::new(events_tx),
            handled,
            closers,
            descriptors,
            broken,
            content,
        }
    }

    /// Says something to the worker unasked.
    pub(super) fn send(&self, notice: &Notice<'_>) -> io::Result<()> {
        lock(&self.events_tx).send(&[&notice.to_frame()])
    }

    /// Counts a notice that was handled.
    pub(super) fn note_handled(&self) {
        self.handled.fetch_add(1, Ordering::Release);
    }

    /// Whether fewer than `notices` were handled.
    pub(super) fn is_behind(&self, notices: u32) -> bool {
        (notices.wrapping_sub(self.handled.load(Ordering::Acquire)) as i32) > 0
    }

    /// Closes all connections of the session, those of commands and replies too: their closers are here.
    pub(super) fn close(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.closers.iter().for_each(Closer::close);
        self.lanes.close();
        self.content.close();
    }

    /// Whether [`Wires::close`] was called.
    pub(super) fn are_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Descriptors that a forked child closes.
    pub(super) fn descriptors(&self) -> &[i32] {
        &self.descriptors
    }
}
