//! Brings an image here from another guardian, or brings the one here up to date.
//!
//! Only blocks travel whose digest this guardian does not have. The other guardian shuts its writer out before it sends
//! anything: what a lost session still writes there cannot be missing here. The image checks every digest and the seal
//! as it does for a session, so what is committed here is what was committed there.

use crate::error::{Broken, Refusal};
use crate::peer::{PeerAddress, PeerError, PeerSecurity};
use crate::protocol::{Mode, Open, READS_MAX};
use crate::shelf::{Reader, Shelf, Writer};
use crate::talk::Talk;
use snapshot::{BlockDigest, Seal, Tables};
use std::sync::Arc;
use std::time::Duration;

/// Another guardian that says nothing for this long is lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// Fetches what the guardian at `open.from` has beyond what `writer` has. Says how many blocks came.
pub(crate) fn fetch(
    security: &PeerSecurity,
    shelf: &Arc<Shelf>,
    writer: &Writer,
    open: &Open,
) -> Result<usize, Refusal> {
    let refusal = |reason: String| Refusal::Peer { address: open.from.clone(), reason };
    let address: PeerAddress = open.from.parse().map_err(|error| refusal(format!("{error}")))?;
    let mut talk = security.connect(&address, PATIENCE).map_err(|error| refusal(error.to_string()))?;
    let there = Open { mode: Mode::Fetch, from: String::new(), lease: String::new(), ..open.clone() };
    let opened = talk.open(there).map_err(|broken| refusal(broken.to_string()));
    let (_, number) = opened?;
    let base = writer.state()?.committed;
    if number <= base {
        return Ok(0);
    }
    match take_over(&mut talk, shelf, writer, base, number) {
        Ok(count) => Ok(count),
        Err(Trouble::Here(refusal)) => Err(refusal),
        Err(Trouble::There(broken)) => {
            let _ = writer.abandon(number);
            Err(refusal(broken.to_string()))
        }
    }
}

enum Trouble {
    Here(Refusal),
    There(Broken),
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Self::Here(refusal)
    }
}

impl From<Broken> for Trouble {
    fn from(broken: Broken) -> Self {
        Self::There(broken)
    }
}

fn take_over(
    talk: &mut Talk,
    shelf: &Arc<Shelf>,
    writer: &Writer,
    base: u64,
    number: u64,
) -> Result<usize, Trouble> {
    let (entries, ages) = talk.list(number)?;
    let have = match base {
        0 => Vec::new(),
        _ => Reader::of(shelf, writer.kept()).list(base)?.0,
    };
    let seal = Seal::of(entries.iter().copied());
    // A list that is out of order is a lie of the other guardian.
    let tables = Tables::restored(base, have);
    let delta = tables.and_then(|mut tables| tables.take(number, entries));
    let delta = delta.map_err(|_| Broken::Unexpected)?;
    writer.begin(base, number)?;
    for blocks in delta.dirty.chunks(READS_MAX) {
        take_blocks(talk, writer, number, blocks)?;
    }
    writer.bury(number, &delta.dead)?;
    writer.commit(number, seal, ages)?;
    Ok(delta.dirty.len())
}

/// Asks for blocks and puts them into the image as they come.
fn take_blocks(
    talk: &mut Talk,
    writer: &Writer,
    number: u64,
    entries: &[BlockDigest],
) -> Result<(), Trouble> {
    let blocks: Vec<_> = entries.iter().map(|entry| entry.block).collect();
    talk.ask_for(number, &blocks)?;
    for entry in entries {
        let (block, bytes) = talk.next_block()?;
        if block != entry.block {
            return Err(Broken::Unexpected.into());
        }
        writer.put(number, *entry, bytes)?;
    }
    Ok(())
}

impl From<PeerError> for Trouble {
    fn from(error: PeerError) -> Self {
        Self::There(Broken::Refused(error.to_string()))
    }
}
