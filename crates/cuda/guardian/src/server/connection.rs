//! One connection: what it opens, and what it may do with it.

use super::Shared;
use super::delta::Delta;
use super::help::help;
use super::relay::relay;
use crate::disk::Disk;
use crate::error::{Broken, Refusal};
use crate::fetch::{Way, fetch};
use crate::protocol::{AGES_MAX, Answer, ENTRIES_MAX, Mode, Open, Request};
use crate::shelf::{Reader, Writer};
use crate::stream::Stream;
use snapshot::{Block, BlockDigest, Bytes, EventAge};
use std::sync::Arc;
use std::time::Instant;

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A worker of this box, over the Unix socket.
    Worker,
    /// Another guardian.
    Guardian,
}

/// Serves a connection until it ends.
pub(super) fn serve(shared: &Arc<Shared>, mut stream: Stream, origin: Origin) -> Result<(), Broken> {
    loop {
        let outcome = match stream.next(false)?.0 {
            Request::Hello => {
                let bytes_max = shared.shelf.budget().bytes_max();
                let copy_at = shared.copy_at();
                Ok(Answer::Welcome { bytes_max, address: shared.address.clone(), copy_at })
            }
            Request::EndLease(lease) if origin == Origin::Worker => {
                let parked = shared.disk.as_ref().map_or(0, |disk| disk.end_lease(&lease));
                let ended = shared.shelf.end_lease(&lease) + parked;
                tracing::info!(lease, ended, "a lease has ended: its images were zeroed");
                Ok(Answer::Done)
            }
            Request::Census if origin == Origin::Worker => {
                let mut leases = shared.shelf.leases();
                for lease in shared.disk.iter().flat_map(Disk::leases) {
                    leases.entry(lease).or_insert(0);
                }
                for (lease, bytes) in leases {
                    stream.answer(&Answer::Lease { bytes, lease })?;
                }
                let budget = shared.shelf.budget();
                Ok(Answer::CensusEnd { bytes_max: budget.bytes_max(), used: budget.used() })
            }
            Request::Open(open) => match (open.mode, origin) {
                (Mode::Read, Origin::Worker) if !open.from.is_empty() => {
                    return relay(&shared.security, stream, &open);
                }
                (Mode::Read, _) | (Mode::Fetch, Origin::Guardian) => return read(shared, stream, &open),
                (Mode::Write | Mode::Ahead, Origin::Worker) | (Mode::Copy, Origin::Guardian) => {
                    return write(shared, stream, &open);
                }
                (Mode::Help, Origin::Worker) => return help(shared, stream, &open),
                (Mode::Write | Mode::Help | Mode::Ahead, Origin::Guardian)
                | (Mode::Copy | Mode::Fetch, Origin::Worker) => {
                    Err(Refusal::OutOfPlace("this connection may not open an image so"))
                }
            },
            _ => Err(Refusal::OutOfPlace("no image is open")),
        };
        stream.answer(&outcome.unwrap_or_else(|refusal| Answer::Refused(refusal.to_string())))?;
    }
}

/// Serves a reader. What it has listed stays readable until it goes.
fn read(shared: &Shared, mut stream: Stream, open: &Open) -> Result<(), Broken> {
    let opened = shared.open_to_read(open).and_then(|reader| Ok((reader.state()?, reader)));
    let (state, mut reader) = match opened {
        Ok(opened) => opened,
        Err(refusal) => return stream.answer(&Answer::Refused(refusal.to_string())),
    };
    stream
        .answer(&Answer::Opened { bytes_max: shared.shelf.image_bytes_max(), committed: state.committed })?;
    loop {
        match stream.next(true)?.0 {
            Request::State => stream.answer(&outcome(reader.state().map(state_answer)))?,
            Request::List { number } => list(&mut stream, &mut reader, number)?,
            Request::Read { number, blocks } => send_blocks(&mut stream, &reader, number, &blocks)?,
            Request::Leave => return stream.answer(&Answer::Done),
            _ => return stream.answer(&Answer::Refused("a reader may only read".to_owned())),
        }
    }
}

fn list(stream: &mut Stream, reader: &mut Reader, number: u64) -> Result<(), Broken> {
    match reader.list(number) {
        Ok((entries, ages)) => send_list(stream, &entries, &ages),
        Err(refusal) => stream.answer(&Answer::Refused(refusal.to_string())),
    }
}

pub(super) fn send_list(
    stream: &mut Stream,
    entries: &[BlockDigest],
    ages: &[EventAge],
) -> Result<(), Broken> {
    for part in entries.chunks(ENTRIES_MAX) {
        stream.answer(&Answer::Entries(part.to_vec()))?;
    }
    for part in ages.chunks(AGES_MAX) {
        stream.answer(&Answer::Ages(part.to_vec()))?;
    }
    stream.answer(&Answer::ListEnd { entries: entries.len() as u64 })
}

fn send_blocks(stream: &mut Stream, reader: &Reader, number: u64, blocks: &[Block]) -> Result<(), Broken> {
    for &block in blocks {
        match reader.read(number, block) {
            Ok(bytes) => stream.answer_with(&Answer::Block(block), &bytes)?,
            Err(refusal) => stream.answer(&Answer::Refused(refusal.to_string()))?,
        }
    }
    Ok(())
}

