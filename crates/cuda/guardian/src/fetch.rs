//! Brings an image here from another guardian, or brings the one here up to date.
//!
//! Only blocks travel whose digest this guardian does not have. The other guardian shuts its writer out before it sends
//! anything: what a lost session still writes there cannot be missing here. The image checks every digest and the seal
//! as it does for a session, so what is committed here is what was committed there.

use crate::error::{Broken, Refusal};
use crate::peer::{PeerAddress, PeerSecurity};
use crate::protocol::{Mode, Open, READS_MAX};
use crate::shelf::{Reader, Shelf, Writer};
use crate::talk::Talk;
use snapshot::{BlockDigest, Seal, Tables};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Blocks that one connection brings at a time: 16 MiB.
const PART_BLOCKS: usize = 256;
const _: () = assert!(PART_BLOCKS <= READS_MAX);

/// Another guardian that says nothing for this long is lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connections that blocks come over. One brings less than a gigabyte a second: a core encrypts it, another decrypts it.
const LINES: usize = 6;

/// How an image is brought here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The other guardian shuts its writer out first: the program goes on here.
    TakeOver,
    /// Beside its writer, who goes on there: the program may come here soon.
    Ahead,
}

/// Fetches what the guardian at `open.from` has beyond what `writer` has. Says how many blocks came.
pub(crate) fn fetch(
    security: &PeerSecurity,
    shelf: &Arc<Shelf>,
    writer: &Writer,
    open: &Open,
    way: Way,
) -> Result<usize, Refusal> {
    let refusal = |reason: String| Refusal::Peer { address: open.from.clone(), reason };
    let address: PeerAddress = open.from.parse().map_err(|error| refusal(format!("{error}")))?;
    let connect = |mode| -> Result<(Talk, u64), Broken> {
        let mut talk =
            security.connect(&address, PATIENCE).map_err(|error| Broken::Refused(error.to_string()))?;
        let there = Open { mode, from: String::new(), lease: String::new(), ..open.clone() };
        let (_, number) = talk.open(there)?;
        Ok((talk, number))
    };
    let mode = if way == Way::TakeOver { Mode::Fetch } else { Mode::Read };
    let (mut talk, number) = connect(mode).map_err(|broken| refusal(broken.to_string()))?;
    let base = writer.state()?.committed;
    if number <= base {
        return Ok(0);
    }
    let another = || connect(Mode::Read).map(|(talk, _)| talk);
    match take_all((&mut talk, &another), shelf, writer, base, number) {
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

/// A connection, and how to make one more.
type Lines<'a> = (&'a mut Talk, &'a (dyn Fn() -> Result<Talk, Broken> + Sync));

fn take_all(
    (talk, another): Lines<'_>,
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
    let parts: Vec<&[BlockDigest]> = delta.dirty.chunks(PART_BLOCKS).collect();
    let next = AtomicUsize::new(0);
    let take = |talk: &mut Talk| -> Result<(), Trouble> {
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            take_blocks(talk, writer, number, part)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let more = 1..LINES.min(parts.len());
        // A guardian that takes no further connection is read through those that it took.
        let others: Vec<_> =
            more.map(|_| scope.spawn(|| another().map_or(Ok(()), |mut talk| take(&mut talk)))).collect();
        let own = take(talk);
        let others = others.into_iter().map(|thread| thread.join().unwrap_or(Err(Broken::Closed.into())));
        others.fold(own, Result::and)
    })?;
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
