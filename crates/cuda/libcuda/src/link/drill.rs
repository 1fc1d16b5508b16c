//! A drill: a copy of the program's session is brought to where the program is, compared, and thrown away.
//!
//! ```text
//!   guard thread   hold the wire ▸ what a resume would need, of this moment ▸ let go ▸ no new cut until the copy has its image
//!   dxpu-drill     open ▸ manifest ▸ ImageCopy (beside the writer) ▸ commands since the cut, compared ▸ Goodbye ▸ Drilled
//! ```
//!
//! The program goes on meanwhile, in its own session. The copy shares the frames and bytes of the journal, and nothing that
//! it says reaches the program. Host functions do not run: those that ran are known, and others are left unanswered.
//!
//! Cuts are held back because the guardian keeps the image of the journal's cut only until a later cut is begun. A journal
//! that is half full is cut all the same. The drill is then told that the image is gone.

mod session;

use super::{
    Link,
    places::Place,
    survival::{Phase, Shared},
};
use crate::log;
use cuda_wire::{ImageName, TransferId};
use journal::Replay;
use keeper::{FromProgram, What};
pub(super) use session::Copied;
use std::{collections::HashMap, sync::Arc, time::Instant};

/// What a resume would need, of one moment.
pub(super) struct Moment {
    pub(super) replay: Replay,
    /// Transfers that the copy will send, and their lengths.
    pub(super) transfers: HashMap<TransferId, u64>,
    /// The image and its secret; `None` for a program without images.
    pub(super) image: Option<(ImageName, [u8; 32])>,
    /// A guardian that has the image; empty: the worker's own.
    pub(super) guardian: String,
}

/// Why there can be no drill now.
struct NotHeld(&'static str);

/// What a drill found.
pub(super) enum Outcome {
    /// The copy came to where the program is.
    Same,
    /// It did not, in words: so it would be after a loss.
    Different(String),
    /// There was no drill, in words.
    NotHeld(String),
}

/// Starts a drill at `place`. The keeper hears what became of it.
pub(super) fn start(link: &Arc<Link>, shared: &Arc<Shared>, place: Place) {
    let refuse = |why: String| shared.tell_keeper(&FromProgram::Refused { what: What::Drill, why });
    let moment = match moment(link, shared) {
        Ok(moment) => moment,
        Err(NotHeld(why)) => return refuse(why.to_owned()),
    };
    let (of, transfers) = (Arc::clone(shared), Arc::clone(link));
    let run = move || {
        let began = Instant::now();
        log::info(&format!("worker {}: a drill begins", place.address));
        let outcome = session::hold(&of, &place, moment, || transfers.next_transfer());
        let took_ms = began.elapsed().as_millis() as u64;
        of.end_drill();
        let word = match outcome {
            Outcome::Same => FromProgram::Drilled { took_ms, difference: None },
            Outcome::Different(words) => {
                of.be_careful();
                FromProgram::Drilled { took_ms, difference: Some(words) }
            }
            Outcome::NotHeld(why) => FromProgram::Refused { what: What::Drill, why },
        };
        log::info(&format!("the drill is over: {word:?}"));
        of.tell_keeper(&word);
    };
    if crate::threads::spawn("dxpu-drill", run).is_err() {
        shared.end_drill();
        refuse("the program's process gets no further thread".to_owned());
    }
}

/// What a resume would need now. With the wire held no command comes in between: every transfer that a kept command asks
/// for is expected, or has landed.
fn moment(link: &Link, shared: &Shared) -> Result<Moment, NotHeld> {
    let wire = link.queue.hold();
    let mut transfers = shared.expectations().lengths();
    let mut core = shared.core();
    let made = if core.phase != Phase::Live {
        Err("the program is without a session, or without protection")
    } else if core.cuts.guard.is_some() && core.journal.base().is_none() {
        Err("the first image of this program is not safe yet; try again in a moment")
    } else if core.cuts.drill.is_some() {
        Err("a drill of this program is under way")
    } else {
        core.cuts.drill = Some(Copied::No);
        transfers.extend(core.landed.iter().map(|(name, bytes)| (*name, *bytes)));
        Ok(Moment {
            replay: core.journal.replay(),
            transfers,
            image: shared.image_secret(),
            guardian: core.guardian.clone(),
        })
    };
    drop(core);
    // With a keeper of frames no write fails.
    let _ = wire.let_go();
    made.map_err(NotHeld)
}
