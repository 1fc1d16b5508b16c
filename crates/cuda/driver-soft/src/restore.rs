//! Loading an image into a session that has made everything again.

use crate::{
    activity::now_ns, cut::read, frozen::Frozen, line::Record, session::Session, space::Cursor, sync::lock,
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Blocks, Restored};
use cuda_wire::EventId;
use snapshot::{BlockDigest, EventAge, Tables as DigestTables};
use std::sync::Arc;

/// Writes all blocks, checks what is in memory then, and lets the next cut be relative to this image.
pub(crate) fn restore(session: &Arc<Session>, image: &dyn Blocks) -> CuResult<Restored> {
    session.drain()?;
    let key = {
        let books = lock(&session.cuts.books);
        if books.on_its_way.is_some() {
            return Err(CudaError::NOT_READY);
        }
        books.key.clone().ok_or(CudaError::NOT_INITIALIZED)?
    };
    let list = image.list();
    let frozen = session.freeze(&lock(&session.tables))?;
    check_places(session, &frozen, &list)?;
    let mut cursor = Cursor::of_driver(&session.space);
    for entry in &list {
        let bytes = image.read(entry.block)?;
        if bytes.len() != entry.block.bytes as usize {
            return Err(refuse(session, entry, "has another length than the image says"));
        }
        cursor.write(frozen.here(entry.block.address), &bytes)?;
    }
    // After all writes: memory that is mapped twice must have got the same bytes from both places.
    for entry in &list {
        let bytes = read(&mut cursor, &frozen, entry.block).ok_or(CudaError::DEVICE_UNAVAILABLE)?;
        if key.digest(&bytes) != entry.digest {
            return Err(refuse(session, entry, "is not what the worker saved"));
        }
    }
    restore_events(session, &image.events());
    let restored = Restored {
        blocks: list.len() as u64,
        bytes: list.iter().map(|entry| u64::from(entry.block.bytes)).sum(),
    };
    lock(&session.cuts.books).digests =
        DigestTables::restored(image.number(), list).map_err(|_| CudaError::INVALID_VALUE)?;
    Ok(restored)
}

fn check_places(session: &Session, frozen: &Frozen, list: &[BlockDigest]) -> CuResult<()> {
    match list.iter().find(|entry| !frozen.holds(entry.block)) {
        Some(entry) => Err(refuse(session, entry, "belongs to memory that was not allocated again")),
        None => Ok(()),
    }
}

fn refuse(session: &Session, entry: &BlockDigest, why: &str) -> CudaError {
    session.say(format!("the image cannot be restored: its block at {:#x} {why}", entry.block.address));
    CudaError::INVALID_VALUE
}

/// An event keeps its time until it is recorded again.
fn restore_events(session: &Session, ages: &[EventAge]) {
    // One moment for all, so that the times between them stay what they were.
    let now = now_ns() as i64;
    let mut tables = lock(&session.tables);
    for age in ages {
        if let Some(event) = tables.events.get_mut(&EventId(age.event)) {
            event.latest =
                Some(Record::reached_elsewhere(&event.context, now.saturating_sub_unsigned(age.age_ns)));
        }
    }
}
