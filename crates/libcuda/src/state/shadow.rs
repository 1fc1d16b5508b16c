//! Pinned memory that kernels are given pointers to.
//!
//! On one machine a kernel reads and writes pinned host memory by itself. Here the memory is the program's and the kernel
//! runs elsewhere. So a launch whose parameters point into pinned memory gets device memory in its stead, a *shadow*:
//!
//! ```text
//!   pinned memory ── as it is at the launch ──▶ shadow ──▶ kernel ──▶ shadow ── what changed ──▶ pinned memory
//! ```
//!
//! Some libraries hand such a pointer to every kernel and hardly ever use it (cuDNN's normalizations do), so a launch
//! itself sends only what the program changed since the last one, mostly nothing. Others let a kernel wait for a word that
//! the program writes when the kernel runs already (XLA does, to measure what comes behind it). So what goes to a shadow
//! goes by a stream of its own, which the launch waits for and nobody else; and whenever the program is about to wait, what
//! it wrote meanwhile is sent after the kernels that have it. What kernels changed is fetched when
//! the program is about to learn that they are done: before an event is recorded, a stream waited for or asked, a host
//! function run, a copy made. Only bytes that a kernel changed are written back: the program may use other parts of the
//! same memory meanwhile. Pointers that lie in device memory are not seen; a kernel that follows one of those to the host
//! faults, as it would on a GPU without mapped memory.

#![allow(unsafe_code)]

use super::{Context, Copy, Event, Pinned, Place, Stream, StreamKind, allocate, client, lock};
use crate::host::HostRegion;
use cuda_abi::CuResult;
use cuda_client::host_memory::HostRange;
use cuda_wire::{Bytes, Command, HostData, INLINE_BYTES_MAX, Op, Plane, Shape};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

/// More than this is meant for copies, and would cost every launch as much.
const SHADOWED_BYTES_MAX: u64 = 64 << 20;

/// By the first address of its pinned memory and by context.
static SHADOWS: Mutex<BTreeMap<(u64, u64), Arc<Shadow>>> = Mutex::new(BTreeMap::new());

/// Shadows that kernels may have written since they were last fetched, with the streams of those kernels.
static UNFETCHED: Mutex<Vec<(Arc<Stream>, Arc<Shadow>)>> = Mutex::new(Vec::new());
static ANY_UNFETCHED: AtomicBool = AtomicBool::new(false);

/// A kernel that waits for a word of the program's looks at little memory. More is not looked through at every wait.
const SIGNAL_BYTES_MAX: u64 = 64 << 10;

/// Small shadows that kernels may be looking at now, with the streams of those kernels.
static WATCHED: Mutex<Vec<(Arc<Stream>, Arc<Shadow>)>> = Mutex::new(Vec::new());
static ANY_WATCHED: AtomicBool = AtomicBool::new(false);

/// By context.
static SIDES: Mutex<BTreeMap<u64, Arc<Side>>> = Mutex::new(BTreeMap::new());

/// The way to shadows, past all streams of the program: what waits there may be a kernel that waits for this.
struct Side {
    stream: Arc<Stream>,
    written: Arc<Event>,
}

impl Side {
    fn of(context: &Arc<Context>) -> CuResult<Arc<Self>> {
        let mut sides = lock(&SIDES);
        if let Some(side) = sides.get(&context.handle) {
            return Ok(Arc::clone(side));
        }
        let stream = Stream::create(context, StreamKind::NonBlocking, cuda_abi::CU_STREAM_NON_BLOCKING, 0)?;
        let written = Event::create(context, cuda_abi::CU_EVENT_DISABLE_TIMING)?;
        let side = Arc::new(Self { stream, written });
        sides.insert(context.handle, Arc::clone(&side));
        Ok(side)
    }

    /// Not by [`Stream::enqueue`], which orders work behind copies that may be behind a waiting kernel.
    fn post(&self, op: Op<'_>) -> CuResult<()> {
        self.stream.context.post(&Command::Enqueue { stream: self.stream.id, op })
    }

    /// Has a stream wait for all that was sent so far.
    fn before(&self, stream: &Stream) -> CuResult<()> {
        self.written.note_record();
        self.post(Op::Record { event: self.written.id, flags: 0 })?;
        stream.enqueue(Op::Wait { event: self.written.id, flags: 0 })
    }
}