/// Serves a writer. However it ends, what it has not committed is thrown away.
fn write(shared: &Arc<Shared>, mut stream: Stream, open: &Open) -> Result<(), Broken> {
    if open.mode == Mode::Ahead && shared.shelf.is_written(open) {
        let words = "this guardian has the image, and a session or another guardian writes it".to_owned();
        return stream.answer(&Answer::Refused(words));
    }
    let writer = match shared.open_to_write(open) {
        Ok(writer) => writer,
        Err(refusal) => return stream.answer(&Answer::Refused(refusal.to_string())),
    };
    let committed = match catch_up(shared, &writer, open) {
        Ok(committed) => committed,
        Err(refusal) => {
            writer.lost(Instant::now());
            return stream.answer(&Answer::Refused(refusal.to_string()));
        }
    };
    if open.mode == Mode::Write {
        shared.copy(writer.kept(), open.incarnation);
    }
    let mut delta = Delta::default();
    let mut served = stream.answer(&Answer::Opened { bytes_max: shared.shelf.image_bytes_max(), committed });
    let last = loop {
        match served.and_then(|()| write_on(shared, &mut stream, &writer, &mut delta)) {
            Ok(Last::Park) => match park(shared, &writer, open) {
                Ok(()) => return stream.answer(&Answer::Done),
                Err(refusal) => served = stream.answer(&Answer::Refused(refusal.to_string())),
            },
            last => break last,
        }
    };
    match last {
        Ok(Last::Park) => Ok(()),
        Ok(Last::End) => {
            let ended = writer.end().map(|()| Answer::Done);
            stream.answer(&outcome(ended))
        }
        Ok(Last::Leave) => {
            writer.leave(Instant::now());
            stream.answer(&Answer::Done)
        }
        Err(broken) => {
            writer.lost(Instant::now());
            Err(broken)
        }
    }
}

/// Fetches what another guardian has beyond this one, and says which cut is committed then.
fn catch_up(shared: &Shared, writer: &Writer, open: &Open) -> Result<u64, Refusal> {
    if !open.from.is_empty() {
        let way = if open.mode == Mode::Ahead { Way::Ahead } else { Way::TakeOver };
        let fetched = fetch(&shared.security, &shared.shelf, writer, open, way);
        match (fetched, writer.state()?.committed) {
            (Ok(blocks), committed) => {
                tracing::info!(from = open.from, blocks, committed, "an image was fetched")
            }
            (Err(refusal), 0) => return Err(refusal),
            // The other guardian may be lost with its box: what is here must do.
            (Err(refusal), _) => tracing::warn!(%refusal, "the image of this guardian is used as it is"),
        }
    }
    Ok(writer.state()?.committed)
}

fn park(shared: &Shared, writer: &Writer, open: &Open) -> Result<(), Refusal> {
    match &shared.disk {
        Some(disk) => writer.park(disk, open),
        None => Err(Refusal::OutOfPlace(
            "this guardian has no directory for suspended images; it stays in memory",
        )),
    }
}

/// A writer's last word.
enum Last {
    End,
    Leave,
    Park,
}

fn write_on(
    shared: &Shared,
    stream: &mut Stream,
    writer: &Writer,
    delta: &mut Delta,
) -> Result<Last, Broken> {
    loop {
        let (request, block) = stream.next(true)?;
        let answered = match request {
            Request::End => return Ok(Last::End),
            Request::Leave => return Ok(Last::Leave),
            Request::Park => return Ok(Last::Park),
            Request::State => Some(writer.state().map(state_answer)),
            Request::Begin { base, number } => Some(delta.begin(writer, base, number).map(|()| Answer::Done)),
            Request::Abandon { number } => Some(delta.abandon(writer, number).map(|()| Answer::Done)),
            Request::Commit { number, seal } => {
                let committed = delta.commit(writer, number, seal);
                Some(committed.map(|image_bytes| Answer::Committed {
                    level: level(shared, writer, number),
                    image_bytes,
                }))
            }
            Request::Put(entry) => {
                one_way(stream, delta, |delta| delta.put(writer, entry, block.unwrap_or_else(empty)))?;
                None
            }
            Request::Bury(dead) => {
                one_way(stream, delta, |delta| delta.bury(writer, &dead))?;
                None
            }
            Request::Ages(ages) => {
                one_way(stream, delta, |delta| delta.ages(ages))?;
                None
            }
            _ => Some(Err(Refusal::OutOfPlace("a writer may only write"))),
        };
        if let Some(answer) = answered {
            stream.answer(&outcome(answer))?;
        }
    }
}

/// A request without an answer. Only the first refusal of a delta is told.
pub(super) fn one_way(
    stream: &mut Stream,
    delta: &mut Delta,
    run: impl FnOnce(&mut Delta) -> Result<(), Refusal>,
) -> Result<(), Broken> {
    if delta.has_failed() {
        return Ok(());
    }
    let Err(refusal) = run(delta) else { return Ok(()) };
    let (number, text) = (delta.number(), refusal.to_string());
    delta.fail(text.clone());
    stream.answer(&Answer::DeltaFailed { number, text })
}

/// 2 if another guardian has the cut too, or soon enough.
fn level(shared: &Shared, writer: &Writer, number: u64) -> u8 {
    let is_copied = shared.copy_to.is_some() && writer.kept().wait_for_copy(number, shared.copy_wait);
    if is_copied { 2 } else { 1 }
}

pub(super) fn empty() -> Bytes {
    Bytes::copy_of(&[])
}

pub(super) fn outcome(answer: Result<Answer, Refusal>) -> Answer {
    answer.unwrap_or_else(|refusal| Answer::Refused(refusal.to_string()))
}

pub(super) fn state_answer(state: crate::shelf::State) -> Answer {
    Answer::State { committed: state.committed, copied: state.copied, image_bytes: state.image_bytes }
}
