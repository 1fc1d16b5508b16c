//! Keeps a second copy of each image at another guardian.
//!
//! ```text
//!  commit n ─▶ (session: level 1, at once)
//!     └ notifies ─▶ copier of the image: digests of n − digests that the peer has ─▶ delta ─▶ peer commits n ─▶ level 2
//! ```
//!
//! One thread for each image. It follows the last commit: cuts that come faster than the peer takes them are left out.
//! What the peer has is known by digests, so after a break only what differs travels.

use crate::error::{Broken, Refusal};
use crate::peer::{PeerAddress, PeerError, PeerSecurity};
use crate::protocol::{Mode, Open};
use crate::shelf::{Kept, Reader, Shelf};
use crate::talk::Talk;
use snapshot::{ImageError, Tables};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use zeroize::Zeroizing;

/// A peer that says nothing for this long is lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait before a peer that was lost, or has refused, is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How long a copier sleeps without a commit before it looks whether its image is still there.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Where copies go.
#[derive(Clone, Debug)]
pub(crate) struct CopyTo {
    pub(crate) address: PeerAddress,
    pub(crate) security: PeerSecurity,
}

/// Why a copy did not come about.
#[derive(Debug, Error)]
enum Failed {
    #[error("{0}")]
    Peer(#[from] PeerError),
    #[error("{0}")]
    Broken(#[from] Broken),
    #[error("{0}")]
    Here(#[from] Refusal),
    #[error("the blocks of an image are out of order")]
    Order(#[from] snapshot::TableError),
}

/// Copies the cuts of an image until it has ended or another incarnation writes it. Runs on a thread of its own.
///
/// `is_stopping` says that the image ends here only because this guardian stops: then the copy stays, for the session
/// that goes on elsewhere. It stays for an image that went to disk, too.
pub(crate) fn copy_on(
    shelf: &Arc<Shelf>,
    kept: &Arc<Kept>,
    incarnation: u64,
    to: &CopyTo,
    is_stopping: &dyn Fn() -> bool,
) {
    let is_ours = || kept.state().is_ok_and(|state| state.incarnation == incarnation);
    let mut has_complained = false;
    while is_ours() {
        match copy(shelf, kept, incarnation, to, is_stopping) {
            Ok(()) => return,
            Err(error) => {
                if !std::mem::replace(&mut has_complained, true) {
                    tracing::warn!(%error, peer = %to.address, "an image has no second copy for now");
                }
            }
        }
        if is_ours() {
            std::thread::sleep(AGAIN_AFTER);
        }
    }
}

/// Copies over one connection. `Ok` when there is nothing more to copy.
fn copy(
    shelf: &Arc<Shelf>,
    kept: &Arc<Kept>,
    incarnation: u64,
    to: &CopyTo,
    is_stopping: &dyn Fn() -> bool,
) -> Result<(), Failed> {
    let mut talk = to.security.connect(&to.address, PATIENCE)?;
    let (_, mut there) = talk.open(opening(kept, incarnation))?;
    let have = match there {
        0 => Vec::new(),
        number => read_list(kept, incarnation, to, number)?,
    };
    let mut tables = Tables::restored(there, have)?;
    loop {
        let state = match kept.wait_for_commit(there, LOOK_EVERY) {
            Ok(state) => state,
            Err(_) if kept.is_parked() => return Ok(talk.leave()?),
            // The program may have the cut before the last one only; so this is not a leave.
            Err(_) if is_stopping() => return Ok(()),
            // The image has ended here, so it ends there too.
            Err(_) => return Ok(talk.end()?),
        };
        if state.incarnation != incarnation {
            return Ok(());
        }
        if state.committed > there && send(shelf, kept, &mut talk, &mut tables, state.committed)? {
            there = state.committed;
            kept.set_copied(there);
        }
    }
}

/// What the peer has, over a connection of its own: the one that writes cannot read.
fn read_list(
    kept: &Kept,
    incarnation: u64,
    to: &CopyTo,
    number: u64,
) -> Result<Vec<snapshot::BlockDigest>, Failed> {
    let mut talk = to.security.connect(&to.address, PATIENCE)?;
    talk.open(Open { mode: Mode::Read, ..opening(kept, incarnation) })?;
    Ok(talk.list(number)?.0)
}

/// Sends what the peer does not have of a cut; `false` if a later one has replaced it already.
fn send(
    shelf: &Arc<Shelf>,
    kept: &Arc<Kept>,
    talk: &mut Talk,
    tables: &mut Tables,
    number: u64,
) -> Result<bool, Failed> {
    // Keeps the cut readable while it is sent, whatever is committed meanwhile.
    let mut reader = Reader::of(shelf, kept);
    let (entries, ages) = match reader.list(number) {
        Err(Refusal::Image(ImageError::NotKept { .. })) => return Ok(false),
        listed => listed?,
    };
    let delta = tables.take(number, entries)?;
    let sent: Result<(), Failed> = (|| {
        talk.begin(delta.base, number)?;
        for entry in &delta.dirty {
            talk.put(entry, &reader.read(number, entry.block)?)?;
        }
        Ok(talk.commit(number, &delta.dead, &ages, delta.seal).map(drop)?)
    })();
    tables.settle(number, sent.is_ok())?;
    sent.map(|()| true)
}

fn opening(kept: &Kept, incarnation: u64) -> Open {
    let mut secret = Zeroizing::new([0; 32]);
    secret.copy_from_slice(kept.secret());
    let (from, lease) = (String::new(), kept.lease());
    Open { mode: Mode::Copy, name: kept.name(), secret, incarnation, from, lease }
}