/// Device memory that stands for pinned memory.
pub(crate) struct Shadow {
    range: HostRange,
    device: u64,
    state: Mutex<State>,
}

struct State {
    /// What the device memory holds, but for changes by kernels that have not arrived here.
    known: Vec<u8>,
    /// Fetches under way.
    fetches: usize,
}

impl Shadow {
    fn host(&self) -> HostRegion {
        // SAFETY: the program pinned the range and keeps it until it unpins it, which waits for fetches and forgets the
        // shadow.
        unsafe { HostRegion::line(self.range.base, self.range.bytes) }
    }

    /// Sends what the program has changed; says whether that was anything.
    fn refresh(&self, side: &Side, pinned: &Pinned) -> CuResult<bool> {
        let (is_written_by_others, changes) = self.changes(pinned);
        let changes = if is_written_by_others {
            // Copies before this launch have their say first.
            let context = &side.stream.context;
            context.call(&Command::ContextSynchronize { context: context.id })?;
            self.changes(pinned).1
        } else {
            changes
        };
        changes.iter().try_for_each(|(offset, bytes)| self.send(side, *offset, bytes))?;
        Ok(!changes.is_empty())
    }

    /// Whether copies may still write into the memory, and the pieces that differ from what the device has. The
    /// latter count as sent.
    fn changes(&self, pinned: &Pinned) -> (bool, Vec<(usize, Vec<u8>)>) {
        let host = self.host();
        let mut state = lock(&self.state);
        if pinned.writes_under_way(self.range.base, self.range.bytes) > state.fetches {
            return (true, Vec::new());
        }
        let mut changes = Vec::new();
        // The program may write while we look, so we look at a copy of each piece.
        let mut piece = [0; 4096];
        for (number, known) in state.known.chunks_mut(piece.len()).enumerate() {
            let (now, at) = (&mut piece[..known.len()], number * 4096);
            host.read(at as u64, now);
            for Range { start, end } in differences(now, known) {
                changes.push((at + start, now[start..end].to_vec()));
            }
            known.copy_from_slice(now);
        }
        (false, changes)
    }

    fn send(&self, side: &Side, offset: usize, bytes: &[u8]) -> CuResult<()> {
        let target = Plane::line(self.device + offset as u64);
        let shape = Shape::line(bytes.len() as u64);
        if bytes.len() <= INLINE_BYTES_MAX {
            return side.post(Op::CopyIn { target, shape, data: HostData::Inline { bytes: Bytes(bytes) } });
        }
        let copy = Copy {
            // SAFETY: these bytes are ours and stay until the copy has taken them, which for pageable memory is at once.
            source: Place::Host(unsafe { HostRegion::line(bytes.as_ptr() as u64, bytes.len() as u64) }),
            target: Place::Device(target),
            shape,
        };
        // Not `run_copy`: a fetch in front of this copy would take what the device has for news.
        super::copy::run_checked(&side.stream, &copy, false)
    }

    /// Has what kernels before this point of the stream changed written into the program's memory.
    fn fetch(self: Arc<Self>, stream: &Stream) -> CuResult<()> {
        let hazard = client()?.pinned.begin_write(self.range.base, self.range.bytes);
        let before = {
            let mut state = lock(&self.state);
            state.fetches += 1;
            state.known.clone()
        };
        let arrived = Arc::clone(&self);
        let landed = Box::new(move || {
            let mut state = lock(&arrived.state);
            super::copy::end_write(hazard);
            state.fetches -= 1;
        });
        let (source, shape) = (Plane::line(self.device), Shape::line(self.range.bytes));
        let bytes = self.range.bytes;
        let changes = Box::new(Changes { shadow: self, before });
        let transfer = stream.context.link.expect_by(bytes, changes, landed);
        stream.enqueue(Op::CopyOut { source, shape, transfer })
    }
}

/// Where two texts of equal length differ. Differences that lie close together count as one.
fn differences(new: &[u8], old: &[u8]) -> Vec<Range<usize>> {
    const CLOSE: usize = 64;
    let mut found: Vec<Range<usize>> = Vec::new();
    if new == old {
        return found;
    }
    for (at, _) in new.iter().zip(old).enumerate().filter(|(_, (new, old))| new != old) {
        match found.last_mut() {
            Some(last) if at < last.end + CLOSE => last.end = at + 1,
            _ => found.push(at..at + 1),
        }
    }
    found
}

/// Puts device memory in the place of pinned memory in a launch's parameters; says which.
#[inline]
pub(crate) fn lend(stream: &Arc<Stream>, parameters: &mut [u8]) -> CuResult<Vec<Arc<Shadow>>> {
    let pinned = &client()?.pinned;
    let mut lent = Vec::new();
    for word in parameters.as_chunks_mut::<8>().0 {
        let pointer = u64::from_le_bytes(*word);
        if pinned.may_hold(pointer)
            && let Some(range) = pinned.find(pointer)
            && is_small(&range)
        {
            let device = lend_one(stream, pinned, range, &mut lent)?;
            *word = (device + (pointer - range.base)).to_le_bytes();
        }
    }
    Ok(lent)
}

/// A kernel that is given a pointer into much pinned memory gets it as it is, and faults if it follows it: many never do.
#[cold]
fn is_small(range: &HostRange) -> bool {
    let small = range.bytes <= SHADOWED_BYTES_MAX;
    if !small {
        crate::process::refused(
            "access to pinned memory by a kernel",
            "it is given a pointer into more than 64 MiB of it; copy what it needs to the device",
        );
    }
    small
}

#[cold]
fn lend_one(
    stream: &Arc<Stream>,
    pinned: &Pinned,
    range: HostRange,
    lent: &mut Vec<Arc<Shadow>>,
) -> CuResult<u64> {
    if let Some(known) = lent.iter().find(|lent| lent.range.base == range.base) {
        return Ok(known.device);
    }
    let side = Side::of(&stream.context)?;
    let (shadow, is_new) = shadow_of(&side, range)?;
    if shadow.refresh(&side, pinned)? || is_new {
        side.before(stream)?;
    }
    lent.push(Arc::clone(&shadow));
    Ok(shadow.device)
}

/// The shadow of pinned memory, and whether it is new.
fn shadow_of(side: &Side, range: HostRange) -> CuResult<(Arc<Shadow>, bool)> {
    let context = &side.stream.context;
    let key = (range.base, context.handle);
    if let Some(shadow) = lock(&SHADOWS).get(&key) {
        return Ok((Arc::clone(shadow), false));
    }
    crate::log::debug(|| format!("a kernel is given {} bytes of pinned memory", range.bytes));
    let device = allocate(context, range.bytes)?;
    let known = vec![0; range.bytes as usize];
    let shadow = Arc::new(Shadow { range, device, state: Mutex::new(State { known, fetches: 0 }) });
    let target = Plane::line(device);
    side.post(Op::Fill { target, shape: Shape::line(range.bytes), element_bytes: 1, value: 0 })?;
    lock(&SHADOWS).insert(key, Arc::clone(&shadow));
    Ok((shadow, true))
}

/// Notes that a kernel which was just launched may change what it was lent.
pub(crate) fn note_lent(stream: &Arc<Stream>, lent: Vec<Arc<Shadow>>) {
    let small = lent.iter().filter(|shadow| shadow.range.bytes <= SIGNAL_BYTES_MAX);
    if note_each(&WATCHED, stream, small) {
        ANY_WATCHED.store(true, Ordering::Release);
    }
    if note_each(&UNFETCHED, stream, lent.iter()) {
        ANY_UNFETCHED.store(true, Ordering::Release);
    }
}

type Noted = Mutex<Vec<(Arc<Stream>, Arc<Shadow>)>>;

/// Notes each of them once; says whether there was any.
fn note_each<'a>(noted: &Noted, stream: &Arc<Stream>, lent: impl Iterator<Item = &'a Arc<Shadow>>) -> bool {
    let mut noted = lock(noted);
    let mut is_any = false;
    for shadow in lent {
        let is_noted =
            |(of, known): &(Arc<Stream>, Arc<Shadow>)| Arc::ptr_eq(of, stream) && Arc::ptr_eq(known, shadow);
        if !noted.iter().any(is_noted) {
            noted.push((Arc::clone(stream), Arc::clone(shadow)));
        }
        is_any = true;
    }
    is_any
}

/// Called before the program waits, or learns that kernels are done: sends what it wrote for kernels that run, and fetches
/// what they may have changed, behind each of them.
#[inline]
pub(crate) fn fetch_all() -> CuResult<()> {
    forward()?;
    if ANY_UNFETCHED.load(Ordering::Acquire) { fetch_noted() } else { Ok(()) }
}

/// Sends what the program wrote into memory that kernels may be looking at.
#[inline]
pub(crate) fn forward() -> CuResult<()> {
    if ANY_WATCHED.load(Ordering::Acquire) { forward_noted() } else { Ok(()) }
}

#[cold]
fn forward_noted() -> CuResult<()> {
    let pinned = &client()?.pinned;
    let watched = lock(&WATCHED).clone();
    for (stream, shadow) in watched {
        let (_, changes) = shadow.changes(pinned);
        if !changes.is_empty() {
            let side = Side::of(&stream.context)?;
            changes.iter().try_for_each(|(offset, bytes)| shadow.send(&side, *offset, bytes))?;
        }
    }
    Ok(())
}

/// All work of a stream is done: its kernels look at nothing any more.
#[inline]
pub(crate) fn at_rest(is_at_rest: impl Fn(&Stream) -> bool) {
    if ANY_WATCHED.load(Ordering::Acquire) {
        let mut watched = lock(&WATCHED);
        watched.retain(|(stream, _)| !is_at_rest(stream));
        if watched.is_empty() {
            ANY_WATCHED.store(false, Ordering::Release);
        }
    }
}

#[cold]
fn fetch_noted() -> CuResult<()> {
    let noted = {
        let mut unfetched = lock(&UNFETCHED);
        ANY_UNFETCHED.store(false, Ordering::Release);
        std::mem::take(&mut *unfetched)
    };
    noted.into_iter().try_for_each(|(stream, shadow)| shadow.fetch(&stream))
}

/// Takes a shadow's bytes and writes those that a kernel changed.
struct Changes {
    shadow: Arc<Shadow>,
    before: Vec<u8>,
}

impl bulk::Sink for Changes {
    fn take(&self, offset: u64, after: &[u8]) {
        let offset = offset as usize;
        let before = &self.before[offset..offset + after.len()];
        let (host, mut state) = (self.shadow.host(), lock(&self.shadow.state));
        for at in 0..after.len() {
            // What was sent since is no news either.
            if after[at] == before[at] || after[at] == state.known[offset + at] {
                continue;
            }
            host.write((offset + at) as u64, &after[at..=at]);
            state.known[offset + at] = after[at];
        }
    }
}

/// Pinned memory goes: its shadows go too. Its fetches are over.
pub(crate) fn forget(base: u64) {
    lock(&UNFETCHED).retain(|(_, shadow)| shadow.range.base != base);
    lock(&WATCHED).retain(|(_, shadow)| shadow.range.base != base);
    let gone: Vec<Arc<Shadow>> = {
        let mut shadows = lock(&SHADOWS);
        let keys: Vec<(u64, u64)> =
            shadows.range((base, 0)..=(base, u64::MAX)).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| shadows.remove(key)).collect()
    };
    for shadow in gone {
        // Memory of a context that ended went with it.
        let _ = crate::api::memory::free(shadow.device);
    }
}

/// A context ended, and with it the device memory that was made in it.
pub(super) fn forget_context(context: u64) {
    lock(&UNFETCHED).retain(|(stream, _)| stream.context.handle != context);
    lock(&WATCHED).retain(|(stream, _)| stream.context.handle != context);
    lock(&SIDES).remove(&context);
    lock(&SHADOWS).retain(|(_, of), _| *of != context);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_that_lie_close_together_are_sent_as_one() {
        let old = [0; 400];
        let mut new = old;
        assert!(differences(&new, &old).is_empty());
        (new[3], new[40], new[105], new[399]) = (1, 1, 1, 1);
        assert_eq!(differences(&new, &old), [3..41, 105..106, 399..400]);
    }
}
